//! Questions in two rounds: a node that is restarted between them, with other rows, is lost and
//! said to be; its answers of two lives are never mixed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use query::ask::{self, QueryOutcome};
use query_planner::Value;
use scenarios::light::{LightCluster, question};
use tokio_util::sync::CancellationToken;

/// Also the question's time: of this the first round has half, while one node does not answer.
const PATIENCE: Duration = Duration::from_secs(240);
const SQL: &str = "SELECT a.k, b.v FROM a JOIN b ON a.k = b.k WHERE a.x = 1 ORDER BY 1, 2";

/// Rows of one node: key `k` in both tables.
fn rows(k: usize) -> String {
    format!(
        "CREATE TABLE a(k INTEGER, x INTEGER); CREATE TABLE b(k INTEGER, v INTEGER);
         INSERT INTO a VALUES ({k}, 1), (100, 2); INSERT INTO b VALUES ({k}, {k}), (7, 700);"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_returns_with_other_rows_between_two_rounds_is_lost() {
    let mut cluster = LightCluster::start(3, rows).expect("agents");
    // A quiet member holds the first round open.
    let quiet = cluster.add_quiet().expect("a port");
    cluster.introduce(0);

    let shared = Arc::clone(cluster.agents[0].as_ref().expect("the coordinator lives").shared());
    let asking =
        tokio::spawn(
            async move { ask::ask(&shared.coordinator, question(SQL, PATIENCE), CancellationToken::new()).await },
        );
    let until = Instant::now() + PATIENCE;
    let kept =
        |cluster: &LightCluster| cluster.agents[1].as_ref().map_or(0, |agent| agent.shared().executor.kept_snapshots());
    while kept(&cluster) == 0 && !asking.is_finished() {
        assert!(Instant::now() < until, "the first round never came");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // In its second life it has rows for the key of its first, which nobody has any more.
    let next = "CREATE TABLE a(k INTEGER, x INTEGER); CREATE TABLE b(k INTEGER, v INTEGER);
                INSERT INTO a VALUES (7, 1); INSERT INTO b VALUES (1, 999), (0, 998), (2, 997);";
    cluster.restart_with(1, next, PATIENCE).await.expect("the port is free again");
    assert!(!asking.is_finished(), "the first round is still open");
    drop(quiet);

    let QueryOutcome::Answer { answer, coverage, .. } = asking.await.expect("no panic").expect("an answer") else {
        panic!("no answer")
    };
    let reason = |name: &str| coverage.missing.iter().find(|missing| missing.node == name).map(|m| m.reason.clone());
    let lost = reason("n0001").unwrap_or_else(|| panic!("both lives count as one: {:?} {coverage:?}", answer.rows));
    // It says so itself, unless this machine is so slow that nothing of it is heard.
    assert!(["restarted between two rounds", "unreachable"].iter().any(|why| lost.contains(why)), "{lost}");
    assert!(reason("quiet").is_some());
    assert_eq!((coverage.asked, coverage.answered), (4, 2));
    let row = |k: i64| vec![Value::Integer(k), Value::Integer(k)];
    assert_eq!(answer.rows, [row(0), row(2)], "{coverage:?}");

    // Nothing is kept when the question is over.
    let until = Instant::now() + PATIENCE;
    while cluster.agents.iter().flatten().any(|agent| agent.shared().executor.kept_snapshots() > 0) {
        assert!(Instant::now() < until, "a snapshot is kept for ever");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Few rows are merged where they arrive, without handing over to another thread; but not for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_of_few_rows_that_turns_out_to_be_long_is_done_all_the_same() {
    let each = "CREATE TABLE a(k INTEGER); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)
                INSERT INTO a SELECT i FROM n;";
    let cluster = LightCluster::start(3, |_| each.to_owned()).expect("agents");
    cluster.introduce(0);
    let long = ("SELECT count(*), sum(x.k + y.k + z.k) FROM a AS x, a AS y, a AS z", [216_000, 6_804_000]);
    let short = ("SELECT count(*), sum(k) FROM a", [60, 630]);
    for (sql, expected) in [long, short, long] {
        let asked = cluster.ask(0, sql, PATIENCE).await.expect("an answer");
        let QueryOutcome::Answer { answer, coverage, .. } = asked else { panic!("no answer") };
        assert_eq!(answer.rows, [expected.map(Value::Integer)], "{sql}");
        assert_eq!((coverage.asked, coverage.answered), (3, 3), "{coverage:?}");
    }
}
