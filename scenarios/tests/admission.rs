//! A crowd of questions: each is answered right or refused with a word on when to come again, and
//! nothing stays behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use model::FailureKind;
use query::ask::{self, AskError, QueryOutcome};
use query_planner::Value;
use scenarios::light::{LightCluster, eventually, question};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(300);
const CROWD: usize = 200;
/// A join between nodes: gathered at the coordinator.
const HEAVY: &str = "SELECT count(*), sum(a.v + b.v) FROM t a JOIN t b ON a.k = b.k";

fn rows(index: usize) -> String {
    format!(
        "CREATE TABLE t(k INTEGER, v INTEGER);
         WITH RECURSIVE r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r WHERE i < 199) INSERT INTO t SELECT i, {index} FROM r;"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_is_answered_or_told_when_to_come_again() {
    let cluster = LightCluster::start(3, rows).expect("agents");
    cluster.introduce(0);
    let shared = Arc::clone(cluster.agents[0].as_ref().expect("the coordinator lives").shared());
    let crowd: Vec<_> = (0..CROWD)
        .map(|_| {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                ask::ask(&shared.coordinator, question(HEAVY, PATIENCE), CancellationToken::new()).await
            })
        })
        .collect();
    let (mut answered, mut refused) = (0, 0);
    for asked in crowd {
        match asked.await.expect("no panic") {
            Ok(QueryOutcome::Answer { answer, coverage, .. }) => {
                assert!(coverage.is_complete(), "{coverage:?}");
                // 200 keys, 3 rows of each: 9 pairs whose sums are 2 * 3 * (0 + 1 + 2).
                assert_eq!(answer.rows, [[Value::Integer(1_800), Value::Integer(3_600)]]);
                answered += 1;
            }
            Err(AskError::Failed { failure, .. }) => {
                assert!(
                    failure.kind == FailureKind::Busy && failure.message.contains("; ask again in about "),
                    "{failure}"
                );
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answered + refused, CROWD);
    assert!(answered > 0);
    let until = Instant::now() + PATIENCE;
    let idle = || {
        shared.coordinator.admission.used() == 0
            && cluster.agents.iter().flatten().all(|a| a.shared().executor.at_work() == 0)
    };
    while !idle() {
        assert!(Instant::now() < until, "somebody still works");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let again = cluster.ask(0, HEAVY, PATIENCE).await.expect("there is room again");
    assert!(matches!(again, QueryOutcome::Answer { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_quiet_node_holds_up_nobody_else() {
    let mut cluster = LightCluster::start(3, rows).expect("agents");
    let _quiet = cluster.add_quiet().expect("a port");
    cluster.introduce(0);
    let shared = Arc::clone(cluster.agents[0].as_ref().expect("the coordinator lives").shared());
    let enough = CancellationToken::new();
    // Twice as many as may work at a time.
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let (shared, enough) = (Arc::clone(&shared), enough.clone());
            tokio::spawn(async move { ask::ask(&shared.coordinator, question(HEAVY, PATIENCE), enough).await })
        })
        .collect();
    let mut well = question(HEAVY, PATIENCE);
    well.nodes = cluster.members[..3].iter().map(|member| member.name.clone()).collect();
    let asked = ask::ask(&shared.coordinator, well, CancellationToken::new()).await.expect("its turn comes");
    let QueryOutcome::Answer { answer, coverage, .. } = asked else { panic!("{asked:?}") };
    assert!(coverage.is_complete(), "{coverage:?}");
    assert_eq!(answer.rows, [[Value::Integer(1_800), Value::Integer(3_600)]]);
    assert!(waiting.iter().all(|asked| !asked.is_finished()), "they had something to wait for");
    enough.cancel();
    for asked in waiting {
        asked.await.expect("no panic").expect_err("cancelled");
    }
    eventually(PATIENCE, "all permits have ended", || shared.coordinator.admission.used() == 0).await;
}
