//! A year of 64 nodes in an archive on local disk, asked for one hour; and the cost of writing an
//! hour.
//!
//! One store with a call a minute for the year and a full hour in its middle is archived as the
//! agent does it. The other nodes get the same files under their names (links, with manifests of
//! their own), since writing them anew would only take longer. Needs `rankmesh` in the directory of
//! this binary (or RANKMESH_BINARY).

mod push;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use node_bpf::{Collective, Record};
use scenarios::agents::{binary, rankmesh};
use scenarios::day::fill::{keeps_all, wait_for_room};
use scenarios::figures::{cpu_time_of_children, figure, quantile};
use store::Store;

use crate::folder;

/// A year of many nodes, asked for one hour.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Nodes
    #[arg(long, default_value_t = 64)]
    nodes: u32,
    /// Days
    #[arg(long, default_value_t = 365)]
    days: i64,
    /// Rows of each node in the hour that is asked for
    #[arg(long, default_value_t = 50_000)]
    rows: i64,
    /// Where to make it, and leave it [default: a temporary directory]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Push instead: so many agents' stores get rows, which their processes push into ClickHouse's
    /// engine (chDB) behind the tests' HTTP front, run by this Python
    #[arg(long, value_name = "PYTHON")]
    push: Option<PathBuf>,
    /// With --push: rows a second of each agent
    #[arg(long, default_value_t = 5_000)]
    rate: u64,
    /// With --push: seconds of rows; in the middle the server is gone for --gone seconds
    #[arg(long, default_value_t = 180)]
    seconds: u64,
    /// With --push: for so long the server is gone
    #[arg(long, default_value_t = 60)]
    gone: u64,
}

/// 2025-01-01 UTC: a year that is over.
const T0: i64 = 1_735_689_600_000_000_000;
const HOUR_NS: i64 = 3_600_000_000_000;
const MINUTE_NS: i64 = 60_000_000_000;

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(python) = &arguments.push {
        return push::measure(arguments, python);
    }
    let (dir, _temporary) = folder(arguments.dir.as_deref())?;
    let archive = dir.join("archive");
    let asked_ns = T0 + arguments.days / 2 * 24 * HOUR_NS + 9 * HOUR_NS;
    if !archive.exists() {
        fs::create_dir_all(&archive)?;
        let store = dir.join("n000.db");
        fill(&store, arguments, asked_ns)?;
        let (bytes, rows, seconds) = write(&store, &archive)?;
        figure("archive_cpu_us_per_row", seconds * 1e6 / rows, "us", "<=", 20.0);
        figure("archive_bytes_per_row", bytes / rows, "B", "<=", 200.0);
        spread(&archive, arguments.nodes)?;
    }
    let hour = format!("ts_ns >= {asked_ns} AND ts_ns < {}", asked_ns + HOUR_NS);
    let sql =
        format!("SELECT rank, count(*), sum(duration_ns) FROM collectives WHERE {hour} GROUP BY rank ORDER BY rank");
    let mut took = Vec::new();
    for _ in 0..5 {
        let began = Instant::now();
        let archive = archive.display().to_string();
        let answer = rankmesh("query", ["--timeout", "60s", "--archive", &archive, &sql])?;
        took.push(began.elapsed());
        let counted: i64 = answer["rows"].as_array().context("rows")?.iter().filter_map(|row| row[1].as_i64()).sum();
        ensure!(counted == i64::from(arguments.nodes) * arguments.rows, "{counted} rows: {answer}");
        ensure!(answer["coverage"]["answered"] == arguments.nodes, "{}", answer["coverage"]);
    }
    let files = arguments.days * 24 * i64::from(arguments.nodes);
    println!(
        "{} nodes, {} days, {files} hours of nodes; {} rows in the hour",
        arguments.nodes,
        arguments.days,
        arguments.rows * i64::from(arguments.nodes)
    );
    figure("archive_hour_of_a_year_s", quantile(&mut took, 0.5).as_secs_f64(), "s", "<=", 2.0);
    Ok(())
}

fn fill(path: &Path, arguments: &Arguments, asked_ns: i64) -> anyhow::Result<()> {
    let store = Store::open(path, keeps_all())?;
    let ingest = store.ingest();
    let mut seq = 0_u64;
    let mut record = |ts_ns: i64| {
        seq += 1;
        ingest.record(Record::Collective(call(ts_ns, seq)));
        if seq.is_multiple_of(20_000) { wait_for_room(&store) } else { Ok(()) }
    };
    for minute in 0..arguments.days * 24 * 60 {
        let at_ns = T0 + minute * MINUTE_NS;
        if !(asked_ns..asked_ns + HOUR_NS).contains(&at_ns) {
            record(at_ns)?;
        } else if at_ns == asked_ns {
            for row in 0..arguments.rows {
                record(asked_ns + HOUR_NS / arguments.rows * row)?;
            }
        }
    }
    store.flush(Duration::from_secs(60))?;
    ensure!(store.health().lost == 0, "the store dropped rows");
    store.close();
    Ok(())
}

/// A call as in a job of eight ranks: durations differ from call to call.
fn call(ts_ns: i64, seq: u64) -> Collective {
    let mixed = seq.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    Collective {
        ts_ns,
        duration_ns: 200_000 + i64::try_from(mixed % 3_000_000).unwrap_or(0),
        pid: 1_000 + u32::try_from(seq % 8).unwrap_or(0),
        tid: 1_000 + u32::try_from(seq % 8).unwrap_or(0),
        rank: i32::try_from(seq % 8).ok(),
        local_rank: i32::try_from(seq % 8).ok(),
        nranks: Some(8),
        comm_hash: Some(0xFEDC_0000_0000_0001),
        func: if seq.is_multiple_of(3) { "all_gather" } else { "all_reduce" },
        seq: Some(seq / 8),
        count: Some(1 << (mixed % 12)),
        datatype: Some("float32"),
        bytes: Some(4 << (mixed % 12)),
        reduce_op: Some("sum"),
        stream: Some(7),
        ret: Some(0),
        cgroup_id: 1,
        job_id: Some("4711".into()),
        ..Collective::default()
    }
}

/// Archives the store; returns bytes, rows and seconds of CPU.
fn write(store: &Path, archive: &Path) -> anyhow::Result<(f64, f64, f64)> {
    let before = cpu_time_of_children();
    let output = Command::new(binary()?)
        .args(["archive", "--full-speed", "--db"])
        .arg(store)
        .arg("--to")
        .arg(archive)
        .output()?;
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{printed}");
    eprint!("{printed}");
    let words: Vec<&str> = printed.split_whitespace().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).context("figures");
    Ok((number(4)?, number(2)?, (cpu_time_of_children() - before).as_secs_f64()))
}

/// Gives the files of the first node to all others.
fn spread(archive: &Path, nodes: u32) -> anyhow::Result<()> {
    let mut folders = vec![archive.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)?.collect::<Result<Vec<_>, _>>()? {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = entry.file_name().into_string().ok().context("a name")?;
            let manifest = name.ends_with(".json").then(|| fs::read_to_string(&path)).transpose()?;
            for node in 1..nodes {
                let its = folder.join(name.replace("node=n000.", &format!("node=n{node:03}.")));
                match &manifest {
                    Some(text) => fs::write(its, text.replace("\"n000\"", &format!("\"n{node:03}\"")))?,
                    None => fs::hard_link(&path, its)?,
                }
            }
        }
    }
    Ok(())
}
