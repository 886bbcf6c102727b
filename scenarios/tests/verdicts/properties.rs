//! What must hold of every verdict, whatever the job: it does not depend on who has which number or
//! on whose clock is off by how much, windows add up in any order, and to hear less makes nobody
//! else guilty.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::Index;

use scenarios::simulate::{Grid, Job, Noise, Slow};
use scenarios::stragglers::replay;
use verdicts::{Input, Report, Rules, Verdict, analyse};

const MS: i64 = 1_000_000;

/// Of whole jobs, each analysed several times.
const JOBS: u32 = 24;

fn named(report: &Report) -> BTreeSet<i32> {
    report.verdict.named_ranks().into_iter().collect()
}

/// From rows, and from the digests of the same rows.
fn verdicts(rows: &Input) -> [Report; 2] {
    let rules = Rules::default();
    [analyse(rows, &rules), analyse(&replay(rows).0, &rules)]
}

prop_compose! {
    /// A small job in tensor, data and pipeline parallel groups, its truth (a rank that takes 0.4
    /// to 3 times its work longer, or none), and a seed.
    fn jobs()(
        shape in prop::sample::select(vec![(1, 3, 1), (1, 8, 1), (2, 4, 1), (1, 4, 2), (2, 2, 2), (4, 1, 1)]),
        slow in prop::option::of((any::<Index>(), 0.4..3.0f64)),
        enqueues in prop::bool::weighted(0.4),
        syncs in any::<bool>(),
        broad in any::<bool>(),
        loss in prop::sample::select(vec![0.0, 0.01]),
        seed in any::<u64>(),
    ) -> (Grid, Option<i32>, u64) {
        let (tensor, data, pipeline) = shape;
        let ranks = tensor * data * pipeline;
        let own_ns = 100 * MS;
        let slow = slow.map(|(rank, effect)| (rank.index(ranks), (effect * own_ns as f64) as i64));
        let noise = if broad { Noise::LogNormal(0.05) } else { Noise::Gaussian(0.02) };
        let job = Job {
            ranks,
            ranks_per_node: if ranks > 4 { 2 } else { 1 },
            steps: 40,
            own_ns,
            noise,
            enqueues,
            syncs,
            loss,
            clock_drift_ppb: 50_000,
            slow: slow.map(|(rank, extra_ns)| Slow { rank, extra_ns, from_step: 0 }).into_iter().collect(),
            ..Job::default()
        };
        let truth = slow.map(|(rank, _)| rank as i32);
        (Grid { tensor, data, pipeline, microbatches: 2, heavy_stage: None, job, ..Grid::default() }, truth, seed)
    }
}

/// Each rank of the job gets another number: in its communicators of all ranks, for those are the
/// numbers of the verdict.
fn renamed(mut rows: Input, name: &[i32]) -> Input {
    let all = i32::try_from(name.len()).ok();
    let of = |rank: i32| usize::try_from(rank).ok().and_then(|r| name.get(r)).copied().unwrap_or(rank);
    for seen in rows.observations.iter_mut().filter(|o| o.nranks == all) {
        (seen.rank, seen.root) = (of(seen.rank), seen.root.map(of));
    }
    for p in rows.progress.iter_mut().filter(|p| p.nranks == all) {
        p.rank = of(p.rank);
    }
    for call in rows.in_calls.iter_mut().filter(|call| call.nranks == all) {
        (call.rank, call.root) = (call.rank.map(of), call.root.map(of));
    }
    rows
}

/// The clock of one node shows another time, and it is said that it does.
fn shifted(mut rows: Input, node: &str, by_ns: i64) -> Input {
    for seen in rows.observations.iter_mut().filter(|o| &*o.node == node) {
        seen.entry_ns += by_ns;
    }
    for sync in rows.syncs.iter_mut().filter(|s| &*s.node == node) {
        sync.start_ns += by_ns;
    }
    for call in rows.in_calls.iter_mut().filter(|call| &*call.node == node) {
        call.since_ns += by_ns;
    }
    if let Some(clock) = rows.clocks.get_mut(node) {
        clock.offset_ns += by_ns;
    }
    rows
}

/// Nothing is heard of one process.
fn without(mut rows: Input, node: &str, pid: i64) -> Input {
    rows.observations.retain(|o| &*o.node != node || o.pid != pid);
    rows.syncs.retain(|s| &*s.node != node || s.pid != pid);
    rows.progress.retain(|p| &*p.node != node || p.pid != pid);
    rows.in_calls.retain(|call| &*call.node != node || call.pid != pid);
    rows
}

fn processes(rows: &Input) -> Vec<(Arc<str>, i64)> {
    let all: BTreeSet<(Arc<str>, i64)> = rows.observations.iter().map(|o| (Arc::clone(&o.node), o.pid)).collect();
    all.into_iter().collect()
}

/// What a verdict says, but for whom.
fn kind(report: &Report) -> &'static str {
    match report.verdict {
        Verdict::Rank { .. } => "rank",
        Verdict::Hang(_) => "hang",
        Verdict::StageImbalance { .. } => "stage",
        Verdict::DataImbalance { .. } => "data",
        Verdict::WorkImbalance { .. } => "work",
        Verdict::Network(_) => "network",
        Verdict::Unknown { .. } => "unknown",
        Verdict::None => "none",
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: JOBS, ..ProptestConfig::default() })]

    #[test]
    fn other_numbers_give_the_same_verdict_of_the_renumbered((grid, _, seed) in jobs(), turn in any::<Index>(), mirrored in any::<bool>()) {
        let rows = grid.observe(seed);
        let n = grid.job.ranks as i32;
        let turn = turn.index(n as usize) as i32;
        let name: Vec<i32> = (0..n).map(|r| (if mirrored { n - 1 - r } else { r } + turn) % n).collect();
        let other = verdicts(&renamed(rows.clone(), &name));
        for (a, b) in verdicts(&rows).iter().zip(&other) {
            let expected: BTreeSet<i32> = named(a).iter().map(|r| name[*r as usize]).collect();
            prop_assert_eq!(kind(a), kind(b));
            prop_assert_eq!(expected, named(b));
        }
    }

    #[test]
    fn a_clock_that_is_off_and_known_to_be_changes_nothing((grid, _, seed) in jobs(), pick in any::<Index>(), by_us in -60_000_000i64..60_000_000) {
        let rows = grid.observe(seed);
        let (node, _) = pick.get(&processes(&rows)).clone();
        // Durations and what is aligned stay as they are: figures are of whole microseconds.
        // Digests are cut by the node's own clock.
        let moved = shifted(rows.clone(), &node, by_us * 1_000);
        let (a, b) = (analyse(&rows, &Rules::default()), analyse(&moved, &Rules::default()));
        prop_assert_eq!(&a.verdict, &b.verdict);
        prop_assert_eq!(a.cost, b.cost);
    }

    #[test]
    fn a_clock_that_is_off_by_less_than_its_bound_blames_nobody_else((grid, truth, seed) in jobs(), pick in any::<Index>(), off in -1.0..1.0f64) {
        // Measured without an error, so that all of the bound is to be had.
        let mut rows = Grid { job: Job { clock_bound_ns: 0, clock_drift_ppb: 0, ..grid.job.clone() }, ..grid }.observe(seed);
        let bound_ns = 400_000;
        rows.clocks.values_mut().for_each(|clock| clock.bound_ns = bound_ns);
        let (node, _) = pick.get(&processes(&rows)).clone();
        let mut wrong = rows.clone();
        if let Some(clock) = wrong.clocks.get_mut(&*node) {
            clock.offset_ns += (off * bound_ns as f64) as i64;
        }
        for (a, b) in verdicts(&rows).iter().zip(&verdicts(&wrong)) {
            prop_assert_eq!(named(a), named(b), "truth {:?}", truth);
        }
    }

    #[test]
    fn who_is_not_heard_makes_nobody_else_guilty((grid, truth, seed) in jobs(), pick in any::<Index>()) {
        let rows = grid.observe(seed);
        let (node, pid) = pick.get(&processes(&rows)).clone();
        for (a, b) in verdicts(&rows).iter().zip(&verdicts(&without(rows.clone(), &node, pid))) {
            let mut may = named(a);
            may.extend(truth);
            prop_assert!(named(b).is_subset(&may), "truth {:?}, whole {:?}, without {} {:?}", truth, named(a), pid, named(b));
        }
    }
}
