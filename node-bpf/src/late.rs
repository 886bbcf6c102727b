//! Communicators whose start was not seen, or whose start does not contain their rank (splits):
//! read from the memory of the process, where NCCL keeps them, by the layout in its library file
//! (which the crate `files` reads), or in a process with a stripped library by the place at which a
//! communicator of it holds what its init was given. The result goes into the kernel's map `learnt`,
//! so that the programs add it to every later call, and drop it with the communicator.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use files::{Answer, CommLayout, Files, Question, Ticket};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use parking_lot::Mutex;

use crate::maps::{self, FileKey, Mapping};
use crate::memory::Memory;
use crate::rooms::Share;
use crate::wire::{self, RawCall};
use crate::{libraries, procfs};
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

/// So much of a communicator is searched: that of NCCL 2.32 has its rank at 1.1 MiB.
const MOST_SEARCHED: u64 = 4 << 20;
/// Memory is readable by pages.
const PAGE: u64 = 4096;

/// The layouts in processes' libraries, and the maps of communicators: those whose start was seen,
/// and the results.
#[derive(Debug)]
pub(crate) struct LateComms {
    comms: MapHandle,
    learnt: MapHandle,
    files: Files,
    of_process: Mutex<HashMap<u32, Looked>>,
    room: Mutex<Room>,
}

/// Who has how many entries in `learnt`, at most: the programs remove some.
#[derive(Debug)]
struct Room {
    share: Share,
    /// The user that a process is counted to, and its entries.
    of_process: HashMap<u32, (u32, i64)>,
}

/// Entries of the map `learnt`, and most of one process (as `MOST_OF_PROCESS` of the programs).
const MOST_LEARNT: usize = 16_384;
const MOST_OF_PROCESS: i64 = 1_024;

impl Room {
    /// Room for one more entry of a process, whose user is looked up when it is new.
    fn take(&mut self, pid: u32, user: impl Fn() -> Option<u32>) -> bool {
        let (user, held) = match self.of_process.get(&pid) {
            Some(known) => *known,
            None => match user() {
                Some(user) => (user, 0),
                None => return false,
            },
        };
        let fits = held < MOST_OF_PROCESS && self.share.take(user);
        if fits {
            self.of_process.insert(pid, (user, held + 1));
        }
        fits
    }

    /// The entry for which room was taken was not made.
    fn give(&mut self, pid: u32) {
        if let Some((user, held)) = self.of_process.get_mut(&pid) {
            *held -= 1;
            self.share.give(*user, 1);
        }
    }

    /// The entries of some processes were removed.
    fn left(&mut self, of: impl Fn(u32) -> bool) {
        for (_, (user, held)) in self.of_process.extract_if(|pid, _| of(*pid)) {
            self.share.give(user, held);
        }
    }
}

/// What one process's libraries have been asked.
#[derive(Debug)]
struct Looked {
    /// A process may have several that could contain NCCL: PyTorch's own, and the one it calls.
    tickets: Vec<(FileKey, Ticket)>,
    at: Instant,
    /// The layout that was found in its memory, and when that was last looked for.
    found: Option<CommLayout>,
    searched: Option<Instant>,
}

/// Libraries of one process that are asked.
const MOST_LIBRARIES: usize = 16;
/// Time before a process is looked at again whose libraries were not found, or could not be read
/// then.
const AGAIN: Duration = Duration::from_secs(1);

impl Looked {
    fn new() -> Looked {
        Looked { tickets: vec![], at: Instant::now(), found: None, searched: None }
    }

    fn is_due(&self) -> bool {
        let may_change =
            |(_, ticket): &(_, Ticket)| matches!(ticket.outcome(), Some(Err(refusal)) if !refusal.is_final());
        (self.tickets.is_empty() || self.tickets.iter().any(may_change)) && self.at.elapsed() >= AGAIN
    }

    fn layout(&self) -> Option<CommLayout> {
        let described = self.tickets.iter().find_map(|(_, ticket)| match ticket.outcome()? {
            Ok(answer) if let Answer::CommLayout(layout) = &**answer => Some(*layout),
            _ => None,
        });
        described.or(self.found)
    }

    /// Whether its memory is to be searched now: no file of it describes the layout.
    fn is_to_be_searched(&self) -> bool {
        let refused = !self.tickets.is_empty() && self.tickets.iter().all(|(_, t)| matches!(t.outcome(), Some(Err(_))));
        refused && self.layout().is_none() && self.searched.is_none_or(|at| at.elapsed() >= AGAIN)
    }

    fn is_awaited(&self) -> bool {
        self.layout().is_none() && self.tickets.iter().any(|(_, ticket)| ticket.outcome().is_none())
    }
}

impl LateComms {
    pub(crate) fn new(comms: MapHandle, learnt: MapHandle, files: Files) -> Self {
        let room = Room { share: Share::of(MOST_LEARNT), of_process: HashMap::new() };
        LateComms { comms, learnt, files, of_process: Mutex::default(), room: Mutex::new(room) }
    }

    /// Asks a library file that `pid`, a process of `user`, has mapped for its layout; none where it
    /// cannot be opened.
    pub(crate) fn ask(&self, pid: u32, user: u32, mapping: &Mapping<'_>) -> Option<Ticket> {
        let file = maps::open(pid, mapping)?;
        let ticket = self.files.ask(user, &file, Question::CommLayout);
        let mut of_process = self.of_process.lock();
        let looked = of_process.entry(pid).or_insert_with(Looked::new);
        let key = mapping.key();
        looked.tickets.retain(|(of, _)| *of != key);
        looked.tickets.truncate(MOST_LIBRARIES - 1);
        looked.tickets.push((key, ticket.clone()));
        Some(ticket)
    }

    /// What is known of a process's libraries. Discovery has asked them, unless the process calls at
    /// once after its start: then they are asked here.
    fn of<T>(&self, pid: u32, what: impl Fn(&Looked) -> T) -> T {
        if let Some(looked) = self.of_process.lock().get(&pid).filter(|looked| !looked.is_due()) {
            return what(looked);
        }
        let (Ok(text), Some(user)) = (procfs::read(pid, "maps"), procfs::user_of(pid)) else {
            return what(&Looked::new()); // it has ended: nothing is kept of it
        };
        let of_nccl = |m: &Mapping<'_>| {
            m.executable && matches!(libraries::library_of(m.file_name()), Some(Library::Nccl | Library::Rccl))
        };
        for mapping in maps::mappings(&text).filter(of_nccl) {
            let _ = self.ask(pid, user, &mapping); // kept with the process
        }
        let mut of_process = self.of_process.lock();
        let looked = of_process.entry(pid).or_insert_with(Looked::new);
        looked.at = Instant::now();
        what(looked)
    }

    /// Whether a call lacks what will be known when the library's file has been read.
    pub(crate) fn is_awaited(&self, call: &RawCall, handle: u64) -> bool {
        let all = wire::HAVE_HASH | wire::HAVE_RANK;
        handle != 0 && call.flags & all != all && self.of(call.pid, Looked::is_awaited)
    }

    pub(crate) fn forget(&self, pid: u32) {
        self.of_process.lock().remove(&pid);
    }

    /// The entries of some processes in `learnt` were removed.
    pub(crate) fn left(&self, of: impl Fn(u32) -> bool) {
        self.room.lock().left(of);
    }

    /// Completes a call of NCCL or RCCL that lacks its rank or its communicator's hash.
    pub(crate) fn complete(&self, call: &mut RawCall, handle: u64) {
        let all = wire::HAVE_HASH | wire::HAVE_RANK;
        if handle == 0 || call.flags & all == all {
            return;
        }
        let (layout, to_be_searched) = self.of(call.pid, |looked| (looked.layout(), looked.is_to_be_searched()));
        let layout = if to_be_searched { self.search(call.pid) } else { layout };
        let Some(facts) = layout.and_then(|layout| read(call.pid, handle, &layout)) else { return };
        call.rank = facts.rank;
        call.nranks = facts.nranks;
        call.flags |= wire::HAVE_RANK;
        if let Some(hash) = facts.hash {
            call.comm_hash = hash;
            call.flags |= wire::HAVE_HASH;
        }
        let (key, value) = (wire::comm_key(call.pid, handle), wire::comm_value(call, call.flags & all));
        // Where it is not remembered, the next call is completed again.
        if self.learnt.update(&key, &value, MapFlags::EXIST).is_err()
            && self.room.lock().take(call.pid, || procfs::answers_for(call.pid))
            && let Err(error) = self.learnt.update(&key, &value, MapFlags::ANY)
        {
            self.room.lock().give(call.pid);
            tracing::debug!(%error, "a communicator is not remembered");
        }
    }

    /// Looks for the layout in a process's communicators of which all is known.
    fn search(&self, pid: u32) -> Option<CommLayout> {
        let of_process = |key: &Vec<u8>| wire::comm_of_key(key).filter(|(of, _)| *of == pid);
        let found = self.comms.keys().filter_map(|key| Some((of_process(&key)?.1, key))).find_map(|(handle, key)| {
            let entry = self.comms.lookup(&key, MapFlags::ANY).ok()??;
            search(Memory::of(pid), handle, wire::comm_facts(&entry)?)
        });
        if let Some(looked) = self.of_process.lock().get_mut(&pid) {
            (looked.found, looked.searched) = (found, Some(Instant::now()));
        }
        found
    }
}

/// Where the structure at `handle` holds a communicator's hash, rank and size, which are next to each
/// other in this order in NCCL 2.18 to 2.32. None where it holds them nowhere, or at two places.
fn search(memory: Memory, handle: u64, (hash, rank, nranks): (u64, i32, i32)) -> Option<CommLayout> {
    const LONG: usize = 16;
    let wanted = [&hash.to_ne_bytes()[..], &rank.to_ne_bytes(), &nranks.to_ne_bytes()].concat();
    // The last bytes of the page before come first: what is looked for may lie in both.
    let (mut bytes, mut from, mut places) = (Vec::new(), handle, Vec::new());
    let until = handle.checked_add(MOST_SEARCHED)?;
    let mut at = handle;
    while at < until {
        let next = (at / PAGE + 1) * PAGE;
        let Some(page) = usize::try_from(next - at).ok().and_then(|count| memory.bytes(at, count)) else { break };
        bytes.extend(page);
        let fits = bytes.windows(LONG).enumerate().filter(|(_, window)| **window == wanted);
        places.extend(fits.map(|(place, _)| from - handle + place as u64));
        let kept = bytes.len().min(LONG - 1);
        bytes.drain(..bytes.len() - kept);
        (from, at) = (next - kept as u64, next);
    }
    let [place] = places[..] else { return None };
    let magic = (memory.word(handle) == Some(MAGIC)).then_some(0);
    Some(CommLayout { rank: place + 8, nranks: place + 12, hash: Some(place), magic })
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

    #[test]
    fn one_process_and_one_user_leave_room_for_others_and_what_ends_is_given_back() {
        let mut room = Room { share: Share::of(MOST_LEARNT), of_process: HashMap::new() };
        let fill = |room: &mut Room, pid, user| (0..2_000).filter(|_| room.take(pid, || Some(user))).count();
        let hers: Vec<usize> = (1..=9).map(|pid| fill(&mut room, pid, 65_534)).collect();
        assert_eq!(hers, [1_024, 1_024, 1_024, 1_024, 1_024, 1_024, 1_024, 1_024, 0]);
        assert_eq!(fill(&mut room, 20, 1_000), 1_024);
        (0..3).for_each(|_| room.give(20));
        assert_eq!(fill(&mut room, 20, 1_000), 3, "what was not made takes no room");
        assert!(!room.take(21, || None), "it has ended");
        room.left(|pid| pid < 9);
        assert_eq!((room.share.take(65_534), room.of_process.len()), (true, 1));
    }

    #[test]
    fn a_layout_is_found_by_what_a_communicator_holds_also_across_pages() {
        let (hash, memory) = (0xfeed_0000_0000_0001, Memory::of(std::process::id()));
        for before in [992, 4096 - 8, 3 * 4096 + 16] {
            let layout = CommLayout { rank: before + 8, nranks: before + 12, hash: Some(before), magic: Some(0) };
            let mut bytes = vec![0u8; 8 * 4096];
            let start = bytes.as_ptr().align_offset(4096);
            let of = &mut bytes[start..];
            of[..8].copy_from_slice(&MAGIC.to_ne_bytes());
            let at = before as usize;
            let put = |of: &mut [u8], at: usize| {
                of[at..at + 8].copy_from_slice(&u64::to_ne_bytes(hash));
                of[at + 8..at + 12].copy_from_slice(&5i32.to_ne_bytes());
                of[at + 12..at + 16].copy_from_slice(&8i32.to_ne_bytes());
            };
            put(of, at);
            let handle = of.as_ptr() as u64;
            assert_eq!(search(memory, handle, (hash, 5, 8)), Some(layout));
            assert_eq!(search(memory, handle, (hash, 4, 8)), None, "another rank");
            put(of, at + 64);
            assert_eq!(search(memory, handle, (hash, 5, 8)), None, "at two places");
        }
        assert_eq!(search(memory, 8, (hash, 5, 8)), None, "nothing is mapped there");
    }

    #[test]
    fn one_library_of_several_has_the_layout_and_what_may_be_read_later_is_asked_again() {
        let layout = CommLayout { rank: 1000, nranks: 1004, hash: Some(992), magic: Some(0) };
        let ticket = |inode, outcome| ((vec![], inode), Ticket::of(outcome));
        let none = || Err(files::Refusal::Wrong("no debug information".to_owned()));
        let found = ticket(2, Ok(std::sync::Arc::new(Answer::CommLayout(layout))));
        let long_ago = Instant::now().checked_sub(AGAIN).unwrap();
        let looked = |tickets| Looked { tickets, at: long_ago, ..Looked::new() };
        let both = looked(vec![ticket(1, none()), found, ticket(3, none())]);
        assert_eq!((both.layout(), both.is_awaited(), both.is_due()), (Some(layout), false, false));
        let busy = looked(vec![ticket(1, none()), ticket(2, Err(files::Refusal::Late))]);
        assert_eq!((busy.layout(), busy.is_due()), (None, true));
        assert!(!looked(vec![ticket(1, none())]).is_due(), "its content does not change");
        assert!(looked(vec![]).is_due() && !Looked::new().is_due(), "it may be mapped later");
    }
}
