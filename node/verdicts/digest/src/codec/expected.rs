//! What a run of calls is expected to be, from what went before: the difference is written.

use super::super::Block;

/// The previous lane of the same communicator and function, where there is none the lane neighbour:
/// what the next one is written against.
#[derive(Default, Clone)]
pub(super) struct Before {
    pub(super) last_seq: u64,
    pub(super) place: u64,
    pub(super) blocks: Vec<Block>,
}

impl Before {
    /// What to expect of a block: the lane before leaves alike; else the block before says how far
    /// apart calls are.
    pub(super) fn expected(&self, start: u64, level: u8, previous: Option<&Block>) -> Expected {
        let place = self.blocks.iter().position(|b| (b.start, b.level) == (start, level));
        let neighbour = place.and_then(|place| self.blocks.get(place));
        let neighbour_before = place.and_then(|place| self.blocks.get(place.checked_sub(1)?));
        let previous = previous.filter(|p| p.level == level);
        let took = |b: &Block| b.duration_us.cast_signed();
        let exit_us = match (neighbour, previous) {
            (Some(neighbour), _) => neighbour.exit_us,
            (None, Some(previous)) => previous.exit_us.wrapping_add(distance(previous).wrapping_shl(level.into())),
            (None, None) => 0,
        };
        let duration_us = match (previous, neighbour, neighbour_before) {
            (Some(p), Some(b), Some(before)) => took(p).wrapping_add(took(b)).wrapping_sub(took(before)),
            (Some(p), ..) => took(p),
            (None, Some(b), _) => took(b),
            (None, None, _) => 0,
        };
        Expected {
            exit_us,
            duration_us: duration_us.max(0),
            previous: previous.map(|p| p.exit_us),
            distance: neighbour.map_or(0, distance),
        }
    }
}

/// How far apart the calls of a block are, as far as is known.
fn distance(block: &Block) -> i64 {
    block.compute_us.map_or(0, |own| own.wrapping_add(block.duration_us).cast_signed())
}

/// What a block is written against.
pub(super) struct Expected {
    pub(super) exit_us: i64,
    pub(super) duration_us: i64,
    /// Exit of the block before.
    previous: Option<i64>,
    /// Distance of two calls in the lane before.
    distance: i64,
}

impl Expected {
    /// Compute time: what lies between two exits and is not spent in calls.
    pub(super) fn compute_us(&self, level: u8, exit_us: i64, duration_us: u64) -> i64 {
        let distance = match self.previous {
            Some(before) => exit_us.wrapping_sub(before) >> level,
            None => self.distance,
        };
        distance.wrapping_sub(duration_us.cast_signed())
    }
}
