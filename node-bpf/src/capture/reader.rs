//! Reads the ring buffer and makes records of its bytes: a thread now and then, and who needs what
//! is in it at once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use files::Files;
use libbpf_rs::MapHandle;
use parking_lot::Mutex;

use super::{Wake, loss};
use crate::config::AfterRead;
use crate::decode;
use crate::functions::{self, Api};
use crate::process::Process;
use crate::ring::{Ring, RingSignal};
use crate::shared::Shared;
use crate::signals::bursts::Bursts;
use crate::signals::decode as signals;
use crate::signals::kernel_names;
use crate::signals::wire::RawHost;
use crate::sites::Sites;
use crate::sockets::Sockets;
use crate::tally;
use crate::tally::wire::RawRow;
use crate::wire::{self, RawCall, RawOffCpu, RawRecord};
use record::HostRecord;
use record::Record;

/// Time between two reads; the kernel wakes the reader earlier only when the ring fills up. Each
/// read takes the CPU from a rank where ranks use all of them. Who needs what is in the ring reads
/// it himself ([`RingReader::read`]).
const RING_INTERVAL: Duration = Duration::from_millis(200);
/// The same after a read in which a program began: where many begin, not each wakes the reader, and
/// their libraries are to be found before they make calls.
const INTERVAL_OF_PROGRAMS: Duration = Duration::from_millis(50);

/// The ring buffer with what makes records of its bytes. Any thread may read it, one at a time.
#[derive(Debug)]
pub(super) struct RingReader {
    ring: Ring,
    reader: Reader,
}

impl RingReader {
    pub(super) fn open(
        events: &MapHandle,
        bursts: Bursts,
        shared: Arc<Shared>,
        wake: Sender<Wake>,
        files: Files,
    ) -> io::Result<Self> {
        let reader = Reader {
            shared,
            wake,
            sockets: Sockets::default(),
            parents: HashMap::new(),
            waits: vec![],
            leaving: vec![],
            bursts,
            sites: Sites::new(files),
            held: VecDeque::new(),
            program_began: false,
            unparsed: 0,
        };
        Ok(RingReader { ring: Ring::open(events)?, reader })
    }

    pub(super) fn signal(&self) -> io::Result<RingSignal> {
        self.ring.signal().try_clone()
    }

    /// Delivers every complete record; false when one is still being written.
    pub(super) fn read(&mut self) -> bool {
        self.reader.program_began = false;
        let all = self.ring.consume(|bytes| self.reader.take(bytes)); // also records that woke nobody
        self.reader.release_held(None);
        self.reader.deliver_waits(false);
        self.reader.deliver_bursts(false);
        self.reader.release_groups();
        all
    }

    /// Delivers what is left after the probes were removed.
    fn read_last(&mut self) {
        let mut all = self.read();
        let until = Instant::now() + MOST_OF_A_RECORD;
        while !all && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
            all = self.read();
        }
        let shared = Arc::clone(&self.reader.shared);
        if !all {
            shared.problem(None, "a record was not finished when capture ended: what came after it is not stored");
        }
        self.reader.release_last_held();
        self.reader.deliver_waits(true);
        self.reader.deliver_bursts(true);
        let left = shared.groups().release_all();
        left.into_iter().for_each(|call| shared.deliver(Record::Collective(call)));
    }
}

/// The body of the thread that reads the ring every now and then, until the probes are gone.
pub(super) fn read_ring(ring: &Mutex<RingReader>, signal: &RingSignal, shared: &Shared, after_read: &AfterRead) {
    let mut interval = RING_INTERVAL;
    while !shared.detached.load(Ordering::Acquire) {
        signal.wait(interval);
        let mut ring = ring.lock();
        ring.read();
        interval = if ring.reader.program_began { INTERVAL_OF_PROGRAMS } else { RING_INTERVAL };
        drop(ring);
        after_read.call();
    }
    ring.lock().read_last();
}

/// A program that was about to write a record when its probe was removed does so when its CPU lets
/// it: a rank that has used up its share, or a virtual CPU that does not run, delays it.
const MOST_OF_A_RECORD: Duration = Duration::from_secs(10);

/// How long after a process's end records of its threads may arrive: they end at once, and the end
/// is reported by the first that sees no other running.
const LAST_THREADS: Duration = Duration::from_secs(1);

/// Most processes whose parents are remembered.
const MOST_PARENTS: usize = 16_384;

#[derive(Debug)]
struct Reader {
    /// The parents of processes that followed ones start.
    parents: HashMap<u32, u32>,
    shared: Arc<Shared>,
    wake: Sender<Wake>,
    sockets: Sockets,
    /// Stretches off the CPU that wait for the names of kernel functions: meanwhile their processes
    /// are read.
    waits: Vec<(RawOffCpu, Option<Arc<Process>>)>,
    /// Ended processes whose groups' calls are still kept.
    leaving: Vec<(Instant, u32)>,
    bursts: Bursts,
    sites: Sites,
    /// Calls of processes whose files are being read: what their handles mean is not known yet.
    held: VecDeque<Held>,
    /// Whether a program began in what was read last.
    program_began: bool,
    unparsed: u64,
}

/// A call that waits for what its process's files say.
#[derive(Debug)]
struct Held {
    raw: Box<RawCall>,
    process: Option<Arc<Process>>,
    since: Instant,
}

/// Most calls that wait so, of all processes and of one, and how long: as long as a file may take to
/// be read (a disk that others use, too, may keep its readers waiting for half a minute).
const MOST_HELD: usize = 65_536;
const MOST_HELD_OF_ONE: usize = 8_192;
const LONGEST_HELD: Duration = Duration::from_secs(60);
/// The same at the end of capture.
const LAST_HELD: Duration = Duration::from_secs(10);

/// Most stretches that are kept back for names.
const MOST_WAITS: usize = 65_536;

impl Reader {
    /// Delivers the stretches that were kept back, when the names are there or there is no more
    /// time.
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

    /// Delivers the bursts that no later event ends.
    fn deliver_bursts(&mut self, last: bool) {
        for raw in self.bursts.over(last) {
            let rank = self.rank(raw.pid);
            let record = signals::memory(&raw, &self.shared.clock, rank);
            record.into_iter().for_each(|record| self.shared.deliver(Record::Host(HostRecord::Memory(record))));
        }
    }

    /// Delivers the calls that ended processes made in groups that have not ended: no end will
    /// come.
    fn release_groups(&mut self) {
        let due = self.leaving.extract_if(.., |(since, _)| since.elapsed() >= LAST_THREADS);
        for (_, pid) in due {
            self.shared.release_groups(pid);
            if self.shared.processes.known(pid).is_none() {
                self.sites.forget(pid); // and not another with its number
            }
        }
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
            Some(RawRecord::Call(raw)) => {
                let process = self.process(raw.pid);
                return self.take_call(raw, process);
            }
            Some(RawRecord::CommBegins(mut raw)) => {
                raw.func = functions::comm_begin();
                let process = self.process(raw.pid);
                return self.take_call(raw, process);
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
                let processes = &shared.processes;
                let owner =
                    self.sockets.owner(raw.socket_inode, || processes.oldest_first(), |pid| processes.known(pid));
                Some(Record::Net(decode::tcp(&raw, &shared.clock, owner.as_ref())))
            }
            Some(RawRecord::Host(RawHost::Memory(raw))) if !self.bursts.is_new(&raw) => return,
            Some(RawRecord::Host(raw)) => self.host(&raw).map(Record::Host),
            Some(RawRecord::Verbs(raw)) => {
                let rank = self.rank(raw.pid);
                Some(Record::Net(raw.record(&shared.clock, rank)))
            }
            Some(RawRecord::Exec { pid, ts_ns }) => {
                self.program_began = true;
                self.release_held(Some(pid));
                shared.processes.exec(pid, ts_ns);
                shared.forget_libraries(pid);
                self.sites.forget(pid);
                shared.release_groups(pid);
                let _ = self.wake.send(Wake::Exec(pid)); // the other side ends only with capture
                return;
            }
            Some(RawRecord::Found { pid }) => {
                shared.processes.is_same(pid); // the end of one that had this pid before may have been lost
                if let Some(process) = shared.announced(shared.processes.look(pid)) {
                    // a short-lived process may be gone when its first call is decoded
                    shared.meet(process, false);
                }
                self.sites.look(pid);
                return;
            }
            Some(RawRecord::MpiBegan { pid }) => {
                if let Some(process) = shared.announced(shared.processes.look(pid)) {
                    shared.meet(process, true);
                }
                return;
            }
            Some(RawRecord::Exit { pid }) => {
                self.parents.remove(&pid);
                shared.processes.forget(pid);
                shared.forget_libraries(pid);
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
            None => self.not_parsed(),
        }
    }

    /// Takes in a call, or keeps it back until its process's files are read; in their order.
    fn take_call(&mut self, raw: Box<RawCall>, process: Option<Arc<Process>>) {
        self.shared.called(raw.pid);
        let waiting = self.held.iter().filter(|held| held.raw.pid == raw.pid).count();
        let room = self.held.len() < MOST_HELD && waiting < MOST_HELD_OF_ONE;
        if room && (waiting > 0 || self.is_awaited(&raw, process.as_ref())) {
            return self.held.push_back(Held { raw, process, since: Instant::now() });
        }
        if waiting > 0 {
            self.release_held(Some(raw.pid)); // it has had its share
        }
        self.call_of(raw, process);
    }

    /// Whether what a call lacks will be known when a file has been read.
    fn is_awaited(&mut self, raw: &RawCall, process: Option<&Arc<Process>>) -> bool {
        let is_nameless = |process: &Arc<Process>| self.shared.processes.awaits_environment(process);
        if self.sites.awaits(raw.pid, raw.site) || process.is_some_and(is_nameless) {
            return true;
        }
        match decode::communicator(raw) {
            Some((Api::Nccl, handle)) => self.shared.late.is_awaited(raw, handle),
            _ => decode::is_mpi(raw) && process.is_some_and(|process| !process.mpi().is_ready()),
        }
    }

    /// Delivers the calls that wait no longer; those of one process in any case.
    fn release_held(&mut self, of: Option<u32>) {
        self.shared.meet_ready();
        let mut kept = VecDeque::new();
        let mut waits = HashSet::new();
        for Held { raw, process, since } in std::mem::take(&mut self.held) {
            let goes = of == Some(raw.pid) || since.elapsed() >= LONGEST_HELD;
            if !goes && (waits.contains(&raw.pid) || self.is_awaited(&raw, process.as_ref())) {
                waits.insert(raw.pid);
                kept.push_back(Held { raw, process, since });
            } else {
                self.call_of(raw, process);
            }
        }
        self.held = kept;
    }

    /// Delivers all that wait, what they wait for or not: a little later there is nobody any more.
    fn release_last_held(&mut self) {
        let until = Instant::now() + LAST_HELD;
        while !self.held.is_empty() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
            self.release_held(None);
        }
        for Held { raw, process, .. } in std::mem::take(&mut self.held) {
            self.call_of(raw, process);
        }
    }

    /// A call by what is known of its process now: another thread may have read it meanwhile.
    fn call_of(&mut self, raw: Box<RawCall>, process: Option<Arc<Process>>) {
        let process = process.map(|process| self.shared.processes.newest(process));
        self.call(raw, process.as_ref());
    }

    fn call(&mut self, mut raw: Box<RawCall>, process: Option<&Arc<Process>>) {
        let shared = Arc::clone(&self.shared);
        shared.complete(&mut raw);
        if decode::is_group_end(&raw) {
            let end_ns = shared.clock.unix_ns(raw.exit_ns);
            let calls = shared.groups().end((raw.pid, raw.tid), end_ns, decode::returned(&raw));
            return calls.into_iter().for_each(|call| shared.deliver(Record::Collective(call)));
        }
        let mut call = decode::call(&raw, &shared.clock, process);
        if let Some(call) = &mut call {
            call.site = self.sites.of(raw.pid, raw.site);
        }
        let waits_for_group = raw.flags & wire::IN_GROUP != 0 && decode::returned(&raw).is_some();
        if waits_for_group && let Some(grouped) = call {
            call = shared.groups().hold(grouped);
            if call.is_none() {
                return;
            }
        }
        match call {
            Some(call) => shared.deliver(Record::Collective(call)),
            None => self.not_parsed(),
        }
    }

    fn not_parsed(&mut self) {
        self.unparsed += 1;
        let ts_ns = self.shared.clock.now_unix_ns();
        self.shared.deliver(loss(ts_ns, "ring", "parse", 1));
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
                // Not read from /proc: a process that only begins and ends is not followed.
                HostRecord::Life(signals::life(raw, clock, self.known_rank(raw.pid))?)
            }
        })
    }

    /// The rank of a process that an event is about.
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
