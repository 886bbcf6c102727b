//! Clocks of a job's hosts as their agents would put them into digests: a ping a second of the
//! reference node, as `agent/standing/clocks.rs` does.

use std::collections::HashMap;

use digest::{ReferenceClock, WINDOW_NS, end_of};
use mesh::ClockTrack;

use crate::simulate::Clocks;

/// Time between two pings, nanoseconds.
const EVERY_NS: i64 = 1_000_000_000;

/// What each agent knows so far.
#[derive(Debug)]
pub struct AgentClocks {
    clocks: Clocks,
    reference: u16,
    /// The first ping: before the first digests were gossiped, nobody knows who the reference is.
    first_ns: i64,
    /// By node: pings so far, and the next.
    tracks: HashMap<String, (ClockTrack, i64)>,
}

impl AgentClocks {
    /// Of a job that begins at `since_ns`, before anything was measured.
    #[must_use]
    pub fn new(clocks: Clocks, since_ns: i64, reference: u16) -> Self {
        Self { clocks, reference, first_ns: since_ns + WINDOW_NS, tracks: HashMap::new() }
    }

    /// A node's clock at the end of a window; windows ascend. None before it was measured.
    pub fn at(&mut self, node: &str, window: i64) -> Option<ReferenceClock> {
        let reference = self.reference;
        let (ahead_ns, bound_ns) = self.clocks.ping(node, self.first_ns)?;
        if bound_ns == 0 {
            return Some(ReferenceClock { reference, offset_us: 0, bound_us: 0 });
        }
        let now_ns = end_of(window).saturating_sub(ahead_ns);
        let new = || (ClockTrack::default(), self.first_ns);
        let (track, next_ns) = self.tracks.entry(node.to_owned()).or_insert_with(new);
        while *next_ns <= now_ns {
            let (ahead_ns, bound_ns) = self.clocks.ping(node, *next_ns)?;
            // The reference's clock against this node's, at a time of this node's.
            track.add(next_ns.saturating_add(ahead_ns), -ahead_ns, bound_ns);
            *next_ns += EVERY_NS;
        }
        let estimate = track.at(end_of(window))?;
        let bound_us = u32::try_from(estimate.bound_ns / 1_000 + 2).ok()?;
        Some(ReferenceClock { reference, offset_us: -(estimate.offset_ns / 1_000), bound_us })
    }
}
