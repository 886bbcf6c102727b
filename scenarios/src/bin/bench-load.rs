//! The agent under load: a workload that calls at a stated rate, and the fate of every call.
//!
//! At 200,000 calls a second for a minute each call must be stored or counted as lost; at 50,000
//! none may be lost and the agent may use 15 % of a core. The reference is the workload's own
//! count. Needs root, and `rankmesh` in the directory of this binary (or RANKMESH_BINARY).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use scenarios::figures::figure;

/// What becomes of calls under load.
#[derive(Debug, Parser)]
struct Arguments {
    /// Seconds at 200,000 calls a second
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Seconds at 50,000 calls a second
    #[arg(long, default_value_t = 20)]
    steady_seconds: u32,
}

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    node_bpf::supported().context("bench-load records with eBPF")?;
    let dir = tempfile::tempdir()?;
    let workloads = build_workloads(dir.path())?;
    let heavy = Load { rate: 200_000, seconds: arguments.seconds }.run(dir.path(), &workloads)?;
    let steady = Load { rate: 50_000, seconds: arguments.steady_seconds }.run(dir.path(), &workloads)?;
    figure("load_200k_rate", heavy.rate, "calls_per_s", ">=", 190_000.0);
    figure("load_200k_unaccounted", heavy.unaccounted() as f64, "calls", "<=", 0.0);
    figure("load_200k_stored", heavy.share_stored() * 100.0, "percent", ">=", 50.0);
    figure("load_200k_agent", heavy.agent_cores * 100.0, "percent_of_core", "<=", 100.0);
    figure("load_50k_unaccounted", steady.unaccounted() as f64, "calls", "<=", 0.0);
    figure("load_50k_lost", steady.lost() as f64, "calls", "<=", 0.0);
    figure("load_50k_agent", steady.agent_cores * 100.0, "percent_of_core", "<=", 15.0);
    Ok(())
}

fn build_workloads(dir: &Path) -> anyhow::Result<PathBuf> {
    let out = dir.join("workloads");
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = Command::new("make").arg("-sC").arg(scenarios).arg(format!("OUT={}", out.display())).status()?;
    ensure!(made.success(), "the workloads do not build");
    Ok(out)
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
        let cgroup = Cgroup::new()?;
        let dir = dir.join(self.rate.to_string());
        fs::create_dir(&dir)?;
        let mut agent = Agent::start(&dir, &cgroup.0)?;
        // Once so that the agent knows the library; of the load itself no call may pass without a
        // probe.
        let library = workloads.join("noop/libnccl.so.2");
        let until = Instant::now() + PATIENCE;
        while !agent.log()?.contains(&*library.to_string_lossy()) {
            ensure!(Instant::now() < until, "the agent did not find {}: {}", library.display(), agent.log()?);
            self.call(workloads, &cgroup.0, 100, 20)?;
        }
        let before = agent.cpu_time()?;
        let began = Instant::now();
        let (pid, made) = self.call(workloads, &cgroup.0, self.rate, self.rate * u64::from(self.seconds))?;
        let took = began.elapsed();
        let agent_cores = (agent.cpu_time()? - before).as_secs_f64() / took.as_secs_f64();
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
    let output =
        Command::new(agent_binary()?).args(["query", "--format", "json", "--db"]).arg(store).arg(sql).output()?;
    ensure!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    Ok(serde_json::from_value(answer["rows"].clone())?)
}

/// The binary under test: in the directory of this one, unless the environment names another.
fn agent_binary() -> anyhow::Result<PathBuf> {
    Ok(match std::env::var_os("RANKMESH_BINARY") {
        Some(path) => path.into(),
        None => std::env::current_exe()?.with_file_name("rankmesh"),
    })
}

/// A cgroup v2 directory, removed with the value.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> anyhow::Result<Self> {
        let mount = node_bpf::cgroup_mount_point().context("cgroup v2 is not mounted")?;
        let path = mount.join(format!("rankmesh-load-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A running agent; killed when dropped.
struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    fn start(dir: &Path, cgroup: &Path) -> anyhow::Result<Self> {
        let binary = agent_binary()?;
        let log = dir.join("log");
        let mut command = Command::new(&binary);
        command.args(["up", "--name", "load", "--listen", "127.0.0.1:0", "--store-max-mib", "16384"]);
        command.arg("--identity").arg(dir.join("identity")).arg("--store").arg(dir.join("trace.db"));
        command.arg("--socket").arg(dir.join("socket")).arg("--cgroup").arg(cgroup);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("{}: build it beside this binary", binary.display()))?;
        let agent = Self { child, log };
        let until = Instant::now() + PATIENCE;
        while !agent.log()?.contains("recording on") {
            ensure!(Instant::now() < until, "the agent does not record: {}", agent.log()?);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(agent)
    }

    fn log(&self) -> anyhow::Result<String> {
        Ok(fs::read_to_string(&self.log)?)
    }

    /// User and system time so far, from /proc/PID/stat.
    fn cpu_time(&self) -> anyhow::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = fields.get(11).zip(fields.get(12)).context("/proc/PID/stat is short")?;
        let ticks: u64 = ticks.0.parse::<u64>()? + ticks.1.parse::<u64>()?;
        // SAFETY: sysconf has no preconditions.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    }

    /// Ends it in good order.
    fn stop(&mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id())?;
        // SAFETY: our own child, not yet waited for.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the agent ended with {status}: {}", self.log()?);
        }
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
