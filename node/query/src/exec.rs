//! Running a task on this node's own store: read-only connections, deadline, cancellation; and the choice of executor:
//! what the store answers from its columns goes there, the rest to SQLite.
//!
//! SQLite blocks, so a task runs on a blocking thread; its progress handler looks at the deadline and at the
//! cancellation token every few thousand virtual-machine steps, which stops a runaway question within milliseconds.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::SnapshotUse;
use query_planner::{Batch, Catalog, NodeError, NodeStats, NodeTask, Stop};
use rusqlite::Connection;
use store::{ColumnExecutor, Source};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_util::sync::CancellationToken;

use super::admission::{Admission, MAX_IN_FLIGHT, Permit, Requester, SuspendablePermit};
use super::low_priority;
use super::own_catalog::OwnCatalog;
use super::snapshots::{SnapshotLease, Snapshots};

/// SQLite virtual-machine steps between two looks at the deadline (some tens of microseconds of work).
const STEPS_BETWEEN_CHECKS: i32 = 1_000;
/// How long after its deadline, or after it was cancelled, a task is given to end before its coordinator is answered without it. Its
/// thread ends by itself, and counts as at work until then.
const STOP_GRACE: Duration = Duration::from_millis(100);
/// Columns of the trace store's tables and views that hold Unix nanoseconds.
const TIME_COLUMNS: [&str; 4] = ["ts_ns", "timestamp_ns", "timestamp", "bucket_ns"];
/// Read-only connections kept open between questions.
const IDLE_READERS: usize = 4;

/// What SQLite may take for one question here.
const MEMORY_BYTES: u64 = 256 << 20;

/// A snapshot is kept for another round no longer than this, whatever the coordinator says.
const MAX_SNAPSHOT_AGE: Duration = Duration::from_secs(600);

/// Share of the ingest queue, per mille, from which questions stand back, and for how long at a time (of some 0.1 ms of
/// work).
const BACKLOG: u32 = 250;
const STAND_BACK: Duration = Duration::from_millis(2);

/// Stands back while what was recorded piles up before the store: capture goes first.
fn yield_to_ingest(source: &Source) {
    if source.backlog() >= BACKLOG {
        std::thread::sleep(STAND_BACK);
    }
}

/// What may be done on the spot: about a tenth of a millisecond of SQLite's work, and a screenful of rows.
const SMALL_STEPS: i32 = 4_000;
const SMALL_CHECKS: i32 = 4;
const SMALL_ROWS: u32 = 256;
/// The longest SQL of a task on the spot, and the memory that it may take.
const SMALL_SQL_BYTES: usize = 4 << 10;
const SMALL_MEMORY_BYTES: u64 = 16 << 20;
/// Rows that may be looked at in columns, on the spot.
const SMALL_SCAN_ROWS: u64 = 20_000;

/// The whole answer of a small task.
#[derive(Debug)]
pub struct InlineAnswer {
    /// Batches with the index of their fragment.
    pub batches: Vec<(usize, Batch)>,
    /// What was done.
    pub stats: NodeStats,
}

/// Where the rows of a task go, from the thread that works on it.
struct RowsOut {
    batches: mpsc::Sender<(usize, Batch)>,
    place: SuspendablePermit,
    deadline: Instant,
    runtime: Handle,
    stop: CancellationToken,
}

impl RowsOut {
    /// Sends rows. A task that waits for its reader needs no turn meanwhile: somebody else may work. Stopped, it waits no longer.
    fn send(&mut self, fragment: usize, batch: Batch) -> Result<(), NodeError> {
        let gone = || NodeError::Stopped("the coordinator went away".into());
        let piece = match self.batches.try_send((fragment, batch)) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(gone()),
            Err(TrySendError::Full(piece)) => piece,
        };
        self.place.suspend();
        let (batches, stop) = (&self.batches, &self.stop);
        self.runtime.block_on(async {
            tokio::select! {
                sent = batches.send(piece) => sent.map_err(|_| gone()),
                () = stop.cancelled() => Err(NodeError::Stopped("cancelled".into())),
            }
        })?;
        if !self.place.resume(self.deadline) {
            return Err(NodeError::Stopped("the deadline passed".into()));
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
    /// That of tasks which are done on the spot.
    small: Stop,
    /// Questions that may run at once: capture and the job have priority on this host.
    admission: Arc<Admission>,
    /// Tasks that have first_round and not ended, those included that wait for whoever reads their rows.
    in_flight: Arc<AtomicUsize>,
}

/// A connection kept between questions.
#[derive(Debug)]
struct Reader {
    conn: Connection,
    /// How often its progress handler has been called, where that is the one of small tasks: it stays from one to the next.
    looks: Option<Arc<AtomicI32>>,
}

impl Reader {
    /// Lets the next statements take as many steps as a small task may, and no more, and values be as long.
    fn limit_steps(&mut self) {
        if let Some(looks) = &self.looks {
            looks.store(0, Ordering::Relaxed);
            return;
        }
        let looks = Arc::new(AtomicI32::new(0));
        let counted = Arc::clone(&looks);
        let is_over = move || counted.fetch_add(1, Ordering::Relaxed) + 1 >= SMALL_CHECKS;
        if query_planner::bound_values(&self.conn, true).is_ok()
            && self.conn.progress_handler(SMALL_STEPS / SMALL_CHECKS, Some(is_over)).is_ok()
        {
            self.looks = Some(looks);
        }
    }
}

fn broken() -> NodeError {
    NodeError::Failed("the query executor failed".into())
}

/// One task, counted while it is under way.
struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    fn begin(count: &Arc<AtomicUsize>) -> Result<Self, NodeError> {
        let in_flight = Self(Arc::clone(count));
        if count.fetch_add(1, Ordering::Relaxed) >= MAX_IN_FLIGHT {
            return Err(NodeError::Failed(format!(
                "busy: {MAX_IN_FLIGHT} questions are under way here, most of them waiting for their readers; ask again later"
            )));
        }
        Ok(in_flight)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
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
            in_flight: Arc::default(),
        }
    }

    /// Tasks that have first_round and not ended.
    pub fn at_work(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Snapshots kept for the second rounds of questions.
    pub fn held_snapshots(&self) -> usize {
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

    /// Runs `task` for `requester` and hands its batches to `batches` (bounded: a slow reader slows the query down). `snapshot` says what
    /// it has to do with another round of its question.
    ///
    /// # Errors
    /// Too many wait here, over budget, stopped by the deadline or by `cancelled`, failed in SQLite, or the snapshot of the earlier round is
    /// gone.
    pub async fn run(
        self: Arc<Self>,
        requester: &str,
        task: NodeTask,
        snapshot: Option<SnapshotUse>,
        deadline: Instant,
        cancelled: CancellationToken,
        batches: mpsc::Sender<(usize, Batch)>,
    ) -> Result<NodeStats, NodeError> {
        let in_flight = InFlight::begin(&self.in_flight)?;
        let requester = Requester::trusted(requester);
        let turn: Permit = tokio::select! {
            turn = self.admission.enter(&requester, 1) => turn.map_err(|busy| NodeError::Failed(busy.to_string()))?,
            () = cancelled.cancelled() => return Err(NodeError::Stopped("cancelled".into())),
            () = tokio::time::sleep_until(deadline.into()) => {
                return Err(NodeError::Stopped("the deadline passed while waiting for other questions".into()));
            }
        };
        let lease = match snapshot {
            None => None,
            Some(wanted) => tokio::select! {
                lease = self.snapshots.acquire(wanted, &cancelled) => Some(lease?),
                () = cancelled.cancelled() => return Err(NodeError::Stopped("cancelled".into())),
                () = tokio::time::sleep_until(deadline.into()) => {
                    return Err(NodeError::Stopped("the deadline passed while its earlier task was at work".into()));
                }
            },
        };
        let cancelled = lease.as_ref().map_or(cancelled, |lease| lease.stop.clone());
        let executor = Arc::clone(&self);
        let stop = Stop::at(Some(deadline));
        // Whoever drops this task stops it.
        let _stop_on_drop = stop.stop_on_drop();
        let runtime = Handle::current();
        let place = SuspendablePermit::new(turn, runtime.clone());
        let mut rows = RowsOut { batches, place, deadline, runtime, stop: cancelled.clone() };
        let (question, on_thread) = (stop.clone(), cancelled.clone());
        let mut worked = std::pin::pin!(low_priority::run(move || {
            let _under_way = in_flight;
            executor.run_blocking(&task, lease, &question, &on_thread, &mut rows)
        }));
        let over = tokio::select! {
            worked = &mut worked => return worked.unwrap_or_else(|| Err(broken())),
            () = cancelled.cancelled() => "cancelled",
            () = tokio::time::sleep_until(deadline.into()) => "the deadline passed",
        };
        stop.stop();
        match tokio::time::timeout(STOP_GRACE, worked).await {
            Ok(worked) => worked.unwrap_or_else(|| Err(broken())),
            Err(_) => Err(NodeError::Stopped(over.into())),
        }
    }

    /// Tries a task on the spot: most questions of a dashboard are a few index look-ups, for which handing over to
    /// another thread costs more than the work. `None` when it turned out to be more than that (or no reader is at
    /// hand): then nothing has happened and [`Executor::run`] does it.
    pub fn run_inline(&self, task: &NodeTask) -> Option<Result<InlineAnswer, NodeError>> {
        if task.viewer.is_some()
            || task.parts.iter().map(|fragment| fragment.sql.len()).sum::<usize>() > SMALL_SQL_BYTES
        {
            return None;
        }
        // Without a turn: it is so little that it waits for nobody's long work.
        let _cap = query_planner::memory::cap(SMALL_MEMORY_BYTES);
        let mut reader = self.lock().pop()?;
        reader.limit_steps();
        let watched = self.small.watch(&reader.conn);
        let mut batches = Vec::new();
        let mut rows = 0;
        let mut emit = |fragment: usize, batch: Batch| {
            rows += batch.rows;
            if rows > SMALL_ROWS {
                return Err(NodeError::Stopped("not small".into()));
            }
            batches.push((fragment, batch));
            Ok(())
        };
        let columns = ColumnExecutor::new(&|| false, SMALL_SCAN_ROWS);
        let result = query_planner::execute_task_with(&reader.conn, &self.node, task, &columns, &mut emit);
        drop(watched);
        self.give_back(reader);
        match result {
            Ok(mut stats) => {
                stats.notes.extend(self.notes(task));
                Some(Ok(InlineAnswer { batches, stats }))
            }
            Err(NodeError::Stopped(_)) => None,
            Err(error) => Some(Err(error)),
        }
    }

    fn run_blocking(
        &self,
        task: &NodeTask,
        mut lease: Option<SnapshotLease>,
        stop: &Stop,
        cancelled: &CancellationToken,
        rows: &mut RowsOut,
    ) -> Result<NodeStats, NodeError> {
        let _cap = query_planner::memory::cap(MEMORY_BYTES);
        let earlier = lease.as_mut().and_then(|lease| lease.earlier.take());
        let own = |uid| self.source.open_own_rows(&self.node, uid).map_err(NodeError::Failed);
        let begin = || task.viewer.map_or_else(|| self.reader(), own);
        let mut reader = earlier.map_or_else(begin, Ok)?;
        let watched = stop.watch(&reader);
        let failed = |error: rusqlite::Error| NodeError::Failed(error.to_string());
        if lease.is_some() && reader.is_autocommit() {
            reader.execute_batch("BEGIN").map_err(failed)?;
        }
        let (watch, looks, source) = (cancelled.clone(), stop.clone(), Arc::clone(&self.source));
        let _ = reader.progress_handler(
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
            None => query_planner::execute_task_with(&reader, &self.node, task, &columns, &mut emit),
            // Only SQLite leaves out what the connection does not show.
            Some(_) => query_planner::execute_task(&reader, &self.node, task, &mut emit),
        };
        drop(watched);
        let _ = reader.progress_handler(0, None::<fn() -> bool>);
        let keeping = lease.as_ref().filter(|lease| lease.keeps());
        match result {
            Ok(mut stats) => {
                stats.notes.extend(self.notes(task));
                if let Some(lease) = keeping {
                    let _ = reader.release_memory();
                    lease.keep(reader, MAX_SNAPSHOT_AGE);
                    return Ok(stats);
                }
                if !reader.is_autocommit() {
                    reader.execute_batch("COMMIT").map_err(failed)?;
                }
                if task.viewer.is_none() {
                    self.give_back(Reader { conn: reader, looks: None });
                }
                Ok(stats)
            }
            Err(error) => {
                let stopped = cancelled.is_cancelled();
                // The question may ask anew; but SQLite ends a transaction in which memory ran out, or was refused.
                if let (Some(lease), true, false) =
                    (keeping, stopped || matches!(error, NodeError::Stopped(_)), reader.is_autocommit())
                {
                    lease.keep(reader, MAX_SNAPSHOT_AGE);
                }
                // SQLite only says "interrupted": say by what.
                Err(match error {
                    _ if stopped => NodeError::Stopped("cancelled".into()),
                    _ if stop.is_over() => NodeError::Stopped("the deadline passed".into()),
                    error => error,
                })
            }
        }
    }

    /// What this node's source knows to be missing from what the task read.
    fn notes(&self, task: &NodeTask) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for fragment in &task.parts {
            let tables: Vec<&str> = fragment.reads.iter().map(|(table, _)| table.as_str()).collect();
            // Mostly there is nothing to say, and the statement need not be read for its time.
            if self.source.notes(&tables, i64::MIN..i64::MAX).is_empty() {
                continue;
            }
            let found = self.source.notes(&tables, query_planner::time_range(&fragment.sql, &TIME_COLUMNS));
            notes.extend(found.into_iter().filter(|note| !notes.contains(note)).collect::<Vec<_>>());
        }
        notes
    }

    fn reader(&self) -> Result<Connection, NodeError> {
        let idle = self.lock().pop();
        if let Some(Reader { mut conn, looks }) = idle {
            if looks.is_some() {
                let _ = conn.progress_handler(0, None::<fn() -> bool>);
                let _ = query_planner::bound_values(&conn, false);
            }
            return Ok(conn);
        }
        let mut reader = self.source.open_reader().map_err(|error| NodeError::Failed(error.to_string()))?;
        query_planner::harden(&mut reader).map_err(|error| NodeError::Failed(error.to_string()))?;
        Ok(reader)
    }

    fn give_back(&self, reader: Reader) {
        if !self.source.may_keep_readers() {
            return;
        }
        let mut idle = self.lock();
        if idle.len() < IDLE_READERS {
            idle.push(reader);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Reader>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use query_planner::{AskOptions, Budget, Value};

    use super::*;
    use store::ServedDb;

    fn served(path: &Path) -> Arc<Executor> {
        let source = Source::Served(ServedDb::open(path, Vec::new()).expect("a file"));
        Arc::new(Executor::new("n".into(), Arc::new(source), 2))
    }

    fn task(executor: &Executor, sql: &str) -> NodeTask {
        let plan = query_planner::plan(
            sql,
            &executor.catalog().expect("a catalogue"),
            &AskOptions { single_node: true, ..AskOptions::default() },
        );
        NodeTask {
            parts: plan.expect("a plan").parts,
            keys: Vec::new(),
            now_unix_ns: 0,
            budget: Budget::default(),
            viewer: None,
        }
    }

    async fn first_value(
        executor: &Arc<Executor>,
        sql: &str,
        snapshot: Option<SnapshotUse>,
    ) -> Result<Value, NodeError> {
        let (batches, mut produced) = mpsc::channel(16);
        let deadline = Instant::now() + Duration::from_secs(60);
        let task = task(executor, sql);
        Arc::clone(executor).run("test", task, snapshot, deadline, CancellationToken::new(), batches).await?;
        Ok(produced.recv().await.expect("a batch").1.columns[0][0].clone())
    }

    const COUNT: &str = "SELECT count(*) FROM t";

    #[tokio::test]
    async fn the_second_round_sees_what_the_first_saw_and_only_that() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("rows.db");
        let writer = Connection::open(&path).expect("a file");
        writer.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t(x); INSERT INTO t VALUES (1)").expect("rows");
        let executor = served(&path);
        let first = SnapshotUse { question: 7, of_earlier: false, keep_ms: 60_000 };
        let second = SnapshotUse { of_earlier: true, keep_ms: 0, ..first };

        assert_eq!(first_value(&executor, COUNT, Some(first)).await, Ok(Value::Integer(1)));
        assert_eq!(executor.held_snapshots(), 1);
        writer.execute_batch("INSERT INTO t VALUES (2)").expect("a row");
        assert_eq!(first_value(&executor, COUNT, None).await, Ok(Value::Integer(2)));
        // As often as it has to be asked: what it told an intermediate aggregator may have been lost with that.
        let ask_through = SnapshotUse { keep_ms: 60_000, ..second };
        for _ in 0..2 {
            assert_eq!(first_value(&executor, COUNT, Some(ask_through)).await, Ok(Value::Integer(1)));
            assert_eq!(executor.held_snapshots(), 1);
        }
        assert_eq!(first_value(&executor, COUNT, Some(second)).await, Ok(Value::Integer(1)));
        assert_eq!(executor.held_snapshots(), 0);

        // An earlier task that is stuck since nobody reads its rows gives way.
        writer.execute_batch("CREATE TABLE long(x); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) INSERT INTO long SELECT i FROM n").expect("rows");
        let (batches, mut unread) = mpsc::channel(1);
        let long = task(&executor, "SELECT x FROM long");
        let (first, deadline) = (SnapshotUse { question: 8, ..first }, Instant::now() + Duration::from_secs(60));
        let stuck = Arc::clone(&executor).run("test", long, Some(first), deadline, CancellationToken::new(), batches);
        let stuck = tokio::spawn(stuck);
        unread.recv().await.expect("its first rows");
        let same = SnapshotUse { of_earlier: true, ..first };
        let counted = first_value(&executor, "SELECT count(*) FROM long", Some(same));
        assert_eq!(counted.await, Ok(Value::Integer(100_000)));
        let stopped = stuck.await.expect("no panic").expect_err("nobody waits for it");
        assert_eq!(stopped, NodeError::Stopped("cancelled".into()));
        executor.release(8);
        let first = SnapshotUse { question: 7, ..first };

        // It came already; another question's, and another life's, would be another snapshot.
        let gone = first_value(&executor, COUNT, Some(second)).await.expect_err("the snapshot is gone");
        assert!(gone.to_string().contains("restarted between two rounds"), "{gone}");
        assert_eq!(first_value(&executor, COUNT, Some(first)).await, Ok(Value::Integer(2)));
        let next_life = served(&path);
        next_life.catalog().expect("it runs");
        first_value(&next_life, COUNT, Some(second)).await.expect_err("another life's snapshot");
        first_value(&next_life, COUNT, Some(SnapshotUse { of_earlier: false, ..second }))
            .await
            .expect("it was not asked");
    }

    #[tokio::test]
    async fn what_is_too_much_for_the_spot_leaves_the_next_all_of_its_steps() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("rows.db");
        let writer = Connection::open(&path).expect("a file");
        writer.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1); CREATE TABLE long(x); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) INSERT INTO long SELECT i FROM n").expect("rows");
        let executor = served(&path);
        let long_count = "SELECT count(x + 1) FROM long";
        let (small, long) = (task(&executor, COUNT), task(&executor, long_count));
        assert!(executor.run_inline(&small).is_none(), "no reader is at hand yet");
        assert_eq!(first_value(&executor, COUNT, None).await, Ok(Value::Integer(1)));
        for _ in 0..3 {
            assert!(executor.run_inline(&long).is_none(), "100,000 rows on the spot");
            let done = executor.run_inline(&small).expect("small").expect("a count");
            assert_eq!(done.batches[0].1.columns[0], [Value::Integer(1)]);
        }
        // The same connection, without that limit.
        assert_eq!(first_value(&executor, long_count, None).await, Ok(Value::Integer(100_000)));
        assert!(executor.run_inline(&long).is_none());
        assert!(executor.run_inline(&small).is_some());
    }

    #[tokio::test]
    async fn a_snapshot_that_nobody_comes_back_for_is_given_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("rows.db");
        Connection::open(&path).expect("a file").execute_batch("CREATE TABLE t(x)").expect("a table");
        let executor = served(&path);
        let first = SnapshotUse { question: 7, of_earlier: false, keep_ms: 60_000 };
        first_value(&executor, COUNT, Some(first)).await.expect("a count");
        executor.release(8);
        assert_eq!(executor.held_snapshots(), 1);
        executor.release(7);
        assert_eq!(executor.held_snapshots(), 0);
        first_value(&executor, COUNT, Some(SnapshotUse { keep_ms: 1, ..first })).await.expect("a count");
        let until = Instant::now() + Duration::from_secs(60);
        while executor.held_snapshots() > 0 {
            assert!(Instant::now() < until, "it is kept for ever");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // A failure keeps nothing either.
        let fails = "SELECT abs(-9223372036854775807 - 1 + count(*)) FROM t";
        first_value(&executor, fails, Some(first)).await.expect_err("an overflow");
        assert_eq!(executor.held_snapshots(), 0);
    }
}
