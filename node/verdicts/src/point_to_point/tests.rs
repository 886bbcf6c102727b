//! Verdicts on jobs whose ranks meet point to point, by their shares of time.

use std::collections::BTreeMap;

use observed::{HELD, Input, Kind, LaneTotal, Rules, TimeUse, Totals};
use proptest::prelude::*;

use super::decide;
use crate::report::{Basis, CommReport, Culprit, RankScore, Report, Role, Spread, Verdict};
use crate::{ClockOffset, text};

const S: i64 = 1_000_000_000;
const START: i64 = 1_700_000_000;

/// Shares of a rank's time: in calls, and held by kind; and calls in a second.
#[derive(Clone)]
struct Rank {
    in_calls: f64,
    held: Vec<(Kind, f64)>,
    calls: u64,
}

fn rank(in_calls: f64, held: &[(Kind, f64)]) -> Rank {
    Rank { in_calls, held: held.to_vec(), calls: 1_000 }
}

fn seconds(of: std::ops::Range<i64>, ranks: &[Rank], times: &mut Vec<TimeUse>) {
    let ns = |share: f64| (share * S as f64) as i64;
    for (at, who) in ranks.iter().enumerate() {
        let mut held = [0; HELD.len()];
        for (kind, share) in &who.held {
            held[HELD.iter().position(|held| held == kind).unwrap()] = ns(*share);
        }
        let (before, after) = ((at + ranks.len() - 1) % ranks.len(), (at + 1) % ranks.len());
        times.extend(of.clone().map(|second| TimeUse {
            node: format!("n{at}").into(),
            pid: 100,
            rank: at as i32,
            nranks: ranks.len() as i32,
            job: 1,
            until_ns: (START + second + 1) * S,
            span_ns: S,
            calls: who.calls,
            scored_ns: 0,
            unscored_ns: ns(who.in_calls),
            held_ns: Some(held),
            peers: vec![(before as i32, ns(who.in_calls) / 2), (after as i32, ns(who.in_calls) / 2)],
        }));
    }
}

fn of(times: Vec<TimeUse>) -> Report {
    let nodes = times.iter().map(|time| time.node.to_string()).collect::<std::collections::BTreeSet<_>>();
    let clocks: BTreeMap<String, ClockOffset> = nodes.into_iter().map(|node| (node, ClockOffset::default())).collect();
    let until_ns = times.iter().map(|time| time.until_ns).max().unwrap_or(0);
    let input = Input { times, clocks, since_ns: START * S, until_ns, ..Input::default() };
    let mut report = Report::default();
    report.evidence.since_ns = START * S;
    report.evidence.until_ns = until_ns;
    decide(&input, &Rules::default(), &mut report);
    report
}

fn for_ten_seconds(ranks: &[Rank]) -> Report {
    let mut times = Vec::new();
    seconds(0..10, ranks, &mut times);
    of(times)
}

/// LAMMPS on two cores, as measured (docs/measurements.md): share of time in calls.
#[test]
fn lammps_with_a_hog_a_stop_or_a_quota_beside_one_rank_names_it() {
    for (waits, own, kind, held) in
        [(0.71, 0.03, Kind::CpuStolen, 0.66), (0.38, 0.12, Kind::Stopped, 0.30), (0.51, 0.04, Kind::CpuThrottled, 0.4)]
    {
        for late in [0, 1] {
            let mut ranks = [rank(waits, &[]), rank(waits, &[(Kind::CpuStolen, 0.02)])];
            ranks[late] = rank(own, &[(kind, held)]);
            let report = for_ten_seconds(&ranks);
            let Verdict::Rank { culprit, .. } = &report.verdict else { panic!("{:#?}", report.verdict) };
            assert_eq!((culprit.rank, culprit.basis, culprit.ongoing), (late as i32, Basis::PointToPoint, true));
            assert_eq!(report.cause.as_ref().unwrap().named, [kind]);
        }
    }
}

#[test]
fn an_uneven_domain_is_an_imbalance_and_a_healthy_one_nobody() {
    let report = for_ten_seconds(&[rank(0.02, &[(Kind::CpuStolen, 0.03)]), rank(0.45, &[])]);
    let Verdict::WorkImbalance { ranks, .. } = &report.verdict else { panic!("{:#?}", report.verdict) };
    assert_eq!(ranks[0].rank, 0);
    assert!(text(&report).contains("Work imbalance: rank 0 on n0"), "{}", text(&report));
    let report = for_ten_seconds(&[rank(0.07, &[]), rank(0.16, &[])]);
    assert_eq!(report.verdict, Verdict::None);
    assert!(text(&report).contains("2 ranks compared by where they spend their time"), "{}", text(&report));
}

/// Other tasks of a busy host take the CPU of those who use it: of the one with more work, more.
#[test]
fn an_uneven_domain_on_a_busy_host_is_still_an_imbalance() {
    let report = for_ten_seconds(&[rank(0.30, &[(Kind::CpuStolen, 0.35)]), rank(0.60, &[(Kind::CpuStolen, 0.20)])]);
    assert!(matches!(report.verdict, Verdict::WorkImbalance { .. }), "{:#?}", report.verdict);
    let report = for_ten_seconds(&[rank(0.05, &[(Kind::CpuStolen, 0.60)]), rank(0.60, &[(Kind::CpuStolen, 0.05)])]);
    assert!(matches!(report.verdict, Verdict::Rank { .. }), "{:#?}", report.verdict);
}

/// HPL on two cores, rank 0 stopped 30 ms in 100, as measured (docs/measurements.md): it mostly
/// computes, and so does the other.
#[test]
fn a_rank_that_is_held_is_named_by_a_smaller_excess() {
    let stopped = |own, held: &[(Kind, f64)]| for_ten_seconds(&[rank(own, held), rank(0.13, &[])]).verdict;
    let Verdict::Rank { culprit, .. } = stopped(0.07, &[(Kind::Stopped, 0.3)]) else { panic!("it is stopped") };
    assert_eq!((culprit.rank, culprit.basis), (0, Basis::PointToPoint));
    assert_eq!(stopped(0.07, &[]), Verdict::None, "nothing holds it");
    assert_eq!(stopped(0.09, &[(Kind::Stopped, 0.3)]), Verdict::None, "nobody waits for it");
}

/// Who waits long in such calls, and nobody computes longer: they wait for the calls themselves.
#[test]
fn ranks_that_compute_evenly_hold_nobody_up_however_long_they_wait() {
    assert_eq!(for_ten_seconds(&[rank(0.46, &[]), rank(0.42, &[])]).verdict, Verdict::None);
    let report = for_ten_seconds(&[rank(0.46, &[]), rank(0.38, &[])]);
    let Verdict::Unknown { why } = &report.verdict else { panic!("{:#?}", report.verdict) };
    assert!(why.contains("42 % of their time"), "{why}");
}

/// Stages of a pipeline on devices, whose hosts wait in synchronise calls: nobody's wait is seen in
/// the calls themselves.
#[test]
fn stages_that_only_enqueue_are_judged_by_their_waits_for_devices() {
    let input = |ranks: Option<[Rank; 4]>| {
        let mut input = Input { since_ns: START * S, until_ns: (START + 10) * S, ..Input::default() };
        if let Some(ranks) = ranks {
            seconds(0..10, &ranks, &mut input.times);
        }
        for node in ["n0", "n1", "n2", "n3"] {
            input.clocks.insert(node.to_owned(), ClockOffset::default());
            let lane = |func: &str| LaneTotal {
                comm_hash: 1,
                nranks: Some(4),
                rank: 0,
                func: func.into(),
                calls: 1_000,
                tier: 0,
                library: "nccl".into(),
            };
            input.totals.push(Totals {
                node: node.into(),
                pid: 100,
                opens: None,
                lanes: vec![lane("send"), lane("recv")],
            });
        }
        input
    };
    let verdict = |ranks| {
        let mut report = Report { verdict: Verdict::None, ..Report::default() };
        decide(&input(ranks), &Rules::default(), &mut report);
        report
    };
    let stopped = |own, share: f64| {
        let waits = || rank(0.35, &[]);
        verdict(Some([waits(), waits(), rank(own, &[(Kind::Stopped, share)]), waits()]))
    };
    let report = stopped(0.05, 0.3);
    let Verdict::Rank { culprit, .. } = &report.verdict else { panic!("{:#?}", report.verdict) };
    assert_eq!(culprit.rank, 2);
    assert!(text(&report).contains("waits for devices after sends and receives"), "{}", text(&report));
    let report = stopped(0.28, 0.0);
    let Verdict::Unknown { why } = &report.verdict else { panic!("{:#?}", report.verdict) };
    assert!(why.contains("waiting for their devices"), "{why}");
    // A hog on the CPUs of a stage made steps 1.6 times as long, and hosts waited evenly.
    let Verdict::Unknown { why } = stopped(0.35, 0.16).verdict else { panic!("it is held, and no other is") };
    assert!(why.contains("rank 2 on n2 is held off its CPU for 16 %") && why.contains("(stopped)"), "{why}");
    let Verdict::Unknown { why } = verdict(None).verdict else { panic!("nothing is known of their waits") };
    assert!(why.contains("100 % of the calls are sends, receives"), "{why}");
}

/// Collectives of two ranks cannot tell more work from a slow rank, whatever they say.
#[test]
fn a_rank_that_collectives_name_and_that_only_has_more_work_is_not_named() {
    let mut times = Vec::new();
    seconds(0..10, &[rank(0.02, &[]), rank(0.45, &[])], &mut times);
    let score = |at: i32| RankScore {
        rank: at,
        node: format!("n{at}"),
        pid: 100,
        class: 1,
        collectives: 100,
        lateness: Spread::default(),
        lateness_bound_ns: None,
        wait: Spread::default(),
        own_excess_ns: None,
        excess_ns: 0,
        share: 0.0,
        z: None,
        flagged: 0,
        role: Role::Peer,
    };
    let named = Culprit {
        rank: 0,
        node: "n0".into(),
        pid: 100,
        comm_hash: "a".into(),
        basis: Basis::OwnTime,
        late_by_ns: 1,
        last_in: 1,
        collectives: 1,
        share: 0.4,
        z: None,
        since_ns: 0,
        until_ns: 1,
        since_start: true,
        ongoing: true,
        flagged: 1,
        windows: 1,
    };
    let with = |classes: [usize; 2]| {
        let ranks = (0..2).map(|at| RankScore { class: classes[at], ..score(at as i32) }).collect();
        let verdict = Verdict::Rank { culprit: named.clone(), also: Vec::new(), held_up: Vec::new() };
        let per_comm = vec![CommReport { ranks, ..CommReport::default() }];
        let mut report = Report { verdict, per_comm, ..Report::default() };
        decide(&Input { times: times.clone(), ..Input::default() }, &Rules::default(), &mut report);
        report.verdict
    };
    assert!(matches!(with([1, 1]), Verdict::WorkImbalance { .. }));
    // Nor where sends and receives do not tell for long enough.
    let verdict = Verdict::Rank { culprit: named.clone(), also: Vec::new(), held_up: Vec::new() };
    let mut report = Report { verdict, ..Report::default() };
    let mut short = Vec::new();
    seconds(0..3, &[rank(0.02, &[]), rank(0.45, &[])], &mut short);
    decide(&Input { times: short, ..Input::default() }, &Rules::default(), &mut report);
    let Verdict::Unknown { why } = &report.verdict else { panic!("{:#?}", report.verdict) };
    assert!(why.contains("rank 0 on n0 is late for collectives"), "{why}");
    // Where hardly any time is spent there, they say nothing against it.
    let verdict = Verdict::Rank { culprit: named.clone(), also: Vec::new(), held_up: Vec::new() };
    let mut report = Report { verdict, ..Report::default() };
    let mut little = Vec::new();
    seconds(0..10, &[rank(0.001, &[]), rank(0.001, &[])], &mut little);
    decide(&Input { times: little, ..Input::default() }, &Rules::default(), &mut report);
    assert!(matches!(report.verdict, Verdict::Rank { .. }) && report.point_to_point.is_none(), "{:?}", report.verdict);
    // Stages of a pipeline are compared with those that do the same work.
    assert!(matches!(with([0, 1]), Verdict::Rank { .. }));
}

/// Where all ranks wait much and alike, nothing shows for whom.
#[test]
fn much_waiting_without_a_longest_is_never_nobody() {
    let report = for_ten_seconds(&[rank(0.5, &[]), rank(0.52, &[]), rank(0.48, &[]), rank(0.5, &[])]);
    let Verdict::Unknown { why } = &report.verdict else { panic!("{:#?}", report.verdict) };
    assert!(why.contains("ranks spend 50 % of their time in sends, receives and waits"), "{why}");
}

/// A gloo that keeps no store, its recorder late: collectives alone, on communicators without a name.
#[test]
fn calls_on_unknown_communicators_are_not_called_sends_and_receives() {
    let report = |ranks: &[Rank]| {
        let mut times = Vec::new();
        seconds(0..10, ranks, &mut times);
        times.iter_mut().for_each(|time| time.peers.clear());
        let unplaced = BTreeMap::from([("rank, communicator or number not known".to_owned(), 900)]);
        let mut report = Report::default();
        decide(&Input { times, unplaced, ..Input::default() }, &Rules::default(), &mut report);
        report
    };
    let uneven = report(&[rank(0.8, &[]), rank(0.8, &[]), rank(0.15, &[]), rank(0.8, &[])]);
    assert!(matches!(uneven.verdict, Verdict::WorkImbalance { .. }), "{:#?}", uneven.verdict);
    let alike = report(&[rank(0.6, &[]), rank(0.6, &[]), rank(0.6, &[]), rank(0.6, &[])]);
    assert!(matches!(alike.verdict, Verdict::Unknown { .. }), "{:#?}", alike.verdict);
    for report in [uneven, alike] {
        let text = text(&report).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("calls on communicators that are not known") && !text.contains("sends"), "{text}");
        assert!(!text.contains("no call makes all of them meet"), "{text}");
    }
}

#[test]
fn a_slow_rank_of_a_halo_exchange_is_the_sink_of_what_all_wait_for() {
    let mut ranks = vec![rank(0.6, &[(Kind::CpuStolen, 0.01)]); 8];
    ranks[5] = rank(0.05, &[(Kind::BlockIo, 0.5)]);
    let report = for_ten_seconds(&ranks);
    assert_eq!(report.verdict.named_ranks(), [5]);
    let about = report.point_to_point.unwrap();
    assert!(about.ranks.iter().all(|other| other.rank == 5 || other.blame < about.ranks[5].blame / 2.0), "{about:#?}");
}

/// A missing node: who is heard is judged, and where nobody stands out the missing may be it.
#[test]
fn ranks_that_were_not_heard_may_be_the_one() {
    let mut times = Vec::new();
    seconds(0..10, &vec![rank(0.6, &[]); 8], &mut times);
    times.retain(|time| time.rank != 3);
    let Verdict::Unknown { why } = of(times.clone()).verdict else { panic!() };
    assert!(why.starts_with("1 of 8 ranks were not heard"), "{why}");
    for time in times.iter_mut().filter(|time| time.rank == 6) {
        (time.unscored_ns, time.peers, time.held_ns) = (S / 50, Vec::new(), Some([S / 2, 0, 0, 0, 0]));
    }
    assert_eq!(of(times).verdict.named_ranks(), [6]);
}

#[test]
fn an_episode_that_is_over_does_not_go_on() {
    let mut times = Vec::new();
    seconds(0..10, &[rank(0.7, &[]), rank(0.03, &[(Kind::CpuStolen, 0.6)])], &mut times);
    seconds(10..14, &[rank(0.1, &[]), rank(0.1, &[])], &mut times);
    let report = of(times.clone());
    let [culprit] = report.verdict.named()[..] else { panic!("{:#?}", report.verdict) };
    assert_eq!((culprit.rank, culprit.ongoing, culprit.collectives), (1, false, 10));
    // What goes on now comes before what was worse.
    seconds(14..20, &[rank(0.05, &[(Kind::BlockIo, 0.5)]), rank(0.4, &[])], &mut times);
    let report = of(times);
    let [culprit] = report.verdict.named()[..] else { panic!("{:#?}", report.verdict) };
    assert_eq!((culprit.rank, culprit.ongoing), (0, true));
}

/// No cause on the host is seen (a hot CPU): the rank needs longer for the same calls than before.
#[test]
fn a_rank_that_departs_from_its_own_history_is_named_without_a_cause() {
    let story = |after: [Rank; 3]| {
        let mut times = Vec::new();
        seconds(0..12, &[rank(0.1, &[]), rank(0.1, &[]), rank(0.1, &[])], &mut times);
        seconds(12..24, &after, &mut times);
        of(times)
    };
    // Twice the time: half of the calls in a second, and the others compute half of the time.
    let half = |in_calls: f64| Rank { calls: 500, ..rank(in_calls, &[]) };
    let report = story([half(0.55), half(0.1), half(0.55)]);
    assert_eq!(report.verdict.named_ranks(), [1], "{:#?}", report.verdict);
    assert!(report.cause.unwrap().named.is_empty());
    // Another phase of the program: others do something else, too.
    let report = story([Rank { calls: 100, ..rank(0.55, &[]) }, half(0.1), half(0.55)]);
    assert!(matches!(report.verdict, Verdict::WorkImbalance { .. }), "{:#?}", report.verdict);
}

#[test]
fn where_it_is_not_known_how_long_ranks_waited_the_answer_is_not_nobody() {
    let lane = |func: &str, calls| LaneTotal {
        comm_hash: 5,
        nranks: Some(2),
        rank: 0,
        func: func.into(),
        calls,
        tier: 1,
        library: "mpi".into(),
    };
    let of = |lanes: Vec<LaneTotal>| {
        let totals = vec![Totals { node: "n".into(), pid: 1, opens: None, lanes }];
        let mut report = Report::default();
        decide(&Input { totals, ..Input::default() }, &Rules::default(), &mut report);
        report.verdict
    };
    let Verdict::Unknown { why } = of(vec![lane("send", 900), lane("all_reduce", 100)]) else { panic!() };
    assert!(why.starts_with("90 % of the calls are sends"), "{why}");
    assert_eq!(of(vec![lane("send", 100), lane("all_reduce", 900)]), Verdict::None);
}

proptest! {
    /// Without a cause on a host and without history nobody is ever named, however ranks wait; and
    /// whatever the order of what comes, the verdict is one.
    #[test]
    fn nobody_is_named_without_evidence(shares in prop::collection::vec(0.0f64..1.0, 2..12), seed in any::<u64>()) {
        let ranks: Vec<Rank> = shares.iter().map(|share| rank(*share, &[])).collect();
        let mut times = Vec::new();
        seconds(0..8, &ranks, &mut times);
        let report = of(times.clone());
        prop_assert!(report.verdict.named().is_empty(), "{:#?}", report.verdict);
        let turned = seed as usize % times.len();
        times.rotate_left(turned);
        prop_assert_eq!(of(times).verdict, report.verdict);
    }
}
