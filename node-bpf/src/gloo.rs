//! gloo, alone and within PyTorch: where its functions are in a file, and what a call's words mean.
//! The programs are in `bpf/gloo.bpf.h`.
//!
//! Its collectives take one argument, the address of their options (`gloo/allreduce.h` and its
//! like). The positions of their members are those of libstdc++ on 64-bit machines; they were the
//! same in Debian's libgloo of 2022 and in PyTorch 2.15; of versions between none was run.
//! Exceptions leave these functions, so that they have no return probe: their ends are probed.

use std::sync::Arc;

use files::{Answer, EntryAndEnds, Question};

use crate::functions::{self, Api, FUNCTIONS, Role};
use crate::memory::Memory;
use crate::mpi::identity::fnv;
use crate::process::Process;
use crate::symbols::Target;
use crate::wire::{self, RawCall, RawInFlight};
use record::{Collective, Library};

/// The places of the probes in a file.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Entries of collectives.
    pub(crate) entries: Vec<Target>,
    /// Their ends.
    pub(crate) exits: Vec<Target>,
    /// Entries of functions that make or end a communicator.
    pub(crate) changes: Vec<Target>,
}

/// Of a collective: the word of its options with the address of a buffer, whose size is what this
/// rank gives (none where elements are counted), and the byte with its tag.
const OPTIONS: &[(&str, Option<u8>, u8)] = &[
    ("all_reduce", None, 128),
    ("all_gather", Some(2), 40),
    ("all_gather_v", Some(2), 64),
    ("all_to_all", Some(2), 40),
    ("all_to_all_v", Some(2), 136),
    ("barrier", None, 24),
    ("broadcast", None, 52),
    ("gather", Some(2), 44),
    ("gather_v", Some(2), 68),
    ("reduce", None, 88),
    ("scatter", Some(5), 60),
];

/// The virtual functions of `gloo::Context`, which it begins with up to 2025.
const VTABLE: &str = "_ZTVN4gloo7ContextE";
/// The `connectFullMesh` that takes its store by the address of a `std::shared_ptr`.
const BY_SHARED_POINTER: &str = "connectFullMeshESt10shared_ptr";

fn functions_of_gloo() -> impl Iterator<Item = (usize, &'static functions::Function)> {
    FUNCTIONS.iter().enumerate().filter(|(_, function)| function.api == Api::Gloo)
}

/// What a file is asked: where its functions begin and end, and how its contexts begin.
pub(crate) fn questions() -> Vec<Question> {
    let names = |function: &functions::Function| function.symbols.iter().map(|name| (*name).to_owned()).collect();
    let names = functions_of_gloo().map(|(_, function)| names(function)).collect();
    vec![Question::Ends { names }, Question::Exports { prefixes: vec![VTABLE.to_owned()] }]
}

/// The probes for a file by its answers; empty when it exports none of gloo's collectives.
pub(crate) fn places(answers: &[Arc<Answer>]) -> Result<Places, String> {
    let [ends, exports] = answers else { return Err("it was asked something else".to_owned()) };
    let (Answer::Ends(found), Answer::Exports(exports)) = (&**ends, &**exports) else {
        return Err("it was asked something else".to_owned());
    };
    let has_vtable = exports.symbols.iter().any(|symbol| symbol.name == VTABLE);
    let mut places = Places::default();
    for ((index, function), found) in functions_of_gloo().zip(found) {
        let Some(EntryAndEnds { entry, ends }) = found else { continue };
        let symbol = function.symbols.first().copied().unwrap_or_default();
        let cookie = cookie(index, function, has_vtable);
        let target = |file_offset| Target { symbol: symbol.into(), file_offset, cookie, semaphore: 0 };
        if function.role != Role::Call {
            places.changes.push(target(*entry));
        } else if ends.is_empty() {
            tracing::debug!(symbol, "no return is found in its code: its calls are not recorded");
        } else {
            places.entries.push(target(*entry));
            places.exits.extend(ends.iter().copied().map(target));
        }
    }
    if places.entries.is_empty() { Ok(Places::default()) } else { Ok(places) }
}

fn cookie(index: usize, function: &functions::Function, has_vtable: bool) -> u64 {
    // `RM_COOKIE_GLOO_VTABLE`
    let mut bytes = functions::cookie(index, u8::from(has_vtable)).to_le_bytes();
    let by_shared_pointer = function.symbols.iter().any(|symbol| symbol.contains(BY_SHARED_POINTER));
    match OPTIONS.iter().find(|(name, ..)| *name == function.name && function.role == Role::Call) {
        Some((_, buffer, tag)) => [bytes[6], bytes[7]] = [buffer.unwrap_or(functions::NO_ARG), tag / 4],
        None => bytes[2] = u8::from(by_shared_pointer),
    }
    u64::from_le_bytes(bytes)
}

/// What a call's words say, into its record.
pub(crate) fn decode(out: &mut Collective, raw: &RawCall, function: &functions::Function, process: Option<&Process>) {
    out.library = Library::Gloo;
    out.tier = 1; // it returns when it is done
    let [_, buffer_bytes, tag, ..] = raw.args;
    let word = |at: Option<u8>| at.and_then(|at| raw.args.get(usize::from(at)).copied());
    let element_bytes = word(function.datatype).filter(|bytes| *bytes > 0);
    let of_buffer = Some(buffer_bytes).filter(|bytes| *bytes > 0);
    if out.count.is_none() {
        out.bytes = of_buffer;
        out.count = of_buffer.zip(element_bytes).map(|(bytes, each)| bytes / each);
    } else {
        out.bytes = out.count.zip(element_bytes).and_then(|(count, each)| count.checked_mul(each));
    }
    if raw.flags & wire::HAVE_RANK != 0 {
        (out.rank, out.nranks) = (Some(raw.rank), Some(raw.nranks));
    }
    let Some(process) = process else { return };
    out.comm_hash = (raw.flags & wire::HAVE_HASH != 0).then(|| identity(raw.comm_hash, process)).flatten();
    // PyTorch numbers the operations of a group by their tags, and hands them to several threads.
    if process.has_torch() {
        out.comm_seq = Some(tag & u64::from(u32::MAX));
    }
}

/// The identity of a communicator, of what its stores call it in this job. None where neither a job
/// is known nor a file, which is the job's own.
fn identity(name: u64, process: &Process) -> Option<u64> {
    let is_path = name & 1 == 1;
    match process.torch_namespace.as_deref() {
        None if !is_path => None,
        namespace => Some(fnv(namespace.unwrap_or_default().bytes().chain([0]).chain(name.to_le_bytes()))),
    }
}

/// Whether a thread has left its call by an exception, which does not come to the function's ends:
/// then its stack no longer reaches to where the call's began, or another call has been there since
/// and the address that the call returns to is gone (`gloo_options` notes it).
pub(crate) fn left_by_exception(open: &RawInFlight) -> bool {
    let RawInFlight { sp, call, .. } = open;
    if FUNCTIONS.get(usize::from(call.func)).is_none_or(|function| function.api != Api::Gloo) {
        return false;
    }
    let [_, _, _, returns_to, ..] = call.args;
    let overwritten = Memory::of(call.pid).word(*sp).is_some_and(|word| word != returns_to);
    if returns_to != 0 && overwritten {
        return true;
    }
    let text = std::fs::read_to_string(format!("/proc/{}/task/{}/syscall", call.pid, call.tid)).unwrap_or_default();
    stack_pointer(&text).is_some_and(|now| now > *sp)
}

/// The stack pointer in the text of `/proc/PID/task/TID/syscall`; none of a thread that runs.
fn stack_pointer(text: &str) -> Option<u64> {
    let hex = text.split_whitespace().rev().nth(1)?.strip_prefix("0x")?;
    u64::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    fn call(symbol: &str, words: [u64; 12]) -> Collective {
        let func = FUNCTIONS.iter().position(|f| f.symbols.iter().any(|name| name.contains(symbol))).unwrap() as u8;
        let raw = RawCall {
            func,
            flags: wire::HAVE_HASH | wire::HAVE_RANK | wire::HAVE_SEQ,
            enter_ns: 1_000,
            exit_ns: 5_000,
            pid: std::process::id(),
            tid: 1,
            cgroup_id: 9,
            comm_hash: 0xabc,
            seq: 4,
            comm_seq: wire::NO_POSITION,
            rank: 2,
            nranks: 8,
            ret: 0,
            args: words,
            site: 0,
        };
        crate::decode::call(&raw, &Clock::measure(), None).unwrap()
    }

    #[test]
    fn the_words_of_options() {
        let reduced = call("9allreduceE", [0x7000, 0, 5, 0, 0, 0, 0, 1, 2, 3, 100, 4]);
        assert_eq!((reduced.func, reduced.library, reduced.tier), ("all_reduce", Library::Gloo, 1));
        assert_eq!((reduced.count, reduced.bytes, reduced.root, reduced.ret), (Some(100), Some(400), None, Some(0)));
        assert_eq!((reduced.rank, reduced.nranks, reduced.seq), (Some(2), Some(8), Some(4)));
        assert_eq!((reduced.comm_hash, reduced.comm_seq), (None, None), "whose communicator it is says the process");
        let gathered = call("9allgatherE", [0x7000, 64, 5, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((gathered.count, gathered.bytes), (Some(8), Some(64)));
        // the root is an int, the other half of its word the tag
        let sent = call("9broadcastE", [0x7000, 0, 5, 0, 10, 2, 7 << 32 | 3, 0, 0, 0, 0, 0]);
        assert_eq!((sent.count, sent.bytes, sent.root), (Some(10), Some(20), Some(3)));
        let barrier = call("7barrierE", [0x7000, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((barrier.func, barrier.count, barrier.bytes), ("barrier", None, None));
    }

    #[test]
    fn every_collective_has_its_options() {
        for (index, function) in FUNCTIONS.iter().enumerate().filter(|(_, f)| f.api == Api::Gloo) {
            let bytes = cookie(index, function, true).to_le_bytes();
            let flags = functions::COOKIE_GLOO | 1;
            assert_eq!((bytes[0], bytes[1], bytes[4]), (index as u8, function.role as u8, flags), "{}", function.name);
            let known = OPTIONS.iter().find(|(name, ..)| *name == function.name);
            assert_eq!(known.is_some(), function.role == Role::Call, "{}", function.name);
            if let Some((_, _, tag)) = known {
                assert_eq!((tag % 4, bytes[7]), (0, tag / 4));
            }
        }
        let by_pointer = FUNCTIONS.iter().filter(|f| f.symbols.iter().any(|symbol| symbol.contains(BY_SHARED_POINTER)));
        assert_eq!(by_pointer.count(), 1);
    }

    #[test]
    fn stack_pointers_of_threads() {
        let text = "202 0x7f00 0x189 0x0 0x0 0x0 0x0 0x7ffd5c1e7a10 0x7f3a\n";
        assert_eq!(stack_pointer(text), Some(0x7ffd_5c1e_7a10));
        assert_eq!((stack_pointer("running\n"), stack_pointer("")), (None, None));
        assert_eq!(stack_pointer("-1 0x7ffd5c1e7a18 0x7f3a\n"), Some(0x7ffd_5c1e_7a18), "it waits outside a call");
    }
}
