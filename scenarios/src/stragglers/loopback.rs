//! The standing verdict of one job over real sockets: many agents in this process, whose hosts'
//! digests are those of a simulated job, sent as they would be made, a window every half second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use agent::standing::{now_ns, send_windows};
use anyhow::Context;
use digest::{Digest, WINDOW_NS, decode, end_of, window_of};
use verdicts::Verdict;

use super::scale::{Digests, Sent, digests, job};
use crate::cluster::Cluster;
use crate::figures::cpu_time;
use crate::simulate::Job;

/// Windows are closed so long after their end, as agents do.
const LAG_NS: i64 = 90_000_000;
/// How often the agents' verdicts are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Key of the job.
const JOB: u64 = 0x0012_3456;

/// What came of it.
#[derive(Debug, Clone)]
pub struct Loopback {
    /// From the first late step until the agent that was last names the late rank; none where one
    /// did not.
    pub named_after: Option<Duration>,
    /// Until the first did.
    pub first_after: Option<Duration>,
    /// Looks at an agent that named another rank.
    pub wrong: usize,
    /// Bytes of digests to all judges, for each rank and second.
    pub digest_bytes: f64,
    /// Bytes of verdicts that judges gossip, a second, all together.
    pub verdict_bytes: f64,
    /// CPU of all agents with all that they do, for each agent and second.
    pub cpu: Duration,
    /// Windows without a judge's confirmation.
    pub lost: u64,
    /// Judges whose verdicts the first agent hears at the end.
    pub judges: usize,
    /// What the first agent says at the end.
    pub last: String,
}

/// Runs a job on so many agents.
///
/// # Errors
/// Agents cannot start or do not find each other.
pub async fn loopback(agents: usize) -> anyhow::Result<Loopback> {
    let cluster = Cluster::with_stores(agents, &[], Duration::from_secs(120)).await?;
    let (of, late) = job(agents);
    // One host: one clock.
    let of = Job { clock_offset_ns: 0, clock_bound_ns: 0, ..of };
    let Digests { sent, begun_ns, span_ns, .. } = digests(&of);
    let first = *sent.first_key_value().context("no window")?.0;
    let from = window_of(now_ns()) + 2;
    let begun_ns = begun_ns + (from - first) * WINDOW_NS;
    let late = i32::try_from(late)?;
    let (started, cpu) = (Instant::now(), cpu_time());
    let sending = send_all(&cluster, sent, from - first);
    let mut named: BTreeMap<usize, i64> = BTreeMap::new();
    let mut wrong = 0;
    let looking = async {
        loop {
            tokio::time::sleep(LOOK).await;
            for (at, agent) in cluster.agents.iter().enumerate() {
                let Some(current) = agent.shared().standing.current() else { continue };
                match &current.standing.report.verdict {
                    Verdict::Rank { culprit, .. } if culprit.rank == late => {
                        named.entry(at).or_insert_with(now_ns);
                    }
                    Verdict::Rank { .. } => wrong += 1,
                    _ => {}
                }
            }
        }
    };
    tokio::select! {
        sent = sending => sent?,
        () = looking => {}
    }
    let (seconds, spent) = (started.elapsed().as_secs_f64(), cpu_time() - cpu);
    let after = |at_ns: i64| Duration::from_nanos(u64::try_from(at_ns - begun_ns).unwrap_or(0));
    let states = || cluster.agents.iter().map(|agent| &agent.shared().standing);
    let last = states().next().and_then(|standing| standing.current());
    let judges = last.as_ref().map_or(0, |current| current.judges.len());
    let last = last.map(|current| format!("{:?}\n{}", current.about(), verdicts::text(&current.standing.report)));
    let of_digests: u64 = states().map(|standing| standing.published_bytes()).sum();
    let result = Loopback {
        named_after: named.values().max().filter(|_| named.len() == agents).map(|at_ns| after(*at_ns)),
        first_after: named.values().min().map(|at_ns| after(*at_ns)),
        wrong,
        digest_bytes: (judges as u64 * of_digests) as f64 / of.ranks as f64 / (span_ns as f64 / 1e9),
        verdict_bytes: states().map(|standing| standing.verdict_bytes()).sum::<u64>() as f64 / seconds,
        cpu: spent.div_f64(seconds * agents as f64),
        lost: states().map(|standing| standing.lost_windows()).sum(),
        judges,
        last: last.unwrap_or_default(),
    };
    cluster.shutdown().await;
    Ok(result)
}

/// Sends each window when it is over, `later` windows after it was simulated.
async fn send_all(cluster: &Cluster, sent: Sent, later: i64) -> anyhow::Result<()> {
    for (window, digests) in sent {
        let due_ns = end_of(window + later) + LAG_NS - now_ns();
        tokio::time::sleep(Duration::from_nanos(u64::try_from(due_ns).unwrap_or(0))).await;
        for (node, text) in digests {
            let at: usize = node.trim_start_matches('n').parse()?;
            let agent = cluster.agents.get(at).context("no such agent")?;
            let digest = decode(&text)?;
            let digest = Digest { window: digest.window + later, ..digest };
            send_windows(agent.shared(), digest.window, [(JOB, digest)].into()).await;
        }
    }
    // The last window's verdicts.
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(())
}
