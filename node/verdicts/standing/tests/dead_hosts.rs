//! Hosts of a job that are gone: its verdict must not look complete without them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use digest::{Collector, ReferenceClock, end_of, reference_id, window_of};
use standing::{Board, DeadHosts, Judge, Presence, Standing};
use verdicts::Observation;

const MS: i64 = 1_000_000;
/// A window long after that in which the second host was last heard.
const LATER: i64 = 80;

/// Steps of 100 ms of some ranks, each on the host that this says, in a communicator of so many. Each
/// host's clock is a second ahead of that of the one before.
fn steps_on(n: i64, nranks: i32, placed: &[(i32, i64)]) -> Vec<Observation> {
    let call = |step: i64, rank: i32, host: i64| Observation {
        node: format!("n{host}").into(),
        pid: 100 + i64::from(rank),
        nranks: Some(nranks),
        ..Observation::test_call(
            rank,
            1,
            "all_reduce",
            step.unsigned_abs(),
            (step * 100 + 50 + host * 1_000) * MS,
            50 * MS,
        )
    };
    (0..n).flat_map(|step| placed.iter().map(move |(rank, host)| call(step, *rank, *host))).collect()
}

/// Sends the digests of these hosts' ranks in these windows, and judges these; the last verdict.
fn judged(board: &mut Board, judge: &mut Judge, hosts: &[i64], windows: std::ops::Range<i64>) -> Standing {
    // Four ranks on two hosts.
    judged_of(&steps_on(500, 4, &[(0, 0), (1, 0), (2, 1), (3, 1)]), board, judge, hosts, windows)
}

/// The same of these calls.
fn judged_of(
    calls: &[Observation],
    board: &mut Board,
    judge: &mut Judge,
    hosts: &[i64],
    windows: std::ops::Range<i64>,
) -> Standing {
    let mut last = None;
    let mut collectors: BTreeMap<i64, Collector> = hosts.iter().map(|host| (*host, Collector::default())).collect();
    for window in windows {
        for (host, collector) in &mut collectors {
            // The second host's clock is two windows ahead.
            let own = window + 2 * host;
            let ended = |call: &&Observation| window_of(call.entry_ns + call.duration_ns) == own;
            let here = |call: &&Observation| *call.node == *format!("n{host}") && ended(call);
            calls.iter().filter(here).for_each(|call| collector.push(call.clone()));
            let mut digest = collector.close(own);
            let offset_us = 1_000_000 * host;
            digest.clock = Some(ReferenceClock { reference: reference_id("n0"), offset_us, bound_us: 0 });
            board.receive(&format!("n{host}"), digest, end_of(window));
        }
        last = judge.judge(board, end_of(window)).or(last);
    }
    last.expect("judged")
}

fn names<const N: usize>(names: [&str; N]) -> Arc<BTreeSet<String>> {
    Arc::new(names.into_iter().map(str::to_owned).collect())
}

/// Asked, answered, and who is missing.
fn coverage(standing: &Standing) -> (usize, usize, Vec<(&str, &str)>) {
    let of = &standing.report.coverage;
    (of.asked, of.answered, of.missing.iter().map(|(node, why)| (node.as_str(), why.as_str())).collect())
}

#[test]
fn a_dead_host_of_the_job_is_missing_as_long_as_it_is_listed() {
    let (mut board, mut judge) = (Board::default(), Judge::default());
    board.expect_of(&names(["n0", "n1"]));
    assert_eq!(coverage(&judged(&mut board, &mut judge, &[0, 1], 0..12)), (2, 2, vec![]));
    let presence = [("n0".to_owned(), Presence::Live), ("n1".to_owned(), Presence::Dead)];
    board.presence(&presence.into());
    board.expect_of(&names(["n0"]));
    board.miss(DeadHosts { of_job: names(["n1"]), ..DeadHosts::default() });
    let dead = (2, 1, vec![("n1", "dead")]);
    assert_eq!(coverage(&judged(&mut board, &mut judge, &[0], 12..20)), dead);
    assert_eq!(coverage(&judged(&mut board, &mut judge, &[0], 20..LATER)), dead);
    board.miss(DeadHosts::default());
    assert_eq!(coverage(&judged(&mut board, &mut judge, &[0], LATER..LATER + 8)), (1, 1, vec![]));
}

#[test]
fn a_judge_that_never_heard_the_dead_host_knows_it_is_missing() {
    let (mut board, mut judge) = (Board::default(), Judge::default());
    board.expect_of(&names(["n0"]));
    board.miss(DeadHosts { of_job: names(["n1"]), perhaps: names(["n7"]), ..DeadHosts::default() });
    // Ranks 2 and 3 of 4 are not heard: n7, of which nothing is known, may have had them.
    let missing = vec![("n1", "dead"), ("n7", "dead")];
    assert_eq!(coverage(&judged(&mut board, &mut judge, &[0], 0..12)), (3, 1, missing));
    let (mut board, mut judge) = (Board::default(), Judge::default());
    board.expect_of(&names(["n0", "n1"]));
    board.miss(DeadHosts { perhaps: names(["n7"]), ..DeadHosts::default() });
    assert_eq!(coverage(&judged(&mut board, &mut judge, &[0, 1], 0..12)), (2, 2, vec![]), "all ranks are heard");
}

/// The coverage of a job of four ranks that began anew on these hosts after n1 had died, which had
/// sent digests of the first windows; and what is noted.
fn requeued(nranks: i32, placed: &[(i32, i64)], heard_before: bool) -> (usize, usize, Vec<(String, String)>) {
    let (mut board, mut judge) = (Board::default(), Judge::default());
    board.expect_of(&names(["n0", "n1"]));
    if heard_before {
        judged(&mut board, &mut judge, &[0, 1], 0..12);
    }
    let presence = [("n0", Presence::Live), ("n1", Presence::Dead), ("n2", Presence::Live)];
    board.presence(&presence.map(|(node, presence)| (node.to_owned(), presence)).into());
    board.expect_of(&names(["n0", "n2"]));
    board.miss(DeadHosts { of_job: names(["n1"]), perhaps: names(["n7"]), ranks: Some(4) });
    let calls = steps_on(500, nranks, placed);
    let standing = judged_of(&calls, &mut board, &mut judge, &[0, 2], 40..LATER);
    let (asked, answered, missing) = coverage(&standing);
    (asked, answered, missing.into_iter().map(|(node, why)| (node.to_owned(), why.to_owned())).collect())
}

#[test]
fn a_dead_host_that_may_have_had_ranks_is_not_missing_where_all_are_heard_from_others() {
    let on_two = [(0, 0), (1, 0), (2, 2), (3, 2)];
    for heard_before in [false, true] {
        // (n1 had some: of another run of the job, perhaps, that has the same ranks.)
        assert_eq!(requeued(4, &on_two, heard_before), (3, 2, vec![("n1".to_owned(), "dead".to_owned())]));
        let missing = |(_, _, missing): (usize, usize, Vec<(String, String)>)| -> Vec<String> {
            missing.into_iter().map(|(node, _)| node).collect()
        };
        assert_eq!(missing(requeued(4, &on_two[..3], heard_before)), ["n1", "n7"], "rank 3 is not heard");
        assert_eq!(missing(requeued(2, &[(0, 0), (1, 0), (0, 2)], heard_before)), ["n1", "n7"], "nor in another");
        // Ranks 2 and 3 were heard from n1 alone.
        assert_eq!(missing(requeued(4, &on_two[..2], heard_before)), ["n1", "n7"]);
    }
}

#[test]
fn hosts_that_may_run_the_job_are_noted() {
    let (mut board, mut judge) = (Board::default(), Judge::default());
    board.expect_of(&names(["n0", "n1"]));
    board.unclear(3);
    let standing = judged(&mut board, &mut judge, &[0, 1], 0..12);
    assert!(standing.report.coverage.notes[0].starts_with("3 hosts in other cells"), "{:?}", standing.report.coverage);
    board.miss(DeadHosts { ranks: Some(4), ..DeadHosts::default() });
    assert!(judged(&mut board, &mut judge, &[0, 1], 12..24).report.coverage.notes.is_empty(), "all ranks are heard");
}
