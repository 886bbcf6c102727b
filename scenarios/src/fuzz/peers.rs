//! What members and people of the mesh send that is worked on, not only read: tasks and answers up
//! to their rows, catalogues up to plans against them, gossiped facts, and local requests up to
//! their answers. Everything runs under the limits that an agent has, on a small store with
//! segments of every kind of column.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use model::frame::{self, FrameReader};
use model::wire::{Request, Response};
use model::{LocalRequest, Question};
use node_bpf::{Collective, ProcessSeen, Record};
use query::SnapshotUse;
use query::exec::Executor;
use query_planner::{AskOptions, Batch, Budget, Catalog, Fragment, MergePool, NodeTask, Stop};
use store::{ServedDb, Source, Store, StoreConfig};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::light::LightCluster;

/// Time that a task or a question has.
const DEADLINE: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(60);
/// 2026-01-01 UTC.
const T0_NS: i64 = 1_767_225_600_000_000_000;

const QUESTIONS: [&str; 9] = [
    "SELECT count(*) FROM collectives",
    "SELECT rank, count(*), avg(duration_ns), median(duration_ns) FROM collectives GROUP BY rank",
    "SELECT func, approx_quantile(duration_ns, 0.9), stddev(bytes), min(func) FROM collectives WHERE rank > 1 GROUP BY 1",
    "SELECT ts_ns, func, comm_hash FROM collectives WHERE ts_ns BETWEEN 1767225600000000000 AND 1767225600500000000 \
     ORDER BY duration_ns DESC LIMIT 5",
    "SELECT node, approx_count_distinct(seq), histogram(bytes, 4), first(func, ts_ns) FROM collectives GROUP BY node",
    "SELECT c.rank, p.comm FROM collectives c JOIN processes p ON p.pid = c.pid WHERE p.comm = 'python'",
    "SELECT op, count(*) FROM nccl_events GROUP BY op",
    "SELECT DISTINCT job_id FROM collectives WHERE job_id IN ('a', 'b')",
    "SELECT seq % 7, sum(bytes) FROM collectives WHERE func <> 'x' GROUP BY 1 HAVING count(*) > 1",
];

/// Columns that a part of the fuzzer's own says it reads.
const READS: [&str; 5] = ["rank", "func", "ts_ns", "seq", "of_tomorrow"];

struct Lab {
    _dir: tempfile::TempDir,
    executor: Arc<Executor>,
    catalog: Arc<Catalog>,
    runtime: Runtime,
    merges: MergePool,
    /// A part that ships a partial state of every kind.
    states: Fragment,
    coordinator: LightCluster,
}

fn lab() -> anyhow::Result<&'static Lab> {
    static LAB: OnceLock<Lab> = OnceLock::new();
    if let Some(lab) = LAB.get() {
        return Ok(lab);
    }
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("store.db");
    fill(&path)?;
    let source = Arc::new(Source::Served(ServedDb::open(&path, Vec::new())?));
    let executor = Arc::new(Executor::new("n0".to_owned(), source, 2));
    let catalog = executor.catalog()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let coordinator = {
        let _inside = runtime.enter();
        let cluster = LightCluster::start(1, |_| {
            "CREATE TABLE events(source INTEGER, duration REAL, name TEXT); INSERT INTO events VALUES (1, 2.5, 'a'), (2, NULL, 'b');".to_owned()
        })?;
        cluster.introduce(0);
        cluster
    };
    let states = "SELECT count(*), sum(seq), stddev(seq), median(seq), approx_quantile(seq, 0.5), approx_count_distinct(seq), \
                  histogram(seq, 4), first(seq, ts_ns), last(seq, ts_ns), min(seq), rank FROM collectives GROUP BY rank";
    let states = plan(states, &catalog)?.context("no part")?;
    let lab = Lab { _dir: dir, executor, catalog, runtime, merges: MergePool::default(), states, coordinator };
    Ok(LAB.get_or_init(|| lab))
}

/// Calls of four ranks, in as many segments as there are commits.
fn fill(path: &std::path::Path) -> anyhow::Result<()> {
    let store = Store::open(path, StoreConfig::default())?;
    let ingest = store.ingest();
    for commit in 0..4_i64 {
        for call in 0..50_i64 {
            let rank = (call % 4) as i32;
            ingest.record(Record::Collective(Collective {
                ts_ns: T0_NS + (commit * 50 + call) * 10_000_000,
                duration_ns: 1_000 + call * call,
                pid: 100 + rank as u32,
                tid: 100,
                rank: (call % 9 != 0).then_some(rank),
                local_rank: Some(rank),
                nranks: Some(4),
                comm_hash: Some(0xDEAD_BEEF_0000_0001),
                func: if call % 5 == 0 { "broadcast" } else { "all_reduce" },
                seq: u64::try_from(call).ok(),
                count: Some(1024),
                datatype: Some("float32"),
                bytes: Some(4096 << (call % 3)),
                reduce_op: Some("sum"),
                stream: Some(7),
                ret: Some(0),
                cgroup_id: 1,
                job_id: (call % 2 == 0).then(|| "42".into()),
                ..Collective::default()
            }));
        }
        for rank in 0..4 {
            let comm = "python".to_owned();
            let seen = ProcessSeen {
                pid: 100 + rank,
                start_ns: T0_NS,
                comm,
                rank: Some(rank as i32),
                ..ProcessSeen::default()
            };
            ingest.record(Record::Process(seen));
        }
        store.flush(PATIENCE)?;
    }
    store.close();
    Ok(())
}

fn plan(sql: &str, catalog: &Catalog) -> anyhow::Result<Option<Fragment>> {
    let plan = query_planner::plan(sql, catalog, &AskOptions::default())?;
    Ok(plan.fragments.into_iter().next())
}

fn task(fragments: Vec<Fragment>) -> NodeTask {
    NodeTask { fragments, keys: Vec::new(), now_unix_ns: T0_NS, budget: Budget::default(), viewer: None }
}

/// Frames of tasks in every kind of request, parts as text (`S3 SELECT …`: columns, SQL), and
/// answers.
pub(super) fn task_seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let lab = lab()?;
    let mut seeds = Vec::new();
    let snapshot = SnapshotUse { question: 7, of_earlier: false, keep_ms: 0 };
    let own = Request::Task { deadline_ms: 9, task: task(vec![lab.states.clone()]) };
    seeds.push(frame::encode(&own.own(7)?)?);
    for sql in QUESTIONS {
        let fragments = query_planner::plan(sql, &lab.catalog, &AskOptions::default())?.fragments;
        for fragment in &fragments {
            seeds.push(format!("S{} {}", fragment.columns, fragment.sql).into_bytes());
        }
        let combine: Option<Vec<_>> = fragments.iter().map(|fragment| fragment.combine.clone()).collect();
        seeds.push(frame::encode(&match combine {
            Some(combine) => {
                let (leaves, snapshot) = (Vec::new(), Some(snapshot));
                Request::Combine { deadline_ms: 9, task: task(fragments), leaves, combine, snapshot }
            }
            None => Request::RoundTask { deadline_ms: 9, task: task(fragments), snapshot },
        })?);
    }
    let answer = lab.runtime.block_on(run(lab, task(vec![lab.states.clone()])));
    for batch in answer {
        seeds.push(frame::encode(&Response::Batch { fragment: 0, batch })?);
    }
    Ok(seeds)
}

/// A request is worked on as a node does it; an answer is held against its part, and combined with
/// an honest one.
pub(super) fn feed_task(input: &[u8]) -> anyhow::Result<()> {
    let lab = lab()?;
    if let Some(text) = input.strip_prefix(b"S") {
        let text = String::from_utf8_lossy(text);
        let (columns, sql) = text.split_once(' ').unwrap_or(("1", &text));
        let reads = vec![("collectives".to_owned(), READS.map(str::to_owned).to_vec())];
        let fragment = Fragment {
            sql: sql.to_owned(),
            columns: columns.parse().unwrap_or(1),
            reads,
            combine: None,
            partials: Vec::new(),
            ..lab.states.clone()
        };
        lab.runtime.block_on(run(lab, task(vec![fragment])));
        return Ok(());
    }
    lab.runtime.block_on(async {
        if let Ok(Some(request)) = FrameReader::new(input).read::<Request>().await {
            let (request, combine) = match request {
                Request::Own { uid, request } => (Request::owned(uid, &request), Vec::new()),
                Request::Combine { deadline_ms, task, combine, .. } => {
                    (Some(Request::Task { deadline_ms, task }), combine)
                }
                other => (Some(other), Vec::new()),
            };
            let (Some(Request::Task { mut task, .. })
            | Some(Request::RoundTask { mut task, .. })
            | Some(Request::Relay { mut task, .. })
            | Some(Request::RoundRelay { mut task, .. })) = request
            else {
                return;
            };
            // Rows of one user come from the agent's own store; this is a served file.
            task.viewer = None;
            let batches = run(lab, task).await;
            for combine in combine {
                let _ = combine.combined(&batches, &lab.merges, &Stop::at(Some(Instant::now() + DEADLINE)));
            }
        }
        if let Ok(Some(Response::Batch { batch, .. })) = FrameReader::new(input).read::<Response>().await
            && lab.states.check(&batch).is_ok()
            && let Some(combine) = &lab.states.combine
        {
            let stop = Stop::at(Some(Instant::now() + DEADLINE));
            let _ = combine.combined(&[batch.clone(), batch], &lab.merges, &stop);
        }
    });
    Ok(())
}

async fn run(lab: &Lab, task: NodeTask) -> Vec<Batch> {
    let (batches, mut produced) = mpsc::channel(4);
    let deadline = Instant::now() + DEADLINE;
    let running = Arc::clone(&lab.executor).run("peer", task, None, deadline, CancellationToken::new(), batches);
    let gather = async {
        let mut all = Vec::new();
        while let Some((_, batch, _)) = produced.recv().await {
            if all.len() < 16 {
                all.push(batch);
            }
        }
        all
    };
    tokio::join!(running, gather).1
}

/// This store's catalogue, and smaller ones.
pub(super) fn catalog_seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let lab = lab()?;
    let mut seeds = vec![frame::encode(&*lab.catalog)?];
    for names in [&["collectives", "nccl_events"][..], &["processes"]] {
        let tables = names.iter().filter_map(|name| Some(((*name).to_owned(), lab.catalog.tables.get(*name)?.clone())));
        seeds.push(frame::encode(&Catalog { tables: tables.collect() })?);
    }
    let conn = rusqlite::Connection::open_in_memory()?;
    conn.execute_batch(
        "CREATE TABLE collectives(rank INTEGER, x TEXT COLLATE NOCASE); CREATE VIEW v AS SELECT rank FROM collectives;
         CREATE VIEW w AS SELECT rank, count(*) AS n FROM collectives GROUP BY rank; CREATE TABLE u(id INTEGER PRIMARY KEY);",
    )?;
    seeds.push(frame::encode(&Catalog::of(&conn, &["u".to_owned()])?)?);
    Ok(seeds)
}

/// A catalogue with its right hash is believed or not, and united with ours; questions are planned
/// against both.
pub(super) fn feed_catalog(input: &[u8]) -> anyhow::Result<()> {
    let lab = lab()?;
    let found = lab.runtime.block_on(async {
        let found = FrameReader::new(input).read::<Catalog>().await.ok()??;
        query::catalogs::verified(input, found.hash()).await.ok()
    });
    let Some(found) = found else { return Ok(()) };
    let (union, _) =
        Catalog::union_of_most(&[("n0".to_owned(), (*lab.catalog).clone()), ("n1".to_owned(), (*found).clone())]);
    for catalog in [&union, &*found] {
        for sql in ["SELECT * FROM collectives", "SELECT v.*, w.n FROM v, w", QUESTIONS[1], QUESTIONS[6]] {
            if let Ok(plan) = query_planner::plan(sql, catalog, &AskOptions::default()) {
                let _ = query_planner::explain(&plan);
            }
        }
    }
    Ok(())
}

/// Lines of a key, a tab and its value.
pub(super) fn fact_seeds() -> Vec<Vec<u8>> {
    [
        "n\t{\"a\":\"10.0.0.7:7117\",\"l\":{\"job\":\"4711\"},\"v\":\"0.1.0\",\"h\":18446744073709551615,\"c\":\"on\"}\n\
         s\t{\"r\":\"0-3,9,65535\",\"t\":[1760000000000000000,1760000000000000001],\"n\":12}\nx.clock\ta=-12",
        "s\t{\"r\":\"0-4294967295\"}\nleft\t1\nx.d0\tabc",
        "n\t{\"l\":{\"a\":{\"b\":[[[[[1]]]]]}}}",
    ]
    .map(|seed| seed.as_bytes().to_vec())
    .to_vec()
}

/// Facts as gossip reads them; what comes of it can be gossiped on, or is too large.
pub(super) fn feed_facts(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let facts = gossip::read_facts(text.lines().filter_map(|line| line.split_once('\t')));
    assert!(facts.ranks.len() <= gossip::MAX_RANKS, "{} ranks", facts.ranks.len());
}

/// Local requests as the command line sends them.
pub(super) fn local_seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let question = |sql: &str, per_node, analyze| Question {
        sql: sql.to_owned(),
        timeout_ms: 300,
        nodes: vec!["n0000".to_owned()],
        labels: vec![("job".to_owned(), "1".to_owned())],
        per_node,
        plan_only: false,
        analyze,
    };
    let mut seeds = vec![frame::encode(&LocalRequest::Nodes)?];
    for (sql, per_node, analyze) in [
        ("SELECT source, count(*), avg(duration) FROM events GROUP BY source ORDER BY 2 DESC LIMIT 3", false, false),
        ("SELECT * FROM events WHERE name LIKE 'a%'", true, false),
        ("SELECT cluster_ns(source) FROM events", false, true),
        ("SELECT 1 + 1", false, true),
    ] {
        let mut asked = question(sql, per_node, analyze);
        seeds.push(frame::encode(&LocalRequest::Query(asked.clone()))?);
        (asked.nodes, asked.labels) = (Vec::new(), Vec::new());
        seeds.push(frame::encode(&LocalRequest::Query(asked))?);
        seeds.push([b"Q", sql.as_bytes()].concat());
    }
    Ok(seeds)
}

/// A local request, or a question's text behind a Q, up to its answer within a short time.
pub(super) fn feed_local(input: &[u8]) -> anyhow::Result<()> {
    let lab = lab()?;
    lab.runtime.block_on(async {
        let mut question = match input.strip_prefix(b"Q") {
            Some(sql) => crate::light::question(&String::from_utf8_lossy(sql), DEADLINE),
            None => match FrameReader::new(input).read::<LocalRequest>().await {
                Ok(Some(LocalRequest::Query(question))) => question,
                _ => return,
            },
        };
        let most_ms = u64::try_from(DEADLINE.as_millis()).unwrap_or(u64::MAX);
        question.timeout_ms = question.timeout_ms.min(most_ms);
        let _ = lab.coordinator.ask_until(0, question, CancellationToken::new()).await;
    });
    Ok(())
}
