//! Verdicts on cases that others have published, with the figures that they printed.

use observed::{InCall, Progress};
use stats::Population;

use super::hang::{Found, find};
use super::{Input, Observation, Rules, analyse};

const MS: i64 = 1_000_000;

#[test]
fn the_rank_with_the_shortest_wait_is_it() {
    // AMD-AGI/TraceLens, docs/how-to/collective-report.md: 488 collectives of 8 ranks, mean waits
    // of 55.7 us (rank 4, last in 86 %), 9.5 ms (rank 5) and 27.4 ms (rank 0). The others are not
    // printed; they lie between.
    let waits_us = [27_374.5, 22_000.0, 24_000.0, 20_000.0, 55.7, 9_549.9, 25_000.0, 23_000.0];
    let mut input = Input { since_ns: 0, until_ns: i64::MAX, ..Input::default() };
    for seq in 0..488u64 {
        for (rank, wait) in waits_us.iter().enumerate() {
            // The last in 14 % of the collectives is rank 5.
            let wait = match (rank, seq % 7) {
                (4, 0) => 390.0,
                (5, 0) => 0.0,
                (4, _) => 0.0,
                _ => *wait,
            };
            let wait_ns = (wait * 1e3) as i64;
            let (entry_ns, duration_ns) = (seq as i64 * 100 * MS - wait_ns, 8 * MS + wait_ns);
            let call = Observation::test_call(rank as i32, 1, "all_gather", seq, entry_ns, duration_ns);
            input.observations.push(Observation { nranks: Some(8), tier: 3, library: "rccl".into(), ..call });
        }
    }
    // Rank 5 is late as well, by less.
    assert_eq!(analyse(&input, &Rules::default()).verdict.named_ranks(), [4, 5]);
}

#[test]
fn a_rank_busy_for_200_ms_is_named_though_outer_times_are_alike() {
    // traceopt-ai/traceml#252: four ranks, steps of 362 ms, 200 ms of busy waiting on rank 1; the
    // backward times of all ranks are 293 ms.
    let outer = [293.0, 292.2, 293.0, 293.1];
    let z = Population::new(outer).z(outer[1], outer[1], 0.0).unwrap();
    assert!(z.abs() < 1.0, "outer times show nothing: {z}");
}

#[test]
fn those_behind_are_missing_and_not_those_ahead() {
    // NVIDIA/nccl#1911: of 32 ranks, 12 and 13 are at all_gather 641, the others at 640.
    let progress = (0..32)
        .map(|rank| {
            let ahead = rank == 12 || rank == 13;
            Progress {
                node: format!("n{}", rank / 8).into(),
                pid: i64::from(rank),
                rank,
                nranks: Some(32),
                comm_hash: 1,
                entered: Some(if ahead { 641 } else { 640 }),
                ..Progress::default()
            }
        })
        .collect();
    let ahead = |rank: i32| InCall {
        node: format!("n{}", rank / 8).into(),
        pid: i64::from(rank),
        rank: Some(rank),
        comm_hash: Some(1),
        func: "all_gather".into(),
        comm_seq: Some(641),
        ..InCall::default()
    };
    let in_calls = [12, 13].map(ahead).into();
    let input = Input { progress, in_calls, until_ns: 60_000 * MS, ..Input::default() };
    let Found::Hang(hang) = find(&input, &Rules::default()) else { panic!("no hang") };
    let missing: Vec<i32> = hang.missing.iter().map(|m| m.who.rank).collect();
    assert_eq!(missing.len(), 30);
    assert!(!missing.contains(&12) && !missing.contains(&13));
}

#[test]
fn a_locked_clock_shows_in_the_kernel_times() {
    // wutianyuan1/Greyhound: GEMM times in ms before and after the clock of rank 1 was locked.
    let z = |times: [f64; 4], r: usize| Population::new(times).z(times[r], times[r], 0.0).unwrap();
    let rules = Rules::default();
    assert!((0..4).all(|r| z([65.47, 65.74, 65.74, 65.74], r) < rules.z));
    let after = [65.47, 515.49, 65.69, 65.69];
    assert!(z(after, 1) > rules.z && [0, 2, 3].iter().all(|&r| z(after, r) < rules.z));
}
