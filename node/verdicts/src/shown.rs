//! The text of every kind of verdict, as snapshots. The reports are written by hand: what is shown
//! here is wording and layout, not scores.

use std::sync::Arc;

use super::hang::{Absence, Call, Hang, Missing, Waiting};
use super::point_to_point::{PointToPoint, RankTime};
use super::report::{
    Basis, CommReport, Cost, Culprit, Evidence, PerStep, RankScore, Report, Role, Spread, Stage, StageRank, Verdict,
};
use super::tally::Waits;
use super::windows::WindowKind;
use super::{NodeCoverage, text};
use causes::{Cause, Flow, Network, Recorded, Stretch, explain, gaps};
use observed::{Activity, Kind, RankRef};

const MS: i64 = 1_000_000;
const START_NS: i64 = 1_700_000_000_000_000_000;

fn spread(ns: i64) -> Spread {
    Spread { mean_ns: ns, median_ns: ns, p95_ns: ns }
}

fn who(rank: i32) -> RankRef {
    RankRef { rank, node: format!("n{}", rank / 2), pid: 1_000 + i64::from(rank) }
}

fn score(rank: i32, late: bool, named: bool) -> RankScore {
    let RankRef { node, pid, .. } = who(rank);
    RankScore {
        rank,
        node,
        pid,
        class: 0,
        collectives: 100,
        lateness: spread(if late { 60 * MS } else { i64::from(rank) * 10_000 }),
        lateness_bound_ns: Some(200_000),
        wait: spread(if late { 0 } else { 60 * MS - i64::from(rank) * 10_000 }),
        own_excess_ns: Some(if late { 60 * MS } else { 0 }),
        excess_ns: if late { 60 * MS } else { 0 },
        share: if late { 0.43 } else { 0.0 },
        z: Some(if late { 41.2 } else { 0.1 }),
        flagged: if late { 10 } else { 0 },
        role: match (late, named) {
            (true, _) => Role::Culprit,
            (false, true) => Role::Victim,
            (false, false) => Role::Peer,
        },
    }
}

/// Eight ranks on four hosts; rank 5 is late where `late`.
fn report(verdict: Verdict, late: bool) -> Report {
    let comm = CommReport {
        comm_hash: "0000000000c0ffee".to_owned(),
        library: "nccl".to_owned(),
        nranks: Some(8),
        heard: 8,
        funcs: vec![("all_reduce".to_owned(), 800)],
        period_ns: 140 * MS,
        windowed: Some(WindowKind::Time { length_ns: 1_000 * MS }),
        windows: 10,
        waits: Some(Waits::Seen),
        matched: 100,
        ranks: (0..8).map(|rank| score(rank, late && rank == 5, late)).collect(),
        ..CommReport::default()
    };
    let step = PerStep {
        steps: 50,
        collectives: 2,
        step_ns: 280 * MS,
        wasted_ns: 120 * MS,
        gpu_seconds_wasted: 0.84,
        slowdown: Some(1.75),
    };
    Report {
        verdict,
        cost: if late {
            Cost { gpu_seconds_wasted: 42.0, gpus_lost: 3.0, upper_bound: false, charged: None, per_step: Some(step) }
        } else {
            Cost::default()
        },
        evidence: Evidence {
            tier: 0,
            windows: 10,
            matched: 100,
            complete: 100,
            clock_bound_ns: Some(400_000),
            since_ns: START_NS,
            until_ns: START_NS + 14_000 * MS,
            not_visible: vec!["collectives replayed from captured graphs".to_owned()],
            ..Evidence::default()
        },
        cause: None,
        per_comm: vec![comm],
        point_to_point: None,
        coverage: NodeCoverage { asked: 4, answered: 4, ..NodeCoverage::default() },
    }
}

fn rank_verdict() -> Verdict {
    let RankRef { rank, node, pid } = who(5);
    let culprit = Culprit {
        rank,
        node,
        pid,
        comm_hash: "0000000000c0ffee".to_owned(),
        basis: Basis::Waits,
        late_by_ns: 60 * MS,
        last_in: 98,
        collectives: 100,
        share: 0.43,
        z: Some(41.2),
        since_ns: START_NS + 3_000 * MS,
        until_ns: START_NS + 14_000 * MS,
        since_start: false,
        ongoing: true,
        flagged: 10,
        windows: 10,
    };
    Verdict::Rank { culprit, also: Vec::new(), held_up: Vec::new() }
}

/// A cause found in ten intervals of 80 ms, the peer's 20 ms, of which the stretches take so much.
fn cause(stretches: &[(Kind, i64, &str)]) -> Cause {
    let looked_at = ["communication calls", "time off the CPU (stretches of 1 ms and longer)"];
    cause_seen(stretches, &looked_at)
}

fn cause_seen(stretches: &[(Kind, i64, &str)], looked_at: &[&str]) -> Cause {
    let recorded = |rank: i32, length: i64, stretches: &[(Kind, i64, &str)]| {
        let at = |i: i64| START_NS + i * 140 * MS;
        let func: Arc<str> = "all_reduce".into();
        let calls: Vec<_> = (0..11i64)
            .map(|i| {
                let seq = causes::Collective { func: Arc::clone(&func), seq: i.unsigned_abs() };
                (Some(seq), 1, at(i), at(i) + 140 * MS - length)
            })
            .collect();
        let stretches = (0..10).flat_map(|i| {
            stretches.iter().map(move |&(kind, ns, what)| {
                let start_ns = at(i) + 140 * MS - length;
                Stretch { kind, tid: Some(1), start_ns, end_ns: start_ns + ns, what: what.into(), bytes: None }
            })
        });
        Recorded { who: Some(who(rank)), gaps: gaps(&calls), stretches: stretches.collect() }
    };
    let peer = recorded(1, 20 * MS, &[(Kind::CpuStolen, MS, "cron (pid 9)")]);
    let looked_at = looked_at.iter().map(|topic| (*topic).to_owned()).collect();
    let not_visible = vec!["GPU clocks: n2 gpu_samples: nothing records into this table yet".to_owned()];
    explain(&recorded(5, 80 * MS, stretches), Some(&peer), looked_at, not_visible)
}

#[test]
fn a_rank_with_its_cause() {
    let cause = cause(&[(Kind::CpuStolen, 57 * MS, "spin\u{1b}[2J (pid 4711)")]);
    insta::assert_snapshot!(text(&Report { cause: Some(cause), ..report(rank_verdict(), true) }));
}

#[test]
fn no_line_is_longer_than_80_columns_whatever_hosts_are_called() {
    for host in ["n2", "gpu-node-0042", "gpu-node-0042.rack-7.cluster.example.org", "\u{1b}[2J\u{1b}[2J\u{1b}[2J"] {
        let mut report = report(rank_verdict(), true);
        let held = [(Kind::CpuStolen, 0.31), (Kind::BlockIo, 0.2), (Kind::Reclaim, 0.12), (Kind::Lock, 0.07)];
        let ranks = report.per_comm[0].ranks.iter_mut().map(|rank| {
            rank.node = host.to_owned();
            rank.role = if rank.rank == 6 { Role::HeldUp } else { rank.role };
            let (rank, node, pid) = (rank.rank, host.to_owned(), rank.pid);
            let held = (rank % 2 == 0).then(|| held.to_vec());
            RankTime { rank, node, pid, compute: 1.0, unscored: 0.0, scored: 0.0, held, blame: 0.0 }
        });
        let ranks = ranks.collect();
        let of_time = PointToPoint { heard: 8, nranks: 16, unknown: true, ranks, ..PointToPoint::default() };
        report.point_to_point = Some(of_time);
        let text = text(&report);
        assert!(text.contains("culprit") && text.contains("held off the CPU"), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}\n{text}");
        }
    }
}

#[test]
fn a_rank_whose_cause_is_not_seen() {
    let cause = cause(&[(Kind::CpuStolen, 20 * MS, "make (pid 12)")]);
    insta::assert_snapshot!(text(&Report { cause: Some(cause), ..report(rank_verdict(), true) }));
}

#[test]
fn a_rank_of_whose_thread_nothing_is_recorded() {
    let cause = cause_seen(&[], &["communication calls"]);
    assert!(
        cause.summary.contains("was not recorded") && !cause.summary.contains("on its CPU, or"),
        "{}",
        cause.summary
    );
    let cause = self::cause(&[]);
    assert!(cause.summary.contains("its thread was on its CPU, or off it"), "{}", cause.summary);
}

#[test]
fn a_rank_while_another_is_as_late() {
    let line = "Not counted: waits while rank 2 on n1, which is not named, was as late.";
    let mut report = report(rank_verdict(), true);
    assert!(!text(&report).contains("Not counted"));
    let other = &mut report.per_comm[0].ranks[2];
    (other.excess_ns, other.flagged) = (40 * MS, 5);
    assert!(text(&report).contains(line), "{}", text(&report));
    report.per_comm[0].ranks[2].role = Role::HeldUp;
    assert!(!text(&report).contains(line));
}

#[test]
fn nobody() {
    insta::assert_snapshot!(text(&report(Verdict::None, false)));
}

#[test]
fn unknown() {
    let why = "no collective was recorded in the span: is the job communicating, and is it captured?".to_owned();
    let empty =
        Report { per_comm: Vec::new(), evidence: Evidence::default(), ..report(Verdict::Unknown { why }, false) };
    insta::assert_snapshot!(text(&empty));
}

#[test]
fn a_hang() {
    let comm_hash = "0000000000c0ffee".to_owned();
    let call =
        Call { func: "all_reduce".to_owned(), comm_hash: Some(comm_hash), position: Some(100), ..Call::default() };
    let waiting = (0..8).filter(|rank| *rank != 5).map(|rank| Waiting {
        who: who(rank),
        call: call.clone(),
        since_ns: Some(START_NS + 8_000 * MS),
        activity: (rank == 0).then_some(Activity::BlockIo),
    });
    let hang = Hang {
        waiting: waiting.collect(),
        missing: vec![Missing {
            who: who(5),
            call: call.clone(),
            inside: None,
            activity: Some(Activity::Stopped),
            absence: Absence::NotEntered,
            line: None,
            holds_up: 7,
        }],
        since_ns: Some(START_NS + 8_000 * MS),
        ..Hang::default()
    };
    insta::assert_snapshot!(text(&report(Verdict::Hang(hang), false)));
}

#[test]
fn a_stage_that_has_more_to_do() {
    let stage = |ranks: std::ops::Range<i32>, own_share| Stage {
        ranks: ranks.map(|r| StageRank { who: who(r), comm_hash: "a".to_owned(), own_share }).collect(),
        own_share,
    };
    let stages = vec![stage(6..8, 0.55), stage(0..6, 0.34)];
    let verdict = Verdict::StageImbalance { ranks: vec![who(6), who(7)], ratio: 1.62, share: 0.21, stages };
    insta::assert_snapshot!(text(&report(verdict, false)));
}

#[test]
fn the_network() {
    let flow = |from: i32, to: i32, retransmissions| Flow {
        from_node: format!("n{from}"),
        from: format!("10.0.0.{from}"),
        to_node: (to != 9).then(|| format!("n{to}")),
        to: format!("10.0.0.{to}"),
        retransmissions,
    };
    let network = Network {
        comm_hash: "0000000000c0ffee".to_owned(),
        node: Some("n2".to_owned()),
        share: 0.31,
        explained: 0.97,
        collectives: 90,
        with_retransmissions: 21,
        usual_ns: 3 * MS,
        slow_ns: 212 * MS,
        retransmissions: 34,
        flows: vec![flow(1, 2, 20), flow(2, 9, 14)],
    };
    insta::assert_snapshot!(text(&report(Verdict::Network(network), false)));
}
