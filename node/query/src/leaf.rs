//! One node's fragment of a question, asked of it wherever it is: here, or over the mesh. Its rows
//! go into a `RowSink` as they come. `fanout` asks many of them at once for a question of this
//! host, `aggregator` for another node's.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use certs::NodeName;
use gossip::Seat;
use mesh::{AskError, Encoded};
use model::failure::shown;
use model::wire::{Request, Response};
use model::{Failure, FailureKind, SnapshotUse};
use query_planner::memory::{Account, Refused, SharedReservation};
use query_planner::{Batch, NodeStats, NodeTask};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::exec::Executor;
use super::way::Way;

/// The coordinator that a node's own questions wait as.
const LOCAL: &str = "this node";

/// A node to ask.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its name; the certificate of the connection must have the same.
    pub name: NodeName,
    /// Where it listens.
    pub address: SocketAddr,
    /// True for a node of this process: no network.
    pub local: bool,
    /// Its place in a mesh of several cells.
    pub seat: Seat,
}

/// Why a target's answer is not in the result.
#[derive(Debug, Clone)]
pub(super) enum LeafFailure {
    /// Its own, or of the way to it: the target is missing from coverage, but an error of the SQL
    /// itself is the question's.
    Failed(Failure),
    /// What has been gathered from all targets is more data than a question may gather, or more
    /// memory than it may have.
    OverBudget(Option<Refused>),
    /// Rows of it have gone on to the user already, and the rest will not come.
    BrokeOff {
        /// How many.
        rows: u64,
        /// What happened.
        why: Failure,
    },
}

/// Notes of one node that are kept.
const MAX_NOTES: usize = 100;

/// A node's statistics, its notes cut to what is shown.
pub(super) fn shown_stats(mut stats: NodeStats) -> NodeStats {
    stats.notes.truncate(MAX_NOTES);
    stats.notes.iter_mut().for_each(|note| *note = shown(note));
    stats
}

impl LeafFailure {
    /// Its own; perhaps in another node's words.
    pub(super) fn of(failure: impl Into<Failure>) -> Self {
        Self::Failed(failure.into().shown())
    }

    /// Whether there can be no answer to the question.
    pub(super) fn is_of_question(&self) -> bool {
        !matches!(self, Self::Failed(failure) if failure.kind != FailureKind::Sql)
    }
}

/// The complete answer of one target: its batches with the index of their fragment, and what it
/// did.
pub(super) type LeafAnswer = (Vec<(usize, Batch)>, NodeStats);

/// Counts what all targets of a round have sent so far; it is buffered until each answer is
/// complete.
#[derive(Debug, Clone)]
pub(super) struct BufferedBytes {
    /// Bytes of data.
    bytes: Arc<AtomicU64>,
    limit: u64,
    /// The question's memory that batches take until they are merged.
    memory: Arc<SharedReservation>,
}

impl BufferedBytes {
    /// Nothing yet, of at most `limit` bytes of data and as much memory as the account has.
    pub(super) fn new(limit: u64, account: &Arc<Account>) -> Self {
        Self { bytes: Arc::default(), limit, memory: Arc::new(SharedReservation::of(account)) }
    }

    /// Bytes of data.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn take(&self, data: u64, memory: u64) -> Result<(), LeafFailure> {
        if self.bytes.fetch_add(data, Ordering::Relaxed).saturating_add(data) > self.limit {
            return Err(LeafFailure::OverBudget(None));
        }
        self.memory.try_grow(memory).map_err(|why| LeafFailure::OverBudget(Some(why)))
    }

    /// Batches of so much memory are counted by others from now on, or dropped.
    pub(super) fn merged(&self, memory: u64) {
        self.memory.shrink(memory);
    }
}

/// The batches of one target whose answer is not complete yet. Dropped, they no longer count
/// against the budget.
#[derive(Debug)]
pub(super) struct BufferedRows {
    total: BufferedBytes,
    batches: Vec<(usize, Batch)>,
    /// Bytes of data that count, and of memory.
    bytes: u64,
    memory: u64,
    /// Rows and bytes of data that came.
    came: (u64, u64),
}

impl BufferedRows {
    pub(super) fn new(total: &BufferedBytes) -> Self {
        Self { total: total.clone(), batches: Vec::new(), bytes: 0, memory: 0, came: (0, 0) }
    }

    /// `data`: the batch's [`Batch::data_bytes`].
    fn push(&mut self, fragment: usize, batch: Batch, data: u64) -> Result<(), LeafFailure> {
        let memory = batch.size_bytes();
        self.bytes += data;
        self.came = (self.came.0.saturating_add(batch.rows.into()), self.came.1.saturating_add(data));
        self.total.take(data, memory)?;
        self.memory += memory;
        self.batches.push((fragment, batch));
        Ok(())
    }

    /// The batches buffered so far, whose data no longer count; their memory does until they are
    /// [`BufferedBytes::merged`].
    fn drain(&mut self) -> Vec<(usize, Batch)> {
        self.total.bytes.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
        self.memory = 0;
        std::mem::take(&mut self.batches)
    }

    /// The batches of a complete answer; they go on counting against the budget.
    pub(super) fn into_answer(mut self, stats: NodeStats) -> LeafAnswer {
        (self.bytes, self.memory) = (0, 0);
        (std::mem::take(&mut self.batches), stats)
    }
}

impl Drop for BufferedRows {
    fn drop(&mut self) {
        self.total.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.total.merged(self.memory);
    }
}

/// What came from a target of a round: its number among all of them, and some rows or the end.
#[derive(Debug, Clone)]
pub(super) enum LeafEvent {
    /// Rows of a fragment, of an answer that is not complete yet.
    Rows(usize, (usize, Batch)),
    /// Its answer, less the rows that were passed on before, or why there is none.
    Finished(usize, Result<LeafAnswer, LeafFailure>),
}

/// The rows of one target that go on to the user: buffered until its answer is complete, so that a
/// target that fails leaves nothing behind, but not more of them than fit; then passed on as they
/// come.
#[derive(Debug)]
pub(super) struct StreamedRows {
    buffered: BufferedRows,
    max_buffered_bytes: u64,
    sent_rows: u64,
    target: usize,
    to: mpsc::Sender<LeafEvent>,
}

impl StreamedRows {
    pub(super) fn new(
        total: &BufferedBytes,
        max_buffered_bytes: u64,
        target: usize,
        to: mpsc::Sender<LeafEvent>,
    ) -> Self {
        Self { buffered: BufferedRows::new(total), max_buffered_bytes, sent_rows: 0, target, to }
    }

    async fn push(&mut self, fragment: usize, batch: Batch, data: u64) -> Result<(), LeafFailure> {
        self.buffered.push(fragment, batch, data)?;
        if self.sent_rows == 0 && self.buffered.bytes <= self.max_buffered_bytes {
            return Ok(());
        }
        for (fragment, batch) in self.buffered.drain() {
            self.sent_rows += u64::from(batch.rows);
            let event = LeafEvent::Rows(self.target, (fragment, batch));
            self.to.send(event).await.map_err(|_| LeafFailure::of("cancelled"))?;
        }
        Ok(())
    }
}

/// Where a target's rows go.
#[derive(Debug)]
pub(super) enum RowSink {
    /// Buffered until the answer is complete.
    Buffered(BufferedRows),
    /// To the user.
    Streamed(StreamedRows),
}

impl RowSink {
    /// Takes some rows; waits while there is no room for them.
    async fn take(&mut self, fragment: usize, batch: Batch, data: u64) -> Result<(), LeafFailure> {
        match self {
            Self::Buffered(buffered) => buffered.push(fragment, batch, data),
            Self::Streamed(streamed) => streamed.push(fragment, batch, data).await,
        }
    }

    /// Rows and bytes of data that came.
    fn came(&self) -> (u64, u64) {
        match self {
            Self::Buffered(buffered) | Self::Streamed(StreamedRows { buffered, .. }) => buffered.came,
        }
    }

    /// Rows that have gone on to the user: the target cannot be asked again.
    pub(super) fn sent_rows(&self) -> u64 {
        match self {
            Self::Streamed(streamed) => streamed.sent_rows,
            Self::Buffered(_) => 0,
        }
    }

    /// The end of the target's answer.
    pub(super) fn finish(self, outcome: Result<NodeStats, LeafFailure>) -> Result<LeafAnswer, LeafFailure> {
        let rows = self.sent_rows();
        match (outcome, self) {
            (Ok(stats), Self::Buffered(buffered) | Self::Streamed(StreamedRows { buffered, .. })) => {
                Ok(buffered.into_answer(shown_stats(stats)))
            }
            (Err(LeafFailure::Failed(why)), _) if rows > 0 && why.kind != FailureKind::Sql => {
                Err(LeafFailure::BrokeOff { rows, why })
            }
            (Err(failure), _) => Err(failure),
        }
    }
}

/// The request that many nodes get.
#[derive(Clone)]
pub struct LeafRequest {
    /// The way to them.
    pub way: Way,
    /// What to do.
    pub task: NodeTask,
    /// How it is related to another round of its question.
    pub snapshot: Option<SnapshotUse>,
    /// Until when.
    pub deadline: Instant,
}

impl LeafRequest {
    /// Time left, milliseconds.
    pub(super) fn left_ms(&self) -> u32 {
        let left = self.deadline.saturating_duration_since(Instant::now());
        u32::try_from(left.as_millis()).unwrap_or(u32::MAX)
    }

    /// The request to every other node.
    pub(super) fn encoded(&self) -> Result<Encoded, AskError> {
        let (deadline_ms, task) = (self.left_ms(), self.task.clone());
        Encoded::of(&match self.snapshot {
            None => Request::Task { deadline_ms, task },
            Some(snapshot) => Request::RoundTask { deadline_ms, task, snapshot },
        })
    }

    /// Takes some rows of a fragment of the task, of so many nodes, where they fit the task and are not
    /// more than these may send: the only way into a [`RowSink`].
    pub(super) async fn accept(
        &self,
        rows: &mut RowSink,
        nodes: usize,
        fragment: u32,
        batch: Batch,
    ) -> Result<(), LeafFailure> {
        let at = usize::try_from(fragment).unwrap_or(usize::MAX);
        let fault = |why: &str| LeafFailure::of(format!("failed: its answer makes no sense: {why}"));
        let of_task =
            self.task.fragments.get(at).ok_or_else(|| fault("rows of a fragment that it was not asked for"))?;
        of_task.check(&batch).map_err(|why| fault(&why))?;
        let (data, (came, bytes)) = (batch.data_bytes(), rows.came());
        let of_all = |of_one: u64| of_one.saturating_mul(nodes as u64).saturating_mul(self.task.fragments.len() as u64);
        let (most_rows, most_bytes) = (of_all(self.task.budget.node_rows), of_all(self.task.budget.node_bytes));
        if came.saturating_add(batch.rows.into()) > most_rows || bytes.saturating_add(data) > most_bytes {
            return Err(fault(&format!(
                "it is longer than the {most_rows} rows and {} MiB that it may have",
                most_bytes >> 20
            )));
        }
        rows.take(at, batch, data).await
    }

    /// The fragment of a node of this process, without the network.
    pub(super) async fn run_here(
        &self,
        node: &NodeName,
        stop: CancellationToken,
        rows: &mut RowSink,
    ) -> Result<NodeStats, LeafFailure> {
        let Some(executor) = self.way.executor_of(node) else {
            return Err(LeafFailure::of("failed: it is not in this process"));
        };
        if let Some(small) = executor.run_inline(&self.task, self.snapshot) {
            let small = small.map_err(LeafFailure::of)?;
            for (fragment, batch) in small.batches {
                self.accept(rows, 1, u32::try_from(fragment).unwrap_or(u32::MAX), batch).await?;
            }
            return Ok(small.stats);
        }
        // A future of its own, so that others are not as large.
        Box::pin(self.run_here_on_thread(executor, stop, rows)).await
    }

    async fn run_here_on_thread(
        &self,
        executor: &Arc<Executor>,
        stop: CancellationToken,
        rows: &mut RowSink,
    ) -> Result<NodeStats, LeafFailure> {
        let (batches, mut produced) = mpsc::channel(4);
        let running = Arc::clone(executor).run(LOCAL, self.task.clone(), self.snapshot, self.deadline, stop, batches);
        let gather = async {
            while let Some((fragment, batch, _counted)) = produced.recv().await {
                if let Err(failure) = self.accept(rows, 1, u32::try_from(fragment).unwrap_or(u32::MAX), batch).await {
                    produced.close();
                    return Err(failure);
                }
            }
            Ok(())
        };
        let (outcome, gathered) = tokio::join!(running, gather);
        gathered?;
        outcome.map_err(LeafFailure::of)
    }

    /// Another node's fragment. One that has not been reached by `reached_by` counts as
    /// unreachable.
    pub(super) async fn run_at(
        &self,
        to: &Target,
        request: &Encoded,
        reached_by: Instant,
        rows: &mut RowSink,
    ) -> Result<NodeStats, LeafFailure> {
        let Some(mesh) = self.way.mesh() else {
            return Err(LeafFailure::of("failed: there is no mesh to ask it through"));
        };
        let asked = mesh.ask_encoded(&to.name, to.address, request, self.deadline.into());
        let mut responses = if reached_by < self.deadline {
            let reached = tokio::time::timeout_at(reached_by.into(), asked).await;
            let late = || Failure::new(FailureKind::Unreachable, "unreachable: no sign of it in half of the time");
            reached.map_err(|_| LeafFailure::of(late()))?
        } else {
            asked.await
        }
        .map_err(LeafFailure::of)?;
        loop {
            match responses.next().await.map_err(LeafFailure::of)? {
                Some(Response::Batch { fragment, batch }) => self.accept(rows, 1, fragment, batch).await?,
                Some(Response::Done(stats)) => return Ok(stats),
                Some(Response::Failed(error)) => return Err(LeafFailure::of(error)),
                Some(Response::Unsupported(what)) => {
                    return Err(LeafFailure::of(Failure::new(FailureKind::Refused, format!("refused: {what}"))));
                }
                Some(other) => return Err(LeafFailure::of(format!("failed: {}", other.summary()))),
                None => return Err(LeafFailure::of("failed: its answer ended early")),
            }
        }
    }
}
