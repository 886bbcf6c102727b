//! One user's rows and nobody else's, from every node, whichever way her question goes there: asked
//! directly, or through a tree whose intermediate aggregators pass rows on or combine them, in one
//! round or two.

// A failed step is a failed test.
#![allow(clippy::unwrap_used)]
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent::SourceConfig;
use node_bpf::{Collective, Library, ProcessSeen, Record};
use query::FanoutPolicy;
use query::access::{Access, Caller};
use query::ask::{self, QueryOutcome};
use query_planner::Value;
use scenarios::light::question;
use scenarios::trust::TrustMesh;
use store::{Store, StoreConfig};
use tokio_util::sync::CancellationToken;

const NODES: usize = 8;
const ADA: u32 = 1_001;
const BOB: u32 = 1_002;
const DAY: Duration = Duration::from_secs(86_400);
const PATIENCE: Duration = Duration::from_secs(240);

/// Calls of a rank of each user on a node: different ones, and of different lengths.
fn store(node: usize, path: &Path) {
    let now_ns = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap();
    let store = Store::open(path, StoreConfig::default()).unwrap();
    let ingest = store.ingest();
    let rank = i32::try_from(node).unwrap();
    for (uid, calls, duration_ns) in [(ADA, 30, 1_000), (BOB, 50, 7_000_000)] {
        let (pid, job_id) = (4_000_000 + 10 * uid + u32::try_from(node).unwrap(), Some(format!("job-of-{uid}")));
        ingest.record(Record::Process(ProcessSeen {
            pid,
            start_ns: now_ns - 60_000_000_000,
            uid: Some(uid),
            rank: Some(rank),
            job_id: job_id.clone(),
            ..ProcessSeen::default()
        }));
        for call in 0..calls {
            ingest.record(Record::Collective(Collective {
                ts_ns: now_ns - 10_000_000_000 + call * 100_000_000,
                duration_ns: duration_ns + call * 10 + i64::from(rank),
                pid,
                tid: pid,
                rank: Some(rank),
                local_rank: Some(0),
                nranks: Some(8),
                comm_hash: Some(u64::from(uid)),
                func: "all_reduce",
                seq: u64::try_from(call).ok(),
                count: Some(1),
                datatype: Some("float32"),
                bytes: Some(4),
                reduce_op: Some("sum"),
                library: Library::Mpi,
                ret: Some(0),
                cgroup_id: 1,
                job_id: job_id.as_deref().map(Into::into),
                ..Collective::default()
            }));
        }
    }
    store.flush(PATIENCE).unwrap();
    store.close();
}

async fn ask_as(mesh: &TrustMesh, caller: &Caller, sql: &str) -> Vec<Vec<Value>> {
    let shared = mesh.agents[0].shared();
    match ask::ask_as(&shared.coordinator, question(sql, PATIENCE), caller, CancellationToken::new()).await {
        Ok(QueryOutcome::Answer { answer, coverage, .. }) => {
            assert!(coverage.is_complete() && coverage.asked == NODES, "{sql}: {coverage:?}");
            answer.rows
        }
        other => panic!("{sql}: {other:?}"),
    }
}

/// `@` is the table of calls.
const QUESTIONS: [&str; 9] = [
    "SELECT count(*), sum(bytes), avg(duration_ns) FROM @ WHERE seq < 471100",
    "SELECT job_id, count(*), max(duration_ns) FROM @ WHERE seq < 471100 GROUP BY job_id ORDER BY 1",
    "SELECT node, count(*) FROM @ WHERE seq < 471100 GROUP BY node ORDER BY node",
    "SELECT median(duration_ns), count(DISTINCT comm_hash) FROM @ WHERE seq < 471100",
    "SELECT rank, median(duration_ns) FROM @ WHERE seq < 471100 GROUP BY rank ORDER BY rank",
    "SELECT node, pid, seq, duration_ns FROM @ WHERE seq < 471100 ORDER BY duration_ns DESC, node, seq LIMIT 40",
    "SELECT node, pid, seq FROM @ WHERE seq < 471100 ORDER BY node, pid, seq",
    "SELECT DISTINCT job_id, func FROM @ WHERE seq < 471100 ORDER BY 1",
    "SELECT count(*), min(a.job_id), max(b.job_id) FROM @ a JOIN @ b ON a.seq = b.seq AND a.rank = b.rank + 1 WHERE a.seq < 471100",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_shows_a_user_her_own_rows_and_nothing_else() {
    let source = |node: usize, dir: &Path| {
        let path = dir.join(format!("n{node}.db"));
        store(node, &path);
        SourceConfig::Store { path, limits: StoreConfig::default() }
    };
    let mesh = TrustMesh::start_over(NODES, DAY, Box::new(source)).await.unwrap();
    let ada = Caller::guest(Access::Own(ADA), format!("uid {ADA}"));
    let nobody = Caller::guest(Access::Own(65_534), "uid 65534");
    for tree_above in [usize::MAX, 2] {
        *mesh.agents[0].shared().coordinator.fanout.lock() = FanoutPolicy { tree_above };
        for sql in QUESTIONS {
            // What the union of her rows would answer.
            let hers = format!("(SELECT node, * FROM collectives WHERE job_id = 'job-of-{ADA}')");
            let wanted = ask_as(&mesh, &Caller::owner(), &sql.replace('@', &hers).replace("471100", "1000000")).await;
            assert_eq!(ask_as(&mesh, &ada, &sql.replace('@', "collectives")).await, wanted, "{sql}");
        }
        for sql in [QUESTIONS[1], QUESTIONS[5], QUESTIONS[6], QUESTIONS[7]] {
            let none = ask_as(&mesh, &nobody, &sql.replace('@', "collectives").replace("471100", "1000000")).await;
            assert_eq!(none, Vec::<Vec<Value>>::new(), "{sql}");
        }
    }
    // Whoever was asked on the way was asked for her, and many by an intermediate aggregator. No
    // other question has their number, this one, which may have to be asked again until all is
    // written down, in two pieces only.
    let audit = format!(
        "SELECT sum(who LIKE '% for uid {ADA}') AS hers, sum(who NOT LIKE '% for uid {ADA}') AS others, \
         count(DISTINCT who) > 2 AS by_inner_nodes, sum(kind <> 'task') > 0 AS relayed \
         FROM audit WHERE via = 'mesh' AND question LIKE '%471' || '100%'"
    );
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let rows = ask_as(&mesh, &Caller::owner(), &audit).await;
        let [Value::Integer(hers), Value::Integer(others), Value::Integer(inner), Value::Integer(relayed)] =
            rows[0][..]
        else {
            panic!("{rows:?}")
        };
        assert_eq!(others, 0, "asked for somebody else: {rows:?}");
        // Nine questions of seven other nodes, twice.
        if hers >= 9 * 7 && inner == 1 && relayed == 1 {
            break;
        }
        assert!(std::time::Instant::now() < until, "{rows:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
