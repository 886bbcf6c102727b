//! MPICH and its kin: a handle of a communicator names a table in its upper two bits and an entry of
//! it in the rest: the predefined ones, some made at run time, and blocks of more. The tables are
//! not exported: they are found in the library's data. An entry begins with its own handle.
//!
//! Found by: the entry of MPI_COMM_WORLD followed by that of MPI_COMM_SELF, so many bytes later as
//! an entry has; in an entry the remote size and directly behind it the rank (n and r in the world,
//! 1 and 0 in MPI_COMM_SELF), and the local size; in MPICH 5 the rank and directly behind it the
//! local size. Of rank 0 both may be found in either, so the third word decides: the number of the
//! world's context, 0, and in MPICH 5 flags of which some are set. The description of the other tables by the kind
//! of objects, the same number of bytes, and the address of the second table.

use super::place::{Known, sane};
use crate::memory::Memory;
use crate::wire::RawMpi;

/// Most bytes of a library's data that are looked at.
const MOST_DATA: u64 = 64 << 20;
const WORLD: u32 = 0x4400_0000;
const OWN: u32 = 0x4400_0001;
/// The kind of communicators among objects, and the first handle of the second table.
const KIND: u32 = 1;
const FIRST_DIRECT: u32 = 0x8400_0000;
/// Bytes of an entry.
const ENTRY: std::ops::Range<usize> = 64..8192;

/// Places relative to the library's data; offsets in an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tables {
    builtin: u64,
    direct: u64,
    /// Of the kind of objects in the description of the tables, behind the pointer to the blocks.
    indirect: u64,
    entry_bytes: u32,
    rank_at: u32,
    size_at: u32,
}

impl Tables {
    pub(super) fn fill(self, raw: RawMpi, data: u64) -> RawMpi {
        let Tables { builtin, direct, indirect, entry_bytes, rank_at, size_at } = self;
        let (builtin, direct, indirect) = (data + builtin, data + direct, data + indirect);
        RawMpi { builtin, direct, indirect, entry_bytes, rank_at, size_at, ..raw }
    }
}

pub(super) fn find(memory: Memory, (from, to): (u64, u64), known: Known) -> Option<Tables> {
    if known.size < 2 {
        return None; // world and self look alike
    }
    let bytes = memory.bytes(from, usize::try_from(to.checked_sub(from)?.min(MOST_DATA)).ok()?)?;
    let words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    words.iter().enumerate().filter(|(_, word)| **word == WORLD).find_map(|(world, _)| {
        let entries = ENTRY.step_by(4).filter(|entry| words.get(world + entry / 4) == Some(&OWN));
        entries.filter_map(|entry| tables(&words, from, world, entry, known)).next()
    })
}

/// Rank and size of a communicator.
pub(super) fn place(memory: Memory, raw: &RawMpi, handle: u64) -> Option<(i32, i32)> {
    if raw.rank_at == 0 {
        return None;
    }
    let index = handle & 0x3ff_ffff;
    let number = |at: u64| memory.array(at).map(i32::from_ne_bytes);
    let entry = |table: u64, index: u64| {
        let entry = table.checked_add(index * u64::from(raw.entry_bytes))?;
        (u64::from(number(entry)?.cast_unsigned()) == handle).then_some(entry)
    };
    // the pointer to the blocks: up to MPICH 3, from 4 on, and since 4.2 or 4.3
    let in_block = |before: u64| {
        let block = memory.word(raw.indirect.checked_sub(before)?)?.checked_add((index >> 12) * 8)?;
        entry(memory.word(block)?, index & 0xfff)
    };
    let entry = match handle >> 30 {
        1 => entry(raw.builtin, index)?,
        2 => entry(raw.direct, index)?,
        3 => [12, 20, 24].into_iter().find_map(in_block)?,
        _ => return None,
    };
    let number = |at: u32| number(entry.checked_add(u64::from(at))?);
    sane(number(raw.rank_at)?, number(raw.size_at)?)
}

/// With the entry of the world at word `world`, and so many bytes an entry.
fn tables(words: &[u32], from: u64, world: usize, entry: usize, known: Known) -> Option<Tables> {
    let of_world = words.get(world..world + entry / 4)?;
    let of_own = words.get(world + entry / 4..world + entry / 2)?;
    let pair = |words: &[u32], at: usize| (words[at], words[at + 1]);
    let last = entry / 4 - 1;
    // the first where it fits: of rank 0 more may
    let find = |world: (u32, u32), own: (u32, u32)| {
        (3..last).find(|&at| pair(of_world, at) == world && pair(of_own, at) == own)
    };
    let (rank, size) = if of_world[2] == 0 {
        let remote = find((known.size, known.rank), (1, 0))?;
        (remote + 1, (remote + 2..last).find(|&at| of_world[at] == known.size && of_own[at] == 1)?)
    } else {
        let rank = find((known.rank, known.size), (0, 1))?;
        (rank, rank + 1)
    };
    let address = |at: usize| Some(u64::from(*words.get(at)?) | u64::from(*words.get(at + 1)?) << 32);
    let (direct, indirect) = (8..words.len()).find_map(|at| {
        if words[at - 1] != KIND || words[at] as usize != entry {
            return None;
        }
        // addresses are aligned
        let after = (at + 2) & !1;
        let direct = address(after)?.checked_sub(from)?;
        let first = words.get(usize::try_from(direct / 4).ok()?)?;
        // not filled in before the first communicator is made
        [0, FIRST_DIRECT].contains(first).then_some((direct, (at as u64 - 1) * 4))
    })?;
    Some(Tables {
        builtin: world as u64 * 4,
        direct,
        indirect,
        entry_bytes: u32::try_from(entry).ok()?,
        rank_at: u32::try_from(rank * 4).ok()?,
        size_at: u32::try_from(size * 4).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry's first words as MPICH fills them: rank and size in `before` 5, and in 5.
    fn entry(handle: u32, before: bool, (rank, size): (u32, u32)) -> Vec<u32> {
        let mut words = vec![0; 458];
        (words[0], words[1]) = (handle, 1);
        if before {
            [words[16], words[17], words[21]] = [size, rank, size];
        } else {
            [words[2], words[5], words[6], words[30], words[31], words[32]] = [6, rank, size, 12, rank, size];
        }
        words
    }

    #[test]
    fn rank_and_size_of_mpich_5_and_before() {
        const AT: u64 = 0x7000_0000_0000;
        for (before, places) in [(true, (17, 21)), (false, (5, 6))] {
            for rank in 0..4 {
                let mut words = entry(WORLD, before, (rank, 4));
                words.extend(entry(OWN, before, (0, 1)));
                // no communicator made so far, and the description of the tables
                let direct = AT + words.len() as u64 * 4;
                words.extend([0, 0, 0, 0, KIND, 458 * 4, direct as u32, (direct >> 32) as u32]);
                let found = tables(&words, AT, 0, 458 * 4, Known { rank, size: 4, job: None }).expect("its places");
                assert_eq!((found.rank_at / 4, found.size_at / 4), places, "rank {rank}, before 5: {before}");
            }
        }
    }
}
