//! A result larger than any process's memory, read slowly: the memory of every process meanwhile.
//!
//! Full agents serve files of rows; the command line's output is read at a stated rate. The count
//! and the sum of the rows are checked. Needs `rankmesh` in the directory of this binary (or
//! RANKMESH_BINARY).

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use certs::Authority;
use clap::Parser;
use scenarios::cluster::make_database;
use scenarios::figures::figure;

/// Memory of client, asked agent and leaf while a large result is read slowly.
#[derive(Debug, Parser)]
struct Arguments {
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

const PATIENCE: Duration = Duration::from_secs(120);

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let dir = tempfile::tempdir()?;
    let authority = Authority::create(&"flow".parse()?)?;
    let mut agents: Vec<Agent> = Vec::new();
    let each = arguments.rows / arguments.nodes;
    for index in 0..arguments.nodes {
        let first = agents.first().map(Agent::address).transpose()?;
        agents.push(Agent::start(dir.path(), &authority, index, each, first)?);
    }
    let asked = agents.first().context("no agent")?;
    let until = Instant::now() + PATIENCE;
    while asked.live()? < agents.len() {
        ensure!(Instant::now() < until, "the agents do not find each other");
        std::thread::sleep(Duration::from_millis(50));
    }
    let idle = agents.iter().map(|agent| peak_mib(agent.child.id())).collect::<anyhow::Result<Vec<f64>>>()?;

    let order = arguments.order_by.as_ref().map(|by| format!(" ORDER BY {by}")).unwrap_or_default();
    let began = Instant::now();
    let mut client = Command::new(binary()?)
        .args(["query", "--timeout", "7200s", "--format", &arguments.format, "--socket"])
        .arg(asked.dir.join("socket"))
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
        client_peak = client_peak.max(peak_mib(client.id()).unwrap_or(0.0));
        if arguments.rate_kib > 0 {
            let due = Duration::from_secs_f64(bytes as f64 / (arguments.rate_kib << 10) as f64);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
    }
    let status = client.wait()?;
    ensure!(status.success(), "the question failed: {status}");
    let took = began.elapsed().as_secs_f64();
    let peaks = agents.iter().map(|agent| peak_mib(agent.child.id())).collect::<anyhow::Result<Vec<f64>>>()?;
    eprintln!(
        "{lines} lines, {:.0} MiB in {took:.0} s ({:.2} MiB/s); agents had {idle:.0?} MiB before, {peaks:.0?} at most",
        bytes as f64 / f64::from(1 << 20),
        bytes as f64 / f64::from(1 << 20) / took
    );
    let header = u64::from(matches!(arguments.format.as_str(), "csv" | "table"));
    figure("flow_rows_missing", (each * arguments.nodes + header).abs_diff(lines) as f64, "rows", "<=", 0.0);
    figure("flow_first_row", first_byte.unwrap_or_default().as_secs_f64() * 1e3, "ms", "<=", 1_000.0);
    figure("flow_client_peak", client_peak, "MiB", "<=", 96.0);
    figure("flow_asked_agent_peak", peaks.first().copied().unwrap_or(0.0), "MiB", "<=", 96.0);
    figure("flow_leaf_peak", peaks.iter().skip(1).copied().fold(0.0, f64::max), "MiB", "<=", 96.0);
    Ok(())
}

fn binary() -> anyhow::Result<PathBuf> {
    Ok(match std::env::var_os("RANKMESH_BINARY") {
        Some(path) => path.into(),
        None => std::env::current_exe()?.with_file_name("rankmesh"),
    })
}

/// The most memory that a process ever had.
fn peak_mib(pid: u32) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no peak")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

/// A running agent; killed when dropped.
struct Agent {
    child: Child,
    dir: PathBuf,
}

impl Agent {
    fn start(dir: &Path, authority: &Authority, index: u64, rows: u64, join: Option<String>) -> anyhow::Result<Self> {
        let name = format!("n{index}");
        let dir = dir.join(&name);
        fs::create_dir(&dir)?;
        authority.issue(&name.parse()?, Duration::from_secs(86_400))?.save(&dir.join("identity"))?;
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
        let mut command = Command::new(binary()?);
        command.args(["up", "--name", &name, "--listen", "127.0.0.1:0", "--capture", "off", "--identity"]);
        command.arg(dir.join("identity")).arg("--socket").arg(dir.join("socket")).arg("--serve-db").arg(&file);
        if let Some(join) = join {
            command.args(["--join", &join]);
        }
        let log = File::create(dir.join("log"))?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        let agent = Self { child, dir };
        let until = Instant::now() + PATIENCE;
        while agent.nodes().map_or(true, |nodes| nodes.is_empty()) {
            ensure!(Instant::now() < until, "{name} does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(agent)
    }

    fn nodes(&self) -> anyhow::Result<Vec<serde_json::Value>> {
        let listed = Command::new(binary()?)
            .args(["nodes", "--format", "json", "--socket"])
            .arg(self.dir.join("socket"))
            .stderr(Stdio::null())
            .output()?;
        Ok(serde_json::from_slice(&listed.stdout)?)
    }

    fn address(&self) -> anyhow::Result<String> {
        let nodes = self.nodes()?;
        let own = nodes.iter().find_map(|node| node["address"].as_str());
        own.map(str::to_owned).context("no address")
    }

    fn live(&self) -> anyhow::Result<usize> {
        Ok(self.nodes()?.iter().filter(|node| node["state"] == "live").count())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
