//! Records without eBPF: the calls that the shims in ranks (`shim/`) write into ring files, as the
//! same [`Record`]s.
//!
//! Owned here: finding rings, reading them, their losses and ends. `layout` knows their bytes;
//! `decode` makes records and `process` identifies processes, as with eBPF; `device` handles times
//! of devices, `scheduling` reads from /proc what the scheduler did with the ranks. One thread
//! reads all rings. A ring that was found is unlinked at once: it exists as long as the rank or the
//! reader has it open, and no file is left behind. A reader that starts later finds it among the
//! rank's open files.

mod device;
mod layout;
mod scheduling;

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, atomic};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use files::{Files, Regular};

use self::device::DeviceClocks;
use self::layout::{DEVICE_TIMES, HEADER_BYTES, Header, InCall};
use self::scheduling::Scheduling;
use crate::clock::{self, Clock};
use crate::decode;
use crate::error::Error;
use crate::functions::{self, Api, FUNCTIONS};
use crate::process::{Process, Processes};
use crate::sites::Sites;
use crate::wire::{
    self, CAPTURE_KNOWN, CAPTURED, FROM_RCCL, HAVE_HASH, HAVE_RANK, HAVE_SEQ, LARGE_COUNTS, NOT_RETURNED, RawCall,
    RawRecord,
};
use parking_lot::{Mutex, MutexGuard};
use record::{Collective, LossCount, Record};

/// The shared library that is preloaded before MPI (LD_PRELOAD), for this kind of machine.
pub static MPI_SHIM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/librankmesh_pmpi.so"));

/// The profiler plugin that NCCL loads (NCCL_PROFILER_PLUGIN), for this kind of machine.
pub static NCCL_PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/librankmesh_nccl.so"));

/// Time between two reads of rings: a rank may make some 300,000 calls a second before it loses
/// any.
const INTERVAL: Duration = Duration::from_millis(25);
/// Time between two searches for a ring, as long as there is none.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);
/// So long after a directory changed it is searched each time: a ring is made in less.
const MAKING_A_RING: Duration = Duration::from_secs(2);
/// Time between two searches of directories that do not change.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two counts of losses.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// Most rings at a time.
const MOST_RINGS: usize = 1024;
/// Most files looked at in one search.
const MOST_FILES: usize = 4096;

/// Reading of the rings in one directory. Stops when dropped, after the rings were read to the end.
#[derive(Debug)]
pub struct Rings {
    shared: Arc<Shared>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    processes: Processes,
    clock: Clock,
    rings: Mutex<HashMap<(u64, u64), Arc<Ring>>>,
}

impl Shared {
    fn rings(&self) -> MutexGuard<'_, HashMap<(u64, u64), Arc<Ring>>> {
        self.rings.lock()
    }
}

#[derive(Debug)]
struct Ring {
    file: File,
    header: Header,
    process: Mutex<Arc<Process>>,
    devices: Mutex<DeviceClocks>,
}

/// How long the meaning of an ended rank's handles is waited for.
const MOST_OF_NAMES: Duration = Duration::from_secs(2);

impl Rings {
    /// Reads the rings that ranks make in `directory`, those of `node` (the ranks'
    /// `SLURMD_NODENAME`; "host" without one) and those of nodes whose own reader does not run on
    /// this host.
    ///
    /// # Errors
    /// The directory cannot be made, or others may write into it.
    pub fn start(directory: &Path, node: Option<&str>, sink: Box<dyn FnMut(Record) + Send>) -> Result<Rings, Error> {
        let os = |doing| move |source| Error::Os { doing, source };
        let node = node.unwrap_or("host");
        let refused = |refused| os("making the directory of rings")(std::io::Error::other::<trusted::Refused>(refused));
        trusted::Dir::make(directory).and_then(|made| made.make_dir(node)).map_err(refused)?;
        let own = directory.join(node);
        let lock = lock(&own);
        let files = Files::new(|| {});
        let processes = Processes::new(files.clone());
        let shared = Arc::new(Shared { processes, clock: Clock::measure(), rings: Mutex::default() });
        let mut reader = Reader {
            shared: Arc::clone(&shared),
            sink,
            directory: directory.to_owned(),
            own,
            _lock: lock,
            lost: HashMap::new(),
            scheduling: Scheduling::default(),
            sampled: Instant::now(),
            searched: Vec::new(),
            search_until: Instant::now(),
            search_again: Instant::now(),
            sites: Sites::new(files),
        };
        reader.find_nameless();
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("rings".into()).spawn(move || {
            let mut next_count = Instant::now();
            loop {
                let wait = if reader.shared.rings().is_empty() { IDLE_INTERVAL } else { INTERVAL };
                let last = stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout);
                reader.look();
                let now = Instant::now();
                if last || now >= next_count {
                    reader.count();
                    next_count = now + COUNT_INTERVAL;
                }
                if last {
                    return reader.leave();
                }
            }
        });
        let thread = thread.map_err(os("starting a thread"))?;
        Ok(Rings { shared, stop: Some(stop), thread: Some(thread) })
    }

    /// The calls that were entered and have not returned, each with its duration so far.
    pub fn in_flight(&self) -> Vec<Collective> {
        let now_ns = clock::kernel_now_ns();
        let rings: Vec<Arc<Ring>> = self.shared.rings().values().map(Arc::clone).collect();
        rings.iter().flat_map(|ring| ring.in_flight(now_ns, &self.shared.clock)).collect()
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic in it was reported when it happened
        }
    }
}

/// When a directory changed last, seconds and nanoseconds; none where it cannot be read.
type Changed = Option<(i64, i64)>;

fn changed(path: &Path) -> Changed {
    fs::metadata(path).ok().map(|found| (found.ctime(), found.ctime_nsec()))
}

fn own_uid() -> u32 {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() }
}

/// Locks a node's rings for this reader; none when another one reads them.
fn lock(node: &Path) -> Option<File> {
    let file = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(node.join("reader")).ok()?;
    file.try_lock().ok().map(|()| file)
}

struct Reader {
    shared: Arc<Shared>,
    sink: Box<dyn FnMut(Record) + Send>,
    directory: PathBuf,
    own: PathBuf,
    _lock: Option<File>,
    /// The losses of each ring at the last count.
    lost: HashMap<(u64, u64), u64>,
    scheduling: Scheduling,
    /// When it was sampled last.
    sampled: Instant,
    /// The directories that were searched for rings, and when each had changed last.
    searched: Vec<(PathBuf, Changed)>,
    /// It is searched until then, and again at that time.
    search_until: Instant,
    search_again: Instant,
    sites: Sites,
}

impl Reader {
    /// Finds new rings, and reads all.
    fn look(&mut self) {
        self.find();
        for process in self.shared.processes.read_environments() {
            if let Some(why) = process.no_rank_because() {
                tracing::warn!("{why}");
            }
            (self.sink)(Record::Process(process.seen.clone()));
        }
        for (id, ring) in self.known() {
            let process = self.shared.processes.newest(ring.process());
            *ring.process.lock() = Arc::clone(&process);
            let ended = !self.shared.processes.lives(&process);
            self.drain(&ring, &process, ended);
            if ended {
                self.tell_lost(id, &ring);
                self.lost.remove(&id);
                self.shared.rings().remove(&id);
                self.shared.processes.forget(process.seen.pid);
                self.scheduling.forget(process.seen.pid);
                self.sites.forget(process.seen.pid);
            }
        }
    }

    /// Finds new rings, where directories changed lately or were not looked through for long.
    fn find(&mut self) {
        let now = Instant::now();
        if self.searched.iter().any(|(path, before)| changed(path) != *before) {
            // A ring that is being made is none yet.
            self.search_until = now + MAKING_A_RING;
        }
        if now >= self.search_until && now < self.search_again {
            return;
        }
        self.search_again = now + SEARCH_INTERVAL;
        self.searched = vec![(self.directory.clone(), changed(&self.directory))];
        let nodes = fs::read_dir(&self.directory).into_iter().flatten().flatten().take(MOST_FILES);
        let nodes: Vec<PathBuf> = nodes.map(|entry| entry.path()).collect();
        for node in nodes {
            if trusted::Dir::open(&node).is_err() {
                continue;
            }
            self.searched.push((node.clone(), changed(&node)));
            let files = fs::read_dir(&node).into_iter().flatten().flatten().take(MOST_FILES);
            let files: Vec<PathBuf> = files
                .map(|entry| entry.path())
                .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ring-")))
                .collect();
            // another node's ranks are read by its own reader, if there is one on this host
            if files.is_empty() || (node != self.own && lock(&node).is_none()) {
                continue;
            }
            for path in files {
                if self.open(&path) {
                    let _ = fs::remove_file(&path);
                }
            }
        }
    }

    /// The rings that are read, as they are now.
    fn known(&self) -> Vec<((u64, u64), Arc<Ring>)> {
        self.shared.rings().iter().map(|(id, ring)| (*id, Arc::clone(ring))).collect()
    }

    /// Opens a ring; true when it is one (or was opened before).
    fn open(&mut self, path: &Path) -> bool {
        let opened =
            fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
        let Ok(file) = opened else { return false };
        self.take_up(file)
    }

    fn take_up(&mut self, file: File) -> bool {
        let Ok(metadata) = file.metadata() else { return false };
        let id = (metadata.dev(), metadata.ino());
        if self.shared.rings().contains_key(&id) {
            return true;
        }
        let own = own_uid();
        let complete = metadata.is_file() && metadata.len() == layout::RING_BYTES;
        if !complete || (metadata.uid() != own && own != 0) || self.shared.rings().len() >= MOST_RINGS {
            return false;
        }
        let mut bytes = [0; HEADER_BYTES];
        if file.read_exact_at(&mut bytes, 0).is_err() {
            return false;
        }
        let Some(header) = Header::parse(&bytes) else { return false };
        self.shared.processes.is_same(header.pid);
        let Some((process, _)) = self.shared.processes.look(header.pid) else {
            // It has ended already; its identity cannot be found any more.
            let ticket = read_u64(&file, layout::HEAD_AT).unwrap_or(0);
            self.deliver_lost(header.pid, "process_gone", ticket);
            return true;
        };
        if process.seen.uid != Some(metadata.uid()) {
            return false; // not its own process's ring
        }
        (self.sink)(Record::Process(process.seen.clone()));
        process.mpi(); // while it lives
        self.sites.look(process.seen.pid);
        self.shared
            .rings()
            .insert(id, Arc::new(Ring { file, header, process: Mutex::new(process), devices: Mutex::default() }));
        true
    }

    /// Rings that an earlier reader found: they are unlinked, but their ranks have them open.
    ///
    /// The name of an open file is no more than a text: in a mount namespace of her own a user gives
    /// any file any name. So only this user's processes are looked at, and what is no ring by the
    /// kernel's word is not opened.
    fn find_nameless(&mut self) {
        let prefix = self.directory.join("").into_os_string();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let is_process = process.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit);
            let is_own = || process.metadata().is_ok_and(|process| process.uid() == own_uid());
            let files = if is_process && is_own() { fs::read_dir(process.path().join("fd")).ok() } else { None };
            for file in files.into_iter().flatten().flatten().take(MOST_FILES) {
                let Ok(target) = fs::read_link(file.path()) else { continue };
                let target = target.as_os_str().as_encoded_bytes();
                let ours = target.starts_with(prefix.as_encoded_bytes()) && target.ends_with(b" (deleted)");
                let found = if ours { Regular::at(&file.path()).ok() } else { None };
                let is_ring = |found: &Regular| found.owner() == own_uid() && found.id().bytes == layout::RING_BYTES;
                if let Some(Ok(file)) = found.filter(is_ring).map(|found| found.open_to_write()) {
                    self.take_up(file);
                }
            }
        }
    }

    /// Reads the ready slots; of a rank that has `ended`, skips those that it never finished.
    fn drain(&mut self, ring: &Ring, process: &Process, ended: bool) {
        let names = process.mpi();
        if !ended && (!names.is_ready() || self.shared.processes.awaits_environment(process)) {
            return; // what its handles mean is being looked up: the ring keeps its calls
        }
        names.wait(Instant::now() + MOST_OF_NAMES);
        let (Some(head), Some(tail)) = (read_u64(&ring.file, layout::HEAD_AT), read_u64(&ring.file, layout::TAIL_AT))
        else {
            return;
        };
        let waiting = head.wrapping_sub(tail);
        if waiting == 0 || waiting > layout::SLOTS {
            return; // nothing, or nonsense
        }
        // First `ready` of every slot, then their contents: so a slot that is ready was read
        // completely.
        let slots = ring.read_slots(tail, waiting);
        let ready = slots.chunks_exact(layout::SLOT_BYTES).zip((0..).map(|i| tail.wrapping_add(i)));
        let ready: Vec<bool> =
            ready.map(|(slot, ticket): (_, u64)| slot_ready(slot) == Some(ticket.wrapping_add(1))).collect();
        let upto = if ended { ready.len() } else { ready.iter().take_while(|ready| **ready).count() };
        if upto == 0 {
            return;
        }
        atomic::fence(atomic::Ordering::Acquire);
        let slots = ring.read_slots(tail, upto as u64);
        let mut unfinished = 0;
        for (slot, ready) in slots.chunks_exact(layout::SLOT_BYTES).zip(&ready) {
            match ready.then(|| ring.call(&slot[8..], &self.shared.clock)).flatten() {
                Some((mut call, address)) => {
                    call.site = self.sites.of(process.seen.pid, address);
                    (self.sink)(Record::Collective(call));
                }
                None => unfinished += 1,
            }
        }
        let _ = ring.file.write_all_at(&tail.wrapping_add(upto as u64).to_ne_bytes(), layout::TAIL_AT);
        self.deliver_lost(ring.header.pid, "unfinished", unfinished);
    }

    fn deliver_lost(&mut self, pid: u32, reason: &str, lost: u64) {
        if lost > 0 {
            let ts_ns = self.shared.clock.now_unix_ns();
            (self.sink)(Record::Loss(LossCount {
                since_ns: None,
                ts_ns,
                probe: format!("shim:{pid}"),
                reason: reason.to_owned(),
                lost,
            }));
        }
    }

    fn tell_lost(&mut self, id: (u64, u64), ring: &Ring) {
        let Some(now) = read_u64(&ring.file, layout::LOST_AT) else { return };
        let before = self.lost.insert(id, now).unwrap_or(0);
        self.deliver_lost(ring.header.pid, "ring", now.saturating_sub(before));
    }

    fn count(&mut self) {
        for (id, ring) in self.known() {
            self.tell_lost(id, &ring);
        }
        self.shared.clock.refresh();
        self.sample();
    }

    /// Delivers what the scheduler did with the ranks since the last time.
    fn sample(&mut self) {
        let since_ns = u64::try_from(self.sampled.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.sampled = Instant::now();
        let ranks: HashMap<u32, Arc<Ring>> =
            self.known().into_iter().map(|(_, ring)| (ring.header.pid, ring)).collect();
        for ring in ranks.values() {
            let tallies = self.scheduling.look(&ring.process(), self.shared.clock.now_unix_ns(), since_ns);
            tallies.into_iter().for_each(|tally| (self.sink)(Record::CallTally(tally)));
        }
    }

    /// Removes everything except the rings of ranks that still run.
    fn leave(self) {
        let _ = fs::remove_file(self.own.join("reader"));
        let _ = fs::remove_dir(&self.own);
        let _ = fs::remove_dir(&self.directory);
    }
}

fn read_u64(file: &File, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

fn slot_ready(slot: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(slot.get(..8)?.try_into().ok()?))
}

impl Ring {
    /// The bytes of `count` slots from that of `ticket` on.
    fn read_slots(&self, ticket: u64, count: u64) -> Vec<u8> {
        let first = ticket % layout::SLOTS;
        let before_end = count.min(layout::SLOTS - first);
        let size = layout::SLOT_BYTES;
        let mut bytes = vec![0; count as usize * size];
        let (to_end, from_start) = bytes.split_at_mut(before_end as usize * size);
        let read = self.file.read_exact_at(to_end, layout::SLOTS_AT + first * size as u64);
        // unreadable slots count as not ready
        if read.and_then(|()| self.file.read_exact_at(from_start, layout::SLOTS_AT)).is_err() {
            bytes.clear();
        }
        bytes
    }

    /// A call, and where it was made.
    fn call(&self, bytes: &[u8], clock: &Clock) -> Option<(Collective, u64)> {
        let mut raw = match wire::parse(bytes)? {
            RawRecord::Call(mut raw) => {
                raw.func = (*self.header.functions.get(usize::from(raw.func))?)?;
                raw
            }
            RawRecord::CommBegins(mut raw) => {
                raw.func = functions::comm_begin();
                raw
            }
            _ => return None,
        };
        raw.pid = self.header.pid;
        raw.cgroup_id = self.process().seen.cgroup_id.unwrap_or(0);
        let timed = is_nccl(raw.func) && raw.flags & DEVICE_TIMES != 0;
        raw.flags &= match is_nccl(raw.func) {
            true => HAVE_SEQ | HAVE_HASH | HAVE_RANK | FROM_RCCL | CAPTURED | CAPTURE_KNOWN,
            false => HAVE_SEQ | HAVE_HASH | HAVE_RANK | LARGE_COUNTS,
        };
        let mut call = self.decode(&raw, clock)?;
        if timed {
            device::place(&mut call, &raw, &mut self.devices(), clock);
        }
        Some((call, raw.site))
    }

    fn decode(&self, raw: &RawCall, clock: &Clock) -> Option<Collective> {
        let mut call = decode::call(raw, clock, Some(&self.process()))?;
        if is_nccl(raw.func) {
            // the plugin does not get these
            call.stream = call.stream.filter(|stream| *stream != u64::MAX);
            call.nranks = call.nranks.filter(|nranks| *nranks > 0);
            call.rank = call.rank.filter(|rank| *rank >= 0);
        }
        Some(call)
    }

    fn process(&self) -> Arc<Process> {
        Arc::clone(&self.process.lock())
    }

    fn devices(&self) -> MutexGuard<'_, DeviceClocks> {
        self.devices.lock()
    }

    fn in_flight(&self, now_ns: u64, clock: &Clock) -> Vec<Collective> {
        let mut bytes = vec![0; layout::THREADS * layout::THREAD_BYTES];
        if self.file.read_exact_at(&mut bytes, layout::THREADS_AT).is_err() {
            return vec![];
        }
        let calls = bytes.chunks_exact(layout::THREAD_BYTES).filter_map(InCall::parse).filter_map(|call| {
            let raw = RawCall {
                func: (*self.header.functions.get(call.func)?)?,
                flags: NOT_RETURNED | call.flags | if call.seq.is_some() { HAVE_SEQ } else { 0 },
                enter_ns: call.enter_ns,
                exit_ns: now_ns,
                pid: self.header.pid,
                tid: call.tid,
                cgroup_id: self.process().seen.cgroup_id.unwrap_or(0),
                comm_hash: call.comm_hash,
                seq: call.seq.unwrap_or(0),
                comm_seq: call.comm_seq,
                rank: call.rank,
                nranks: call.nranks,
                ret: 0,
                args: call.args,
                site: 0,
            };
            if !is_nccl(raw.func) {
                return self.decode(&raw, clock);
            }
            let mut call = self.decode(&raw, clock)?;
            device::place_open(&mut call, &raw, &self.devices(), clock);
            Some(call)
        });
        calls.collect()
    }
}

/// Whether a function of [`FUNCTIONS`] is NCCL's.
fn is_nccl(func: u8) -> bool {
    FUNCTIONS.get(usize::from(func)).is_some_and(|function| function.api == Api::Nccl)
}
