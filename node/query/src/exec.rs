//! Running a task on this node's own store: read-only connections, deadline, cancellation; and the choice of executor:
//! what the store answers from its columns goes there, the rest to SQLite.
//!
//! SQLite blocks, so a task runs on a blocking thread; its progress handler looks at the deadline and at the
//! cancellation token every few thousand virtual-machine steps, which stops a runaway question within milliseconds.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::SnapshotUse;
use query_planner::memory::{self, Account, Grant};
use query_planner::{Batch, Catalog, NodeError, NodeStats, NodeTask, Stop};
use rusqlite::Connection;
use store::{ColumnExecutor, Source};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_util::sync::CancellationToken;

use super::admission::{Admission, Asker, MOST_UNDER_WAY, Place, Turn};
use super::kept::{Kept, Taken};
use super::own_catalog::OwnCatalog;
use super::polite;

/// SQLite virtual-machine steps between two looks at the deadline (some tens of microseconds of work).
const STEPS_BETWEEN_CHECKS: i32 = 1_000;
/// How long after its deadline, or after it was cancelled, a task is given to end before its asker is answered without it. Its
/// thread ends by itself, and counts as at work until then.
const TO_END: Duration = Duration::from_millis(100);
/// Columns of the trace store's tables and views that hold Unix nanoseconds.
const TIME_COLUMNS: [&str; 4] = ["ts_ns", "timestamp_ns", "timestamp", "bucket_ns"];
/// Read-only connections kept open between questions.
const IDLE_READERS: usize = 4;

/// Memory of one task here, bytes: SQLite's, what is decoded and kept for it, and the rows that wait for their reader.
const MEMORY_BYTES: u64 = 256 << 20;

/// A snapshot is kept for another round no longer than this, whatever the asker says.
const LONGEST_KEPT: Duration = Duration::from_secs(600);

/// Share of the ingest queue, per mille, from which questions stand back, and for how long at a time (of some 0.1 ms of
/// work).
const BACKLOG: u32 = 250;
const STAND_BACK: Duration = Duration::from_millis(2);

/// Stands back while what was recorded piles up before the store: capture goes first.
fn give_way(source: &Source) {
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
pub struct Small {
    /// Batches with the index of their part.
    pub batches: Vec<(usize, Batch)>,
    /// What was done.
    pub stats: NodeStats,
}

/// Some rows of a task, with the index of their part and what they take of its memory.
pub type Produced = (usize, Batch, Grant);

/// Where the rows of a task go, from the thread that works on it.
struct RowsOut {
    batches: mpsc::Sender<Produced>,
    memory: Arc<Account>,
    place: Place,
    deadline: Instant,
    runtime: Handle,
    stop: CancellationToken,
}

impl RowsOut {
    /// Sends rows. A task that waits for its reader needs no turn meanwhile: somebody else may work. Stopped, it waits no longer.
    fn send(&mut self, part: usize, batch: Batch) -> Result<(), NodeError> {
        let gone = || NodeError::Stopped("the asker went away".into());
        let counted = Grant::of(&self.memory);
        counted.more(batch.size_bytes()).map_err(|why| NodeError::OverBudget(why.to_string()))?;
        let piece = match self.batches.try_send((part, batch, counted)) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(gone()),
            Err(TrySendError::Full(piece)) => piece,
        };
        self.place.rest();
        let (batches, stop) = (&self.batches, &self.stop);
        self.runtime.block_on(async {
            tokio::select! {
                sent = batches.send(piece) => sent.map_err(|_| gone()),
                () = stop.cancelled() => Err(NodeError::Stopped("cancelled".into())),
            }
        })?;
        if !self.place.back(self.deadline) {
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
    kept: Arc<Kept>,
    /// That of tasks which are done on the spot.
    small: Stop,
    /// Questions that may run at once: capture and the job have priority on this host.
    turns: Arc<Admission>,
    /// Tasks that have begun and not ended, those included that wait for whoever reads their rows.
    under_way: Arc<AtomicUsize>,
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
    fn wind_up(&mut self) {
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
struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    fn begin(count: &Arc<AtomicUsize>) -> Result<Self, NodeError> {
        let under_way = Self(Arc::clone(count));
        if count.fetch_add(1, Ordering::Relaxed) >= MOST_UNDER_WAY {
            return Err(NodeError::Failed(format!(
                "busy: {MOST_UNDER_WAY} questions are under way here, most of them waiting for their readers; ask again later"
            )));
        }
        Ok(under_way)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Executor {
    /// An executor for `node` over `source`, running at most `concurrent` tasks at once.
    pub fn new(node: String, source: Arc<Source>, concurrent: usize) -> Self {
        let turns = Admission::of_node(u32::try_from(concurrent.max(1)).unwrap_or(1));
        Self {
            node,
            source,
            catalog: OwnCatalog::default(),
            idle: Mutex::default(),
            kept: Arc::default(),
            turns,
            small: Stop::default().or_after(0),
            under_way: Arc::default(),
        }
    }

    /// Tasks that have begun and not ended.
    pub fn at_work(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Snapshots kept for the second rounds of questions.
    pub fn kept_snapshots(&self) -> usize {
        self.kept.len()
    }

    /// Gives up the snapshot of a question that will not be asked again.
    pub fn release(&self, question: u128) {
        self.kept.release(question);
    }

    /// The tables that this node offers to questions.
    ///
    /// # Errors
    /// The store cannot be opened or read.
    pub fn catalog(&self) -> Result<Arc<Catalog>, NodeError> {
        self.catalog.of(&self.source)
    }

    /// Runs `task` for `asker` and hands its batches to `batches` (bounded: a slow reader slows the query down). `snapshot` says what
    /// it has to do with another round of its question.
    ///
    /// # Errors
    /// Too many wait here, over budget, stopped by the deadline or by `cancelled`, failed in SQLite, or the snapshot of the earlier round is
    /// gone.
    pub async fn run(
        self: Arc<Self>,
        asker: &str,
        task: NodeTask,
        snapshot: Option<SnapshotUse>,
        deadline: Instant,
        cancelled: CancellationToken,
        batches: mpsc::Sender<Produced>,
    ) -> Result<NodeStats, NodeError> {
        let under_way = UnderWay::begin(&self.under_way)?;
        let asker = Asker::of_the_house(asker);
        let turn: Turn = tokio::select! {
            turn = self.turns.enter(&asker, 1) => turn.map_err(|busy| NodeError::Failed(busy.to_string()))?,
            () = cancelled.cancelled() => return Err(NodeError::Stopped("cancelled".into())),
            () = tokio::time::sleep_until(deadline.into()) => {
                return Err(NodeError::Stopped("the deadline passed while waiting for other questions".into()));
            }
        };
        let taken = match snapshot {
            None => None,
            Some(wanted) => tokio::select! {
                taken = self.kept.take(wanted, &cancelled) => Some(taken?),
                () = cancelled.cancelled() => return Err(NodeError::Stopped("cancelled".into())),
                () = tokio::time::sleep_until(deadline.into()) => {
                    return Err(NodeError::Stopped("the deadline passed while its earlier task was at work".into()));
                }
            },
        };
        let cancelled = taken.as_ref().map_or(cancelled, |taken| taken.stop.clone());
        let executor = Arc::clone(&self);
        let stop = Stop::at(Some(deadline));
        // Whoever drops this task stops it.
        let _stop_on_drop = stop.stop_on_drop();
        let runtime = Handle::current();
        let place = Place::new(turn, runtime.clone());
        let memory = Account::new(MEMORY_BYTES);
        let mut rows = RowsOut { batches, memory, place, deadline, runtime, stop: cancelled.clone() };
        let (question, on_thread) = (stop.clone(), cancelled.clone());
        let mut worked = std::pin::pin!(polite::run(move || {
            let _under_way = under_way;
            executor.run_blocking(&task, taken, &question, &on_thread, &mut rows)
        }));
        let over = tokio::select! {
            worked = &mut worked => return worked.unwrap_or_else(|| Err(broken())),
            () = cancelled.cancelled() => "cancelled",
            () = tokio::time::sleep_until(deadline.into()) => "the deadline passed",
        };
        stop.stop();
        match tokio::time::timeout(TO_END, worked).await {
            Ok(worked) => worked.unwrap_or_else(|| Err(broken())),
            Err(_) => Err(NodeError::Stopped(over.into())),
        }
    }

    /// Tries a task on the spot: most questions of a dashboard are a few index look-ups, for which handing over to
    /// another thread costs more than the work. `None` when it turned out to be more than that (or no reader is at
    /// hand): then nothing has happened and [`Executor::run`] does it.
    pub fn run_small(&self, task: &NodeTask) -> Option<Result<Small, NodeError>> {
        if task.viewer.is_some() || task.parts.iter().map(|part| part.sql.len()).sum::<usize>() > SMALL_SQL_BYTES {
            return None;
        }
        // Without a turn: it is so little that it waits for nobody's long work.
        let _cap = memory::cap(SMALL_MEMORY_BYTES);
        let mut reader = self.lock().pop()?;
        reader.wind_up();
        let watched = self.small.watch(&reader.conn);
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
        let result = query_planner::execute_task_with(&reader.conn, &self.node, task, &columns, &mut emit);
        drop(watched);
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
        mut taken: Option<Taken>,
        stop: &Stop,
        cancelled: &CancellationToken,
        rows: &mut RowsOut,
    ) -> Result<NodeStats, NodeError> {
        let _cap = memory::cap_of(&rows.memory);
        let earlier = taken.as_mut().and_then(|taken| taken.earlier.take());
        let own = |uid| self.source.open_own_rows(&self.node, uid).map_err(NodeError::Failed);
        let begin = || task.viewer.map_or_else(|| self.reader(), own);
        let mut reader = earlier.map_or_else(begin, Ok)?;
        let watched = stop.watch(&reader);
        let failed = |error: rusqlite::Error| NodeError::Failed(error.to_string());
        if taken.is_some() && reader.is_autocommit() {
            reader.execute_batch("BEGIN").map_err(failed)?;
        }
        let (watch, looks, source) = (cancelled.clone(), stop.clone(), Arc::clone(&self.source));
        let _ = reader.progress_handler(
            STEPS_BETWEEN_CHECKS,
            Some(move || {
                give_way(&source);
                watch.is_cancelled() || looks.is_over()
            }),
        );
        let mut emit = |part: usize, batch: Batch| rows.send(part, batch);
        let is_over = || {
            give_way(&self.source);
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
        let keeping = taken.as_ref().filter(|taken| taken.keeps());
        match result {
            Ok(mut stats) => {
                stats.notes.extend(self.notes(task));
                if let Some(taken) = keeping {
                    let _ = reader.release_memory();
                    taken.keep(reader, LONGEST_KEPT);
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
                if let (Some(taken), true, false) =
                    (keeping, stopped || matches!(error, NodeError::Stopped(_)), reader.is_autocommit())
                {
                    taken.keep(reader, LONGEST_KEPT);
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
        assert_eq!(executor.kept_snapshots(), 1);
        writer.execute_batch("INSERT INTO t VALUES (2)").expect("a row");
        assert_eq!(first_value(&executor, COUNT, None).await, Ok(Value::Integer(2)));
        // As often as it has to be asked: what it told an inner node may have been lost with that.
        let through_inner = SnapshotUse { keep_ms: 60_000, ..second };
        for _ in 0..2 {
            assert_eq!(first_value(&executor, COUNT, Some(through_inner)).await, Ok(Value::Integer(1)));
            assert_eq!(executor.kept_snapshots(), 1);
        }
        assert_eq!(first_value(&executor, COUNT, Some(second)).await, Ok(Value::Integer(1)));
        assert_eq!(executor.kept_snapshots(), 0);

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
        assert!(executor.run_small(&small).is_none(), "no reader is at hand yet");
        assert_eq!(first_value(&executor, COUNT, None).await, Ok(Value::Integer(1)));
        for _ in 0..3 {
            assert!(executor.run_small(&long).is_none(), "100,000 rows on the spot");
            let done = executor.run_small(&small).expect("small").expect("a count");
            assert_eq!(done.batches[0].1.columns[0], [Value::Integer(1)]);
        }
        // The same connection, without that limit.
        assert_eq!(first_value(&executor, long_count, None).await, Ok(Value::Integer(100_000)));
        assert!(executor.run_small(&long).is_none());
        assert!(executor.run_small(&small).is_some());
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
        assert_eq!(executor.kept_snapshots(), 1);
        executor.release(7);
        assert_eq!(executor.kept_snapshots(), 0);
        first_value(&executor, COUNT, Some(SnapshotUse { keep_ms: 1, ..first })).await.expect("a count");
        let until = Instant::now() + Duration::from_secs(60);
        while executor.kept_snapshots() > 0 {
            assert!(Instant::now() < until, "it is kept for ever");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // A failure keeps nothing either.
        let fails = "SELECT abs(-9223372036854775807 - 1 + count(*)) FROM t";
        first_value(&executor, fails, Some(first)).await.expect_err("an overflow");
        assert_eq!(executor.kept_snapshots(), 0);
    }
}
