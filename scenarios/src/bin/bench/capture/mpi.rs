//! An MPI job with an agent, with probes that do nothing, and with neither.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use node_bpf::AttachMode;
use node_bpf::measure::{EmptyProbes, Floor};
use query_planner::Value;
use scenarios::agents::{self, Agent, Outcome};
use scenarios::jobs::mpirun;
use stats::median;

use super::line_process::LineProcess;
use super::{cc, spread};

/// Rounds of blocks without probes, with empty probes and with the agent, in one job: many short
/// ones, so that other work of the machine affects all alike.
const MPI_ROUNDS: usize = 16;
const MPI_RANKS: usize = 8;

/// Allreduces a second that the MPI job is tuned to, and how many a run makes.
const MPI_RATE: f64 = 1000.0;
const MPI_CALLS: u32 = 1500;

/// By how many per cent the MPI job takes longer: medians over the rounds.
pub(super) struct Slower {
    /// With the agent than without; and the width of its confidence interval.
    pub(super) agent: (f64, f64),
    /// With probes that do nothing than without.
    pub(super) empty: f64,
    /// With the agent than with probes that do nothing.
    pub(super) over_empty: f64,
    /// By how many per cent the job and the agent take more processor time for an allreduce:
    /// waiting ranks poll, and use up all that they get, so that this does not change with other
    /// work on the machine. With the agent, and with empty probes.
    pub(super) cpu: [f64; 2],
}

/// What runs alongside the MPI job in a block.
#[derive(Clone, Copy)]
enum Companion {
    Nothing,
    EmptyProbes,
    Agent,
}

/// Open MPI's library, as the dynamic loader finds it.
fn libmpi() -> anyhow::Result<PathBuf> {
    let output = Command::new("ldconfig").arg("-p").output().context("starting ldconfig")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.trim_start().starts_with("libmpi.so."));
    let path = line.and_then(|line| line.split(" => ").nth(1)).context("the loader's cache has no libmpi.so")?;
    Ok(std::fs::canonicalize(path)?)
}

/// In one job, in turns: without probes, with probes that do nothing, with an agent.
pub(super) fn mpi(dir: &Path) -> anyhow::Result<Slower> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/mpi-loop.c");
    cc(Command::new("mpicc").args(["-O2", "-o"]).arg(dir.join("mpi-loop")).arg(source))?;
    let library = libmpi()?;
    let script = format!("exec {}", dir.join("mpi-loop").display());
    let mut job = LineProcess::start(mpirun(MPI_RANKS, &script).stderr(Stdio::null()))?;
    let mut work_us = 50.0;
    for _ in 0..4 {
        // the least of several: other work on the machine only adds
        let mut each_us = f64::INFINITY;
        for _ in 0..4 {
            each_us = each_us.min(job.ask(&format!("300 {work_us:.0}"))? / 300e3);
        }
        let cores = std::thread::available_parallelism()?.get().min(MPI_RANKS) as f64;
        work_us = (work_us + (1e6 / MPI_RATE - each_us) * cores / MPI_RANKS as f64).max(20.0);
    }
    let order = format!("{MPI_CALLS} {work_us:.0}");
    println!(
        "\n{MPI_RANKS} ranks of Open MPI, {MPI_CALLS} MPI_Allreduce after {work_us:.0} us of work each; allreduces a second"
    );
    let (mut agent, mut empty, mut over_empty) = (vec![], vec![], vec![]);
    let mut cpu = vec![];
    let ranks = running(&std::fs::canonicalize(dir.join("mpi-loop"))?)?;
    ensure!(ranks.len() == MPI_RANKS, "{} ranks run", ranks.len());
    let (mut cpu_agent, mut cpu_empty) = (vec![], vec![]);
    for round in 0..MPI_ROUNDS {
        let mut block = |companion: Companion| {
            let (mut probes, mut running) = (None, None);
            match companion {
                Companion::Nothing => {}
                Companion::EmptyProbes => probes = Some(quickest_empty(&library, "MPI_Allreduce")?),
                Companion::Agent => running = Some(settled(dir)?),
            }
            let of_ranks = || ranks.iter().map(|rank| cpu_seconds(*rank)).sum::<Option<f64>>();
            let of_agent = || running.as_ref().map_or(Some(0.0), |agent| cpu_seconds(agent.pid()));
            let before = (of_ranks(), of_agent());
            let time = job.ask(&order)?;
            let (Some(ranks), Some(agent)) = (
                of_ranks().zip(before.0).map(|(after, before)| after - before),
                of_agent().zip(before.1).map(|(after, before)| after - before),
            ) else {
                bail!("/proc does not tell processor times");
            };
            if running.is_some() {
                cpu.push(agent / (time / 1e9) * 100.0);
            }
            drop(probes);
            // In good order: it removes its probes.
            running.map_or(Ok(()), Agent::stop)?;
            anyhow::Ok((time, ranks + agent))
        };
        let mut blocks = [(0.0, 0.0); 3];
        let mut arms = [(0, Companion::Nothing), (1, Companion::EmptyProbes), (2, Companion::Agent)];
        arms.rotate_left(round % 3);
        for (slot, companion) in arms {
            blocks[slot] = block(companion)?;
        }
        let [(off, off_cpu), (floor, floor_cpu), (on, on_cpu)] = blocks;
        cpu_agent.push((on_cpu / off_cpu - 1.0) * 100.0);
        cpu_empty.push((floor_cpu / off_cpu - 1.0) * 100.0);
        let rate = |ns: f64| f64::from(MPI_CALLS) * 1e9 / ns;
        println!("  round {round}: nothing {:.0}, empty probes {:.0}, agent {:.0}", rate(off), rate(floor), rate(on));
        agent.push((on / off - 1.0) * 100.0);
        empty.push((floor / off - 1.0) * 100.0);
        over_empty.push((on / floor - 1.0) * 100.0);
    }
    let summed_up = |what: &str, samples: &mut [f64]| {
        let middle = median(samples.iter().copied()).unwrap_or(f64::NAN);
        let (low, high) = interval(samples);
        println!("  {what}: slower by {middle:.3} % ({}), with 95 % confidence {low:.3} to {high:.3}", spread(samples));
        (middle, high - low)
    };
    let agent = summed_up("agent over nothing", &mut agent);
    let (empty, _) = summed_up("empty probes over nothing", &mut empty);
    let (over_empty, _) = summed_up("agent over empty probes", &mut over_empty);
    println!("  processor time of ranks and agent for an allreduce:");
    let cpu_more =
        [summed_up("agent over nothing", &mut cpu_agent).0, summed_up("empty probes over nothing", &mut cpu_empty).0];
    if !cpu.is_empty() {
        println!("  the agent's own threads: {:.2} % of a core", median(cpu.iter().copied()).unwrap_or(f64::NAN));
    }
    if agent.1 > 0.5 {
        println!("  that is too wide an interval to judge 0.5 % by: repeat it on a machine with nothing else to do");
    }
    Ok(Slower { agent, empty, over_empty, cpu: cpu_more })
}

/// The uncertainty of the median of such samples: 95 of 100 resamples, drawn with repetition, have
/// their median within.
fn interval(samples: &[f64]) -> (f64, f64) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64; // xorshift64: the same in every run
    let mut draw = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        samples[(random % samples.len() as u64) as usize]
    };
    let drawn = |_| median((0..samples.len()).map(|_| draw())).unwrap_or(f64::NAN);
    let mut medians: Vec<f64> = (0..4000).map(drawn).collect();
    medians.sort_unstable_by(f64::total_cmp);
    (medians[100], medians[3899])
}

/// An entry and a return probe that do nothing, attached as the recorder's are.
fn quickest_empty(library: &Path, symbol: &str) -> anyhow::Result<EmptyProbes> {
    let modes = [AttachMode::Session, AttachMode::Multi];
    let attach = |mode| EmptyProbes::attach(library, symbol, mode, Floor::Nothing);
    Ok(modes.into_iter().find_map(|mode| attach(mode).ok()).map_or_else(|| attach(AttachMode::Single), Ok)?)
}

/// The processes that run a program.
fn running(program: &Path) -> anyhow::Result<Vec<u32>> {
    let pids = std::fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(pids.filter(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)).collect())
}

/// Processor time of all threads of a process so far; none where /proc does not have it.
fn cpu_seconds(pid: u32) -> Option<f64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let of_thread = |path: PathBuf| -> Option<f64> {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        Some(text.split(' ').next()?.parse::<f64>().ok()? / 1e9)
    };
    Some(tasks.flatten().filter_map(|task| of_thread(task.path())).sum())
}

/// An agent that records and stores, with default settings, once it knows the job and has done the
/// work of its start (naming the kernel's functions, looking at every process).
fn settled(dir: &Path) -> anyhow::Result<Agent> {
    let mut command = agents::up("bench", dir)?;
    command.args(["--budget", "none", "--store"]).arg(dir.join("trace.db"));
    let agent = Agent::start("bench", dir, command)?;
    let sql = format!("SELECT count(*) >= {MPI_RANKS} FROM processes WHERE exe LIKE '%mpi-loop'");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !matches!(agent.ask(&sql, "10s")?.0, Outcome::Complete(rows) if rows == [[Value::Integer(1)]]) {
        ensure!(Instant::now() < deadline, "the agent did not find the job: {}", agent.log()?);
        std::thread::sleep(Duration::from_millis(100));
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    let pause = Duration::from_millis(250);
    let mut before = cpu_seconds(agent.pid());
    while Instant::now() < deadline {
        std::thread::sleep(pause);
        let now = cpu_seconds(agent.pid());
        if let (Some(before), Some(now)) = (before, now)
            && now - before <= pause.as_secs_f64() * 0.1
        {
            break;
        }
        before = now;
    }
    Ok(agent)
}
