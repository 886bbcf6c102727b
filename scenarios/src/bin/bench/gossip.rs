//! The cost of membership: 10, 100, 400 and 1,000 gossipers in one process on an in-memory link,
//! started at once from one seed. Printed for each size: time until all know all, then, at rest,
//! bytes sent a second, CPU and memory a node, and the time from one's silence until all others
//! list it as dead.
//!
//! Every node publishes the facts of an agent without ranks, with a seal as long as an agent's. The
//! cost of sealing and of verifying seals is not in it, nor the digests of hosts with ranks
//! (`bench standing` has those), nor QUIC.
//!
//! A thousand nodes at the usual pace are more than two cores can carry, so large meshes run slowed
//! down: rounds, time to death and the allowance of bytes are stretched by the same factor, and the
//! figures are converted to the usual pace.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use gossip::{CellsUse, Gossip, GossipConfig, Inbound, Link, NodeFacts, Sealer};
use scenarios::figures::{cpu_time, figure, none_of};
use scenarios::lab::leaks::Resources;
use tokio::sync::mpsc;

/// Sizes, and the factors by which they are slowed down.
const SIZES: [(usize, u32); 4] = [(10, 1), (100, 1), (400, 2), (1_000, 8)];
/// How long all may take to know all.
const MEETING: Duration = Duration::from_secs(240);
/// How long the mesh rests before it is measured, and how long the measurement takes.
const CALM: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_secs(20);
/// How long a death may take to be known.
const DYING: Duration = Duration::from_secs(120);
/// Messages that may wait for one node.
const QUEUE: usize = 256;
/// Length of an agent's seal: its certificate and a signature.
const SEAL_BYTES: usize = 900;

/// The network: who listens where, and what went over it.
#[derive(Default)]
struct Net {
    listeners: RwLock<HashMap<SocketAddr, mpsc::Sender<Inbound>>>,
    messages: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
}

struct Wire {
    net: Arc<Net>,
    own: SocketAddr,
    name: String,
}

impl Link for Wire {
    fn send(&self, to: SocketAddr, payload: Vec<u8>) {
        self.net.messages.fetch_add(1, Ordering::Relaxed);
        self.net.bytes.fetch_add(payload.len() as u64, Ordering::Relaxed);
        let Ok(listeners) = self.net.listeners.read() else { return };
        let message = Inbound { from: self.own, node: self.name.clone(), payload };
        let sent = listeners.get(&to).is_some_and(|to| to.try_send(message).is_ok());
        if !sent {
            self.net.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// As long as a seal, and always accepted.
struct Blank;

impl Sealer for Blank {
    fn seal(&self, statement: &[u8]) -> Result<String, String> {
        let sum = statement.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        Ok(format!("{sum:0>SEAL_BYTES$}"))
    }

    fn check(&self, _node: &str, _statement: &[u8], _seal: &str) -> Result<(), String> {
        Ok(())
    }

    fn epoch(&self) -> u64 {
        0
    }
}

/// What membership costs, in one process on a link in memory
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Gossipers, and by what factor they are slowed down [default: 10 100 400:2 1000:8]
    #[arg(value_name = "NODES[:SLOWED]", value_parser = size)]
    sizes: Vec<(usize, u32)>,
    /// Gossipers of a cell at most
    #[arg(long)]
    most_in_cell: Option<usize>,
}

fn size(named: &str) -> Result<(usize, u32), std::num::ParseIntError> {
    let (n, slowed) = named.split_once(':').unwrap_or((named, "1"));
    Ok((n.parse()?, slowed.parse::<u32>()?.max(1)))
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let sizes = if arguments.sizes.is_empty() { &SIZES[..] } else { &arguments.sizes };
    println!(
        "{:>6} {:>6} {:>10} {:>12} {:>12} {:>10} {:>11} {:>6} {:>9} {:>6}",
        "nodes", "slowed", "all know", "sent", "messages", "CPU", "memory", "wrong", "a death", "lost"
    );
    let mut measured = Vec::new();
    for &(n, slowed) in sizes {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        measured.push((
            n,
            runtime.block_on(measure(n, slowed, arguments.most_in_cell)).with_context(|| format!("{n} gossipers"))?,
        ));
        runtime.shutdown_timeout(Duration::from_secs(5));
    }
    for (n, cost) in measured {
        figure(&format!("gossip_all_know_all_{n}"), cost.met.as_secs_f64(), "s", "<=", 60.0);
        figure(&format!("gossip_sent_a_node_{n}"), cost.bytes_per_s / 1024.0, "KiB/s", "<=", 128.0);
        figure(&format!("gossip_cpu_a_node_{n}"), cost.core_share * 100.0, "percent of a core", "<=", 1.0);
        figure(&format!("gossip_memory_a_node_{n}"), cost.memory_bytes / 1_048_576.0, "MiB", "<=", 8.0);
        none_of(&format!("gossip_wrongly_dead_of_all_entries_{n}"), cost.wrongly_dead, "entries");
        figure(&format!("gossip_death_known_by_all_{n}"), cost.death.as_secs_f64(), "s", "<=", 10.0);
    }
    Ok(())
}

/// For one node, except `met` and `death`.
struct Cost {
    met: Duration,
    bytes_per_s: f64,
    core_share: f64,
    memory_bytes: f64,
    /// Entries of all nodes' lists that are wrong at one moment at rest.
    wrongly_dead: usize,
    death: Duration,
}

fn address(index: usize) -> SocketAddr {
    let [_, _, high, low] = u32::try_from(index).unwrap_or(u32::MAX).to_be_bytes();
    ([10, 0, high, low], 7117).into()
}

async fn measure(n: usize, slowed: u32, most_in_cell: Option<usize>) -> anyhow::Result<Cost> {
    let net = Arc::new(Net::default());
    let before = Resources::now()?.memory_bytes;
    let began = Instant::now();
    let mut nodes = Vec::with_capacity(n);
    for index in 0..n {
        let own = address(index);
        let (tx, rx) = mpsc::channel(QUEUE);
        net.listeners.write().map_err(|_| anyhow::anyhow!("poisoned"))?.insert(own, tx);
        let mut config = GossipConfig::new("lab", format!("n{index:04}"), 1, own).with_sealer(Arc::new(Blank));
        config.seeds = vec![address(0)];
        config.interval *= slowed;
        config.dead_after *= slowed;
        config.digest_bytes_per_s /= slowed;
        config.cells = most_in_cell.map(|most| CellsUse { most, told: &[], jobs: "jobs", trust: "trust" });
        let facts = NodeFacts {
            labels: [("rack".to_owned(), format!("r{}", index / 32))].into(),
            store_rows: index as u64,
            version: "0.1.0".to_owned(),
            schema_hash: 0x1234_5678_9abc_def0,
            capture: "on".to_owned(),
            ..NodeFacts::default()
        };
        let link = Arc::new(Wire { net: Arc::clone(&net), own, name: format!("n{index:04}") });
        nodes.push(Gossip::start(config, link, rx, facts).await?);
    }
    let met = wait(&nodes, MEETING * slowed, began, |list| list.iter().filter(|member| member.is_live()).count() == n)
        .await?;

    tokio::time::sleep(CALM * slowed).await;
    let (cpu, bytes, messages) = (cpu_time(), net.bytes.load(Ordering::Relaxed), net.messages.load(Ordering::Relaxed));
    let began = Instant::now();
    tokio::time::sleep(MEASURED * slowed).await;
    // At the usual pace.
    let seconds = began.elapsed().as_secs_f64() * n as f64 / f64::from(slowed);
    let core_share = (cpu_time() - cpu).as_secs_f64() / seconds;
    let bytes_per_s = (net.bytes.load(Ordering::Relaxed) - bytes) as f64 / seconds;
    let messages_per_s = (net.messages.load(Ordering::Relaxed) - messages) as f64 / seconds;
    let memory_bytes = Resources::now()?.memory_bytes.saturating_sub(before) as f64 / n as f64;
    let live: usize = nodes.iter().map(|node| node.list().iter().filter(|member| member.is_live()).count()).sum();
    let wrongly_dead = (n * n).saturating_sub(live);
    ensure!(wrongly_dead * 100 < n * n, "at rest {wrongly_dead} of {} entries say that one who lives is dead", n * n);

    // Without a farewell.
    net.listeners.write().map_err(|_| anyhow::anyhow!("poisoned"))?.remove(&address(n / 2));
    nodes.remove(n / 2);
    let dead = format!("n{:04}", n / 2);
    let death =
        wait(&nodes, DYING * slowed, Instant::now(), |list| list.iter().any(|m| m.name == dead && !m.is_live()))
            .await?;
    let (met, death) = (met / slowed, death / slowed);
    let lost = net.lost.load(Ordering::Relaxed);
    println!(
        "{n:>6} {slowed:>6} {:>8.1} s {:>7.1} KiB/s {:>10.2}/s {:>8.3} % {:>7.2} MiB {wrongly_dead:>6} {:>7.1} s {lost:>6}",
        met.as_secs_f64(),
        bytes_per_s / 1024.0,
        messages_per_s,
        core_share * 100.0,
        memory_bytes / 1_048_576.0,
        death.as_secs_f64(),
    );
    Ok(Cost { met, bytes_per_s, core_share, memory_bytes, wrongly_dead, death })
}

/// Time from `began` until every node's list fulfils `seen`.
async fn wait(
    nodes: &[Gossip],
    patience: Duration,
    began: Instant,
    seen: impl Fn(&[gossip::Member]) -> bool,
) -> anyhow::Result<Duration> {
    let until = began + patience;
    for node in nodes {
        let mut list = node.watch();
        let left = until.saturating_duration_since(Instant::now());
        let waited = tokio::time::timeout(left, list.wait_for(|list| seen(list))).await.is_ok();
        ensure!(waited, "not within {patience:?}; a node lists {} members", node.members().len());
    }
    Ok(began.elapsed())
}
