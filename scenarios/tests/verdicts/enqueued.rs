//! Verdicts where calls only enqueue and nothing shows who waits, from rows and from digests alike.

use digest::WINDOW_NS;
use scenarios::simulate::{Grid, Job, SlowLink};
use scenarios::stragglers::replay;
use verdicts::{Report, Rules, Verdict, analyse};

const MS: i64 = 1_000_000;

/// Two replicas of two stages of two ranks, two ranks to a host; calls only enqueue, hosts wait,
/// and nothing shows where.
fn pipeline() -> Grid {
    let job = Job { ranks: 8, ranks_per_node: 2, steps: 60, own_ns: 120 * MS, enqueues: true, ..Job::default() };
    Grid { tensor: 2, data: 2, pipeline: 2, microbatches: 4, heavy_stage: None, job, ..Grid::default() }
}

/// From rows and from digests.
fn judged(grid: &Grid, seed: u64) -> [Report; 2] {
    let rows = grid.observe(seed);
    let windows = Rules::with_windows(WINDOW_NS);
    [analyse(&rows, &Rules::default()), analyse(&replay(&rows).0, &windows)]
}

#[test]
fn a_stage_that_has_more_to_do_is_told() {
    for (seed, stage) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
        let grid = Grid { heavy_stage: Some((stage, 1.5)), ..pipeline() };
        for report in judged(&grid, seed) {
            let Verdict::StageImbalance { ranks, .. } = &report.verdict else {
                panic!("seed {seed}, stage {stage}: {:#?}", report.verdict)
            };
            let ranks: Vec<i32> = ranks.iter().map(|r| r.rank).collect();
            assert_eq!(ranks, (0..4).map(|r| r + 4 * stage as i32).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}

#[test]
fn a_slow_link_makes_no_rank_of_either_end_a_culprit() {
    for seed in 0..6 {
        for (node, to) in [(0, 2), (1, 3)] {
            let mut grid = pipeline();
            grid.job.slow_link = Some(SlowLink { node, to: Some(to), extra_ns: 8 * MS });
            for report in judged(&grid, seed) {
                assert!(report.verdict.named_ranks().is_empty(), "seed {seed}, n{node}: {:#?}", report.verdict);
                assert!(
                    !matches!(report.verdict, Verdict::StageImbalance { .. }),
                    "seed {seed}: {:#?}",
                    report.verdict
                );
            }
        }
    }
}

#[test]
fn what_clocks_may_be_wrong_by_at_every_wait_names_nobody() {
    for seed in 0..8 {
        let mut grid = pipeline();
        // Sixteen waits a step of 20 ms, at each of which half a millisecond may be wrong on either
        // side.
        grid.job = Job { own_ns: 20 * MS, steps: 400, clock_bound_ns: MS / 2, ..grid.job };
        for report in judged(&grid, seed) {
            assert!(report.verdict.named_ranks().is_empty(), "seed {seed}: {:#?}", report.verdict);
        }
    }
}

/// Flat or in tensor groups of one host each, two or four ranks to a host; calls only enqueue,
/// hosts wait.
fn replicas(tensor: usize, per_node: usize, own_ns: i64) -> Grid {
    let job = Job { ranks: 32, ranks_per_node: per_node, steps: 100, own_ns, enqueues: true, ..Job::default() };
    Grid { tensor, data: 32 / tensor, pipeline: 1, microbatches: 2, heavy_stage: None, job, ..Grid::default() }
}

#[test]
fn a_host_that_enters_later_than_clocks_are_wrong_is_named_where_they_leave_own_times_open() {
    for seed in 0..6 {
        let mut grid = replicas(1, 2, 20 * MS);
        grid.job.clock_bound_ns = 2 * MS / 5;
        grid.job = grid.job.with_slow_host(3, 7 * MS / 2);
        let mut found = judged(&grid, seed)[0].verdict.named_ranks();
        found.sort_unstable();
        assert_eq!(found, [6, 7], "seed {seed}");
    }
}

#[test]
fn a_host_that_was_not_heard_makes_all_alike_wait_and_hides_no_other() {
    for seed in 0..6 {
        let mut grid = replicas(4, 4, 20 * MS);
        grid.job.missing_nodes = vec![1];
        grid.job = grid.job.with_slow_host(3, 10 * MS);
        let mut found = judged(&grid, seed)[0].verdict.named_ranks();
        found.sort_unstable();
        assert_eq!(found, [12, 13, 14, 15], "seed {seed}");
    }
}

#[test]
fn ranks_that_may_wait_for_one_that_was_not_heard_are_not_named() {
    for seed in 0..6 {
        // Each tensor group lies on two hosts; of the slow one's nothing was heard.
        let mut grid = replicas(4, 2, 20 * MS);
        grid.job.missing_nodes = vec![7];
        grid.job = grid.job.with_slow_host(7, 10 * MS);
        for report in judged(&grid, seed) {
            assert_eq!(report.verdict.named_ranks(), [] as [i32; 0], "seed {seed}");
        }
    }
}
