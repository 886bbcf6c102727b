//! Jobs on one host, or on three, in trace stores, and the same rows in plain SQLite.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use store::exchange::{Export, export};

use super::suite::Span;
use crate::day::fill::fill;
use crate::day::{CALLS_A_STEP, Day, LOCAL_RANKS};
use crate::store_bench::generate::{SPAN_NS, START_NS};

/// Seed of the rows.
const SEED: u64 = 20_261_123;
/// Bursts of the time.
const BURSTS: u64 = 60;

/// The time of a job: an hour, or a minute where there are few rows, so that what belongs together
/// in time is there, too.
#[must_use]
pub fn span(rows: u64) -> Span {
    let span_ns = if is_small(rows) { SPAN_NS / 60 } else { SPAN_NS };
    Span { begin_ns: START_NS, end_ns: START_NS + span_ns }
}

fn is_small(rows: u64) -> bool {
    rows < 500_000
}

/// What host `host` of `hosts` records while all of them make about `rows` collectives; other
/// tables have a third to the half of that.
#[must_use]
pub fn day(host: u32, hosts: u32, rows: u64) -> Day {
    let span = span(rows);
    let spacing_ns = (span.end_ns - span.begin_ns) / BURSTS.cast_signed();
    // 93 of 100 bursts have jobs.
    let calls_a_step = BURSTS * CALLS_A_STEP * u64::from(LOCAL_RANKS * hosts);
    let steps = ((rows as f64 / 0.93 / calls_a_step as f64).round() as u64).max(1);
    Day {
        bursts: BURSTS,
        spacing_ns,
        steps,
        last_steps: steps,
        step_ns: spacing_ns / steps.cast_signed(),
        sample_ns: (spacing_ns / 10).min(1_000_000_000),
        dropped_permille: 0,
        ..Day::full(SEED, host, hosts, rows, span.end_ns)
    }
}

/// Write the stores of `hosts` hosts that make about `rows` collectives together into `dir`; their
/// nodes' names and files. A small store commits each burst, so that it has segments enough.
///
/// # Errors
/// A store cannot be written.
pub fn make(dir: &Path, hosts: u32, rows: u64) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut stores = Vec::new();
    for host in 0..hosts {
        let path = dir.join(format!("{}-of-{hosts}.db", Day::node(host)));
        if !path.exists() {
            fill(&path, &day(host, hosts, rows), is_small(rows))?;
        }
        stores.push((Day::node(host), path));
    }
    Ok(stores)
}

/// The rows of a store as plain SQLite tables, in a new file beside it unless that is there.
///
/// # Errors
/// The store cannot be exported, or the file not opened.
pub fn plain(store: &Path) -> anyhow::Result<Connection> {
    let out = store.with_extension("plain.db");
    if !out.exists() {
        export(&Export {
            db: store.to_path_buf(),
            out: out.clone(),
            tables: Vec::new(),
            from_ns: None,
            until_ns: None,
        })?;
    }
    Ok(Connection::open_with_flags(&out, OpenFlags::SQLITE_OPEN_READ_ONLY)?)
}

/// The tables that the questions are about, as Parquet files of a directory.
///
/// # Errors
/// A table cannot be exported.
pub fn parquet(store: &Path, directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)?;
    for table in TABLES {
        let out = directory.join(format!("{table}.parquet"));
        if !out.exists() {
            export(&Export {
                db: store.to_path_buf(),
                out,
                tables: vec![table.to_owned()],
                from_ns: None,
                until_ns: None,
            })?;
        }
    }
    Ok(())
}

/// Tables of the questions.
const TABLES: [&str; 13] = [
    "collectives",
    "offcpu",
    "net_events",
    "cuda_calls",
    "symbol_calls",
    "block_io",
    "memory_events",
    "process_events",
    "fabric_counters",
    "gpu_samples",
    "host_samples",
    "processes",
    "call_rollups",
];
