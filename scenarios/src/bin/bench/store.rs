//! The trace store compared with DuckDB on the same made-up rows, in the same run: questions, bytes
//! a row, ingest, kills, retention. Prints a table of times and ends with one line a figure.
//!
//! `bench store --rows 1000000 --only queries` is a quick look.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use query_planner::Value;
use rusqlite::{Connection, OpenFlags};
use scenarios::agents::{self, Agent};
use scenarios::figures::{figure, memory_bytes, mib, ms, none_of, p50_ms, quantile};
use scenarios::store_bench::child::{self, Mode, Report};
use scenarios::store_bench::duck::{Duck, python};
use scenarios::store_bench::generate::{Generator, SPAN_NS, START_NS};
use store::file::FileReader;
use store::integrity;

/// The trace store beside DuckDB on the same rows
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Rows of the store.
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Times each question is asked.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Kills.
    #[arg(long, default_value_t = 100)]
    kills: u32,
    /// Number of the first kill: when a process is killed follows from the number.
    #[arg(long, default_value_t = 0)]
    first_kill: u32,
    /// A store that was filled before (with the same number of rows) in place of a new one; a name
    /// that is not there yet keeps the new one.
    #[arg(long)]
    store: Option<PathBuf>,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// How rankmesh's own processes are started; not for people.
    #[command(subcommand)]
    mode: Option<Mode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Queries,
    Size,
    Ingest,
    Paced,
    Idle,
    Kill,
    Restart,
    Retention,
}

impl Arguments {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

pub(super) fn run(args: &Arguments) -> anyhow::Result<()> {
    if let Some(mode) = &args.mode {
        return child::run(mode);
    }
    let dir = tempfile::tempdir()?;
    let path = args.store.clone().unwrap_or_else(|| dir.path().join("store.db"));
    let needs_rows = [Part::Queries, Part::Size, Part::Ingest, Part::Restart].iter().any(|part| args.wants(*part));
    let mut filled = None;
    if needs_rows && !path.exists() {
        println!("filling a store with {} rows", args.rows);
        let report = spawn(&["fill", text(&path)?, &args.rows.to_string()])?;
        ensure!(report.lost == 0 && report.stored == args.rows, "{} stored, {} lost", report.stored, report.lost);
        println!(
            "filled in {:.1} s, {:.1} s of processor time, {:.0} MiB at most",
            report.seconds,
            report.cpu_seconds,
            mib(report.peak_bytes)
        );
        filled = Some(report);
    }
    let mut duck = None;
    if args.wants(Part::Queries) || args.wants(Part::Size) {
        match Duck::load(&python(), dir.path(), args.rows) {
            Ok(loaded) => duck = Some(loaded),
            Err(error) => eprintln!("no DuckDB to compare with: {error:#}"),
        }
    }
    if args.wants(Part::Queries) {
        queries(&path, duck.as_mut(), args.rounds)?;
    }
    if args.wants(Part::Size) {
        size(&path, duck.as_ref(), args.rows)?;
    }
    if let Some(filled) = filled.filter(|_| args.wants(Part::Ingest)) {
        figure("ingest_rows_per_core_second", args.rows as f64 / filled.cpu_seconds, "rows/s", ">=", 500_000.0);
        // As on a host that makes a million calls a second: times of as many seconds.
        let (rows, seconds) = (3_000_000_u32, 3);
        let path = dir.path().join("fast.db");
        let fast = spawn(&["fill", text(&path)?, &rows.to_string(), "--span-s", &seconds.to_string()])?;
        figure(
            "ingest_rows_per_core_second_as_they_come",
            f64::from(rows) / fast.cpu_seconds,
            "rows/s",
            ">=",
            1_000_000.0,
        );
        none_of("ingest_lost_rows", filled.lost, "rows");
        figure("ingest_peak_rss", mib(filled.peak_bytes), "MiB", "<=", 100.0);
    }
    if args.wants(Part::Paced) {
        let paced = spawn(&["paced", text(&dir.path().join("paced.db"))?, "20000", "20"])?;
        ensure!(paced.lost == 0, "{} rows lost at 20,000 rows/s", paced.lost);
        figure("cpu_at_20000_rows_per_second", 100.0 * paced.cpu_seconds / paced.seconds, "percent", "<=", 5.0);
    }
    if args.wants(Part::Idle) {
        idle(dir.path())?;
    }
    if args.wants(Part::Kill) {
        kill(dir.path(), args.first_kill, args.kills)?;
    }
    if args.wants(Part::Restart) {
        let opened = spawn(&["open", text(&path)?])?;
        figure("restart_seconds", opened.open_seconds, "s", "<=", 1.0);
    }
    if args.wants(Part::Retention) {
        let limit = 64 << 20;
        let kept = spawn(&["fill", text(&dir.path().join("kept.db"))?, &args.rows.to_string(), &limit.to_string()])?;
        println!("retention: the longest commit took {:.1} ms", kept.commit_max_ms);
        figure("retention_commit_p999", kept.commit_p999_ms, "ms", "<=", 50.0);
        figure("retention_size_over_limit", kept.largest_bytes as f64 / f64::from(limit), "ratio", "<=", 1.1);
        none_of("retention_lost_rows", kept.lost, "rows");
    }
    Ok(())
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("a temporary directory that is not UTF-8")
}

/// Runs this program in another mode and reads its report.
fn spawn(args: &[&str]) -> anyhow::Result<Report> {
    let output = Command::new(std::env::current_exe()?).arg("store").args(args).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{args:?} failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// A question to both.
struct Asked {
    name: &'static str,
    aim: f64,
    ours: String,
    duck: String,
    /// Result columns that must be equal to the last bit.
    exact: &'static [usize],
}

fn asked() -> Vec<Asked> {
    let stats = "SELECT rank, func, count(*), sum(duration_ns), avg(duration_ns), min(duration_ns), max(duration_ns), \
                 approx_quantile(duration_ns, 0.99) FROM collectives";
    let same = |name, aim, sql: String, exact| Asked { name, aim, duck: sql.clone(), ours: sql, exact };
    let (since, until) = (START_NS + 611_234_567_891, START_NS + 2_903_987_654_321);
    let last_minute = START_NS + SPAN_NS - 60_000_000_000;
    vec![
        same("everything", 1.0, format!("{stats} GROUP BY rank, func ORDER BY rank, func"), &[0, 2, 3, 5, 6]),
        same(
            "odd_range",
            1.0,
            format!("{stats} WHERE ts_ns >= {since} AND ts_ns < {until} GROUP BY rank, func ORDER BY rank, func"),
            &[0, 2, 3, 5, 6],
        ),
        same(
            "raw_filter",
            3.0,
            format!("{stats} WHERE bytes > 4000000 AND duration_ns > 2000000 GROUP BY rank, func ORDER BY rank, func"),
            &[0, 2, 3, 5, 6],
        ),
        same(
            "slowest_100",
            1.0,
            format!("SELECT * FROM collectives WHERE ts_ns >= {last_minute} ORDER BY duration_ns DESC LIMIT 100"),
            &[1],
        ),
        Asked {
            name: "exact_p99",
            aim: 3.0,
            ours: "SELECT rank, percentile_disc(duration_ns, 0.99) FROM collectives GROUP BY rank ORDER BY rank".into(),
            duck: "SELECT rank, quantile_disc(duration_ns, 0.99) FROM collectives GROUP BY rank ORDER BY rank".into(),
            exact: &[0, 1],
        },
    ]
}

fn queries(path: &Path, mut duck: Option<&mut Duck>, rounds: usize) -> anyhow::Result<()> {
    println!("{:>14} {:>12} {:>12} {:>9}", "question", "ours", "DuckDB", "ratio");
    let mut figures = Vec::new();
    let mut store = FileReader::open(path)?;
    for question in asked() {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let began = Instant::now();
            let rows = ask(&mut store, &question.ours)?;
            let took = began.elapsed();
            let Some(duck) = duck.as_deref_mut() else {
                ours.push(took);
                continue;
            };
            let (seconds, duck_rows) = duck.run(&question.duck)?;
            if round == 0 {
                check(&question, &rows, &duck_rows)?;
                continue;
            }
            ours.push(took);
            theirs.push(Duration::from_secs_f64(seconds));
        }
        let our_ms = p50_ms(&mut ours);
        if theirs.is_empty() {
            println!("{:>14} {our_ms:>9.2} ms", question.name);
            continue;
        }
        let duck_ms = p50_ms(&mut theirs);
        println!("{:>14} {our_ms:>9.2} ms {duck_ms:>9.2} ms {:>9.3}", question.name, our_ms / duck_ms);
        figures.push((format!("{}_over_duckdb", question.name), our_ms / duck_ms, question.aim));
    }
    for (name, ratio, aim) in figures {
        figure(&name, ratio, "ratio", "<=", aim);
    }
    Ok(())
}

/// A question to the file, planned and answered as an agent does. Both databases are kept open.
fn ask(store: &mut FileReader, sql: &str) -> anyhow::Result<Vec<Vec<Value>>> {
    Ok(store.ask(sql, Instant::now() + Duration::from_secs(600))?.rows)
}

/// Both must give the same result where both are exact.
fn check(question: &Asked, ours: &[Vec<Value>], theirs: &[serde_json::Value]) -> anyhow::Result<()> {
    ensure!(ours.len() == theirs.len(), "{}: {} rows, DuckDB has {}", question.name, ours.len(), theirs.len());
    for (our, their) in ours.iter().zip(theirs) {
        for &at in question.exact {
            let our = match &our[at] {
                Value::Integer(value) => value.to_string(),
                Value::Real(value) => format!("{value:.0}"),
                other => format!("{other:?}"),
            };
            let their = their[at].to_string();
            let their = their.trim_matches('"');
            ensure!(our == their, "{}: column {at} is {our}, DuckDB says {their}", question.name);
        }
    }
    Ok(())
}

fn size(path: &Path, duck: Option<&Duck>, rows: u64) -> anyhow::Result<()> {
    let ours = std::fs::metadata(path)?.len() as f64 / rows as f64;
    // Plain SQLite on a part of the rows: its bytes a row do not depend on how many there are.
    let part = rows.min(500_000);
    let plain = plain_bytes(part)? as f64 / part as f64;
    let of_rows = bytes_of_rows(path)? as f64 / rows as f64;
    println!("bytes a row: {ours:.1}, of these {of_rows:.1} the rows' own columns; plain SQLite {plain:.1}");
    if let Some(duck) = duck {
        let theirs = duck.file_bytes as f64 / rows as f64;
        println!("bytes a row: DuckDB {} {theirs:.1}", duck.version);
        figure("bytes_per_row_over_duckdb", ours / theirs, "ratio", "<=", 1.5);
        figure("bytes_per_row_of_its_columns_over_duckdb", of_rows / theirs, "ratio", "<=", 1.0);
    }
    figure("bytes_per_row_over_plain_sqlite", ours / plain, "ratio", "<=", 1.0);
    Ok(())
}

/// What the file has of the rows themselves, without the sums by the second and of large segments:
/// what DuckDB's file has, too.
fn bytes_of_rows(path: &Path) -> anyhow::Result<u64> {
    let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let sql = "SELECT sum(length(header)) + (SELECT sum(length(data)) FROM segment_columns WHERE id & 255 <> 255 AND id >> 8 IN
               (SELECT id FROM segments WHERE table_name = 'collectives')) FROM segments WHERE table_name = 'collectives'";
    Ok(conn.query_row(sql, [], |row| row.get::<_, i64>(0))?.unsigned_abs())
}

/// Size of a plain table with an index on time, as SQLite makes it.
fn plain_bytes(rows: u64) -> anyhow::Result<u64> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("plain.db");
    let conn = Connection::open(&path)?;
    conn.execute_batch(
        "CREATE TABLE collectives (ts_ns, duration_ns, pid, tid, rank, local_rank, nranks, comm_hash, func, seq, count, \
         datatype, bytes, reduce_op, root, stream, library, tier, ret, cgroup_id, job_id);
         CREATE INDEX collectives_ts ON collectives (ts_ns); BEGIN;",
    )?;
    {
        let mut insert = conn.prepare(
            "INSERT INTO collectives VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21)",
        )?;
        let bits = |value: Option<u64>| value.map(u64::cast_signed);
        for row in Generator::new(rows) {
            insert.execute(rusqlite::params![
                row.ts_ns,
                row.duration_ns,
                row.pid,
                row.tid,
                row.rank,
                row.local_rank,
                row.nranks,
                bits(row.comm_hash),
                row.func,
                bits(row.seq),
                bits(row.count),
                row.datatype,
                bits(row.bytes),
                row.reduce_op,
                row.root,
                bits(row.stream),
                row.library.name(),
                row.tier,
                row.ret,
                row.cgroup_id.cast_signed(),
                row.job_id.as_deref(),
            ])?;
        }
    }
    conn.execute_batch("COMMIT;")?;
    drop(conn);
    Ok(std::fs::metadata(&path)?.len())
}

/// An agent that records nothing, ten seconds old.
fn idle(dir: &Path) -> anyhow::Result<()> {
    let home = dir.join("agent");
    std::fs::create_dir_all(&home)?;
    let mut command = match agents::up("idle", &home) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("idle agent: {error:#}");
            return Ok(());
        }
    };
    command.arg("--store").arg(home.join("store.db"));
    let agent = Agent::start("idle", &home, command)?;
    std::thread::sleep(Duration::from_secs(10));
    let resident = memory_bytes(&agent.pid().to_string(), "VmRSS:");
    figure("idle_agent_rss", mib(resident?), "MiB", "<=", 30.0);
    Ok(())
}

/// Kills at random moments of full-speed ingest into one store that goes on from life to life.
fn kill(dir: &Path, first: u32, kills: u32) -> anyhow::Result<()> {
    let path = dir.join("killed.db");
    let (mut damaged, mut missing, mut opened) = (0_u32, 0_u32, Vec::new());
    let mut lost = Vec::new();
    let mut kept = 0_u64;
    for i in first..first + kills {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["store", "endless", text(&path)?, &kept.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let out = BufReader::new(child.stdout.take().context("no pipe")?);
        // 50 to 850 ms from the opening on, spread evenly but in no order.
        let life = Duration::from_millis(50 + u64::from(i) * 617 % 800);
        let mut reported: Vec<(Instant, u64, u64)> = Vec::new();
        let mut began = None;
        for line in out.lines() {
            let line = line?;
            if let Some(seconds) = line.strip_prefix("open ") {
                opened.push(Duration::from_secs_f64(seconds.parse()?));
                began = Some(Instant::now());
                continue;
            }
            let (stored, started) = line.split_once(' ').context("two numbers")?;
            reported.push((Instant::now(), stored.parse()?, started.parse()?));
            if began.is_some_and(|began| began.elapsed() >= life) {
                break;
            }
        }
        let killed = Instant::now();
        child.kill()?;
        child.wait()?;
        if !integrity(&path)?.is_empty() {
            damaged += 1;
        }
        let count = count(&path)?;
        let last = reported.last().context("it was killed before it began")?;
        missing += u32::from(count < last.1);
        // Rows are stored in the order they came: everything from row `count` on is lost.
        let first_lost = reported.iter().find(|(_, _, started)| *started > count).map_or(killed, |(at, ..)| *at);
        lost.push(killed - first_lost);
        kept = count;
    }
    none_of("kills_that_damaged_the_file", damaged, "of the kills");
    none_of("kills_that_lost_committed_rows", missing, "of the kills");
    figure("killed_lost_at_most", ms(quantile(&mut lost, 1.0)), "ms", "<=", 250.0);
    figure("killed_reopened_within", quantile(&mut opened, 1.0).as_secs_f64(), "s", "<=", 1.0);
    Ok(())
}

fn count(path: &Path) -> anyhow::Result<u64> {
    match ask(&mut FileReader::open(path)?, "SELECT count(*) FROM collectives")?.as_slice() {
        [row] => match row.as_slice() {
            [Value::Integer(count)] => Ok(u64::try_from(*count)?),
            other => anyhow::bail!("{other:?}"),
        },
        other => anyhow::bail!("{other:?}"),
    }
}
