//! Walks over the Python frames of running threads, by the threads themselves, and copies of the
//! native stacks of those without Python: a clock of the thread's own fires while it is on a CPU,
//! and a BPF program (`bpf/python.bpf.c`) then reads its frames or its stack, which cannot change
//! meanwhile. Nothing is stopped and nothing signalled. The caller knows the meaning and layout of
//! the frames.
//!
//! Needs the rights that capture needs. A perf event of a thread lasts until [`PythonWalks::end`].

use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::{Duration, Instant};
use std::{io, mem};

use libbpf_rs::libbpf_sys::{PERF_COUNT_SW_CPU_CLOCK, PERF_FLAG_FD_CLOEXEC, PERF_TYPE_SOFTWARE, perf_event_attr};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use record::{StackCopy, ThreadWalk, WalkRequest, WalkedFrame};

use crate::bytes::Reader;
use crate::error::Error;
use crate::loader;
use crate::lookup::{self, Aligned};
use crate::ring::Ring;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/python.bpf.o")));

/// CPU time of a thread since the request after which it walks.
const PERIOD_NS: u64 = 200_000;
/// Threads that have a clock at the same time.
const MOST_THREADS: usize = 1_024;
/// `PERF_EVENT_IOC_ENABLE` and `PERF_EVENT_IOC_DISABLE` (include/uapi/linux/perf_event.h).
const ENABLE: libc::Ioctl = 0x2400;
const DISABLE: libc::Ioctl = 0x2401;
/// Bytes before the frames (`struct rm_py_walk`), and of a frame.
const HEAD_BYTES: usize = 24;
const FRAME_BYTES: usize = 32;
/// Bytes before the stack (`struct rm_stack_copy`).
const STACK_HEAD_BYTES: usize = 48;
/// `RM_WALK_STACK`.
const KIND_STACK: u32 = 1;

/// Makes threads walk their own frames, or copies their stacks.
#[derive(Debug)]
pub struct PythonWalks {
    object: Object,
    asked: MapHandle,
    ring: Ring,
    clocks: HashMap<u32, ThreadClock>,
    requests: u64,
    /// Requests that have no answer yet, by thread.
    open: HashMap<u32, u64>,
}

#[derive(Debug)]
struct ThreadClock {
    /// To turn it on and off: the link has the event itself.
    event: OwnedFd,
    _link: Link,
}

impl PythonWalks {
    /// Loads the program.
    ///
    /// # Errors
    /// What the host or this process lacks for it.
    pub fn load() -> Result<PythonWalks, Error> {
        loader::check_host()?;
        let failed = |error: libbpf_rs::Error| Error::Load { reason: error.to_string() };
        let open = ObjectBuilder::default().name("python").and_then(|builder| builder.open_memory(&OBJECT.0));
        let object = open.and_then(|open| open.load()).map_err(failed)?;
        let (asked, walks) = (lookup::map(&object, "asked"), lookup::map(&object, "walks"));
        let ring = Ring::open(&walks.map_err(failed)?);
        let ring = ring.map_err(|source| Error::Os { doing: "mapping the ring of walks", source })?;
        let asked = asked.map_err(failed)?;
        Ok(PythonWalks { object, asked, ring, clocks: HashMap::new(), requests: 0, open: HashMap::new() })
    }

    /// Makes a thread walk its frames when it next runs.
    ///
    /// # Errors
    /// The kernel refuses it a clock, or too many threads have one.
    pub fn ask(&mut self, thread: &WalkRequest) -> io::Result<()> {
        if !self.clocks.contains_key(&thread.tid) {
            if self.clocks.len() >= MOST_THREADS {
                return Err(io::Error::other("too many threads at a time"));
            }
            let clock = self.clock(thread.tid)?;
            self.clocks.insert(thread.tid, clock);
        }
        self.requests += 1;
        let value = encode(thread, self.requests);
        self.asked.update(&thread.tid.to_ne_bytes(), &value, MapFlags::ANY).map_err(io::Error::other)?;
        self.open.insert(thread.tid, self.requests);
        self.turn(thread.tid, ENABLE)
    }

    /// Copies the native stack of a thread when it next runs code of its own (x86-64).
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn ask_stack(&mut self, tid: u32) -> io::Result<()> {
        // Without a thread state of Python.
        self.ask(&WalkRequest { tid, ..WalkRequest::default() })
    }

    /// The walks that were asked for, as soon as all have come or this long has passed; the others
    /// are dropped.
    pub fn take(&mut self, patience: Duration) -> Vec<ThreadWalk> {
        let until = Instant::now() + patience;
        let mut taken = vec![];
        loop {
            let open = &self.open;
            self.ring.consume(|bytes| {
                let walk = decode(bytes).filter(|(number, walk)| open.get(&walk.tid) == Some(number));
                taken.extend(walk.map(|(_, walk)| walk));
            });
            for walk in &taken {
                if self.open.remove(&walk.tid).is_some() {
                    let _ = self.turn(walk.tid, DISABLE);
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.open.is_empty() || left.is_zero() {
                break;
            }
            self.ring.signal().wait(left.max(Duration::from_millis(1)));
        }
        for tid in mem::take(&mut self.open).into_keys() {
            let _ = self.asked.delete(&tid.to_ne_bytes()); // its answer may be on its way
            let _ = self.turn(tid, DISABLE);
        }
        taken
    }

    /// Removes all clocks.
    pub fn end(&mut self) {
        for tid in mem::take(&mut self.clocks).into_keys() {
            let _ = self.asked.delete(&tid.to_ne_bytes());
        }
        self.open.clear();
    }

    fn clock(&self, tid: u32) -> io::Result<ThreadClock> {
        let event = open_clock(tid)?;
        let own = event.try_clone()?;
        let program = lookup::program(&self.object, "walk_python").map_err(io::Error::other)?;
        // Attaching turns it on, which does no harm: nothing is asked.
        let link = program.attach_perf_event(event.into_raw_fd()).map_err(io::Error::other)?;
        Ok(ThreadClock { event: own, _link: link })
    }

    fn turn(&self, tid: u32, how: libc::Ioctl) -> io::Result<()> {
        let Some(clock) = self.clocks.get(&tid) else { return Ok(()) };
        // SAFETY: an event of ours; the request takes no pointer.
        let done = unsafe { libc::ioctl(clock.event.as_raw_fd(), how, 0) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A clock of the time that a thread is on a CPU (perf_event_open(2), PERF_COUNT_SW_CPU_CLOCK).
fn open_clock(tid: u32) -> io::Result<OwnedFd> {
    // SAFETY: all zero is a valid attribute.
    let mut attr: perf_event_attr = unsafe { mem::zeroed() };
    attr.type_ = PERF_TYPE_SOFTWARE;
    attr.size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
    attr.config = u64::from(PERF_COUNT_SW_CPU_CLOCK);
    attr.__bindgen_anon_1.sample_period = PERIOD_NS;
    attr.set_disabled(1);
    let tid = i32::try_from(tid).map_err(io::Error::other)?;
    let any_cpu = -1;
    // SAFETY: the attribute is valid for the call; the result is checked.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &attr, tid, any_cpu, -1, libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC))
    };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just given it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `struct rm_py_asked`.
fn encode(thread: &WalkRequest, number: u64) -> Vec<u8> {
    let inner_at = thread.inner_at.and_then(|at| i32::try_from(at).ok()).unwrap_or(-1);
    let mut bytes = [thread.state.to_ne_bytes(), number.to_ne_bytes()].concat();
    let words = [
        thread.frame_at,
        inner_at.cast_unsigned(),
        thread.code_at,
        thread.previous_at,
        thread.instruction_at,
        thread.owner_at,
        thread.tlbc_at,
        thread.instruction_bytes,
    ];
    bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    bytes
}

/// `struct rm_py_walk` or `struct rm_stack_copy`: the number of its request, and what is in it.
fn decode(bytes: &[u8]) -> Option<(u64, ThreadWalk)> {
    let mut r = Reader::new(bytes);
    let (tid, count, number, complete) = (r.u32()?, r.u32()? as usize, r.u64()?, r.u32()? == 1);
    if r.u32()? == KIND_STACK {
        let (pc, sp, fp) = (r.u64()?, r.u64()?, r.u64()?);
        let bytes = bytes.get(STACK_HEAD_BYTES..STACK_HEAD_BYTES.checked_add(count)?)?.to_vec();
        return Some((
            number,
            ThreadWalk { tid, stack: Some(StackCopy { pc, sp, fp, bytes }), ..ThreadWalk::default() },
        ));
    }
    let frames = bytes.get(HEAD_BYTES..HEAD_BYTES + count.checked_mul(FRAME_BYTES)?)?;
    let frame = |bytes: &[u8]| {
        let mut r = Reader::new(bytes);
        let (address, code, instruction) = (r.u64()?, r.u64()?, r.u64()?);
        Some(WalkedFrame { address, code, instruction, tlbc: r.u32()?.cast_signed(), owner: r.u8()? })
    };
    let frames = frames.chunks_exact(FRAME_BYTES).map(frame).collect::<Option<Vec<_>>>()?;
    Some((number, ThreadWalk { tid, frames, complete, stack: None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_walks_are_as_the_program_has_them() {
        let thread = WalkRequest { tid: 9, state: 0x7000, frame_at: 56, inner_at: Some(8), ..WalkRequest::default() };
        let bytes = encode(&thread, 3);
        assert_eq!(bytes.len(), 48);
        assert_eq!((bytes[8], bytes[16], bytes[20]), (3, 56, 8));
        assert_eq!(encode(&WalkRequest { inner_at: None, ..thread }, 3)[20..24], [0xff; 4]);
        let mut walk: Vec<u8> = [9_u32, 1].iter().flat_map(|word| word.to_ne_bytes()).collect();
        walk.extend(3_u64.to_ne_bytes());
        walk.extend([1_u32, 0].iter().flat_map(|word| word.to_ne_bytes()));
        walk.extend([10_u64, 20, 30].iter().flat_map(|word| word.to_ne_bytes()));
        walk.extend((-1_i32).to_ne_bytes());
        walk.extend([4, 0, 0, 0]);
        let (number, read) = decode(&walk).unwrap();
        let frame = WalkedFrame { address: 10, code: 20, instruction: 30, tlbc: -1, owner: 4 };
        let frames = ThreadWalk { tid: 9, frames: vec![frame], complete: true, stack: None };
        assert_eq!((number, read), (3, frames));
        assert_eq!(decode(&walk[..40]), None, "shorter than its count");
        let mut copy: Vec<u8> = [9_u32, 2].iter().flat_map(|word| word.to_ne_bytes()).collect();
        copy.extend(4_u64.to_ne_bytes());
        copy.extend([0_u32, KIND_STACK].iter().flat_map(|word| word.to_ne_bytes()));
        copy.extend([10_u64, 20, 30].iter().flat_map(|word| word.to_ne_bytes()));
        copy.extend([7, 8, 9]);
        let stack = Some(StackCopy { pc: 10, sp: 20, fp: 30, bytes: vec![7, 8] });
        assert_eq!(decode(&copy), Some((4, ThreadWalk { tid: 9, stack, ..ThreadWalk::default() })));
        assert_eq!(decode(&copy[..49]), None, "shorter than its count");
    }

    #[test]
    fn a_running_thread_walks_as_requested_and_a_sleeping_one_does_not() {
        let mut walks = match PythonWalks::load() {
            Ok(walks) => walks,
            Err(error) => {
                eprintln!("SKIPPED: {error}");
                return;
            }
        };
        // Two "frames" of ours: code, calling frame, position, owner.
        let outer: Box<[u64; 5]> = Box::new([0, 77, 0, 700, 1]);
        let inner: Box<[u64; 5]> = Box::new([0, 88, outer.as_ptr() as u64, 800, 2]);
        let state: Box<[u64; 2]> = Box::new([0, inner.as_ptr() as u64]);
        // SAFETY: takes no pointers.
        let tid = unsafe { libc::gettid() }.cast_unsigned();
        let thread = WalkRequest {
            tid,
            state: state.as_ptr() as u64,
            frame_at: 8,
            inner_at: None,
            code_at: 8,
            previous_at: 16,
            instruction_at: 24,
            instruction_bytes: 8,
            owner_at: 32,
            tlbc_at: 0,
        };
        let spin = || {
            let until = Instant::now() + Duration::from_millis(20);
            while Instant::now() < until {
                std::hint::black_box(0);
            }
        };
        if let Err(error) = walks.ask(&thread) {
            eprintln!("SKIPPED: the kernel gives this process no clock of a thread: {error}");
            return;
        }
        spin();
        let taken = walks.take(Duration::from_millis(100));
        let [walk] = &taken[..] else { panic!("{taken:?}") };
        let seen = walk.frames.iter().map(|f| (f.code, f.instruction, f.owner)).collect::<Vec<_>>();
        assert_eq!(seen, [(88, 800, 2), (77, 700, 1)]);
        assert!(walk.complete);
        // Unreadable memory ends the walk there.
        let lost: Box<[u64; 2]> = Box::new([0, 16]);
        walks.ask(&WalkRequest { state: lost.as_ptr() as u64, ..thread }).unwrap();
        spin();
        let taken = walks.take(Duration::from_millis(100));
        assert_eq!(taken, [ThreadWalk { tid, ..ThreadWalk::default() }]);
        // Its stack, from the stack pointer on.
        if cfg!(target_arch = "x86_64") {
            let local = 0x1234_5678_9abc_def0_u64;
            walks.ask_stack(tid).unwrap();
            spin();
            let at = std::ptr::from_ref(std::hint::black_box(&local)) as u64;
            let taken = walks.take(Duration::from_millis(100));
            let [ThreadWalk { stack: Some(copy), .. }] = &taken[..] else { panic!("{taken:?}") };
            let found = usize::try_from(at - copy.sp).ok().and_then(|at| copy.bytes.get(at..at + 8));
            assert_eq!(found, Some(&local.to_ne_bytes()[..]), "{:x} {at:x}", copy.sp);
        }
        // A sleeping one is dropped, and its late answer ignored.
        let sleeper = std::process::Command::new("sleep").arg("60").spawn().map(Killed).unwrap();
        walks.ask(&WalkRequest { tid: sleeper.0.id(), ..thread }).unwrap();
        assert!(walks.take(Duration::from_millis(20)).is_empty());
        walks.end();
        assert_eq!(walks.asked.keys().count(), 0);
    }

    struct Killed(std::process::Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
