//! Hangs found from how far each rank got.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use observed::{Doing, InCall, Input, Observation, Progress, Rules, SyncCall, hex, progress_of};
use proptest::prelude::*;

use super::*;

const S: i64 = 1_000_000_000;

/// How far a rank got, and the call that it is in.
type Stand = (Progress, Option<InCall>);

/// Rank `rank` of four has entered the collective of position `entered`, and left that of
/// `completed`.
fn at(rank: i32, comm: u64, entered: u64, completed: u64) -> Stand {
    let progress = Progress {
        node: format!("n{rank}").into(),
        pid: 1,
        rank,
        nranks: Some(4),
        comm_hash: comm,
        entered: Some(entered),
        ..Progress::default()
    };
    let call = InCall {
        node: format!("n{rank}").into(),
        pid: 1,
        func: "all_reduce".into(),
        comm_hash: Some(comm),
        rank: Some(rank),
        nranks: Some(4),
        comm_seq: Some(completed + 1),
        since_ns: 10 * S,
        ..InCall::default()
    };
    (progress, (entered > completed).then_some(call))
}

/// The same on a communicator of ranks 2 and 3.
fn pair((mut p, mut call): Stand) -> Stand {
    (p.nranks, p.rank) = (Some(2), p.rank - 2);
    if let Some(call) = &mut call {
        (call.nranks, call.rank) = (Some(2), Some(p.rank));
    }
    (p, call)
}

fn input_of(stands: Vec<Stand>, until_ns: i64) -> Input {
    let (progress, calls): (Vec<_>, Vec<_>) = stands.into_iter().unzip();
    Input { progress, in_calls: calls.into_iter().flatten().collect(), until_ns, ..Input::default() }
}

fn find_in(stands: Vec<Stand>, until_ns: i64) -> Option<Hang> {
    with(stands, &[], until_ns)
}

fn with(stands: Vec<Stand>, doing: &[(i32, Activity)], until_ns: i64) -> Option<Hang> {
    let doing =
        doing.iter().map(|(rank, activity)| Doing { node: format!("n{rank}").into(), pid: 1, activity: *activity });
    hang_in(&Input { doing: doing.collect(), ..input_of(stands, until_ns) })
}

fn hang_in(input: &Input) -> Option<Hang> {
    match find(input, &Rules::default()) {
        Found::Hang(hang) => Some(*hang),
        Found::Nothing | Found::Early(_) => None,
    }
}

fn not_heard(comm: u64, rank: i32) -> NotHeard {
    NotHeard::new(hex(comm), [rank].into_iter().collect())
}

fn missing(hang: &Hang) -> Vec<i32> {
    hang.missing.iter().map(|m| m.who.rank).collect()
}

#[test]
fn the_rank_that_did_not_come_is_missing_and_only_after_a_while() {
    let job = || vec![at(0, 1, 8, 7), at(1, 1, 8, 7), at(2, 1, 7, 7), at(3, 1, 8, 7)];
    assert_eq!(find_in(job(), 11 * S), None);
    let hang = find_in(job(), 60 * S).unwrap();
    assert_eq!(missing(&hang), [2]);
    assert_eq!(
        (hang.missing[0].absence, hang.missing[0].call.position.unwrap(), hang.missing[0].holds_up),
        (Absence::NotEntered, 8, 3)
    );
    assert_eq!((hang.waiting.len(), hang.since_ns), (3, Some(10 * S)));
}

#[test]
fn who_waits_elsewhere_is_not_to_blame() {
    // Ranks 0 and 1 wait for 2, which waits in another communicator for 3, which computes.
    let job = vec![
        at(0, 1, 8, 7),
        at(1, 1, 8, 7),
        at(2, 1, 7, 7),
        at(3, 1, 7, 7),
        pair(at(2, 2, 5, 4)),
        pair(at(3, 2, 4, 4)),
    ];
    let hang = find_in(job, 60 * S).unwrap();
    assert_eq!(missing(&hang), [3]);
    assert_eq!(hang.missing[0].holds_up, 3);
}

#[test]
fn who_is_in_but_never_leaves_is_stuck() {
    let hang = find_in(vec![at(0, 1, 9, 8), at(1, 1, 9, 8), at(2, 1, 6, 5), at(3, 1, 9, 8)], 60 * S).unwrap();
    assert_eq!(missing(&hang), [2]);
    assert_eq!((hang.missing[0].absence, hang.missing[0].call.position.unwrap()), (Absence::Stuck, 6));
}

#[test]
fn a_call_that_all_have_entered_and_none_leaves_is_a_hang_of_nobody_known() {
    let job = || (0..4).map(|rank| at(rank, 1, 118, 117)).collect::<Vec<_>>();
    // It may take long.
    let early = |until_s: i64| match find(&input_of(job(), until_s * S), &Rules::default()) {
        Found::Early(Early { ranks, func, for_ns, hang_ns }) => Some((ranks, func, for_ns / S, hang_ns / S)),
        Found::Nothing | Found::Hang(_) => None,
    };
    assert_eq!(early(12), None);
    assert_eq!(early(14), Some((4, "all_reduce".to_owned(), 4, 9)));
    let hang = find_in(job(), 20 * S).unwrap();
    assert_eq!((hang.missing.len(), hang.waiting.len(), hang.since_ns), (0, 4, Some(10 * S)));
    let jam = Jam { comm_hash: hex(1), func: "all_reduce".into(), position: 118, ranks: 4 };
    assert_eq!(hang.jammed, [jam]);
    // The devices may compute.
    let devices = |until_ns: i64| {
        let mut input = input_of(job(), until_ns);
        let wait =
            |call: &InCall| SyncCall { node: Arc::clone(&call.node), pid: 1, start_ns: call.since_ns, duration_ns: 0 };
        input.syncing = std::mem::take(&mut input.in_calls).iter().map(wait).collect();
        hang_in(&input)
    };
    assert_eq!(devices(60 * S), None);
    assert_eq!(devices(71 * S).unwrap().jammed.len(), 1);
    // Everybody sleeps or spins: that names nobody.
    let awake = [(0, Activity::Sleeping), (1, Activity::Running), (2, Activity::BlockIo), (3, Activity::Sleeping)];
    assert_eq!(with(job(), &awake, 14 * S), None);
    let hang = with(job(), &awake, 20 * S).unwrap();
    assert_eq!((hang.missing.len(), hang.waiting[2].activity), (0, Some(Activity::BlockIo)));
    // One that is not in the data may be it.
    assert_eq!(find_in(job().split_off(1), 14 * S).unwrap().not_heard, [not_heard(1, 0)]);
}

#[test]
fn a_process_that_is_stopped_in_the_call_that_all_have_entered_is_named() {
    let job = || (0..4).map(|rank| at(rank, 1, 118, 117)).collect::<Vec<_>>();
    let asleep = |stopped: i32| {
        (0..4).map(|r| (r, if r == stopped { Activity::Stopped } else { Activity::Sleeping })).collect::<Vec<_>>()
    };
    assert_eq!(with(job(), &asleep(2), 12 * S), None);
    let hang = with(job(), &asleep(2), 14 * S).unwrap();
    assert_eq!(missing(&hang), [2]);
    let m = &hang.missing[0];
    assert_eq!((m.absence, m.call.position.unwrap(), m.holds_up), (Absence::Stopped, 118, 3));
    assert_eq!((m.activity, hang.waiting.len(), hang.jammed.len()), (Some(Activity::Stopped), 3, 0));
    // One that was killed in it likewise.
    let hang = with(job(), &[(1, Activity::Ended)], 14 * S).unwrap();
    assert_eq!((missing(&hang), hang.missing[0].absence), (vec![1], Absence::Gone));
    // One that was stopped after it enqueued what the devices of all others work on.
    let mut input = input_of(job(), 14 * S);
    let calls = std::mem::take(&mut input.in_calls);
    let others = calls.iter().filter(|call| call.rank != Some(2));
    let wait = |call: &InCall| SyncCall {
        node: Arc::clone(&call.node),
        pid: call.pid,
        start_ns: call.since_ns,
        duration_ns: 0,
    };
    input.syncing = others.map(wait).collect();
    assert_eq!(hang_in(&input), None, "devices may compute");
    let of_stopped = calls.iter().find(|call| call.rank == Some(2)).unwrap();
    input.doing = vec![Doing { node: Arc::clone(&of_stopped.node), pid: of_stopped.pid, activity: Activity::Stopped }];
    let hang = hang_in(&input).unwrap();
    let m = &hang.missing[0];
    assert_eq!((missing(&hang), m.absence, m.call.position, m.holds_up), (vec![2], Absence::Stopped, Some(118), 3));
    assert_eq!((m.inside.is_none(), hang.jammed.len(), hang.waiting.len()), (true, 0, 3));
    // A tool that reads its stacks traces it for a moment.
    input.doing[0].activity = Activity::Traced;
    assert_eq!(hang_in(&input), None);
    // Rank 3 has not come to the collective of another communicator: that explains the wait.
    input.doing[0].activity = Activity::Stopped;
    let pair_of = |rank: i32, entered: u64| pair(at(rank, 2, entered, entered)).0;
    input.progress.extend([pair_of(2, 6), pair_of(3, 5)]);
    input.syncing.retain(|sync| *sync.node != *"n3");
    let wait = SyncCall { node: "n2".into(), ..input.syncing[0].clone() };
    input.syncing.push(wait);
    input.doing[0].node = "n0".into();
    input.syncing.retain(|sync| *sync.node == *"n2");
    assert_eq!(missing(&hang_in(&input).unwrap()), [3]);
    // Stopped before it entered, and stopped after others were let through.
    let before = vec![at(0, 1, 8, 7), at(1, 1, 8, 7), at(2, 1, 7, 7), at(3, 1, 8, 7)];
    let m = &with(before, &asleep(2), 60 * S).unwrap().missing[0];
    assert_eq!((m.who.rank, m.absence, m.activity), (2, Absence::NotEntered, Some(Activity::Stopped)));
    let behind = vec![at(0, 1, 9, 8), at(1, 1, 9, 8), at(2, 1, 8, 7), at(3, 1, 9, 8)];
    let m = &with(behind, &asleep(2), 60 * S).unwrap().missing[0];
    assert_eq!((m.who.rank, m.absence, m.call.position.unwrap()), (2, Absence::Stopped, 8));
    // All of them (a job that is suspended).
    let all: Vec<_> = (0..4).map(|rank| (rank, Activity::Stopped)).collect();
    assert_eq!(missing(&with(job(), &all, 60 * S).unwrap()), [0, 1, 2, 3]);
}

#[test]
fn who_ended_after_it_had_left_the_call_that_others_wait_in_is_not_to_blame() {
    // Rank 0 has not come to the reduction, from which ranks 1 and 3 went on, as all but its root may.
    // Rank 1 has ended since.
    let stands = vec![at(0, 1, 7, 7), at(1, 1, 8, 8), at(2, 1, 8, 7), at(3, 1, 8, 8)];
    let doing = vec![Doing { node: "n1".into(), pid: 1, activity: Activity::Ended }];
    let mut input = Input { doing, ..input_of(stands, 60 * S) };
    assert_eq!(missing(&hang_in(&input).unwrap()), [0, 1], "it may have ended in it");
    let made = Observation::test_call(1, 1, "reduce", 8, 9 * S, S / 1_000);
    input.observations.push(Observation { comm_seq: Some(8), ..made });
    assert_eq!(missing(&hang_in(&input).unwrap()), [0]);
}

#[test]
fn who_is_in_a_call_that_nobody_leaves_is_not_to_blame_elsewhere() {
    let job = |since_ns: i64| {
        let mut in_pair = [pair(at(2, 2, 5, 4)), pair(at(3, 2, 5, 4))];
        in_pair.iter_mut().flat_map(|(_, call)| call).for_each(|call| call.since_ns = since_ns);
        let [a, b] = in_pair;
        vec![at(0, 1, 8, 7), at(1, 1, 8, 7), at(2, 1, 7, 7), at(3, 1, 7, 7), a, b]
    };
    // Even where that lasts for less than a hang does.
    assert_eq!(find_in(job(18 * S), 20 * S), None);
    let hang = find_in(job(10 * S), 20 * S).unwrap();
    assert_eq!((hang.missing.len(), hang.jammed.len(), hang.jammed[0].ranks), (0, 1, 2));
    let hang = with(job(18 * S), &[(3, Activity::Traced)], 20 * S).unwrap();
    assert_eq!((missing(&hang), hang.missing[0].holds_up), (vec![3], 3));
}

#[test]
fn a_rank_that_was_not_heard_is_named() {
    let hang = find_in(vec![at(0, 1, 8, 7), at(1, 1, 8, 7), at(3, 1, 8, 7)], 60 * S).unwrap();
    assert_eq!(hang.not_heard, [not_heard(1, 2)]);
}

#[test]
fn progress_comes_from_finished_and_open_calls() {
    let call = |rank: i32, seq: u64| Observation {
        node: format!("n{}", rank / 2).into(),
        pid: i64::from(rank),
        nranks: Some(8),
        comm_seq: Some(seq),
        ..Observation::test_call(rank, 1, "all_reduce", seq, seq.cast_signed() * S / 10, S / 1_000)
    };
    let calls = (0..100).flat_map(|seq| (0..8).map(move |rank| (rank, seq))).map(|(rank, seq)| call(rank, seq));
    let mut input = Input { observations: calls.collect(), until_ns: 60 * S, ..Input::default() };
    // Step 60: rank 3 does not come, the others are in the call; what follows has not happened.
    let open: Vec<Observation> = input.observations.iter().filter(|o| o.seq == 60 && o.rank != 3).cloned().collect();
    input.observations.retain(|o| o.seq < 60);
    input.in_calls = open.iter().map(InCall::of).collect();
    input.progress = progress_of(&input.observations, &input.in_calls);
    assert_eq!(input.progress.len(), 8);
    let hang = hang_in(&input).unwrap();
    assert_eq!(missing(&hang), [3]);
    assert_eq!((hang.missing[0].call.position.unwrap(), hang.waiting.len(), hang.missing[0].holds_up), (60, 7, 7));
    input.in_calls.clear();
    input.progress = progress_of(&input.observations, &[]);
    assert_eq!(hang_in(&input), None);
}

/// Who waits for whom by the rule's words alone, pair by pair: who is to blame, and how many wait
/// for each.
fn pair_by_pair(stands: &[Stand], halted: &[i32]) -> Vec<(i32, usize)> {
    let mut waits: BTreeMap<i32, BTreeSet<i32>> = BTreeMap::new();
    for (p, call) in stands.iter().filter(|(p, call)| call.is_some() && !halted.contains(&p.rank)) {
        let here = call.as_ref().and_then(|call| call.comm_seq);
        let others = || stands.iter().filter(|(q, _)| q.comm_hash == p.comm_hash && q.rank != p.rank);
        let late = |(q, in_call): &&Stand| {
            let is_in = in_call.as_ref().is_some_and(|call| call.comm_seq == here);
            q.entered < here || q.entered == here && is_in && halted.contains(&q.rank)
        };
        let late: BTreeSet<i32> = others().filter(late).map(|(q, _)| q.rank).collect();
        let jammed = late.is_empty() && others().all(|(q, _)| q.entered <= here);
        if !late.is_empty() || jammed {
            waits.entry(p.rank).or_default().extend(late);
        }
    }
    let all: BTreeSet<i32> = waits.values().flatten().copied().collect();
    let upstream = |rank: i32| {
        let mut reached = BTreeSet::from([rank]);
        while let Some((more, _)) = waits.iter().find(|(who, on)| !reached.contains(who) && !on.is_disjoint(&reached)) {
            reached.insert(*more);
        }
        reached.len() - 1
    };
    all.into_iter().filter(|rank| !waits.contains_key(rank)).map(|rank| (rank, upstream(rank))).collect()
}

proptest! {
    /// Ranks of one process each that take part in two communicators, each somewhere in its calls.
    #[test]
    fn the_graph_of_calls_says_what_each_pair_of_ranks_says(
        ranks in proptest::collection::vec(((0u64..4, 0u64..2), (0u64..4, 0u64..2)), 2..9),
        halted in proptest::collection::vec(0i32..9, 0..3),
    ) {
        let mut stands = Vec::new();
        for (rank, (one, other)) in (0i32..).zip(&ranks) {
            for (comm, (completed, ahead)) in [(1, one), (2, other)] {
                let mut stand = at(rank, comm, completed + ahead, *completed);
                stand.0.nranks = None;
                stands.push(stand);
            }
        }
        let expected = pair_by_pair(&stands, &halted);
        let doing: Vec<(i32, Activity)> = halted.iter().map(|rank| (*rank, Activity::Stopped)).collect();
        let hang = with(stands, &doing, 60 * S);
        let waits = hang.as_ref().is_some_and(|hang| hang.missing.iter().any(|m| m.holds_up > 0));
        let mut found: Vec<(i32, usize)> =
            hang.iter().flat_map(|hang| &hang.missing).filter(|_| waits).map(|m| (m.who.rank, m.holds_up)).collect();
        found.sort_unstable();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn ranks_that_were_not_heard_are_listed_as_ranges_once_a_communicator() {
    let stand = |rank| {
        let (p, call) = at(rank, 1, 8, 7);
        (Progress { nranks: Some(65_536), ..p }, call)
    };
    let job: Vec<Stand> = [0, 1, 5, 6, 7, 40].map(stand).into();
    let hang = find_in(job, 60 * S).unwrap();
    let [absent] = hang.not_heard.as_slice() else { panic!("{:?}", hang.not_heard) };
    assert_eq!((absent.ranks.to_string().as_str(), absent.count), ("2-4,8-39,41-65535", 65_530));
    assert_eq!(hang.waiting.len(), 6);
    let report = crate::Report { verdict: crate::Verdict::Hang(hang), ..crate::Report::default() };
    let text = crate::text(&report);
    assert!(text.contains("65530 ranks of communicator 0000000000000001 were not heard"), "{text}");
    assert!(text.contains("They are 2-4,8-39,41-65535."), "{text}");
}
