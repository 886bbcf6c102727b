//! The native stacks of a process without Python, by the unwind tables of its programs.
//!
//! The kernel reports the stack pointer and the program counter of a sleeping thread; the stack is
//! copied once and followed by `.eh_frame`. A running thread's registers cannot be read from
//! outside without stopping it: a helper ([`OwnWalks`]) copies them, and the top of its stack, in
//! the thread's own context.

mod modules;
mod symbols;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{FrameAddress, Unwinder};
use nix::errno::Errno;
use record::ThreadWalk;

use self::modules::Module;
use self::symbols::{KnownFunctions, functions, unnamed};
use super::memory::{Memory, word_at};
use super::modules::{Files, Mapping, mappings};
use super::own::{Asked, OwnWalks};
use super::process::{
    MOST_CPU, NO_TIME, Schedule, blocked_registers, cpu_time, refused, thread_ids, thread_name, thread_state,
    wait_channel,
};
use super::tables::TableBytes;
use super::types::{Frame, Limits, StacksError, ThreadStack, ThreadState, Trust, shorten};

/// Bytes of a stack that are copied.
const STACK_BYTES: usize = 32 << 10;
/// How long the list of mapped files is used without a new read, as long as all addresses are in
/// it.
const MAPS_AGE: Duration = Duration::from_secs(2);
/// Note of a thread that ran, where no helper copied its stack.
const RUNNING: &str = "running: its native stack is not readable from outside";
/// A note's length.
const NOTE_BYTES: usize = 300;
/// The longest call instruction.
const CALL_BYTES: u64 = 7;

/// Reads the native stacks of one process.
pub(crate) struct NativeReader {
    pid: u32,
    memory: Memory,
    reading: files::Files,
    unwinder: UnwinderX86_64<TableBytes>,
    cache: CacheX86_64,
    modules: Vec<Module>,
    /// Code whose file is not known, or whose unwind tables are not read, and why.
    refused: Vec<(Mapping, String)>,
    /// Addresses whose unwind tables were looked over, and whether following them ends.
    looked_over: HashMap<u64, bool>,
    probes: Option<(u64, u64)>,
    mapped_at: Instant,
    functions: KnownFunctions,
    pub(super) asked: Asked<u32>,
}

impl std::fmt::Debug for NativeReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeReader").field("pid", &self.pid).field("modules", &self.modules.len()).finish()
    }
}

/// The addresses of one thread's functions, innermost first.
#[derive(Debug, Default)]
struct Addresses {
    addresses: Vec<u64>,
    outer_missing: bool,
    return_probe: bool,
    /// Where the stack goes on that ends because code is not known.
    unknown: Option<u64>,
}

impl NativeReader {
    /// A reader of the process `pid`.
    pub(crate) fn new(pid: u32, mappings: &[Mapping], files: &mut Files) -> NativeReader {
        let mut reader = NativeReader {
            pid,
            memory: Memory::of(pid),
            reading: files.reading.clone(),
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new(),
            modules: Vec::new(),
            refused: Vec::new(),
            looked_over: HashMap::new(),
            probes: None,
            mapped_at: Instant::now(),
            functions: KnownFunctions::default(),
            asked: Asked::default(),
        };
        reader.take_modules(mappings, files);
        reader
    }

    /// Whether the list of mapped files is so old that it should be read again.
    pub(crate) fn is_stale(&self) -> bool {
        self.mapped_at.elapsed() > MAPS_AGE
    }

    /// The stacks of all threads now, and how many threads were left out. Those of running threads
    /// are asked for, and not in it: [`Self::answered`] returns them.
    pub(crate) fn read(
        &mut self,
        files: &mut Files,
        limits: &Limits,
        own: &mut Option<&mut dyn OwnWalks>,
    ) -> Result<(Vec<ThreadStack>, u32), StacksError> {
        self.asked.threads.clear();
        if self.is_stale() {
            let now = mappings(self.pid)?;
            self.take_modules(&now, files);
        }
        let tids = thread_ids(self.pid)?;
        let left_out = u32::try_from(tids.len().saturating_sub(limits.threads)).unwrap_or(u32::MAX);
        let mut read = Vec::new();
        let began = cpu_time();
        for tid in tids.into_iter().take(limits.threads) {
            if cpu_time().saturating_sub(began) < MOST_CPU {
                read.extend(self.read_thread(tid, limits, own)?);
                continue;
            }
            read.push((self.without_time(tid, limits), Addresses::default()));
        }
        Ok((self.named(read, limits), left_out))
    }

    /// The stacks of the threads that ran at the last read: as they were copied, and where there is
    /// no copy as they are now, since such a thread may have fallen asleep.
    pub(crate) fn answered(&mut self, limits: &Limits, walks: &[ThreadWalk]) -> Result<Vec<ThreadStack>, StacksError> {
        let mut read = Vec::new();
        let began = cpu_time();
        for tid in std::mem::take(&mut self.asked.threads) {
            if cpu_time().saturating_sub(began) >= MOST_CPU {
                read.push((self.without_time(tid, limits), Addresses::default()));
                continue;
            }
            let copy = walks.iter().find(|walk| walk.tid == tid).and_then(|walk| walk.stack.as_ref());
            let Some(copy) = copy else {
                read.extend(self.read_thread(tid, limits, &mut None)?);
                continue;
            };
            let mut addresses = self.unwind((copy.sp, copy.pc, copy.fp), &copy.bytes, limits);
            self.drop_unlikely(&mut addresses);
            let mut stack = self.unread(tid, ThreadState::Running, limits);
            (stack.trust, stack.outer_missing) = (Trust::Own, addresses.outer_missing);
            read.push((stack, addresses));
        }
        Ok(self.named(read, limits))
    }

    fn named(&mut self, read: Vec<(ThreadStack, Addresses)>, limits: &Limits) -> Vec<ThreadStack> {
        self.name_all(read.iter().map(|(_, addresses)| addresses), limits);
        let stacks = read.into_iter().map(|(stack, addresses)| self.finish(stack, &addresses)).collect();
        self.functions.keep_small();
        stacks
    }

    fn unread(&self, tid: u32, state: ThreadState, limits: &Limits) -> ThreadStack {
        ThreadStack {
            tid,
            name: shorten(&thread_name(self.pid, tid), limits.name_bytes, false),
            state,
            wait_channel: None,
            trust: Trust::Unread,
            frames: Vec::new(),
            outer_missing: false,
            note: None,
        }
    }

    /// A thread whose turn did not come in time.
    fn without_time(&self, tid: u32, limits: &Limits) -> ThreadStack {
        let state = thread_state(self.pid, tid).unwrap_or(ThreadState::Unknown);
        ThreadStack { note: Some(NO_TIME.into()), ..self.unread(tid, state, limits) }
    }

    /// `None` for a thread that ended, and for one that was asked.
    fn read_thread(
        &mut self,
        tid: u32,
        limits: &Limits,
        own: &mut Option<&mut dyn OwnWalks>,
    ) -> Result<Option<(ThreadStack, Addresses)>, StacksError> {
        let before = Schedule::of(self.pid, tid);
        let Some(state) = thread_state(self.pid, tid) else { return Ok(None) };
        if let (ThreadState::Running, Some(own)) = (state, own)
            && self.asked.keep(tid, own.ask_stack(tid))
        {
            return Ok(None);
        }
        let mut stack = self.unread(tid, state, limits);
        if !state.is_still() {
            stack.note = Some(RUNNING.into());
            return Ok(Some((stack, Addresses::default())));
        }
        stack.wait_channel = wait_channel(self.pid, tid);
        let registers = match blocked_registers(self.pid, tid) {
            Ok(registers) => registers,
            Err(StacksError::Ended { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some((sp, pc)) = registers else {
            stack.state = ThreadState::Running;
            stack.note = Some(RUNNING.into());
            return Ok(Some((stack, Addresses::default())));
        };
        let copy = match self.memory.read_up_to(sp, STACK_BYTES) {
            Ok(copy) => copy,
            Err(Errno::EFAULT) => Vec::new(),
            Err(Errno::ESRCH) => return Ok(None),
            Err(errno) => return Err(refused(self.pid, errno)),
        };
        let mut addresses = self.unwind((sp, pc, 0), &copy, limits);
        self.drop_unlikely(&mut addresses);
        if before.is_some() && before == Schedule::of(self.pid, tid) {
            stack.trust = Trust::Proven;
        } else {
            stack.trust = Trust::Torn;
            stack.note = Some("it ran while its stack was read".into());
            addresses = Addresses::default();
        }
        stack.outer_missing = addresses.outer_missing;
        Ok(Some((stack, addresses)))
    }

    /// The functions by a copy of the stack, from stack pointer, program counter and frame pointer
    /// on.
    fn unwind(&mut self, (sp, pc, fp): (u64, u64, u64), copy: &[u8], limits: &Limits) -> Addresses {
        let mut read_stack = |address: u64| {
            let at = address.checked_sub(sp).filter(|at| *at < copy.len() as u64 && copy.len() as u64 - at >= 8);
            at.map(|at| word_at(copy, at)).ok_or(())
        };
        // Of a sleeping thread the kernel does not report rbp: 0. A function that needs it, with no
        // inner one that saved it, ends the stack here.
        let mut registers = UnwindRegsX86_64::new(pc, sp, fp);
        let mut found = Addresses::default();
        let mut at = FrameAddress::from_instruction_pointer(pc);
        loop {
            if self.probes.is_some_and(|(start, end)| (start..end).contains(&at.address())) {
                (found.return_probe, found.outer_missing) = (true, true);
                return found;
            }
            if self.module(at.address_for_lookup()).is_none() {
                // Code without a file: made at run time, or a list of mapped files that is out of
                // date.
                (found.outer_missing, found.unknown) = (true, Some(at.address_for_lookup()));
                self.mapped_at = self.mapped_at.checked_sub(MAPS_AGE).unwrap_or(self.mapped_at);
                return found;
            }
            if found.addresses.len() >= limits.frames {
                found.outer_missing = true;
                return found;
            }
            found.addresses.push(at.address_for_lookup());
            if !self.may_follow(at.address_for_lookup()) {
                (found.outer_missing, found.unknown) = (true, Some(at.address_for_lookup()));
                return found;
            }
            match self.unwinder.unwind_frame(at, &mut registers, &mut self.cache, &mut read_stack) {
                Ok(Some(address)) => match FrameAddress::from_return_address(address) {
                    Some(next) => at = next,
                    None => return found,
                },
                Ok(None) => return found,
                Err(_) => {
                    found.outer_missing = true;
                    return found;
                }
            }
        }
    }

    /// Cuts a stack at the first return address that no call instruction precedes: from there on it
    /// was followed wrongly.
    fn drop_unlikely(&self, found: &mut Addresses) {
        let wanted: Vec<(u64, usize)> = found.addresses.iter().skip(1).map(|a| (a + 1 - CALL_BYTES, 7)).collect();
        let Ok(pieces) = self.memory.read_pieces(&wanted) else { return };
        let calls = pieces.iter().take_while(|piece| ends_with_call(&piece.bytes)).count();
        if calls < wanted.len() {
            found.addresses.truncate(calls + 1);
            (found.outer_missing, found.return_probe, found.unknown) = (true, false, None);
        }
    }

    /// Finds the names of all addresses that have none yet: in functions that were found before,
    /// else in one pass over each file's symbols.
    fn name_all<'a>(&mut self, found: impl Iterator<Item = &'a Addresses>, limits: &Limits) {
        self.functions.keep_small();
        let mut by_module: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for address in found.flat_map(|found| &found.addresses) {
            if let Some(index) = self.module_index(*address).filter(|_| self.functions.name(*address).is_none()) {
                by_module.entry(index).or_default().push(*address);
            }
        }
        for (index, mut addresses) in by_module {
            addresses.sort_unstable();
            addresses.dedup();
            let module = &self.modules[index];
            let bias = module.bias;
            let in_file: Vec<u64> = addresses.iter().map(|address| address.wrapping_sub(bias)).collect();
            let Some(found) = functions(&self.reading, self.pid, &module.mapping, &in_file) else { continue };
            for ((address, in_file), function) in addresses.into_iter().zip(in_file).zip(found) {
                self.functions.keep(address, in_file, function, limits.name_bytes);
            }
        }
    }

    fn finish(&self, mut stack: ThreadStack, found: &Addresses) -> ThreadStack {
        if found.return_probe {
            stack.frames.push(Frame::ReturnProbe);
        }
        stack.frames.extend(found.addresses.iter().rev().filter_map(|address| {
            let module = self.module(*address)?;
            let named = self.functions.name(*address).map(ToOwned::to_owned);
            let function = named.unwrap_or_else(|| unnamed(address.wrapping_sub(module.bias)));
            Some(Frame::Native { function, module: module.name.clone() })
        }));
        let is_in = |at: u64| move |(mapping, _): &&(Mapping, String)| (mapping.start..mapping.end).contains(&at);
        if let Some((mapping, refusal)) = found.unknown.and_then(|at| self.refused.iter().find(is_in(at)))
            && stack.note.is_none()
        {
            let note = format!("its outer functions are missing: {}: {refusal}", mapping.path);
            stack.note = Some(shorten(&note, NOTE_BYTES, false));
        }
        stack
    }
}

/// Whether the seven bytes before a return address end with a call: `E8` with an offset, or `FF /2`
/// with any operand.
fn ends_with_call(bytes: &[u8]) -> bool {
    let from_end = |back: usize| bytes.len().checked_sub(back).and_then(|at| bytes.get(at)).copied();
    if from_end(5) == Some(0xE8) {
        return true;
    }
    (2..=7).any(|length| {
        let is_call = |back: usize| from_end(back) == Some(0xFF) && from_end(back - 1).is_some_and(|m| m >> 3 & 7 == 2);
        is_call(length)
    })
}

#[cfg(test)]
mod tests {
    use super::ends_with_call;

    #[test]
    fn calls_are_recognised_before_a_return_address() {
        assert!(ends_with_call(&[0, 0, 0xE8, 1, 2, 3, 4])); // call rel32
        assert!(ends_with_call(&[0, 0, 0, 0, 0, 0xFF, 0xD0])); // call *%rax
        assert!(ends_with_call(&[0, 0xFF, 0x15, 1, 2, 3, 4])); // call *offset(%rip)
        assert!(ends_with_call(&[0, 0, 0, 0, 0xFF, 0x50, 0x18])); // call *0x18(%rax)
        assert!(!ends_with_call(&[0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90]));
        assert!(!ends_with_call(&[]));
    }
}
