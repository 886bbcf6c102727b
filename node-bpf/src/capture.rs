//! Starting, watching and stopping capture. Two threads: one reads the ring buffer and makes records of what it holds,
//! the other owns the BPF object, discovers libraries and counts losses. Both deliver to one sink.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
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
use crate::process::{Process, Processes, runs};
use crate::record::{Collective, DeviceWait, LossCount, Record};
use crate::ring::Ring;
use crate::self_stats::SelfStats;
use crate::shedding::{Backlog, Second, Shedding};
use crate::signals::decode as signals;
use crate::signals::faults;
use crate::signals::kernel_names;
use crate::signals::record::HostRecord;
use crate::signals::wire::RawHost;
use crate::sockets::Sockets;
use crate::symbol_probes::ProbeSpec;
use crate::tally::registry::Registry;
use crate::tally::wire::RawRow;
use crate::tally::{self, RowRule, Tallies};
use crate::wire::{self, RawInFlight, RawOffCpu, RawRecord};

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
            move || read_ring(&events, shared, wake)
        })?;
        capture.spawn("capture-find", {
            let (shared, open_calls) = (Arc::clone(&capture.shared), Arc::clone(&capture.open_calls));
            move || {
                Watcher {
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

/// The reader looks this often; the kernel wakes it earlier only when the ring fills up. Each look takes the CPU from a rank
/// where ranks use all of them. Who waits for records to have come (the standing verdict's `LAG`) waits longer than this.
const RING_INTERVAL: Duration = Duration::from_millis(50);

fn read_ring(events: &MapHandle, shared: Arc<Shared>, wake: Sender<Wake>) {
    let mut reader = Reader {
        shared: Arc::clone(&shared),
        wake,
        sockets: Sockets::default(),
        parents: HashMap::new(),
        waits: vec![],
        leaving: vec![],
        unparsed: 0,
    };
    let mut ring = match Ring::open(events) {
        Ok(ring) => ring,
        Err(error) => {
            shared.problem(format!("cannot read the ring buffer: {error}"));
            return;
        }
    };
    loop {
        let last = shared.detached.load(Ordering::Acquire);
        if !last {
            ring.wait(RING_INTERVAL);
        }
        let mut all = ring.consume(|bytes| reader.take(bytes)); // also records that woke nobody
        let until = Instant::now() + MOST_OF_A_RECORD;
        while last && !all && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
            all = ring.consume(|bytes| reader.take(bytes));
        }
        if last && !all {
            shared.problem("a record was not finished when capture ended: what came after it is not stored".to_owned());
        }
        reader.deliver_waits(last);
        reader.release_groups();
        if last {
            let left = shared.groups().release_all();
            left.into_iter().for_each(|call| shared.deliver(Record::Collective(call)));
            return;
        }
    }
}

/// A program that was about to write a record when its probe was taken away does so when its CPU lets it: a rank that has used up
/// its share, or a virtual CPU that does not run, keeps it waiting.
const MOST_OF_A_RECORD: Duration = Duration::from_secs(10);

/// So long after a process's end one of its threads may be heard of: they end at once, and its end is told by the first that sees
/// no other running.
const LAST_THREADS: Duration = Duration::from_secs(1);

/// Most processes whose parents are remembered.
const MOST_PARENTS: usize = 16_384;

struct Reader {
    /// Who started the processes that followed ones start.
    parents: HashMap<u32, u32>,
    shared: Arc<Shared>,
    wake: Sender<Wake>,
    sockets: Sockets,
    /// Stretches off the CPU that wait for the names of kernel functions: who they are of is looked at meanwhile.
    waits: Vec<(RawOffCpu, Option<Arc<Process>>)>,
    /// Processes that have ended, whose groups' calls are still held.
    leaving: Vec<(Instant, u32)>,
    unparsed: u64,
}

/// Most stretches that are held back for names.
const MOST_WAITS: usize = 65_536;

impl Reader {
    /// Delivers what was held back, when the names are there or there is no more time.
    fn deliver_waits(&mut self, last: bool) {
        if self.waits.is_empty() || (kernel_names::are_being_read() && !last && self.waits.len() < MOST_WAITS) {
            return;
        }
        for (raw, process) in std::mem::take(&mut self.waits) {
            let names = &kernel_names::KERNEL_NAMES;
            let record = decode::off_cpu(&raw, &self.shared.clock, process.as_ref(), names);
            self.shared.rows.fetch_add(1, Ordering::Relaxed);
            self.shared.deliver(Record::OffCpu(record));
        }
    }

    /// Hands on what ended processes called in groups that have not ended: nobody will say how.
    fn release_groups(&mut self) {
        let due = self.leaving.extract_if(.., |(since, _)| since.elapsed() >= LAST_THREADS);
        due.for_each(|(_, pid)| self.shared.release_groups(pid));
    }

    fn take(&mut self, bytes: &[u8]) {
        let shared = Arc::clone(&self.shared);
        if let Some(row) = RawRow::parse(bytes) {
            let process = self.process(row.pid);
            if let Some(record) = tally::row(&row, &shared.counted, &shared.clock, process.as_ref()) {
                return shared.deliver(record);
            }
        }
        let record = match wire::parse(bytes) {
            Some(RawRecord::Call(mut raw)) => {
                if let Some(handle) = decode::communicator(&raw) {
                    shared.late.complete(&mut raw, handle);
                }
                if decode::is_group_end(&raw) {
                    let end_ns = shared.clock.unix_ns(raw.exit_ns);
                    let calls = shared.groups().end((raw.pid, raw.tid), end_ns, decode::returned(&raw));
                    return calls.into_iter().for_each(|call| shared.deliver(Record::Collective(call)));
                }
                let process = self.process(raw.pid);
                let mut call = decode::call(&raw, &shared.clock, process.as_ref());
                let waits_for_group = raw.flags & wire::IN_GROUP != 0 && decode::returned(&raw).is_some();
                if waits_for_group && let Some(grouped) = call {
                    call = shared.groups().hold(grouped);
                    if call.is_none() {
                        return;
                    }
                }
                call.map(Record::Collective)
            }
            Some(RawRecord::OffCpu(raw)) => {
                let process = self.process(raw.pid);
                if kernel_names::are_being_read() {
                    self.waits.push((raw, process));
                    return;
                }
                Some(Record::OffCpu(decode::off_cpu(
                    &raw,
                    &shared.clock,
                    process.as_ref(),
                    &kernel_names::KERNEL_NAMES,
                )))
            }
            Some(RawRecord::Tcp(raw)) => {
                let owner = self.sockets.owner(raw.socket_inode, || shared.processes.pids());
                let owner = owner.and_then(|pid| shared.processes.known(pid));
                Some(Record::Net(decode::tcp(&raw, &shared.clock, owner.as_ref())))
            }
            Some(RawRecord::Host(raw)) => self.host(&raw).map(Record::Host),
            Some(RawRecord::Verbs(raw)) => {
                let rank = self.rank(raw.pid);
                Some(Record::Net(raw.record(&shared.clock, rank)))
            }
            Some(RawRecord::Exec { pid, ts_ns }) => {
                shared.processes.exec(pid, ts_ns);
                shared.late.forget(pid);
                shared.release_groups(pid);
                let _ = self.wake.send(Wake::Exec(pid)); // the other side ends only with capture
                return;
            }
            Some(RawRecord::Found { pid }) => {
                shared.processes.is_same(pid); // the end of one that had this pid before may have been lost
                if let Some(process) = shared.announced(shared.processes.look(pid)) {
                    process.mpi(); // a short-lived process may be gone when its first call is decoded
                }
                return;
            }
            Some(RawRecord::Exit { pid }) => {
                self.parents.remove(&pid);
                shared.processes.forget(pid);
                shared.late.forget(pid);
                self.leaving.push((Instant::now(), pid));
                let _ = self.wake.send(Wake::Exit(pid));
                return;
            }
            None => None,
        };
        if matches!(record, Some(Record::OffCpu(_) | Record::Host(HostRecord::Block(_)))) {
            shared.rows.fetch_add(1, Ordering::Relaxed);
        }
        match record {
            Some(record) => shared.deliver(record),
            None => {
                self.unparsed += 1;
                let ts_ns = shared.clock.now_unix_ns();
                shared.deliver(loss(ts_ns, "ring", "parse", 1));
            }
        }
    }

    fn host(&mut self, raw: &RawHost) -> Option<HostRecord> {
        let shared = Arc::clone(&self.shared);
        let clock = &shared.clock;
        Some(match raw {
            RawHost::Block(raw) => HostRecord::Block(signals::block(raw, clock, self.rank(raw.pid))),
            RawHost::Memory(raw) => HostRecord::Memory(signals::memory(raw, clock, self.rank(raw.pid))?),
            RawHost::Life(raw) => {
                if raw.is_beginning() {
                    shared.processes.begins(raw.pid);
                }
                if self.parents.len() < MOST_PARENTS {
                    self.parents.insert(raw.pid, raw.parent);
                }
                // Not looked up in /proc: what only begins and ends is no process to follow.
                HostRecord::Life(signals::life(raw, clock, self.known_rank(raw.pid))?)
            }
        })
    }

    /// The rank of a process with something to tell.
    fn rank(&self, pid: u32) -> Option<i32> {
        // one that is gone already, or is just being killed, has no environment to be read
        self.process(pid).and_then(|process| process.seen.rank).or_else(|| self.known_rank(pid))
    }

    /// The rank of a process as far as it is known: its own, else that of the one that started it.
    fn known_rank(&self, pid: u32) -> Option<i32> {
        let line = std::iter::successors(Some(pid), |pid| self.parents.get(pid).copied()).take(8);
        line.filter_map(|pid| self.shared.processes.known(pid)?.seen.rank).next()
    }

    fn process(&self, pid: u32) -> Option<Arc<Process>> {
        self.shared.process(pid)
    }
}

fn loss(ts_ns: i64, probe: &str, reason: &str, lost: u64) -> Record {
    Record::Loss(LossCount { ts_ns, probe: probe.to_owned(), reason: reason.to_owned(), lost })
}

/// The thread that owns the probes.
struct Watcher {
    discovery: Discovery,
    open_calls: Arc<OpenCalls>,
    stats: MapHandle,
    host_stats: MapHandle,
    programs: MapHandle,
    tallies: Tallies,
    /// The counters as of the last count.
    counted: Vec<ProbeStatus>,
    /// The map of thresholds, what turns them, and by what.
    tuning: MapHandle,
    shedding: Shedding,
    backlog: Backlog,
    /// [`Shared::rows`] as of the last count, and when that was.
    rows: u64,
    shed_at: Instant,
    self_stats: SelfStats,
    shared: Arc<Shared>,
}

const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// How often capture says what it costs.
const SELF_INTERVAL: Duration = Duration::from_secs(10);
/// How often it looks for processes whose end nobody told.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

impl Watcher {
    fn run(mut self, woken: &Receiver<Wake>, rescan: Duration) {
        let (mut next_rescan, mut next_count) = (Instant::now() + rescan, Instant::now());
        let mut next_self = Instant::now();
        let mut next_sweep = Instant::now() + SWEEP_INTERVAL;
        loop {
            let due = self.discovery.next_due().into_iter().chain([next_rescan, next_count]).min();
            let wait = due.map_or(rescan, |due| due.saturating_duration_since(Instant::now()));
            match woken.recv_timeout(wait) {
                Ok(Wake::Exec(pid)) => self.discovery.on_exec(pid),
                Ok(Wake::Exit(pid)) => self.discovery.on_exit(pid),
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.discovery.look_at_new();
            let now = Instant::now();
            if now >= next_rescan {
                self.discovery.rescan();
                next_rescan = now + rescan;
            }
            if now >= next_sweep {
                self.sweep();
                next_sweep = Instant::now() + SWEEP_INTERVAL;
            }
            if now >= next_count {
                self.count();
                self.shared.clock.refresh();
                // from here on, not from before: counting takes a while under load
                next_count = Instant::now() + self.until_next_second();
                if now >= next_self {
                    self.observe_self();
                    next_self = now + SELF_INTERVAL;
                }
            }
        }
        self.discovery.detach();
        self.count();
        self.observe_self();
        let open = self.open_calls.read(clock::kernel_now_ns());
        let in_flight = open.iter().filter(|open| !open.group_end).count() as u64;
        if in_flight > 0 {
            self.shared.deliver(loss(self.shared.clock.now_unix_ns(), "calls", "in_flight", in_flight));
        }
        self.shared.detached.store(true, Ordering::Release);
    }

    /// Forgets processes whose end was not told.
    fn sweep(&mut self) {
        for pid in self.discovery.sweep() {
            self.shared.processes.forget(pid);
            self.shared.late.forget(pid);
            self.shared.release_groups(pid);
        }
    }

    /// Counting begins with the seconds of the clock, as the rollups do; at least half a second apart.
    fn until_next_second(&self) -> Duration {
        let into_ns = self.shared.clock.now_unix_ns().rem_euclid(1_000_000_000).unsigned_abs();
        let left = COUNT_INTERVAL.saturating_sub(Duration::from_nanos(into_ns));
        if left < COUNT_INTERVAL / 2 { left + COUNT_INTERVAL } else { left }
    }

    /// Delivers what capture costs.
    fn observe_self(&mut self) {
        let ts_ns = self.shared.clock.now_unix_ns();
        let processes = self.shared.processes.pids().len();
        let tuning = self.shedding.tuning();
        let rules = self.shared.status().rows.clone();
        for stat in self.self_stats.look(ts_ns, &self.programs, &self.counted, &rules, tuning, processes) {
            self.shared.deliver(Record::Host(HostRecord::SelfStat(stat)));
        }
    }

    /// Leaves out more when there is too much, and less again.
    fn shed(&mut self, lost: u64) {
        let rows = self.shared.rows.load(Ordering::Relaxed);
        // a thread that waited for its CPU comes late: what came meanwhile is not of one second
        let since = self.shed_at.elapsed().max(COUNT_INTERVAL / 2);
        let per_second = rows.saturating_sub(self.rows) as f64 / since.as_secs_f64();
        let second = Second { lost, backlog: self.backlog.thousandths(), rows: per_second as u64 };
        self.rows = rows;
        self.shed_at = Instant::now();
        let Some(tuning) = self.shedding.after(second) else { return };
        match tuning.apply(&self.tuning) {
            Ok(()) => tracing::warn!(
                offcpu_min_ms = tuning.offcpu_min_ns / 1_000_000,
                block_min_ms = tuning.block_min_ns / 1_000_000,
                point_to_point = !tuning.shed_p2p,
                ?second,
                "what is recorded changes with the load"
            ),
            Err(error) => tracing::warn!(%error, "cannot change what is recorded"),
        }
        self.observe_self();
    }

    /// Delivers what was counted and what was lost since the last time, per probe and reason.
    fn count(&mut self) {
        let mut lost_ring = 0;
        let mut now = loader::read_stats(&self.stats, &self.host_stats);
        let ts_ns = self.shared.clock.now_unix_ns();
        let shared = &self.shared;
        // of a new process it may hear before the ring's reader does
        let process = |pid| shared.processes.lately(pid).or_else(|| runs(pid).then(|| shared.process(pid)).flatten());
        let records = self.tallies.read(ts_ns, |pid| process(pid).and_then(|process| process.seen.rank));
        for record in records {
            self.shared.deliver(record);
        }
        let (counted, rows) = self.tallies.status();
        now.extend(counted);
        self.shared.status().rows = rows;
        for probe in &now {
            let before = self.counted.iter().find(|b| b.probe == probe.probe);
            let since = |field: fn(&ProbeStatus) -> u64| field(probe).saturating_sub(before.map_or(0, field));
            lost_ring += since(|p| p.lost_ring);
            let lost = [
                ("ringbuf", since(|p| p.lost_ring)),
                ("map_full", since(|p| p.lost_map)),
                ("unmatched", since(|p| p.unmatched)),
                ("shed", since(|p| p.shed)),
            ];
            for (reason, lost) in lost.into_iter().filter(|(_, lost)| *lost > 0) {
                self.shared.deliver(loss(ts_ns, &probe.probe, reason, lost));
            }
        }
        self.shared.status().probes.clone_from(&now);
        self.counted = now;
        self.shed(lost_ring);
    }
}
