//! How a late rank came to be late, step by step: from the events that its host recorded in an
//! interval between two collectives to the late entry.
//!
//! Pure. A link is made only of rows: stretches of the kinds that the cause names, in the
//! intervals in which the culprit took longest compared with its peer.

use std::collections::BTreeMap;
use std::sync::Arc;

use causes::{Cause, Collective, Gap, Recorded, Stretch};
use model::explanation::{Example, Link};
use record::printable;
use record::units::duration;
use stats::median;
use verdicts::Kind;

/// Steps that are shown.
pub const EXAMPLES: usize = 3;
/// A link covers at least this part of the interval's excess.
const PART: f64 = 0.1;
/// Links of one step before the entry.
const LINKS: usize = 3;

/// A late step: the collective that was entered late, and the links on the culprit's host.
#[derive(Debug, Clone, PartialEq)]
pub struct Late {
    /// The collective; none where calls have no number.
    pub into: Option<Collective>,
    /// Its entry, clock of the culprit's host.
    pub entry_ns: i64,
    /// By how much the interval is longer than the peer's.
    pub late_ns: i64,
    /// The links, by time; times of the culprit's host.
    pub links: Vec<Link>,
}

/// The intervals in which the culprit took longest compared with the peer, worst first. Those in
/// which the largest part of the cause was recorded come before those with another part of it, and
/// these before all others: a late step without such a row may have been late for another reason,
/// and is no example of this cause.
#[must_use]
pub fn worst(cause: &Cause, culprit: &Recorded, peer: Option<&Recorded>, node: &str) -> Vec<Late> {
    let peers: BTreeMap<&[Collective; 2], i64> = peer
        .into_iter()
        .flat_map(|peer| peer.gaps.iter().map(move |gap| (gap, peer)))
        .filter_map(|(gap, peer)| Some((gap.key.as_ref()?, own_ns(gap, peer))))
        .collect();
    let usual = peer.into_iter().flat_map(|peer| peer.gaps.iter().map(|gap| own_ns(gap, peer) as f64));
    let usual_ns = median(usual).map(|ns| ns as i64);
    let mut late: Vec<(i64, &Gap)> = culprit
        .gaps
        .iter()
        .map(|gap| {
            let theirs = gap.key.as_ref().and_then(|key| peers.get(key)).copied().or(usual_ns).unwrap_or(0);
            (own_ns(gap, culprit) - theirs, gap)
        })
        .filter(|(late_ns, _)| *late_ns > 0)
        .collect();
    late.sort_by_key(|(late_ns, gap)| (std::cmp::Reverse(*late_ns), gap.start_ns));
    let first = cause.named.first().copied();
    let one = |(late_ns, gap): (i64, &Gap)| {
        let (links, kinds) = links(cause, culprit, gap, late_ns, node);
        let shows = match (kinds.is_empty(), first.is_some_and(|first| kinds.contains(&first))) {
            (true, _) => 2,
            (false, is_first) => u8::from(!is_first),
        };
        let into = gap.key.as_ref().map(|[_, into]| into.clone());
        (shows, Late { into, entry_ns: gap.end_ns, late_ns, links })
    };
    let showing = |wanted: u8| -> Vec<Late> {
        let late = late.iter().copied().map(one).filter(|(shows, _)| *shows == wanted);
        late.map(|(_, late)| late).take(EXAMPLES).collect()
    };
    (0..3).map(showing).find(|shown| !shown.is_empty()).unwrap_or_default()
}

/// Length of an interval without what the process spent in other communication calls.
fn own_ns(gap: &Gap, of: &Recorded) -> i64 {
    let calls = of.stretches.iter().filter(|s| s.kind == Kind::Communication);
    gap.end_ns - gap.start_ns - calls.map(|s| within(s, gap)).sum::<i64>()
}

/// The part of a stretch that is in an interval.
fn within(stretch: &Stretch, gap: &Gap) -> i64 {
    (stretch.end_ns.min(gap.end_ns) - stretch.start_ns.max(gap.start_ns)).max(0)
}

/// The stretches of the cause in an interval, with their kinds.
fn links(cause: &Cause, culprit: &Recorded, gap: &Gap, late_ns: i64, node: &str) -> (Vec<Link>, Vec<Kind>) {
    // By kind and by its originator: begin, time, stretches.
    let mut seen: BTreeMap<(Kind, Arc<str>), (i64, i64, usize)> = BTreeMap::new();
    for stretch in culprit.stretches.iter().filter(|s| cause.named.contains(&s.kind)) {
        let ns = within(stretch, gap);
        if ns > 0 && stretch.tid.is_none_or(|tid| tid == gap.tid) {
            let start_ns = stretch.start_ns.max(gap.start_ns);
            let sum = seen.entry((stretch.kind, Arc::clone(&stretch.what))).or_insert((start_ns, 0, 0));
            *sum = (sum.0.min(start_ns), sum.1 + ns, sum.2 + 1);
        }
    }
    let mut found: Vec<_> = seen.into_iter().filter(|(_, (_, ns, _))| *ns as f64 >= PART * late_ns as f64).collect();
    found.sort_by_key(|(_, (_, ns, _))| std::cmp::Reverse(*ns));
    found.truncate(LINKS);
    found.sort_by_key(|(_, (start_ns, ..))| *start_ns);
    let kinds = found.iter().map(|((kind, _), _)| *kind).collect();
    let links = found
        .into_iter()
        .map(|((kind, what), (start_ns, ns, stretches))| Link {
            at_ns: Some(start_ns),
            duration_ns: Some(ns),
            node: node.to_owned(),
            what: event(kind, &what, stretches),
            evidence: table(kind).to_owned(),
            tier: None,
        })
        .collect();
    (links, kinds)
}

/// The event as text, without its length.
fn event(kind: Kind, what: &str, stretches: usize) -> String {
    let what = printable(what);
    let text = match kind {
        Kind::Communication => format!("it was in {what}"),
        Kind::Stopped => "it was stopped".to_owned(),
        Kind::CpuThrottled => format!("the CPU quota of its cgroup was used up ({what})"),
        Kind::CpuStolen => format!("{what} had its CPU"),
        Kind::Reclaim => format!("it had to free memory ({what})"),
        Kind::PageFault => format!("it waited for pages from a disk ({what})"),
        Kind::BlockIo => format!("it waited for {what}"),
        Kind::GpuThrottled => format!("{what} ran with lowered clocks"),
        Kind::CudaSync | Kind::CudaCopy | Kind::CudaLaunch => format!("it was in {what}"),
        Kind::Lock => format!("it waited for a lock or another thread ({what})"),
        Kind::NetworkWait => format!("it waited for a socket ({what})"),
        Kind::FileWait => format!("it waited for a pipe, a local socket, a file or a child ({what})"),
        Kind::Sleep => format!("it slept by itself ({what})"),
        Kind::Wait => format!("it gave up its CPU ({what})"),
    };
    if stretches > 1 { format!("{text}, {stretches} times") } else { text }
}

/// The table in which a kind is recorded.
#[must_use]
pub fn table(kind: Kind) -> &'static str {
    match kind {
        Kind::Communication => "collectives",
        Kind::Stopped
        | Kind::CpuStolen
        | Kind::CpuThrottled
        | Kind::Lock
        | Kind::NetworkWait
        | Kind::FileWait
        | Kind::Sleep
        | Kind::Wait => "offcpu",
        Kind::Reclaim | Kind::PageFault => "memory_events",
        Kind::BlockIo => "block_io",
        Kind::GpuThrottled => "gpu_samples",
        Kind::CudaSync | Kind::CudaCopy | Kind::CudaLaunch => "cuda_calls",
    }
}

/// The late step with its consequence: who waited. `waits` are (rank, wait) of the others in that
/// collective.
#[must_use]
pub fn example(late: Late, rank: i32, node: &str, waits: &[(i64, i64)], tier: u8) -> Example {
    let collective = late.into.as_ref().map_or_else(
        || "a collective without a number".to_owned(),
        |into| format!("{} number {}", printable(&into.func), into.seq),
    );
    let mut links = late.links;
    links.push(Link {
        at_ns: Some(late.entry_ns),
        duration_ns: None,
        node: node.to_owned(),
        what: format!("rank {rank} entered {collective}, {} later than its peer would have", duration(late.late_ns)),
        evidence: "collectives".to_owned(),
        tier: Some(tier),
    });
    if let (Some(longest), false) = (waits.iter().map(|(_, ns)| *ns).max(), tier == 0) {
        let who: Vec<i64> = waits.iter().filter(|(_, ns)| 2 * ns >= longest).map(|(rank, _)| *rank).collect();
        let sum_ns: i64 = waits.iter().map(|(_, ns)| *ns).sum();
        links.push(Link {
            at_ns: None,
            duration_ns: Some(longest),
            node: String::new(),
            what: match &who[..] {
                [one] => format!("rank {one} waited in it"),
                more => format!(
                    "ranks {} waited in it, {} together",
                    verdicts::hostlist::fold_ranges(more.iter().filter_map(|rank| u64::try_from(*rank).ok())),
                    duration(sum_ns)
                ),
            },
            evidence: "collectives".to_owned(),
            tier: Some(tier),
        });
    }
    Example { collective, late_ns: late.late_ns, links }
}

#[cfg(test)]
mod tests {
    use causes::{explain, gaps};

    use super::*;

    const MS: i64 = 1_000_000;

    /// Intervals of 100 ms, those of the culprit longer by `late`; in each the stretch that causes
    /// it.
    fn recorded(late: &[i64], kind: Kind, what: &str) -> Recorded {
        let mut at_ns = 0;
        let mut calls = vec![(Some(Collective { func: "all_reduce".into(), seq: 0 }), 7, -MS, 0)];
        let mut stretches = Vec::new();
        for (i, late) in late.iter().enumerate() {
            let entry_ns = at_ns + 10 * MS + late;
            let seq = i as u64 + 1;
            stretches.push(Stretch {
                kind,
                tid: Some(7),
                start_ns: at_ns + MS,
                end_ns: at_ns + MS + late,
                what: what.into(),
                bytes: None,
            });
            calls.push((Some(Collective { func: "all_reduce".into(), seq }), 7, entry_ns, entry_ns + MS));
            at_ns = entry_ns + MS;
        }
        Recorded { who: None, gaps: gaps(&calls), stretches }
    }

    #[test]
    fn the_worst_steps_have_what_kept_the_rank_in_them_and_no_other_link() {
        let culprit = recorded(&[50 * MS, 290 * MS, 60 * MS, 70 * MS], Kind::CpuStolen, "backup (pid 812)");
        let mut peer = recorded(&[0, 0, 0, 0], Kind::Sleep, "x");
        peer.stretches.clear();
        let cause = explain(&culprit, Some(&peer), Vec::new(), Vec::new());
        assert_eq!(cause.named, [Kind::CpuStolen], "{cause:?}");
        let late = worst(&cause, &culprit, Some(&peer), "node-3");
        assert_eq!(late.iter().map(|l| l.late_ns).collect::<Vec<_>>(), [290 * MS, 70 * MS, 60 * MS]);
        let example = example(late[0].clone(), 5, "node-3", &[(0, 290 * MS), (1, 288 * MS), (2, MS)], 1);
        let texts: Vec<&str> = example.links.iter().map(|link| link.what.as_str()).collect();
        assert_eq!(
            texts,
            [
                "backup (pid 812) had its CPU",
                "rank 5 entered all_reduce number 2, 290 ms later than its peer would have",
                "ranks 0-1 waited in it, 579 ms together"
            ]
        );
        assert!(example.links[0].at_ns < example.links[1].at_ns);

        // A kind that is not named makes no link.
        let unattributed = Cause { named: Vec::new(), ..cause };
        assert!(worst(&unattributed, &culprit, Some(&peer), "node-3").iter().all(|late| late.links.is_empty()));
    }

    #[test]
    fn a_worse_step_that_was_late_for_another_reason_is_no_example() {
        let mut culprit = recorded(&[25 * MS, 48 * MS, 20 * MS, 21 * MS, 22 * MS], Kind::CpuThrottled, "");
        let mut peer = recorded(&[0, 0, 0, 0, 0], Kind::Sleep, "x");
        peer.stretches.clear();
        // In the worst step, the quota was used up in the collective before and until 1 ms into it.
        let gap = culprit.gaps[1].clone();
        culprit.stretches[1].start_ns = gap.start_ns - MS;
        culprit.stretches[1].end_ns = gap.start_ns + MS;
        let cause = explain(&culprit, Some(&peer), Vec::new(), Vec::new());
        assert_eq!(cause.named, [Kind::CpuThrottled], "{cause:?}");
        let late_ns = |culprit: &Recorded, cause: &Cause| -> Vec<(i64, usize)> {
            worst(cause, culprit, Some(&peer), "a").iter().map(|late| (late.late_ns / MS, late.links.len())).collect()
        };
        assert_eq!(late_ns(&culprit, &cause), [(25, 1), (22, 1), (21, 1)]);

        // Begun in the collective before, it is counted with the excess of the interval.
        culprit.stretches[1].end_ns = gap.start_ns + 25 * MS;
        assert_eq!(late_ns(&culprit, &cause), [(48, 1), (25, 1), (22, 1)]);

        // Where no step has a row, the latest are shown as they are.
        culprit.stretches.clear();
        assert_eq!(late_ns(&culprit, &cause), [(48, 0), (25, 0), (22, 0)]);
    }

    #[test]
    fn the_largest_part_of_a_cause_is_in_its_examples() {
        // A quota in all steps; in the worst, another task had the CPU instead.
        let mut culprit = recorded(&[25 * MS, 30 * MS, 26 * MS, 27 * MS, 28 * MS], Kind::CpuThrottled, "");
        let mut peer = recorded(&[0, 0, 0, 0, 0], Kind::Sleep, "x");
        peer.stretches.clear();
        culprit.stretches[1].kind = Kind::CpuStolen;
        culprit.stretches[1].what = "agent (pid 9)".into();
        let cause = explain(&culprit, Some(&peer), Vec::new(), Vec::new());
        assert_eq!(cause.named, [Kind::CpuThrottled, Kind::CpuStolen], "{cause:?}");
        let late = worst(&cause, &culprit, Some(&peer), "a");
        assert_eq!(late.iter().map(|late| late.late_ns / MS).collect::<Vec<_>>(), [28, 27, 26]);
        assert!(late.iter().all(|late| late.links[0].what.contains("CPU quota")), "{late:?}");
    }

    #[test]
    fn calls_that_only_enqueue_show_nobody_waiting() {
        let late = Late { into: None, entry_ns: 5, late_ns: MS, links: Vec::new() };
        assert_eq!(example(late, 1, "a", &[(0, MS)], 0).links.len(), 1);
    }

    #[test]
    fn lengths_have_three_digits() {
        let all = [0, 999, 1_500, 290 * MS, 1_200 * MS].map(duration);
        assert_eq!(all, ["0 ns", "999 ns", "1.50 µs", "290 ms", "1.20 s"]);
    }
}
