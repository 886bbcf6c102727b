//! Tests of the executor on served files.

use std::path::Path;

use query_planner::{AskOptions, Budget, Value};
use rusqlite::Connection;

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
        fragments: plan.expect("a plan").fragments,
        keys: Vec::new(),
        now_unix_ns: 0,
        budget: Budget::default(),
        viewer: None,
    }
}

async fn first_value(executor: &Arc<Executor>, sql: &str, snapshot: Option<SnapshotUse>) -> Result<Value, NodeError> {
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
    // As often as it has to be asked: what it sent to an intermediate aggregator may have been
    // lost with that.
    let ask_through = SnapshotUse { keep_ms: 60_000, ..second };
    for _ in 0..2 {
        assert_eq!(first_value(&executor, COUNT, Some(ask_through)).await, Ok(Value::Integer(1)));
        assert_eq!(executor.kept_snapshots(), 1);
    }
    assert_eq!(first_value(&executor, COUNT, Some(second)).await, Ok(Value::Integer(1)));
    assert_eq!(executor.kept_snapshots(), 0);

    // An earlier task that is stuck because its rows are not read is stopped.
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

    // This question's was taken; another question, or another process, would have another snapshot.
    let gone = first_value(&executor, COUNT, Some(second)).await.expect_err("the snapshot is gone");
    assert!(gone.to_string().contains("restarted between two rounds"), "{gone}");
    assert_eq!(first_value(&executor, COUNT, Some(first)).await, Ok(Value::Integer(2)));
    let next_life = served(&path);
    next_life.catalog().expect("it runs");
    first_value(&next_life, COUNT, Some(second)).await.expect_err("another life's snapshot");
    first_value(&next_life, COUNT, Some(SnapshotUse { of_earlier: false, ..second })).await.expect("it was not asked");
}

/// Lets a file look as if it had last been written an hour ago.
fn age(path: &Path) {
    let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3_600);
    std::fs::File::options().write(true).open(path).and_then(|file| file.set_modified(hour_ago)).expect("times");
}

#[tokio::test]
async fn readers_of_a_file_at_rest_are_kept_until_it_changes() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("rows.db");
    let write = |sql: &str| Connection::open(&path).and_then(|writer| writer.execute_batch(sql)).expect("rows");
    write("PRAGMA journal_mode = WAL; CREATE TABLE t(x); INSERT INTO t VALUES (1)");
    let executor = served(&path);
    let kept = || executor.idle.lock().len();
    assert_eq!(first_value(&executor, COUNT, None).await, Ok(Value::Integer(1)));
    assert_eq!(kept(), 0, "it was written just now");
    age(&path);
    assert_eq!(first_value(&executor, COUNT, None).await, Ok(Value::Integer(1)));
    assert_eq!(kept(), 1);
    assert!(executor.run_inline(&task(&executor, COUNT), None).is_some());
    write("INSERT INTO t VALUES (2)");
    age(&path);
    assert!(executor.run_inline(&task(&executor, COUNT), None).is_none(), "the reader showed what was before");
    assert_eq!(first_value(&executor, COUNT, None).await, Ok(Value::Integer(2)));
    assert_eq!(kept(), 1);
    // Next to a writer, whose rows are in the log.
    let writer = Connection::open(&path).expect("a file");
    writer.execute_batch("INSERT INTO t VALUES (3)").expect("a row");
    assert_eq!(first_value(&executor, COUNT, None).await, Ok(Value::Integer(3)));
    assert_eq!(kept(), 0);
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
    assert!(executor.run_inline(&small, None).is_none(), "no reader is at hand yet");
    assert_eq!(first_value(&executor, COUNT, None).await, Ok(Value::Integer(1)));
    for _ in 0..3 {
        assert!(executor.run_inline(&long, None).is_none(), "100,000 rows on the spot");
        let done = executor.run_inline(&small, None).expect("small").expect("a count");
        assert_eq!(done.batches[0].1.columns[0], [Value::Integer(1)]);
    }
    // The same connection, without that limit.
    assert_eq!(first_value(&executor, long_count, None).await, Ok(Value::Integer(100_000)));
    assert!(executor.run_inline(&long, None).is_none());
    assert!(executor.run_inline(&small, None).is_some());
}

#[tokio::test]
async fn both_rounds_of_a_small_question_run_inline_from_one_snapshot() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("rows.db");
    let writer = Connection::open(&path).expect("a file");
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) INSERT INTO long SELECT i FROM n";
    writer
        .execute_batch(&format!(
            "PRAGMA journal_mode = WAL; CREATE TABLE t(x); INSERT INTO t VALUES (1); CREATE TABLE long(x); {fill}"
        ))
        .expect("rows");
    let source = Source::External(Box::new(Kept(path)));
    let executor = Arc::new(Executor::new("n".into(), Arc::new(source), 2));
    let first = SnapshotUse { question: 7, of_earlier: false, keep_ms: 60_000 };
    let second = SnapshotUse { of_earlier: true, keep_ms: 0, ..first };
    let (small, long) = (task(&executor, COUNT), task(&executor, "SELECT count(x + 1) FROM long"));
    let inline = |task: &NodeTask, snapshot| {
        executor.run_inline(task, Some(snapshot)).map(|done| done.map(|done| done.batches[0].1.columns[0][0].clone()))
    };
    assert!(inline(&small, first).is_none(), "no reader is at hand yet");
    assert_eq!(first_value(&executor, COUNT, None).await, Ok(Value::Integer(1)));

    assert_eq!(inline(&small, first), Some(Ok(Value::Integer(1))));
    writer.execute_batch("INSERT INTO t VALUES (2)").expect("a row");
    assert_eq!(inline(&small, second), Some(Ok(Value::Integer(1))));
    assert_eq!(executor.kept_snapshots(), 0);
    assert!(inline(&small, second).is_some_and(|gone| gone.is_err()), "the snapshot is gone");
    assert_eq!(inline(&small, first), Some(Ok(Value::Integer(2))), "the connection went on with an old state");

    // What is too long inline leaves the snapshot for the thread that does it.
    writer.execute_batch("INSERT INTO long VALUES (0); INSERT INTO t VALUES (3)").expect("rows");
    for _ in 0..2 {
        assert!(inline(&long, second).is_none());
        assert_eq!(executor.kept_snapshots(), 1);
    }
    let counted = first_value(&executor, "SELECT count(x + 1) FROM long", Some(second)).await;
    assert_eq!(counted, Ok(Value::Integer(100_000)));
    assert!(inline(&long, first).is_none());
    assert_eq!(executor.kept_snapshots(), 0, "nothing has happened");
    assert_eq!(inline(&small, first), Some(Ok(Value::Integer(3))));
    executor.release(7);
}

/// A file whose connections may be kept though it is written.
#[derive(Debug)]
struct Kept(std::path::PathBuf);

impl store::Rows for Kept {
    fn open_reader(&self) -> Result<Connection, StoreError> {
        Ok(Connection::open(&self.0).expect("a file"))
    }
    fn facts(&self) -> store::Facts {
        store::Facts::default()
    }
    fn notes(&self, _: &[&str], _: &Range<i64>) -> Vec<String> {
        Vec::new()
    }
    fn clock_offsets(&self, _: Option<&Range<i64>>) -> Result<Vec<ClockOffsetSeen>, StoreError> {
        Ok(Vec::new())
    }
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
