//! Running a task on this node's own store: read-only connections, deadline, cancellation; and the
//! choice of executor: what the store answers from its columns goes there, the rest to SQLite.
//!
//! SQLite blocks, so a task runs on a blocking thread; its progress handler looks at the deadline
//! and at the cancellation token every few thousand virtual-machine steps, which stops a runaway
//! question within milliseconds.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::SnapshotUse;
use parking_lot::Mutex;
use query_planner::memory::{self, Account, SharedReservation};
use query_planner::{Batch, Catalog, NodeError, NodeStats, NodeTask, Stop, Value};
use store::{ClockOffsetSeen, ColumnExecutor, Source, StoreError};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::admission::{Admission, MAX_IN_FLIGHT, Permit, Requester, SuspendablePermit};
use super::low_priority;
use super::own_catalog::OwnCatalog;
use super::reader::Reader;
use super::snapshots::{SnapshotLease, Snapshots};

/// SQLite virtual-machine steps between two looks at the deadline (some tens of microseconds of
/// work).
const STEPS_BETWEEN_CHECKS: i32 = 1_000;
/// How long after its deadline, or after it was cancelled, a task is given to end before its
/// coordinator is answered without it. Its thread ends by itself, and counts as at work until then.
const STOP_GRACE: Duration = Duration::from_millis(100);
/// Columns of the trace store's tables and views that hold Unix nanoseconds.
const TIME_COLUMNS: [&str; 4] = ["ts_ns", "timestamp_ns", "timestamp", "bucket_ns"];
/// Read-only connections kept open between questions.
const IDLE_READERS: usize = 4;

/// Memory of one task here, bytes: SQLite's, what is decoded and kept for it, and the rows that
/// wait for their reader.
const MEMORY_BYTES: u64 = 256 << 20;

/// A snapshot is kept for another round no longer than this, whatever the coordinator wants.
const MAX_SNAPSHOT_AGE: Duration = Duration::from_secs(600);

/// Fill level of the ingest queue, per mille, above which questions pause, and the pause at a time
/// (of some 0.1 ms of work).
const BACKLOG: u32 = 250;
const PAUSE: Duration = Duration::from_millis(2);

/// Pauses while records queue up before the store: capture goes first.
fn yield_to_ingest(source: &Source) {
    if source.backlog() >= BACKLOG {
        std::thread::sleep(PAUSE);
    }
}

/// The most rows of a task that runs inline, on the thread that received it (a screenful), the
/// longest SQL with its keys, and the memory that it may take; its steps are limited by the
/// [`Reader`].
const INLINE_ROWS: u32 = 256;
const INLINE_SQL_BYTES: u64 = 4 << 10;
const INLINE_MEMORY_BYTES: u64 = 16 << 20;
/// Rows that may be scanned in columns, inline.
const INLINE_SCAN_ROWS: u64 = 20_000;

/// The complete answer of a task that ran inline.
#[derive(Debug)]
pub struct InlineAnswer {
    /// Batches with the index of their fragment.
    pub batches: Vec<(usize, Batch)>,
    /// Statistics.
    pub stats: NodeStats,
}

/// Some rows of a task, with the index of their fragment and what they take of its memory.
pub type Produced = (usize, Batch, SharedReservation);

/// Where the rows of a task go, from the thread that works on it.
struct RowsOut {
    batches: mpsc::Sender<Produced>,
    memory: Arc<Account>,
    permit: SuspendablePermit,
    deadline: Instant,
    runtime: Handle,
    stop: CancellationToken,
}

impl RowsOut {
    /// Sends rows. A task that waits for its reader gives its permit to others meanwhile. A stop
    /// ends the wait.
    fn send(&mut self, fragment: usize, batch: Batch) -> Result<(), NodeError> {
        let gone = || NodeError::Stopped("the coordinator went away".into());
        let counted = SharedReservation::of(&self.memory);
        counted.try_grow(batch.size_bytes()).map_err(|why| NodeError::OverBudget(why.to_string()))?;
        let piece = match self.batches.try_send((fragment, batch, counted)) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(gone()),
            Err(TrySendError::Full(piece)) => piece,
        };
        self.permit.suspend();
        let (batches, stop) = (&self.batches, &self.stop);
        self.runtime.block_on(async {
            tokio::select! {
                sent = batches.send(piece) => sent.map_err(|_| gone()),
                () = stop.cancelled() => Err(was_cancelled()),
            }
        })?;
        if !self.permit.resume(self.deadline) {
            return Err(if self.stop.is_cancelled() { was_cancelled() } else { late() });
        }
        Ok(())
    }
}

/// Executes tasks on one node's source.
#[derive(Debug)]
pub struct Executor {
    node: String,
    source: Arc<Source>,
    catalog: OwnCatalog,
    idle: Mutex<Vec<Reader>>,
    snapshots: Arc<Snapshots>,
    /// The stop of tasks that run inline.
    small: Stop,
    /// Questions that may run at once: capture and the job have priority on this host.
    admission: Arc<Admission>,
    /// Tasks in flight, including those that wait for their reader.
    in_flight: Arc<Semaphore>,
}

fn was_cancelled() -> NodeError {
    NodeError::Stopped("cancelled".into())
}

fn late() -> NodeError {
    NodeError::Timeout("the deadline passed".into())
}

fn broken() -> NodeError {
    NodeError::Failed("the query executor failed".into())
}

impl Executor {
    /// An executor for `node` over `source`, running at most `concurrent` tasks at once.
    pub fn new(node: String, source: Arc<Source>, concurrent: usize) -> Self {
        let admission = Admission::for_leaf(u32::try_from(concurrent.max(1)).unwrap_or(1));
        Self {
            node,
            source,
            catalog: OwnCatalog::default(),
            idle: Mutex::default(),
            snapshots: Arc::default(),
            admission,
            small: Stop::default().or_after(0),
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
        }
    }

    /// Tasks in flight.
    pub fn at_work(&self) -> usize {
        MAX_IN_FLIGHT - self.in_flight.available_permits()
    }

    /// Snapshots kept for the second rounds of questions.
    pub fn kept_snapshots(&self) -> usize {
        self.snapshots.len()
    }

    /// Gives up the snapshot of a question that will not be asked again.
    pub fn release(&self, question: u128) {
        self.snapshots.release(question);
    }

    /// The tables that this node offers to questions.
    ///
    /// # Errors
    /// The store cannot be opened or read.
    pub fn catalog(&self) -> Result<Arc<Catalog>, NodeError> {
        self.catalog.of(&self.source)
    }

    /// What the agent of this node's store measured of other nodes' clocks; see
    /// [`Source::clock_offsets`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn clock_offsets(&self, range: Option<&Range<i64>>) -> Result<Vec<ClockOffsetSeen>, StoreError> {
        self.source.clock_offsets(range)
    }

    /// Runs `task` for `requester` and hands its batches to `batches` (bounded: a slow reader slows
    /// the query down). `snapshot`: how it is related to another round of its question.
    ///
    /// # Errors
    /// Too many wait here, over budget, stopped by the deadline or by `cancelled`, failed in
    /// SQLite, or the snapshot of the earlier round is gone.
    pub async fn run(
        self: Arc<Self>,
        requester: &str,
        task: NodeTask,
        snapshot: Option<SnapshotUse>,
        deadline: Instant,
        cancelled: CancellationToken,
        batches: mpsc::Sender<Produced>,
    ) -> Result<NodeStats, NodeError> {
        let in_flight = Arc::clone(&self.in_flight).try_acquire_owned().map_err(|_| {
            NodeError::Busy(format!(
                "busy: {MAX_IN_FLIGHT} questions are under way here, most of them waiting for their readers; ask again later"
            ))
        })?;
        let requester = Requester::trusted(requester).for_user(task.viewer);
        let permit: Permit = tokio::select! {
            permit = self.admission.enter(&requester, 1) => permit.map_err(|busy| NodeError::Busy(busy.to_string()))?,
            () = cancelled.cancelled() => return Err(was_cancelled()),
            () = tokio::time::sleep_until(deadline.into()) => {
                return Err(NodeError::Timeout("the deadline passed while waiting for other questions".into()));
            }
        };
        let lease = match snapshot {
            None => None,
            Some(wanted) => tokio::select! {
                lease = self.snapshots.acquire(wanted, &cancelled) => Some(lease?),
                () = cancelled.cancelled() => return Err(was_cancelled()),
                () = tokio::time::sleep_until(deadline.into()) => {
                    return Err(NodeError::Timeout("the deadline passed while its earlier task was at work".into()));
                }
            },
        };
        let cancelled = lease.as_ref().map_or(cancelled, |lease| lease.stop.clone());
        let executor = Arc::clone(&self);
        let stop = Stop::at(Some(deadline));
        // Dropping this future stops the task.
        let _stop_on_drop = stop.stop_on_drop();
        let runtime = Handle::current();
        let permit = SuspendablePermit::new(permit, runtime.clone(), cancelled.clone());
        let memory = Account::new(MEMORY_BYTES);
        let mut rows = RowsOut { batches, memory, permit, deadline, runtime, stop: cancelled.clone() };
        let (question, on_thread) = (stop.clone(), cancelled.clone());
        let mut worked = std::pin::pin!(low_priority::run(move || {
            let _under_way = in_flight;
            executor.run_blocking(&task, lease, &question, &on_thread, &mut rows)
        }));
        let over = tokio::select! {
            worked = &mut worked => return worked.unwrap_or_else(|| Err(broken())),
            () = cancelled.cancelled() => was_cancelled(),
            () = tokio::time::sleep_until(deadline.into()) => late(),
        };
        stop.stop();
        match tokio::time::timeout(STOP_GRACE, worked).await {
            Ok(worked) => worked.unwrap_or_else(|| Err(broken())),
            Err(_) => Err(over),
        }
    }

    /// Tries a task inline: most questions of a dashboard are a few index look-ups, for which
    /// handing over to another thread costs more than the work. `None` when it turned out to be
    /// more than that (or there is no idle reader): then nothing has happened and [`Executor::run`]
    /// does it. `snapshot` as there; with one it is to be called within a runtime.
    pub fn run_inline(
        &self,
        task: &NodeTask,
        snapshot: Option<SnapshotUse>,
    ) -> Option<Result<InlineAnswer, NodeError>> {
        let keys_bytes = task.keys.iter().flatten().map(Value::data_bytes).sum::<u64>();
        let sql_bytes = task.fragments.iter().map(|fragment| fragment.sql.len() as u64).sum::<u64>();
        if task.viewer.is_some() || sql_bytes.saturating_add(keys_bytes) > INLINE_SQL_BYTES {
            return None;
        }
        // Without a permit: it is so little that it need not wait for others' long work.
        let mut lease = match snapshot.map(|wanted| self.snapshots.try_acquire(wanted, &CancellationToken::new())) {
            None => None,
            // An earlier task of the question still runs.
            Some(Ok(None)) => return None,
            Some(Ok(lease)) => lease,
            Some(Err(error)) => return Some(Err(error)),
        };
        let (mut reader, kept_until) = match lease.as_mut().and_then(|lease| lease.earlier.take()) {
            Some((reader, until)) => (reader, Some(until)),
            None => (self.idle_reader()?, None),
        };
        // (Refused memory ends a transaction, and with it the snapshot: that must not happen to
        // what `run` can still do.)
        let _cap = memory::cap(if kept_until.is_some() { MEMORY_BYTES } else { INLINE_MEMORY_BYTES });
        reader.limit_steps();
        let watched = self.small.watch(&reader.conn);
        let result = match &lease {
            Some(_) => reader.begin().map_err(|error| NodeError::of_sqlite(&error)),
            None => Ok(()),
        };
        let result = result.and_then(|()| self.execute_inline(&reader, task));
        drop(watched);
        let is_too_long = matches!(result, Err(NodeError::Stopped(_)));
        match (lease, kept_until) {
            (Some(lease), Some(until)) if is_too_long && !reader.conn.is_autocommit() => lease.put_back(reader, until),
            (Some(lease), _) if result.is_ok() && lease.keeps() => lease.keep(reader, MAX_SNAPSHOT_AGE),
            _ => {
                if reader.end().is_ok() {
                    self.return_reader(reader);
                }
            }
        }
        if is_too_long { None } else { Some(result) }
    }

    fn execute_inline(&self, reader: &Reader, task: &NodeTask) -> Result<InlineAnswer, NodeError> {
        let mut batches = Vec::new();
        let mut rows = 0;
        let mut emit = |fragment: usize, batch: Batch| {
            rows += batch.rows;
            if rows > INLINE_ROWS {
                return Err(NodeError::Stopped("not small".into()));
            }
            batches.push((fragment, batch));
            Ok(())
        };
        let columns = ColumnExecutor::new(&|| false, INLINE_SCAN_ROWS);
        let mut stats = query_planner::execute_task_with(&reader.conn, &self.node, task, &columns, &mut emit)?;
        stats.notes.extend(self.notes(task));
        Ok(InlineAnswer { batches, stats })
    }

    fn run_blocking(
        &self,
        task: &NodeTask,
        mut lease: Option<SnapshotLease>,
        stop: &Stop,
        cancelled: &CancellationToken,
        rows: &mut RowsOut,
    ) -> Result<NodeStats, NodeError> {
        let _cap = memory::cap_of(&rows.memory);
        let earlier = lease.as_mut().and_then(|lease| lease.earlier.take());
        let mut reader = match (earlier, task.viewer) {
            (Some((earlier, _)), _) => earlier,
            (None, Some(uid)) => Reader::new(self.source.open_own_rows(&self.node, uid).map_err(not_opened)?, None),
            (None, None) => self.reader()?,
        };
        reader.unlimit();
        let watched = stop.watch(&reader.conn);
        let failed = |error: rusqlite::Error| NodeError::of_sqlite(&error);
        if lease.is_some() {
            reader.begin().map_err(failed)?;
        }
        let (watch, looks, source) = (cancelled.clone(), stop.clone(), Arc::clone(&self.source));
        let _ = reader.conn.progress_handler(
            STEPS_BETWEEN_CHECKS,
            Some(move || {
                yield_to_ingest(&source);
                watch.is_cancelled() || looks.is_over()
            }),
        );
        let mut emit = |fragment: usize, batch: Batch| rows.send(fragment, batch);
        let is_over = || {
            yield_to_ingest(&self.source);
            cancelled.is_cancelled() || stop.is_over()
        };
        let columns = ColumnExecutor::new(&is_over, u64::MAX);
        let result = match task.viewer {
            None => query_planner::execute_task_with(&reader.conn, &self.node, task, &columns, &mut emit),
            // Only SQLite leaves out what the connection does not show.
            Some(_) => query_planner::execute_task(&reader.conn, &self.node, task, &mut emit),
        };
        drop(watched);
        let _ = reader.conn.progress_handler(0, None::<fn() -> bool>);
        let keeping = lease.as_ref().filter(|lease| lease.keeps());
        match result {
            Ok(mut stats) => {
                stats.notes.extend(self.notes(task));
                if let Some(lease) = keeping {
                    let _ = reader.conn.release_memory();
                    lease.keep(reader, MAX_SNAPSHOT_AGE);
                    return Ok(stats);
                }
                reader.end().map_err(failed)?;
                self.return_reader(reader);
                Ok(stats)
            }
            Err(error) => {
                let stopped = cancelled.is_cancelled();
                // The question may ask again; but SQLite ends a transaction in which memory ran
                // out, or was refused.
                if let (Some(lease), true, false) = (
                    keeping,
                    stopped || matches!(error, NodeError::Stopped(_) | NodeError::Timeout(_)),
                    reader.conn.is_autocommit(),
                ) {
                    lease.keep(reader, MAX_SNAPSHOT_AGE);
                }
                // SQLite reports only "interrupted": add the reason.
                Err(match error {
                    _ if stopped => was_cancelled(),
                    _ if stop.is_over() => late(),
                    error => error,
                })
            }
        }
    }

    /// What this node's source knows to be missing from what the task read.
    fn notes(&self, task: &NodeTask) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for fragment in &task.fragments {
            let tables: Vec<&str> = fragment.reads.iter().map(|(table, _)| table.as_str()).collect();
            // Mostly there are no notes, and the statement need not be read for its time.
            if self.source.has_no_notes(&tables) {
                continue;
            }
            let found = self.source.notes(&tables, query_planner::time_range(&fragment.sql, &TIME_COLUMNS));
            notes.extend(found.into_iter().filter(|note| !notes.contains(note)).collect::<Vec<_>>());
        }
        notes
    }

    /// A kept reader that still shows the newest rows.
    fn idle_reader(&self) -> Option<Reader> {
        let mut idle = self.idle.lock();
        let now = self.source.validity();
        idle.retain(|reader| reader.validity == now);
        idle.pop()
    }

    fn reader(&self) -> Result<Reader, NodeError> {
        if let Some(reader) = self.idle_reader() {
            return Ok(reader);
        }
        // As it was before: what is written from here on may not be seen.
        let validity = self.source.validity();
        let mut conn = self.source.open_reader().map_err(not_opened)?;
        query_planner::harden(&mut conn).map_err(|error| NodeError::of_sqlite(&error))?;
        Ok(Reader::new(conn, validity))
    }

    fn return_reader(&self, reader: Reader) {
        if reader.validity.is_none() || reader.validity != self.source.validity() {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_READERS {
            idle.push(reader);
        }
    }
}

/// Why a store could not be opened for a question. SQLite cannot report that memory ran out: there
/// is no connection yet whose error that would be.
fn not_opened(error: impl std::fmt::Display) -> NodeError {
    match memory::refused_here() {
        Some(refused) => NodeError::OverBudget(refused.to_string()),
        None => NodeError::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
