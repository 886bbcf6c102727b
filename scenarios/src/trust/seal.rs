//! What seals cost: gossipers on an in-memory link whose facts change once a second, as those of
//! hosts that record do, with the seals that agents make. The CPU time inside sealing and judging
//! is told from that of gossip as a whole. QUIC's part, which would make the share smaller, is not
//! in it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use agent::seal::NodeSeal;
use anyhow::Context;
use certs::Authority;
use gossip::{Gossip, GossipConfig, Inbound, Link, NodeFacts, Sealer};
use tokio::sync::mpsc;

use super::until;
use crate::figures::{cpu_time, cpu_time_of_this_thread};

/// How often a recording host's facts change.
const CHANGE: Duration = Duration::from_secs(1);
const QUEUE: usize = 256;

/// What it cost.
#[derive(Debug)]
pub struct Cost {
    /// Statements sealed, and seals of others judged.
    pub made: u64,
    /// See `made`.
    pub judged: u64,
    /// CPU time of one of each.
    pub make: Duration,
    /// See `make`.
    pub judge: Duration,
    /// CPU time of all seals over that of the whole process.
    pub share: f64,
    /// True statements that were taken for forged ones.
    pub disbelieved: u64,
    /// CPU of all of gossip, of one core, a node.
    pub core_share: f64,
}

/// Counted.
#[derive(Default)]
struct Spent {
    made: AtomicU64,
    made_ns: AtomicU64,
    judged: AtomicU64,
    judged_ns: AtomicU64,
}

impl Spent {
    fn now(&self) -> [u64; 4] {
        [&self.made, &self.made_ns, &self.judged, &self.judged_ns].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// A sealer whose time is counted.
struct Timed<S>(S, Arc<Spent>);

impl<S: Sealer> Sealer for Timed<S> {
    fn seal(&self, statement: &[u8]) -> Result<String, String> {
        let began = cpu_time_of_this_thread();
        let sealed = self.0.seal(statement);
        self.1.made.fetch_add(1, Ordering::Relaxed);
        self.1.made_ns.fetch_add(since(began), Ordering::Relaxed);
        sealed
    }

    fn check(&self, node: &str, statement: &[u8], seal: &str) -> Result<(), String> {
        let began = cpu_time_of_this_thread();
        let judged = self.0.check(node, statement, seal);
        self.1.judged.fetch_add(1, Ordering::Relaxed);
        self.1.judged_ns.fetch_add(since(began), Ordering::Relaxed);
        judged
    }

    fn epoch(&self) -> u64 {
        self.0.epoch()
    }
}

fn since(began: Duration) -> u64 {
    u64::try_from(cpu_time_of_this_thread().saturating_sub(began).as_nanos()).unwrap_or(u64::MAX)
}

type Listeners = Arc<RwLock<HashMap<SocketAddr, mpsc::Sender<Inbound>>>>;

struct Wire(Listeners, SocketAddr, String);

impl Link for Wire {
    fn send(&self, to: SocketAddr, payload: Vec<u8>) {
        let Ok(listeners) = self.0.read() else { return };
        if let Some(to) = listeners.get(&to) {
            let _ = to.try_send(Inbound { from: self.1, node: self.2.clone(), payload });
        }
    }
}

fn address(index: usize) -> SocketAddr {
    ([10, 0, 0, u8::try_from(index).unwrap_or(u8::MAX)], 7117).into()
}

fn facts(rows: u64) -> NodeFacts {
    NodeFacts {
        labels: [("rack".to_owned(), "r1".to_owned())].into(),
        ranks: (0..8).collect(),
        store_rows: rows,
        store_span_ns: Some((1, i64::try_from(rows).unwrap_or(i64::MAX))),
        version: "0.1.0".to_owned(),
        capture: "on".to_owned(),
        ..NodeFacts::default()
    }
}

/// `n` gossipers, at most 250, for `time`.
///
/// # Errors
/// They do not meet.
pub async fn measure(n: usize, time: Duration) -> anyhow::Result<Cost> {
    let (authority, listeners, spent) = (Authority::create(&"bench".parse()?)?, Listeners::default(), Arc::default());
    let mut nodes = Vec::with_capacity(n);
    for index in 0..n {
        let name = format!("n{index}");
        let identity = Arc::new(authority.issue(&name.parse()?, certs::NODE_VALIDITY)?);
        let own = address(index);
        let (tx, rx) = mpsc::channel(QUEUE);
        listeners.write().ok().context("poisoned")?.insert(own, tx);
        let seal = Timed(NodeSeal::new(move || Arc::clone(&identity)), Arc::clone(&spent));
        let mut config = GossipConfig::new("bench", name, 1, own).with_sealer(Arc::new(seal));
        config.seeds = vec![address(0)];
        let link = Arc::new(Wire(Arc::clone(&listeners), own, format!("n{index}")));
        nodes.push(Arc::new(Gossip::start(config, link, rx, facts(0)).await?));
    }
    let met = || nodes.iter().all(|node| node.list().iter().filter(|member| member.is_live()).count() == n);
    until("all gossipers know all", met).await?;
    let changing: Vec<_> = nodes.iter().map(|node| tokio::spawn(change(Arc::clone(node)))).collect();
    tokio::time::sleep(2 * CHANGE).await;
    let (spent_before, cpu_before, began) = (spent.now(), cpu_time(), Instant::now());
    tokio::time::sleep(time).await;
    let (spent_after, cpu, took) = (spent.now(), cpu_time() - cpu_before, began.elapsed());
    changing.iter().for_each(tokio::task::JoinHandle::abort);
    let disbelieved = nodes.iter().map(|node| node.forged()).sum();
    let [made, made_ns, judged, judged_ns] = std::array::from_fn(|i| spent_after[i] - spent_before[i]);
    Ok(Cost {
        made,
        judged,
        make: Duration::from_nanos(made_ns / made.max(1)),
        judge: Duration::from_nanos(judged_ns / judged.max(1)),
        share: (made_ns + judged_ns) as f64 / cpu.as_nanos() as f64,
        disbelieved,
        core_share: cpu.as_secs_f64() / took.as_secs_f64() / n as f64,
    })
}

async fn change(node: Arc<Gossip>) {
    for rows in 1.. {
        tokio::time::sleep(CHANGE).await;
        node.set_facts(facts(rows)).await;
    }
}
