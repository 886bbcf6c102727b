//! The ring of stretches off the CPU (`stretches` in `bpf/path.bpf.h`), mapped: an index of it, made
//! when it is asked, by thread and by how often that had left a CPU. Entries stay where they are.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use libbpf_rs::{MapCore, MapHandle};

use super::path::{STRETCH_BYTES, Stretch};
use crate::ring::Mapping;

/// Words of an entry; the first is its number, from 1, or 0 while it is written.
const WORDS: usize = STRETCH_BYTES / 8;
/// An entry that is not complete and so far behind the newest will not be.
const FAR_BEHIND: u64 = 1_024;

/// Why a stretch is not there: the ring has been written over, or it was not seen.
const OVERWRITTEN: &str = "overwritten";
const UNSEEN: &str = "unseen";

#[derive(Debug)]
pub(super) struct Switches {
    entries: Mapping,
    count: Mapping,
    /// Entries of the ring: a power of two.
    most: u64,
    /// Those before it are in the index.
    read_to: u64,
    /// Of threads, in order: how often it had left a CPU, and the entry.
    threads: HashMap<u32, VecDeque<(u32, u64)>>,
    /// Since when all is there.
    oldest_ns: u64,
}

// SAFETY: the mappings are its own and not bound to a thread, and what the programs write in them is
// read as atomic words.
unsafe impl Send for Switches {}

impl Switches {
    /// # Errors
    /// The kernel does not map it.
    pub(super) fn open(stretches: &MapHandle, count: &MapHandle) -> std::io::Result<Self> {
        let most = u64::from(stretches.max_entries());
        let map = |map: &MapHandle, bytes: usize| Mapping::new(map.as_fd().as_raw_fd(), bytes, libc::PROT_READ, 0);
        let entries = map(stretches, most as usize * STRETCH_BYTES)?;
        let count = map(count, 8)?;
        Ok(Self { entries, count, most, read_to: 0, threads: HashMap::new(), oldest_ns: 0 })
    }

    /// A word of a mapping.
    fn word(of: &Mapping, at: usize) -> &AtomicU64 {
        // SAFETY: the callers' offsets are within what was mapped, a mapping begins at a page, and
        // the programs write whole words.
        unsafe { of.start().add(at * 8).cast::<AtomicU64>().as_ref() }
    }

    /// Takes what is new into the index, and what was written over out of it.
    pub(super) fn read(&mut self) {
        let count = Self::word(&self.count, 0).load(Ordering::Acquire);
        let oldest = count.saturating_sub(self.most);
        for at in self.read_to.max(oldest)..count {
            match self.entry(at) {
                Some(stretch) => {
                    let known = self.threads.entry(stretch.tid).or_default();
                    // Another thread has the number now.
                    if known.back().is_some_and(|(switches, _)| *switches >= stretch.switches) {
                        known.clear();
                    }
                    known.push_back((stretch.switches, at));
                }
                None if count - at < FAR_BEHIND => {
                    self.read_to = at;
                    return self.forget(oldest);
                }
                None => (),
            }
        }
        self.read_to = count;
        self.forget(oldest);
    }

    fn forget(&mut self, oldest: u64) {
        self.threads.retain(|_, known| {
            while known.front().is_some_and(|(_, at)| *at < oldest) {
                known.pop_front();
            }
            !known.is_empty()
        });
        if oldest > 0 {
            // Those next to it may be written over while we read.
            let near = (oldest..oldest + FAR_BEHIND).find_map(|at| self.entry(at));
            self.oldest_ns = near.map_or(u64::MAX, |stretch| stretch.on_ns);
        }
    }

    /// An entry by its place in all that there were. None where it is not written yet, or written
    /// over.
    fn entry(&self, at: u64) -> Option<Stretch> {
        let first = (at & (self.most - 1)) as usize * WORDS;
        let number = || Self::word(&self.entries, first);
        if number().load(Ordering::Acquire) != at + 1 {
            return None;
        }
        let mut bytes = [0; STRETCH_BYTES - 8];
        for (word, to) in bytes.chunks_exact_mut(8).enumerate() {
            to.copy_from_slice(&Self::word(&self.entries, first + 1 + word).load(Ordering::Relaxed).to_ne_bytes());
        }
        fence(Ordering::Acquire);
        if number().load(Ordering::Relaxed) == at + 1 { Stretch::parse(&bytes) } else { None }
    }

    /// The stretch after which a thread that had left a CPU so often came back, before this time.
    ///
    /// # Errors
    /// Why it is not known.
    pub(super) fn find(&self, tid: u32, switches: u32, at_ns: u64) -> Result<Stretch, &'static str> {
        let missing = if at_ns < self.oldest_ns { OVERWRITTEN } else { UNSEEN };
        let known = self.threads.get(&tid).ok_or(missing)?;
        let place = known.binary_search_by_key(&switches, |(switches, _)| *switches).map_err(|place| {
            // The thread's older ones are gone.
            if place == 0 && self.oldest_ns > 0 { OVERWRITTEN } else { missing }
        })?;
        let (_, at) = known.get(place).ok_or(missing)?;
        self.entry(*at).ok_or(OVERWRITTEN)
    }
}
