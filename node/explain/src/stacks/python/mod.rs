//! The Python stacks of a process: interpreters, their threads, and the frames of each.

mod code;
mod find;
mod image;
mod layout;
pub mod lines;
mod walk;

pub(crate) use find::{Interpreter, find};
pub use image::{images, read_image};
pub use layout::LineTable;
pub(crate) use layout::{Layout, Version};

use std::collections::{HashMap, HashSet};

use nix::errno::Errno;
use record::ThreadWalk;

use self::code::{Codes, bytecode};
use self::layout::Instruction;
use self::walk::{RawFrame, Walk, agreement, of_own, to_walk, walk};
use super::memory::{Memory, int_at, word_at};
use super::own::{Asked, OwnWalks};
use super::process::{MOST_CPU, NO_TIME, Schedule, ThreadIds, cpu_time, thread_name, thread_state, wait_channel};
use super::types::{Frame, Limits, ThreadStack, ThreadState, Trust, shorten};

/// Most interpreters of one process (subinterpreters included) that are read.
const MAX_INTERPRETERS: usize = 64;
/// Most thread states of one process that are looked at: a process can make a list of any length.
const MAX_STATES: usize = 65_536;
/// Where C libraries keep a thread's kernel id, counted from its `pthread_t`: glibc and musl on
/// x86-64.
const PTHREAD_TID_OFFSETS: [u64; 2] = [720, 48];

/// Reads the Python stacks of one process.
#[derive(Debug)]
pub(crate) struct PythonReader {
    pid: u32,
    memory: Memory,
    interpreter: Interpreter,
    codes: Codes,
    ids: ThreadIds,
    names: HashMap<u32, String>,
    hints: HashMap<u64, Walk>,
    pub(super) asked: Asked<Thread>,
}

/// A thread that Python lists.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Thread {
    state_address: u64,
    tid: Option<u32>,
}

impl PythonReader {
    /// A reader of the process `pid`, in which `interpreter` was found.
    pub(crate) fn new(pid: u32, interpreter: Interpreter) -> PythonReader {
        PythonReader {
            pid,
            memory: Memory::of(pid),
            interpreter,
            codes: Codes::default(),
            ids: ThreadIds::default(),
            names: HashMap::new(),
            hints: HashMap::new(),
            asked: Asked::default(),
        }
    }

    /// Which CPython it is.
    pub(crate) fn version(&self) -> Version {
        self.interpreter.layout.version
    }

    /// Whether an interpreter has been started in the process.
    pub(crate) fn is_started(&self) -> bool {
        let head = self.memory.word(self.interpreter.runtime.wrapping_add(self.interpreter.layout.interpreters_head));
        head.is_ok_and(|head| head != 0)
    }

    /// The stacks of all threads now, and how many threads were left out. Running threads are asked
    /// to walk their frames themselves, and are not in it: [`Self::answered`] returns their stacks.
    pub(crate) fn read(
        &mut self,
        limits: &Limits,
        own: &mut Option<&mut dyn OwnWalks>,
    ) -> Result<(Vec<ThreadStack>, u32), Errno> {
        self.asked.threads.clear();
        let (threads, left_out) = self.threads(limits)?;
        let known: HashSet<u64> = threads.iter().map(|thread| thread.state_address).collect();
        self.hints.retain(|address, _| known.contains(address));
        self.names.retain(|tid, _| threads.iter().any(|thread| thread.tid == Some(*tid)));
        let mut stacks = Vec::with_capacity(threads.len());
        let began = cpu_time();
        for thread in threads {
            if cpu_time().saturating_sub(began) > MOST_CPU {
                stacks.push(self.unread(thread, limits));
                continue;
            }
            match self.read_thread(thread, limits, own) {
                Ok(Some(stack)) => stacks.push(stack),
                // The thread ended, and its thread state with it; or it was asked.
                Ok(None) | Err(Errno::EFAULT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((stacks, left_out))
    }

    /// A thread whose turn did not come in time.
    fn unread(&mut self, thread: Thread, limits: &Limits) -> ThreadStack {
        ThreadStack {
            tid: thread.tid.unwrap_or(0),
            name: thread.tid.map_or_else(String::new, |tid| self.name(tid, limits)),
            state: thread.tid.and_then(|tid| thread_state(self.pid, tid)).unwrap_or(ThreadState::Unknown),
            wait_channel: None,
            trust: Trust::Unread,
            frames: Vec::new(),
            outer_missing: false,
            note: Some(NO_TIME.into()),
        }
    }

    /// Asks a running thread; false where it is to be read from outside.
    fn has_been_asked(&mut self, thread: Thread, tid: u32, own: &mut Option<&mut dyn OwnWalks>) -> bool {
        let wanted = to_walk(&self.interpreter.layout, tid, thread.state_address);
        own.as_mut().zip(wanted).is_some_and(|(own, wanted)| self.asked.keep(thread, own.ask(&wanted)))
    }

    /// The stacks of the threads that were asked: their own walks, and where there is none a read
    /// from outside: a thread that fell asleep meanwhile, or got no CPU, does not change.
    pub(crate) fn answered(&mut self, limits: &Limits, walks: &[ThreadWalk]) -> Result<Vec<ThreadStack>, Errno> {
        let mut stacks = Vec::new();
        let began = cpu_time();
        for thread in std::mem::take(&mut self.asked.threads) {
            if cpu_time().saturating_sub(began) > MOST_CPU {
                stacks.push(self.unread(thread, limits));
                continue;
            }
            let own = walks.iter().find(|walk| Some(walk.tid) == thread.tid && walk.complete);
            let stack = match (own, thread.tid) {
                (Some(own), Some(tid)) => self.of_own(own, tid, limits).map(Some),
                _ => self.read_thread(thread, limits, &mut None),
            };
            match stack {
                Ok(stack) => stacks.extend(stack),
                Err(Errno::EFAULT) => {} // the thread ended
                Err(error) => return Err(error),
            }
        }
        Ok(stacks)
    }

    fn of_own(&mut self, own: &ThreadWalk, tid: u32, limits: &Limits) -> Result<ThreadStack, Errno> {
        let walk = of_own(&self.interpreter.layout, own, limits.frames);
        let found = self.resolve(&walk.frames, limits)?;
        let (frames, trust) = kept(found, walk.frames.len(), Trust::Own);
        Ok(ThreadStack {
            tid,
            name: self.name(tid, limits),
            state: ThreadState::Running,
            wait_channel: None,
            trust,
            frames,
            outer_missing: walk.truncated,
            note: None,
        })
    }

    fn threads(&mut self, limits: &Limits) -> Result<(Vec<Thread>, u32), Errno> {
        let layout = self.interpreter.layout;
        let mut threads = Vec::new();
        let mut left_out = 0;
        let mut seen = HashSet::new();
        let mut may_look_again = true;
        let mut interpreter = self.memory.word(self.interpreter.runtime.wrapping_add(layout.interpreters_head))?;
        for _ in 0..MAX_INTERPRETERS {
            if interpreter == 0 {
                break;
            }
            let mut state = self.memory.word(interpreter.wrapping_add(layout.threads_head))?;
            while state != 0 && seen.len() < MAX_STATES && seen.insert(state) {
                let bytes = match self.memory.read(state, thread_head_bytes(&layout)) {
                    Ok(bytes) => bytes,
                    Err(Errno::EFAULT) => break,
                    Err(error) => return Err(error),
                };
                // The list changes while it is read; a freed thread state does not point back.
                if word_at(&bytes, layout.thread_interpreter) != interpreter {
                    break;
                }
                if threads.len() < limits.threads {
                    let tid = self.thread_id(&bytes, &mut may_look_again);
                    threads.push(Thread { state_address: state, tid });
                } else {
                    left_out += 1;
                }
                state = word_at(&bytes, layout.thread_next);
            }
            interpreter = self.memory.word(interpreter.wrapping_add(layout.interpreter_next))?;
        }
        threads.sort_by_key(|thread| thread.tid.unwrap_or(u32::MAX));
        Ok((threads, left_out))
    }

    /// The kernel's id of a thread: Python keeps it from 3.11 on; before, the C library's
    /// descriptor of the thread has it. For one that is not known all are looked up again, once in
    /// a read.
    fn thread_id(&mut self, state: &[u8], may_look_again: &mut bool) -> Option<u32> {
        let layout = self.interpreter.layout;
        let candidates: Vec<u32> = match layout.native_thread_id {
            Some(offset) => vec![u32::try_from(word_at(state, offset)).ok()?],
            None => {
                let descriptor = word_at(state, layout.thread_id);
                let read = |offset: u64| self.memory.read(descriptor.wrapping_add(offset), 4).ok();
                PTHREAD_TID_OFFSETS.iter().filter_map(|o| u32::try_from(int_at(&read(*o)?, 0)).ok()).collect()
            }
        };
        let find = |ids: &ThreadIds| candidates.iter().find_map(|own| ids.outside(*own));
        if let Some(tid) = find(&self.ids) {
            return Some(tid);
        }
        if !std::mem::take(may_look_again) {
            return None;
        }
        self.ids = ThreadIds::of(self.pid).ok()?;
        find(&self.ids)
    }

    /// None for a thread that has ended, and for one that was asked.
    fn read_thread(
        &mut self,
        thread: Thread,
        limits: &Limits,
        own: &mut Option<&mut dyn OwnWalks>,
    ) -> Result<Option<ThreadStack>, Errno> {
        let pid = self.pid;
        let schedule = |tid| Schedule::of(pid, tid);
        let before = thread.tid.and_then(schedule);
        let state = match thread.tid {
            Some(tid) => match thread_state(pid, tid) {
                Some(state) => state,
                None => return Ok(None),
            },
            None => ThreadState::Unknown,
        };
        if let (ThreadState::Running, Some(tid)) = (state, thread.tid)
            && self.has_been_asked(thread, tid, own)
        {
            return Ok(None);
        }
        let wait = thread.tid.filter(|_| state.is_still()).and_then(|tid| wait_channel(pid, tid));
        let layout = self.interpreter.layout;
        let hint = self.hints.remove(&thread.state_address).unwrap_or_default();
        let first = walk(&self.memory, &layout, thread.state_address, &hint, limits.frames)?;
        // A running thread is read again at once: the longer the gap, the less the two reads have
        // in common. Of one that sleeps the names are read before the scheduler is asked again, so
        // that they are proven as well.
        let (memory, address) = (self.memory, thread.state_address);
        let again = || walk(&memory, &layout, address, &first, limits.frames);
        let mut second = if state.is_still() { None } else { Some(again()?) };
        let found = self.resolve(&first.frames, limits)?;
        let still = before.is_some() && before == thread.tid.and_then(schedule) && (first.complete || first.truncated);
        if second.is_none() && !still {
            second = Some(again()?);
        }
        let (trust, agreed) = match second {
            None => (Trust::Proven, first.frames.len()),
            Some(second) => {
                let agreed = agreement(&first, &second);
                (if agreed.complete { Trust::AgreedTwice } else { Trust::Torn }, agreed.frames)
            }
        };
        let (frames, trust) = kept(found, agreed, trust);
        let outer_missing = first.truncated;
        self.hints.insert(thread.state_address, first);
        Ok(Some(ThreadStack {
            tid: thread.tid.unwrap_or(0),
            name: thread.tid.map_or_else(String::new, |tid| self.name(tid, limits)),
            state,
            wait_channel: wait,
            trust,
            frames,
            outer_missing,
            note: None,
        }))
    }

    fn name(&mut self, tid: u32, limits: &Limits) -> String {
        let pid = self.pid;
        self.names.entry(tid).or_insert_with(|| shorten(&thread_name(pid, tid), limits.name_bytes, false)).clone()
    }

    /// Names and lines of frames, innermost first; `None` for a frame whose code object is not
    /// valid.
    fn resolve(&mut self, frames: &[RawFrame], limits: &Limits) -> Result<Vec<Option<Frame>>, Errno> {
        let layout = self.interpreter.layout;
        let mut addresses: Vec<u64> = frames.iter().map(|frame| frame.code).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let codes = self.codes.look_up(&self.memory, &self.interpreter, &addresses, limits.name_bytes)?;
        frames
            .iter()
            .map(|frame| {
                let Some(found) = codes.get(&frame.code) else { return Ok(None) };
                let offset = match layout.instruction {
                    Instruction::Index { unit_bytes, .. } => {
                        Some(frame.instruction.cast_signed().saturating_mul(unit_bytes))
                    }
                    Instruction::Pointer(_) => {
                        bytecode(&self.memory, &layout, frame.code, found.tlbc, frame.tlbc_index)?
                            .map(|start| frame.instruction.wrapping_sub(start).cast_signed())
                    }
                };
                Ok(Some(Frame::Python {
                    function: found.code.function.clone(),
                    file: found.code.file.clone(),
                    line: offset.and_then(|offset| found.code.line(&layout, offset)),
                }))
            })
            .collect()
    }
}

/// The frames that may be shown: the `agreed` outermost ones, up to the first that is no function.
/// Outermost first.
fn kept(found: Vec<Option<Frame>>, agreed: usize, trust: Trust) -> (Vec<Frame>, Trust) {
    let mut frames: Vec<Frame> = found.into_iter().rev().take(agreed).map_while(|frame| frame).collect();
    let complete = frames.len() == agreed;
    frames.retain(|frame| !is_interpreters_own(frame));
    (frames, if complete { trust } else { Trust::Torn })
}

/// From 3.12 on the interpreter puts a frame of its own between a class and its `__init__`; CPython
/// hides it from Python as well.
fn is_interpreters_own(frame: &Frame) -> bool {
    matches!(frame, Frame::Python { function, file, .. } if function == "__init__" && file == "__init__")
}

fn thread_head_bytes(layout: &Layout) -> usize {
    let fields =
        [layout.thread_next, layout.thread_interpreter, layout.thread_id, layout.native_thread_id.unwrap_or(0)];
    usize::try_from(fields.into_iter().max().unwrap_or(0) + 8).unwrap_or(0)
}
