//! Hangs as programs make them, with what the whole report says of each.

use std::sync::Arc;

use observed::{Doing, InCall, Input, JobRank, Made, Pair, Payload, Progress, SyncCall};

use super::*;
use crate::{Report, Rules, Verdict, analyse, text};

const S: i64 = 1_000_000_000;
const WORLD: u64 = 0xa0;

/// A job of some ranks, one on each host, that has made 100 all_reduces on its largest
/// communicator.
struct Scene {
    input: Input,
    nranks: i32,
}

fn host(rank: i32) -> Arc<str> {
    format!("n{rank}").into()
}

fn payload(bytes: u64, datatype: &str) -> Payload {
    Payload { bytes: Some(bytes), datatype: Some(datatype.into()), reduce_op: Some("sum".into()) }
}

impl Scene {
    fn new(nranks: i32) -> Self {
        let mut scene = Self::unborn(nranks);
        (0..nranks).for_each(|rank| scene.member(WORLD, rank, (rank, nranks), 100));
        scene
    }

    /// The same before anybody made a call.
    fn unborn(nranks: i32) -> Self {
        let mut scene = Self { input: Input { until_ns: 60 * S, ..Input::default() }, nranks };
        for rank in 0..nranks {
            let of = JobRank { node: host(rank), pid: 1, job: 1, rank, nranks };
            scene.input.ranks.push(of);
            scene.input.doing.push(Doing { node: host(rank), pid: 1, activity: Activity::Sleeping });
        }
        scene
    }

    /// A rank of the job is one of a communicator, on which it has made so many all_reduces.
    fn member(&mut self, comm_hash: u64, job_rank: i32, (rank, nranks): (i32, i32), made: u64) {
        let mut progress =
            Progress { node: host(job_rank), pid: 1, rank, nranks: Some(nranks), comm_hash, ..Progress::default() };
        for position in made.saturating_sub(8)..made {
            progress.made(Made { position, func: "all_reduce".into(), root: None, payload: payload(512, "double") });
        }
        self.input.progress.push(progress);
    }

    fn progress(&mut self, comm: u64, rank: i32) -> &mut Progress {
        let place = self.input.progress.iter().position(|p| p.comm_hash == comm && *p.node == *host(rank));
        &mut self.input.progress[place.expect("a member")]
    }

    /// A rank made a collective and left it.
    fn made(&mut self, comm: u64, rank: i32, func: &str, root: Option<i32>) -> &mut Self {
        let progress = self.progress(comm, rank);
        let position = progress.entered.map_or(0, |last| last + 1);
        progress.made(Made { position, func: func.into(), root, payload: Payload::default() });
        self
    }

    /// A rank is in its next collective.
    fn inside(&mut self, comm: u64, rank: i32, func: &str, root: Option<i32>) -> &mut Self {
        self.inside_of(comm, rank, func, root, Payload::default())
    }

    fn inside_of(&mut self, comm: u64, rank: i32, func: &str, root: Option<i32>, payload: Payload) -> &mut Self {
        let known = self.input.progress.iter().position(|p| p.comm_hash == comm && *p.node == *host(rank));
        if known.is_none() {
            let nranks = self.nranks;
            self.member(comm, rank, (rank, nranks), 0);
        }
        let progress = self.progress(comm, rank);
        let position = progress.entered.map_or(0, |last| last + 1);
        progress.entered = Some(position);
        let (own, nranks) = (progress.rank, progress.nranks);
        self.input.in_calls.push(InCall {
            node: host(rank),
            pid: 1,
            func: func.into(),
            comm_hash: Some(comm),
            rank: Some(own),
            nranks,
            comm_seq: Some(position),
            root,
            payload,
            since_ns: 20 * S,
            ..InCall::default()
        });
        self
    }

    /// A rank is in a call to another.
    fn with_peer(&mut self, rank: i32, func: &str, peer: i32, tag: i32) -> &mut Self {
        self.input.in_calls.push(InCall {
            node: host(rank),
            pid: 1,
            func: func.into(),
            comm_hash: Some(WORLD),
            rank: Some(rank),
            nranks: Some(self.nranks),
            root: Some(peer),
            tag: Some(tag),
            since_ns: 20 * S,
            ..InCall::default()
        });
        self
    }

    /// A rank's host waits for its device.
    fn device(&mut self, rank: i32) -> &mut Self {
        self.input.syncing.push(SyncCall { node: host(rank), pid: 1, start_ns: 20 * S, duration_ns: 0 });
        self
    }

    fn does(&mut self, rank: i32, activity: Activity) -> &mut Self {
        let of = self.input.doing.iter_mut().find(|of| *of.node == *host(rank));
        of.expect("a rank").activity = activity;
        self
    }

    fn report(&self) -> Report {
        analyse(&self.input, &Rules::default())
    }

    fn hang(&self) -> Hang {
        match self.report().verdict {
            Verdict::Hang(hang) => hang,
            other => panic!("no hang: {other:?}"),
        }
    }

    /// The report up to its evidence.
    fn said(&self) -> String {
        let text = text(&self.report());
        let said = text.split("\nEvidence").next().unwrap_or_default().to_owned();
        assert!(said.lines().all(|line| line.starts_with("Next:") || line.chars().count() <= 80), "{said}");
        said
    }
}

fn missing(hang: &Hang) -> Vec<(i32, Absence)> {
    hang.missing.iter().map(|m| (m.who.rank, m.absence)).collect()
}

#[test]
fn one_calls_another_function_than_the_others() {
    // Small broadcasts: the root and another are past it.
    let mut scene = Scene::new(4);
    scene.inside_of(WORLD, 1, "all_reduce", None, payload(512, "double")).inside(WORLD, 3, "broadcast", Some(0));
    for rank in [0, 2] {
        scene.made(WORLD, rank, "broadcast", Some(0)).inside(WORLD, rank, "barrier", None);
    }
    let hang = scene.hang();
    assert_eq!((hang.missing.len(), hang.circles.len(), hang.not_heard.len()), (0, 0, 0));
    let of = hang.differing.as_ref().expect("calls differ");
    assert_eq!((of.position, of.difference, of.calls[0].ranks[0].rank), (100, Difference::Function, 1));
    insta::assert_snapshot!("other_function", scene.said());
}

#[test]
fn the_root_gathers_while_the_others_are_in_a_barrier() {
    let mut scene = Scene::new(4);
    scene.inside(WORLD, 0, "gather", Some(0));
    (1..4).for_each(|rank| {
        scene.inside(WORLD, rank, "barrier", None);
    });
    let of = scene.hang().differing.expect("calls differ");
    assert_eq!(
        (of.position, of.calls.iter().map(|call| &*call.func).collect::<Vec<_>>()),
        (100, vec!["gather", "barrier"])
    );
    insta::assert_snapshot!("gather_and_barrier", scene.said());
}

#[test]
fn ranks_that_are_in_a_call_that_others_never_made_wait_for_these() {
    let mut scene = Scene::new(4);
    scene.inside(WORLD, 1, "all_gather", None).inside(WORLD, 3, "all_gather", None);
    let hang = scene.hang();
    assert_eq!(missing(&hang), [(0, Absence::NotEntered), (2, Absence::NotEntered)]);
    assert_eq!((hang.waiting.len(), hang.differing, hang.circles.len()), (2, None, 0));
    insta::assert_snapshot!("ahead", scene.said());
}

#[test]
fn a_root_that_computes_is_missing_and_no_circle() {
    let mut scene = Scene::new(4);
    (1..4).for_each(|rank| {
        scene.inside(WORLD, rank, "broadcast", Some(0));
    });
    scene.does(0, Activity::Running);
    assert_eq!(missing(&scene.hang()), [(0, Absence::NotEntered)]);
    // Of others that have not come either nobody waits for any but the root.
    let mut scene = Scene::new(4);
    scene.inside(WORLD, 1, "broadcast", Some(0)).inside(WORLD, 2, "broadcast", Some(0)).does(0, Activity::Running);
    assert_eq!(missing(&scene.hang()), [(0, Absence::NotEntered)]);
    insta::assert_snapshot!("busy_root", scene.said());
}

#[test]
fn a_first_barrier_names_the_rank_that_never_called_anything() {
    let mut scene = Scene::unborn(4);
    [0, 2, 3].into_iter().for_each(|rank| {
        scene.inside(WORLD, rank, "barrier", None);
    });
    let hang = scene.hang();
    assert_eq!((missing(&hang), hang.not_heard.len()), (vec![(1, Absence::NotEntered)], 0));
    insta::assert_snapshot!("first_barrier", scene.said());
    // Of a host that says nothing nothing is known.
    scene.input.ranks.retain(|of| of.rank != 1);
    scene.input.doing.retain(|of| &*of.node != "n1");
    let hang = scene.hang();
    assert_eq!((hang.missing.len(), hang.not_heard[0].ranks.to_string().as_str()), (0, "1"));
    assert!(scene.said().contains("was not heard"), "{}", scene.said());
}

#[test]
fn a_rank_that_finalizes_early_says_so() {
    let mut scene = Scene::new(3);
    scene.inside(WORLD, 2, "finalize", None);
    (0..2).for_each(|rank| {
        scene.inside(WORLD, rank, "barrier", None);
    });
    let of = scene.hang().differing.expect("calls differ");
    assert_eq!((&*of.calls[0].func, of.calls[0].ranks[0].rank), ("finalize", 2));
    // A library that does not count its end among the collectives.
    let mut scene = Scene::new(3);
    (0..2).for_each(|rank| {
        scene.inside(WORLD, rank, "barrier", None);
    });
    let (node, pid, func, since_ns) = (host(2), 1, "finalize".into(), 20 * S);
    scene.input.in_calls.push(InCall { node, pid, func, since_ns, ..InCall::default() });
    let said = scene.said();
    assert!(said.contains("finalize") && !said.contains("circle") && !said.contains("not heard"), "{said}");
    insta::assert_snapshot!("finalize", said);
}

#[test]
fn a_receive_of_what_is_never_sent_is_a_circle_with_the_barrier_of_the_others() {
    let mut scene = Scene::new(4);
    scene.with_peer(0, "recv", 1, 7);
    (1..4).for_each(|rank| {
        scene.inside(WORLD, rank, "barrier", None);
    });
    let hang = scene.hang();
    assert_eq!((hang.missing.len(), hang.circles.len()), (0, 1));
    let edges: Vec<_> = hang.circles[0].iter().map(|e| (e.who.rank, &*e.call.func, e.waits_for.rank)).collect();
    assert_eq!(edges, [(0, "recv", 1), (1, "barrier", 0)]);
    insta::assert_snapshot!("receive_and_barrier", scene.said());
    // A peer that sleeps is missing.
    let mut scene = Scene::new(2);
    scene.with_peer(0, "recv", 1, 7);
    assert_eq!(missing(&scene.hang()), [(1, Absence::NotSent)]);
    insta::assert_snapshot!("nobody_sends", scene.said());
}

#[test]
fn synchronous_sends_in_a_ring_are_a_circle() {
    let mut scene = Scene::new(4);
    (0..4).for_each(|rank| {
        scene.with_peer(rank, "ssend", (rank + 1) % 4, 3);
    });
    let hang = scene.hang();
    assert_eq!((hang.circles[0].len(), hang.missing.len(), hang.differing), (4, 0, None));
    insta::assert_snapshot!("ring_of_sends", scene.said());
}

#[test]
fn barriers_of_three_communicators_in_a_circle_are_said_with_their_edges() {
    let mut scene = Scene::new(3);
    for (comm, ranks) in [(0x01, [0, 1]), (0x12, [1, 2]), (0x02, [0, 2])] {
        for (rank, job_rank) in (0..2).zip(ranks) {
            scene.member(comm, job_rank, (rank, 2), 0);
        }
    }
    scene.inside(0x01, 0, "barrier", None).inside(0x12, 1, "barrier", None).inside(0x02, 2, "barrier", None);
    let hang = scene.hang();
    let edges: Vec<_> = hang.circles[0].iter().map(|edge| (edge.who.rank, edge.waits_for.rank)).collect();
    assert_eq!((edges, hang.missing.len(), hang.not_heard.len()), (vec![(0, 1), (1, 2), (2, 0)], 0, 0));
    insta::assert_snapshot!("three_communicators", scene.said());
    // Nothing is known of the communicators but the calls on them: their other ranks may be any two.
    scene.input.progress.retain(|p| p.comm_hash == WORLD || p.entered.is_some());
    let hang = scene.hang();
    assert!(hang.not_heard.iter().all(|of| of.among.is_some()), "{hang:?}");
    assert!(!scene.said().contains("not heard"), "{}", scene.said());
}

#[test]
fn a_rank_of_a_part_holds_up_its_partner_and_so_all() {
    // Ranks 0 and 1 wait in the world's barrier for 2, which waits in a part for 3, which sleeps.
    let mut scene = Scene::new(4);
    for rank in 0..4 {
        scene.member(0x50 + (rank / 2) as u64, rank, (rank % 2, 2), 11);
    }
    scene.inside(WORLD, 0, "barrier", None).inside(WORLD, 1, "barrier", None).inside(0x51, 2, "all_reduce", None);
    let hang = scene.hang();
    assert_eq!((missing(&hang), hang.missing[0].holds_up), (vec![(3, Absence::NotEntered)], 3));
    assert_eq!((hang.waiting.len(), hang.not_heard.len()), (3, 0));
    // Also where the part's own barrier is its first call, and only one rank of it made one.
    scene.input.progress.retain(|p| p.comm_hash != 0x51 || *p.node != *host(3));
    let hang = scene.hang();
    assert!(hang.missing.is_empty() || missing(&hang) == [(3, Absence::NotEntered)], "{hang:?}");
    insta::assert_snapshot!("part", scene.said());
}

#[test]
fn other_sizes_roots_types_and_reductions_are_findings() {
    let differ = |of: [(Option<i32>, Payload); 2], func: &str| {
        let mut scene = Scene::new(2);
        for (rank, (root, payload)) in (0..2).zip(of) {
            scene.inside_of(WORLD, rank, func, root, payload);
        }
        let Verdict::Hang(hang) = scene.report().verdict else { return None };
        Some((hang.differing?.difference, scene.said()))
    };
    let same = |func| differ([(Some(0), payload(8, "double")), (Some(0), payload(8, "double"))], func);
    assert_eq!((same("all_reduce"), same("broadcast")), (None, None));
    let size = differ([(None, payload(64, "double")), (None, payload(128, "double"))], "all_reduce").unwrap();
    assert_eq!(size.0, Difference::Size);
    insta::assert_snapshot!("other_size", size.1);
    let root = differ([(Some(0), payload(64, "double")), (Some(1), payload(64, "double"))], "broadcast").unwrap();
    assert_eq!(root.0, Difference::Root);
    let types = differ([(None, payload(64, "double")), (None, payload(64, "int64"))], "all_reduce").unwrap();
    assert_eq!(types.0, Difference::Datatype);
    let max = Payload { reduce_op: Some("max".into()), ..payload(64, "double") };
    let op = differ([(None, payload(64, "double")), (None, max)], "all_reduce").unwrap();
    assert_eq!(op.0, Difference::ReduceOp);
    // These may differ between ranks.
    for func in ["all_gather_v", "gather_v", "gather", "scatter", "all_to_all_v", "reduce_scatter"] {
        assert_eq!(differ([(Some(0), payload(64, "double")), (Some(0), payload(0, "double"))], func), None, "{func}");
    }
    let in_place = [(None, payload(0, "double")), (None, payload(64, "double"))];
    assert_eq!(differ(in_place, "all_gather"), None);
    let gathered = differ([(Some(0), payload(64, "double")), (Some(0), payload(128, "double"))], "gather").unwrap();
    assert_eq!(gathered.0, Difference::Size);
}

#[test]
fn a_rank_that_has_ended_is_said_to_have() {
    let mut scene = Scene::new(4);
    (0..3).for_each(|rank| {
        scene.inside(WORLD, rank, "barrier", None);
    });
    scene.does(3, Activity::Ended);
    assert_eq!(missing(&scene.hang()), [(3, Absence::Gone)]);
    insta::assert_snapshot!("ended", scene.said());
}

#[test]
fn a_first_all_gather_of_devices_names_the_rank_that_did_not_enqueue_it() {
    let mut scene = Scene::new(4);
    for rank in 1..4 {
        scene.made(WORLD, rank, "all_gather", None).device(rank);
    }
    let hang = scene.hang();
    assert_eq!((missing(&hang), hang.not_heard.len()), (vec![(0, Absence::NotEntered)], 0));
    assert_eq!(hang.missing[0].call.func, "all_gather");
    insta::assert_snapshot!("device_all_gather", scene.said());
}

#[test]
fn a_receive_of_a_device_that_nobody_sends_names_the_sender() {
    let mut scene = Scene::new(3);
    scene.device(0);
    scene.progress(WORLD, 0).pairs = vec![Pair { peer: 1, sent: 4, received: 6 }];
    scene.progress(WORLD, 1).pairs = vec![Pair { peer: 0, sent: 5, received: 4 }];
    let hang = scene.hang();
    assert_eq!((missing(&hang), hang.circles.len()), (vec![(1, Absence::NotSent)], 0));
    insta::assert_snapshot!("device_receive", scene.said());
}

#[test]
fn ranks_that_stand_apart_because_small_messages_pass_are_no_hang() {
    // The root of broadcasts is 50 calls ahead, and computes; nobody waits for long.
    let mut scene = Scene::new(4);
    (0..50).for_each(|_| {
        scene.made(WORLD, 0, "broadcast", Some(0));
    });
    assert!(!matches!(scene.report().verdict, Verdict::Hang(_)));
    // Who makes calls up to the end holds nobody up for good.
    let mut scene = Scene::new(2);
    scene.inside(WORLD, 1, "finalize", None);
    assert_eq!(missing(&scene.hang()), [(0, Absence::NotEntered)]);
    scene.input.moving.push((host(0), 1));
    assert!(!matches!(scene.report().verdict, Verdict::Hang(_)));
}

#[test]
fn requests_whose_partners_are_not_known_are_no_circle() {
    let mut scene = Scene::new(3);
    scene.inside(WORLD, 0, "barrier", None).inside(WORLD, 1, "barrier", None);
    let (node, pid, func, since_ns) = (host(2), 1, "wait_all".into(), 20 * S);
    scene.input.in_calls.push(InCall { node, pid, func, since_ns, ..InCall::default() });
    let said = scene.said();
    assert!(!said.contains("circle") && said.contains("for whom is not known"), "{said}");
    insta::assert_snapshot!("requests", said);
    // That others wait for it shows at once; where nobody's call shows for whom, it may take long.
    scene.input.until_ns = 24 * S;
    assert_eq!(scene.said().replace("(4.00 s)", "(40.0 s)"), said);
    let barriers: Vec<InCall> = scene.input.in_calls.drain(..2).collect();
    insta::assert_snapshot!("too_early", scene.said());
    scene.input.in_calls.splice(0..0, barriers);
    scene.input.until_ns = 60 * S;
    // Where its receives are known it is said whom it waits for.
    scene.with_peer(2, "irecv", 0, 5);
    let edges: Vec<_> = scene.hang().circles[0].iter().map(|edge| (edge.who.rank, edge.waits_for.rank)).collect();
    assert_eq!(edges, [(0, 2), (2, 0)]);
}

#[test]
fn who_is_in_no_call_is_named_where_all_others_wait_for_requests() {
    let mut scene = Scene::new(3);
    for rank in [0, 2] {
        let (node, pid, func, since_ns) = (host(rank), 1, "wait_all".into(), 20 * S);
        scene.input.in_calls.push(InCall { node, pid, func, since_ns, ..InCall::default() });
    }
    assert_eq!(missing(&scene.hang()), [(1, Absence::Outside)]);
    insta::assert_snapshot!("outside", scene.said());
}

#[test]
fn a_nonblocking_collective_is_waited_for_under_its_own_name() {
    let mut scene = Scene::new(3);
    for rank in [0, 1] {
        scene.made(WORLD, rank, "iall_reduce", None);
        let (node, pid, func, since_ns) = (host(rank), 1, "wait".into(), 20 * S);
        scene.input.in_calls.push(InCall { node, pid, func, since_ns, ..InCall::default() });
    }
    let hang = scene.hang();
    assert_eq!((missing(&hang), &*hang.missing[0].call.func), (vec![(2, Absence::NotEntered)], "iall_reduce"));
    // Where the recorder knows which collective is waited for.
    for call in &mut scene.input.in_calls {
        (call.comm_hash, call.comm_seq) = (Some(WORLD), Some(100));
    }
    let hang = scene.hang();
    assert_eq!((missing(&hang), &*hang.missing[0].call.func), (vec![(2, Absence::NotEntered)], "iall_reduce"));
    // A blocking form does not meet a nonblocking one.
    scene.inside(WORLD, 2, "all_reduce", None);
    let of = scene.hang().differing.expect("calls differ");
    assert_eq!(of.calls.iter().map(|call| &*call.func).collect::<Vec<_>>(), ["all_reduce", "iall_reduce"]);
}
