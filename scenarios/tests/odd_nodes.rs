//! One node of a mesh is damaged, of another version, or lying: it is named missing with the
//! reason, whoever asked it (the coordinator, or an intermediate aggregator of a tree) and in
//! whichever round, and the others' answers count. Only what one SQLite would say of the union
//! fails the question.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use model::frame;
use model::wire::{Request, Response};
use query::FanoutPolicy;
use query::ask::{AskError, QueryOutcome};
use query_planner::{Batch, Catalog, NodeError, NodeStats, Value};
use scenarios::light::LightCluster;

const NODES: usize = 6;
const PATIENCE: Duration = Duration::from_secs(240);
/// Of a tree: its intermediate aggregators may be silent for a part of it.
const FORMS: [usize; 2] = [usize::MAX, 1];

const SUMS: &str = "SELECT count(*), avg(v), median(v) FROM t";
const ROWS: &str = "SELECT v FROM t ORDER BY v";
const ROUNDS: &str = "SELECT a.k, b.v FROM a JOIN b ON a.k = b.k WHERE a.x = 1 ORDER BY 1, 2";

fn rows(index: usize) -> String {
    format!(
        "CREATE TABLE t(v INTEGER); INSERT INTO t VALUES ({index});
         CREATE TABLE a(k INTEGER, x INTEGER); CREATE TABLE b(k INTEGER, v INTEGER);
         INSERT INTO a VALUES ({index}, 1), (100, 2); INSERT INTO b VALUES ({index}, {index}), (7, 700);"
    )
}

fn through_tree_above(cluster: &LightCluster, tree_above: usize) {
    let coordinator = cluster.agents[0].as_ref().expect("the coordinator lives");
    *coordinator.shared().coordinator.fanout.lock() = FanoutPolicy { tree_above };
}

fn frames(responses: &[Response]) -> Vec<u8> {
    responses.iter().flat_map(|response| frame::encode(response).expect("it fits")).collect()
}

fn batch(fragment: u32, rows: u32, columns: Vec<Vec<Value>>) -> Response {
    Response::Batch { fragment, batch: Batch { rows, columns } }
}

fn done() -> Response {
    Response::Done(NodeStats::default())
}

/// What an odd node answers a task with so many columns, and a word of the reason that is given for
/// its absence.
type Oddity = (&'static str, fn(usize) -> Vec<u8>);

fn sql_error(message: &str) -> Vec<u8> {
    frames(&[Response::Failed(NodeError::Sql(message.to_owned()).into())])
}

fn oddities() -> Vec<Oddity> {
    vec![
        ("ragged", |width| {
            let mut columns = vec![vec![Value::Integer(1); 2]; width];
            columns[width - 1].pop();
            frames(&[batch(0, 2, columns), done()])
        }),
        ("ragged", |width| frames(&[batch(0, u32::MAX, vec![vec![Value::Integer(1)]; width]), done()])),
        ("fragment that it was not asked for", |width| {
            frames(&[batch(9, 1, vec![vec![Value::Integer(1)]; width]), done()])
        }),
        ("fragment that it was not asked for", |width| {
            frames(&[batch(u32::MAX, 1, vec![vec![Value::Integer(1)]; width]), done()])
        }),
        ("columns instead of", |width| frames(&[batch(0, 1, vec![vec![Value::Integer(1)]; width + 1]), done()])),
        ("columns instead of", |_| frames(&[batch(0, 1, Vec::new()), done()])),
        ("disk I/O", |_| frames(&[Response::failed("disk I/O error")])),
        ("refused", |_| frames(&[Response::Unsupported("the frame has version 2, this build reads 1".to_owned())])),
        ("version", |_| {
            let mut newer = frames(&[done()]);
            newer[4] = frame::VERSION + 1;
            newer
        }),
        ("malformed frame", |_| vec![3, 0, 0, 0, frame::VERSION, 200, 200]),
        ("unexpected kind", |_| frames(&[Response::OpenCalls(Vec::new())])),
        ("broke off", |width| frames(&[batch(0, 0, vec![Vec::new(); width])])),
        ("inside a frame", |_| frames(&[done()])[..6].to_vec()),
        ("x x x x", |_| frames(&[Response::failed("x\n".repeat(1 << 20))])),
    ]
}

/// Rows, and who is missing and why.
fn rows_and_missing(asked: QueryOutcome) -> (Vec<Vec<Value>>, Vec<(String, String)>) {
    let QueryOutcome::Answer { answer, coverage, .. } = asked else { panic!("no answer") };
    assert_eq!(coverage.answered + coverage.missing.len(), coverage.asked, "{coverage:?}");
    (answer.rows, coverage.missing.into_iter().map(|missing| (missing.node, missing.reason)).collect())
}

fn odd_task(request: &Request) -> Option<usize> {
    match request {
        Request::Task { task, .. } | Request::RoundTask { task, .. } => Some(task.fragments[0].columns as usize),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_answers_oddly_is_named_and_the_others_count() {
    for (what, oddity) in oddities() {
        let mut cluster = LightCluster::start(NODES, rows).expect("agents");
        let _odd = cluster
            .add_scripted("odd", move |request| match odd_task(&request) {
                Some(width) => oddity(width),
                // As an intermediate aggregator it is of no use either, and its leaves are asked
                // directly.
                None => oddity(1),
            })
            .expect("a port");
        cluster.introduce(0);
        for sql in [SUMS, ROWS, ROUNDS] {
            for tree_above in FORMS {
                through_tree_above(&cluster, tree_above);
                let asked = cluster.ask(0, sql, PATIENCE).await;
                let (rows, missing) = rows_and_missing(asked.unwrap_or_else(|error| panic!("{what}: {sql}: {error}")));
                let [(node, reason)] = missing.as_slice() else { panic!("{what}: {sql}: {missing:?}") };
                assert_eq!(node, "odd", "{what}: {sql}: {reason}");
                assert!(reason.contains(what) && reason.len() < 4_000, "{what}: {sql}: {reason:.200}");
                let expected: Vec<Vec<Value>> = match sql {
                    SUMS => vec![vec![Value::Integer(NODES as i64), Value::Real(2.5), Value::Real(2.5)]],
                    ROWS => (0..NODES as i64).map(|v| vec![Value::Integer(v)]).collect(),
                    _ => (0..NODES as i64).map(|v| vec![Value::Integer(v); 2]).collect(),
                };
                assert_eq!(rows, expected, "{what}: {sql}");
            }
        }
    }
}

/// A state that no node ships is found before it spoils the merge at the coordinator, or at an
/// intermediate aggregator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_partial_state_is_its_node_s_fault() {
    let states: [fn() -> Value; 4] = [
        || Value::Blob(vec![9; 40]),
        || Value::Blob(Vec::new()),
        || Value::Text(b"no state".to_vec()),
        || Value::Integer(-1),
    ];
    for state in states {
        let mut cluster = LightCluster::start(NODES, rows).expect("agents");
        let _odd = cluster
            .add_scripted("odd", move |request| match odd_task(&request) {
                Some(width) => frames(&[batch(0, 1, (0..width).map(|_| vec![state()]).collect()), done()]),
                None => frames(&[Response::Unsupported("it relays nothing".to_owned())]),
            })
            .expect("a port");
        cluster.introduce(0);
        for tree_above in FORMS {
            through_tree_above(&cluster, tree_above);
            let (rows, missing) = rows_and_missing(cluster.ask(0, SUMS, PATIENCE).await.expect("the others' answer"));
            assert_eq!(rows, [[Value::Integer(NODES as i64), Value::Real(2.5), Value::Real(2.5)]]);
            assert!(missing.len() == 1 && missing[0].1.contains("partial"), "{missing:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_fails_the_second_round_only_is_named_as_well() {
    let mut cluster = LightCluster::start(NODES, rows).expect("agents");
    let _odd = cluster
        .add_scripted("odd", |request| match request {
            Request::RoundTask { snapshot, .. } if !snapshot.of_earlier => frames(&[done()]),
            Request::Release(_) | Request::ReleaseBelow { .. } => frames(&[done()]),
            _ => frames(&[Response::failed("no such function: mesh_of_tomorrow")]),
        })
        .expect("a port");
    cluster.introduce(0);
    for tree_above in FORMS {
        through_tree_above(&cluster, tree_above);
        let (rows, missing) = rows_and_missing(cluster.ask(0, ROUNDS, PATIENCE).await.expect("the others' answer"));
        assert_eq!(rows.len(), NODES);
        assert!(missing.len() == 1 && missing[0].1.contains("no such function"), "{missing:?}");
    }
}

/// Whatever an intermediate aggregator claims of leaves twice, or of leaves that it was not given,
/// each of them is asked directly and counts once, or is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaves_that_an_aggregator_names_wrongly_are_asked_directly() {
    for named in [vec![0, 0], vec![0, 1, 0], vec![0, 9], vec![u32::MAX]] {
        let mut cluster = LightCluster::start(NODES, rows).expect("agents");
        let combined = Arc::new(AtomicUsize::new(0));
        let _odd: Vec<_> = ["odd", "odder", "oddest"]
            .map(|name| {
                let (named, combined) = (named.clone(), Arc::clone(&combined));
                cluster.add_scripted(name, move |request| match request {
                    Request::Combine { .. } => {
                        combined.fetch_add(1, Ordering::Relaxed);
                        let named = named.iter().map(|leaf| (*leaf, NodeStats::default())).collect();
                        frames(&[Response::Combined(named), done()])
                    }
                    _ => frames(&[Response::failed("no such function: mesh_of_tomorrow")]),
                })
            })
            .into_iter()
            .collect::<Result<_, _>>()
            .expect("ports");
        cluster.introduce(0);
        through_tree_above(&cluster, 1);
        let (rows, missing) = rows_and_missing(cluster.ask(0, SUMS, PATIENCE).await.expect("the others' answer"));
        assert_eq!(rows, [[Value::Integer(NODES as i64), Value::Real(2.5), Value::Real(2.5)]], "{named:?}");
        assert_eq!(missing.len(), 3, "{named:?}: {missing:?}");
        assert!(combined.load(Ordering::Relaxed) > 0, "nobody was asked to combine");
    }
}

/// Numbers that a node says of itself are added to others'.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_node_counts_of_itself_it_is_in_the_answer() {
    let mut cluster = LightCluster::start(NODES, rows).expect("agents");
    let boast = NodeStats {
        rows: u64::MAX,
        bytes: u64::MAX,
        elapsed_ns: u64::MAX,
        notes: vec!["\u{1b}[2J".repeat(1_000); 1_000],
    };
    let _odds: Vec<_> = ["odd", "other"]
        .map(|name| {
            let boast = boast.clone();
            cluster.add_scripted(name, move |request| match request {
                Request::RoundTask { .. } | Request::Task { .. } => frames(&[Response::Done(boast.clone())]),
                _ => frames(&[Response::Unsupported("it relays nothing".to_owned())]),
            })
        })
        .into_iter()
        .collect::<Result<_, _>>()
        .expect("ports");
    for member in &mut cluster.members {
        Arc::make_mut(&mut member.facts).store_rows = u64::MAX;
    }
    cluster.introduce(0);
    for tree_above in FORMS {
        through_tree_above(&cluster, tree_above);
        let QueryOutcome::Answer { answer, coverage, .. } = cluster.ask(0, ROUNDS, PATIENCE).await.expect("an answer")
        else {
            panic!("no answer")
        };
        assert_eq!((answer.rows.len(), coverage.answered), (NODES, NODES + 2), "{coverage:?}");
        let notes: usize = coverage.notes.iter().map(String::len).sum();
        assert!(
            notes < 400_000 && coverage.notes.iter().all(|note| !note.contains('\u{1b}')),
            "{notes} bytes of notes"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_sqlite_would_say_of_the_union_fails_the_question() {
    let least = |index: usize| {
        let v = if index == 4 { "-9223372036854775808".to_owned() } else { index.to_string() };
        format!("CREATE TABLE t(v INTEGER, j TEXT); INSERT INTO t VALUES ({v}, '{{');")
    };
    let cluster = LightCluster::start(NODES, least).expect("agents");
    cluster.introduce(0);
    for tree_above in FORMS {
        through_tree_above(&cluster, tree_above);
        for (sql, what) in [
            ("SELECT abs(v) FROM t", "integer overflow"),
            ("SELECT max(abs(v)) FROM t", "integer overflow"),
            ("SELECT sum(json_extract(j, '$.a')) FROM t", "malformed JSON"),
            ("SELECT length(zeroblob(v + 100000000)) FROM t WHERE v >= 0", "too big"),
        ] {
            match cluster.ask(0, sql, PATIENCE).await {
                Err(AskError::Failed { failure, .. }) => assert!(failure.message.contains(what), "{sql}: {failure}"),
                other => panic!("{sql}: {other:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_more_than_a_node_may_is_missing() {
    // A NULL is one byte on the wire. One row more than five million.
    const PIECE: u32 = 1_000_000;
    let mut cluster = LightCluster::start(NODES, rows).expect("agents");
    let answer: Arc<Vec<u8>> = Arc::new({
        let piece = |rows: u32| batch(0, rows, vec![vec![Value::Null; rows as usize]]);
        let pieces: Vec<Response> = (0..5).map(|_| piece(PIECE)).chain([piece(1), done()]).collect();
        frames(&pieces)
    });
    let _odd = cluster.add_scripted("odd", move |_| answer.to_vec()).expect("a port");
    cluster.introduce(0);
    through_tree_above(&cluster, usize::MAX);
    let (rows, missing) = rows_and_missing(cluster.ask(0, ROWS, PATIENCE).await.expect("an answer"));
    assert_eq!(rows.len(), NODES);
    let [(node, reason)] = &missing[..] else { panic!("{missing:?}") };
    assert!(node == "odd" && reason.contains("longer than the 5000000 rows"), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_sql_error_names_its_node() {
    let mut cluster = LightCluster::start(NODES, rows).expect("agents");
    let _odd = cluster.add_scripted("odd", move |_| sql_error("integer overflow")).expect("a port");
    cluster.introduce(0);
    match cluster.ask(0, SUMS, PATIENCE).await {
        Err(AskError::Failed { failure, .. }) => assert_eq!(failure.message, "integer overflow (on odd)"),
        other => panic!("{other:?}"),
    }
}

fn catalog(sql: &str) -> Catalog {
    let connection = rusqlite::Connection::open_in_memory().expect("memory");
    connection.execute_batch(sql).expect("valid SQL");
    Catalog::of(&connection, &[]).expect("a catalogue")
}

/// A node that gives `given` for its tables and says that their hash is `hash`; it has no rows.
fn with_tables(cluster: &mut LightCluster, given: &Catalog, hash: u64) -> scenarios::light::Quiet {
    let bytes = frame::encode(given).expect("it fits");
    let quiet = cluster.add_scripted("odd", move |request| match request {
        Request::Catalog => frames(&[Response::Catalog(bytes.clone())]),
        Request::Task { .. } | Request::RoundTask { .. } => frames(&[done()]),
        _ => frames(&[Response::Unsupported("it relays nothing".to_owned())]),
    });
    Arc::make_mut(&mut cluster.members.last_mut().expect("it is the last").facts).schema_hash = hash;
    cluster.introduce(0);
    quiet.expect("a port")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_catalogue_is_believed_for_its_hash_only() {
    let theirs = catalog("CREATE TABLE t(v INTEGER); CREATE TABLE of_tomorrow(x INTEGER);");
    let mut cluster = LightCluster::start(2, rows).expect("agents");
    let _odd = with_tables(&mut cluster, &theirs, theirs.hash() ^ 1);
    for _ in 0..2 {
        let (rows, missing) = rows_and_missing(cluster.ask(0, ROWS, PATIENCE).await.expect("the others' answer"));
        assert_eq!(rows.len(), 2);
        assert!(missing.len() == 1 && missing[0].1.contains("is not the one that it announces"), "{missing:?}");
    }
    let error = cluster.ask(0, "SELECT * FROM of_tomorrow", PATIENCE).await.expect_err("nobody has it");
    assert!(error.to_string().contains("no such table"), "{error}");
}

/// A release newer: more tables, and columns of known ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_more_tables_answers_and_one_that_disagrees_is_missing_for_that_table_only() {
    let newer = catalog("CREATE TABLE t(v INTEGER, w INTEGER); CREATE TABLE of_tomorrow(x INTEGER);");
    let mut cluster = LightCluster::start(2, rows).expect("agents");
    let odd = with_tables(&mut cluster, &newer, newer.hash());
    let (rows, missing) =
        rows_and_missing(cluster.ask(0, "SELECT v, w FROM t ORDER BY v", PATIENCE).await.expect("an answer"));
    assert_eq!((rows.len(), missing.len()), (2, 0), "{missing:?}");
    let (rows, missing) =
        rows_and_missing(cluster.ask(0, "SELECT x FROM of_tomorrow", PATIENCE).await.expect("an answer"));
    assert_eq!((rows.len(), missing.len()), (0, 0), "{missing:?}");
    drop(odd);

    let other = catalog("CREATE TABLE t(v TEXT); CREATE TABLE a(k INTEGER, x INTEGER);");
    let mut cluster = LightCluster::start(2, self::rows).expect("agents");
    let _odd = with_tables(&mut cluster, &other, other.hash());
    let (rows, missing) = rows_and_missing(cluster.ask(0, ROWS, PATIENCE).await.expect("the others' answer"));
    assert_eq!(rows.len(), 2);
    assert!(missing.len() == 1 && missing[0].1.contains("column v is declared"), "{missing:?}");
    let (_, missing) = rows_and_missing(cluster.ask(0, "SELECT count(*) FROM a", PATIENCE).await.expect("an answer"));
    assert!(missing.is_empty(), "{missing:?}");
}
