//! What digests add to the input of an analysis: runs that stand for several calls, and the exact
//! totals of all calls.
//!
//! Owns these input types only. Digests themselves, and how they become an input, lie in `digest/`.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Runs of consecutive calls of one rank, of one function in one communicator, by their means.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampled {
    /// The node that recorded it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// Rank in the communicator.
    pub rank: i32,
    /// The communicator.
    pub comm_hash: u64,
    /// The function.
    pub func: Arc<str>,
    /// Evidence tier of the durations.
    pub tier: u8,
    /// "nccl", "rccl", "mpi", …
    pub library: Arc<str>,
    /// The runs.
    pub runs: Vec<Run>,
}

/// A run of consecutive calls, by their means. Nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Run {
    /// Number of its first call.
    pub seq: u64,
    /// Entry, of the node's own clock.
    pub entry_ns: i64,
    /// Time in the call.
    pub duration_ns: i64,
    /// Of that: its thread was halted.
    pub halted_ns: i64,
    /// Since the call before of the communicator: it was held off its CPU, outside calls.
    pub held_ns: i64,
    /// Compute time before a call, computed where all calls were seen; none when it is not known.
    pub compute_ns: Option<i64>,
    /// Compute time was derived from when all ranks entered: how far the clocks' bounds leave it
    /// open.
    pub unsure: Option<Unsure>,
    /// Calls in the run. The same for every rank of the collective.
    pub weight: u32,
    /// The calls only enqueue: their figures are of those that a synchronise call waited for, and
    /// reach to its end.
    pub waited: bool,
}

/// Single steps of a process whose host runs ahead of its device: those that were shipped, by number.
/// What its runs hold are means, which hide when the others waited.
#[derive(Debug, Clone, PartialEq)]
pub struct Stepped {
    /// The node that recorded it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// The communicator whose calls end steps.
    pub comm_hash: u64,
    /// By number: when it entered the call that began the step, and the one that ended it.
    /// Nanoseconds of the node's own clock.
    pub steps: BTreeMap<u64, (i64, i64)>,
}

/// By how much compute time may be wrong that was derived from when ranks on several hosts entered
/// calls, were all clocks wrong by their bounds at every wait. Nanoseconds, 0 and more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unsure {
    /// It may be so much less: the waits were longer.
    pub less_ns: i64,
    /// It may be so much more: they were shorter.
    pub more_ns: i64,
}

/// What a process called in the span, exactly.
#[derive(Debug, Clone, PartialEq)]
pub struct Totals {
    /// The node that recorded it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// The call to a single rank with which it opens after a meeting of its largest communicator,
    /// where it has one.
    pub opens: Option<Arc<str>>,
    /// One for each communicator and function.
    pub lanes: Vec<LaneTotal>,
}

/// Calls of one process of one function in one communicator.
#[derive(Debug, Clone, PartialEq)]
pub struct LaneTotal {
    /// The communicator.
    pub comm_hash: u64,
    /// Its size, when it was seen.
    pub nranks: Option<i32>,
    /// Rank in it.
    pub rank: i32,
    /// The function.
    pub func: Arc<str>,
    /// Calls in the span.
    pub calls: u64,
    /// Evidence tier of the durations.
    pub tier: u8,
    /// "nccl", "rccl", "mpi", …
    pub library: Arc<str>,
}
