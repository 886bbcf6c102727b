//! Communicators whose start was not seen, or whose start does not contain their rank (splits):
//! read from the memory of the process, where NCCL keeps them, by the layout in its library file
//! (which the crate `files` reads). The result goes into the kernel's map `learnt`, so that the
//! programs add it to every later call, and drop it with the communicator.

use std::collections::HashMap;

use files::{Answer, CommLayout, Question, Ticket};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use parking_lot::Mutex;

use crate::memory::Memory;
use crate::wire::{self, RawCall};
use crate::{libraries, maps, procfs};
use record::Library;

/// `NCCL_MAGIC`: the value of `startMagic` in a communicator that is alive (2.20 and later).
const MAGIC: u64 = 0x0280_0280_0280_0280;
/// No communicator is larger.
const MOST_RANKS: i32 = 1 << 20;

/// The contents of a communicator's structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CommFacts {
    pub(crate) rank: i32,
    pub(crate) nranks: i32,
    pub(crate) hash: Option<u64>,
}

/// Layouts by process, and the map for the results.
#[derive(Debug)]
pub(crate) struct LateComms {
    learnt: MapHandle,
    known: Mutex<Known>,
}

/// A file as maps show it: device and inode.
pub(crate) type MappedAs = (Vec<u8>, u64);

#[derive(Debug, Default)]
struct Known {
    /// None: not found.
    of_process: HashMap<u32, Option<Ticket>>,
    /// Of the files that processes have mapped now.
    of_file: HashMap<MappedAs, Ticket>,
}

/// What is asked of a library file.
pub(crate) fn question() -> Question {
    Question::CommLayout
}

impl LateComms {
    pub(crate) fn new(learnt: MapHandle) -> Self {
        LateComms { learnt, known: Mutex::default() }
    }

    fn known(&self) -> parking_lot::MutexGuard<'_, Known> {
        self.known.lock()
    }

    /// Records that `pid` has this library file mapped, of which was asked.
    pub(crate) fn maps(&self, pid: u32, file: MappedAs, ticket: Ticket) {
        let mut known = self.known();
        known.of_process.insert(pid, Some(ticket.clone()));
        known.of_file.insert(file, ticket);
    }

    /// Records that nobody has this file mapped any more.
    pub(crate) fn unmapped(&self, file: &MappedAs) {
        self.known().of_file.remove(file);
    }

    /// The answer of the library that `pid` calls. Discovery has asked, unless the process is very
    /// young: then another's with the same file is of use.
    fn ticket(&self, pid: u32) -> Option<Ticket> {
        if let Some(looked) = self.known().of_process.get(&pid) {
            return looked.clone();
        }
        let text = procfs::read(pid, "maps").ok()?;
        let of_nccl = |m: &maps::Mapping<'_>| {
            m.executable && matches!(libraries::library_of(m.file_name()), Some(Library::Nccl | Library::Rccl))
        };
        let mut known = self.known();
        let of_file = |m: maps::Mapping<'_>| known.of_file.get(&(m.device.to_vec(), m.inode)).cloned();
        let found = maps::mappings(&text).filter(of_nccl).find_map(of_file)?;
        known.of_process.insert(pid, Some(found.clone()));
        Some(found)
    }

    /// The layout of the library that `pid` calls, when it is known.
    fn layout(&self, pid: u32) -> Option<CommLayout> {
        let ticket = self.ticket(pid)?;
        let Some(Ok(answer)) = ticket.outcome() else { return None };
        let Answer::CommLayout(layout) = &**answer else { return None };
        Some(*layout)
    }

    /// Whether a call lacks what will be known when the library's file has been read.
    pub(crate) fn is_awaited(&self, call: &RawCall, handle: u64) -> bool {
        let all = wire::HAVE_HASH | wire::HAVE_RANK;
        handle != 0
            && call.flags & all != all
            && self
                .known()
                .of_process
                .get(&call.pid)
                .is_some_and(|of| of.as_ref().is_some_and(|t| t.outcome().is_none()))
    }

    pub(crate) fn forget(&self, pid: u32) {
        self.known().of_process.remove(&pid);
    }

    /// Completes a call of NCCL or RCCL that lacks its rank or its communicator's hash.
    pub(crate) fn complete(&self, call: &mut RawCall, handle: u64) {
        let all = wire::HAVE_HASH | wire::HAVE_RANK;
        if handle == 0 || call.flags & all == all {
            return;
        }
        let Some(facts) = self.layout(call.pid).and_then(|layout| read(call.pid, handle, &layout)) else { return };
        call.rank = facts.rank;
        call.nranks = facts.nranks;
        call.flags |= wire::HAVE_RANK;
        if let Some(hash) = facts.hash {
            call.comm_hash = hash;
            call.flags |= wire::HAVE_HASH;
        }
        let (key, value) = (wire::comm_key(call.pid, handle), wire::comm_value(call, call.flags & all));
        if let Err(error) = self.learnt.update(&key, &value, MapFlags::ANY) {
            tracing::debug!(%error, "a communicator is not remembered"); // the next call is completed again
        }
    }
}

/// Reads the structure at `handle`; none when the process is gone, or there is no living
/// communicator at that address.
pub(crate) fn read(pid: u32, handle: u64, layout: &CommLayout) -> Option<CommFacts> {
    let memory = Memory::of(pid);
    let number = |at: u64| memory.array(handle.checked_add(at)?).map(i32::from_ne_bytes);
    let word = |at: u64| memory.word(handle.checked_add(at)?);
    if let Some(at) = layout.magic
        && word(at) != Some(MAGIC)
    {
        return None;
    }
    let (rank, nranks) = (number(layout.rank)?, number(layout.nranks)?);
    let hash = match layout.hash {
        Some(at) => Some(word(at)?).filter(|hash| *hash != 0),
        None => None,
    };
    let sane = (1..=MOST_RANKS).contains(&nranks) && (0..nranks).contains(&rank);
    sane.then_some(CommFacts { rank, nranks, hash })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(layout: &CommLayout, rank: i32, nranks: i32, hash: u64) -> Vec<u8> {
        let mut bytes = vec![0xa5; 4096];
        let mut put = |at: u64, value: &[u8]| bytes[at as usize..at as usize + value.len()].copy_from_slice(value);
        put(layout.rank, &rank.to_ne_bytes());
        put(layout.nranks, &nranks.to_ne_bytes());
        put(layout.hash.unwrap(), &hash.to_ne_bytes());
        put(layout.magic.unwrap(), &MAGIC.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_structure_in_our_own_memory_and_what_is_none() {
        let layout = CommLayout { rank: 1000, nranks: 1004, hash: Some(992), magic: Some(0) };
        let (pid, hash) = (std::process::id(), 0xfeed_0000_0000_0001);
        let at = |bytes: &Vec<u8>| read(pid, bytes.as_ptr() as u64, &layout);
        let good = place(&layout, 5, 8, hash);
        assert_eq!(at(&good), Some(CommFacts { rank: 5, nranks: 8, hash: Some(hash) }));
        assert_eq!(at(&place(&layout, 8, 8, hash)), None);
        assert_eq!(at(&place(&layout, 0, 0, hash)), None);
        let mut dead = good.clone();
        dead[0] = 0;
        assert_eq!(at(&dead), None, "not alive");
        let blind = CommLayout { hash: None, ..layout };
        assert_eq!(read(pid, good.as_ptr() as u64, &blind).unwrap().hash, None);
        assert_eq!(read(pid, 8, &layout), None, "nothing is mapped there");
        assert_eq!(read(pid, u64::MAX - 3, &layout), None);
    }
}
