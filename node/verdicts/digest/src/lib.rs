//! Digests: how windows travel. What the ranks of a host did in half a second, summed up where the
//! data lies, small enough to send.
//!
//! Pure: calls in, digests out ([`Collector`]); digests in, an analysis'
//! [`Input`](observed::Input) out ([`to_input`]). Does not own who sends them to whom (the agent),
//! what is kept of them (`standing`) nor what follows (`verdicts`). There is one analysis, whatever
//! its input came from: rows take the same way ([`of_rows`]). A digest does not hold rows and does
//! not draw samples: calls of frequent collectives are summed over aligned runs of 2^level
//! consecutive sequence numbers ([`Block`]). Every rank cuts its runs at the same numbers without
//! talking to another, runs merge into longer ones in any order, and every figure of the analysis
//! is linear in their means.
//!
//! The way of the data: `collect` makes digests of calls (`track`: of a lane's; `follow` and `steps`
//! follow what a process does between calls and in each step; `waits` takes calls that only enqueue
//! together with the synchronise calls after them; `late` numbers those whose communicator's start
//! was not seen; `blocks` cuts and merges runs; `resent`: segments sent again), `codec` writes and
//! reads them (bounded, hostile bytes refused), `input` makes an input of many nodes' digests
//! (`step_times`: compute times from steps), `rows` cells of rows. `split` splits a host's digest
//! by jobs. `time_use` adds up where the time of processes went, which travels beside digests.

mod blocks;
mod codec;
mod collect;
mod follow;
mod input;
mod late;
mod resent;
mod rows;
mod split;
mod step_times;
mod steps;
#[cfg(test)]
mod tests;
pub mod time_use;
mod track;
mod waits;

use observed::Activity;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

pub(crate) use codec::text;
pub use codec::text::{from_text, to_text};
pub use codec::{DecodeError, decode, encode, encode_within};
pub use collect::Collector;
pub use input::{NodeDigests, progress, to_input, without_progress};
pub use rows::of_rows;
pub use split::by_job;

/// Length of a window.
pub const WINDOW_NS: i64 = 500_000_000;

/// Blocks of one lane and window aimed at, at most. A lane with fewer calls ships each by itself.
pub(crate) const BLOCKS: usize = 5;

/// Longest block: 2^20 calls.
pub(crate) const MAX_LEVEL: u8 = 20;

/// The window that an instant lies in.
#[must_use]
pub fn window_of(at_ns: i64) -> i64 {
    at_ns.div_euclid(WINDOW_NS)
}

/// First instant after a window.
#[must_use]
pub fn end_of(window: i64) -> i64 {
    window.saturating_add(1).saturating_mul(WINDOW_NS)
}

/// The digest of one node and window. Times are of the node's own clock that is never stepped: Unix
/// time as its agent found it when it started, and monotonic time since.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Digest {
    /// Which window: time over [`WINDOW_NS`].
    pub window: i64,
    /// The node's clock against the reference node's, when it is known.
    pub clock: Option<ReferenceClock>,
    /// How far the node's wall clock is ahead of the one of the digest's times,
    /// milliseconds: 0 until it is stepped.
    pub wall_ahead_ms: i64,
    /// Records that capture lost in the window.
    pub lost: u64,
    /// Calls that no other rank can be compared with: rank, communicator or number not known.
    pub unplaced: u64,
    /// The digest did not fit: runs were made longer than usual, or lanes were left out.
    pub cut: bool,
    /// Processes that ended without leaving their communicators, as far as is known: pid and when
    /// that was noticed.
    pub gone: Vec<Gone>,
    /// TCP segments of the window that were sent again to other hosts.
    pub resent: Vec<Resent>,
    /// Processes with calls in the window (or in a call).
    pub processes: Vec<Process>,
    /// Their calls, by process, communicator and function.
    pub lanes: Vec<Lane>,
    /// Steps of processes whose calls only enqueue and of which no synchronise call was seen.
    pub steps: Vec<Steps>,
}

impl Digest {
    /// Runs of calls in it.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.lanes.iter().map(|lane| lane.blocks.len()).sum()
    }

    /// The longest mean duration of a run of calls in it, microseconds.
    #[must_use]
    pub fn longest_us(&self) -> u64 {
        self.lanes.iter().flat_map(|lane| &lane.blocks).map(|block| block.duration_us).max().unwrap_or(0)
    }
}

/// A node's clock against that of the node that all are aligned to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReferenceClock {
    /// Tells reference nodes apart: [`reference_id`] of the name.
    pub reference: u16,
    /// How far this node's clock is ahead of the reference's.
    pub offset_us: i64,
    /// The true offset lies within this of it.
    pub bound_us: u32,
}

/// A short id of a node's name (FNV-1a, folded to 16 bits): nodes mostly name the same reference,
/// so it has to tell few apart.
#[must_use]
pub fn reference_id(name: &str) -> u16 {
    let hash = name.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash >> 16 ^ hash & 0xffff) as u16
}

/// A process that is no more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gone {
    /// Process id.
    pub pid: u32,
    /// The window in which it was noticed.
    pub window: i64,
}

/// Segments sent again from one address to another in a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resent {
    /// Address of this host.
    pub from: IpAddr,
    /// The other address.
    pub to: IpAddr,
    /// How many.
    pub segments: u64,
    /// When, milliseconds after the start of the window: of as many as were worth the bytes.
    pub at_ms: Vec<u16>,
}

impl Default for Resent {
    fn default() -> Self {
        Self { from: Ipv4Addr::UNSPECIFIED.into(), to: Ipv4Addr::UNSPECIFIED.into(), segments: 0, at_ms: Vec::new() }
    }
}

/// A process of a digest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// The call to a single rank with which it mostly opens after a meeting of its largest
    /// communicator.
    pub opens: Option<Arc<str>>,
    /// What it does, where it has been in a call for long, or in none.
    pub activity: Option<Activity>,
}

/// Calls of one process of one function in one communicator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lane {
    /// Place of the process in [`Digest::processes`].
    pub process: usize,
    /// The communicator.
    pub comm_hash: u64,
    /// Its size, when known.
    pub nranks: Option<i32>,
    /// Rank in it.
    pub rank: i32,
    /// The function.
    pub func: Arc<str>,
    /// "nccl", "rccl" or "mpi".
    pub library: Arc<str>,
    /// Evidence tier of the durations.
    pub tier: u8,
    /// Calls that ended since the lane was last in a digest.
    pub calls: u64,
    /// Number of the last call that ended; none before the first, and where the start of the
    /// communicator was not seen: the numbers of its blocks were found by when calls ended, and say
    /// nothing of how far it got.
    pub last_seq: Option<u64>,
    /// The call that it was in at the end of the window, when it had been in it for long.
    pub open: Option<Open>,
    /// Runs of calls, for functions that make all ranks meet; in order.
    pub blocks: Vec<Block>,
}

/// One step of a process: from one call of the largest communicator that it is in to the next. Of
/// 2^level consecutive ones, the one whose number is a multiple of that is shipped. Microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Steps {
    /// Place of the process in [`Digest::processes`].
    pub process: usize,
    /// The lane whose calls end the steps, by its place in [`Digest::lanes`].
    pub ends: usize,
    /// Number of the call that ends it.
    pub number: u64,
    /// Binary logarithm of the number of steps that it stands for.
    pub level: u8,
    /// When that call was entered, after the start of the digest's window.
    pub end_us: i64,
    /// How long before it the call was entered that ended the step before.
    pub length_us: u64,
    /// How much of this was spent in calls. The rest is compute time, and waits that calls do not
    /// show.
    pub called_us: u64,
    /// The calls inside the step, by whom they meet.
    pub calls: Vec<StepCalls>,
}

/// Calls of a step in one lane to one peer: one by itself, or several together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCalls {
    /// Place in [`Digest::lanes`]: a lane of the same process.
    pub lane: usize,
    /// The rank that is sent to or received from; none where all ranks meet.
    pub peer: Option<i32>,
    /// Which of them, in order. Of rows each call is one part; in digests that are sent the first call
    /// of the step is part 0, and all others together are part 1.
    pub part: u32,
    /// How many.
    pub calls: u32,
    /// How long before the end of the step they were entered, in the mean.
    pub before_us: u64,
}

/// A call that lasts. With the number of the last call that ended: that one only enqueued, and the
/// process waits for its device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Open {
    /// Its number.
    pub seq: u64,
    /// How long it had lasted at the end of the window, milliseconds.
    pub for_ms: u64,
}

/// Means over the 2^level consecutive calls from `start` on; `start` is a multiple of 2^level.
/// Microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Block {
    /// Number of the first call.
    pub start: u64,
    /// Binary logarithm of the number of calls.
    pub level: u8,
    /// When the calls ended, after the start of the digest's window.
    pub exit_us: i64,
    /// Time in the calls.
    pub duration_us: u64,
    /// Compute time before the calls; none when it is not known of too many.
    pub compute_us: Option<u64>,
    /// The calls only enqueue, and so many of them were waited for in a synchronise call of their
    /// own: the figures are of these alone, and reach to its end. None where the figures are those
    /// of the calls.
    pub waited: Option<u32>,
}

impl Block {
    /// Calls that its figures are the means of.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.waited.map_or(self.size(), u64::from)
    }

    /// Calls in it.
    #[must_use]
    pub fn size(&self) -> u64 {
        1 << self.level
    }
}
