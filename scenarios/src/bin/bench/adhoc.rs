//! The suite of `scenarios/adhoc/` over the rows of some jobs: one trace store, plain SQLite and
//! DuckDB with the same rows, and three agents with a third of them each. Every answer is compared
//! with SQLite's; a wrong one, or none, fails the run.
//!
//! `bench adhoc --rows 1000000` is a quick look.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agent::SourceConfig;
use anyhow::{Context, bail, ensure};
use query::ask::QueryOutcome;
use query_planner::{NodeStats, Value};
use scenarios::adhoc::compare::{Types, compare};
use scenarios::adhoc::data;
use scenarios::adhoc::suite::{self, Question};
use scenarios::cluster::Cluster;
use scenarios::day::fill::keeps_all;
use scenarios::day::oracle::{of_json, unite};
use scenarios::figures::{figure, p50_ms};
use scenarios::plain;
use scenarios::store_bench::duck::{Duck, python};
use store::file::FileReader;

use crate::folder;

/// Questions that people ask once, beside SQLite and DuckDB on the same rows
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Collectives in all; other tables have some half as many rows.
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Times each question is asked of each engine, the first of them not counted.
    #[arg(long, default_value_t = 4)]
    rounds: usize,
    /// Only questions whose names contain this.
    #[arg(long)]
    only: Option<String>,
    /// Where the stores are made, and kept for another run with the same number of rows.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Leave the three agents out.
    #[arg(long)]
    one_store: bool,
}

/// A question longer than this is not asked again.
const LONG: Duration = Duration::from_secs(5);
/// A question's time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Milliseconds of a question on one host's store.
struct Times {
    ours: Option<f64>,
    sqlite: f64,
    duck: Option<f64>,
}

/// A question on three nodes.
struct Spread {
    ms: f64,
    /// The slowest node's own part, and the merge.
    slowest_ms: f64,
    merge_ms: f64,
    rows: u64,
    strategy: String,
}

pub(super) fn run(args: &Arguments) -> anyhow::Result<()> {
    let (dir, _temporary) = folder(args.dir.as_deref())?;
    let mut questions = suite::read(&suite::directory())?;
    questions.retain(|question| args.only.as_ref().is_none_or(|only| question.name.contains(only)));
    ensure!(!questions.is_empty(), "no question's name contains that");
    let mut problems = Vec::new();

    let times = one_store(args, &dir, &questions, &mut problems)?;
    let spread = if args.one_store { Vec::new() } else { three_nodes(args, &dir, &questions, &mut problems)? };
    print_tables(&questions, &times, &spread);
    ensure!(problems.is_empty(), "{} answers are missing or wrong:\n{}", problems.len(), problems.join("\n"));
    Ok(())
}

/// Asks until it is known how long that takes: the median in milliseconds, and the first answer.
fn timed<T>(rounds: usize, mut ask: impl FnMut() -> anyhow::Result<(Duration, T)>) -> anyhow::Result<(f64, T)> {
    let (first, answer) = ask()?;
    let mut times = Vec::new();
    while first < LONG && times.len() + 1 < rounds {
        times.push(ask()?.0);
    }
    if times.is_empty() {
        times.push(first);
    }
    Ok((p50_ms(&mut times), answer))
}

fn one_store(
    args: &Arguments,
    dir: &Path,
    questions: &[Question],
    problems: &mut Vec<String>,
) -> anyhow::Result<Vec<Times>> {
    let began = Instant::now();
    let stores = data::make(dir, 1, args.rows)?;
    let path = &stores.first().context("a store")?.1;
    let sqlite = data::plain(path)?;
    let tables = dir.join("parquet");
    data::parquet(path, &tables)?;
    eprintln!(
        "{:.0?}: one store of {} bytes, its plain file and its Parquet files",
        began.elapsed(),
        std::fs::metadata(path)?.len()
    );
    let mut duck = match Duck::over_parquet(&python(), &tables) {
        Ok(duck) => {
            println!("DuckDB {}, two threads, over Parquet; SQLite {}", duck.version, rusqlite::version());
            Some(duck)
        }
        Err(error) => {
            println!("DuckDB is not here, so nothing is compared with it: {error:#}");
            None
        }
    };
    let mut store = FileReader::open(path)?;
    let mut all = Vec::new();
    for question in questions {
        let sql = question.sql(data::span(args.rows));
        let asked = timed(args.rounds, || {
            let began = Instant::now();
            let rows = plain::rows(&sqlite, &sql)?;
            Ok((began.elapsed(), rows))
        });
        let (sqlite_ms, known) = asked.with_context(|| format!("{}: SQLite refuses it", question.name))?;
        if known.is_empty() {
            eprintln!("{}: the answer is empty", question.name);
        }
        let asked = timed(args.rounds, || {
            let began = Instant::now();
            let rows = store.ask(&sql, Instant::now() + PATIENCE)?.rows;
            Ok((began.elapsed(), rows))
        });
        let ours = checked(question, "one store", asked, &known, Types::Same, problems);
        let duck = duck.as_mut().and_then(|duck| {
            let sql = question.duck(data::span(args.rows));
            let asked = timed(args.rounds, || {
                let (seconds, rows) = duck.run(&sql)?;
                Ok((Duration::from_secs_f64(seconds), rows.iter().map(of_row).collect()))
            });
            checked(question, "DuckDB", asked, &known, Types::Own, problems)
        });
        all.push(Times { ours, sqlite: sqlite_ms, duck });
    }
    Ok(all)
}

fn of_row(row: &serde_json::Value) -> Vec<Value> {
    row.as_array().map(|cells| cells.iter().map(of_json).collect()).unwrap_or_default()
}

/// The time of an answer that is right.
fn checked(
    question: &Question,
    by: &str,
    asked: anyhow::Result<(f64, Vec<Vec<Value>>)>,
    known: &[Vec<Value>],
    types: Types,
    problems: &mut Vec<String>,
) -> Option<f64> {
    let right = asked.and_then(|(ms, rows)| compare(question, &rows, known, types).map(|()| ms));
    right.map_err(|error| problems.push(format!("{}, {by}: {error:#}", question.name))).ok()
}

fn three_nodes(
    args: &Arguments,
    dir: &Path,
    questions: &[Question],
    problems: &mut Vec<String>,
) -> anyhow::Result<Vec<Option<Spread>>> {
    let began = Instant::now();
    let stores = data::make(dir, 3, args.rows)?;
    let united = dir.join("united.db");
    if !united.exists() {
        unite(&stores, &united)?;
    }
    let oracle = rusqlite::Connection::open(&united)?;
    eprintln!("{:.0?}: three stores, and SQLite's file of all their rows", began.elapsed());
    let sources = stores.iter().map(|(_, path)| SourceConfig::Store { path: path.clone(), limits: keeps_all() });
    let runtime = tokio::runtime::Runtime::new()?;
    let cluster = runtime.block_on(Cluster::of_sources(sources.collect(), PATIENCE))?;
    let mut all = Vec::new();
    for (at, question) in questions.iter().enumerate() {
        let sql = question.sql(data::span(args.rows));
        let known = plain::rows(&oracle, &sql)?;
        let mut figures = None;
        let asked = timed(args.rounds, || {
            let began = Instant::now();
            let answered = runtime.block_on(cluster.ask_analyze(at % 3, &sql))?;
            let took = began.elapsed();
            let QueryOutcome::Answer { answer, coverage, explained, .. } = answered else { bail!("a plan") };
            ensure!(coverage.is_complete(), "{:?}", coverage.missing);
            figures = Some((own_parts(&answer.node_stats), answer.merge_ns, explained));
            Ok((took, answer.rows))
        });
        let ms = checked(question, "three nodes", asked, &known, Types::Same, problems);
        all.push(ms.zip(figures).map(|(ms, ((slowest_ms, rows), merge_ns, explained))| Spread {
            ms,
            slowest_ms,
            merge_ms: merge_ns as f64 / 1e6,
            rows,
            strategy: explained.lines().find_map(|line| line.strip_prefix("strategy: ")).unwrap_or("?").to_owned(),
        }));
    }
    runtime.block_on(cluster.shutdown());
    Ok(all)
}

/// Milliseconds of the slowest node over all rounds, and the rows that all nodes sent.
fn own_parts(stats: &[(String, NodeStats)]) -> (f64, u64) {
    let of_node = |name: &str| stats.iter().filter(|(node, _)| node == name).map(|(_, stats)| stats.elapsed_ns).sum();
    let slowest: u64 = stats.iter().map(|(name, _)| of_node(name)).max().unwrap_or(0);
    (slowest as f64 / 1e6, stats.iter().map(|(_, stats)| stats.rows).sum())
}

fn print_tables(questions: &[Question], times: &[Times], spread: &[Option<Spread>]) {
    let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    println!(
        "{:<28} {:>10} {:>10} {:>10} {:>9} {:>9}",
        "one store, ms", "ours", "SQLite", "DuckDB", "/SQLite", "/DuckDB"
    );
    let (mut over_sqlite, mut over_duck) = (Vec::new(), Vec::new());
    for (question, times) in questions.iter().zip(times) {
        let of_sqlite = times.ours.map(|ours| ours / times.sqlite);
        let of_duck = times.ours.zip(times.duck).map(|(ours, duck)| ours / duck);
        over_sqlite.extend(of_sqlite);
        over_duck.extend(of_duck);
        println!(
            "{:<28} {:>10} {:>10.2} {:>10} {:>9} {:>9}",
            question.name,
            shown(times.ours),
            times.sqlite,
            shown(times.duck),
            shown(of_sqlite),
            shown(of_duck)
        );
    }
    let mut over_part = Vec::new();
    if !spread.is_empty() {
        println!(
            "{:<28} {:>10} {:>12} {:>10} {:>9} {:>12}  strategy",
            "three nodes, ms", "ours", "slowest node", "merge", "ratio", "rows shipped"
        );
    }
    for (question, spread) in questions.iter().zip(spread) {
        let Some(spread) = spread else {
            println!("{:<28} {:>10}", question.name, "-");
            continue;
        };
        let ratio = spread.ms / (spread.slowest_ms + spread.merge_ms);
        over_part.push(ratio);
        println!(
            "{:<28} {:>10.2} {:>12.2} {:>10.2} {ratio:>9.2} {:>12}  {}",
            question.name, spread.ms, spread.slowest_ms, spread.merge_ms, spread.rows, spread.strategy
        );
    }
    for (name, ratios, mean_aim, most_aim) in [("sqlite", &over_sqlite, 0.15, 1.0), ("duckdb", &over_duck, 1.5, 4.0)] {
        if !ratios.is_empty() {
            figure(&format!("adhoc_over_{name}_geometric_mean"), geometric_mean(ratios), "ratio", "<=", mean_aim);
            figure(&format!("adhoc_over_{name}_longest"), most(ratios), "ratio", "<=", most_aim);
        }
    }
    if !over_part.is_empty() {
        figure("adhoc_three_nodes_over_slowest_part_and_merge", most(&over_part), "ratio", "<=", 1.5);
    }
}

fn geometric_mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

fn most(ratios: &[f64]) -> f64 {
    ratios.iter().copied().fold(0.0, f64::max)
}
