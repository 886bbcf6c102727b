//! Calls whose communicator began before recording did: numbered by when they ended.

use scenarios::simulate::{Job, Slow};
use verdicts::{Input, Rules, Verdict, analyse};

const MS: i64 = 1_000_000;

/// The job as recorders see it that came in the middle: no numbers, each from another call on.
fn late_attach(job: &Job, seed: u64, ranks: impl Fn(i32) -> bool) -> Input {
    let mut input = job.observe(seed);
    let all = std::mem::take(&mut input.observations);
    for mut seen in all {
        if !ranks(seen.rank) {
            input.observations.push(seen);
        } else if seen.seq >= 10 + seen.rank as u64 % 3 {
            seen.seq = 0;
            input.unnumbered.push(seen);
        }
    }
    input
}

fn named(input: &Input) -> Option<i32> {
    match analyse(input, &Rules::default()).verdict {
        Verdict::Rank { culprit, also, .. } if also.is_empty() => Some(culprit.rank),
        _ => None,
    }
}

#[test]
fn a_late_rank_is_named_though_no_start_was_seen() {
    for seed in 0..20 {
        let late = Job { slow: vec![Slow { rank: 3, extra_ns: 20 * MS, from_step: 0 }], loss: 0.01, ..Job::default() };
        assert_eq!(named(&late_attach(&late, seed, |_| true)), Some(3), "seed {seed}");
        assert_eq!(named(&late_attach(&late, seed, |r| r < 4)), Some(3), "seed {seed}: half of them attached late");
        let healthy = Job { loss: 0.01, ..Job::default() };
        let report = analyse(&late_attach(&healthy, seed, |_| true), &Rules::default());
        assert_eq!(report.verdict, Verdict::None);
        assert!(report.evidence.notes.iter().any(|n| n.contains("matched by when they ended")));
    }
}

#[test]
fn calls_that_only_enqueue_are_not_guessed_at() {
    for seed in 0..20 {
        let late = Job {
            ranks: 2,
            ranks_per_node: 1,
            enqueues: true,
            slow: vec![Slow { rank: 1, extra_ns: 80 * MS, from_step: 0 }],
            ..Job::default()
        };
        assert_ne!(named(&late_attach(&late, seed, |_| true)), Some(0), "seed {seed}: the victim");
    }
}
