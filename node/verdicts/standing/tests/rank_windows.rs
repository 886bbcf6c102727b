//! What ranks did in a window, as a judge measures it.

use digest::{Collector, ReferenceClock, end_of, reference_id, window_of};
use standing::{Board, Judge};
use verdicts::{Observation, RankWindows, rank_windows};

#[path = "../../tests/common/steps.rs"]
mod steps;
use steps::{W, input, steps};

#[test]
fn a_judge_measures_from_digests_what_rows_tell() {
    let calls = steps(80);
    let mut collectors = [Collector::default(), Collector::default()];
    let (mut board, mut judge, mut measured) = (Board::default(), Judge::default(), RankWindows::default());
    for window in 0..17 {
        for (host, collector) in collectors.iter_mut().enumerate() {
            // The second host's clock is two windows ahead.
            let own = window + 2 * host as i64;
            let here = |call: &&Observation| {
                *call.node == *format!("n{host}") && window_of(call.entry_ns + call.duration_ns) == own
            };
            calls.iter().filter(here).for_each(|call| collector.push(call.clone()));
            let mut digest = collector.close(own);
            let offset_us = 1_000_000 * host as i64;
            digest.clock = Some(ReferenceClock { reference: reference_id("n0"), offset_us, bound_us: 0 });
            board.receive(&format!("n{host}"), digest, end_of(window));
        }
        if judge.judge(&board, end_of(window)).is_some()
            && let Some(found) = judge.rank_windows(&board)
        {
            measured.ranks = found.ranks;
            for (window, spent) in found.windows {
                assert!(measured.windows.insert(window, spent).is_none(), "window {window} twice");
            }
        }
    }
    let rows = rank_windows(input(calls), W);
    assert_eq!(measured.ranks, rows.ranks);
    let numbers: Vec<i64> = measured.windows.keys().copied().collect();
    assert_eq!(numbers, (0..=numbers.len() as i64 - 1).collect::<Vec<_>>());
    assert!(numbers.len() >= 13, "{numbers:?}");
    for (window, from_digests) in &measured.windows {
        let row = &rows.windows[window];
        assert_eq!(from_digests.collectives, row.collectives, "window {window}");
        for ((place, from_digests), (of, row)) in from_digests.spent.iter().zip(&row.spent) {
            assert_eq!(place, of);
            let off = |a: Option<i64>, b: Option<i64>| (a.unwrap_or(-1) - b.unwrap_or(-1)).abs();
            // Digests count microseconds, of up to five runs a window.
            let most = off(from_digests.late_ns, row.late_ns).max(off(from_digests.wait_ns, row.wait_ns));
            assert!(
                most.max(off(from_digests.compute_ns, row.compute_ns)) < 100_000,
                "window {window}: {from_digests:?} {row:?}"
            );
        }
    }
}
