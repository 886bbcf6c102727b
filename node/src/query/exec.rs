//! Running a task on this node's own store: read-only connections, deadline, cancellation; and the choice of executor:
//! what the store answers from its columns goes there, the rest to SQLite.
//!
//! SQLite blocks, so a task runs on a blocking thread; its progress handler looks at the deadline and at the
//! cancellation token every few thousand virtual-machine steps, which stops a runaway question within milliseconds.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use query_planner::{Batch, Catalog, NodeError, NodeStats, NodeTask};
use rusqlite::Connection;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::store::{ColumnExecutor, Source};

/// SQLite virtual-machine steps between two looks at the deadline (about 0.1 ms of work).
const STEPS_BETWEEN_CHECKS: i32 = 4_000;
/// Columns of the trace store's tables and views that hold Unix nanoseconds.
const TIME_COLUMNS: [&str; 4] = ["ts_ns", "timestamp_ns", "timestamp", "bucket_ns"];
/// Read-only connections kept open between questions.
const IDLE_READERS: usize = 4;

/// What SQLite may take for one question here.
const MEMORY_BYTES: u64 = 256 << 20;

/// What may be done on the spot: about a tenth of a millisecond of SQLite's work, and a screenful of rows.
const SMALL_STEPS: i32 = 4_000;
const SMALL_CHECKS: i32 = 4;
const SMALL_ROWS: u32 = 256;
/// Rows that may be looked at in columns, on the spot.
const SMALL_SCAN_ROWS: u64 = 20_000;

/// The whole answer of a small task.
#[derive(Debug)]
pub struct Small {
    /// Batches with the index of their part.
    pub batches: Vec<(usize, Batch)>,
    /// What was done.
    pub stats: NodeStats,
}

/// Executes tasks on one node's source.
#[derive(Debug)]
pub struct Executor {
    node: String,
    source: Arc<Source>,
    idle: Mutex<Vec<Connection>>,
    /// Questions that may run at once: capture and the job have priority on this host.
    running: Semaphore,
    concurrent: usize,
}

impl Executor {
    /// An executor for `node` over `source`, running at most `concurrent` tasks at once.
    pub fn new(node: String, source: Arc<Source>, concurrent: usize) -> Self {
        let concurrent = concurrent.max(1);
        Self { node, source, idle: Mutex::new(Vec::new()), running: Semaphore::new(concurrent), concurrent }
    }

    /// Tasks that run now.
    pub fn at_work(&self) -> usize {
        self.concurrent - self.running.available_permits()
    }

    /// The tables that this node offers to questions.
    ///
    /// # Errors
    /// The store cannot be opened or read.
    pub fn catalog(&self) -> Result<Catalog, NodeError> {
        // A connection of its own: a hardened one may not read the schema.
        let reader = self.source.open_reader().map_err(|error| NodeError::Failed(error.to_string()))?;
        Catalog::of(&reader, &self.source.replicated()).map_err(|error| NodeError::Failed(error.to_string()))
    }

    /// Runs `task` and hands its batches to `batches` (bounded: a slow reader slows the query down).
    ///
    /// # Errors
    /// Over budget, stopped by the deadline or by `cancelled`, or failed in SQLite.
    pub async fn run(
        self: Arc<Self>,
        task: NodeTask,
        deadline: Instant,
        cancelled: CancellationToken,
        batches: mpsc::Sender<(usize, Batch)>,
    ) -> Result<NodeStats, NodeError> {
        let permit = tokio::select! {
            permit = self.running.acquire() => permit.map_err(|_| NodeError::Stopped("the agent is shutting down".into()))?,
            () = cancelled.cancelled() => return Err(NodeError::Stopped("cancelled".into())),
            () = tokio::time::sleep_until(deadline.into()) => {
                return Err(NodeError::Stopped("the deadline passed while waiting for other questions".into()));
            }
        };
        let executor = Arc::clone(&self);
        let worked =
            tokio::task::spawn_blocking(move || executor.run_blocking(&task, deadline, &cancelled, &batches)).await;
        drop(permit);
        worked.unwrap_or_else(|panic| Err(NodeError::Failed(format!("the query executor failed: {panic}"))))
    }

    /// Tries a task on the spot: most questions of a dashboard are a few index look-ups, for which handing over to
    /// another thread costs more than the work. `None` when it turned out to be more than that (or no reader is at
    /// hand): then nothing has happened and [`Executor::run`] does it.
    pub fn run_small(&self, task: &NodeTask) -> Option<Result<Small, NodeError>> {
        let _permit = self.running.try_acquire().ok()?;
        let _cap = query_planner::memory::cap(MEMORY_BYTES);
        let mut reader = self.lock().pop()?;
        let mut checks = 0;
        let _ = reader.progress_handler(
            SMALL_STEPS / SMALL_CHECKS,
            Some(move || {
                checks += 1;
                checks >= SMALL_CHECKS
            }),
        );
        let mut batches = Vec::new();
        let mut rows = 0;
        let mut emit = |part: usize, batch: Batch| {
            rows += batch.rows;
            if rows > SMALL_ROWS {
                return Err(NodeError::Stopped("not small".into()));
            }
            batches.push((part, batch));
            Ok(())
        };
        let columns = ColumnExecutor::new(&|| false, SMALL_SCAN_ROWS);
        let result = query_planner::execute_task_with(&reader, &self.node, task, &columns, &mut emit);
        let _ = reader.progress_handler(0, None::<fn() -> bool>);
        self.give_back(reader);
        match result {
            Ok(mut stats) => {
                stats.notes.extend(self.notes(task));
                Some(Ok(Small { batches, stats }))
            }
            Err(NodeError::Stopped(_)) => None,
            Err(error) => Some(Err(error)),
        }
    }

    fn run_blocking(
        &self,
        task: &NodeTask,
        deadline: Instant,
        cancelled: &CancellationToken,
        batches: &mpsc::Sender<(usize, Batch)>,
    ) -> Result<NodeStats, NodeError> {
        let _cap = query_planner::memory::cap(MEMORY_BYTES);
        let mut reader = self.reader()?;
        let watch = cancelled.clone();
        let _ = reader
            .progress_handler(STEPS_BETWEEN_CHECKS, Some(move || watch.is_cancelled() || Instant::now() >= deadline));
        let mut emit = |part: usize, batch: Batch| {
            batches.blocking_send((part, batch)).map_err(|_| NodeError::Stopped("the asker went away".into()))
        };
        let stop = || cancelled.is_cancelled() || Instant::now() >= deadline;
        let columns = ColumnExecutor::new(&stop, u64::MAX);
        let result = query_planner::execute_task_with(&reader, &self.node, task, &columns, &mut emit);
        let _ = reader.progress_handler(0, None::<fn() -> bool>);
        match result {
            Ok(mut stats) => {
                self.give_back(reader);
                stats.notes.extend(self.notes(task));
                Ok(stats)
            }
            // SQLite only says "interrupted": say by what.
            Err(_) if cancelled.is_cancelled() => Err(NodeError::Stopped("cancelled".into())),
            Err(_) if Instant::now() >= deadline => Err(NodeError::Stopped("the deadline passed".into())),
            Err(error) => Err(error),
        }
    }

    /// What this node's source knows to be missing from what the task read.
    fn notes(&self, task: &NodeTask) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for part in &task.parts {
            let tables: Vec<&str> = part.reads.iter().map(|(table, _)| table.as_str()).collect();
            // Mostly there is nothing to say, and the statement need not be read for its time.
            if self.source.notes(&tables, i64::MIN..i64::MAX).is_empty() {
                continue;
            }
            let found = self.source.notes(&tables, query_planner::time_range(&part.sql, &TIME_COLUMNS));
            notes.extend(found.into_iter().filter(|note| !notes.contains(note)).collect::<Vec<_>>());
        }
        notes
    }

    fn reader(&self) -> Result<Connection, NodeError> {
        if let Some(reader) = self.lock().pop() {
            return Ok(reader);
        }
        let mut reader = self.source.open_reader().map_err(|error| NodeError::Failed(error.to_string()))?;
        query_planner::harden(&mut reader).map_err(|error| NodeError::Failed(error.to_string()))?;
        Ok(reader)
    }

    fn give_back(&self, reader: Connection) {
        if !self.source.may_keep_readers() {
            return;
        }
        let mut idle = self.lock();
        if idle.len() < IDLE_READERS {
            idle.push(reader);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
