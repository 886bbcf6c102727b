//! Starting, watching and stopping capture. Two threads: one reads the ring buffer and makes records of what it holds,
//! the other owns the BPF object, discovers libraries and counts losses. Both deliver to one sink.

mod reader;
mod watcher;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::attach::AttachMode;
use crate::cgroup::Cgroup;
use crate::classes::{self, CLASSES, ClassStatus, ProbeClass};
use crate::clock::{self, Clock};
use crate::decode;
use crate::discovery::{AttachedFile, Discovery};
use crate::error::Error;
use crate::groups::Groups;
use crate::late::LateComms;
use crate::loader::{self, Loaded, ProbeStatus};
use crate::open_calls::OpenCalls;
use crate::process::{Process, Processes};
use crate::self_stats::SelfStats;
use crate::shedding::{Backlog, Shedding};
use crate::signals::faults;
use crate::signals::kernel_names;
use crate::symbol_probes::ProbeSpec;
use crate::tally::registry::Registry;
use crate::tally::{RowRule, Tallies};
use crate::wire::{self, RawInFlight};
use record::{Collective, DeviceWait, LossCount, Record};

/// What to capture, and how.
#[derive(Debug, Clone)]
pub struct CaptureConfig {
    /// Capture only the tasks of this cgroup v2 directory and its descendants.
    pub cgroup: Option<PathBuf>,
    /// Libraries to probe before anybody has them mapped, so that not even the first call of the first process is
    /// missed. All others are found while they run.
    pub libraries: Vec<PathBuf>,
    /// Probe those in the dynamic loader's cache ahead, too.
    pub system_libraries: bool,
    /// Size of the ring buffer between kernel and reader; rounded up to a power of two.
    pub ring_bytes: u32,
    /// Record off-CPU stretches of followed processes.
    pub offcpu: bool,
    /// Shorter stretches are not recorded (nor summed).
    pub offcpu_min: Duration,
    /// Record TCP retransmits and resets.
    pub tcp: bool,
    /// Record block requests of followed processes.
    pub block: bool,
    /// Shorter requests, queueing included, are not recorded (nor summed).
    pub block_min: Duration,
    /// Record major faults, reclaim and kills for want of memory of followed processes.
    pub memory: bool,
    /// Count CUDA and HIP calls.
    pub cuda: bool,
    /// Record asynchronous events of InfiniBand and RoCE devices.
    pub fabric_events: bool,
    /// Functions and USDT points to probe besides.
    pub probes: Vec<ProbeSpec>,
    /// How often running processes are checked for newly loaded libraries.
    pub rescan: Duration,
    /// How full the queue behind the sink is: when it fills up, less is recorded.
    pub backlog: Backlog,
    /// Record nobody's processes but this user's. Without root's rights that is so whatever stands here, for the user that
    /// this process runs as: see [`privileges::only_user`](crate::privileges::only_user).
    pub only_user: Option<u32>,
    /// The way of attaching; none takes the best the kernel supports.
    pub attach_mode: Option<AttachMode>,
}

impl Default for CaptureConfig {
    fn default() -> Self {
        CaptureConfig {
            cgroup: None,
            libraries: vec![],
            system_libraries: true,
            ring_bytes: 4 << 20,
            offcpu: true,
            offcpu_min: Duration::from_millis(1),
            tcp: true,
            block: true,
            block_min: Duration::from_millis(1),
            memory: true,
            cuda: true,
            fabric_events: true,
            probes: vec![],
            rescan: Duration::from_secs(1),
            backlog: Backlog::default(),
            only_user: None,
            attach_mode: None,
        }
    }
}

/// What capture is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureStatus {
    /// How calls are probed.
    pub mode: AttachMode,
    /// The only user whose processes are recorded; none: everybody's are.
    pub only_user: Option<u32>,
    /// The library files probed.
    pub files: Vec<AttachedFile>,
    /// Every probe's hits and losses since the start, as of the last second.
    pub probes: Vec<ProbeStatus>,
    /// Processes followed now.
    pub processes: usize,
    /// From when on counted calls (CUDA, HIP) become rows of their own.
    pub rows: Vec<RowRule>,
    /// What could not be probed, and why.
    pub problems: Vec<String>,
    /// Which classes of things are recorded, and why others are not.
    pub classes: Vec<ClassStatus>,
}

/// Running capture. Stops, and takes every probe away, when dropped.
#[derive(Debug)]
pub struct Capture {
    shared: Arc<Shared>,
    wake: Sender<Wake>,
    threads: Vec<JoinHandle<()>>,
    open_calls: Arc<OpenCalls>,
    waiting: MapHandle,
}

/// Whether this host and this process can capture; the error says what is missing and what to do.
pub fn supported() -> Result<(), Error> {
    loader::check_host()
}

/// Takes what capture can do without, but only privileges give: the names of kernel functions, on some kernels the events of major faults. To be called before a
/// process gives its privileges up; what is refused is left out.
pub fn prepare() {
    kernel_names::open_ahead();
    faults::open_ahead();
}

/// Where records go.
type Sink = Box<dyn FnMut(Record) + Send>;

/// What both threads use.
pub(crate) struct Shared {
    sink: Mutex<Sink>,
    pub(crate) processes: Processes,
    clock: Clock,
    pub(crate) late: LateComms,
    /// The functions whose calls are counted.
    pub(crate) counted: Arc<Registry>,
    /// Calls whose group has not ended.
    groups: Mutex<Groups>,
    status: Mutex<CaptureStatus>,
    /// Rows of off-CPU stretches and block requests so far.
    rows: AtomicU64,
    /// The probes are gone: what is in the ring now is all there will be.
    detached: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn deliver(&self, record: Record) {
        (self.sink.lock().unwrap_or_else(PoisonError::into_inner))(record);
    }

    /// The process of a record; announced to the sink before its first record.
    fn process(&self, pid: u32) -> Option<Arc<Process>> {
        self.announced(self.processes.of_record(pid))
    }

    fn announced(&self, found: Option<(Arc<Process>, bool)>) -> Option<Arc<Process>> {
        let (process, new) = found?;
        if new {
            self.deliver(Record::Process(process.seen.clone()));
        }
        Some(process)
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands on the calls of a process's groups that have not ended, as they were made.
    fn release_groups(&self, pid: u32) {
        let left = self.groups().release(pid);
        left.into_iter().for_each(|call| self.deliver(Record::Collective(call)));
    }

    fn status(&self) -> MutexGuard<'_, CaptureStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn attached(&self, file: AttachedFile) {
        self.status().files.push(file);
    }

    /// The classes that are on.
    pub(crate) fn classes_on(&self) -> Vec<&'static ProbeClass> {
        let status = self.status();
        CLASSES.iter().filter(|class| classes::is_on(&status.classes, class.name)).collect()
    }

    /// A class could not be attached.
    pub(crate) fn class_off(&self, name: &'static str, why: String, remedy: String) {
        tracing::warn!("not recorded: {name}: {why}; {remedy}");
        classes::turn_off(&mut self.status().classes, name, why, remedy);
    }

    pub(crate) fn problem(&self, problem: String) {
        tracing::warn!("{problem}");
        self.status().problems.push(problem);
    }
}

#[derive(Debug)]
enum Wake {
    Exec(u32),
    Exit(u32),
    Stop,
}

impl Capture {
    /// Starts capturing. When it returns, the configured libraries and those of all running processes are probed.
    ///
    /// `sink` gets every record, from two threads, one at a time; it should hand on and return.
    ///
    /// # Errors
    /// What the host lacks, or what is wrong with the configured cgroup or libraries.
    pub fn start(config: CaptureConfig, sink: Sink) -> Result<Capture, Error> {
        let cgroup = config.cgroup.as_deref().map(Cgroup::open).transpose()?;
        let Loaded { object, mode, classes, only_user } = loader::load(&config, cgroup.as_ref())?;
        let failed = |error: libbpf_rs::Error| Error::Load { reason: error.to_string() };
        let events = loader::map(&object, "events").map_err(failed)?;
        let stats = loader::map(&object, "stats").map_err(failed)?;
        let host_stats = loader::map(&object, "host_stats").map_err(failed)?;
        let tuning = loader::map(&object, ".data.tuning").map_err(failed)?;
        let programs = loader::map(&object, "program_times").map_err(failed)?;
        let open_calls = Arc::new(OpenCalls::attach(&object).map_err(failed)?);
        let waiting = loader::map(&object, "waiting").map_err(failed)?;
        let late = LateComms::new(loader::map(&object, "learnt").map_err(failed)?);
        let shared = Arc::new(Shared {
            sink: Mutex::new(sink),
            processes: Processes::new(),
            clock: Clock::measure(),
            late,
            counted: Arc::default(),
            groups: Mutex::default(),
            status: Mutex::new(CaptureStatus {
                mode,
                only_user,
                files: vec![],
                probes: vec![],
                rows: vec![],
                processes: 0,
                problems: vec![],
                classes,
            }),
            rows: AtomicU64::new(0),
            detached: AtomicBool::new(false),
        });
        let tallies = Tallies::new(&object, Arc::clone(&shared.counted), shared.clock.now_unix_ns()).map_err(failed)?;
        let mut discovery = Discovery::new(object, mode, Arc::clone(&shared), (cgroup, only_user), config.probes)?;
        for path in &config.libraries {
            discovery.attach_ahead(path)?;
        }
        if config.system_libraries {
            discovery.attach_system_libraries();
        }
        discovery.attach_probes_ahead()?;
        discovery.rescan();
        discovery.check_probes()?;

        let (wake, woken) = mpsc::channel();
        let mut capture = Capture { shared, wake, threads: vec![], open_calls, waiting };
        capture.spawn("capture-ring", {
            let (shared, wake) = (Arc::clone(&capture.shared), capture.wake.clone());
            move || reader::read_ring(&events, shared, wake)
        })?;
        capture.spawn("capture-find", {
            let (shared, open_calls) = (Arc::clone(&capture.shared), Arc::clone(&capture.open_calls));
            move || {
                watcher::Watcher {
                    open_calls,
                    discovery,
                    stats,
                    host_stats,
                    programs,
                    tallies,
                    counted: vec![],
                    tuning,
                    shedding: Shedding::new(config.offcpu_min, config.block_min),
                    backlog: config.backlog,
                    rows: 0,
                    shed_at: Instant::now(),
                    self_stats: SelfStats::default(),
                    shared,
                }
                .run(&woken, config.rescan)
            }
        })?;
        Ok(capture)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
        self.threads.push(spawned.map_err(|source| Error::Os { doing: "starting a capture thread", source })?);
        Ok(())
    }

    /// What is probed and what was lost.
    pub fn status(&self) -> CaptureStatus {
        let mut status = self.shared.status().clone();
        status.processes = self.shared.processes.pids().len();
        status
    }

    /// The calls that have begun and not returned, each with its duration so far and `ret` 0: what ranks wait in now.
    pub fn in_flight(&self) -> Vec<Collective> {
        let now_ns = clock::kernel_now_ns();
        let mut calls = vec![];
        for RawInFlight { group_end, mut call } in self.open_calls.read(now_ns) {
            if group_end {
                calls.extend(self.shared.groups().of((call.pid, call.tid), self.shared.clock.unix_ns(now_ns)));
                continue;
            }
            let process = self.shared.processes.known(call.pid);
            if let Some(handle) = decode::communicator(&call) {
                self.shared.late.complete(&mut call, handle);
            }
            calls.extend(decode::call(&call, &self.shared.clock, process.as_ref()));
        }
        calls
    }

    /// The threads that wait for their device after a collective, in any of the calls that do: what was enqueued before
    /// need not be over.
    pub fn device_waits(&self) -> Vec<DeviceWait> {
        let waits = self.waiting.keys().filter_map(|key| {
            let value = self.waiting.lookup(&key, MapFlags::ANY).ok()??; // one that ends meanwhile is not among them
            wire::waiting(&key, &value)
        });
        // each once: the kernel's walk begins anew where the entry is gone that it stood at
        let waits: BTreeMap<u64, u64> = waits.collect();
        let told = waits.into_iter().map(|(thread, since_ns)| {
            let (pid, tid) = ((thread >> 32) as u32, thread as u32);
            let rank = self.shared.processes.known(pid).and_then(|process| process.seen.rank);
            DeviceWait { ts_ns: self.shared.clock.unix_ns(since_ns), pid, tid, rank }
        });
        told.collect()
    }

    /// Takes the probes away, delivers what is still in the ring buffer and the last losses, and ends the threads.
    pub fn stop(self) {}
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.wake.send(Wake::Stop).is_err() {
            self.shared.detached.store(true, Ordering::Release); // its thread has died, and the probes with it
        }
        for thread in self.threads.drain(..).rev() {
            let _ = thread.join(); // a panic in it was reported when it happened
        }
    }
}

fn loss(ts_ns: i64, probe: &str, reason: &str, lost: u64) -> Record {
    Record::Loss(LossCount { ts_ns, probe: probe.to_owned(), reason: reason.to_owned(), lost })
}
