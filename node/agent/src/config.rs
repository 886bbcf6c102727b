//! What an agent is configured with, after flags and defaults are resolved.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use certs::NodeName;
use node_bpf::{Budget, ProbeSpec, ServingConfig};
use store::StoreConfig;

use super::access::SocketAccess;
use super::scope::JobScope;

/// Nodes of a cell at most: within so many gossip in full is quick and cheap (docs/measurements.md).
pub const MOST_IN_CELL: usize = 256;

/// Everything an agent needs to start.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Name in the mesh; an existing identity must bear the same.
    pub name: NodeName,
    /// UDP address to bind.
    pub listen: SocketAddr,
    /// Address to give to others, when it differs.
    pub advertise: Option<SocketAddr>,
    /// Nodes to join.
    pub join: Vec<mesh::Place>,
    /// Join token.
    pub token: Option<String>,
    /// Identity directory.
    pub identity: PathBuf,
    /// Validity of the certificates that this node signs, where it has the mesh's CA.
    pub cert_validity: Duration,
    /// Rows to answer from.
    pub source: SourceConfig,
    /// Local socket; none in tests that ask in process.
    pub socket: Option<PathBuf>,
    /// Who else may use it.
    pub socket_access: SocketAccess,
    /// Whether to record.
    pub capture: CaptureChoice,
    /// Shell command to run when the standing verdict changes.
    pub on_finding: Option<String>,
    /// Time between two looks at whether the 99th percentile of a service has grown.
    pub tail_every: Duration,
    /// Whether to ask NCCL's RAS of the ranks that are recorded, in a hang.
    pub asks_nccl: bool,
    /// Labels to gossip.
    pub labels: Vec<(String, String)>,
    /// Nodes of a cell at most: a mesh of more falls into cells (docs/scale.md). The same on every
    /// node; without it all of the mesh is one cell, however large.
    pub most_in_cell: Option<usize>,
}

impl AgentConfig {
    /// An agent on this machine alone: on a free port of the loopback address, in a mesh of its
    /// own, without local socket and capture.
    #[must_use]
    pub fn new(name: NodeName, identity: PathBuf, source: SourceConfig) -> Self {
        Self {
            name,
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            advertise: None,
            join: Vec::new(),
            token: None,
            identity,
            cert_validity: certs::NODE_VALIDITY,
            source,
            socket: None,
            socket_access: SocketAccess::default(),
            capture: CaptureChoice::Off,
            on_finding: None,
            tail_every: super::tail::EVERY,
            asks_nccl: true,
            labels: Vec::new(),
            most_in_cell: Some(MOST_IN_CELL),
        }
    }
}

/// Where an agent's rows come from.
#[derive(Debug, Clone)]
pub enum SourceConfig {
    /// A trace store that this agent writes.
    Store {
        /// SQLite file.
        path: PathBuf,
        /// Retention and queue sizes.
        limits: StoreConfig,
    },
    /// Any SQLite file, read-only.
    Served {
        /// SQLite file.
        path: PathBuf,
        /// Tables equal on every node.
        replicated: Vec<String>,
    },
}

/// Whether to record, and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaptureChoice {
    /// Record when the host allows it.
    Auto {
        /// Only tasks in this cgroup and below.
        cgroup: Option<PathBuf>,
        /// Functions and USDT points to probe in addition.
        probes: Vec<ProbeSpec>,
        /// Only this job's processes.
        job: Option<JobScope>,
        /// Where ranks with the MPI shim or the NCCL plugin leave their rings, read where there is
        /// no eBPF.
        rings: Option<PathBuf>,
        /// What recording calls may take; none: each is recorded.
        budget: Option<Budget>,
        /// Whose requests are recorded; none: nobody's. (Its cgroup is the one above.)
        serving: Option<Box<ServingConfig>>,
    },
    /// Do not record.
    Off,
}

/// The address to gossip: the one given, or the bound one; a wildcard is replaced by the address
/// this host uses towards the first node to join, or by its first address that is not loopback.
///
/// # Errors
/// No address can be found.
pub fn advertised(given: Option<SocketAddr>, bound: SocketAddr, join: &[SocketAddr]) -> anyhow::Result<SocketAddr> {
    if let Some(given) = given {
        return Ok(SocketAddr::new(given.ip(), if given.port() == 0 { bound.port() } else { given.port() }));
    }
    if !bound.ip().is_unspecified() {
        return Ok(bound);
    }
    let ip = match join.first() {
        Some(peer) => towards(*peer)
            .with_context(|| format!("finding this host's address towards {peer}; give --advertise IP:PORT"))?,
        None => first_address()?,
    };
    Ok(SocketAddr::new(ip, bound.port()))
}

/// The source address the kernel's routing table picks for `peer`. Connecting a UDP socket sends
/// nothing.
fn towards(peer: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr =
        if peer.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (std::net::Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

fn first_address() -> anyhow::Result<IpAddr> {
    let addresses = nix::ifaddrs::getifaddrs().context("listing this host's addresses; give --advertise IP:PORT")?;
    let mut loopback = None;
    for interface in addresses {
        let Some(address) = interface.address.as_ref().and_then(|storage| storage.as_sockaddr_in().map(|v4| v4.ip()))
        else {
            continue;
        };
        if !address.is_loopback() {
            return Ok(IpAddr::V4(address));
        }
        loopback = Some(IpAddr::V4(address));
    }
    loopback.context("this host has no IPv4 address; give --advertise IP:PORT")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_concrete_address_is_advertised_as_it_is() {
        assert_eq!(advertised(None, addr("127.0.0.1:7117"), &[]).ok(), Some(addr("127.0.0.1:7117")));
    }

    #[test]
    fn a_wildcard_becomes_the_address_towards_the_peer() {
        let advertised = advertised(None, addr("0.0.0.0:7117"), &[addr("127.0.0.1:9")]).expect("loopback has a route");
        assert_eq!(advertised, addr("127.0.0.1:7117"));
    }

    #[test]
    fn a_given_address_wins_and_borrows_the_bound_port() {
        assert_eq!(advertised(Some(addr("10.1.2.3:0")), addr("0.0.0.0:4000"), &[]).ok(), Some(addr("10.1.2.3:4000")));
        assert_eq!(advertised(Some(addr("10.1.2.3:5")), addr("0.0.0.0:4000"), &[]).ok(), Some(addr("10.1.2.3:5")));
    }
}
