//! Names of cells. Each node has a place on a line of 64-bit numbers, by its rack and its name; a
//! cell is a stretch of the line, given by the first bits of the places in it. So which cell a node
//! belongs to follows from how many nodes there are, and needs no agreement: a cell that is too
//! large falls into its two halves, two that are small are their parent again.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// A cell: all places that begin with these bits. The whole line is one cell, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct CellId {
    /// The bits, from the highest down; those behind the last are zero.
    bits: u64,
    depth: u8,
}

impl CellId {
    /// All of the mesh: the cell of a small one.
    pub const WHOLE: Self = Self { bits: 0, depth: 0 };

    /// The cell of so many first bits of a place; 64 at most.
    #[must_use]
    pub fn of(place: u64, depth: u8) -> Self {
        let depth = depth.min(64);
        Self { bits: place & mask(depth), depth }
    }

    /// How many bits it has.
    #[must_use]
    pub fn depth(self) -> u8 {
        self.depth
    }

    /// Whether the place lies in it.
    #[must_use]
    pub fn contains(self, place: u64) -> bool {
        place & mask(self.depth) == self.bits
    }

    /// Whether it is a part of the other, or the same.
    #[must_use]
    pub fn is_within(self, other: Self) -> bool {
        self.depth >= other.depth && other.contains(self.bits)
    }

    /// As it stands before messages.
    pub(crate) fn to_bytes(self) -> [u8; 9] {
        let mut bytes = [self.depth; 9];
        bytes[1..].copy_from_slice(&self.bits.to_be_bytes());
        bytes
    }

    /// `None` where the bytes are no cell, or that of the whole mesh, which stands before nothing.
    pub(crate) fn from_bytes([depth, bits @ ..]: &[u8; 9]) -> Option<Self> {
        let cell = Self { bits: u64::from_be_bytes(*bits), depth: *depth };
        (cell.is_sound() && cell != Self::WHOLE).then_some(cell)
    }

    /// Whether its parts are as [`CellId::of`] makes them: what comes from others may be anything.
    pub(crate) fn is_sound(self) -> bool {
        self.depth <= 64 && self.bits & !mask(self.depth) == 0
    }
}

fn mask(depth: u8) -> u64 {
    if depth == 0 { 0 } else { u64::MAX << (64 - u32::from(depth.min(64))) }
}

impl fmt::Display for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.depth == 0 {
            return f.write_str("whole");
        }
        (0..u32::from(self.depth)).try_for_each(|bit| write!(f, "{}", (self.bits >> (63 - bit)) & 1))
    }
}

impl fmt::Debug for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where a node stands: those of one rack side by side (a rack without a name is the node's own).
#[must_use]
pub fn place_of(name: &str, rack: &str) -> u64 {
    let neighbours = if rack.is_empty() { name } else { rack };
    (hash_of(&[b"rack", neighbours.as_bytes()]) as u64 & mask(32)) | (name_hash(name) >> 32)
}

/// A number for a name, the same on every node.
pub(crate) fn name_hash(name: &str) -> u64 {
    hash_of(&[b"name", name.as_bytes()]) as u64
}

/// Half of a SHA-256: nobody finds another content with the same.
pub(crate) fn hash_of(parts: &[&[u8]]) -> u128 {
    let mut all = Vec::with_capacity(parts.iter().map(|part| part.len() + 8).sum());
    for part in parts {
        all.extend((part.len() as u64).to_le_bytes());
        all.extend_from_slice(part);
    }
    let mut half = [0; 16];
    half.copy_from_slice(&digest(&SHA256, &all).as_ref()[..16]);
    u128::from_le_bytes(half)
}

/// How much a member is to be a delegate of the cell: those with the most are (rendezvous hashing).
pub(crate) fn weight(cell: CellId, member: u64) -> u64 {
    mix(mix(cell.bits ^ u64::from(cell.depth)) ^ member)
}

/// A number from a number (the last step of splitmix64).
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Who lives where: what the choice of a cell goes by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stand {
    pub(crate) place: u64,
    /// Bits of the cell that the node is in.
    pub(crate) depth: u8,
}

/// The cell for a place, by all who live: the largest stretch that has at most `most` of them. One
/// that has fallen into halves stays so until it has no more than half as many, for which counts
/// where most of its nodes are now; else nodes that come and go would split and join it all the
/// time.
pub(crate) fn cell_for(place: u64, mut living: Vec<Stand>, most: usize) -> CellId {
    let mut cell = CellId::WHOLE;
    loop {
        living.retain(|stand| cell.contains(stand.place));
        let deeper = living.iter().filter(|stand| stand.depth > cell.depth).count();
        let splits = living.len() > most || (living.len() > most / 2 && 2 * deeper > living.len());
        if !splits || cell.depth == 64 {
            return cell;
        }
        cell = CellId::of(place, cell.depth + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn racks_stay_together_and_cells_hold_at_most_so_many() {
        let places: Vec<u64> = (0..2_000).map(|n| place_of(&format!("n{n}"), &format!("r{}", n / 32))).collect();
        let living = |depth| places.iter().map(|place| Stand { place: *place, depth }).collect::<Vec<_>>();
        let cells: Vec<CellId> = places.iter().map(|place| cell_for(*place, living(0), 256)).collect();
        for rack in cells.chunks(32) {
            assert!(rack.iter().all(|cell| *cell == rack[0]), "{rack:?}");
        }
        for cell in &cells {
            let size = places.iter().filter(|place| cell.contains(**place)).count();
            assert!(size <= 256, "{cell} has {size}");
            let others = cells.iter().filter(|other| *other != cell);
            assert!(others.clone().all(|other| !other.is_within(*cell)), "cells do not overlap");
        }
        assert!(cells.iter().collect::<std::collections::BTreeSet<_>>().len() < 40);
        assert_eq!(cell_for(places[0], living(0)[..256].to_vec(), 256), CellId::WHOLE);
    }

    #[test]
    fn halves_stay_apart_until_they_are_small_and_the_majority_decides() {
        let stands = |n: u64, apart: u64| -> Vec<Stand> {
            (0..n).map(|i| Stand { place: mix(i), depth: u8::from(i < apart) }).collect()
        };
        let depth = |n, apart| cell_for(mix(0), stands(n, apart), 100).depth();
        assert_eq!([depth(101, 0), depth(100, 0), depth(100, 51), depth(51, 51), depth(50, 50)], [1, 0, 1, 1, 0]);
        assert_eq!(depth(100, 50), 0, "most are together");
    }

    #[test]
    fn a_cell_is_its_first_bits() {
        let cell = CellId::of(0b1011 << 60, 3);
        assert_eq!(cell.to_string(), "101");
        assert!(cell.contains(0b1010 << 60) && !cell.contains(0b1110 << 60));
        assert!(cell.is_within(CellId::of(0b10 << 62, 2)) && cell.is_within(CellId::WHOLE));
        assert!(!CellId { bits: 1, depth: 3 }.is_sound() && !CellId { bits: 0, depth: 65 }.is_sound());
    }
}
