//! The agent under load: a workload that calls at a stated rate, and the fate of every call.
//!
//! At 200,000 calls a second for a minute each call must be stored or counted as lost; at 50,000
//! none may be lost and the agent may use 15 % of a core. The reference is the workload's own
//! count. Needs root, and `rankmesh` in the directory of this binary (or RANKMESH_BINARY).

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use scenarios::agents::{self, Agent, rankmesh};
use scenarios::figures::{figure, none_of};
use scenarios::jobs::{Cgroups, build_workloads};

/// What becomes of calls under load.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Seconds at 200,000 calls a second
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Seconds at 50,000 calls a second
    #[arg(long, default_value_t = 20)]
    steady_seconds: u32,
}

const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    node_bpf::supported().context("this records with eBPF")?;
    let dir = tempfile::tempdir()?;
    let workloads = dir.path().join("workloads");
    build_workloads(Path::new(env!("CARGO_MANIFEST_DIR")), &workloads)?;
    let heavy = Load { rate: 200_000, seconds: arguments.seconds }.run(dir.path(), &workloads)?;
    let steady = Load { rate: 50_000, seconds: arguments.steady_seconds }.run(dir.path(), &workloads)?;
    figure("load_200k_rate", heavy.rate, "calls_per_s", ">=", 190_000.0);
    none_of("load_200k_unaccounted", heavy.unaccounted(), "calls");
    figure("load_200k_stored", heavy.share_stored() * 100.0, "percent", ">=", 50.0);
    figure("load_200k_agent", heavy.agent_cores * 100.0, "percent_of_core", "<=", 100.0);
    none_of("load_50k_unaccounted", steady.unaccounted(), "calls");
    none_of("load_50k_lost", steady.lost(), "calls");
    figure("load_50k_agent", steady.agent_cores * 100.0, "percent_of_core", "<=", 15.0);
    Ok(())
}

struct Load {
    rate: u64,
    seconds: u32,
}

/// The fate of the calls of one load.
struct Outcome {
    made: i64,
    stored: i64,
    /// (probe, reason, how many)
    losses: Vec<(String, String, i64)>,
    /// Calls a second that the workload made, probed as it was.
    rate: f64,
    /// CPU time of the agent over the load's time.
    agent_cores: f64,
}

impl Outcome {
    fn lost(&self) -> i64 {
        self.losses.iter().map(|(.., lost)| lost).sum()
    }

    fn unaccounted(&self) -> i64 {
        (self.made - self.stored - self.lost()).abs()
    }

    fn share_stored(&self) -> f64 {
        self.stored as f64 / self.made as f64
    }
}

impl Load {
    fn run(&self, dir: &Path, workloads: &Path) -> anyhow::Result<Outcome> {
        let mount = node_bpf::cgroup_mount_point().context("cgroup v2 is not mounted")?;
        let cgroups = Cgroups::make(&mount, "load", &[])?;
        let cgroup = &cgroups.0[0];
        let dir = dir.join(self.rate.to_string());
        fs::create_dir(&dir)?;
        let mut command = agents::up("load", &dir)?;
        // Each call is recorded: no budget leaves times out.
        command
            .args(["--budget", "none", "--store-max-mib", "16384", "--store"])
            .arg(dir.join("trace.db"))
            .arg("--cgroup")
            .arg(cgroup);
        let agent = Agent::start("load", &dir, command)?;
        // Once so that the agent knows the library; of the load itself no call may pass without a
        // probe.
        let library = workloads.join("noop/libnccl.so.2");
        let until = Instant::now() + PATIENCE;
        while !agent.log()?.contains("recording on") || !agent.log()?.contains(&*library.to_string_lossy()) {
            ensure!(Instant::now() < until, "the agent did not find {}: {}", library.display(), agent.log()?);
            self.call(workloads, cgroup, 100, 20)?;
        }
        let before = agent.cpu()?;
        let began = Instant::now();
        let (pid, made) = self.call(workloads, cgroup, self.rate, self.rate * u64::from(self.seconds))?;
        let took = began.elapsed();
        let agent_cores = (agent.cpu()? - before).as_secs_f64() / took.as_secs_f64();
        agent.stop()?;
        let store = dir.join("trace.db");
        let stored = ask(&store, &format!("SELECT count(*) FROM collectives WHERE pid = {pid}"))?;
        let stored = stored.first().and_then(|row| row.first()?.as_i64()).context("no count")?;
        let losses = ask(
            &store,
            "SELECT probe, reason, sum(lost) FROM capture_loss WHERE probe IN ('libnccl:ncclAllReduce', 'collectives', \
             'ring', 'calls') GROUP BY 1, 2",
        )?;
        let losses = losses
            .iter()
            .filter_map(|row| Some((row[0].as_str()?.to_owned(), row[1].as_str()?.to_owned(), row[2].as_i64()?)))
            .collect();
        let rate = made as f64 / took.as_secs_f64();
        let outcome = Outcome { made, stored, losses, rate, agent_cores };
        println!(
            "{} calls/s wanted, {:.0} made in {:.1} s: {made} made, {stored} stored, {} lost {:?}, agent {:.1} % of a core",
            self.rate,
            rate,
            took.as_secs_f64(),
            outcome.lost(),
            outcome.losses,
            agent_cores * 100.0
        );
        fs::remove_dir_all(&dir)?;
        Ok(outcome)
    }

    /// Runs the workload in the cgroup; returns its process id and how many calls it made.
    fn call(&self, workloads: &Path, cgroup: &Path, rate: u64, calls: u64) -> anyhow::Result<(i64, i64)> {
        let output = Command::new("sh")
            .arg("-c")
            .arg(r#"echo $$ > "$0/cgroup.procs" && exec "$@""#)
            .arg(cgroup)
            .arg(workloads.join("nccl-rate"))
            .args(["--rate", &rate.to_string(), "--calls", &calls.to_string()])
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "nccl-rate: {text}{}", String::from_utf8_lossy(&output.stderr));
        let number = |key: &str| -> Option<i64> {
            let rest = text.split_once(&format!("\"{key}\":"))?.1;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        number("pid").zip(number("calls")).with_context(|| format!("nccl-rate printed {text}"))
    }
}

/// The rows of a question to a store.
fn ask(store: &Path, sql: &str) -> anyhow::Result<Vec<Vec<serde_json::Value>>> {
    let answer = rankmesh("query", [OsStr::new("--db"), store.as_os_str(), OsStr::new(sql)])?;
    Ok(serde_json::from_value(answer["rows"].clone())?)
}
