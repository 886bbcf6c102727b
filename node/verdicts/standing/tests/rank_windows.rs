//! What ranks did in a window, as a judge measures it.

use digest::{Collector, ReferenceClock, end_of, reference_id, window_of};
use standing::{Board, Judge};
use verdicts::{ClockOffset, Input, Observation, RankWindows, rank_windows};

const MS: i64 = 1_000_000;
const W: i64 = 500 * MS;

fn call(rank: i32, comm: u64, seq: u64, entry_ms: i64, duration_ms: i64) -> Observation {
    Observation {
        node: format!("n{}", rank / 2).into(),
        pid: 100 + i64::from(rank),
        nranks: Some(if comm == 1 { 4 } else { 2 }),
        ..Observation::test_call(rank, comm, "all_reduce", seq, entry_ms * MS, duration_ms * MS)
    }
}

fn input(observations: Vec<Observation>) -> Input {
    let clock = |offset_ns| ClockOffset::steady(offset_ns, MS);
    Input {
        observations,
        clocks: [("n0".into(), clock(0)), ("n1".into(), clock(1_000 * MS))].into(),
        since_ns: 0,
        until_ns: i64::MAX,
        ..Input::default()
    }
}

/// Steps of 100 ms of four ranks on two hosts; rank 3 computes 40 ms longer. The second host's
/// clock is a second ahead.
fn steps(n: i64) -> Vec<Observation> {
    (0..n)
        .flat_map(|step| {
            (0..4).map(move |rank| {
                let late = if rank == 3 { 40 } else { 0 };
                let ahead = if rank > 1 { 1_000 } else { 0 };
                call(rank, 1, step.unsigned_abs(), step * 100 + 50 + late + ahead, 50 - late)
            })
        })
        .collect()
}

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
