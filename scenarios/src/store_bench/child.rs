//! The benchmark's other processes: each opens a store, does one thing, and says on standard output
//! what it cost.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Subcommand;
use node_bpf::Record;
use store::{Store, StoreConfig};

use super::generate::{Generator, at_pace};
use crate::day::fill::{keeps_all, wait_for_room};
use crate::figures::{cpu_time, memory_bytes};

/// Rows "without end": nobody waits for the last.
const ENDLESS_ROWS: u64 = 400_000_000;

/// What a child does.
#[derive(Debug, Clone, Subcommand)]
pub enum Mode {
    /// As many rows as the store takes without loss.
    Fill {
        /// Store.
        path: PathBuf,
        /// Rows.
        rows: u64,
        /// Limit of the store in bytes, 0 for none.
        #[arg(default_value_t = 0)]
        max_bytes: u64,
        /// Seconds that the rows' times span: an hour has few calls for each sum by the second.
        #[arg(long, default_value_t = 3600)]
        span_s: u32,
    },
    /// Rows at a steady pace.
    Paced {
        /// Store.
        path: PathBuf,
        /// Rows a second.
        per_second: u64,
        /// How long.
        seconds: u64,
    },
    /// Rows without end, at full speed, to be killed; tells after each thousand how many were
    /// handed over and stored.
    Endless {
        /// Store.
        path: PathBuf,
        /// Rows handed over by earlier children.
        earlier: u64,
    },
    /// Opens the store and tells how long that took.
    Open {
        /// Store.
        path: PathBuf,
    },
}

/// A child's report.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct Report {
    /// Rows stored.
    pub stored: u64,
    /// Rows lost.
    pub lost: u64,
    /// Wall clock.
    pub seconds: f64,
    /// Processor time of the store alone: the process's less what making the rows costs.
    pub cpu_seconds: f64,
    /// Largest resident memory.
    pub peak_bytes: u64,
    /// The 99.9th percentile of commit times.
    pub commit_p999_ms: f64,
    /// The longest commit.
    pub commit_max_ms: f64,
    /// Largest size of the file and its log.
    pub largest_bytes: u64,
    /// Time to open.
    pub open_seconds: f64,
}

/// Runs `mode`.
///
/// # Errors
/// The store cannot be opened or written.
pub fn run(mode: &Mode) -> anyhow::Result<()> {
    let report = match mode {
        Mode::Fill { path, rows, max_bytes, span_s } => fill(path, *rows, *max_bytes, *span_s)?,
        Mode::Paced { path, per_second, seconds } => paced(path, *per_second, *seconds)?,
        Mode::Endless { path, earlier } => endless(path, *earlier)?,
        Mode::Open { path } => open(path)?,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

fn config(max_bytes: u64) -> StoreConfig {
    if max_bytes == 0 { keeps_all() } else { StoreConfig { max_bytes, ..keeps_all() } }
}

fn fill(path: &Path, rows: u64, max_bytes: u64, span_s: u32) -> anyhow::Result<Report> {
    let span_ns = i64::from(span_s) * 1_000_000_000;
    // What making the rows costs, to be left out.
    let sample = rows.min(200_000);
    let began = cpu_time();
    let mut kept = 0_i64;
    for row in Generator::spread(sample, span_ns) {
        kept ^= row.duration_ns;
    }
    ensure!(kept != i64::MIN);
    let making = (cpu_time() - began).as_secs_f64() * rows as f64 / sample as f64;
    let began = Instant::now();
    let store = Store::open(path, config(max_bytes))?;
    let open_seconds = began.elapsed().as_secs_f64();
    let ingest = store.ingest();
    let (began, cpu) = (Instant::now(), cpu_time());
    let mut largest_bytes = 0;
    for (i, row) in Generator::spread(rows, span_ns).enumerate() {
        if i % 4096 == 0 {
            wait_for_room(&store)?;
            let facts = store.facts();
            largest_bytes = largest_bytes.max(facts.file_bytes + facts.wal_bytes);
        }
        ingest.record(Record::Collective(row));
    }
    store.flush(Duration::from_secs(600))?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu_seconds = (cpu_time() - cpu).as_secs_f64() - making;
    let health = store.health();
    let facts = store.facts();
    store.close();
    Ok(Report {
        stored: health.stored,
        lost: health.lost,
        seconds,
        cpu_seconds,
        peak_bytes: memory_bytes("self", "VmHWM:")?,
        commit_p999_ms: health.commit_p999.as_secs_f64() * 1e3,
        commit_max_ms: health.longest_commit.as_secs_f64() * 1e3,
        largest_bytes: largest_bytes.max(facts.file_bytes + facts.wal_bytes),
        open_seconds,
    })
}

fn paced(path: &Path, per_second: u64, seconds: u64) -> anyhow::Result<Report> {
    let store = Store::open(path, config(0))?;
    let ingest = store.ingest();
    // Times that pass as fast as the clock does: sums by the second have as much to sum up as they
    // would.
    let span_ns = i64::try_from(seconds.saturating_mul(1_000_000_000))?;
    let rows: Vec<_> = Generator::spread(per_second * seconds, span_ns).collect();
    let (began, cpu) = (Instant::now(), cpu_time());
    at_pace(&ingest, per_second, rows, &AtomicBool::new(false));
    let seconds = began.elapsed().as_secs_f64();
    let cpu_seconds = (cpu_time() - cpu).as_secs_f64();
    store.flush(Duration::from_secs(60))?;
    let health = store.health();
    Ok(Report { stored: health.stored, lost: health.lost, seconds, cpu_seconds, ..Report::default() })
}

fn endless(path: &Path, earlier: u64) -> anyhow::Result<Report> {
    let began = Instant::now();
    let store = Store::open(path, config(0))?;
    let ingest = store.ingest();
    let mut out = std::io::stdout().lock();
    writeln!(out, "open {}", began.elapsed().as_secs_f64())?;
    out.flush()?;
    for (i, row) in Generator::new(ENDLESS_ROWS).enumerate() {
        if i % 1024 == 0 {
            wait_for_room(&store)?;
            // What is stored was read first: whatever is killed in between, both numbers are true
            // then.
            let stored = earlier + store.health().stored;
            writeln!(out, "{stored} {}", earlier + i as u64)?;
            out.flush()?;
        }
        ingest.record(Record::Collective(row));
    }
    Ok(Report::default())
}

fn open(path: &Path) -> anyhow::Result<Report> {
    let began = Instant::now();
    let store = Store::open(path, config(0))?;
    let open_seconds = began.elapsed().as_secs_f64();
    store.close();
    Ok(Report { open_seconds, peak_bytes: memory_bytes("self", "VmHWM:")?, ..Report::default() })
}
