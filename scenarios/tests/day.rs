//! A day's stores, in as many segments as a busy host's has but with few rows each: every question
//! of the documentation and over every table is asked three times, from every agent, and compared
//! with what one SQLite says of the same rows.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent::SourceConfig;
use query::Coverage;
use query::ask::{AskError, QueryOutcome as Answered};
use query_planner::Value;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use scenarios::cluster::Cluster;
use scenarios::day::fill::{Filled, fill, keeps_all};
use scenarios::day::oracle::{Oracle, compare, unite};
use scenarios::day::{Day, bound, questions};
use store::exchange::{Export, export};
use verdicts::{ClockOffset, Input, Names, NodeCoverage, Rules, Span};

const PATIENCE: Duration = Duration::from_secs(120);
const SEED: u64 = 20_261_122;

/// Stores of three hosts in a directory.
struct Stores {
    dir: tempfile::TempDir,
    day: Day,
    nodes: Vec<(String, PathBuf)>,
    filled: Vec<Filled>,
}

impl Stores {
    fn make(bursts: u64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos();
        let minute = 60_000_000_000;
        let until_ns = i64::try_from(now).expect("before 2262") / minute * minute;
        let dir = tempfile::tempdir().expect("a directory");
        let (mut nodes, mut filled) = (Vec::new(), Vec::new());
        let day = |host| Day::sparse(SEED, host, 3, bursts, until_ns);
        for host in 0..3 {
            let path = dir.path().join(format!("{}.db", Day::node(host)));
            filled.push(fill(&path, &day(host), true).expect("a day's store"));
            nodes.push((Day::node(host), path));
        }
        Self { dir, day: day(0), nodes, filled }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn oracle(&self, nodes: &[(String, PathBuf)], name: &str) -> Oracle {
        let file = self.path(name);
        unite(nodes, &file).expect("the rows of all stores");
        Oracle::open(&file, 3).expect("the united rows")
    }

    /// An agent that writes the store as well, as on a host.
    fn own(&self, host: usize) -> SourceConfig {
        SourceConfig::Store { path: self.nodes[host].1.clone(), limits: keeps_all() }
    }
}

async fn rows(cluster: &Cluster, at: usize, sql: &str) -> Result<(Vec<Vec<Value>>, Coverage), String> {
    match cluster.ask_within(at, sql, PATIENCE).await {
        Ok(Answered::Answer { answer, coverage, .. }) => Ok((answer.rows, coverage)),
        Ok(Answered::Plan(plan)) => Err(format!("a plan: {plan}")),
        Err(AskError::Failed { failure, coverage }) => {
            Err(format!("{failure}: {:?}", coverage.map(|coverage| coverage.missing).unwrap_or_default()))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// The questions behind the verdict on a span: it names the rank that the day made late.
fn investigation(oracle: &Oracle, (since_ns, until_ns): (i64, i64)) -> Vec<questions::Asked> {
    let clocks = (0..3).map(|host| (Day::node(host), ClockOffset { at_ns: until_ns, ..ClockOffset::default() }));
    let mut input = Input {
        since_ns,
        until_ns,
        clocks: clocks.collect(),
        coverage: NodeCoverage { asked: 3, answered: 3, ..NodeCoverage::default() },
        ..Input::default()
    };
    let job = Some("train-7".to_owned());
    let sql = verdicts::sql(&Span { since_ns, until_ns, job, ..Span::default() });
    let mut names = Names::default();
    for row in oracle.answer(&sql).expect("the calls of the span") {
        input.push_row(&row, &mut names).expect("a call");
    }
    let report = verdicts::analyse(&input, &Rules::default());
    assert_eq!(report.verdict.named().first().map(|named| named.rank), Some(5), "{:?}", report.verdict);
    let shown = verdicts::show_sql(&report).into_iter().filter(|shown| !shown.sql.is_empty());
    let asked: Vec<_> = shown.map(|shown| questions::Asked { from: shown.title, sql: shown.sql }).collect();
    assert!(asked.len() >= 2, "{asked:?}");
    asked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_question_is_answered_again_and_again_over_a_days_segments() {
    let stores = Stores::make(420);
    for filled in &stores.filled {
        assert!(filled.segments_of_collectives >= 320, "{filled:?}");
        assert!(filled.dropped > 0 && filled.collectives > 5_000, "{filled:?}");
    }
    let oracle = stores.oracle(&stores.nodes, "united.db");
    let cluster = Cluster::of_sources((0..3).map(|host| stores.own(host)).collect(), PATIENCE).await.expect("a mesh");
    // The last burst, with some of the pause before it.
    let span = (stores.day.until_ns - 60_000_000_000, stores.day.until_ns);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut asked = questions::of_pages(&root, span).expect("questions of the documentation");
    asked.extend(questions::of_tables());
    asked.extend(investigation(&oracle, span));
    let mut order: Vec<(usize, usize)> = (0..asked.len()).flat_map(|at| (0..3).map(move |by| (at, by))).collect();
    order.shuffle(&mut StdRng::seed_from_u64(SEED));
    let mut wrong = Vec::new();
    for (at, by) in order {
        // The agents write what they are asked, and what they cost, into their stores.
        let sql = bound::before(&asked[at].sql, stores.day.until_ns);
        let known = oracle.answer(&sql).unwrap_or_else(|error| panic!("SQLite refuses {sql}: {error:#}"));
        match rows(&cluster, by, &sql).await {
            Ok((rows, coverage)) if coverage.is_complete() => {
                if let Err(error) = compare(&sql, &rows, &known) {
                    wrong.push(format!("wrong: {error:#}\n  {sql}"));
                }
            }
            Ok((_, coverage)) => wrong.push(format!("partial: {:?}\n  {sql}", coverage.missing)),
            Err(error) => wrong.push(format!("failed: {error}\n  {sql}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {} answers:\n{}", wrong.len(), 3 * asked.len(), wrong.join("\n"));
    let rows = rows(&cluster, 1, "SELECT rank FROM collectives LIMIT 1").await.expect("an answer").0;
    assert_eq!(rows.len(), 1);
    cluster.shutdown().await;
}

const BY_RANK: &str = "SELECT rank, count(*), sum(duration_ns) FROM collectives GROUP BY rank";
const BY_FUNC: &str = "SELECT node, func, count(*) FROM collectives WHERE tier >= 0 GROUP BY 1, 2";
const TOP: &str =
    "SELECT node, ts_ns, rank, duration_ns FROM collectives ORDER BY duration_ns DESC, ts_ns, rank LIMIT 7";

/// Asks two agents of `sources`; node n2 must be missing with a reason that has `reason` in it, and
/// the answer that of the others.
async fn without_the_third(stores: &Stores, sources: Vec<SourceConfig>, stop: bool, reason: &str) {
    let name = format!("without-{}.db", reason.replace(' ', "-"));
    let oracle = stores.oracle(&stores.nodes[..2], &name);
    let mut cluster = Cluster::of_sources(sources, PATIENCE).await.expect("a mesh");
    if stop {
        cluster.agents.pop().expect("three agents").shutdown().await;
    }
    for (by, sql) in [BY_RANK, BY_FUNC, TOP].into_iter().enumerate().map(|(at, sql)| (at % 2, sql)) {
        let known = oracle.answer(sql).expect("SQLite's answer");
        let (rows, coverage) = rows(&cluster, by, sql).await.unwrap_or_else(|error| panic!("{reason}: {sql}: {error}"));
        let missing: Vec<_> = coverage.missing.iter().map(|missing| (&*missing.node, &*missing.reason)).collect();
        assert!(matches!(missing[..], [("n2", why)] if why.contains(reason)), "{reason}: {sql}: {missing:?}");
        compare(sql, &rows, &known).unwrap_or_else(|error| panic!("{reason}: {sql}: {error:#}"));
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_left_is_named_and_the_others_answer() {
    let stores = Stores::make(40);
    without_the_third(&stores, (0..3).map(|host| stores.own(host)).collect(), true, "unreachable").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_with_a_damaged_store_is_named_and_the_others_answer() {
    let stores = Stores::make(40);
    // One byte of each column of one segment.
    let conn = rusqlite::Connection::open(&stores.nodes[2].1).expect("the store");
    let damaged = conn
        .execute(
            "UPDATE segment_columns SET data = CAST(substr(data, 1, length(data) - 1) || x'5A' AS BLOB) WHERE id >> 8 = \
             (SELECT max(id) FROM segments WHERE table_name = 'collectives')",
            [],
        )
        .expect("a damaged segment");
    assert!(damaged > 5);
    drop(conn);
    without_the_third(&stores, (0..3).map(|host| stores.own(host)).collect(), false, "damaged").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_with_an_older_file_answers_what_it_has_and_coverage_says_what_it_lacks() {
    let stores = Stores::make(40);
    // As a version before `captured` and `symbol_calls` would have left it.
    let older = stores.path("older.db");
    export(&Export {
        db: stores.nodes[2].1.clone(),
        out: older.clone(),
        tables: Vec::new(),
        from_ns: None,
        until_ns: None,
    })
    .expect("plain");
    rusqlite::Connection::open(&older)
        .and_then(|conn| conn.execute_batch("ALTER TABLE collectives DROP COLUMN captured; DROP TABLE symbol_calls;"))
        .expect("an older file");
    let replicated = vec!["sources".to_owned(), "ops".to_owned()];
    let served = SourceConfig::Served { path: older, replicated };
    let cluster = Cluster::of_sources(vec![stores.own(0), stores.own(1), served], PATIENCE).await.expect("a mesh");
    let (all, known) = (stores.oracle(&stores.nodes, "all.db"), stores.oracle(&stores.nodes[..2], "newer.db"));
    for by in 0..3 {
        let (of_all, coverage) = rows(&cluster, by, BY_RANK).await.expect("an answer");
        compare(BY_RANK, &of_all, &all.answer(BY_RANK).expect("SQLite's answer")).expect("the same");
        assert!(coverage.is_complete(), "{coverage:?}");
        for (sql, lacks) in [
            ("SELECT symbol, count(*) FROM symbol_calls GROUP BY symbol", "symbol_calls"),
            (
                "SELECT node, count(captured) FROM collectives WHERE node <> 'n2' OR captured IS NOT NULL GROUP BY node",
                "captured",
            ),
        ] {
            let (rows, coverage) = rows(&cluster, by, sql).await.expect("an answer");
            compare(sql, &rows, &known.answer(sql).expect("SQLite's answer"))
                .unwrap_or_else(|error| panic!("{sql}: {error:#}"));
            let noted = coverage.notes.iter().any(|note| note.contains("n2") && note.contains(lacks));
            assert!(noted && coverage.is_complete(), "{sql}: {coverage:?}");
        }
    }
    cluster.shutdown().await;
}
