//! A result larger than any process's memory, read slowly: the memory of every process meanwhile.
//!
//! Full agents serve files of rows; the command line's output is read at a stated rate. The count
//! and the sum of the rows are checked. Needs `rankmesh` in the directory of this binary (or
//! RANKMESH_BINARY).

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use certs::Authority;
use scenarios::agents::{self, Agent, binary};
use scenarios::cluster::make_database;
use scenarios::figures::{figure, memory_bytes, mib, ms, none_of};

/// Memory of client, asked agent and leaf while a large result is read slowly.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Rows of the result
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Agents that have them
    #[arg(long, default_value_t = 4)]
    nodes: u64,
    /// KiB a second that are read; 0: as fast as they come
    #[arg(long, default_value_t = 1_024)]
    rate_kib: u64,
    /// Form of the output
    #[arg(long, default_value = "csv")]
    format: String,
    /// Ask in this order too (the answer must then be gathered)
    #[arg(long)]
    order_by: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let authority = Authority::create(&"flow".parse()?)?;
    let mut agents: Vec<Agent> = Vec::new();
    let each = arguments.rows / arguments.nodes;
    for index in 0..arguments.nodes {
        let first = agents.first().map(Agent::address).transpose()?;
        agents.push(start(dir.path(), &authority, index, each, first)?);
    }
    let asked = agents.first().context("no agent")?;
    asked.wait_for(agents.len())?;
    let peaks_mib = || agents.iter().map(|agent| Ok(mib(agent.peak_bytes()?))).collect::<anyhow::Result<Vec<f64>>>();
    let idle = peaks_mib()?;

    let order = arguments.order_by.as_ref().map(|by| format!(" ORDER BY {by}")).unwrap_or_default();
    let began = Instant::now();
    let mut client = Command::new(binary()?)
        .args(["query", "--timeout", "7200s", "--format", &arguments.format, "--socket"])
        .arg(asked.socket())
        .arg(format!("SELECT i, v, s FROM t{order}"))
        .stdout(Stdio::piped())
        .spawn()?;
    let mut out = client.stdout.take().context("no pipe")?;
    let (mut first_byte, mut bytes, mut lines, mut client_peak) = (None, 0_u64, 0_u64, 0.0_f64);
    let mut piece = vec![0; 64 << 10];
    loop {
        let read = out.read(&mut piece)?;
        if read == 0 {
            break;
        }
        first_byte.get_or_insert_with(|| began.elapsed());
        bytes += read as u64;
        lines += piece[..read].iter().filter(|byte| **byte == b'\n').count() as u64;
        client_peak = client_peak.max(memory_bytes(&client.id().to_string(), "VmHWM:").map_or(0.0, mib));
        if arguments.rate_kib > 0 {
            let due = Duration::from_secs_f64(bytes as f64 / (arguments.rate_kib << 10) as f64);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
    }
    let status = client.wait()?;
    ensure!(status.success(), "the question failed: {status}");
    let took = began.elapsed().as_secs_f64();
    let peaks = peaks_mib()?;
    eprintln!(
        "{lines} lines, {:.0} MiB in {took:.0} s ({:.2} MiB/s); agents had {idle:.0?} MiB before, {peaks:.0?} at most",
        mib(bytes),
        mib(bytes) / took
    );
    let header = u64::from(matches!(arguments.format.as_str(), "csv" | "table"));
    none_of("flow_rows_missing", (each * arguments.nodes + header).abs_diff(lines), "rows");
    figure("flow_first_row", ms(first_byte.unwrap_or_default()), "ms", "<=", 1_000.0);
    figure("flow_client_peak", client_peak, "MiB", "<=", 96.0);
    figure("flow_asked_agent_peak", peaks.first().copied().unwrap_or(0.0), "MiB", "<=", 96.0);
    figure("flow_leaf_peak", peaks.iter().skip(1).copied().fold(0.0, f64::max), "MiB", "<=", 96.0);
    Ok(())
}

/// An agent that serves a file of so many rows.
fn start(dir: &Path, authority: &Authority, index: u64, rows: u64, join: Option<String>) -> anyhow::Result<Agent> {
    let name = format!("n{index}");
    let dir = agents::place(dir, &name, authority)?;
    let file = dir.join("rows.db");
    make_database(
        &file,
        &format!(
            "PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; CREATE TABLE t(i INTEGER, v INTEGER, s TEXT);
             WITH RECURSIVE r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r WHERE i < {})
             INSERT INTO t SELECT i, i * 7919 % 1000003, 'all_reduce' FROM r;",
            rows - 1
        ),
    )?;
    let mut command = agents::up(&name, &dir)?;
    command.args(["--capture", "off", "--serve-db"]).arg(&file).args(join.iter().flat_map(|join| ["--join", join]));
    Agent::start(&name, &dir, command)
}
