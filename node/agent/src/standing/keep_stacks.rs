//! Keeps where ranks were when the standing verdict changed: each agent samples those of its own
//! ranks that the verdict is about, once, into its store's `stacks`.
//!
//! Every agent has the same verdict, so nobody has to be asked: the host of the culprit samples the
//! culprit, the host of the peer samples the peer, at about the same time. Of a hang the ranks that
//! are waited for and one that waits are sampled, all threads; of a late rank it and one peer, with
//! their child processes, such as a data loader's workers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use explain::stacks::descendants;
use model::StacksWanted;
use record::unix_now_ns;
use store::{Source, StackSeen};
use tokio_util::sync::CancellationToken;
use verdicts::{RankRef, Report, Verdict};

use super::super::Shared;

/// Ranks of a hang that are sampled on one host.
const RANKS: usize = 16;
/// Child processes whose stacks are kept, of each rank.
const CHILDREN: usize = 16;
/// Different stacks kept of a thread.
const STACKS: usize = 16;
/// Longest that sampling is waited for.
const PATIENCE: Duration = Duration::from_secs(4);

/// Whose stacks are kept, and as what.
fn wanted(report: &Report) -> (Vec<(RankRef, &'static str)>, StacksWanted) {
    match &report.verdict {
        Verdict::Hang(hang) => {
            let missing: Vec<_> = hang.missing.iter().take(RANKS).map(|m| (m.who.clone(), "hang")).collect();
            let waits = hang.waiting.iter().map(|waiting| &waiting.who);
            let waiting = waits.filter(|who| missing.iter().all(|(m, _)| m != *who)).take(1);
            let waiting: Vec<_> = waiting.map(|who| (who.clone(), "waiting")).collect();
            let still = StacksWanted { all_threads: true, samples: 3, every_ms: 50, ..StacksWanted::default() };
            (missing.into_iter().chain(waiting).collect(), still)
        }
        Verdict::Rank { culprit, .. } => {
            let who = RankRef { rank: culprit.rank, node: culprit.node.clone(), pid: culprit.pid };
            let peer = verdicts::peer(report, culprit).map(|peer| (peer, "peer"));
            let moving = StacksWanted { samples: 20, every_ms: 50, children: true, ..StacksWanted::default() };
            (std::iter::once((who, "late")).chain(peer).collect(), moving)
        }
        _ => (Vec::new(), StacksWanted::default()),
    }
}

/// Samples those of this host's ranks that a verdict is about, and keeps what they do.
pub(super) async fn keep(shared: &Shared, report: &Report, stop: &CancellationToken) {
    let own = shared.identity.node().to_string();
    let Source::Store(store) = shared.source.as_ref() else { return };
    let (whose, wanted) = wanted(report);
    let here: Vec<&(RankRef, &'static str)> = whose.iter().filter(|(who, _)| who.node == own).collect();
    if here.is_empty() {
        return;
    }
    // By process: whose it is, and as what it is kept.
    let mut of_here = HashMap::<u32, (&RankRef, &'static str)>::new();
    for (who, kind) in &here {
        let Ok(pid) = u32::try_from(who.pid) else { continue };
        of_here.insert(pid, (who, *kind));
        if wanted.children {
            let children = descendants(&[pid]).into_iter().take(CHILDREN);
            let as_child = if *kind == "late" { "late_child" } else { "peer_child" };
            of_here.extend(children.map(|child| (child, (who, as_child))));
        }
    }
    let pids: Vec<u32> = here.iter().filter_map(|(who, _)| u32::try_from(who.pid).ok()).collect();
    let sampled = shared.stacks.sample_processes(&pids, wanted, Instant::now() + PATIENCE, stop).await;
    let profiles = match sampled {
        Ok(profiles) => profiles,
        Err(error) => {
            tracing::debug!("stacks of the verdict's ranks: {error}");
            return;
        }
    };
    let ts_ns = unix_now_ns();
    for profile in profiles {
        let Some((who, kind)) = of_here.get(&profile.pid) else { continue };
        for thread in &profile.threads {
            for stack in thread.stacks.iter().take(STACKS) {
                store.ingest().stack(StackSeen {
                    ts_ns,
                    pid: profile.pid,
                    tid: thread.tid,
                    rank: who.rank,
                    kind,
                    samples: profile.samples,
                    count: stack.count,
                    frames: serde_json::to_string(&stack.frames).unwrap_or_default(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use verdicts::{Absence, Call, Hang, Missing, Waiting};

    use super::*;

    #[test]
    fn of_a_hang_who_is_waited_for_and_one_that_waits_are_kept() {
        let who = |rank| RankRef { rank, node: "a".into(), pid: 100 + i64::from(rank) };
        let call = || Call { func: "barrier".into(), comm_hash: None, position: Some(1), ..Call::default() };
        let missing = Missing {
            who: who(3),
            absence: Absence::NotEntered,
            call: call(),
            inside: None,
            activity: None,
            line: None,
            holds_up: 3,
        };
        let waiting = |rank| Waiting { who: who(rank), call: call(), since_ns: None, activity: None };
        let hang =
            Hang { missing: vec![missing], waiting: vec![waiting(3), waiting(0), waiting(1)], ..Hang::default() };
        let (whose, how) = wanted(&Report { verdict: Verdict::Hang(hang), ..Report::default() });
        assert_eq!(whose, [(who(3), "hang"), (who(0), "waiting")]);
        assert!(how.all_threads);
        assert!(wanted(&Report::default()).0.is_empty(), "nobody is named");
    }
}
