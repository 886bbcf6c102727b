//! Hosts that run ahead of their devices and synchronise once in a step, unseen.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use scenarios::simulate::{Grid, Job, Noise, Slow};
use verdicts::{ClockOffset, Input, Observation, Rules, Verdict, analyse};

const MS: i64 = 1_000_000;
const RANKS: usize = 4;
const SLOW: usize = 1;
const CALLS: u64 = 5;

/// A call that only enqueues.
fn all_reduce(rank: usize, seq: u64, entry_ns: i64, duration_ns: i64) -> Observation {
    Observation {
        node: format!("n{rank}").into(),
        pid: 100,
        rank: rank as i32,
        nranks: Some(RANKS as i32),
        comm_hash: 7,
        func: "all_reduce".into(),
        seq,
        entry_ns,
        duration_ns,
        halted_ns: 0,
        held_ns: 0,
        tier: 0,
        library: "nccl".into(),
        root: None,
        comm_seq: Some(seq),
        payload: verdicts::Payload::default(),
    }
}

/// Forty steps of five calls on four hosts. Before each a rank computes for 20 ms, 6 ms less to 6
/// ms more, and rank 1 for three milliseconds more: hosts enter the next before others have entered
/// this one. At the end of a step they wait until the last has entered its last call.
fn job(seed: u64) -> Input {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut input = Input { since_ns: 0, ..Input::default() };
    let mut step_ns = 1_000 * MS;
    for step in 0..40u64 {
        let mut last_ns = 0;
        for rank in 0..RANKS {
            let mut at_ns = step_ns;
            for call in 0..CALLS {
                let slow = if rank == SLOW { 3 * MS } else { 0 };
                at_ns += 20 * MS + slow + rng.random_range(-6 * MS..6 * MS);
                input.observations.push(all_reduce(rank, step * CALLS + call, at_ns, 10_000));
            }
            last_ns = last_ns.max(at_ns);
        }
        step_ns = last_ns + MS;
    }
    input.until_ns = step_ns;
    (input.coverage.asked, input.coverage.answered) = (RANKS, RANKS);
    let clock = ClockOffset { offset_ns: 0, bound_ns: 50_000, at_ns: step_ns, drift_ppb: 0, drift_bound_ppb: 0 };
    input.clocks = (0..RANKS).map(|rank| (format!("n{rank}"), clock)).collect();
    input
}

#[test]
fn the_one_that_enters_late_is_named_where_the_others_wait_for_it() {
    for seed in 0..20 {
        let report = analyse(&job(seed), &Rules::default());
        let named = matches!(&report.verdict, Verdict::Rank { culprit, .. } if culprit.rank == SLOW as i32);
        assert!(named, "{seed}: {:?}", report.verdict);
    }
}

#[test]
fn a_slow_rank_is_named_however_late_it_is_and_however_rarely_hosts_wait() {
    for (steps_ahead, effect) in [(1, 1), (1, 4), (1, 8), (4, 1), (4, 3), (4, 8)] {
        let wrong: Vec<u64> = (0..10)
            .filter(|seed| {
                let own_ns = 50 * MS;
                let slow = vec![Slow { rank: 1, extra_ns: effect * own_ns, from_step: 0 }];
                let (noise, enqueues, runs_ahead) = (Noise::LogNormal(0.1), true, true);
                let job = Job { ranks: 2, ranks_per_node: 1, steps: 120, own_ns, noise, slow, ..Job::default() };
                let job = Job { enqueues, runs_ahead, steps_ahead, ..job };
                let grid = Grid { data: 2, microbatches: 2, job, ..Grid::default() };
                let report = analyse(&grid.observe(*seed), &Rules::default());
                !matches!(&report.verdict, Verdict::Rank { culprit, also, .. } if culprit.rank == 1 && also.is_empty())
            })
            .collect();
        assert!(wrong.is_empty(), "{steps_ahead} steps ahead, slower by {effect} steps: seeds {wrong:?}");
    }
}

#[test]
fn three_long_steps_do_not_clear_who_is_late_in_all_of_them() {
    // Steps of 20 s in which all wait, for 4 to 6 s, for one rank.
    let mut input = job(1);
    input.observations.clear();
    for (step, late_s) in [4, 6, 5].into_iter().enumerate() {
        let met_ns = (step as i64 + 1) * 20_000 * MS;
        for rank in 0..RANKS {
            let late_ns = if rank == SLOW { late_s * 1_000 * MS } else { rank as i64 * MS };
            input.observations.push(Observation {
                tier: 1,
                library: "mpi".into(),
                ..all_reduce(rank, step as u64, met_ns + late_ns, late_s * 1_000 * MS - late_ns + MS)
            });
        }
    }
    input.until_ns = 80_000 * MS;
    let report = analyse(&input, &Rules::default());
    let Verdict::Unknown { why } = &report.verdict else { panic!("{:?}", report.verdict) };
    assert!(why.contains("rank 1 on n1 is late, but 3 collectives are too few"), "{why}");
}
