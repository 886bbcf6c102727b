//! Steps of four ranks, for tests of windows of ranks by rows and by digests.

use observed::{ClockOffset, Input, Observation};

pub(crate) const MS: i64 = 1_000_000;
pub(crate) const W: i64 = 500 * MS;

pub(crate) fn call(rank: i32, comm: u64, seq: u64, entry_ms: i64, duration_ms: i64) -> Observation {
    Observation {
        node: format!("n{}", rank / 2).into(),
        pid: 100 + i64::from(rank),
        nranks: Some(if comm == 1 { 4 } else { 2 }),
        ..Observation::test_call(rank, comm, "all_reduce", seq, entry_ms * MS, duration_ms * MS)
    }
}

pub(crate) fn input(observations: Vec<Observation>) -> Input {
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
pub(crate) fn steps(n: i64) -> Vec<Observation> {
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
