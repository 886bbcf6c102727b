//! Questions to a store of as many segments as a host has after a day: every one is answered,
//! however often it comes, on the receiving thread or on one of its own, over connections old and
//! new.

use std::sync::Arc;
use std::time::{Duration, Instant};

use query_planner::{AskOptions, Batch, Budget, NodeError, NodeTask, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::exec::Executor;
use store::testing::{connect, store_of_segments};
use store::{ColumnExecutor, Source};

const SEGMENTS: u64 = 600;
const ROWS: u64 = 40;

fn executor(source: Arc<Source>) -> Arc<Executor> {
    Arc::new(Executor::new("n".into(), source, 4))
}

fn task(executor: &Executor, sql: &str) -> NodeTask {
    let options = AskOptions { single_node: true, ..AskOptions::default() };
    let plan = query_planner::plan(sql, &executor.catalog().expect("a catalogue"), &options).expect("a plan");
    NodeTask { fragments: plan.fragments, keys: Vec::new(), now_unix_ns: 0, budget: Budget::default(), viewer: None }
}

fn rows(batches: Vec<(usize, Batch)>) -> Vec<Vec<Value>> {
    let of_batch = |batch: Batch| {
        (0..batch.rows as usize)
            .map(move |row| batch.columns.iter().map(|column| column[row].clone()).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    batches.into_iter().flat_map(|(_, batch)| of_batch(batch)).collect()
}

/// As a question of a node comes: inline where that does, else on a thread. Returns whether it was
/// inline.
async fn ask(executor: &Arc<Executor>, sql: &str) -> Result<(Vec<Vec<Value>>, bool), NodeError> {
    let task = task(executor, sql);
    if let Some(small) = executor.run_inline(&task, None) {
        return Ok((rows(small?.batches), true));
    }
    let (batches, mut produced) = mpsc::channel(1_000);
    let deadline = Instant::now() + Duration::from_secs(600);
    Arc::clone(executor).run("test", task, None, deadline, CancellationToken::new(), batches).await?;
    let mut all = Vec::new();
    while let Some((fragment, batch, _)) = produced.recv().await {
        all.push((fragment, batch));
    }
    Ok((rows(all), false))
}

#[tokio::test]
async fn a_full_store_answers_every_question_however_often_it_comes() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = Arc::new(Source::Store(store_of_segments(&dir.path().join("s.db"), SEGMENTS, ROWS)));
    let all = i64::try_from(SEGMENTS * ROWS).expect("a few");
    let a_rank = Value::Integer(all / 8);
    let by_rank: Vec<Vec<Value>> = (0..8).map(|rank| vec![Value::Integer(rank), a_rank.clone()]).collect();
    let first_seqs: Vec<Vec<Value>> = (0..3).map(|seq| vec![Value::Integer(seq)]).collect();
    let questions: [(&str, Vec<Vec<Value>>); 6] = [
        // From columns.
        ("SELECT rank, count(*) FROM collectives GROUP BY 1 ORDER BY 1", by_rank.clone()),
        ("SELECT seq FROM collectives LIMIT 3", first_seqs.clone()),
        ("SELECT seq FROM collectives ORDER BY ts_ns LIMIT 3", first_seqs.clone()),
        // From SQLite's rows.
        ("SELECT rank + 0, count(seq + 1) FROM collectives GROUP BY 1 ORDER BY 1", by_rank),
        ("SELECT a.seq FROM collectives a WHERE a.seq + 0 < 3 ORDER BY 1", first_seqs),
        ("SELECT count(*) FROM collectives a JOIN collectives b ON a.seq = b.seq", vec![vec![Value::Integer(all)]]),
    ];
    let kept = executor(Arc::clone(&source));
    for round in 0..4 {
        for (sql, expected) in &questions {
            let (rows, _) = ask(&kept, sql).await.unwrap_or_else(|error| panic!("round {round}: {sql}: {error}"));
            assert_eq!(rows, *expected, "round {round}: {sql}");
            let fresh = executor(Arc::clone(&source));
            let (rows, inline) =
                ask(&fresh, sql).await.unwrap_or_else(|error| panic!("a fresh connection: {sql}: {error}"));
            assert_eq!((rows, inline), (expected.clone(), false), "{sql}");
        }
    }
}

#[tokio::test]
async fn whatever_stops_a_task_it_says_by_what() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = Arc::new(Source::Store(store_of_segments(&dir.path().join("s.db"), SEGMENTS, 1)));
    let executor = executor(source);
    let (batches, _produced) = mpsc::channel(1_000);
    for sql in ["SELECT rank, count(*) FROM collectives GROUP BY 1", "SELECT count(seq + 1) FROM collectives"] {
        let task = || task(&executor, sql);
        let run =
            |deadline, cancelled| Arc::clone(&executor).run("test", task(), None, deadline, cancelled, batches.clone());
        let cancelled = CancellationToken::new();
        cancelled.cancel();
        let stopped = run(Instant::now() + Duration::from_secs(600), cancelled).await.expect_err("cancelled");
        assert_eq!(stopped, NodeError::Stopped("cancelled".into()), "{sql}");
        let late = run(Instant::now(), CancellationToken::new()).await.expect_err("the deadline");
        assert!(matches!(&late, NodeError::Timeout(_)), "{late:?}: {sql}");
        run(Instant::now() + Duration::from_secs(600), CancellationToken::new()).await.expect("an answer");
    }
}

#[tokio::test]
async fn a_damaged_segment_is_the_nodes_failure_and_no_error_of_the_question() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s.db");
    let source = Arc::new(Source::Store(store_of_segments(&path, 3, 2)));
    connect(&path)
        .execute_batch("UPDATE segment_columns SET data = zeroblob(length(data)) WHERE id > 512")
        .expect("mischief");
    let executor = executor(source);
    for sql in ["SELECT seq FROM collectives", "SELECT count(seq + 1), count(ts_ns + 1) FROM collectives"] {
        let failed = ask(&executor, sql).await.expect_err("damaged");
        assert!(matches!(&failed, NodeError::Failed(why) if why.contains("is damaged")), "{failed:?}: {sql}");
    }
}

#[test]
fn what_a_join_keeps_of_the_columns_counts_as_its_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s.db");
    drop(store_of_segments(&path, 40, 2_000));
    let conn = connect(&path);
    let joined =
        "SELECT count(*) FROM collectives a JOIN collectives b ON a.seq = b.seq JOIN collectives c ON b.seq = c.seq";
    let count = || conn.query_row(joined, [], |row| row.get::<_, i64>(0));
    {
        // 80,000 rows of 8 bytes in two kept cursors, with their indices of 16 bytes a row.
        let _cap = query_planner::memory::cap(2 << 20);
        let failed = count().expect_err("more than its memory");
        assert_eq!(failed.sqlite_error_code(), Some(rusqlite::ErrorCode::OutOfMemory), "{failed}");
        assert!(matches!(NodeError::of_sqlite(&failed), NodeError::OverBudget(_)));
    }
    let _cap = query_planner::memory::cap(64 << 20);
    assert_eq!(count().expect("enough"), 80_000);
}

#[test]
fn what_is_kept_for_groups_of_columns_counts_as_the_questions_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s.db");
    let executor = executor(Arc::new(Source::Store(store_of_segments(&path, 40, 500))));
    let conn = connect(&path);
    let columns = ColumnExecutor::new(&|| false, u64::MAX);
    for sql in [
        "SELECT seq, count(*), sum(duration_ns) FROM collectives GROUP BY seq",
        "SELECT seq, approx_quantile(duration_ns, 0.5) FROM collectives GROUP BY seq",
    ] {
        let task = task(&executor, sql);
        let mut rows = 0;
        let mut run = |bytes| {
            let _cap = query_planner::memory::cap(bytes);
            query_planner::execute_task_with(&conn, "n", &task, &columns, &mut |_, batch: Batch| {
                rows += batch.rows;
                Ok(())
            })
        };
        let refused = run(1 << 20).expect_err("more than its memory");
        assert!(matches!(refused, NodeError::OverBudget(_)), "{refused:?}: {sql}");
        let stats = run(512 << 20).expect("enough");
        assert!(stats.notes.iter().any(|note| note.contains("columns")), "{:?}", stats.notes);
        assert_eq!(rows, 20_000);
    }
}

/// What SQLite's own functions would take a minute for, once for each pair of rows.
const HOSTILE: &str = "SELECT sum(instr(printf('%.*c', 4000000 + a.seq * 0, 'a'), printf('%.*c', 2000000, 'a') || 'b')), \
     sum(replace(hex(zeroblob(4000000)), '0' || b.seq, 'x') LIKE '%0%1%2%3') FROM collectives a, collectives b";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_questions_end_at_their_deadline_and_block_no_other() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = Arc::new(Source::Store(store_of_segments(&dir.path().join("s.db"), 20, ROWS)));
    let executor = executor(source);
    let small = "SELECT count(*) FROM collectives";
    ask(&executor, small).await.expect("a connection to keep");
    let deadline = Instant::now() + Duration::from_secs(3);
    let hostile: Vec<_> = (0..16)
        .map(|_| {
            let (executor, task) = (Arc::clone(&executor), task(&executor, HOSTILE));
            tokio::spawn(async move {
                let (batches, _unread) = mpsc::channel(4);
                let outcome = if executor.run_inline(&task, None).is_some() {
                    Ok(())
                } else {
                    executor.run("hostile", task, None, deadline, CancellationToken::new(), batches).await.map(|_| ())
                };
                (outcome, Instant::now())
            })
        })
        .collect();
    let mut took = Vec::new();
    while Instant::now() + Duration::from_millis(200) < deadline {
        let began = Instant::now();
        ask(&executor, small).await.expect("an answer meanwhile");
        took.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    took.sort();
    let at = |share: usize| took[(took.len() - 1) * share / 100];
    eprintln!("{} small questions beside 16 hostile ones: p50 {:?}, p99 {:?}", took.len(), at(50), at(99));
    let mut ends = Vec::new();
    for hostile in hostile {
        let (outcome, ended) = hostile.await.expect("no panic");
        let why = outcome.expect_err("a minute's work");
        assert!(matches!(&why, NodeError::Timeout(_)), "{why}");
        ends.push(ended.saturating_duration_since(deadline));
    }
    eprintln!("the last hostile one ended {:?} after its deadline", ends.iter().max());
    let until = Instant::now() + Duration::from_secs(60);
    while executor.at_work() > 0 {
        assert!(Instant::now() < until, "their threads go on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    eprintln!("their threads were free {:?} after the deadline", deadline.elapsed());
}

/// What a store's segments cost a question that reads few of them. Prints microseconds a question:
/// `cargo test --release -p rankmesh-query --lib small_questions -- --ignored --nocapture`
#[tokio::test]
#[ignore = "a measurement"]
async fn what_small_questions_cost_by_the_number_of_segments() {
    const TIMES: u32 = 400;
    for segments in [5, 500] {
        let dir = tempfile::tempdir().expect("a directory");
        let source = Arc::new(Source::Store(store_of_segments(&dir.path().join("s.db"), segments, ROWS)));
        let executor = executor(source);
        let (bounds, _) = ask(&executor, "SELECT min(ts_ns), max(ts_ns) FROM collectives").await.expect("a row");
        let [Value::Integer(first_ns), Value::Integer(last_ns)] = bounds[0].as_slice() else { panic!("{bounds:?}") };
        let near_end = last_ns - (last_ns - first_ns) / i64::try_from(segments).expect("few");
        for sql in [
            "SELECT count(*) FROM processes".to_owned(),
            "SELECT count(*) FROM collectives".to_owned(),
            "SELECT rank, count(*) FROM collectives GROUP BY rank".to_owned(),
            format!("SELECT count(*) FROM collectives WHERE ts_ns >= {near_end}"),
            format!("SELECT rank, sum(duration_ns) FROM collectives WHERE ts_ns >= {near_end} GROUP BY rank"),
        ] {
            let task = task(&executor, &sql);
            let mut inline = 0;
            let began = Instant::now();
            for _ in 0..TIMES {
                if let Some(done) = executor.run_inline(&task, None) {
                    done.expect("an answer");
                    inline += 1;
                } else {
                    let (batches, _produced) = mpsc::channel(1_000);
                    let deadline = Instant::now() + Duration::from_secs(600);
                    let (executor, task) = (Arc::clone(&executor), task.clone());
                    executor.run("test", task, None, deadline, CancellationToken::new(), batches).await.expect("done");
                }
            }
            let each = began.elapsed() / TIMES;
            println!("{segments} segments: {:>7.1} us, {inline} of {TIMES} inline: {sql}", each.as_secs_f64() * 1e6);
        }
    }
}
