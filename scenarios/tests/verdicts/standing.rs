//! The standing verdict over simulated jobs, window by window.

use std::collections::BTreeMap;
use std::sync::Arc;

use digest::{Collector, Digest, ReferenceClock, Resent, WINDOW_NS, end_of, reference_id, window_of};
use scenarios::simulate::{Grid, Job, Noise, Slow, pid};
use standing::{Board, Change, GRACE_NS, Judge, Presence, Standing};
use verdicts::{ClockOffset, InCall, Input, Observation, Verdict};

const MS: i64 = 1_000_000;

/// What each node of a job gossips, in order of time: (when, node, digest).
pub(super) fn gossiped(job: &Job, seed: u64) -> Vec<(i64, String, Digest)> {
    gossiped_for(job, seed, 0, |_, _| ()).1
}

/// When a job ends, and what its nodes gossip until so many windows later; `at_the_end` may add to
/// the digest of the last window of the job.
fn gossiped_for(
    job: &Job,
    seed: u64,
    windows_after: i64,
    at_the_end: impl Fn(&mut Collector, &mut Digest),
) -> (i64, Vec<(i64, String, Digest)>) {
    gossiped_of(job.observe(seed), windows_after, at_the_end)
}

/// The same of any rows.
fn gossiped_of(
    rows: Input,
    windows_after: i64,
    at_the_end: impl Fn(&mut Collector, &mut Digest),
) -> (i64, Vec<(i64, String, Digest)>) {
    let mut by_node: BTreeMap<Arc<str>, Vec<Observation>> = BTreeMap::new();
    for seen in rows.observations {
        by_node.entry(Arc::clone(&seen.node)).or_default().push(seen);
    }
    let mut all = Vec::new();
    for (node, calls) in by_node {
        let clock = rows.clocks[&*node];
        let mut collector = Collector::default();
        calls.into_iter().for_each(|call| collector.push(call));
        let (first, last) = (window_of(rows.since_ns + clock.offset_ns), window_of(rows.until_ns + clock.offset_ns));
        for window in first..=last + windows_after {
            let mut digest = collector.close(window);
            if window == last {
                at_the_end(&mut collector, &mut digest);
            }
            digest.clock = Some(ReferenceClock {
                reference: reference_id("n0"),
                offset_us: clock.offset_ns / 1_000,
                bound_us: (clock.bound_ns / 1_000) as u32 + 1,
            });
            all.push((end_of(window) - clock.offset_ns, node.to_string(), digest));
        }
    }
    all.sort_by_key(|(at, node, _)| (*at, node.clone()));
    (rows.until_ns, all)
}

pub(super) fn live(nodes: usize) -> BTreeMap<String, Presence> {
    (0..nodes).map(|n| (format!("n{n}"), Presence::Live)).collect()
}

/// The verdicts that a board gives as the digests come, each so long after it was made.
fn watch(gossip: &[(i64, String, Digest)], delay_ns: impl Fn(usize) -> i64) -> Vec<Standing> {
    let (mut board, mut judge) = (Board::default(), Judge::default());
    let mut coming: Vec<(i64, usize)> = (0..gossip.len()).map(|i| (gossip[i].0 + delay_ns(i), i)).collect();
    coming.sort_unstable();
    let mut verdicts = Vec::new();
    for (now_ns, i) in coming {
        board.receive(&gossip[i].1, gossip[i].2.clone(), now_ns);
        board.presence(&live(8));
        let due = judge.is_due(&board, now_ns);
        let standing = judge.judge(&board, now_ns);
        assert!(due || standing.is_none(), "judged when it was not due");
        verdicts.extend(standing);
    }
    verdicts
}

#[test]
fn a_judge_is_due_once_a_window() {
    let (mut board, mut judge) = (Board::default(), Judge::default());
    let (mut due, mut judged) = (0, 0);
    let gossip = gossiped(&Job::default(), 1);
    for (now_ns, node, digest) in &gossip {
        board.receive(node, digest.clone(), *now_ns);
        board.presence(&live(8));
        due += usize::from(judge.is_due(&board, *now_ns));
        judged += usize::from(judge.judge(&board, *now_ns).is_some());
    }
    // Once more, when the windows are first counted by a clock.
    assert!(judged > 10 && due <= judged + 1 && 2 * due < gossip.len(), "{due}, {judged} of {}", gossip.len());
}

fn named(standing: &Standing) -> Option<i32> {
    match &standing.report.verdict {
        Verdict::Rank { culprit, .. } => Some(culprit.rank),
        _ => None,
    }
}

#[test]
fn a_late_rank_is_named_soon_and_no_longer_than_it_is_late() {
    let mut delays = Vec::new();
    for seed in 0..6 {
        // Late from second 4 to second 10 of 16, of steps of 50 ms that become 75 ms.
        let slow = |extra_ns, from_step| Slow { rank: 3, extra_ns, from_step };
        let job =
            Job { steps: 260, own_ns: 50 * MS, slow: vec![slow(25 * MS, 80), slow(-25 * MS, 160)], ..Job::default() };
        let verdicts = watch(&gossiped(&job, seed), |_| 200 * MS);
        let begun = job.observe(seed).since_ns + 80 * 51 * MS;
        let ended = begun + 80 * 76 * MS;
        let first = verdicts.iter().find(|v| named(v).is_some()).expect("named");
        delays.push((end_of(first.window) - begun) / MS);
        for v in &verdicts {
            let at = end_of(v.window);
            match named(v) {
                Some(rank) => assert!(rank == 3 && (begun..ended + 4_500 * MS).contains(&at), "{}", (at - ended) / MS),
                None => assert!(at < begun + 3_000 * MS || at > ended, "not named after {} ms", (at - begun) / MS),
            }
        }
        let changes = verdicts.windows(2).filter(|w| named(&w[0]) != named(&w[1])).count();
        assert_eq!(changes, 2, "it flaps");
    }
    assert!(delays.iter().all(|d| *d <= 2_600), "{delays:?} ms");
}

#[test]
fn a_rank_is_named_where_steps_are_long_though_its_small_groups_meet_often() {
    // Steps of 4 s that become 9 s; eight meetings of each tensor group in one.
    let slow = vec![Slow { rank: 5, extra_ns: 5_000 * MS, from_step: 0 }];
    let job = Job { ranks: 16, ranks_per_node: 4, steps: 14, own_ns: 4_000 * MS, slow, ..Job::default() };
    let grid = Grid { tensor: 4, data: 4, microbatches: 4, job, ..Grid::default() };
    let verdicts = watch(&gossiped_of(grid.observe(1), 0, |_, _| ()).1, |_| 100 * MS);
    // By its process: before the job's communicator is heard of, ranks are those of a group.
    let named = |standing: &Standing| match &standing.report.verdict {
        Verdict::Rank { culprit, .. } => Some(culprit.pid),
        _ => None,
    };
    let named: Vec<Option<i64>> = verdicts.iter().map(named).collect();
    assert!(named.iter().all(|process| process.is_none_or(|process| process == pid(5))), "{named:?}");
    assert!(named.iter().filter(|process| process.is_some()).count() > named.len() / 2, "{named:?}");
}

#[test]
fn a_job_that_pauses_is_not_judged_by_what_was_minutes_ago() {
    // Steps of 12 s, then nothing for longer than a minute.
    let slow = vec![Slow { rank: 5, extra_ns: 2_000 * MS, from_step: 0 }];
    let job = Job { steps: 20, own_ns: 10_000 * MS, slow, ..Job::default() };
    let (ended_ns, gossip) = gossiped_for(&job, 1, 150, |_, _| ());
    let verdicts = watch(&gossip, |_| 100 * MS);
    let before = verdicts.iter().rfind(|v| end_of(v.window) < ended_ns).expect("judged");
    assert_eq!(named(before), Some(5), "{:?}", before.report.verdict);
    let paused = verdicts.iter().filter(|v| end_of(v.window) > ended_ns + 65_000 * MS);
    let named: Vec<Option<i32>> = paused.map(named).collect();
    assert!(named.len() > 10 && named.iter().all(Option::is_none), "{named:?}");
}

#[test]
fn any_two_agents_give_the_same_verdict_of_the_same_window() {
    let job = Job {
        steps: 200,
        own_ns: 40 * MS,
        slow: vec![Slow { rank: 5, extra_ns: 30 * MS, from_step: 60 }],
        ..Job::default()
    };
    let gossip = gossiped(&job, 3);
    // One hears at once, the other late and out of order, but within the grace.
    let a = watch(&gossip, |_| 50 * MS);
    let b = watch(&gossip, |i| ((i as i64 * 7_919) % 1_500) * MS);
    let of_b: BTreeMap<i64, &Standing> = b.iter().map(|v| (v.window, v)).collect();
    let mut compared = 0;
    // Before a node was heard for the first time nobody waits for it.
    for v in a.iter().filter(|v| end_of(v.window) > gossip[0].0 + 2 * GRACE_NS) {
        if let Some(other) = of_b.get(&v.window) {
            assert_eq!(v.report.verdict, other.report.verdict, "window {}", v.window);
            compared += 1;
        }
    }
    assert!(compared > 5 && a.iter().any(|v| named(v) == Some(5)), "{compared} of {}", a.len());
}

#[test]
fn nobody_is_named_in_a_healthy_job_however_often_it_is_judged() {
    let mut windows = 0;
    for seed in 0..4 {
        let noise = Noise::Spikes { sigma: 0.1, chance: 0.05, most: 3.0 };
        let job = Job { steps: 600, own_ns: 20 * MS, noise, loss: 0.01, ..Job::default() };
        for v in watch(&gossiped(&job, seed), |_| 100 * MS) {
            windows += 1;
            assert!(named(&v).is_none(), "{:#?}", v.report.verdict);
        }
    }
    assert!(windows > 100, "{windows}");
}

#[test]
fn a_window_is_judged_without_a_silent_node_after_the_grace_and_says_so() {
    let job = Job { steps: 100, own_ns: 50 * MS, ..Job::default() };
    let gossip: Vec<_> = gossiped(&job, 1);
    let middle = gossip[gossip.len() / 2].0;
    // n3 falls silent in the middle.
    let gossip: Vec<_> = gossip.into_iter().filter(|(at, node, _)| node != "n3" || *at < middle).collect();
    let verdicts = watch(&gossip, |_| 10 * MS);
    let late = verdicts.iter().find(|v| !v.silent.is_empty()).expect("judged without n3");
    assert_eq!((late.silent.as_slice(), late.heard), (["n3".to_owned()].as_slice(), 3));
    assert!(late.report.coverage.missing.iter().any(|(node, _)| node == "n3"));
}

#[test]
fn a_host_of_the_job_from_which_nothing_came_is_missing() {
    let gossip = gossiped(&Job { steps: 60, ..Job::default() }, 1);
    let (mut board, mut judge) = (Board::default(), Judge::default());
    let hosts = Arc::new((0..5).map(|n| format!("n{n}")).collect());
    let mut last = None;
    for (now_ns, node, digest) in &gossip {
        board.receive(node, digest.clone(), *now_ns);
        board.presence(&live(5));
        board.expect_of(&hosts);
        last = judge.judge(&board, *now_ns).or(last);
    }
    let coverage = &last.expect("judged without n4").report.coverage;
    assert_eq!((coverage.asked, coverage.answered), (5, 4));
    assert_eq!(coverage.missing, [("n4".to_owned(), "no digest yet".to_owned())]);
}

#[test]
fn a_rank_that_stops_is_a_hang_of_that_rank() {
    let job = Job { steps: 60, own_ns: 50 * MS, clock_offset_ns: 0, ..Job::default() };
    let rows = job.observe(2);
    let (mut board, mut judge) = (Board::default(), Judge::default());
    let stop = 40u64;
    let entered = rows.observations.iter().filter(|o| o.seq == stop).map(|o| o.entry_ns).max().unwrap();
    let mut found = None;
    let mut collectors: BTreeMap<String, Collector> = BTreeMap::new();
    for seen in rows.observations.iter().filter(|o| o.seq < stop) {
        collectors.entry(seen.node.to_string()).or_default().push(seen.clone());
    }
    for window in window_of(rows.since_ns)..window_of(entered) + 12 {
        for (node, collector) in &mut collectors {
            let waits = |o: &&Observation| o.seq == stop && o.rank != 3 && *o.node == **node;
            let inside = rows.observations.iter().filter(waits).filter(|o| end_of(window) - o.entry_ns > 1_000 * MS);
            collector.open(window, &inside.map(InCall::of).collect::<Vec<_>>());
            let mut digest = collector.close(window);
            digest.clock = Some(ReferenceClock { reference: reference_id("n0"), offset_us: 0, bound_us: 100 });
            board.receive(node, digest, end_of(window) + 100 * MS);
        }
        board.presence(&live(4));
        let standing = judge.judge(&board, end_of(window) + 100 * MS);
        if let Some(Verdict::Hang(hang)) = standing.map(|s| s.report.verdict.clone())
            && found.is_none()
        {
            assert_eq!(hang.missing.iter().map(|m| m.who.rank).collect::<Vec<_>>(), [3]);
            found = Some((end_of(window) - entered) / MS);
        }
    }
    assert!(found.is_some_and(|ms| ms <= 4_000), "{found:?} ms");
}

#[test]
fn news_are_told_once() {
    let mut change = Change::default();
    let unknown = || Verdict::Unknown { why: String::new() };
    assert!(!change.is_news(&Verdict::None) && !change.is_news(&unknown()));
    let hang = Verdict::Hang(Default::default());
    assert!(change.is_news(&hang) && !change.is_news(&hang) && !change.is_news(&unknown()));
    assert!(change.is_news(&Verdict::None) && !change.is_news(&Verdict::None));
}

#[test]
fn a_node_whose_digests_are_of_another_layout_is_missing_with_the_reason() {
    let gossip = gossiped(&Job { steps: 60, ..Job::default() }, 1);
    let (mut board, mut judge) = (Board::default(), Judge::default());
    let mut last = None;
    for (now_ns, node, digest) in &gossip {
        if node == "n3" {
            // Layout 9, whatever follows.
            let refused = digest::decode("\u{9}\0").unwrap_err();
            board.refuse(node, refused.to_string());
        } else {
            board.receive(node, digest.clone(), *now_ns);
        }
        board.presence(&live(4));
        last = judge.judge(&board, *now_ns).or(last);
    }
    let standing = last.expect("judged");
    let [(node, why)] = standing.report.coverage.missing.as_slice() else { panic!("{:?}", standing.report.coverage) };
    assert_eq!((node.as_str(), standing.report.coverage.asked), ("n3", 4));
    assert!(why.contains("layout 9") && why.contains("another version"), "{why}");
    // Once it can be read again, it counts.
    let newest = |of: &str| gossip.iter().rfind(|(_, node, _)| node == of).expect("its last");
    let (now_ns, _, digest) = newest("n3");
    board.receive("n3", digest.clone(), *now_ns);
    let after = newest("n0").2.clone();
    board.receive("n0", Digest { window: after.window + 1, ..after }, now_ns + WINDOW_NS);
    let standing = judge.judge(&board, now_ns + 2 * GRACE_NS).expect("judged");
    assert!(standing.report.coverage.missing.iter().all(|(_, why)| !why.contains("layout")));
}

/// What nodes gossip of a job that ends after its last call.
fn gossiped_to_its_end(job: &Job, seed: u64) -> (i64, Vec<(i64, String, Digest)>) {
    gossiped_for(job, seed, 150, |collector, digest| {
        let pids: Vec<u32> = collector.pids().collect();
        collector.gone(pids, digest);
    })
}

#[test]
fn a_job_that_has_ended_names_nobody_any_more_and_says_so() {
    let slow = vec![Slow { rank: 3, extra_ns: 30 * MS, from_step: 0 }];
    let job = Job { steps: 150, own_ns: 40 * MS, slow, ..Job::default() };
    let (ended_ns, gossip) = gossiped_to_its_end(&job, 5);
    let verdicts = watch(&gossip, |_| 200 * MS);
    let before = verdicts.iter().rfind(|v| end_of(v.window) < ended_ns - 500 * MS).expect("judged");
    assert_eq!(named(before), Some(3));
    let mut after = 0;
    for v in verdicts.iter().filter(|v| end_of(v.window) > ended_ns + 1_000 * MS) {
        let Verdict::Unknown { why } = &v.report.verdict else { panic!("{:?}", v.report.verdict) };
        assert_eq!(why, "the job's 8 ranks have ended", "{} ms", (end_of(v.window) - ended_ns) / MS);
        after += 1;
    }
    assert!(after > 120, "{after}");
    // Another job, on other hosts, is judged all the same.
    let other = Job { steps: 400, ..job };
    let mut both = gossip;
    both.extend(gossiped(&other, 6).into_iter().map(|(at, node, mut digest)| {
        digest.lanes.iter_mut().for_each(|lane| lane.comm_hash += 1);
        let host: usize = node[1..].parse().unwrap();
        (at, format!("n{}", host + 4), digest)
    }));
    both.sort_by_key(|(at, node, _)| (*at, node.clone()));
    let last = |verdicts: &[Standing]| {
        let until = both.iter().rfind(|(_, node, _)| node == "n4").map(|(at, ..)| *at).unwrap();
        verdicts.iter().rfind(|v| end_of(v.window) < until).cloned().expect("judged")
    };
    let standing = last(&watch(&both, |_| 200 * MS));
    assert!(end_of(standing.window) > ended_ns + 5_000 * MS, "the other job goes on");
    let Verdict::Rank { culprit, .. } = &standing.report.verdict else { panic!("{:?}", standing.report.verdict) };
    assert_eq!((culprit.rank, culprit.node.as_str()), (3, "n5"));
    assert!(standing.report.evidence.notes.iter().any(|note| note.contains("8 ranks of another job have ended")));
}

#[test]
fn collectives_that_wait_for_lost_segments_are_the_networks_and_without_these_nobodys() {
    let job = Job { steps: 120, own_ns: 40 * MS, clock_offset_ns: 0, ..Job::default() };
    let mut rows = job.observe(1);
    // In every sixth collective all leave 200 ms later, and all that follows is as much later.
    let later = |seq: u64| (seq / 6) as i64 * 200 * MS;
    for seen in &mut rows.observations {
        seen.entry_ns += later(seen.seq);
        seen.duration_ns += later(seen.seq + 1) - later(seen.seq);
    }
    rows.until_ns += later(job.steps as u64);
    rows.clocks.values_mut().for_each(|clock| *clock = ClockOffset::steady(0, 100_000));
    let hit = rows.observations.iter().filter(|seen| seen.rank == 0 && seen.seq % 6 == 5);
    let resent: Vec<i64> = hit.map(|seen| seen.entry_ns + 150 * MS).collect();
    assert_eq!(resent.len(), 20);
    let (_, mut gossip) = gossiped_of(rows, 0, |_, _| ());
    let networks = |gossip: &[(i64, String, Digest)]| {
        let verdicts = watch(gossip, |_| 100 * MS);
        let of = |standing: &Standing| match &standing.report.verdict {
            Verdict::Network(found) => Some(found.clone()),
            _ => None,
        };
        verdicts.iter().filter_map(of).next_back()
    };
    assert_eq!(networks(&gossip), None);
    let address = |n: u8| std::net::IpAddr::from([10, 0, 0, n]);
    for (_, _, digest) in gossip.iter_mut().filter(|(_, node, _)| node == "n0") {
        for at_ns in resent.iter().filter(|at_ns| window_of(**at_ns) == digest.window) {
            let at_ms = ((at_ns - (end_of(digest.window) - WINDOW_NS)) / MS) as u16;
            digest.resent.push(Resent { from: address(1), to: address(3), segments: 1, at_ms: vec![at_ms] });
        }
    }
    let found = networks(&gossip).expect("the network");
    assert!(found.share > 0.3 && found.explained > 0.8, "{found:?}");
    assert_eq!(found.flows.len(), 1);
}
