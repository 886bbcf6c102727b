//! The cost of capture, as ratios in one run: a probed call compared with one whose probes do
//! nothing, an MPI job compared with the same without the agent, and a context switch of a task
//! that is not followed. Needs root; the MPI part needs Open MPI.
//!
//! `bench-capture calls`, `switches` or `mpi` measures that part alone. `bench-capture record
//! LIBRARY…` is the recorder of the first and the last part: in a process of its own, so that the
//! kernel's statistics of programs, which it switches on, are switched off with it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use node_bpf::measure::{EmptyProbes, Floor};
use node_bpf::{AttachMode, Capture, CaptureConfig, HostRecord, Record};
use scenarios::figures::figure;

const ROUNDS: usize = 7;
const BATCHES: usize = 5;
const CALLS: u32 = 5_000;
/// A call without probes takes a few nanoseconds: when it takes longer, another recorder probes the
/// same file.
const BARE_NS: f64 = 100.0;
/// Rounds of blocks without probes, with empty probes and with the agent, in one job: many short
/// ones, so that other work of the machine affects all alike.
const MPI_ROUNDS: usize = 16;
const MPI_RANKS: usize = 8;
/// Allreduces a second that the MPI job is tuned to, and how many a run makes.
const MPI_RATE: f64 = 1000.0;
const MPI_CALLS: u32 = 1500;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "record") {
        return record(arguments[1..].iter().map(PathBuf::from).collect());
    }
    if let Err(error) = node_bpf::supported() {
        bail!("nothing to measure: {error}");
    }
    let wanted = |part: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == part);
    let dir = tempfile::tempdir()?;
    compile(dir.path())?;
    let mut figures = vec![];
    if wanted("calls") {
        let of = calls(dir.path(), "nccl", "libnccl.so.2", "ncclAllReduce")?;
        figures.push(("collective_over_empty_probes", of.recorded, "ratio", 1.2));
        figures.push(("smallest_record_over_empty_probes", of.least, "ratio", 1.2));
        figures.push(("collective_over_smallest_record", of.recorded / of.least, "ratio", 1.2));
        let of = calls(dir.path(), "cuda", "libcudart.so.12", "cudaMemcpyAsync")?;
        figures.push(("cuda_call_over_empty_probes", of.recorded, "ratio", 1.2));
    }
    if wanted("switches") {
        figures.push(("switch_of_an_untracked_task", switches()?, "ns", 300.0));
    }
    if wanted("mpi") {
        match mpi(dir.path()) {
            Ok(slower) => {
                figures.push(("mpi_allreduce_loop_slower", slower.agent.0, "%", 0.5));
                figures.push(("mpi_allreduce_loop_interval", slower.agent.1, "%", 0.5));
                figures.push(("mpi_allreduce_loop_slower_by_empty_probes", slower.empty, "%", 0.5));
                figures.push(("mpi_allreduce_loop_slower_than_with_empty_probes", slower.over_empty, "%", 0.5));
                figures.push(("mpi_allreduce_loop_cpu_more", slower.cpu[0], "%", 0.5));
                figures.push(("mpi_allreduce_loop_cpu_more_by_empty_probes", slower.cpu[1], "%", 0.5));
            }
            Err(error) => eprintln!("no figure for MPI: {error:#}"),
        }
    }
    for (name, value, unit, aim) in figures {
        figure(name, value, unit, "<=", aim);
    }
    Ok(())
}

/// Records until its standard input ends, then prints runs and CPU time of every program.
fn record(libraries: Vec<PathBuf>) -> anyhow::Result<()> {
    let stats: Arc<Mutex<BTreeMap<String, f64>>> = Arc::default();
    let sink = Arc::clone(&stats);
    let config = CaptureConfig { libraries, system_libraries: false, ..CaptureConfig::default() };
    let capture = Capture::start(
        config,
        Box::new(move |record| {
            if let Record::Host(HostRecord::SelfStat(stat)) = record
                && let Ok(mut stats) = sink.lock()
            {
                stats.insert(stat.name, stat.value);
            }
        }),
    )?;
    println!("ready");
    std::io::stdin().read_to_string(&mut String::new())?;
    capture.stop();
    let stats = stats.lock().map_err(|_| anyhow::anyhow!("the sink panicked"))?;
    for (name, runs) in stats.iter().filter_map(|(name, n)| Some((name.strip_suffix(".runs")?, n))) {
        let cpu_ns = stats.get(&format!("{name}.cpu")).copied().unwrap_or(0.0);
        println!("{} {runs} {cpu_ns}", name.trim_start_matches("program."));
    }
    Ok(())
}

/// A process that answers each line with a line.
struct Talker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talker {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.with_context(|| format!("starting {command:?}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take().context("its output")?);
        Ok(Talker { child, input, output: BufReader::new(output) })
    }

    fn recorder(libraries: &[PathBuf]) -> anyhow::Result<Self> {
        let mut recorder = Talker::start(Command::new(std::env::current_exe()?).arg("record").args(libraries))?;
        ensure!(recorder.line()? == "ready", "the recorder did not start");
        Ok(recorder)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "the process ended");
        Ok(line.trim().to_owned())
    }

    fn ask(&mut self, line: &str) -> anyhow::Result<f64> {
        writeln!(self.input.as_mut().context("its input")?, "{line}")?;
        Ok(self.line()?.parse()?)
    }

    /// Closes its input; returns the rest of its output.
    fn end(mut self) -> anyhow::Result<String> {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest)?;
        self.child.wait()?;
        Ok(rest)
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill(); // gone already is as good
        let _ = self.child.wait();
    }
}

fn cc(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Compiles the libraries and the caller. The caller has them under names that no recorder knows,
/// so that other recorders on this machine leave them alone; ours gets the same files under the
/// known names.
fn compile(dir: &Path) -> anyhow::Result<()> {
    let workloads = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads");
    let called = ["called-1.so", "called-2.so"];
    for (name, (library, define)) in called.iter().zip([("libnccl.so.2", "-DNCCL"), ("libcudart.so.12", "-DCUDA")]) {
        let soname = format!("-Wl,-soname,{name}");
        cc(Command::new("cc")
            .args(["-O2", "-fPIC", "-shared", define, &soname, "-o"])
            .arg(dir.join(name))
            .arg(workloads.join("call-stubs.c")))?;
        std::fs::hard_link(dir.join(name), dir.join(library))?;
    }
    cc(Command::new("cc")
        .args(["-O2", "-Wl,-rpath,$ORIGIN", "-o"])
        .arg(dir.join("call-loop"))
        .arg(workloads.join("call-loop.c"))
        .args(called.map(|name| dir.join(name))))
}

/// The fastest of a few batches, in ns a call: interruptions of a batch are not the probes' cost.
fn per_call(caller: &mut Talker) -> anyhow::Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..BATCHES {
        best = best.min(caller.ask(&CALLS.to_string())? / f64::from(CALLS));
    }
    Ok(best)
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    let half = samples.len() / 2;
    if samples.len().is_multiple_of(2) { (samples[half - 1] + samples[half]) / 2.0 } else { samples[half] }
}

fn spread(samples: &[f64]) -> String {
    let (low, high) = samples.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), s| (l.min(*s), h.max(*s)));
    format!("{low:.3} to {high:.3}")
}

/// As [`per_call`], once no probes of other recorders are at the function.
fn undisturbed(caller: &mut Talker) -> anyhow::Result<f64> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let bare = per_call(caller)?;
        if bare <= BARE_NS || Instant::now() >= deadline {
            return Ok(bare);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The time that a probed call takes longer than a bare one, divided by the time that one with an
/// empty entry and return probe takes longer.
struct Longer {
    recorded: f64,
    /// With the smallest possible record: the floor.
    least: f64,
}

fn calls(dir: &Path, which: &str, library: &str, symbol: &str) -> anyhow::Result<Longer> {
    let path = dir.join(library);
    let mut caller = Talker::start(Command::new(dir.join("call-loop")).arg(which))?;
    let mut best = [f64::INFINITY; 5];
    let mut ratios = vec![];
    println!(
        "\n{symbol}, ns a call: bare, with an empty entry and return probe, with the quickest empty probes, with the \
         smallest record, recorded"
    );
    let mut programs = String::new();
    for round in 0..ROUNDS {
        let bare = undisturbed(&mut caller)?;
        let empty = |caller: &mut Talker, mode, floor| {
            let probes = EmptyProbes::attach(&path, symbol, mode, floor)?;
            let time = per_call(caller)?;
            ensure!(probes.without_room() == Some(0), "the smallest records found no room");
            anyhow::Ok(time)
        };
        let pair = empty(&mut caller, AttachMode::Single, Floor::Nothing)?;
        let mut best_kind = |floor| {
            let multi = empty(&mut caller, AttachMode::Multi, floor).ok();
            let session = empty(&mut caller, AttachMode::Session, floor).ok();
            let kinds = multi.into_iter().chain(session).min_by(f64::total_cmp);
            kinds.map_or_else(|| empty(&mut caller, AttachMode::Single, floor), Ok)
        };
        let (same, least) = (best_kind(Floor::Nothing)?, best_kind(Floor::Record)?);
        let recorder = Talker::recorder(std::slice::from_ref(&path))?;
        let recorded = per_call(&mut caller)?;
        programs = recorder.end()?;
        println!("  round {round}: {bare:.0}, {pair:.0}, {same:.0}, {least:.0}, {recorded:.0}");
        if bare > BARE_NS || per_call(&mut caller)? > BARE_NS {
            println!("    left out: somebody else probes this file, too");
            continue;
        }
        ratios.push((recorded - bare) / (pair - bare));
        for (best, time) in best.iter_mut().zip([bare, pair, same, least, recorded]) {
            *best = best.min(time);
        }
    }
    ensure!(!ratios.is_empty(), "every round was disturbed by another recorder: end it first");
    for line in programs.lines().filter(|line| line.starts_with("call_") || line.starts_with("cuda_")) {
        let numbers: Vec<f64> = line.split(' ').skip(1).filter_map(|n| n.parse().ok()).collect();
        if let [runs, cpu_ns] = numbers[..]
            && runs > 0.0
        {
            println!("  {}: {:.0} ns a run", line.split(' ').next().unwrap_or_default(), cpu_ns / runs);
        }
    }
    // The best of all rounds: other work on the machine only adds time.
    let [bare, pair, same, least, recorded] = best;
    let ratio = (recorded - bare) / (pair - bare);
    let least = (least - bare) / (pair - bare);
    println!("  over an empty uprobe and uretprobe: {ratio:.3} (rounds: {})", spread(&ratios));
    println!("  over the quickest empty probes: {:.3}", (recorded - bare) / (same - bare));
    println!("  the smallest record over an empty uprobe and uretprobe: {least:.3}");
    Ok(Longer { recorded: ratio, least })
}

/// The cost of `on_switch`, mostly for tasks that are not followed: two threads that wake each
/// other.
fn switches() -> anyhow::Result<f64> {
    let recorder = Talker::recorder(&[])?;
    let (there, back) = (std::sync::mpsc::sync_channel::<()>(0), std::sync::mpsc::sync_channel::<()>(0));
    let other = std::thread::spawn(move || while there.1.recv().is_ok() && back.0.send(()).is_ok() {});
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        there.0.send(())?;
        back.1.recv()?;
    }
    drop(there.0);
    let _ = other.join();
    let programs = recorder.end()?;
    let line =
        programs.lines().find_map(|line| line.strip_prefix("on_switch ")).context("on_switch was not measured")?;
    let numbers: Vec<f64> = line.split(' ').filter_map(|n| n.parse().ok()).collect();
    let [runs, cpu_ns] = numbers[..] else { bail!("unreadable: {line}") };
    println!("\nsched_switch: {runs} switches, {:.0} ns each", cpu_ns / runs);
    Ok(cpu_ns / runs)
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

/// The processes that run a program.
fn running(program: &Path) -> anyhow::Result<Vec<u32>> {
    let pids = std::fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(pids.filter(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)).collect())
}

/// An agent that records and stores, with default settings.
struct Agent {
    child: Child,
    binary: PathBuf,
    socket: PathBuf,
}

impl Agent {
    fn start(dir: &Path) -> anyhow::Result<Self> {
        let binary = std::env::current_exe()?.with_file_name("rankmesh");
        ensure!(binary.exists(), "{} is not built: make bench-capture builds both", binary.display());
        let socket = dir.join("agent.sock");
        let mut command = Command::new(&binary);
        command.args(["up", "--name", "bench", "--listen", "127.0.0.1:0", "--identity"]).arg(dir.join("identity"));
        command.arg("--store").arg(dir.join("trace.db")).arg("--socket").arg(&socket);
        let log = std::fs::File::create(dir.join("agent.log"))?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        let mut agent = Agent { child, binary, socket };
        let sql = format!("SELECT count(*) >= {MPI_RANKS} FROM processes WHERE exe LIKE '%mpi-loop'");
        let deadline = Instant::now() + Duration::from_secs(60);
        while agent.ask(&sql)? != Some(1) {
            ensure!(
                Instant::now() < deadline,
                "the agent did not find the job; see {}",
                dir.join("agent.log").display()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(agent)
    }

    /// Waits until it has done the work of its start (naming the kernel's functions, looking at
    /// every process).
    fn settled(self) -> Self {
        let deadline = Instant::now() + Duration::from_secs(10);
        let pause = Duration::from_millis(250);
        let mut before = self.cpu_seconds();
        while Instant::now() < deadline {
            std::thread::sleep(pause);
            let now = self.cpu_seconds();
            if let (Some(before), Some(now)) = (before, now)
                && now - before <= pause.as_secs_f64() * 0.1
            {
                break;
            }
            before = now;
        }
        self
    }

    fn cpu_seconds(&self) -> Option<f64> {
        cpu_seconds(self.child.id())
    }

    /// One number; none while it does not answer.
    fn ask(&mut self, sql: &str) -> anyhow::Result<Option<i64>> {
        ensure!(self.child.try_wait()?.is_none(), "the agent ended");
        let mut query = Command::new(&self.binary);
        query.args(["query", "--format", "csv", "--socket"]).arg(&self.socket).arg(sql);
        let output = query.stderr(Stdio::null()).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().nth(1).and_then(|line| line.trim().parse().ok()))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // SAFETY: a signal to a child that was not waited for; on SIGTERM it removes its probes.
        unsafe { libc::kill(self.child.id().cast_signed(), libc::SIGTERM) };
        let _ = self.child.wait();
    }
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
    let drawn = |_| median(&mut (0..samples.len()).map(|_| draw()).collect::<Vec<f64>>());
    let mut medians: Vec<f64> = (0..4000).map(drawn).collect();
    medians.sort_unstable_by(f64::total_cmp);
    (medians[100], medians[3899])
}

/// By how many per cent the MPI job takes longer: medians over the rounds.
struct Slower {
    /// With the agent than without; and the width of its confidence interval.
    agent: (f64, f64),
    /// With probes that do nothing than without.
    empty: f64,
    /// With the agent than with probes that do nothing.
    over_empty: f64,
    /// By how many per cent the job and the agent take more processor time for an allreduce:
    /// waiting ranks poll, and use up all that they get, so that this does not change with other
    /// work on the machine. With the agent, and with empty probes.
    cpu: [f64; 2],
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
fn mpi(dir: &Path) -> anyhow::Result<Slower> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/mpi-loop.c");
    cc(Command::new("mpicc").args(["-O2", "-o"]).arg(dir.join("mpi-loop")).arg(source))?;
    let library = libmpi()?;
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "--mca", "oob_tcp_if_include", "lo"]);
    command.args(["--mca", "btl", "self,vader,tcp", "-np", &MPI_RANKS.to_string()]).arg(dir.join("mpi-loop"));
    let mut job = Talker::start(command.stderr(Stdio::null()))?;
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
                Companion::Agent => running = Some(Agent::start(dir)?.settled()),
            }
            let of_ranks = || ranks.iter().map(|rank| cpu_seconds(*rank)).sum::<Option<f64>>();
            let of_agent = || running.as_ref().map_or(Some(0.0), Agent::cpu_seconds);
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
            drop((probes, running));
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
        let middle = median(samples);
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
        println!("  the agent's own threads: {:.2} % of a core", median(&mut cpu));
    }
    if agent.1 > 0.5 {
        println!("  that is too wide an interval to judge 0.5 % by: repeat it on a machine with nothing else to do");
    }
    Ok(Slower { agent, empty, over_empty, cpu: cpu_more })
}

/// An entry and a return probe that do nothing, attached as the recorder's are.
fn quickest_empty(library: &Path, symbol: &str) -> anyhow::Result<EmptyProbes> {
    let modes = [AttachMode::Session, AttachMode::Multi];
    let attach = |mode| EmptyProbes::attach(library, symbol, mode, Floor::Nothing);
    Ok(modes.into_iter().find_map(|mode| attach(mode).ok()).map_or_else(|| attach(AttachMode::Single), Ok)?)
}
