//! The fan-out of one question over the mesh: implements the planner's [`Fanout`] with QUIC.
//!
//! Every target is asked at once. A node's batches are held until its answer is whole, so that a node that fails half
//! way contributes nothing. When a node that answered an earlier round fails in a later one, the question must run
//! again without it: `lost_midway` says so and [`super::ask`] does it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use certs::NodeName;
use query_planner::{Batch, Fanout, NodeError, NodeStats, NodeTask, RunError, Sink, Targets};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::exec::Executor;
use super::time::RoundTime;
use crate::mesh::wire::{Request, Response};
use crate::mesh::{AskError, Mesh};

/// A node to ask.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its name; the certificate on the connection must say the same.
    pub name: NodeName,
    /// Where it listens.
    pub address: SocketAddr,
    /// True for the asker itself: no network.
    pub local: bool,
}

/// Asks `targets`; lives for one question, on a blocking thread.
pub struct MeshFanout {
    runtime: Handle,
    mesh: Mesh,
    executor: Arc<Executor>,
    targets: Vec<Target>,
    /// Of the round at hand.
    deadline: Instant,
    time: Option<RoundTime>,
    cancelled: CancellationToken,
    /// Nodes whose rows are in the result of this run.
    pub answered: BTreeSet<String>,
    /// Nodes that did not answer, with the reason.
    pub missing: BTreeMap<String, String>,
    /// A node answered one round and failed a later one.
    pub lost_midway: bool,
}

/// Why a target's answer is not in the result.
enum Lost {
    /// It is missing from coverage for this reason; the others' answers count.
    Missing(String),
    /// The SQL itself fails, as it would on the union.
    Sql(String),
    /// What has been gathered from all targets does not fit the asker's budget.
    OverBudget,
}

/// The whole answer of one target: its batches with the index of their part, and what it did.
type Whole = (Vec<(usize, Batch)>, NodeStats);

/// Bytes that all targets of a round have sent so far: they are held until each answer is whole.
#[derive(Debug, Clone)]
struct Gathered {
    bytes: Arc<AtomicU64>,
    limit: u64,
}

impl Gathered {
    fn take(&self, batch: &Batch) -> Result<(), Lost> {
        let more = batch.size_bytes();
        let before = self.bytes.fetch_add(more, Ordering::Relaxed);
        if before.saturating_add(more) > self.limit { Err(Lost::OverBudget) } else { Ok(()) }
    }
}

/// A target is done.
struct End {
    target: usize,
    outcome: Result<Whole, Lost>,
}

impl MeshFanout {
    /// A fan-out to `targets`, to be used from a thread that may block.
    pub fn new(
        runtime: Handle,
        mesh: Mesh,
        executor: Arc<Executor>,
        targets: Vec<Target>,
        deadline: Instant,
        cancelled: CancellationToken,
    ) -> Self {
        Self {
            runtime,
            mesh,
            executor,
            targets,
            deadline,
            time: None,
            cancelled,
            answered: BTreeSet::new(),
            missing: BTreeMap::new(),
            lost_midway: false,
        }
    }

    /// Shares the time out between rounds and merge; without it every round may take all of it.
    #[must_use]
    pub(super) fn in_time(self, time: RoundTime) -> Self {
        Self { time: Some(time), ..self }
    }

    /// Starts over without the nodes that are missing by now.
    pub fn restart(&mut self) {
        self.answered.clear();
        self.lost_midway = false;
    }

    fn start(
        &self,
        target: usize,
        task: NodeTask,
        gathered: Gathered,
        ends: mpsc::Sender<End>,
        stop: CancellationToken,
    ) {
        let to = self.targets[target].clone();
        let (mesh, executor, deadline) = (self.mesh.clone(), Arc::clone(&self.executor), self.deadline);
        self.runtime.spawn(async move {
            let outcome = if to.local {
                ask_here(executor, task, deadline, stop, &gathered).await
            } else {
                tokio::select! {
                    outcome = ask_there(&mesh, &to, task, deadline, &gathered) => outcome,
                    () = stop.cancelled() => Err(Lost::Missing("cancelled".to_owned())),
                }
            };
            let _ = ends.send(End { target, outcome }).await;
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
            self.deadline = time.round_ends(Instant::now());
        }
        let (ends, mut inbox) = mpsc::channel(asked.len().max(1));
        // Dropping the guard stops whatever still runs, here and (by stream reset) on every node.
        let stop = self.cancelled.child_token();
        let _stop_on_return = stop.clone().drop_guard();
        let gathered = Gathered { bytes: Arc::default(), limit: task.budget.asker_bytes };
        for &index in asked {
            self.start(index, task.clone(), gathered.clone(), ends.clone(), stop.clone());
        }
        drop(ends);

        let mut answered = Vec::with_capacity(asked.len());
        while let Some(End { target, outcome }) = inbox.blocking_recv() {
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
                Err(Lost::OverBudget) => {
                    let tables: Vec<&str> = task.parts.iter().map(|part| part.table.as_str()).collect();
                    return Err(RunError::OverBudget(format!(
                        "more than {} MiB at the asker while gathering {}; narrow it with WHERE, fewer columns or LIMIT",
                        task.budget.asker_bytes >> 20,
                        tables.join(", ")
                    )));
                }
                Err(Lost::Missing(reason)) => {
                    self.lost_midway |= self.answered.contains(&name);
                    self.missing.insert(name, reason);
                }
            }
        }
        if self.cancelled.is_cancelled() {
            return Err(RunError::Stopped("cancelled".into()));
        }
        if self.lost_midway {
            return Err(RunError::Stopped("a node was lost between two rounds".into()));
        }
        answered.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(answered)
    }

    fn present(&self) -> impl Iterator<Item = usize> {
        (0..self.targets.len()).filter(|&index| !self.missing.contains_key(self.targets[index].name.as_str()))
    }
}

impl Fanout for MeshFanout {
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

/// The asker's own part, without the network.
async fn ask_here(
    executor: Arc<Executor>,
    task: NodeTask,
    deadline: Instant,
    stop: CancellationToken,
    gathered: &Gathered,
) -> Result<Whole, Lost> {
    if let Some(small) = executor.run_small(&task) {
        return small.map(|small| (small.batches, small.stats)).map_err(lost);
    }
    let (batches, mut produced) = mpsc::channel(16);
    let running = executor.run(task, deadline, stop, batches);
    let gather = async {
        let mut whole = Vec::new();
        while let Some((part, batch)) = produced.recv().await {
            gathered.take(&batch)?;
            whole.push((part, batch));
        }
        Ok(whole)
    };
    let (outcome, whole) = tokio::join!(running, gather);
    let whole = whole?;
    outcome.map(|stats| (whole, stats)).map_err(lost)
}

async fn ask_there(
    mesh: &Mesh,
    to: &Target,
    task: NodeTask,
    deadline: Instant,
    gathered: &Gathered,
) -> Result<Whole, Lost> {
    let left = deadline.saturating_duration_since(Instant::now());
    let request = Request::Task { deadline_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX), task };
    let missing = |error: AskError| Lost::Missing(error.to_string());
    let mut responses = mesh.ask(&to.name, to.address, request, deadline.into()).await.map_err(missing)?;
    let mut batches = Vec::new();
    loop {
        match responses.next().await.map_err(missing)? {
            Some(Response::Batch { part, batch }) => {
                gathered.take(&batch)?;
                batches.push((part as usize, batch));
            }
            Some(Response::Done(stats)) => return Ok((batches, stats)),
            Some(Response::Failed(error)) => return Err(lost(error)),
            Some(Response::Unsupported(what)) => return Err(Lost::Missing(format!("refused: {what}"))),
            other => return Err(Lost::Missing(format!("failed: unexpected answer {other:?}"))),
        }
    }
}

fn lost(error: NodeError) -> Lost {
    match error {
        NodeError::Sql(message) => Lost::Sql(message),
        NodeError::Stopped(why) if why.contains("deadline") => Lost::Missing(format!("timeout: {why}")),
        other => Lost::Missing(other.to_string()),
    }
}
