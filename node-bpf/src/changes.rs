//! Which processes may have other code than they had, by the kernel's word: so that nobody has to
//! look at each process of a host again and again. On a host with 500 idle processes, looking at each
//! once a second took 2 % of a core.
//!
//! On each CPU a perf event that counts nothing has the kernel write down each mapping of a file as
//! code, each fork and each end (perf_event_open(2): `mmap`, `task`; records MMAP, FORK, EXIT and LOST,
//! and the page with `data_head` and `data_tail` before them). Nobody is woken: who wants to know
//! reads.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys::{
    PERF_COUNT_SW_DUMMY, PERF_RECORD_EXIT, PERF_RECORD_FORK, PERF_RECORD_LOST, PERF_RECORD_MMAP, PERF_TYPE_SOFTWARE,
    perf_event_attr,
};
use parking_lot::Mutex;

use crate::bytes::Reader;
use crate::ring::Mapping;
use crate::signals::faults;

/// Each process is looked at this often all the same: it is cheap, and finds what was not thought of.
const ALL_EVERY: Duration = Duration::from_secs(30);
/// Records of a CPU: some 250 mappings, or 800 threads that begin or end.
const DATA_BYTES: usize = 32 << 10;
/// The longest record: a path of 4,096 bytes, and what stands before it.
const LONGEST_BYTES: u64 = 4_096 + 64;

/// Where a mapping's name stands in its record, and how that of memory without a file begins.
const NAME_AT: usize = 40;
const ANONYMOUS: &[u8; 6] = b"//anon";
/// Of more processes than this, each is looked at.
const MOST_TAKEN: usize = 16_384;

/// What has changed.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// Processes that have mapped code, or were forked. They may have ended.
    pub(crate) pids: HashSet<u32>,
    /// Processes of which a thread has ended, perhaps the last.
    pub(crate) ended: HashSet<u32>,
    /// Whether others may have changed, too: each process is to be looked at.
    pub(crate) all: bool,
}

/// The events of this host, once they are open, and what of them was not taken yet.
static EVENTS: Mutex<Option<Events>> = Mutex::new(None);

#[derive(Debug, Default)]
struct Events {
    /// The CPUs that were online when these were opened.
    online: String,
    /// None where they could not be opened again.
    cpus: Vec<CpuEvents>,
    /// Of each who takes, by number.
    takers: Vec<(u64, Changed)>,
    next: u64,
}

/// Opens the events, which some kernels allow only before privileges are dropped.
///
/// # Errors
/// What the kernel refuses.
pub(crate) fn open_ahead() -> io::Result<()> {
    let mut events = EVENTS.lock();
    if events.is_none() {
        let online = faults::online_cpus()?;
        let cpus = faults::on_each_cpu(&online, CpuEvents::open)?;
        *events = Some(Events { online, cpus, ..Events::default() });
    }
    Ok(())
}

impl Events {
    /// Reads what has come, for each who takes.
    fn read(&mut self) {
        let mut changed = Changed { all: self.cpus.is_empty(), ..Changed::default() };
        for cpu in &self.cpus {
            cpu.read(&mut changed);
        }
        for (_, taker) in &mut self.takers {
            taker.pids.extend(&changed.pids);
            taker.ended.extend(&changed.ended);
            taker.all |= changed.all;
            if taker.pids.len() + taker.ended.len() > MOST_TAKEN {
                *taker = Changed { all: true, ..Changed::default() };
            }
        }
    }

    /// A CPU that went and came back has lost its event, and one that is new has none: where others
    /// are online now, all events are opened anew.
    fn keep_up(&mut self) {
        let Ok(online) = faults::online_cpus() else { return };
        if online != self.online {
            self.cpus = faults::on_each_cpu(&online, CpuEvents::open).unwrap_or_else(|error| {
                tracing::info!("each process is looked at each time, for CPUs came or went: {error}");
                Vec::new()
            });
            self.online = online;
        }
    }

    fn of(&mut self, number: u64) -> Option<&mut Changed> {
        self.takers.iter_mut().find(|(of, _)| *of == number).map(|(_, changed)| changed)
    }
}

/// The processes that have changed since one who looks at them took them last.
#[derive(Debug)]
pub(crate) struct ChangedCode {
    /// None where the kernel does not tell: then all processes are looked at each time.
    number: Option<u64>,
    all_at: Option<Instant>,
}

impl ChangedCode {
    /// Has the kernel tell from now on, where it can.
    pub(crate) fn watch() -> Self {
        if let Err(error) = open_ahead() {
            tracing::info!("each process is looked at each time, for the kernel does not tell of new code: {error}");
        }
        let number = EVENTS.lock().as_mut().map(|events| {
            events.next += 1;
            events.takers.push((events.next, Changed::default()));
            events.next
        });
        Self { number, all_at: None }
    }

    /// What has changed since the last time.
    pub(crate) fn take(&mut self) -> Changed {
        let is_due = self.all_at.is_none_or(|at| at.elapsed() >= ALL_EVERY);
        let changed = EVENTS.lock().as_mut().and_then(|events| {
            if is_due {
                events.keep_up();
            }
            events.read();
            Some(std::mem::take(events.of(self.number?)?))
        });
        let mut changed = changed.unwrap_or(Changed { all: true, ..Changed::default() });
        changed.all |= is_due;
        if changed.all {
            self.all_at = Some(Instant::now());
        }
        changed
    }
}

impl Drop for ChangedCode {
    fn drop(&mut self) {
        if let Some(events) = EVENTS.lock().as_mut() {
            events.takers.retain(|(number, _)| Some(*number) != self.number);
        }
    }
}

/// The records of one CPU.
#[derive(Debug)]
struct CpuEvents {
    _event: OwnedFd,
    mapping: Mapping,
    page_bytes: usize,
}

// SAFETY: the mapping is its own, and is read and written under the lock of `EVENTS`.
unsafe impl Send for CpuEvents {}

impl CpuEvents {
    fn open(cpu: i32) -> io::Result<Self> {
        // SAFETY: all zero is a valid attribute.
        let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
        attr.type_ = PERF_TYPE_SOFTWARE;
        attr.config = u64::from(PERF_COUNT_SW_DUMMY);
        attr.set_mmap(1);
        attr.set_task(1);
        attr.set_exclude_kernel(1);
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
        let event = faults::open_event(attr, cpu)?;
        // SAFETY: it asks for a number.
        let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let bytes = page_bytes + DATA_BYTES.max(page_bytes);
        let mapping = Mapping::new(event.as_raw_fd(), bytes, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        Ok(Self { _event: event, mapping, page_bytes })
    }

    /// A position in the first page.
    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: struct perf_event_mmap_page has aligned numbers of eight bytes there.
        unsafe { self.mapping.start().add(offset).cast::<AtomicU64>().as_ref() }
    }

    fn read(&self, changed: &mut Changed) {
        const DATA_HEAD_AT: usize = 1024;
        const DATA_TAIL_AT: usize = 1032;
        let (head, tail) = (self.position(DATA_HEAD_AT).load(Ordering::Acquire), self.position(DATA_TAIL_AT));
        let mut at = tail.load(Ordering::Relaxed);
        if at == head {
            return;
        }
        let data_bytes = DATA_BYTES.max(self.page_bytes);
        // What found no room is told with the next record that does, and that may come late.
        changed.all |= head.wrapping_sub(at) + LONGEST_BYTES > data_bytes as u64;
        while at < head {
            let record = self.bytes::<{ NAME_AT + ANONYMOUS.len() }>(at, data_bytes);
            let mut fields = Reader::new(&record);
            let (kind, _misc, bytes) = (fields.u32(), fields.u16(), fields.u16());
            let (pid, second) = (fields.u32(), fields.u32());
            let (Some(kind), Some(bytes @ 8..), Some(pid)) = (kind, bytes, pid) else {
                changed.all = true;
                break;
            };
            match kind {
                // Not what programs write as they run.
                PERF_RECORD_MMAP if record[NAME_AT..] != *ANONYMOUS => drop(changed.pids.insert(pid)),
                // (A thread is forked, too, and has the parent's number of process.)
                PERF_RECORD_FORK if second != Some(pid) => drop(changed.pids.insert(pid)),
                PERF_RECORD_EXIT => drop(changed.ended.insert(pid)),
                PERF_RECORD_LOST => changed.all = true,
                _ => {}
            }
            at += u64::from(bytes);
        }
        tail.store(head, Ordering::Release);
    }

    /// Some bytes of a record, which may begin anew at the beginning.
    fn bytes<const N: usize>(&self, at: u64, data_bytes: usize) -> [u8; N] {
        let data: NonNull<u8> = self.mapping.start();
        std::array::from_fn(|i| {
            let offset = (at as usize + i) & (data_bytes - 1);
            // SAFETY: within the data, which the kernel leaves alone until the tail has passed.
            unsafe { data.add(self.page_bytes + offset).read() }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// The events are the host's: while one test fills them, another finds no room.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// Ends with the test.
    struct Sleeper(Child);

    impl Sleeper {
        /// Its libraries are mapped when it can be seen to sleep.
        fn start() -> Self {
            let child = Command::new("sleep").arg("1000").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            while !state().contains("(sleep) S") {
                std::thread::yield_now();
            }
            Self(child)
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    /// Waits until there is room: others of this machine begin programs, too, and the kernel tells what
    /// it lost with the next record.
    fn until_there_is_room(changed: &mut ChangedCode) {
        let until = Instant::now() + Duration::from_secs(60);
        while changed.take().all {
            assert!(Instant::now() < until, "all are looked at for a minute");
        }
    }

    #[test]
    fn what_maps_code_or_ends_is_told_once_and_what_only_waits_is_not() {
        let _alone = ONE_AT_A_TIME.lock();
        if let Err(error) = open_ahead() {
            eprintln!("skipped: {error}");
            return;
        }
        let (mut changed, mut other) = (ChangedCode::watch(), ChangedCode::watch());
        assert!(changed.take().all, "nobody was looked at yet");
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            until_there_is_room(&mut other);
            until_there_is_room(&mut changed);
            let sleeper = Sleeper::start();
            let pid = sleeper.0.id();
            let [begun, waits] = [(); 2].map(|()| changed.take());
            drop(sleeper);
            let (ended, all) = (changed.take(), other.take());
            if [&begun, &waits, &ended, &all].iter().any(|taken| taken.all) {
                assert!(Instant::now() < until, "there was never room");
                continue;
            }
            assert!(begun.pids.contains(&pid) && all.pids.contains(&pid), "each who takes is told");
            assert!(!waits.pids.contains(&pid) && !waits.ended.contains(&pid), "it does nothing");
            assert!(!ended.pids.contains(&pid) && ended.ended.contains(&pid) && all.ended.contains(&pid));
            return;
        }
    }

    #[test]
    fn what_finds_no_room_has_each_looked_at() {
        let _alone = ONE_AT_A_TIME.lock();
        if let Err(error) = open_ahead() {
            eprintln!("skipped: {error}");
            return;
        }
        let mut changed = ChangedCode::watch();
        until_there_is_room(&mut changed);
        // Some 5 records of 80 bytes each, on one CPU.
        let script = "for i in $(seq 400); do /bin/true; done";
        let cpu = faults::online_cpus().unwrap();
        let cpu = cpu.split(['-', ',']).next().unwrap();
        assert!(Command::new("taskset").args(["-c", cpu, "sh", "-c", script]).status().unwrap().success());
        assert!(changed.take().all);
        until_there_is_room(&mut changed);
    }

    #[test]
    fn where_the_kernel_does_not_tell_each_is_looked_at() {
        let mut changed = ChangedCode { number: None, all_at: None };
        assert!(changed.take().all && changed.take().all);
    }
}
