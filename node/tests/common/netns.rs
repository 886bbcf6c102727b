//! Hosts in network namespaces: each has an address of its own on a bridge, and links that fail.

use std::process::Command;

use super::stderr;

/// Network namespaces of one test, on a bridge of their own, removed at the end.
pub struct Hosts {
    names: Vec<String>,
    net: u8,
}

impl Hosts {
    fn run(words: &[&str]) -> Result<(), String> {
        let output =
            Command::new(words[0]).args(&words[1..]).output().map_err(|error| format!("{words:?}: {error}"))?;
        if output.status.success() { Ok(()) } else { Err(format!("{words:?}: {}", stderr(&output))) }
    }

    /// Hosts numbered from 1; `tag` distinguishes those of one test from another's. The bridge has
    /// a namespace of its own, so nothing of this host's network changes.
    pub fn new(tag: &str, count: usize) -> Result<Self, String> {
        let id = std::process::id();
        let bridge = format!("rm{tag}{id}b");
        Self::run(&["ip", "netns", "add", &bridge])?;
        let mut hosts = Self { names: vec![bridge.clone()], net: 117 };
        Self::run(&["ip", "-n", &bridge, "link", "add", "br0", "type", "bridge"])?;
        Self::run(&["ip", "-n", &bridge, "link", "set", "br0", "up"])?;
        for host in 1..=count {
            let (name, port) = (format!("rm{tag}{id}n{host}"), format!("port{host}"));
            Self::run(&["ip", "netns", "add", &name])?;
            hosts.names.push(name.clone());
            Self::run(&[
                "ip", "-n", &bridge, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &name,
            ])?;
            Self::run(&["ip", "-n", &bridge, "link", "set", &port, "master", "br0", "up"])?;
            let address = format!("{}/24", hosts.address(host));
            Self::run(&["ip", "-n", &name, "addr", "add", &address, "dev", "eth0"])?;
            Self::run(&["ip", "-n", &name, "link", "set", "eth0", "up"])?;
            Self::run(&["ip", "-n", &name, "link", "set", "lo", "up"])?;
        }
        Ok(hosts)
    }

    pub fn name(&self, host: usize) -> &str {
        &self.names[host]
    }

    pub fn address(&self, host: usize) -> String {
        format!("10.{}.0.{host}", self.net)
    }

    fn nft(&self, host: usize, rules: &str) -> Result<(), String> {
        Self::run(&["ip", "netns", "exec", self.name(host), "nft", rules])
    }

    fn filter(&self, host: usize, rule: &str) -> Result<(), String> {
        self.nft(
            host,
            &format!(
                "add table ip fault; add chain ip fault in {{ type filter hook input priority 0 ; }}; \
                 add rule ip fault in iifname eth0 {rule} drop"
            ),
        )
    }

    /// From now on one of ten packets to this host is lost.
    pub fn lose(&self, host: usize) -> Result<(), String> {
        self.filter(host, "numgen random mod 10 == 0")
    }

    /// From now on this host receives no packets from the other; the other still receives its own.
    pub fn block_from(&self, host: usize, to: usize) -> Result<(), String> {
        self.filter(host, &format!("ip saddr {}", self.address(to)))
    }

    /// Sets the MTU of this host's cable, at both ends.
    pub fn mtu(&self, host: usize, bytes: u32) -> Result<(), String> {
        let bytes = bytes.to_string();
        Self::run(&["ip", "-n", self.name(host), "link", "set", "eth0", "mtu", &bytes])?;
        Self::run(&["ip", "-n", self.name(0), "link", "set", &format!("port{host}"), "mtu", &bytes])
    }

    /// Puts a router between this host and the bridge that gives every packet of it its own
    /// address, which is the host's former one. Returns the host's new address, which nobody else
    /// reaches.
    pub fn behind_nat(&mut self, host: usize) -> Result<String, String> {
        let router = format!("{}r", self.name(host));
        let name = self.name(host).to_owned();
        let (inner, gateway) = (format!("192.168.{host}.2"), format!("192.168.{host}.1"));
        Self::run(&["ip", "netns", "add", &router])?;
        self.names.push(router.clone());
        Self::run(&["ip", "-n", &name, "link", "set", "eth0", "netns", &router])?;
        let former = format!("{}/24", self.address(host));
        Self::run(&["ip", "-n", &router, "addr", "add", &former, "dev", "eth0"])?;
        Self::run(&["ip", "-n", &router, "link", "set", "eth0", "up"])?;
        Self::run(&[
            "ip", "-n", &router, "link", "add", "inner", "type", "veth", "peer", "name", "eth0", "netns", &name,
        ])?;
        Self::run(&["ip", "-n", &router, "addr", "add", &format!("{gateway}/24"), "dev", "inner"])?;
        Self::run(&["ip", "-n", &router, "link", "set", "inner", "up"])?;
        Self::run(&["ip", "-n", &name, "addr", "add", &format!("{inner}/24"), "dev", "eth0"])?;
        Self::run(&["ip", "-n", &name, "link", "set", "eth0", "up"])?;
        Self::run(&["ip", "-n", &name, "route", "add", "default", "via", &gateway])?;
        Self::run(&["ip", "netns", "exec", &router, "sysctl", "-qw", "net.ipv4.ip_forward=1"])?;
        Self::run(&[
            "ip",
            "netns",
            "exec",
            &router,
            "nft",
            "add table ip nat; add chain ip nat out { type nat hook postrouting priority 100 ; }; \
             add rule ip nat out oifname eth0 masquerade",
        ])?;
        Ok(inner)
    }

    /// Has the router of a host behind NAT forward a UDP port to it.
    pub fn forward(&self, host: usize, port: u16) -> Result<(), String> {
        let router = format!("{}r", self.name(host));
        let rules = format!(
            "add chain ip nat in {{ type nat hook prerouting priority -100 ; }}; \
             add rule ip nat in iifname eth0 udp dport {port} dnat to 192.168.{host}.2"
        );
        Self::run(&["ip", "netns", "exec", &router, "nft", &rules])
    }

    /// No packets are lost at this host any more.
    pub fn unblock(&self, host: usize) -> Result<(), String> {
        self.nft(host, "delete table ip fault")
    }

    /// Pulls this host's cable, or puts it back.
    pub fn link(&self, host: usize, up: bool) -> Result<(), String> {
        let state = if up { "up" } else { "down" };
        Self::run(&["ip", "-n", self.name(0), "link", "set", &format!("port{host}"), state])
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Self::run(&["ip", "netns", "del", name]);
        }
    }
}
