//! Where the time of a process went.

use std::sync::Arc;

use crate::kind::Kind;

/// Windows of digests that one statement of time use covers: one second.
pub const EVERY_WINDOWS: i64 = 2;

/// Kinds of time off the CPU that are no work of the program's own, in the order in which
/// [`TimeUse::held_ns`] has them. A rank that sleeps or waits for a lock or a socket does so by its
/// own program, and is not held.
pub const HELD: [Kind; 5] = [Kind::Stopped, Kind::CpuThrottled, Kind::CpuStolen, Kind::PageFault, Kind::BlockIo];

/// Where the time of one process went, from the end of one communication call to the end of a later
/// one. What it does not spend in calls it computes, or is held. Nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeUse {
    /// The node that recorded it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// Rank in the job.
    pub rank: i32,
    /// Ranks of the job.
    pub nranks: i32,
    /// Tells jobs apart: a short name of the job, the same on every host.
    pub job: u64,
    /// End, Unix nanoseconds of the node's own clock.
    pub until_ns: i64,
    /// Length.
    pub span_ns: i64,
    /// Communication calls that ended in it.
    pub calls: u64,
    /// In calls that make all ranks of a communicator meet and that are compared call by call.
    pub scored_ns: i64,
    /// In all other communication calls.
    pub unscored_ns: i64,
    /// Held off the CPU, by [`HELD`]: outside calls, or (stopped and throttled) also in them, which
    /// is then not counted as time in calls. None where the scheduler's records are not known.
    pub held_ns: Option<[i64; HELD.len()]>,
    /// Time in calls with one other rank, by that rank; most time first.
    pub peers: Vec<(i32, i64)>,
}

impl TimeUse {
    /// Time in communication calls.
    #[must_use]
    pub fn in_calls_ns(&self) -> i64 {
        self.scored_ns.saturating_add(self.unscored_ns)
    }
}
