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
//! was not seen; `halts`: how long a call's thread was stopped in it; `blocks` cuts and merges runs; `resent`: segments sent again), `codec` writes and
//! reads them (bounded, hostile bytes refused), `input` makes an input of many nodes' digests
//! (`step_times`: compute times from steps), `rows` cells of rows. `split` splits a host's digest
//! by jobs. `time_use` adds up where the time of processes went, which travels beside digests.

mod blocks;
mod codec;
mod collect;
mod follow;
mod halts;
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

use observed::{Activity, Made, Pair, Payload, RECENT_CALLS};

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

pub(crate) use codec::text;
pub use codec::text::{from_text, to_text};
pub use codec::{DecodeError, decode, encode, encode_within};
pub use collect::Collector;
pub use halts::{Halts, is_halt};
pub use input::{LaneReached, NodeDigests, Reached, to_input, without_progress};
pub use rows::of_rows;
pub use split::by_job;

/// Length of a window.
pub const WINDOW_NS: i64 = 500_000_000;

/// Blocks of one lane and window aimed at, at most. A lane with fewer calls ships each by itself.
pub(crate) const BLOCKS: usize = 5;

/// Peers of a process whose sends and receives are said, at most.
const MOST_PAIRS: usize = 16;

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
    /// The calls that processes were in at the end of the window, and had been for long.
    pub long_calls: Vec<LongCall>,
    /// What processes that do not get on did last on their communicators.
    pub recent: Vec<Recent>,
}

impl Recent {
    /// Counts sends or receives by their peers.
    pub(crate) fn count(&mut self, func: &str, peers: Option<&BTreeMap<i32, u64>>) {
        for (&peer, &calls) in peers.into_iter().flatten().take(MOST_PAIRS) {
            let at = self.pairs.iter().position(|pair| pair.peer == peer).unwrap_or_else(|| {
                self.pairs.push(Pair { peer, ..Pair::default() });
                self.pairs.len() - 1
            });
            match func {
                "send" => self.pairs[at].sent = calls,
                "recv" => self.pairs[at].received = calls,
                _ => {}
            }
        }
    }

    /// The same with its last collectives alone; none where there is nothing to say.
    pub(crate) fn latest(mut self) -> Option<Self> {
        self.made.sort_by_key(|made| made.position);
        self.made.drain(..self.made.len().saturating_sub(RECENT_CALLS));
        (!self.made.is_empty() || !self.pairs.is_empty()).then_some(self)
    }
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
    /// Its rank in the job and the job's ranks, by its environment; of a process that gets on not in
    /// each digest.
    pub of_job: Option<(i32, i32)>,
    /// How long it had waited for its device at the end of the window, milliseconds, where that was
    /// long.
    pub device_ms: Option<u64>,
}

/// A call that a process has been in for long.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LongCall {
    /// Place of the process in [`Digest::processes`].
    pub process: usize,
    /// The function.
    pub func: Arc<str>,
    /// The communicator, where it is known.
    pub comm: Option<Membership>,
    /// Position on it; none of calls to one rank, and where it is not known.
    pub comm_seq: Option<u64>,
    /// Root or peer, where the call has one.
    pub root: Option<i32>,
    /// Tag, where the call has one that is known.
    pub tag: Option<i32>,
    /// What it moves.
    pub payload: Payload,
    /// How long it had lasted at the end of the window, milliseconds.
    pub for_ms: u64,
}

/// Being a rank of a communicator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Membership {
    /// The communicator.
    pub comm_hash: u64,
    /// Its size, when known.
    pub nranks: Option<i32>,
    /// The rank in it.
    pub rank: i32,
}

/// What a process did last on a communicator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recent {
    /// Place of the process in [`Digest::processes`].
    pub process: usize,
    /// The communicator.
    pub comm_hash: u64,
    /// Its last collectives, by position.
    pub made: Vec<Made>,
    /// Of calls that only enqueue: sends and receives since the communicator's start, by peer.
    pub pairs: Vec<Pair>,
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
    /// Position on the communicator of the last call that ended; none of calls to one rank, and
    /// where it is not known.
    pub place: Option<u64>,
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
    /// Of the time in the calls: the thread was halted (see [`Halts`]).
    pub halted_us: u64,
    /// Held off the CPU outside calls, since the call before of the communicator.
    pub held_us: u64,
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
