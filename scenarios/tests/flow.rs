//! Rows on their way to whoever asked: early ones while others work, no more than are read, and
//! what is said of a node that breaks off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use query::access::Caller;
use query::ask::{self, AskError, QueryOutcome, Question, RowChunk};
use query_planner::Value;
use scenarios::light::{LightCluster, eventually, question};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(240);

/// On each node rows enough that a join of the table with itself has 90,000 of some 300 bytes.
fn rows(index: usize) -> String {
    format!(
        "CREATE TABLE t(i INTEGER, s TEXT);
         WITH RECURSIVE r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r WHERE i < 299)
         INSERT INTO t SELECT i, 'n{index} ' || printf('%.*c', 280, 'x') FROM r;"
    )
}

const ROWS: usize = 300 * 300;
const MANY: &str = "SELECT a.i, b.i, a.s FROM t a JOIN t b ON a.node = b.node";

/// Puts a question, for rows as they come.
fn put(
    cluster: &LightCluster,
    question: Question,
) -> (JoinHandle<Result<QueryOutcome, AskError>>, mpsc::Receiver<RowChunk>) {
    let shared = Arc::clone(cluster.agents[0].as_ref().expect("the coordinator lives").shared());
    let (out, pieces) = mpsc::channel(1);
    let cancel = CancellationToken::new();
    (
        tokio::spawn(async move { ask::ask_into(&shared.coordinator, question, &Caller::owner(), cancel, out).await }),
        pieces,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_rows_come_while_a_node_has_not_answered() {
    let mut cluster = LightCluster::start(3, rows).expect("agents");
    let quiet = cluster.add_quiet().expect("a port");
    cluster.introduce(0);
    let (asking, mut pieces) = put(&cluster, question("SELECT node, i FROM t WHERE i < 2", PATIENCE));
    let mut early = Vec::new();
    while early.len() < 6 {
        let piece = pieces.recv().await.expect("the rows of three nodes");
        assert_eq!(piece.columns[1].name, "i");
        early.extend(piece.rows);
    }
    // The quiet node is waited for until it hangs up.
    assert!(!asking.is_finished(), "all rows came at the end");
    drop(quiet);
    let asked = asking.await.expect("no panic").expect("an answer");
    assert!(pieces.recv().await.is_none(), "rows twice");
    let QueryOutcome::Answer { answer, coverage, .. } = asked else { panic!("no answer") };
    assert_eq!((answer.rows.len(), coverage.asked, coverage.answered), (0, 4, 3));
    assert_eq!(coverage.missing[0].node, "quiet");
    early.sort_by_key(|row| format!("{row:?}"));
    let expected: Vec<Vec<Value>> = (0..3)
        .flat_map(|node| (0..2).map(move |i| vec![Value::Text(format!("n{node:04}").into_bytes()), Value::Integer(i)]))
        .collect();
    assert_eq!(early, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_holds_the_nodes_up_and_gets_every_row() {
    let cluster = LightCluster::start(3, rows).expect("agents");
    cluster.introduce(0);
    let (asking, mut pieces) = put(&cluster, question(MANY, PATIENCE));
    let first = pieces.recv().await.expect("rows");
    let working = || cluster.agents.iter().flatten().filter(|a| a.shared().executor.at_work() > 0).count();
    // The first rows may come before the last node has begun.
    let begun = Instant::now() + PATIENCE;
    while working() < 3 {
        assert!(Instant::now() < begun, "{} of 3 nodes began", working());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Nobody reads: some 27 MB a node do not fit into what may be on its way, so no node comes to
    // its end.
    let quiet = Instant::now() + Duration::from_secs(2);
    while Instant::now() < quiet {
        assert_eq!(working(), 3, "a node went on though nobody reads");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (mut count, mut sum) = (0, 0);
    let mut take = |rows: Vec<Vec<Value>>| {
        for row in rows {
            let (Value::Integer(a), Value::Integer(b), Value::Text(s)) = (&row[0], &row[1], &row[2]) else {
                panic!("{row:?}")
            };
            assert!(s.len() > 280);
            count += 1;
            sum += 1_000 * a + b;
        }
    };
    take(first.rows);
    while let Some(piece) = pieces.recv().await {
        take(piece.rows);
    }
    let QueryOutcome::Answer { answer, coverage, .. } = asking.await.expect("no panic").expect("an answer") else {
        panic!("no answer")
    };
    take(answer.rows);
    assert_eq!(coverage.answered, 3);
    assert_eq!(count, 3 * ROWS);
    assert_eq!(sum, 3 * 300 * (0..300).map(|i| 1_001 * i).sum::<i64>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_breaks_off_after_rows_of_it_went_out_fails_the_question() {
    let mut cluster = LightCluster::start(2, rows).expect("agents");
    cluster.introduce(0);
    let only = Question { nodes: vec!["n0001".to_owned()], ..question(MANY, PATIENCE) };
    let (asking, mut pieces) = put(&cluster, only);
    pieces.recv().await.expect("rows");
    cluster.kill(1).expect("a socket");
    while pieces.recv().await.is_some() {}
    let Err(AskError::Failed { failure, coverage }) = asking.await.expect("no panic") else { panic!("an answer") };
    assert!(
        failure.message.contains("n0001 broke off after") && failure.message.contains("not an answer"),
        "{failure}"
    );
    assert_eq!(coverage.expect("coverage").missing[0].node, "n0001");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_stops_reading_stops_the_nodes() {
    let cluster = LightCluster::start(3, rows).expect("agents");
    cluster.introduce(0);
    let (asking, mut pieces) = put(&cluster, question(MANY, PATIENCE));
    pieces.recv().await.expect("rows");
    drop(pieces);
    asking.await.expect("no panic").expect_err("nobody took the rows");
    let working = || cluster.agents.iter().flatten().filter(|a| a.shared().executor.at_work() > 0).count();
    eventually(PATIENCE, "no node works", || working() == 0).await;
}
