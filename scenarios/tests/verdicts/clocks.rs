//! Clocks that are set, hosts that start again with another time of day, and lanes that end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use digest::{Collector, Digest, ReferenceClock, end_of, reference_id, window_of};
use scenarios::simulate::{Job, Slow};
use standing::{Board, Judge, Presence, Standing};
use verdicts::{InCall, Observation, Verdict};

use super::standing::{gossiped, live};

const MS: i64 = 1_000_000;
const S: i64 = 1_000_000_000;
/// Steps of up to an hour.
const STEPS_NS: [i64; 6] = [-3_600 * S, -20 * S, -3 * S, 3 * S, 60 * S, 3_600 * S];

/// How hosts tell time in a simulated mesh of four, whose job has a slow rank from its first step
/// to its last: 40 s.
struct Mesh {
    /// By how much each host's clock is ahead of true time, at a true time.
    ahead_ns: Box<dyn Fn(usize, i64) -> i64>,
    /// When hosts are dead.
    dead: Box<dyn Fn(usize, i64) -> bool>,
    /// How long a host goes on with what it knew of the reference's clock.
    stale_ns: i64,
    /// When agents start again, and have forgotten all they collected.
    restart: Vec<(usize, i64)>,
}

impl Default for Mesh {
    fn default() -> Self {
        Self { ahead_ns: Box::new(|_, _| 0), dead: Box::new(|_, _| false), stale_ns: 0, restart: Vec::new() }
    }
}

/// The start of the job, and when something happens in it.
const FROM_NS: i64 = 1_700_000_000 * S;
const EVENT_NS: i64 = FROM_NS + 20 * S;

impl Mesh {
    /// What n3's agent judges, with the true time at which it did. It reads its own steady clock,
    /// which started 5 s ago.
    fn watch(&self) -> Vec<(i64, Standing)> {
        let job = Job {
            steps: 500,
            own_ns: 50 * MS,
            slow: vec![Slow { rank: 3, extra_ns: 30 * MS, from_step: 0 }],
            clock_offset_ns: 0,
            ..Job::default()
        };
        let rows = job.observe(7);
        let moved_ns = FROM_NS - rows.since_ns;
        let mut calls: BTreeMap<usize, Vec<Observation>> = BTreeMap::new();
        for mut seen in rows.observations {
            let host: usize = seen.node[1..].parse().expect("of the job");
            let aligned_ns = rows.clocks[&*seen.node].align(seen.entry_ns);
            seen.entry_ns = aligned_ns + moved_ns;
            calls.entry(host).or_default().push(seen);
        }
        calls
            .values_mut()
            .for_each(|calls| calls.sort_by_key(|call| std::cmp::Reverse(call.entry_ns + call.duration_ns)));
        let (mut board, mut judge) = (Board::default(), Judge::default());
        let mut collectors: BTreeMap<usize, (Collector, i64)> =
            calls.keys().map(|host| (*host, (Collector::default(), i64::MIN))).collect();
        let mut judged = Vec::new();
        let end_ns = rows.until_ns + moved_ns;
        for now_ns in (FROM_NS..end_ns).step_by(50_000_000) {
            let steady_ns = now_ns - FROM_NS + 5 * S;
            let reference = (0..4).find(|host| !(self.dead)(*host, now_ns)).expect("of the job");
            for (&host, (collector, last)) in &mut collectors {
                let restarts =
                    self.restart.iter().any(|(of, at)| *of == host && (*at..*at + 50_000_000).contains(&now_ns));
                if restarts {
                    (*collector, *last) = (Collector::default(), i64::MIN);
                }
                let all = calls.get_mut(&host).expect("of the job");
                while all.last().is_some_and(|call| call.entry_ns + call.duration_ns < now_ns) {
                    let mut call = all.pop().expect("of the job");
                    call.entry_ns += (self.ahead_ns)(host, call.entry_ns + call.duration_ns);
                    collector.push(call);
                }
                let window = window_of(now_ns + (self.ahead_ns)(host, now_ns) - 100 * MS) - 1;
                if (self.dead)(host, now_ns) || window <= *last && window > *last - 10 {
                    continue;
                }
                *last = window;
                let mut digest = collector.close(window);
                let measured_ns = now_ns - self.stale_ns;
                let ahead_ns = (self.ahead_ns)(host, measured_ns) - (self.ahead_ns)(reference, measured_ns);
                digest.clock = Some(ReferenceClock {
                    reference: reference_id(&format!("n{reference}")),
                    offset_us: if host == reference { 0 } else { ahead_ns / 1_000 },
                    bound_us: 200,
                });
                board.receive(&format!("n{host}"), digest, steady_ns);
            }
            let presence = |host: usize| if (self.dead)(host, now_ns) { Presence::Dead } else { Presence::Live };
            board.presence(&(0..4).map(|host| (format!("n{host}"), presence(host))).collect());
            judged.extend(judge.judge(&board, steady_ns).map(|standing| (now_ns, standing)));
        }
        judged
    }

    /// Asserts that the slow rank is named all the time, but for a while at the beginning and for
    /// five seconds after the event.
    fn verdicts_go_on(&self, hosts: usize, what: &str) {
        let judged = self.watch();
        for from_ns in [FROM_NS + 5 * S, EVENT_NS + 5 * S] {
            let to_ns = if from_ns < EVENT_NS { EVENT_NS } else { FROM_NS + 38 * S };
            let mut last_ns = from_ns - S;
            for (at_ns, standing) in judged.iter().filter(|(at_ns, _)| (from_ns..to_ns).contains(at_ns)) {
                let after = (at_ns - EVENT_NS) / MS;
                assert!(at_ns - last_ns < 2 * S, "{what}: none between {} and {after} ms", (last_ns - EVENT_NS) / MS);
                last_ns = *at_ns;
                let ranks = standing.report.verdict.named_ranks();
                assert_eq!(ranks, [3], "{what}, after {after} ms: {:?}", standing.report.verdict);
                let expected = if from_ns < EVENT_NS { 4 } else { hosts };
                assert_eq!((standing.heard, &standing.silent), (expected, &vec![]), "{what}, after {after} ms");
                assert!((0..3 * S).contains(&standing.age_ns), "{what}: {} ms old", standing.age_ns / MS);
            }
            assert!(to_ns - last_ns < 2 * S, "{what}: none after {} ms", (last_ns - EVENT_NS) / MS);
        }
    }
}

fn stepped(host: usize, step_ns: i64) -> impl Fn(usize, i64) -> i64 {
    move |of, at_ns| if of == host && at_ns >= EVENT_NS { step_ns } else { 0 }
}

#[test]
fn an_agent_that_starts_again_with_another_time_of_day_counts_within_five_seconds() {
    for step_ns in STEPS_NS {
        for host in [0, 2] {
            let mesh =
                Mesh { ahead_ns: Box::new(stepped(host, step_ns)), restart: vec![(host, EVENT_NS)], ..Mesh::default() };
            mesh.verdicts_go_on(4, &format!("n{host} by {} s", step_ns / S));
        }
    }
}

/// Agents of another version may tell time by clocks that are stepped, and know of it only by their
/// next ping.
#[test]
fn digests_told_by_a_stepped_clock_hold_no_verdict_up() {
    for step_ns in STEPS_NS {
        for host in [0, 2] {
            let mesh = Mesh { ahead_ns: Box::new(stepped(host, step_ns)), stale_ns: S, ..Mesh::default() };
            mesh.verdicts_go_on(4, &format!("n{host} by {} s", step_ns / S));
        }
    }
}

#[test]
fn verdicts_go_on_when_another_host_becomes_the_reference_whose_clock_is_an_hour_off() {
    for ahead_ns in STEPS_NS {
        let mesh = Mesh {
            ahead_ns: Box::new(move |host, _| if host == 0 { ahead_ns } else { 0 }),
            dead: Box::new(|host, at_ns| host == 0 && at_ns >= EVENT_NS),
            stale_ns: 0,
            ..Mesh::default()
        };
        let judged = mesh.watch();
        let last = judged.iter().rev().find(|(at_ns, _)| *at_ns < FROM_NS + 38 * S).expect("judged");
        assert!(last.0 > FROM_NS + 36 * S, "verdicts stood still at {} s", (last.0 - FROM_NS) / S);
        let lately = judged.iter().filter(|(at_ns, _)| (EVENT_NS + 5 * S..FROM_NS + 38 * S).contains(at_ns));
        assert!(lately.clone().count() > 20);
        for (at_ns, standing) in lately {
            assert_eq!(standing.reference.as_deref(), Some("n1"), "{} ms", (at_ns - EVENT_NS) / MS);
            assert_eq!(standing.heard, 3, "{} ms", (at_ns - EVENT_NS) / MS);
        }
    }
}

#[test]
fn times_are_those_of_the_wall_clock_that_was_stepped() {
    let watch = |wall_ahead_ms: [i64; 2]| {
        let mut mesh = Board::default();
        let job = Job {
            steps: 200,
            own_ns: 40 * MS,
            slow: vec![Slow { rank: 3, extra_ns: 30 * MS, from_step: 0 }],
            ..Job::default()
        };
        let (mut judge, mut last) = (Judge::default(), None);
        for (now_ns, node, mut digest) in gossiped(&job, 3) {
            digest.wall_ahead_ms = wall_ahead_ms[usize::from(node != "n0")];
            mesh.receive(&node, digest, now_ns);
            mesh.presence(&live(4));
            last = judge.judge(&mesh, now_ns).or(last);
        }
        last.expect("judged")
    };
    let (plain, stepped) = (watch([0, 0]), watch([-60_000, 5_000]));
    let culprit = |standing: &Standing| match &standing.report.verdict {
        Verdict::Rank { culprit, .. } => (culprit.since_ns, culprit.until_ns),
        other => panic!("{other:?}"),
    };
    let (before, after) = (culprit(&plain), culprit(&stepped));
    assert_eq!((before.0 - after.0, before.1 - after.1), (60 * S, 60 * S));
    assert_eq!(plain.end_ns() - stepped.end_ns(), 60 * S);
    let clocks = |standing: &Standing| standing.report.evidence.clocks.clone();
    for ((node, one), (_, other)) in clocks(&plain).into_iter().zip(clocks(&stepped)) {
        assert_eq!(other.offset_ns - one.offset_ns, if node == "n0" { 0 } else { 65 * S }, "{node}");
    }
}

#[test]
fn lanes_end_some_time_after_their_communicators_unless_somebody_waits_in_them() {
    let call = |comm: u64, seq: u64, at_ns: i64| Observation {
        node: "".into(),
        pid: 7,
        rank: 0,
        nranks: Some(2),
        comm_hash: comm,
        func: "all_reduce".into(),
        seq,
        entry_ns: at_ns,
        duration_ns: MS,
        tier: 1,
        library: "nccl".into(),
        ..Observation::default()
    };
    // A communicator a second, for twenty minutes; one is used all the time.
    let mut collector = Collector::default();
    let (mut most, mut waited_in) = (0, BTreeSet::new());
    let comms = |digest: &Digest| digest.lanes.iter().map(|lane| lane.comm_hash).collect::<BTreeSet<u64>>();
    for window in 0..4_800 {
        let at_ns = end_of(window) - 10 * MS;
        collector.push(call(1, window as u64, at_ns));
        if window % 2 == 0 && window < 2_400 {
            collector.push(call(1_000 + window as u64, 0, at_ns + 2 * MS));
        }
        if window == 2_400 {
            waited_in.insert(1_100);
        }
        if collector.has_idle(window) {
            collector.end_idle(window, &waited_in);
        }
        let named = comms(&collector.close(window));
        most = most.max(named.len());
        if window == 4_790 {
            assert!(named.is_subset(&BTreeSet::from([1, 1_100])), "{named:?}");
        }
    }
    assert!(most > 100, "{most}");
    // Who waits in it is known from all that was heard.
    let mut board = Board::default();
    let mut other = Collector::default();
    other.push(call(1_100, 0, end_of(1)));
    other.open(2, &[InCall::of(&call(1_100, 1, end_of(1)))]);
    board.receive("n1", other.close(2), 0);
    assert_eq!(board.waited_in(), BTreeSet::from([1_100]));
}

#[test]
fn a_digest_is_taken_in_while_a_judgement_is_under_way() {
    let job = Job { ranks: 64, steps: 150, own_ns: 40 * MS, ..Job::default() };
    let gossip = gossiped(&job, 1);
    let board = Arc::new(std::sync::Mutex::new(Board::default()));
    for (now_ns, node, digest) in &gossip {
        board.lock().expect("of the job").receive(node, digest.clone(), *now_ns);
    }
    let now_ns = gossip.last().expect("of the job").0;
    // What is judged is a copy: no lock is held, and what comes meanwhile changes nothing in it.
    let copy = board.lock().expect("of the job").clone();
    let alone = Judge::default().judge(&copy, now_ns).expect("judged");
    let (node, newest) =
        (gossip[0].1.clone(), gossip.iter().map(|(.., digest)| digest.window).max().expect("of the job"));
    let newer = Digest { window: newest + 1, ..gossip[0].2.clone() };
    let taken = std::thread::scope(|scope| {
        let judging = scope.spawn(|| Judge::default().judge(&copy, now_ns));
        let taken = board.try_lock().is_ok_and(|mut board| board.receive(&node, newer, now_ns));
        assert_eq!(judging.join().expect("of the job").expect("judged"), alone);
        taken
    });
    assert!(taken && board.lock().expect("of the job").knows(&node, newest + 1) && !copy.knows(&node, newest + 1));
}
