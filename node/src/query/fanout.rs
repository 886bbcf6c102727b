//! The fan-out of one question over the mesh: implements the planner's [`Fanout`] with QUIC.
//!
//! Every target is asked at once, in a large mesh through inner nodes (`subtree`). A node's batches are held until its answer is whole, so that a node that fails half
//! way contributes nothing. When a node that answered an earlier round fails in a later one, or no longer has the snapshot
//! that it answered from (`kept`), the question must run again without it: `lost_midway` says so and [`super::ask`] does
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use query_planner::{Fanout, NodeStats, NodeTask, Round, RunError, Sink, Targets};
use rand::RngExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::admission::Place;
use super::exec::Executor;
use super::kept::SnapshotUse;
use super::leaf::{Flow, Gathered, Held, LeafAsk, Lost, Rows, Said, Target, Whole};
use super::subtree::{self, FanoutPolicy};
use super::time::RoundTime;
use crate::lock::lock;
use crate::mesh::wire::Request;
use crate::mesh::{Encoded, Mesh};

/// Rows of nodes whose answers are not whole yet are held back up to so many bytes, of each within these bounds, where
/// rows go on to the user as they come; so a node that fails early leaves nothing behind.
const FLOW_BYTES: u64 = 8 << 20;
const FLOW_BYTES_EACH: std::ops::RangeInclusive<u64> = 32 << 10..=1 << 20;
/// Pieces of such answers on their way.
const FLOW_PIECES: usize = 8;

/// A question that waits for nodes keeps its turn so long; and it keeps it where it holds more than so much.
const PATIENCE: Duration = Duration::from_millis(20);
const LITTLE_BYTES: u64 = 1 << 20;

/// How long nodes are told that a question is over, and how many at a time.
const RELEASE_PATIENCE: Duration = Duration::from_secs(2);
const RELEASES_AT_ONCE: usize = 32;

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
    /// When the question itself ends: snapshots are kept until then.
    question_ends: Instant,
    /// The number under which nodes keep snapshots between its rounds.
    question: u128,
    /// Where in it the next ask is.
    at: Round,
    /// Whether it will not begin again, whoever is lost.
    last_run: bool,
    cancelled: CancellationToken,
    /// The turn of its question, where there are turns.
    place: Option<Arc<Mutex<Place>>>,
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
    ends: mpsc::Sender<Said>,
    stop: CancellationToken,
}

impl Asking {
    /// Where the rows of a target go.
    fn rows_of(&self, target: usize) -> Rows {
        match self.flow {
            Some(most) => Rows::Flowing(Flow::new(&self.gathered, most, target, self.ends.clone())),
            None => Rows::Held(Held::new(&self.gathered)),
        }
    }

    async fn direct(&self, ask: &LeafAsk, target: usize, to: &Target) -> Result<Whole, Lost> {
        let mut rows = self.rows_of(target);
        let outcome = if to.local {
            ask.here(self.stop.clone(), &mut rows).await
        } else {
            tokio::select! {
                stats = ask.there(to, &self.request, &mut rows) => stats,
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
            question_ends: deadline,
            question: rand::rng().random(),
            at: Round::Only,
            last_run: false,
            cancelled,
            place: None,
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

    /// Tells the nodes of a question that ended between its rounds that their snapshots may go. Who does not hear it
    /// gives its snapshot up when the question's time is over.
    pub fn release(&self) {
        if self.at != Round::First {
            return;
        }
        let (question, mesh) = (self.question, self.mesh.clone());
        self.executor.release(question);
        let others: Vec<Target> =
            self.present().filter_map(|index| self.targets.get(index)).filter(|to| !to.local).cloned().collect();
        let until = Instant::now() + RELEASE_PATIENCE;
        self.runtime.spawn(async move {
            let told = others.into_iter().map(|to| {
                let mesh = mesh.clone();
                async move {
                    let asked = mesh.ask(&to.name, to.address, Request::Release(question), until.into()).await;
                    if let Ok(mut answer) = asked {
                        let _ = answer.next().await;
                    }
                }
            });
            futures::stream::iter(told).for_each_concurrent(RELEASES_AT_ONCE, |told| told).await;
        });
    }

    /// What this round's tasks have to do with the other round's; `of_earlier` for nodes that answered that.
    fn snapshot(&self, of_earlier: bool) -> Option<SnapshotUse> {
        let keep_ms = match self.at {
            Round::Only | Round::Flowing => return None,
            Round::First => {
                let left = self.question_ends.saturating_duration_since(Instant::now());
                u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1)
            }
            Round::Second => 0,
        };
        Some(SnapshotUse { question: self.question, of_earlier, keep_ms })
    }

    /// Starts to ask `targets` the same.
    fn start_all(&self, targets: &[usize], round: &Asking) {
        let (here, there): (Vec<usize>, Vec<usize>) = targets.iter().partition(|&&index| self.targets[index].local);
        if there.len() > self.policy.tree_above {
            for group in subtree::groups(there) {
                self.start_group(&group, round);
            }
        } else {
            for target in there {
                self.start(target, round);
            }
        }
        for target in here {
            self.start(target, round);
        }
    }

    /// Asks one target directly.
    fn start(&self, target: usize, round: &Asking) {
        let (to, round, ask) = (self.targets[target].clone(), round.clone(), Arc::clone(&round.ask));
        self.runtime.spawn(async move {
            let outcome = round.direct(&ask, target, &to).await;
            let _ = round.ends.send(Said::Ended(target, outcome)).await;
        });
    }

    /// Asks a group through one of its nodes; what that leaves open is asked directly.
    fn start_group(&self, group: &[usize], round: &Asking) {
        let group: Vec<_> = group.iter().map(|&target| (target, self.targets[target].clone())).collect();
        let (round, ask) = (round.clone(), Arc::clone(&round.ask));
        self.runtime.spawn(async move {
            let rows_of = |target| round.rows_of(target);
            let open = tokio::select! {
                open = subtree::ask(&ask, &group, &rows_of, &round.ends) => open,
                () = round.stop.cancelled() => return,
            };
            let direct = open.into_iter().map(|(target, to)| {
                let (round, ask) = (&round, &ask);
                async move {
                    let outcome = round.direct(ask, target, &to).await;
                    let _ = round.ends.send(Said::Ended(target, outcome)).await;
                }
            });
            futures::future::join_all(direct).await;
        });
    }

    /// Asks the listed targets at once and waits for every one of them.
    fn ask_these(
        &mut self,
        asked: &[usize],
        task: &NodeTask,
        sink: Sink<'_>,
    ) -> Result<Vec<(String, NodeStats)>, RunError> {
        if let Some(time) = self.time {
            self.deadline = time.round_ends(Instant::now(), self.at, self.last_run);
        }
        let flow = (self.at == Round::Flowing).then(|| {
            let each = FLOW_BYTES / asked.len().max(1) as u64;
            each.clamp(*FLOW_BYTES_EACH.start(), *FLOW_BYTES_EACH.end())
        });
        let room = if flow.is_some() { asked.len().min(FLOW_PIECES) } else { asked.len() };
        let (ends, mut inbox) = mpsc::channel(room.max(1));
        // Dropping the guard stops whatever still runs, here and (by stream reset) on every node.
        let stop = self.cancelled.child_token();
        let _stop_on_return = stop.clone().drop_guard();
        let gathered = Gathered::new(task.budget.asker_bytes);
        let asked_before = |index: &&usize| self.answered.contains(self.targets[**index].name.as_str());
        let (before, anew): (Vec<usize>, Vec<usize>) = asked.iter().partition(asked_before);
        for (of_earlier, targets) in [(true, before), (false, anew)] {
            if targets.is_empty() {
                continue;
            }
            let ask = LeafAsk {
                mesh: self.mesh.clone(),
                executor: Arc::clone(&self.executor),
                task: NodeTask { viewer: self.viewer, ..task.clone() },
                snapshot: self.snapshot(of_earlier),
                deadline: self.deadline,
            };
            let request = ask.request().map_err(|error| RunError::Internal(error.to_string()))?;
            let (gathered, ends, stop) = (gathered.clone(), ends.clone(), stop.clone());
            self.start_all(&targets, &Asking { ask: Arc::new(ask), request, gathered, flow, ends, stop });
        }
        drop(ends);

        let mut answered = Vec::with_capacity(asked.len());
        while let Some(said) = self.next_said(&mut inbox, &gathered) {
            let (target, outcome) = match said {
                Said::Rows(target, (part, batch)) => {
                    sink(self.targets[target].name.as_str(), part, batch)?;
                    continue;
                }
                Said::Ended(target, outcome) => (target, outcome),
            };
            let name = self.targets[target].name.to_string();
            match outcome {
                Ok((batches, stats)) => {
                    for (part, batch) in batches {
                        sink(&name, part, batch)?;
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
                Err(Lost::OverBudget) => {
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
        self.brought_bytes += gathered.bytes();
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
    fn next_said(&self, inbox: &mut mpsc::Receiver<Said>, gathered: &Gathered) -> Option<Said> {
        let Some(place) = &self.place else { return inbox.blocking_recv() };
        if let Ok(said) = inbox.try_recv() {
            return Some(said);
        }
        let mut place = lock(place);
        let holds_little = || self.brought_bytes + gathered.bytes() <= LITTLE_BYTES;
        let patience = if holds_little() { PATIENCE } else { Duration::MAX };
        let said = place.wait_for(patience, inbox.recv());
        place.back(if holds_little() { self.deadline } else { self.question_ends });
        said
    }

    fn present(&self) -> impl Iterator<Item = usize> {
        (0..self.targets.len()).filter(|&index| !self.missing.contains_key(self.targets[index].name.as_str()))
    }
}

impl Fanout for MeshFanout {
    fn round(&mut self, round: Round) {
        self.at = round;
        if round != Round::Second {
            self.answered.clear();
        }
    }

    fn ask(
        &mut self,
        task: &NodeTask,
        targets: &Targets,
        sink: Sink<'_>,
    ) -> Result<Vec<(String, NodeStats)>, RunError> {
        match targets {
            Targets::All => {
                let asked: Vec<usize> = self.present().collect();
                self.ask_these(&asked, task, sink)
            }
            Targets::Named(names) => {
                let asked: Vec<usize> = self
                    .present()
                    .filter(|&index| names.iter().any(|name| name == self.targets[index].name.as_str()))
                    .collect();
                self.ask_these(&asked, task, sink)
            }
            Targets::AnyOne => {
                // This node first, then the others until one answers.
                let mut candidates: Vec<usize> = self.present().collect();
                candidates.sort_by_key(|&index| !self.targets[index].local);
                for candidate in candidates {
                    let answered = self.ask_these(&[candidate], task, &mut *sink)?;
                    if !answered.is_empty() {
                        return Ok(answered);
                    }
                }
                Ok(Vec::new())
            }
        }
    }
}
