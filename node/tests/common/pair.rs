//! A job of two ranks with a core each and an agent for each, and ways to hold one of the ranks up
//! from outside: another task on its core, SIGSTOP, a CPU quota, a throttled disk, a memory limit.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::jobs::{Cgroups, Job, mpirun};
use super::{Lab, stderr, wait_for};

pub const AGENTS: [&str; 2] = ["p1", "p2"];
pub const RANKS: usize = 2;

/// Jobs use the cores one after the other: the ranks of two at once would take them from each
/// other.
static CORES: Mutex<()> = Mutex::new(());

/// The core that a rank is bound to.
pub fn core_of(rank: usize) -> usize {
    rank % std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// A running job.
pub struct Pair {
    /// Ends before the cgroups that hold its ranks are removed.
    job: Option<Job>,
    pub lab: Lab,
    cgroups: Cgroups,
    _cores: MutexGuard<'static, ()>,
}

impl Pair {
    pub fn new(test: &str) -> Self {
        let cores = CORES.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lab = Lab::new();
        let cgroups = Cgroups::new(test, &AGENTS);
        super::jobs::start_agents(&mut lab, &cgroups, &AGENTS);
        Self { job: None, lab, cgroups, _cores: cores }
    }

    pub fn dir(&self) -> PathBuf {
        self.lab.dir.path().to_owned()
    }

    /// Starts a program in place of the one before, in the lab's directory.
    pub fn start(&mut self, program: &str) {
        self.stop();
        let (dir, top) = (self.dir(), self.cgroups.0[0].display());
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let script = format!(
            "r=$OMPI_COMM_WORLD_RANK; cd {}; echo $$ > pid.$r; echo $$ > {top}/p$((r + 1))/cgroup.procs; \
             exec taskset -c $((r % {cores})) {program}",
            dir.display(),
        );
        let mut command = mpirun(RANKS, &script);
        let log = std::fs::File::create(dir.join("job.log")).expect("a file");
        command.stdout(log.try_clone().expect("a file")).stderr(log);
        self.job = Some(Job(command.spawn().expect("mpirun starts")));
        for rank in 0..RANKS {
            wait_for("the rank starts", || self.pid(rank).ok_or_else(|| "no pid".to_owned()));
        }
    }

    /// Ends the job, and waits until no rank of it is left.
    pub fn stop(&mut self) {
        let Some(job) = self.job.take() else { return };
        for cgroup in &self.cgroups.0[1..] {
            let _ = std::fs::write(cgroup.join("cgroup.kill"), "1");
        }
        drop(job);
        for rank in 0..RANKS {
            let _ = std::fs::remove_file(self.dir().join(format!("pid.{rank}")));
        }
    }

    pub fn pid(&self, rank: usize) -> Option<i32> {
        std::fs::read_to_string(self.dir().join(format!("pid.{rank}"))).ok()?.trim().parse().ok()
    }

    /// The answer of a command on the standing verdict, as JSON.
    pub fn ask(&self, command: &str, more: &[&str]) -> Result<Value, String> {
        let output = self.lab.ask(AGENTS[0], command, &[&["--format", "json"], more].concat());
        if !matches!(output.status.code(), Some(0 | 3)) {
            return Err(stderr(&output));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    }

    pub fn verdict(&self) -> Result<Value, String> {
        self.ask("stragglers", &[])
    }
}

/// Ways to hold a rank up from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A task of this name takes its core.
    Hog(&'static str),
    /// Stopped for 30 of 100 ms.
    Stop,
    /// Half of a core, in periods of 50 ms.
    Quota,
    /// Reads of the disk at 2 MiB a second.
    Reads,
    /// Writes to the disk at 2 MiB a second.
    Writes,
    /// So many MiB of memory from now on.
    Memory(u64),
}

/// Holds a rank up until it is dropped.
pub struct Held {
    tasks: Vec<Child>,
    cgroups: Vec<Cgroups>,
    stops: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    pid: i32,
}

impl Held {
    /// An error where this machine has no means for it. `files` are on the slow disk.
    pub fn hold(pair: &Pair, rank: usize, by: &[Holds]) -> Result<Self, String> {
        let pid = pair.pid(rank).ok_or("the rank is gone")?;
        let mut injected = Self { tasks: Vec::new(), cgroups: Vec::new(), stops: None, pid };
        for by in by {
            injected.add(&pair.dir(), rank, *by)?;
        }
        Ok(injected)
    }

    fn add(&mut self, dir: &Path, rank: usize, by: Holds) -> Result<(), String> {
        let cgroup = match by {
            Holds::Hog(name) => {
                let hog = dir.join(name);
                std::fs::copy("/bin/sh", &hog).map_err(|error| error.to_string())?;
                let mut command = Command::new("taskset");
                command.args(["-c", &core_of(rank).to_string()]).arg(hog).args(["-c", "while :; do :; done"]);
                self.tasks.push(command.spawn().map_err(|error| error.to_string())?);
                return Ok(());
            }
            Holds::Stop => {
                let goes_on = Arc::new(AtomicBool::new(true));
                let (flag, pid) = (Arc::clone(&goes_on), self.pid);
                let thread = std::thread::spawn(move || {
                    while flag.load(Ordering::Relaxed) {
                        let _ = kill(Pid::from_raw(pid), Signal::SIGSTOP);
                        std::thread::sleep(Duration::from_millis(30));
                        let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
                        std::thread::sleep(Duration::from_millis(70));
                    }
                });
                self.stops = Some((goes_on, thread));
                return Ok(());
            }
            Holds::Quota => super::jobs::cpu_quota(Duration::from_millis(50), Duration::from_millis(25))?,
            Holds::Reads => super::jobs::disk_throttle("read", dir, 2 << 20)?,
            Holds::Writes => super::jobs::disk_throttle("write", dir, 2 << 20)?,
            Holds::Memory(mib) => super::jobs::memory_limit(mib << 20)?,
        };
        std::fs::write(cgroup.0[0].join("cgroup.procs"), self.pid.to_string()).map_err(|error| error.to_string())?;
        self.cgroups.push(cgroup);
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for task in &mut self.tasks {
            let _ = task.kill();
            let _ = task.wait();
        }
        if let Some((goes_on, thread)) = self.stops.take() {
            goes_on.store(false, Ordering::Relaxed);
            let _ = thread.join();
        }
        // Whatever is in it, such as the rank's children, goes to the root.
        for cgroup in &self.cgroups {
            let root = cgroup.0[0].parent().map(|root| root.join("cgroup.procs"));
            let members = std::fs::read_to_string(cgroup.0[0].join("cgroup.procs")).unwrap_or_default();
            for (pid, root) in members.lines().zip(root.iter().cycle()) {
                let _ = std::fs::write(root, pid);
            }
        }
    }
}

/// Whether a task that takes the named rank's CPU is a cause.
pub fn is_stolen(answer: &Value) -> bool {
    answer["cause"]["named"].as_array().is_some_and(|named| named.contains(&"cpu_stolen".into()))
}

/// If other work uses the cores, ranks that are bound to them are held up by it, and it cannot be
/// known which rank is held up most. Job, injection and agents make a load of about four.
pub fn busy() -> Option<String> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse::<f64>().ok()?;
    (load > 5.0).then(|| format!("this machine has other work (load {load})"))
}
