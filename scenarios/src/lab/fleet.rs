//! All hosts of a lab, and the operations on them. Each operation is recorded in the timeline
//! before it begins and when it is done, so that the time between counts for neither state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agent::Shared;
use anyhow::{Context, bail};
use certs::Issuer;
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::host::{Host, Start};
use super::questions::name_of;
use super::relay::{HostId, Link, Relay};
use super::script::Operation;
use super::timeline::{HostState, Timeline};

/// Hosts that a starting one is given to join.
const SEEDS: usize = 3;

/// Labs of this process so far: each has addresses of its own.
static LABS: AtomicU8 = AtomicU8::new(0);

/// The hosts of a lab.
pub struct Fleet {
    hosts: Vec<Mutex<Host>>,
    relay: Relay,
    timeline: Mutex<Timeline>,
    links: Mutex<BTreeMap<(HostId, HostId), Link>>,
    dir: TempDir,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fleet {
    /// Starts `count` hosts that know the first three, in cells of at most `most_in_cell`, and waits
    /// until all know all.
    ///
    /// # Errors
    /// One cannot start, or they do not find each other within `wait`.
    pub fn start(count: usize, seed: u64, most_in_cell: Option<usize>, wait: Duration) -> anyhow::Result<Arc<Self>> {
        let dir = tempfile::tempdir()?;
        let issuer = Issuer::init(&dir.path().join("ca"), &"lab".parse()?)?;
        // 127.16.0.0 to 127.223.255.255, by process and lab; the relay's ports are in the odd
        // networks.
        let net = (16 + (std::process::id() % 208) as u8, LABS.fetch_add(1, Ordering::Relaxed).wrapping_mul(2));
        let hosts: Result<Vec<_>, _> = (0..count)
            .map(|id| Host::new(id, &dir, &issuer, net, seed).map(|host| Mutex::new(host.in_cells(most_in_cell))))
            .collect();
        let fleet =
            Self { hosts: hosts?, relay: Relay::new(seed)?, timeline: Mutex::default(), links: Mutex::default(), dir };
        for host in 0..count {
            fleet.start_host(host, Start::default())?;
        }
        fleet.wait_for_all(wait)?;
        Ok(Arc::new(fleet))
    }

    /// Number of hosts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.hosts.len()
    }

    /// The states over time.
    pub fn timeline(&self) -> MutexGuard<'_, Timeline> {
        lock(&self.timeline)
    }

    /// Datagrams carried, and lost on purpose.
    #[must_use]
    pub fn datagrams(&self) -> (u64, u64) {
        self.relay.counts()
    }

    /// The agent of a host and the runtime for its questions, while it runs.
    #[must_use]
    pub fn asked(&self, host: HostId) -> Option<(Arc<Shared>, Handle)> {
        // A host that is just being started or killed is not asked; do not wait for it.
        self.hosts[host].try_lock().ok()?.asked()
    }

    /// The address that other hosts use for this one.
    #[must_use]
    pub fn address(&self, host: HostId) -> Option<SocketAddr> {
        lock(&self.hosts[host]).address
    }

    /// Tasks alive in each agent.
    #[must_use]
    pub fn tasks(&self) -> Vec<usize> {
        self.hosts.iter().map(|host| lock(host).tasks()).collect()
    }

    /// Executes one operation; returns when it is done.
    ///
    /// # Errors
    /// It cannot be done: a host does not start, or cannot be stopped.
    pub fn apply(&self, operation: &Operation) -> anyhow::Result<()> {
        match operation {
            Operation::Kill { host, silent } => {
                self.timeline().host(*host, HostState::Between);
                lock(&self.hosts[*host]).kill(&self.relay, *silent);
                self.timeline().host(*host, HostState::Down);
            }
            Operation::Start(host, how) => self.start_host(*host, *how)?,
            Operation::Stop(host) => {
                self.timeline().host(*host, HostState::Between);
                lock(&self.hosts[*host]).stop()?;
                self.timeline().host(*host, HostState::Down);
            }
            Operation::Continue(host) => {
                self.timeline().host(*host, HostState::Between);
                lock(&self.hosts[*host]).go_on();
                self.timeline().host(*host, HostState::Up);
            }
            Operation::Partition(side) => {
                for a in 0..self.count() {
                    for b in 0..a {
                        if side.contains(&a) != side.contains(&b) {
                            self.link(a, b, Link { cut: true, ..Link::default() });
                        }
                    }
                }
            }
            Operation::Links(host, link) => {
                for other in (0..self.count()).filter(|other| other != host) {
                    self.link(*host, other, *link);
                }
            }
            Operation::Heal => {
                let bad: Vec<(HostId, HostId)> = lock(&self.links).keys().copied().collect();
                for (a, b) in bad {
                    self.link(a, b, Link::default());
                }
            }
        }
        Ok(())
    }

    fn start_host(&self, id: HostId, how: Start) -> anyhow::Result<()> {
        let join: Vec<SocketAddr> =
            (0..self.count()).filter(|host| *host != id).filter_map(|host| self.address(host)).take(SEEDS).collect();
        self.timeline().host(id, HostState::Between);
        let mut host = lock(&self.hosts[id]);
        let version = host.version + usize::from(how.new_rows);
        self.timeline().version(id, version);
        host.start(&self.relay, how, join).with_context(|| format!("{how:?}"))?;
        drop(host);
        self.timeline().host(id, HostState::Up);
        Ok(())
    }

    fn link(&self, a: HostId, b: HostId, link: Link) {
        let bad = link != Link::default();
        // While it changes it counts neither as intact nor as cut.
        self.timeline().link(a, b, Link { cut: false, loss: 1.0, delay: Duration::ZERO });
        self.relay.link(a, b, link);
        self.relay.link(b, a, link);
        self.timeline().link(a, b, link);
        let key = (a.min(b), a.max(b));
        if bad {
            lock(&self.links).insert(key, link);
        } else {
            lock(&self.links).remove(&key);
        }
    }

    /// Revokes the certificate of a host, and tells one other host, which is to tell the rest.
    ///
    /// # Errors
    /// The list cannot be written.
    pub fn revoke(&self, outcast: HostId, told: HostId) -> anyhow::Result<()> {
        let ca = self.dir.path().join("ca");
        Issuer::open(&ca)?.revoke(&name_of(outcast))?;
        lock(&self.hosts[told]).give_trust_list(&ca)
    }

    /// Waits until every host lists every other as live, at the address where it is.
    ///
    /// # Errors
    /// The hosts that do not list each other after `wait`.
    pub fn wait_for_all(&self, wait: Duration) -> anyhow::Result<Duration> {
        let began = Instant::now();
        loop {
            let Some(ignorance) = self.ignorance() else { return Ok(began.elapsed()) };
            if began.elapsed() > wait {
                bail!("after {wait:?} {ignorance}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Cells in which hosts live, by the lists of themselves.
    #[must_use]
    pub fn cells(&self) -> usize {
        let list = |id| self.asked(id).map(|(shared, _)| shared.coordinator.gossip.list());
        let lists: Vec<_> = (0..self.count()).filter_map(list).collect();
        let own = lists.iter().flat_map(|list| list.iter().filter(|member| member.is_self));
        own.map(|member| member.seat.cell).collect::<BTreeSet<_>>().len()
    }

    /// A host that does not list another one.
    fn ignorance(&self) -> Option<String> {
        let addresses: Vec<Option<SocketAddr>> = (0..self.count()).map(|host| self.address(host)).collect();
        for id in 0..self.count() {
            let Some((shared, _)) = self.asked(id) else { return Some(format!("{} does not run", name_of(id))) };
            let members = shared.coordinator.gossip.list();
            for (other, address) in addresses.iter().enumerate() {
                let name = name_of(other);
                let known = members.iter().find(|member| member.name == name);
                if !known.is_some_and(|member| member.is_live() && Some(member.address) == *address) {
                    return Some(format!("{} knows {name} as {known:?}, which is at {address:?}", name_of(id)));
                }
            }
        }
        None
    }

    /// Stops every host in good order.
    pub fn shutdown(&self) {
        for host in &self.hosts {
            lock(host).shutdown();
        }
    }
}
