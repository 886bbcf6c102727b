//! Steps in digests: pipelines whose calls only enqueue, judged from digests as from rows.

use std::sync::LazyLock;

use proptest::prelude::*;

use digest::{Collector, Digest, StepCalls, Steps, WINDOW_NS, decode, encode, encode_within, window_of};
use scenarios::simulate::{Grid, Job, Slow};
use scenarios::stragglers::replay;
use verdicts::{Basis, Input, Report, Rules, Verdict, analyse};

const MS: i64 = 1_000_000;

/// Two replicas of two stages of two ranks, two ranks to a host; calls only enqueue, hosts wait,
/// and nothing shows where.
fn pipeline() -> Grid {
    let job = Job { ranks: 8, ranks_per_node: 2, steps: 60, own_ns: 120 * MS, enqueues: true, ..Job::default() };
    Grid { tensor: 2, data: 2, pipeline: 2, microbatches: 4, heavy_stage: None, job, ..Grid::default() }
}

fn judged(rows: &Input) -> Report {
    analyse(&replay(rows).0, &Rules::with_windows(WINDOW_NS))
}

/// The digests of the first host of a job, one a window.
fn digests(rows: &Input) -> Vec<Digest> {
    let mut collector = Collector::default();
    rows.observations.iter().filter(|seen| &*seen.node == "n0").for_each(|seen| collector.push(seen.clone()));
    (window_of(rows.since_ns)..=window_of(rows.until_ns)).map(|window| collector.close(window)).collect()
}

#[test]
fn the_slow_rank_of_a_pipeline_is_named_though_nothing_shows_who_waits() {
    for seed in 0..4 {
        let mut grid = pipeline();
        let healthy = judged(&grid.observe(seed));
        assert!(healthy.verdict.named_ranks().is_empty(), "seed {seed}: {:#?}", healthy.verdict);
        for rank in [1, 6] {
            grid.job.slow = vec![Slow { rank, extra_ns: 40 * MS, from_step: 0 }];
            let report = judged(&grid.observe(seed));
            assert_eq!(report.verdict.named_ranks(), [rank as i32], "seed {seed}: {:#?}", report.verdict);
            let Verdict::Rank { culprit, .. } = &report.verdict else { unreachable!() };
            assert!(culprit.basis == Basis::OwnTime || report.per_comm.iter().any(|comm| comm.own_from_entries));
        }
    }
}

#[test]
fn a_host_that_is_not_heard_leaves_own_times_untold_and_nobody_falsely_named() {
    for missing in 0..4 {
        for seed in 0..3 {
            let mut grid = pipeline();
            grid.job.missing_nodes = vec![missing];
            let report = judged(&grid.observe(seed));
            assert!(report.verdict.named_ranks().is_empty(), "without n{missing}, seed {seed}: {:#?}", report.verdict);
        }
    }
}

#[test]
fn hosts_that_run_ahead_of_their_devices_tell_no_own_times() {
    for seed in 0..4 {
        let mut grid = pipeline();
        grid.job.runs_ahead = true;
        let report = judged(&grid.observe(seed));
        assert!(report.verdict.named_ranks().is_empty(), "seed {seed}: {:#?}", report.verdict);
    }
}

#[test]
fn clocks_wrong_by_their_bound_at_every_wait_name_nobody() {
    for seed in 0..8 {
        let mut grid = pipeline();
        // Sixteen waits a step of 20 ms, at each of which half a millisecond may be wrong.
        grid.job = Job { own_ns: 20 * MS, steps: 400, clock_bound_ns: MS / 2, ..grid.job };
        let report = judged(&grid.observe(seed));
        assert!(report.verdict.named_ranks().is_empty(), "seed {seed}: {:#?}", report.verdict);
    }
}

#[test]
fn the_first_synchronise_call_may_end_windows_after_its_collective_was_told() {
    let mut grid = pipeline();
    // Steps of more than a second, each waited for once, at its end.
    grid.job = Job { own_ns: 900 * MS, steps: 16, runs_ahead: true, syncs: true, ..grid.job };
    grid.job.slow = vec![Slow { rank: 3, extra_ns: 1_200 * MS, from_step: 0 }];
    let (input, _) = replay(&grid.observe(1));
    assert!(input.sampled.iter().flat_map(|of| &of.runs).any(|run| run.waited), "what was waited for is the evidence");
    let report = judged(&grid.observe(1));
    assert_eq!((report.verdict.named_ranks(), report.evidence.tier), (vec![3], 1), "{:#?}", report.verdict);
}

#[test]
fn a_step_is_told_once_a_window_with_what_it_holds_and_costs_little() {
    let grid = pipeline();
    let rows = grid.observe(1);
    let all = digests(&rows);
    let steps: Vec<&Steps> = all.iter().flat_map(|digest| &digest.steps).filter(|steps| steps.process == 0).collect();
    let windows = all.len();
    assert!((windows / 3..=windows + 1).contains(&steps.len()), "{} steps in {windows} windows", steps.len());
    for steps in &steps {
        assert_eq!(steps.number & ((1 << steps.level) - 1), 0);
        // Eight meetings of its tensor group, four sends, four receives, one of its replicas.
        let calls: Vec<u32> = steps.calls.iter().filter(|of| of.part > 0).map(|of| of.calls).collect();
        assert_eq!((calls, steps.calls.iter().filter(|of| of.part == 0).count()), (vec![7, 3, 3], 4), "{steps:?}");
        assert!(steps.calls.iter().all(|of| of.before_us <= steps.length_us) && steps.called_us < steps.length_us / 10);
    }
    let (_, with) = replay(&rows);
    let without: usize = all.into_iter().map(|digest| encode(&Digest { steps: Vec::new(), ..digest }).len()).sum();
    let seconds = (rows.until_ns - rows.since_ns) as f64 / 1e9;
    // Of all hosts' digests; one host's without steps four times over is near enough.
    let rate = (with as f64 - 4.0 * without as f64) / 8.0 / seconds;
    assert!((1.0..100.0).contains(&rate), "{rate} bytes of steps per rank and second, two ranks to a host");
}

#[test]
fn a_lost_record_leaves_its_lane_out() {
    let rows = pipeline().observe(2);
    let steps_without = |lost: &dyn Fn(&str, u64) -> bool| {
        let mut rows = rows.clone();
        rows.observations.retain(|seen| !lost(&seen.func, seen.seq));
        let all = digests(&rows);
        all.into_iter().flat_map(|digest| digest.steps).filter(|steps| steps.process == 0).collect::<Vec<_>>()
    };
    let whole = steps_without(&|_, _| false);
    // One is lost in every step: receives are not told, the rest as before.
    let partly = steps_without(&|func, seq| func == "recv" && seq % 4 == 2);
    assert_eq!(partly.len(), whole.len());
    let peers = |steps: &Steps| steps.calls.iter().filter(|of| of.peer.is_some()).count();
    assert!(
        partly.iter().zip(&whole).all(|(a, b)| (peers(a), peers(b)) == (2, 4) && a.calls.len() + 2 == b.calls.len())
    );
}

#[test]
fn what_does_not_fit_leaves_its_steps_out_first() {
    let with = &*WITH_STEPS;
    let text = encode(with);
    assert_eq!(decode(&text).as_ref(), Ok(with));
    // What does not fit goes first, and nothing else with it.
    let cut = decode(&encode_within(with.clone(), text.len() - 1)).expect("of the job");
    assert_eq!((cut.cut, cut.steps.len(), &cut.lanes), (true, 0, &with.lanes));
}

static WITH_STEPS: LazyLock<Digest> = LazyLock::new(|| {
    digests(&pipeline().observe(1)).into_iter().find(|digest| !digest.steps.is_empty()).expect("of the job")
});

proptest! {
    #[test]
    fn any_steps_survive_the_way(
        steps in proptest::collection::vec((0usize..3, 0u64..1 << 50, 0u8..20, any::<i32>(), 0u64..1 << 40), 0..12),
        peer in proptest::option::of(-3i32..3),
    ) {
        let mut digest = WITH_STEPS.clone();
        let first = |process: usize| digest.lanes.iter().position(|lane| lane.process == process).unwrap();
        let mut all: Vec<Steps> = steps.into_iter().map(|(process, number, level, end_us, length_us)| {
            let process = process % 2;
            let calls = (0..length_us % 4).map(|i| StepCalls {
                lane: first(process) + i as usize % 2, peer, part: (i % 2) as u32, calls: level.into(), before_us: length_us / (i + 1),
            });
            Steps { process, ends: first(process) + 1, number, level, end_us: end_us.into(), length_us, called_us: length_us / 3, calls: calls.collect() }
        }).collect();
        all.sort_by_key(|steps| steps.process);
        digest.steps = all;
        prop_assert_eq!(decode(&encode(&digest)), Ok(digest));
    }
}
