//! What must hold of causes whatever the evidence.

use std::sync::Arc;

use observed::{Kind, RankRef, Rules};
use proptest::prelude::*;

use super::evidence::{Collective, Gap, Recorded, Stretch};
use super::timeline::lay;
use super::{Topic, explain};

const MS: i64 = 1_000_000;

const KINDS: [Kind; 7] =
    [Kind::CpuStolen, Kind::BlockIo, Kind::PageFault, Kind::Lock, Kind::Sleep, Kind::CudaSync, Kind::Communication];

fn key(seq: u64) -> Option<[Collective; 2]> {
    let at = |seq| Collective { func: Arc::from("all_reduce"), seq };
    Some([at(seq), at(seq + 1)])
}

/// Intervals of these lengths, 100 ms apart, by thread 1.
fn recorded(rank: i32, lengths: &[i64], stretches: Vec<Stretch>) -> Recorded {
    let gaps = lengths
        .iter()
        .enumerate()
        .map(|(i, length)| {
            let start_ns = i as i64 * 100 * MS;
            Gap { key: key(i as u64), tid: 1, start_ns, end_ns: start_ns + length }
        })
        .collect();
    Recorded { who: Some(RankRef { rank, node: format!("n{rank}"), pid: 100 + i64::from(rank) }), gaps, stretches }
}

fn stretch(kind: Kind, at: usize, from_ns: i64, length_ns: i64, what: &str) -> Stretch {
    let start_ns = at as i64 * 100 * MS + from_ns;
    Stretch { kind, tid: Some(1), start_ns, end_ns: start_ns + length_ns, what: what.into(), bytes: None }
}

fn each(n: usize, make: impl Fn(usize) -> Stretch) -> Vec<Stretch> {
    (0..n).map(make).collect()
}

#[test]
fn a_spinner_that_takes_the_cpu_is_named_with_its_share() {
    let late = recorded(3, &[80 * MS; 10], each(10, |i| stretch(Kind::CpuStolen, i, 5 * MS, 57 * MS, "spin (pid 7)")));
    let peer = recorded(1, &[20 * MS; 10], each(10, |i| stretch(Kind::CpuStolen, i, 5 * MS, MS, "cron (pid 9)")));
    let cause = explain(&late, Some(&peer), Vec::new(), Vec::new());
    assert_eq!(cause.named, [Kind::CpuStolen]);
    assert!((cause.explained - 56.0 / 60.0).abs() < 1e-9, "{cause:?}");
    assert_eq!(cause.label(), "cpu_stolen (93 %): spin (pid 7)");
    assert_eq!((cause.excess_ns, cause.late_intervals), (600 * MS, 10));
    assert!(
        cause.summary.contains("could run but had no CPU for 57.0 ms an interval (its peer 1.00 ms), taken by spin")
    );
}

#[test]
fn who_took_the_cpu_is_said_by_name_and_what_the_peer_suffers_too_comes_last() {
    let of = |rank, cron, spins: i64| {
        let spin = |i| stretch(Kind::CpuStolen, i, 50 * MS, spins * MS, &format!("spin (pid {})", i % 4));
        let cron = |i| stretch(Kind::CpuStolen, i, 10 * MS, cron * MS, "cron (pid 9)");
        let length = if rank == 3 { 80 * MS } else { 40 * MS };
        recorded(rank, &[length; 10], each(10, spin).into_iter().chain(each(10, cron)).collect())
    };
    let cause = explain(&of(3, 30, 25), Some(&of(1, 20, 0)), Vec::new(), Vec::new());
    assert_eq!(cause.named, [Kind::CpuStolen]);
    let names: Vec<(&str, i64)> = cause.parts[0].what.iter().map(|what| (what.name.as_str(), what.ns / MS)).collect();
    assert_eq!(names, [("spin (4 processes)", 250), ("cron (pid 9)", 300)]);
}

#[test]
fn causes_that_explain_it_together_are_listed_with_shares() {
    let stolen = |i| stretch(Kind::CpuStolen, i, 0, 30 * MS, "spin (pid 7)");
    let io = |i| stretch(Kind::BlockIo, i, 30 * MS, 25 * MS, "sda");
    let late = recorded(3, &[80 * MS; 10], each(10, stolen).into_iter().chain(each(10, io)).collect());
    let cause = explain(&late, Some(&recorded(1, &[20 * MS; 10], Vec::new())), Vec::new(), Vec::new());
    assert_eq!(cause.named, [Kind::CpuStolen, Kind::BlockIo]);
    let shares: Vec<i64> = cause.parts.iter().map(|part| (part.share * 100.0).round() as i64).collect();
    assert_eq!(shares, [50, 42]);
}

#[test]
fn what_explains_most_of_it_is_named_and_the_rest_said() {
    let io = each(10, |i| stretch(Kind::BlockIo, i, 0, 44 * MS, "vda"));
    let cause = explain(
        &recorded(3, &[80 * MS; 10], io),
        Some(&recorded(1, &[20 * MS; 10], Vec::new())),
        Vec::new(),
        Vec::new(),
    );
    assert_eq!((cause.is_mostly(), cause.label().as_str()), (true, "mostly block_io (73 %): vda"));
    assert!(cause.summary.starts_with("mostly 73 % of the excess: its thread waited for a block device"));
    assert!(cause.summary.ends_with("the other 27 % of the excess are not explained by what was recorded"));
}

#[test]
fn what_explains_too_little_leaves_it_unattributed() {
    let late = recorded(3, &[80 * MS; 10], each(10, |i| stretch(Kind::CpuStolen, i, 0, 30 * MS, "spin (pid 7)")));
    let cause = explain(&late, Some(&recorded(1, &[20 * MS; 10], Vec::new())), Vec::new(), Vec::new());
    assert_eq!((cause.is_attributed(), cause.label().as_str()), (false, "unattributed"));
    assert!(cause.summary.contains("explains 50 % of the excess"), "{}", cause.summary);
    let on_cpu = explain(
        &recorded(3, &[80 * MS; 10], Vec::new()),
        Some(&recorded(1, &[20 * MS; 10], Vec::new())),
        vec![Topic::OffCpu.words().to_owned()],
        Vec::new(),
    );
    assert!(on_cpu.summary.contains("more work of its own, or a slower CPU"), "{}", on_cpu.summary);
}

#[test]
fn without_a_peer_nothing_is_named() {
    let late = recorded(3, &[80 * MS; 10], each(10, |i| stretch(Kind::CpuStolen, i, 0, 60 * MS, "spin (pid 7)")));
    let cause = explain(&late, None, Vec::new(), Vec::new());
    assert!(!cause.is_attributed() && cause.summary.contains("no peer"), "{cause:?}");
}

#[test]
fn another_threads_stretches_and_other_communication_count_for_nothing() {
    let mut other = each(10, |i| stretch(Kind::CpuStolen, i, 0, 60 * MS, "spin (pid 7)"));
    other.iter_mut().for_each(|s| s.tid = Some(2));
    let late = recorded(3, &[80 * MS; 10], other);
    let peer = recorded(1, &[20 * MS; 10], Vec::new());
    assert!(!explain(&late, Some(&peer), Vec::new(), Vec::new()).is_attributed());
    let sends = recorded(3, &[80 * MS; 10], each(10, |i| stretch(Kind::Communication, i, 0, 60 * MS, "send")));
    let cause = explain(&sends, Some(&peer), Vec::new(), Vec::new());
    assert_eq!(cause.excess_ns, 0, "its compute time is no longer than the peer's");
}

#[test]
fn intervals_without_numbers_are_compared_by_their_average() {
    let mut late = recorded(3, &[80 * MS; 10], each(10, |i| stretch(Kind::Sleep, i, 0, 60 * MS, "")));
    let mut peer = recorded(1, &[20 * MS; 20], Vec::new());
    late.gaps.iter_mut().chain(&mut peer.gaps).for_each(|gap| gap.key = None);
    let cause = explain(&late, Some(&peer), Vec::new(), Vec::new());
    assert_eq!((cause.named.as_slice(), cause.excess_ns), ([Kind::Sleep].as_slice(), 600 * MS));
    assert!(cause.looked_at.iter().any(|line| line.contains("average")));
}

fn any_stretch(intervals: usize) -> impl Strategy<Value = Stretch> {
    (0..KINDS.len(), 0..intervals, -20..100i64, 0..150i64, 0..3u8, 0..3i64).prop_map(
        |(kind, at, from, length, what, tid)| Stretch {
            tid: (tid > 0).then_some(tid),
            ..stretch(KINDS[kind], at, from * MS, length * MS, &format!("task {what}"))
        },
    )
}

fn any_recorded(rank: i32) -> impl Strategy<Value = Recorded> {
    (1..12usize)
        .prop_flat_map(move |n| {
            (prop::collection::vec(1..100i64, n), prop::collection::vec(any_stretch(n), 0..40))
                .prop_map(move |(ms, all)| recorded(rank, &ms.iter().map(|ms| ms * MS).collect::<Vec<_>>(), all))
        })
        .no_shrink()
}

proptest! {
    #[test]
    fn no_instant_counts_twice(recorded in any_recorded(0)) {
        for (gap, seen) in recorded.gaps.iter().zip(lay(&recorded)) {
            let sum: i64 = KINDS.iter().map(|&kind| seen.of(kind)).sum();
            prop_assert!(sum <= seen.compute_ns, "{sum} of {}", seen.compute_ns);
            prop_assert!(seen.compute_ns >= 0 && seen.compute_ns <= gap.end_ns - gap.start_ns);
            prop_assert!(seen.by.values().flat_map(|whats| whats.values()).all(|amount| amount.ns > 0));
            // The slow way: instant by instant.
            let mut slow = 0;
            let mut at = gap.start_ns;
            while at < gap.end_ns {
                let of_thread = |s: &&Stretch| s.tid.is_none_or(|tid| tid == gap.tid);
                let here = recorded.stretches.iter().filter(of_thread).filter(|s| s.start_ns <= at && at < s.end_ns);
                let first = here.map(|s| s.kind).min();
                slow += i64::from(first == Some(Kind::BlockIo)) * MS;
                at += MS;
            }
            prop_assert_eq!(seen.of(Kind::BlockIo), slow);
        }
    }

    #[test]
    fn what_is_named_explains_enough_and_is_not_the_peers_too(late in any_recorded(3), peer in any_recorded(1)) {
        let cause = explain(&late, Some(&peer), Vec::new(), Vec::new());
        let named: Vec<_> = cause.parts.iter().filter(|part| part.named).collect();
        prop_assert_eq!(named.len(), cause.named.len());
        prop_assert!((0.0..=1.0).contains(&cause.explained));
        if cause.is_attributed() {
            prop_assert!(named.iter().map(|part| part.share).sum::<f64>() > Rules::CAUSE_MOSTLY);
            for part in named {
                prop_assert!(part.culprit_ns as f64 >= Rules::CAUSE_TIMES_PEER * part.peer_ns as f64);
                prop_assert_ne!(part.kind, Kind::Communication);
            }
        }
    }

    #[test]
    fn a_cause_that_the_peer_has_too_is_not_named(ms in prop::collection::vec(50..100i64, 3..12), same in 5..40i64) {
        let lengths: Vec<i64> = ms.iter().map(|ms| ms * MS).collect();
        let all = |n| each(n, |i| stretch(Kind::CpuStolen, i, 0, same * MS, "spin (pid 7)"));
        let late = recorded(3, &lengths, all(ms.len()));
        let peer = recorded(1, &vec![45 * MS; ms.len()], all(ms.len()));
        let cause = explain(&late, Some(&peer), Vec::new(), Vec::new());
        prop_assert!(!cause.named.contains(&Kind::CpuStolen), "{:?}", cause);
    }

    #[test]
    fn a_cause_on_the_culprit_alone_is_named_whatever_else_happens_to_both(
        extra in 20..60i64,
        noise in prop::collection::vec(0..4i64, 10),
    ) {
        let both = each(10, |i| stretch(Kind::Sleep, i, 0, 10 * MS + noise[i] * MS / 4, ""));
        let io = each(10, |i| stretch(Kind::BlockIo, i, 12 * MS, extra * MS, "sda"));
        let late = recorded(3, &[15 * MS + extra * MS; 10], both.iter().cloned().chain(io).collect());
        let peer = recorded(1, &[15 * MS; 10], both);
        let cause = explain(&late, Some(&peer), Vec::new(), Vec::new());
        prop_assert_eq!(cause.named, [Kind::BlockIo]);
    }
}
