//! Where ranks are: the call stacks of this host's ranks, and those of the whole mesh in classes.
//!
//! Owns both ends of `rankmesh stacks`: the leaf, which samples this host's ranks (`Stacks`), and
//! the coordinator, which has all members sample at the same time and merges ([`ask`]). `explain`
//! knows how a stack is read and what a class is; who may ask is decided as for the columns of
//! `processes`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use explain::stacks::{
    self, Limits, MemberStacks, OwnWalks, Plan, ProcessProfile, Sampler, ShortReason, StacksAnswer, Unread,
};
use futures::StreamExt;
use gossip::Member;
use model::wire::{Request, Response};
use model::{Coverage, Failure, FailureKind, Missing, StacksQuestion, StacksWanted, frame};
use parking_lot::Mutex;
use query::access::{Access, Caller};
use query::ask::{self, AskError};
use query_planner::NodeError;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::own_walks::Walks;
use super::recording::{RankProcess, Recording};

/// Samples of one request, and the times between them that are accepted.
const MOST_SAMPLES: u32 = 200;
const EVERY: std::ops::RangeInclusive<u32> = 5..=10_000;
/// CPU time of the reader for each process and 20 samples of it. A build that is not optimised
/// takes some ten times as long for a sample.
const CPU_PER_20_SAMPLES: Duration = Duration::from_millis(if cfg!(debug_assertions) { 50 } else { 5 });
/// A leaf's answer ends this long before the deadline, for its way back.
const WAY_BACK: Duration = Duration::from_millis(300);
/// Bytes of one node's answer; processes that do not fit are named.
const ANSWER_BYTES: usize = 4 << 20;
/// Child processes of ranks that are sampled on one host.
const MOST_CHILDREN: usize = 512;
/// Peers asked at a time.
const PEERS_AT_ONCE: usize = 64;

/// What one node answers.
#[derive(Debug, Default, Serialize, Deserialize)]
struct NodeStacks {
    profiles: Vec<RankProfile>,
    /// For coverage.
    notes: Vec<String>,
}

/// The stacks of a rank's process, or of a child process of one.
#[derive(Debug, Serialize, Deserialize)]
struct RankProfile {
    /// None for a child process.
    rank: Option<u32>,
    profile: ProcessProfile,
}

/// Samples this host's ranks, for one request at a time.
#[derive(Debug)]
pub(super) struct Stacks {
    recording: Arc<Recording>,
    sampler: Arc<Mutex<(Sampler, Walks)>>,
    /// For native frames of all programs.
    native: Arc<Mutex<(Sampler, Walks)>>,
    one_at_a_time: Semaphore,
}

impl Stacks {
    pub(super) fn new(recording: Arc<Recording>) -> Self {
        let native = Sampler::new(Limits { native: true, ..Limits::default() });
        let native = Arc::new(Mutex::new((native, Walks::default())));
        Self { recording, sampler: Arc::default(), native, one_at_a_time: Semaphore::new(1) }
    }

    /// The response to [`Request::Stacks`] of a requester who may see the processes of `viewer`, or
    /// all.
    pub(super) async fn answer(
        &self,
        wanted: StacksWanted,
        viewer: Option<u32>,
        deadline: Instant,
        cancelled: &CancellationToken,
    ) -> Response {
        let sampled = self.sample(wanted, viewer, deadline, cancelled).await;
        match sampled.map(|stacks| encoded(stacks, ANSWER_BYTES)) {
            Ok(Ok(bytes)) => Response::Stacks(bytes),
            Ok(Err(error)) => Response::failed(error),
            Err(error) => Response::Failed(error.into()),
        }
    }

    /// The stacks of some processes of this host, of whatever user.
    ///
    /// # Errors
    /// Other stacks were being sampled until the deadline.
    pub(super) async fn sample_processes(
        &self,
        pids: &[u32],
        wanted: StacksWanted,
        deadline: Instant,
        cancelled: &CancellationToken,
    ) -> Result<Vec<ProcessProfile>, NodeError> {
        let sampled = self.sample_of(wanted, None, deadline, cancelled, |process| pids.contains(&process.pid)).await?;
        Ok(sampled.profiles.into_iter().map(|found| found.profile).collect())
    }

    async fn sample(
        &self,
        wanted: StacksWanted,
        viewer: Option<u32>,
        deadline: Instant,
        cancelled: &CancellationToken,
    ) -> Result<NodeStacks, NodeError> {
        self.sample_of(wanted, viewer, deadline, cancelled, |_| true).await
    }

    async fn sample_of(
        &self,
        wanted: StacksWanted,
        viewer: Option<u32>,
        deadline: Instant,
        cancelled: &CancellationToken,
        is_one: impl Fn(&RankProcess) -> bool,
    ) -> Result<NodeStacks, NodeError> {
        check(&wanted).map_err(NodeError::Failed)?;
        if !self.recording.records() {
            let note = format!("no ranks are known: this node does not record ({})", self.recording.state);
            return Ok(NodeStacks { notes: vec![note], ..NodeStacks::default() });
        }
        let busy = || NodeError::Stopped("other stacks were being sampled until the deadline".into());
        let permit = tokio::time::timeout_at(deadline.into(), self.one_at_a_time.acquire()).await;
        let _permit = permit.map_err(|_| busy())?.map_err(|_| busy())?;
        let mut ranks = self.recording.rank_processes(viewer);
        ranks.retain(|process| is_wanted(process, &wanted) && is_one(process));
        // Dropped with the request, it ends the thread below.
        let stop = cancelled.child_token();
        let _stop_on_return = stop.clone().drop_guard();
        let sampler = Arc::clone(if wanted.native { &self.native } else { &self.sampler });
        let until = deadline.checked_sub(WAY_BACK).unwrap_or(deadline);
        let sampled = tokio::task::spawn_blocking(move || {
            let over = || stop.is_cancelled() || Instant::now() >= until;
            let (sampler, walks) = &mut *sampler.lock();
            sample_ranks(sampler, Some(walks), &ranks, &wanted, over)
        });
        sampled.await.map_err(|error| NodeError::Failed(format!("sampling stacks: {error}")))
    }
}

fn is_wanted(process: &RankProcess, wanted: &StacksWanted) -> bool {
    (wanted.ranks.is_empty() || wanted.ranks.contains(&process.rank))
        && (wanted.job.is_none() || wanted.job == process.job_id)
}

/// Whether a request is within what is sampled.
fn check(wanted: &StacksWanted) -> Result<(), String> {
    if !(1..=MOST_SAMPLES).contains(&wanted.samples) {
        return Err(format!("{} samples: 1 to {MOST_SAMPLES} are taken", wanted.samples));
    }
    if !EVERY.contains(&wanted.every_ms) {
        let (least, most) = (EVERY.start(), EVERY.end());
        return Err(format!("a sample every {} ms: {least} ms to {most} ms are accepted", wanted.every_ms));
    }
    Ok(())
}

fn sample_ranks(
    sampler: &mut Sampler,
    walks: Option<&mut Walks>,
    ranks: &[RankProcess],
    wanted: &StacksWanted,
    over: impl Fn() -> bool,
) -> NodeStacks {
    let mut pids: Vec<u32> = ranks.iter().map(|process| process.pid).collect();
    let mut notes = Vec::new();
    let mut children = stacks::descendants(&pids);
    // Forked children of a rank have its environment, and count as its children, not as ranks.
    let forked = |process: &&RankProcess| {
        let same = |other: &RankProcess| (other.rank, &other.job_id) == (process.rank, &process.job_id);
        children.contains(&process.pid) && ranks.iter().any(|other| other.pid != process.pid && same(other))
    };
    let forked: Vec<u32> = ranks.iter().filter(forked).map(|process| process.pid).collect();
    pids.retain(|pid| !forked.contains(pid));
    if wanted.children {
        children.retain(|pid| !pids.contains(pid));
        if children.len() > MOST_CHILDREN {
            notes.push(format!("{} of {} child processes are sampled", MOST_CHILDREN, children.len()));
            children.truncate(MOST_CHILDREN);
        }
        pids.extend(children);
    }
    let times = u32::try_from(pids.len()).unwrap_or(u32::MAX).saturating_mul(wanted.samples.div_ceil(20));
    let plan = Plan {
        samples: wanted.samples,
        every: Duration::from_millis(wanted.every_ms.into()),
        cpu_budget: CPU_PER_20_SAMPLES.saturating_mul(times),
    };
    let walks = walks.map(|walks| walks as &mut dyn OwnWalks);
    let (profiles, from_outside) = sampler.profile_with(&pids, &plan, walks, over);
    // Reading from outside makes no difference where nothing was torn.
    let is_torn = |profile: &ProcessProfile| profile.threads.iter().any(|thread| thread.torn > 0);
    if let Some(why) = from_outside.filter(|_| profiles.iter().any(is_torn)) {
        notes.push(format!("threads that ran were read from outside, which tears stacks: {why}"));
    }
    let early = |reason: &ShortReason| {
        let short = profiles.iter().filter(|profile| profile.short_because.as_ref() == Some(reason));
        short.map(|profile| profile.samples).min().map(|samples| format!("{samples} of {} samples", wanted.samples))
    };
    notes.extend(early(&ShortReason::CpuBudget).map(|n| format!("{n}: their CPU time was used up")));
    notes.extend(early(&ShortReason::Cancelled).map(|n| format!("{n}: the deadline came")));
    let profiles = profiles.into_iter().map(|mut profile| {
        if !wanted.all_threads {
            profile.threads.retain(|thread| thread.main);
        }
        let is_it = |process: &&RankProcess| process.pid == profile.pid && !forked.contains(&process.pid);
        let rank = ranks.iter().find(is_it).map(|process| process.rank);
        RankProfile { rank, profile }
    });
    NodeStacks { profiles: profiles.collect(), notes }
}

/// An answer as it travels: as many profiles as fit into `limit` bytes.
fn encoded(mut stacks: NodeStacks, limit: usize) -> Result<Vec<u8>, frame::FrameError> {
    let all = stacks.profiles.len();
    loop {
        let room = match frame::encode(&stacks) {
            Ok(bytes) if bytes.len() <= limit => return Ok(bytes),
            Ok(_) | Err(frame::FrameError::TooLarge { .. }) if !stacks.profiles.is_empty() => stacks.profiles.len() / 2,
            other => return other,
        };
        if stacks.profiles.len() < all {
            stacks.notes.pop();
        }
        stacks.profiles.truncate(room);
        stacks.notes.push(format!("{} of {all} processes are left out: too much for one answer", all - room));
    }
}

/// Has all chosen members sample their ranks, and merges.
///
/// # Errors
/// [`AskError::Wrong`]: what is asked for is not sampled, or not for this caller;
/// [`AskError::Failed`]: no member answered.
pub(super) async fn ask(
    shared: &Shared,
    question: StacksQuestion,
    caller: &Caller,
    cancelled: &CancellationToken,
) -> Result<StacksAnswer, AskError> {
    let started = Instant::now();
    let wanted = &question.wanted;
    check(wanted).map_err(AskError::wrong)?;
    if caller.access == Access::Reader {
        return Err(AskError::wrong(Failure::new(
            FailureKind::Forbidden,
            "not allowed: stacks tell on other users' processes; readers may not ask for them (the agent's owner and root \
             may, or let readers with `rankmesh up --readers-see-processes`)",
        )));
    }
    let sampling = u64::from(wanted.samples) * u64::from(wanted.every_ms);
    if sampling + 1_000 > question.timeout_ms {
        return Err(AskError::wrong(format!(
            "{} samples every {} ms take {sampling} ms, and a second for the way: give --timeout more than {} ms, or fewer samples",
            wanted.samples, wanted.every_ms, question.timeout_ms
        )));
    }
    let deadline = started + Duration::from_millis(question.timeout_ms);
    let members = shared.coordinator.gossip.members();
    let chosen: Vec<Member> =
        members.iter().filter(|member| ask::is_chosen(member, &question.nodes, &question.labels)).cloned().collect();
    let answers: Vec<(String, Result<NodeStacks, String>)> = futures::stream::iter(chosen)
        .map(|member| async move {
            let answer = of_member(shared, &member, wanted, caller.access.viewer(), deadline, cancelled).await;
            (member.name, answer)
        })
        .buffer_unordered(PEERS_AT_ONCE)
        .collect()
        .await;
    let mut coverage = Coverage { asked: answers.len(), ..Coverage::default() };
    let (mut all, mut unread) = (Vec::new(), Vec::new());
    for (node, answer) in answers {
        match answer {
            Ok(stacks) => {
                coverage.answered += 1;
                coverage.notes.extend(stacks.notes.into_iter().map(|note| format!("{node}: {note}")));
                for RankProfile { rank, profile } in stacks.profiles {
                    if let Some(ShortReason::Failed(error)) =
                        profile.short_because.as_ref().filter(|_| profile.samples == 0)
                    {
                        let (node, reason) = (node.clone(), error.to_string());
                        unread.push(Unread { node, rank, pid: profile.pid, reason });
                        continue;
                    }
                    all.extend(MemberStacks::of(profile, rank, &node, |_| true));
                }
            }
            Err(reason) => coverage.missing.push(Missing { node, reason }),
        }
    }
    for name in question.nodes.iter().filter(|name| members.iter().all(|member| member.name != **name)) {
        coverage.asked += 1;
        coverage.missing.push(Missing { node: name.clone(), reason: "no such node in the mesh".into() });
    }
    coverage.missing.sort_by(|a, b| a.node.cmp(&b.node));
    coverage.notes.extend(Some(&members).filter(|_| !question.labels.is_empty()).and_then(|all| ask::unlabelled(all)));
    coverage.notes.sort();
    unread.sort_by(|a, b| (&a.node, a.pid).cmp(&(&b.node, b.pid)));
    if coverage.answered == 0 {
        return Err(AskError::Failed { failure: "no node answered".into(), coverage: Some(coverage) });
    }
    let merged = stacks::merge(&all);
    Ok(StacksAnswer { merged, unread, coverage, elapsed_ms: started.elapsed().as_secs_f64() * 1e3 })
}

/// The stacks of the ranks of one node, first threads only.
///
/// # Errors
/// Why there are none.
pub(super) async fn of_node(
    shared: &Shared,
    node: &str,
    wanted: &StacksWanted,
    viewer: Option<u32>,
    deadline: Instant,
    cancelled: &CancellationToken,
) -> Result<Vec<MemberStacks>, String> {
    let members = shared.coordinator.gossip.members();
    let member = members.iter().find(|member| member.name == node).ok_or("no such node in the mesh")?;
    let stacks = of_member(shared, member, wanted, viewer, deadline, cancelled).await?;
    let profiles = stacks.profiles.into_iter().filter(|found| found.profile.samples > 0);
    Ok(profiles.flat_map(|found| MemberStacks::of(found.profile, found.rank, node, |thread| thread.main)).collect())
}

async fn of_member(
    shared: &Shared,
    member: &Member,
    wanted: &StacksWanted,
    viewer: Option<u32>,
    deadline: Instant,
    cancelled: &CancellationToken,
) -> Result<NodeStacks, String> {
    if member.is_self {
        let sampled = shared.stacks.sample(wanted.clone(), viewer, deadline, cancelled).await;
        return sampled.map_err(|error| error.to_string());
    }
    let name = member.name.parse().map_err(|_| "its name is none".to_owned())?;
    let left = deadline.saturating_duration_since(Instant::now());
    let deadline_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
    let mut request = Request::Stacks { deadline_ms, wanted: wanted.clone() };
    if let Some(uid) = viewer {
        request = request.own(uid).map_err(|error| error.to_string())?;
    }
    let asked = async {
        let mut answer = shared.mesh.ask(&name, member.address, request, deadline.into()).await?;
        answer.next().await
    };
    let response = tokio::select! {
        response = tokio::time::timeout_at(deadline.into(), asked) => response.map_err(|_| "timeout".to_owned())?,
        () = cancelled.cancelled() => return Err("cancelled".to_owned()),
    };
    match response.map_err(|error| error.to_string())? {
        Some(Response::Stacks(bytes)) => frame::decode_frame(&bytes).map_err(|error| format!("its stacks: {error}")),
        Some(other) => Err(other.summary()),
        None => Err("the answer broke off".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> StacksWanted {
        StacksWanted { samples: 2, every_ms: 5, ..StacksWanted::default() }
    }

    fn process(pid: u32, rank: u32, job: &str) -> RankProcess {
        RankProcess { pid, rank, job_id: Some(job.to_owned()), start_ticks: None }
    }

    #[test]
    fn the_ranks_and_the_job_that_are_wanted_are_sampled() {
        let all = [process(10, 0, "a"), process(11, 1, "a"), process(12, 1, "b")];
        let pids = |wanted: &StacksWanted| {
            all.iter().filter(|process| is_wanted(process, wanted)).map(|process| process.pid).collect::<Vec<_>>()
        };
        assert_eq!(pids(&wanted()), [10, 11, 12]);
        assert_eq!(pids(&StacksWanted { ranks: vec![1], ..wanted() }), [11, 12]);
        assert_eq!(pids(&StacksWanted { ranks: vec![1], job: Some("a".into()), ..wanted() }), [11]);
    }

    #[test]
    fn a_rank_is_sampled_and_a_process_that_has_ended_says_so() {
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let ended = std::process::Command::new("true").spawn().and_then(|mut child| child.wait().map(|_| child.id()));
        let ranks = [process(sleeper.id(), 3, "j"), process(ended.unwrap(), 4, "j")];
        let node = sample_ranks(&mut Sampler::default(), None, &ranks, &wanted(), || false);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(node.profiles.iter().map(|found| found.rank).collect::<Vec<_>>(), [Some(3), Some(4)]);
        assert!(matches!(node.profiles[1].profile.short_because, Some(ShortReason::Failed(_))), "{node:?}");
    }

    #[test]
    fn what_a_rank_forked_is_a_child_of_it() {
        let mut shell = std::process::Command::new("sh").args(["-c", "sleep 60; true"]).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let child = loop {
            match stacks::descendants(&[shell.id()]).first() {
                Some(child) => break *child,
                None => assert!(Instant::now() < until, "no child"),
            }
        };
        let ranks = [process(shell.id(), 3, "j"), process(child, 3, "j"), process(child, 3, "other job")];
        let sampled = |children| {
            let wanted = StacksWanted { children, ..wanted() };
            let node = sample_ranks(&mut Sampler::default(), None, &ranks[..2], &wanted, || false);
            node.profiles.iter().map(|found| (found.profile.pid, found.rank)).collect::<Vec<_>>()
        };
        assert_eq!(sampled(false), [(shell.id(), Some(3))]);
        assert_eq!(sampled(true), [(shell.id(), Some(3)), (child, None)]);
        let node =
            sample_ranks(&mut Sampler::default(), None, &[ranks[0].clone(), ranks[2].clone()], &wanted(), || false);
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(child as i32), nix::sys::signal::Signal::SIGKILL);
        shell.wait().unwrap();
        assert_eq!(node.profiles.len(), 2, "a job within the job is one");
    }

    #[test]
    fn what_does_not_fit_into_an_answer_is_counted() {
        let profile = |pid| RankProfile {
            rank: Some(pid),
            profile: ProcessProfile {
                pid,
                runtime: "x".repeat(1_000),
                samples: 1,
                asked: 1,
                cpu_ns: 0,
                short_because: None,
                threads: Vec::new(),
                threads_left_out: 0,
            },
        };
        let all = NodeStacks { profiles: (0..100).map(profile).collect(), notes: Vec::new() };
        let bytes = encoded(all, 40_000).unwrap();
        assert!(bytes.len() <= 40_000);
        let read: NodeStacks = frame::decode_frame(&bytes).unwrap();
        assert_eq!(
            (read.profiles.len(), read.notes.as_slice()),
            (25, ["75 of 100 processes are left out: too much for one answer".to_owned()].as_slice())
        );
    }

    #[test]
    fn what_is_not_sampled_is_refused() {
        check(&wanted()).unwrap();
        for wrong in [
            StacksWanted { samples: 0, ..wanted() },
            StacksWanted { samples: 201, ..wanted() },
            StacksWanted { every_ms: 4, ..wanted() },
            StacksWanted { every_ms: 10_001, ..wanted() },
        ] {
            check(&wrong).unwrap_err();
        }
    }
}
