//! A place in a communicator: rank and size.

/// Of a process whose place in its world is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) job: Option<u32>,
}

/// No communicator is larger.
const MOST_RANKS: i32 = 1 << 24;

/// Rank and size, when they can be.
pub(super) fn sane(rank: i32, size: i32) -> Option<(i32, i32)> {
    ((1..=MOST_RANKS).contains(&size) && (0..size).contains(&rank)).then_some((rank, size))
}
