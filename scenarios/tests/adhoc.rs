//! The suite of ad-hoc questions over small stores: of one host, as a file; of three, as a mesh;
//! and of a mesh of which a node is missing. Every answer must be that of plain SQLite over the
//! same rows.

use std::time::{Duration, Instant};

use agent::SourceConfig;
use query::ask::QueryOutcome;
use scenarios::adhoc::compare::{Types, compare};
use scenarios::adhoc::data;
use scenarios::adhoc::suite::{self, Question};
use scenarios::cluster::Cluster;
use scenarios::day::fill::keeps_all;
use scenarios::day::oracle::unite;
use scenarios::plain;
use store::file::FileReader;

const PATIENCE: Duration = Duration::from_secs(120);
const ROWS: u64 = 20_000;
/// Questions whose answer is empty over so few rows; every other one must have rows.
const MAY_BE_EMPTY: &[&str] = &[];

fn questions() -> Vec<Question> {
    suite::read(&suite::directory()).expect("the suite")
}

#[test]
fn one_store_answers_as_sqlite_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = data::make(dir.path(), 1, ROWS).expect("a store").remove(0).1;
    let sqlite = data::plain(&path).expect("its plain file");
    let mut store = FileReader::open(&path).expect("the store");
    let (mut wrong, mut empty) = (Vec::new(), Vec::new());
    for question in questions() {
        let sql = question.sql(data::span(ROWS));
        let known = plain::rows(&sqlite, &sql).unwrap_or_else(|error| panic!("{}: {error}", question.name));
        if known.is_empty() {
            empty.push(question.name.clone());
        }
        let answered = store.ask(&sql, Instant::now() + PATIENCE).map_err(anyhow::Error::from);
        if let Err(error) = answered.and_then(|answer| compare(&question, &answer.rows, &known, Types::Same)) {
            wrong.push(format!("{}: {error:#}", question.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(empty, MAY_BE_EMPTY, "a question without rows shows nothing");
}

/// Every question to agents in turns; `missing` is the node that must be named as such.
async fn ask_all(cluster: &Cluster, agents: usize, sqlite: &rusqlite::Connection, missing: Option<&str>) {
    let mut wrong = Vec::new();
    for (at, question) in questions().into_iter().enumerate() {
        let sql = question.sql(data::span(ROWS));
        let known = plain::rows(sqlite, &sql).unwrap_or_else(|error| panic!("{}: {error}", question.name));
        let problem = match cluster.ask_within(at % agents, &sql, PATIENCE).await {
            Ok(QueryOutcome::Answer { answer, coverage, .. }) => {
                let named: Vec<&str> = coverage.missing.iter().map(|missing| &*missing.node).collect();
                if named == missing.into_iter().collect::<Vec<_>>() {
                    compare(&question, &answer.rows, &known, Types::Same).err()
                } else {
                    Some(anyhow::anyhow!("missing are {:?}", coverage.missing))
                }
            }
            Ok(QueryOutcome::Plan(_)) => Some(anyhow::anyhow!("a plan")),
            Err(error) => Some(error.into()),
        };
        wrong.extend(problem.map(|error| format!("{}: {error:#}", question.name)));
    }
    assert!(wrong.is_empty(), "{missing:?} missing:\n{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_answer_as_one_database_and_two_of_them_as_one_of_theirs() {
    let dir = tempfile::tempdir().expect("a directory");
    let stores = data::make(dir.path(), 3, ROWS).expect("three stores");
    let united = |stores: &[_], name: &str| {
        let file = dir.path().join(name);
        unite(stores, &file).expect("the rows of all stores");
        rusqlite::Connection::open(&file).expect("the united rows")
    };
    let (of_all, of_two) = (united(&stores, "three.db"), united(&stores[..2], "two.db"));
    let own = |path: &std::path::PathBuf| SourceConfig::Store { path: path.clone(), limits: keeps_all() };
    let sources = stores.iter().map(|(_, path)| own(path)).collect();
    let mut cluster = Cluster::of_sources(sources, PATIENCE).await.expect("a mesh");
    ask_all(&cluster, 3, &of_all, None).await;
    cluster.agents.pop().expect("three agents").shutdown().await;
    ask_all(&cluster, 2, &of_two, Some("n2")).await;
    cluster.shutdown().await;
}
