//! The fan-out of one question over the mesh: implements the planner's [`Fanout`] with QUIC.
//!
//! Every target is asked at once, in a large mesh through intermediate aggregators (`tree`). A
//! node's batches are buffered until its answer is complete, so that a node that fails half way
//! contributes nothing. When a node that answered an earlier round fails in a later one, or no
//! longer has the snapshot that it answered from (`snapshots`), the question must run again without
//! it: `lost_midway` reports it and [`super::ask`] does it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{FailureKind, SnapshotUse};
use parking_lot::Mutex;
use query_planner::memory::Account;
use query_planner::{Fanout, NodeStats, NodeTask, Round, RoundAsk, RunError, Sink, Targets};
use rand::RngExt;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::admission::SuspendablePermit;
use super::inbox::inbox;
use super::leaf::{BufferedBytes, LeafEvent, LeafFailure, LeafRequest, Target};
use super::release;
use super::round::{InlineRun, PATIENCE, RoundInFlight, RoundRequest, SentRound};
use super::time::RoundTime;
use super::tree::{self, FanoutPolicy};
use super::way::Way;

/// Where rows flow to the user, rows of nodes whose answers are not complete yet are buffered up to
/// so many bytes, of each node within these bounds; so a node that fails early leaves nothing
/// behind.
const STREAMED_BYTES: u64 = 8 << 20;
const STREAMED_BYTES_EACH: std::ops::RangeInclusive<u64> = 32 << 10..=1 << 20;
/// Pieces of such answers on their way.
const STREAMED_EVENTS: usize = 8;

/// With more than this many bytes a question that waits for nodes keeps its permit all the time,
/// and else for [`PATIENCE`].
const FEW_BYTES: u64 = 1 << 20;
/// Up to so many bytes are merged inline, of so many rounds together.
const INLINE_BYTES: u64 = 64 << 10;
const INLINE_ROUNDS: usize = 3;

/// Asks `targets`; lives for one question, on a blocking thread.
pub struct MeshFanout {
    runtime: Handle,
    way: Way,
    targets: Vec<Target>,
    policy: FanoutPolicy,
    /// Of the current round.
    deadline: Instant,
    time: Option<RoundTime>,
    /// The user whose rows alone count.
    viewer: Option<u32>,
    /// What is gathered counts here.
    memory: Arc<Account>,
    /// When the question itself ends: snapshots are kept until then.
    question_ends: Instant,
    /// The number under which nodes keep snapshots between its rounds.
    question: u128,
    /// Whether nodes may still keep some.
    snapshots_kept: bool,
    /// The next event in it.
    at: Round,
    /// Whether it will not begin again, whoever is lost.
    last_run: bool,
    cancelled: CancellationToken,
    /// The permit of its question, where admission gave one.
    permit: Option<Arc<Mutex<SuspendablePermit>>>,
    /// What was sent before the run asks for it, in that order.
    sent: VecDeque<SentRound>,
    /// What the run works with, where it may not wait.
    inline: Option<InlineRun>,
    /// What rounds of this run have brought, bytes.
    received_bytes: u64,
    /// Nodes whose rows are in the result of this run.
    pub answered: BTreeSet<String>,
    /// Nodes that did not answer, with the reason.
    pub missing: BTreeMap<String, String>,
    /// A node answered one round and failed a later one.
    pub lost_midway: bool,
    /// Which.
    lost: BTreeSet<String>,
}

impl MeshFanout {
    /// A fan-out to `targets`, to be used from a thread that may block.
    pub fn new(
        runtime: Handle,
        way: Way,
        targets: Vec<Target>,
        policy: FanoutPolicy,
        deadline: Instant,
        cancelled: CancellationToken,
    ) -> Self {
        Self {
            runtime,
            way,
            targets,
            policy,
            deadline,
            time: None,
            viewer: None,
            memory: Account::new(u64::MAX),
            question_ends: deadline,
            question: rand::rng().random(),
            snapshots_kept: false,
            at: Round::Only,
            last_run: false,
            cancelled,
            permit: None,
            sent: VecDeque::new(),
            inline: None,
            received_bytes: 0,
            answered: BTreeSet::new(),
            missing: BTreeMap::new(),
            lost_midway: false,
            lost: BTreeSet::new(),
        }
    }

    /// Shares the time out between rounds and merge; without it every round may take all of it.
    #[must_use]
    pub(super) fn with_time(self, time: RoundTime) -> Self {
        Self { time: Some(time), ..self }
    }

    /// With the permit of its question, which it gives up while it waits for nodes and has gathered
    /// next to nothing.
    #[must_use]
    pub(super) fn with_permit(self, permit: Arc<Mutex<SuspendablePermit>>) -> Self {
        Self { permit: Some(permit), ..self }
    }

    /// Counts the rows that are gathered as this question's memory.
    #[must_use]
    pub(super) fn with_memory(self, memory: &Arc<Account>) -> Self {
        Self { memory: Arc::clone(memory), ..self }
    }

    /// Asks for the rows of one user's processes alone.
    #[must_use]
    pub(super) fn for_viewer(self, viewer: Option<u32>) -> Self {
        Self { viewer, ..self }
    }

    /// Whether enough time is left to start over.
    pub fn may_restart(&self) -> bool {
        self.time.is_none_or(|time| time.may_restart(Instant::now()))
    }

    /// Starts over without the nodes that are missing by now; `last_run` when that will not be done
    /// again.
    pub fn restart(&mut self, last_run: bool) {
        self.last_run = last_run;
        self.received_bytes = 0;
        self.lost_midway = false;
        self.lost.clear();
        self.sent.clear();
    }

    /// The nodes that answered one round and failed a later one.
    pub fn lost_names(&self) -> String {
        self.lost.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Has the nodes of a question that is over release the snapshots that they still keep for it:
    /// between its rounds, or after the second through a tree.
    pub fn release(&self) {
        if !self.snapshots_kept {
            return;
        }
        self.way.release(self.question);
        let Some(mesh) = self.way.mesh().cloned() else { return };
        let (question, tree_above) = (self.question, self.policy.tree_above);
        let others: Vec<Target> =
            self.present().filter_map(|index| self.targets.get(index)).filter(|to| !to.local).cloned().collect();
        self.runtime.spawn(async move { release::send(&mesh, question, others, tree_above).await });
    }

    /// Whether these targets are asked through intermediate aggregators.
    fn through_tree(&self, targets: &[usize]) -> bool {
        targets.iter().filter(|&&index| !self.targets[index].local).count() > self.policy.tree_above
    }

    /// What this round's tasks have to do with the other round's; `of_earlier` for nodes that
    /// answered that. Nodes keep their snapshot from the first round on until the second has been
    /// answered; behind an intermediate aggregator until the question is over, since what an
    /// intermediate aggregator received may be lost with it.
    fn snapshot(&self, of_earlier: bool, through_tree: bool) -> Option<SnapshotUse> {
        let keeps = match self.at {
            Round::Only | Round::Flowing => return None,
            Round::First => true,
            Round::Second => through_tree,
        };
        let left = self.question_ends.saturating_duration_since(Instant::now());
        let keep_ms = if keeps { u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1) } else { 0 };
        Some(SnapshotUse { question: self.question, of_earlier, keep_ms })
    }

    /// Starts to ask `targets` the same.
    fn start_all(&self, targets: &[usize], through_tree: bool, round: &RoundRequest) {
        let (here, there): (Vec<usize>, Vec<usize>) = targets.iter().partition(|&&index| self.targets[index].local);
        let direct = |target: usize| round.start(&self.runtime, (target, self.targets[target].clone()));
        if through_tree {
            let there: Vec<_> = there.into_iter().map(|index| (index, self.targets[index].seat.cell)).collect();
            for group in tree::groups(&there) {
                self.start_group(&group, round);
            }
        } else {
            there.into_iter().for_each(direct);
        }
        here.into_iter().for_each(direct);
    }

    /// Asks a group through one of its nodes; what that leaves open is asked directly.
    fn start_group(&self, group: &[usize], round: &RoundRequest) {
        let group: Vec<_> = group.iter().map(|&target| (target, self.targets[target].clone())).collect();
        let round = round.clone();
        let runtime = self.runtime.clone();
        self.runtime.spawn(async move {
            let sink_of = |target| round.sink_of(target);
            let direct = |leaf| round.start(&runtime, leaf);
            tokio::select! {
                () = tree::ask(&round.request, &group, &sink_of, &round.events, &direct) => {}
                () = round.stop.cancelled() => {}
            }
        });
    }

    /// Asks for what the run will ask for first, so that its thread need not be there to wait: to
    /// be called within a runtime. If the run asks for something else, that is asked as usual.
    pub(super) fn start_first_round(&mut self, first: RoundAsk) {
        self.round(first.round);
        // The run will meet the same error.
        if let Ok(Some(sent)) = self.send(first) {
            self.sent.push_back(sent);
        }
    }

    /// Sends a request of the run. None where it is for any one node: others follow if that fails.
    fn send(&mut self, wanted: RoundAsk) -> Result<Option<SentRound>, RunError> {
        let asked = match &wanted.targets {
            Targets::All => self.present().collect(),
            Targets::Named(names) => self.named(names),
            Targets::AnyOne => return Ok(None),
        };
        let started = self.start(asked, &wanted.task)?;
        Ok(Some(SentRound { wanted: Arc::new(wanted), started }))
    }

    /// Waits until those asked by [`MeshFanout::start_first_round`] have answered or there is
    /// enough to work on, but not for long.
    pub(super) async fn await_first_round(&mut self) {
        if let Some(first) = self.sent.front_mut() {
            first.started.ready().await;
        }
    }

    /// Runs inline what is answered soon and little, in all its rounds: `run` is called with the
    /// answers to the first request, and again for each request that it makes beyond those, once
    /// that has been answered, too. No call waits, and each is stopped where it is long. None where
    /// it is not so little: then nothing has happened, but that answers which are there are kept
    /// for the run.
    pub(super) async fn run_inline<T>(
        &mut self,
        run: impl Fn(&mut Self) -> Result<T, RunError>,
        is_over: impl Fn() -> bool,
    ) -> Option<Result<T, RunError>> {
        if self.sent.front()?.wanted.round == Round::Flowing {
            return None;
        }
        let mut inline = InlineRun { sent: self.sent.pop_front(), ..InlineRun::default() };
        while inline.take_answers(INLINE_ROUNDS, INLINE_BYTES) {
            self.inline = Some(InlineRun { used: 0, ..inline });
            let outcome = run(self);
            inline = self.inline.take().unwrap_or_default();
            match outcome {
                Err(RunError::Pending) => {}
                Err(RunError::Stopped(_)) if !is_over() => {}
                outcome => return Some(outcome),
            }
            self.restart(false);
            self.missing.clear();
            if let Some(sent) = &mut inline.sent {
                sent.started.ready().await;
            }
        }
        self.sent = inline.into_sent();
        None
    }

    /// As [`Fanout::ask`], without waiting.
    fn ask_inline(
        &mut self,
        mut inline: InlineRun,
        task: &NodeTask,
        targets: &Targets,
        sink: Sink<'_>,
    ) -> Result<Vec<(String, NodeStats)>, RunError> {
        let known = inline.answered.get(inline.used);
        inline.used += 1;
        let Some(known) = known else {
            let wanted = RoundAsk { round: self.at, task: task.clone(), targets: targets.clone() };
            inline.sent = self.send(wanted)?;
            let is_sent = inline.sent.is_some();
            self.inline = Some(inline);
            return Err(if is_sent { RunError::Pending } else { not_there() });
        };
        let (events, bytes) = (Arc::clone(&known.events), known.buffered.bytes());
        let is_known = known.wanted.is(self.at, task, targets);
        self.snapshots_kept |= known.keeps;
        self.inline = Some(inline);
        if !is_known {
            return Err(not_there());
        }
        let mut answered = Vec::with_capacity(events.len());
        for event in events.iter() {
            let LeafEvent::Finished(target, outcome) = event else { continue };
            let name = self.targets[*target].name.to_string();
            match outcome {
                Ok((batches, stats)) => {
                    for (fragment, batch) in batches {
                        sink(&name, *fragment, Cow::Borrowed(batch))?;
                    }
                    self.answered.insert(name.clone());
                    answered.push((name, stats.clone()));
                }
                Err(failure) => self.failed(name, failure.clone(), task)?,
            }
        }
        self.round_over(bytes, answered)
    }

    /// Asks the listed targets at once.
    fn start(&mut self, asked: Vec<usize>, task: &NodeTask) -> Result<RoundInFlight, RunError> {
        if let Some(time) = self.time {
            self.deadline = time.round_ends(Instant::now(), self.at, self.last_run);
        }
        let streamed_bytes = (self.at == Round::Flowing).then(|| {
            let each = STREAMED_BYTES / asked.len().max(1) as u64;
            each.clamp(*STREAMED_BYTES_EACH.start(), *STREAMED_BYTES_EACH.end())
        });
        let (events, inbox) = inbox(streamed_bytes.is_some().then(|| asked.len().min(STREAMED_EVENTS)));
        let stop = self.cancelled.child_token();
        let _stop_on_drop = stop.clone().drop_guard();
        let buffered = BufferedBytes::new(task.budget.coordinator_bytes, &self.memory);
        let asked_before = |index: &&usize| self.answered.contains(self.targets[**index].name.as_str());
        let (before, anew): (Vec<usize>, Vec<usize>) = asked.iter().partition(asked_before);
        let mut keeps = false;
        for (of_earlier, targets) in [(true, before), (false, anew)] {
            if targets.is_empty() {
                continue;
            }
            let through_tree = self.through_tree(&targets);
            let snapshot = self.snapshot(of_earlier, through_tree);
            keeps |= snapshot.is_some_and(|snapshot| snapshot.keep_ms > 0);
            let request = LeafRequest {
                way: self.way.clone(),
                task: NodeTask { viewer: self.viewer, ..task.clone() },
                snapshot,
                deadline: self.deadline,
            };
            let encoded = request.encoded().map_err(|error| RunError::Internal(error.to_string()))?;
            let (buffered, events, stop) = (buffered.clone(), events.clone(), stop.clone());
            let request = Arc::new(request);
            let round = RoundRequest { request, encoded, buffered, streamed_bytes, events, stop };
            self.start_all(&targets, through_tree, &round);
        }
        drop(events);
        self.snapshots_kept |= keeps;
        Ok(RoundInFlight { asked, inbox, buffered, waited: false, keeps, _stop_on_drop })
    }

    /// Asks the listed targets at once and waits for every one of them.
    fn ask_these(
        &mut self,
        asked: Vec<usize>,
        task: &NodeTask,
        sink: Sink<'_>,
    ) -> Result<Vec<(String, NodeStats)>, RunError> {
        let started = self.start(asked, task)?;
        self.collect(started, task, sink)
    }

    /// Waits for every one of those that were asked.
    fn collect(
        &mut self,
        mut started: RoundInFlight,
        task: &NodeTask,
        sink: Sink<'_>,
    ) -> Result<Vec<(String, NodeStats)>, RunError> {
        self.snapshots_kept |= started.keeps;
        let mut answered = Vec::with_capacity(started.asked.len());
        while let Some(event) = self.next_event(&mut started) {
            let (target, outcome) = match event {
                LeafEvent::Rows(target, (fragment, batch)) => {
                    let memory = batch.size_bytes();
                    sink(self.targets[target].name.as_str(), fragment, Cow::Owned(batch))?;
                    started.buffered.merged(memory);
                    continue;
                }
                LeafEvent::Finished(target, outcome) => (target, outcome),
            };
            let name = self.targets[target].name.to_string();
            match outcome {
                Ok((batches, stats)) => {
                    for (fragment, batch) in batches {
                        let memory = batch.size_bytes();
                        sink(&name, fragment, Cow::Owned(batch))?;
                        started.buffered.merged(memory);
                    }
                    self.answered.insert(name.clone());
                    answered.push((name, stats));
                }
                Err(failure) => self.failed(name, failure, task)?,
            }
        }
        self.round_over(started.buffered.bytes(), answered)
    }

    /// A target's failure: it is missing, or the question fails.
    fn failed(&mut self, name: String, failure: LeafFailure, task: &NodeTask) -> Result<(), RunError> {
        match failure {
            LeafFailure::Failed(failure) if failure.kind == FailureKind::Sql => {
                Err(RunError::Sql(format!("{failure} (on {name})")))
            }
            LeafFailure::BrokeOff { rows, why } => {
                let message = format!(
                    "{name} broke off after {rows} of its rows had gone out ({why}): what was printed is not an answer; ask again, \
                     with a longer --timeout if time was short"
                );
                self.missing.insert(name, why.message);
                Err(RunError::Internal(message))
            }
            LeafFailure::OverBudget(Some(why)) => Err(RunError::OverBudget(why.to_string())),
            LeafFailure::OverBudget(None) => {
                let tables: Vec<&str> = task.fragments.iter().map(|fragment| fragment.table.as_str()).collect();
                Err(RunError::OverBudget(format!(
                    "more than {} MiB at the coordinator while gathering {}; narrow it with WHERE, fewer columns or LIMIT",
                    task.budget.coordinator_bytes >> 20,
                    tables.join(", ")
                )))
            }
            LeafFailure::Failed(failure) => {
                if self.answered.contains(&name) {
                    self.lost_midway = true;
                    self.lost.insert(name.clone());
                }
                self.missing.insert(name, failure.message);
                Ok(())
            }
        }
    }

    /// The end of a round that brought so many bytes.
    fn round_over(
        &mut self,
        bytes: u64,
        mut answered: Vec<(String, NodeStats)>,
    ) -> Result<Vec<(String, NodeStats)>, RunError> {
        self.received_bytes += bytes;
        if self.cancelled.is_cancelled() {
            return Err(RunError::Stopped("cancelled".into()));
        }
        if self.lost_midway {
            return Err(RunError::Stopped("a node was lost between two rounds of the question".into()));
        }
        answered.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(answered)
    }

    /// The next event of the round. While nothing comes and little is gathered, other questions
    /// have the permit; a question that does not get it again in time goes on without: there is
    /// little to merge.
    fn next_event(&self, started: &mut RoundInFlight) -> Option<LeafEvent> {
        let RoundInFlight { inbox, buffered, waited, .. } = started;
        if let Some(event) = inbox.try_next() {
            return Some(event);
        }
        let Some(permit) = &self.permit else { return self.runtime.block_on(inbox.next()) };
        let mut permit = permit.lock();
        let holds_little = || self.received_bytes + buffered.bytes() <= FEW_BYTES;
        let patience = match (holds_little(), std::mem::take(waited)) {
            (true, true) => Duration::ZERO,
            (true, false) => PATIENCE,
            (false, _) => Duration::MAX,
        };
        let event = permit.wait_for(patience, inbox.next());
        permit.resume(if holds_little() { self.deadline } else { self.question_ends });
        event
    }

    fn named(&self, names: &[String]) -> Vec<usize> {
        let is_named = |index: &usize| names.iter().any(|name| name == self.targets[*index].name.as_str());
        self.present().filter(is_named).collect()
    }

    fn present(&self) -> impl Iterator<Item = usize> {
        (0..self.targets.len()).filter(|&index| !self.missing.contains_key(self.targets[index].name.as_str()))
    }
}

/// Why a run that may not wait ends.
fn not_there() -> RunError {
    RunError::Stopped("not all of it has been answered".into())
}

impl Fanout for MeshFanout {
    fn round(&mut self, round: Round) {
        self.at = round;
        if round == Round::Second {
            self.snapshots_kept = false;
        } else {
            self.answered.clear();
        }
    }

    fn ask(
        &mut self,
        task: &NodeTask,
        targets: &Targets,
        sink: Sink<'_>,
    ) -> Result<Vec<(String, NodeStats)>, RunError> {
        if let Some(inline) = self.inline.take() {
            return self.ask_inline(inline, task, targets, sink);
        }
        match self.sent.pop_front() {
            Some(sent) if sent.wanted.is(self.at, task, targets) => return self.collect(sent.started, task, sink),
            _ => self.sent.clear(),
        }
        match targets {
            Targets::All => {
                let asked = self.present().collect();
                self.ask_these(asked, task, sink)
            }
            Targets::Named(names) => {
                let asked = self.named(names);
                self.ask_these(asked, task, sink)
            }
            Targets::AnyOne => {
                // This node first, then the others until one answers.
                let mut candidates: Vec<usize> = self.present().collect();
                candidates.sort_by_key(|&index| !self.targets[index].local);
                for candidate in candidates {
                    let answered = self.ask_these(vec![candidate], task, &mut *sink)?;
                    if !answered.is_empty() {
                        return Ok(answered);
                    }
                }
                Ok(Vec::new())
            }
        }
    }
}
