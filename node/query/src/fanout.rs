//! The fan-out of one question over the mesh: implements the planner's [`Fanout`] with QUIC.
//!
//! Every target is asked at once, in a large mesh through inner nodes (`subtree`). A node's batches are held until its answer is
//! whole, so that a node that fails half way contributes nothing. When a node that answered an earlier round fails in a later one, or no longer has the snapshot
//! that it answered from (`kept`), the question must run again without it: `lost_midway` says so and [`super::ask`] does
//! it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mesh::{Encoded, Mesh};
use model::SnapshotUse;
use query_planner::memory::Account;
use query_planner::{Fanout, FirstAsk, NodeStats, NodeTask, Round, RunError, Sink, Targets};
use rand::RngExt;
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::admission::Place;
use super::exec::Executor;
use super::inbox::{Ends, Inbox, inbox};
use super::leaf::{Flow, Gathered, Held, LeafAsk, Lost, Rows, Said, Target, Whole};
use super::release;
use super::subtree::{self, FanoutPolicy};
use super::time::RoundTime;
use crate::lock::lock;

/// Rows of nodes whose answers are not whole yet are held back up to so many bytes, of each within these bounds, where
/// rows go on to the user as they come; so a node that fails early leaves nothing behind.
const FLOW_BYTES: u64 = 8 << 20;
const FLOW_BYTES_EACH: std::ops::RangeInclusive<u64> = 32 << 10..=1 << 20;
/// Pieces of such answers on their way.
const FLOW_PIECES: usize = 8;

/// A question that waits for nodes keeps its turn so long; and it keeps it where it holds more than so much.
const PATIENCE: Duration = Duration::from_millis(20);
const LITTLE_BYTES: u64 = 1 << 20;
/// So much is merged on the spot.
const SMALL_BYTES: u64 = 64 << 10;

/// Asks `targets`; lives for one question, on a blocking thread.
pub struct MeshFanout {
    runtime: Handle,
    mesh: Mesh,
    executor: Arc<Executor>,
    targets: Vec<Target>,
    policy: FanoutPolicy,
    /// Of the round at hand.
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
    /// Where in it the next ask is.
    at: Round,
    /// Whether it will not begin again, whoever is lost.
    last_run: bool,
    cancelled: CancellationToken,
    /// The turn of its question, where there are turns.
    place: Option<Arc<Mutex<Place>>>,
    /// What was asked before the run asks for it.
    begun: Option<Begun>,
    /// All that the run asks for, where it may not wait; lent, since it may have to be merged once more.
    on_the_spot: Option<Arc<Vec<Said>>>,
    /// What rounds of this run have brought, bytes.
    brought_bytes: u64,
    /// Nodes whose rows are in the result of this run.
    pub answered: BTreeSet<String>,
    /// Nodes that did not answer, with the reason.
    pub missing: BTreeMap<String, String>,
    /// A node answered one round and failed a later one.
    pub lost_midway: bool,
    /// Which.
    lost: BTreeSet<String>,
}

/// What the tasks of one round share.
#[derive(Clone)]
struct Asking {
    ask: Arc<LeafAsk>,
    request: Encoded,
    gathered: Gathered,
    /// Where rows go on as they come: bytes of a target's that are held back until its answer is whole.
    flow: Option<u64>,
    ends: Ends,
    stop: CancellationToken,
}

/// An ask that is out: who was asked, and where they answer.
struct Started {
    asked: Vec<usize>,
    inbox: Inbox,
    gathered: Gathered,
    /// Others have had the turn since there was nothing to hear for long enough.
    waited: bool,
    /// Stops whatever still runs, here and (by stream reset) on every node.
    _stop_on_drop: DropGuard,
}

/// What a run is going to ask for first, asked for already.
struct Begun {
    first: Arc<FirstAsk>,
    started: Started,
}

impl Begun {
    fn is(&self, round: Round, task: &NodeTask, targets: &Targets) -> bool {
        let first = &self.first.task;
        self.first.round == round
            && self.first.targets == *targets
            && first.now_unix_ns == task.now_unix_ns
            && first.parts == task.parts
            && first.keys == task.keys
            && first.budget == task.budget
    }
}

impl Asking {
    /// Where the rows of a target go.
    fn rows_of(&self, target: usize) -> Rows {
        match (self.flow, &self.ends) {
            (Some(most), Ends::Flowing(to)) => Rows::Flowing(Flow::new(&self.gathered, most, target, to.clone())),
            _ => Rows::Held(Held::new(&self.gathered)),
        }
    }

    /// Asks one target directly, and says what came of it.
    fn start(&self, runtime: &Handle, (target, to): (usize, Target)) {
        let round = self.clone();
        runtime.spawn(async move {
            let outcome = round.direct(target, &to).await;
            let _ = round.ends.send(Said::Ended(target, outcome)).await;
        });
    }

    async fn direct(&self, target: usize, to: &Target) -> Result<Whole, Lost> {
        let (ask, mut rows) = (&self.ask, self.rows_of(target));
        let outcome = if to.local {
            ask.here(self.stop.clone(), &mut rows).await
        } else {
            tokio::select! {
                stats = ask.there(to, &self.request, ask.deadline, &mut rows) => stats,
                () = self.stop.cancelled() => return Err(Lost::Missing("cancelled".to_owned())),
            }
        };
        rows.ended(outcome)
    }
}

impl MeshFanout {
    /// A fan-out to `targets`, to be used from a thread that may block.
    pub fn new(
        runtime: Handle,
        mesh: Mesh,
        executor: Arc<Executor>,
        targets: Vec<Target>,
        policy: FanoutPolicy,
        deadline: Instant,
        cancelled: CancellationToken,
    ) -> Self {
        Self {
            runtime,
            mesh,
            executor,
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
            place: None,
            begun: None,
            on_the_spot: None,
            brought_bytes: 0,
            answered: BTreeSet::new(),
            missing: BTreeMap::new(),
            lost_midway: false,
            lost: BTreeSet::new(),
        }
    }

    /// Shares the time out between rounds and merge; without it every round may take all of it.
    #[must_use]
    pub(super) fn in_time(self, time: RoundTime) -> Self {
        Self { time: Some(time), ..self }
    }

    /// With the turn of its question, which it gives up while it waits for nodes and holds next to nothing.
    #[must_use]
    pub(super) fn in_place(self, place: Arc<Mutex<Place>>) -> Self {
        Self { place: Some(place), ..self }
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
    pub fn may_begin_again(&self) -> bool {
        self.time.is_none_or(|time| time.may_begin_again(Instant::now()))
    }

    /// Starts over without the nodes that are missing by now; `last_run` when that will not be done again.
    pub fn restart(&mut self, last_run: bool) {
        self.last_run = last_run;
        self.brought_bytes = 0;
        self.lost_midway = false;
        self.lost.clear();
    }

    /// The nodes that answered one round and failed a later one.
    pub fn lost_names(&self) -> String {
        self.lost.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Tells the nodes of a question that is over that the snapshots which they still keep for it may go: between its rounds, or
    /// after the second through a tree.
    pub fn release(&self) {
        if !self.snapshots_kept {
            return;
        }
        self.executor.release(self.question);
        let (question, mesh, tree_above) = (self.question, self.mesh.clone(), self.policy.tree_above);
        let others: Vec<Target> =
            self.present().filter_map(|index| self.targets.get(index)).filter(|to| !to.local).cloned().collect();
        self.runtime.spawn(async move { release::tell(&mesh, question, others, tree_above).await });
    }

    /// Whether these targets are asked through inner nodes.
    fn through_tree(&self, targets: &[usize]) -> bool {
        targets.iter().filter(|&&index| !self.targets[index].local).count() > self.policy.tree_above
    }

    /// What this round's tasks have to do with the other round's; `of_earlier` for nodes that answered that. Nodes keep their
    /// snapshot from the first round on until the second has been answered; behind an inner node until the question is over,
    /// since what an inner node was told may be lost with it.
    fn snapshot(&mut self, of_earlier: bool, through_tree: bool) -> Option<SnapshotUse> {
        let keeps = match self.at {
            Round::Only | Round::Flowing => return None,
            Round::First => true,
            Round::Second => through_tree,
        };
        self.snapshots_kept |= keeps;
        let left = self.question_ends.saturating_duration_since(Instant::now());
        let keep_ms = if keeps { u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1) } else { 0 };
        Some(SnapshotUse { question: self.question, of_earlier, keep_ms })
    }

    /// Starts to ask `targets` the same.
    fn start_all(&self, targets: &[usize], through_tree: bool, round: &Asking) {
        let (here, there): (Vec<usize>, Vec<usize>) = targets.iter().partition(|&&index| self.targets[index].local);
        let direct = |target: usize| round.start(&self.runtime, (target, self.targets[target].clone()));
        if through_tree {
            for group in subtree::groups(there) {
                self.start_group(&group, round);
            }
        } else {
            there.into_iter().for_each(direct);
        }
        here.into_iter().for_each(direct);
    }

    /// Asks a group through one of its nodes; what that leaves open is asked directly.
    fn start_group(&self, group: &[usize], round: &Asking) {
        let group: Vec<_> = group.iter().map(|&target| (target, self.targets[target].clone())).collect();
        let round = round.clone();
        let runtime = self.runtime.clone();
        self.runtime.spawn(async move {
            let rows_of = |target| round.rows_of(target);
            let direct = |leaf| round.start(&runtime, leaf);
            tokio::select! {
                () = subtree::ask(&round.ask, &group, &rows_of, &round.ends, &direct) => {}
                () = round.stop.cancelled() => {}
            }
        });
    }

    /// Asks for what the run will ask for first, so that its thread need not be there to wait: to be called within a runtime. What the
    /// run asks for instead, if it does, is asked anew.
    pub(super) fn begin(&mut self, first: FirstAsk) {
        let asked = match &first.targets {
            Targets::All => self.present().collect(),
            Targets::Named(names) => self.named(names),
            Targets::AnyOne => return,
        };
        self.round(first.round);
        // What is wrong with it the run will meet again.
        if let Ok(started) = self.start(asked, &first.task) {
            self.begun = Some(Begun { first: Arc::new(first), started });
        }
    }

    /// Waits until those asked by [`MeshFanout::begin`] have spoken or there is enough to work on, but not for long.
    pub(super) async fn gather(&mut self) {
        if let Some(Begun { started, .. }) = &mut self.begun {
            started.waited = tokio::time::timeout(PATIENCE, started.inbox.ready()).await.is_err();
        }
    }

    /// Runs what asks for nothing but what was begun, if all of that has been said and is little: without waiting for anything. None
    /// where that is not so, or `run` turned out to be long and was stopped: then nothing has happened.
    pub(super) fn on_the_spot<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T, RunError>,
        over: impl FnOnce() -> bool,
    ) -> Option<Result<T, RunError>> {
        let begun = self.begun.as_mut().filter(|begun| begun.first.is_all && begun.first.round == Round::Only)?;
        if begun.started.gathered.bytes() > SMALL_BYTES {
            return None;
        }
        let said = Arc::new(begun.started.inbox.take_all()?);
        let (asked, gathered) = (begun.started.asked.clone(), begun.started.gathered.clone());
        let first = Arc::clone(&begun.first);
        self.on_the_spot = Some(Arc::clone(&said));
        let outcome = run(self);
        self.on_the_spot = None;
        if !matches!(outcome, Err(RunError::Stopped(_))) || over() {
            return Some(outcome);
        }
        self.restart(false);
        self.missing.clear();
        let started = Started {
            asked,
            inbox: Inbox::of(Arc::unwrap_or_clone(said)),
            gathered,
            waited: true,
            _stop_on_drop: CancellationToken::new().drop_guard(),
        };
        self.begun = Some(Begun { first, started });
        None
    }

    /// Asks the listed targets at once.
    fn start(&mut self, asked: Vec<usize>, task: &NodeTask) -> Result<Started, RunError> {
        if let Some(time) = self.time {
            self.deadline = time.round_ends(Instant::now(), self.at, self.last_run);
        }
        let flow = (self.at == Round::Flowing).then(|| {
            let each = FLOW_BYTES / asked.len().max(1) as u64;
            each.clamp(*FLOW_BYTES_EACH.start(), *FLOW_BYTES_EACH.end())
        });
        let (ends, inbox) = inbox(flow.is_some().then(|| asked.len().min(FLOW_PIECES)));
        let stop = self.cancelled.child_token();
        let _stop_on_drop = stop.clone().drop_guard();
        let gathered = Gathered::new(task.budget.asker_bytes, &self.memory);
        let asked_before = |index: &&usize| self.answered.contains(self.targets[**index].name.as_str());
        let (before, anew): (Vec<usize>, Vec<usize>) = asked.iter().partition(asked_before);
        for (of_earlier, targets) in [(true, before), (false, anew)] {
            if targets.is_empty() {
                continue;
            }
            let through_tree = self.through_tree(&targets);
            let ask = LeafAsk {
                mesh: self.mesh.clone(),
                executor: Arc::clone(&self.executor),
                task: NodeTask { viewer: self.viewer, ..task.clone() },
                snapshot: self.snapshot(of_earlier, through_tree),
                deadline: self.deadline,
            };
            let request = ask.request().map_err(|error| RunError::Internal(error.to_string()))?;
            let (gathered, ends, stop) = (gathered.clone(), ends.clone(), stop.clone());
            self.start_all(&targets, through_tree, &Asking { ask: Arc::new(ask), request, gathered, flow, ends, stop });
        }
        drop(ends);
        Ok(Started { asked, inbox, gathered, waited: false, _stop_on_drop })
    }

    /// Asks the listed targets at once and waits for every one of them.
    fn ask_these(
        &mut self,
        asked: Vec<usize>,
        task: &NodeTask,
        sink: Sink<'_>,
    ) -> Result<Vec<(String, NodeStats)>, RunError> {
        let started = self.start(asked, task)?;
        self.hear(started, task, sink)
    }

    /// Waits for every one of those that were asked.
    fn hear(
        &mut self,
        mut started: Started,
        task: &NodeTask,
        sink: Sink<'_>,
    ) -> Result<Vec<(String, NodeStats)>, RunError> {
        let mut answered = Vec::with_capacity(started.asked.len());
        let at_hand = self.on_the_spot.clone();
        let mut at_hand = at_hand.as_ref().map(|said| said.iter());
        loop {
            let said = match &mut at_hand {
                None => self.next_said(&mut started),
                Some(said) => match said.next() {
                    Some(Said::Ended(target, Ok((batches, stats)))) => {
                        let name = self.targets[*target].name.to_string();
                        for (part, batch) in batches {
                            sink(&name, *part, Cow::Borrowed(batch))?;
                        }
                        self.answered.insert(name.clone());
                        answered.push((name, stats.clone()));
                        continue;
                    }
                    said => said.cloned(),
                },
            };
            let Some(said) = said else { break };
            let (target, outcome) = match said {
                Said::Rows(target, (part, batch)) => {
                    let memory = batch.size_bytes();
                    sink(self.targets[target].name.as_str(), part, Cow::Owned(batch))?;
                    started.gathered.merged(memory);
                    continue;
                }
                Said::Ended(target, outcome) => (target, outcome),
            };
            let name = self.targets[target].name.to_string();
            match outcome {
                Ok((batches, stats)) => {
                    for (part, batch) in batches {
                        let memory = batch.size_bytes();
                        sink(&name, part, Cow::Owned(batch))?;
                        started.gathered.merged(memory);
                    }
                    self.answered.insert(name.clone());
                    answered.push((name, stats));
                }
                Err(Lost::Sql(message)) => return Err(RunError::Sql(message)),
                Err(Lost::BrokeOff { rows, why }) => {
                    let message = format!(
                        "{name} broke off after {rows} of its rows had gone out ({why}): what was printed is not an answer; ask again, \
                         with a longer --timeout if time was short"
                    );
                    self.missing.insert(name, why);
                    return Err(RunError::Internal(message));
                }
                Err(Lost::OverBudget(Some(why))) => return Err(RunError::OverBudget(why.to_string())),
                Err(Lost::OverBudget(None)) => {
                    let tables: Vec<&str> = task.parts.iter().map(|part| part.table.as_str()).collect();
                    return Err(RunError::OverBudget(format!(
                        "more than {} MiB at the asker while gathering {}; narrow it with WHERE, fewer columns or LIMIT",
                        task.budget.asker_bytes >> 20,
                        tables.join(", ")
                    )));
                }
                Err(Lost::Unreached(reason) | Lost::Missing(reason)) => {
                    if self.answered.contains(&name) {
                        self.lost_midway = true;
                        self.lost.insert(name.clone());
                    }
                    self.missing.insert(name, reason);
                }
            }
        }
        self.brought_bytes += started.gathered.bytes();
        if self.cancelled.is_cancelled() {
            return Err(RunError::Stopped("cancelled".into()));
        }
        if self.lost_midway {
            return Err(RunError::Stopped("a node was lost between two rounds of the question".into()));
        }
        answered.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(answered)
    }

    /// What a target says next. While nothing comes and little is held, other questions have the turn; a question that does not
    /// get it again in time goes on without: there is little to merge.
    fn next_said(&self, started: &mut Started) -> Option<Said> {
        let Started { inbox, gathered, waited, .. } = started;
        if let Some(heard) = inbox.heard() {
            return Some(heard);
        }
        let Some(place) = &self.place else { return self.runtime.block_on(inbox.next()) };
        let mut place = lock(place);
        let holds_little = || self.brought_bytes + gathered.bytes() <= LITTLE_BYTES;
        let patience = match (holds_little(), std::mem::take(waited)) {
            (true, true) => Duration::ZERO,
            (true, false) => PATIENCE,
            (false, _) => Duration::MAX,
        };
        let said = place.wait_for(patience, inbox.next());
        place.back(if holds_little() { self.deadline } else { self.question_ends });
        said
    }

    fn named(&self, names: &[String]) -> Vec<usize> {
        let is_named = |index: &usize| names.iter().any(|name| name == self.targets[*index].name.as_str());
        self.present().filter(is_named).collect()
    }

    fn present(&self) -> impl Iterator<Item = usize> {
        (0..self.targets.len()).filter(|&index| !self.missing.contains_key(self.targets[index].name.as_str()))
    }
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
        if let Some(begun) = self.begun.take().filter(|begun| begun.is(self.at, task, targets)) {
            return self.hear(begun.started, task, sink);
        }
        if self.on_the_spot.is_some() {
            return Err(RunError::Stopped("not all of it has been said".into()));
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
