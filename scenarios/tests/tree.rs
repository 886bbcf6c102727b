//! Fan-out through intermediate aggregators: the same answers, exact coverage, intermediate
//! aggregators that die, and cancelling.

use std::sync::Arc;
use std::time::{Duration, Instant};

use query::FanoutPolicy;
use query::ask::QueryOutcome;
use query_planner::Value;
use scenarios::light::{LightCluster, eventually, question};
use tokio_util::sync::CancellationToken;

const NODES: usize = 24;
const PATIENCE: Duration = Duration::from_secs(240);

fn rows(index: usize) -> String {
    format!(
        "CREATE TABLE t(k INTEGER NOT NULL, v INTEGER NOT NULL); INSERT INTO t VALUES ({}, {index}), (7, {index});",
        index % 3
    )
}

fn tree(cluster: &LightCluster, tree_above: usize) {
    let coordinator = cluster.agents[0].as_ref().expect("the coordinator lives");
    *coordinator.shared().coordinator.fanout.lock() = FanoutPolicy { tree_above };
}

/// Rows, answered, and who is missing.
fn rows_and_coverage(asked: QueryOutcome) -> (Vec<Vec<Value>>, usize, Vec<String>) {
    let QueryOutcome::Answer { answer, coverage, .. } = asked else { panic!("no answer") };
    assert_eq!(coverage.asked, NODES);
    (answer.rows, coverage.answered, coverage.missing.into_iter().map(|missing| missing.node).collect())
}

const QUESTIONS: [&str; 4] = [
    "SELECT count(*), sum(v), avg(v) FROM t",
    "SELECT k, count(*), median(v) FROM t GROUP BY k ORDER BY k",
    "SELECT node, k, v FROM t WHERE k = 7 ORDER BY v DESC LIMIT 5",
    "SELECT a.k, b.v FROM t a JOIN t b ON a.k = b.v ORDER BY 1, 2",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_answers_as_direct_questions_do_and_survives_its_inner_nodes() {
    let mut cluster = LightCluster::start(NODES, rows).expect("agents");
    cluster.introduce(0);
    for sql in QUESTIONS {
        tree(&cluster, usize::MAX);
        let direct = rows_and_coverage(cluster.ask(0, sql, PATIENCE).await.expect("an answer"));
        assert_eq!((direct.1, direct.2.len()), (NODES, 0));
        tree(&cluster, 2);
        let through = rows_and_coverage(cluster.ask(0, sql, PATIENCE).await.expect("an answer"));
        assert_eq!(direct, through, "{sql}");
        assert!(dialled_by_leaves(&cluster) > 0, "nobody relayed");
        // Behind intermediate aggregators snapshots are kept until the question is over, and then
        // no longer.
        eventually(PATIENCE / 2, "snapshots to be given up", || kept(&cluster) == 0).await;
    }
    // A third of the nodes die, so that some group most likely has a dead intermediate aggregator,
    // and all have dead leaves.
    let dead: Vec<usize> = (1..NODES).filter(|index| index % 3 == 1).collect();
    for &index in &dead {
        cluster.kill(index).expect("sockets");
    }
    let names: Vec<String> = dead.iter().map(|&index| cluster.members[index].name.clone()).collect();
    let sum: usize = (0..NODES).filter(|index| !dead.contains(index)).map(|index| 2 * index).sum();
    for _ in 0..3 {
        let (rows, answered, missing) =
            rows_and_coverage(cluster.ask(0, QUESTIONS[0], PATIENCE).await.expect("an answer"));
        assert_eq!((answered, &missing), (NODES - dead.len(), &names));
        assert_eq!(rows[0][1], Value::Integer(sum as i64));
    }
    // They come back on their ports, and their old connections say so.
    for &index in &dead {
        cluster.restart(index, PATIENCE).await.expect("the port is free again");
    }
    let (rows, answered, missing) = rows_and_coverage(cluster.ask(0, QUESTIONS[0], PATIENCE).await.expect("an answer"));
    assert_eq!((answered, missing.len()), (NODES, 0));
    assert_eq!(rows[0][0], Value::Integer(2 * NODES as i64));
}

fn dialled_by_leaves(cluster: &LightCluster) -> u64 {
    cluster.agents[1..].iter().flatten().map(|agent| agent.shared().mesh.stats().dials).sum()
}

fn kept(cluster: &LightCluster) -> usize {
    cluster.agents.iter().flatten().map(|agent| agent.shared().executor.kept_snapshots()).sum()
}

fn at_work(cluster: &LightCluster) -> usize {
    cluster.agents.iter().flatten().map(|agent| agent.shared().executor.at_work()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_node_with_tables_of_its_own_leaves_the_others_time_to_answer() {
    let mut cluster = LightCluster::start(2, rows).expect("agents");
    let _quiet = cluster.add_quiet().expect("a port");
    let odd = cluster.members.last_mut().expect("it is the last");
    Arc::make_mut(&mut odd.facts).schema_hash += 1;
    cluster.introduce(0);
    // Its tables are asked for in the first half of the time.
    let asked = cluster.ask(0, QUESTIONS[0], Duration::from_secs(20)).await.expect("the others' answer");
    let QueryOutcome::Answer { answer, coverage, .. } = asked else { panic!("no answer") };
    assert_eq!((coverage.asked, coverage.answered), (3, 2));
    assert_eq!(coverage.missing[0].node, "quiet");
    assert_eq!(answer.rows[0][0], Value::Integer(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_stops_sqlite_on_every_node() {
    const FEW: usize = 5;
    let many = |_| {
        "CREATE TABLE t(v INTEGER NOT NULL);
         WITH RECURSIVE r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r WHERE i < 4999) INSERT INTO t SELECT i FROM r;"
            .to_owned()
    };
    let cluster = LightCluster::start(FEW, many).expect("agents");
    cluster.introduce(0);
    for tree_above in [usize::MAX, 1] {
        tree(&cluster, tree_above);
        let cancel = CancellationToken::new();
        // Hours of work on each node.
        let heavy = model::Question {
            per_node: true,
            ..question("SELECT count(*) FROM t a, t b, t c, t d WHERE a.v + b.v + c.v + d.v = -1", 10 * PATIENCE)
        };
        let asking = cluster.ask_until(0, heavy, cancel.clone());
        let cancelling = async {
            eventually(PATIENCE, "every node works", || at_work(&cluster) == FEW).await;
            let cancelled = Instant::now();
            cancel.cancel();
            eventually(PATIENCE, "no node works", || at_work(&cluster) == 0).await;
            cancelled.elapsed()
        };
        let (answer, took) = tokio::join!(asking, cancelling);
        eprintln!("tree above {tree_above}: all of {FEW} nodes stopped {took:?} after the question was cancelled");
        assert!(answer.is_err(), "a cancelled question was answered");
    }
}
