//! Jobs whose ranks meet in calls that do not make all of them meet: sends, receives and waits,
//! neighbourhood collectives, one-sided fences, collectives of communicators that are not known.
//!
//! Such calls have no counterpart on every rank, so no rank enters one late. What is
//! compared instead is where each rank's time goes: inside communication calls, where it waits for
//! others, and outside, where it computes or is kept from computing ([`TimeUse`]). The rank that
//! computes while the others wait for it, directly or through others, is the sink of the wait-for
//! graph (`blame`). It is named where something distinguishes it from a rank that has more to do by
//! the program's own division: time off its CPU that the others do not have, or its own history
//! (`judge`, `history`). Otherwise the answer is an imbalance of work, and where most waiting was
//! not seen at all, that it cannot be determined. Where calls only enqueue, hosts wait in the
//! synchronise calls after them (`enqueued`).
//!
//! `meter` adds up calls and time off the CPU, the same for digests and for rows (`rows`), `codec`
//! writes what digests carry, `series` brings it on common windows. Docs: docs/verdicts.md, *Ranks
//! that meet point to point*.

mod blame;
mod codec;
mod enqueued;
mod history;
mod judge;
mod meter;
mod rows;
mod series;
#[cfg(test)]
mod tests;
mod words;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use codec::{decode, encode};
pub(crate) use judge::{WAITED, decide};
pub use meter::{Call, Meter, job_key, names_no_communicator};
pub use rows::{OFF_CPU_COLUMNS, PROCESSES_SQL, Rows};
pub(crate) use words::{summary, table};

use super::why::Kind;

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
    /// Tells jobs apart: [`job_key`].
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

/// How the ranks of a job that meet in point-to-point calls spent the time that a verdict is about.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct PointToPoint {
    /// Ranks in the data.
    pub heard: usize,
    /// Ranks of the job.
    pub nranks: i32,
    /// The calls only enqueue: time in them is time in which hosts wait for their devices after
    /// them.
    #[serde(default)]
    pub enqueued: bool,
    /// Share of the ranks' time in calls that are not compared call by call.
    pub unscored_share: f64,
    /// Share of the ranks' time in calls that are.
    pub scored_share: f64,
    /// Start of the time looked at, Unix nanoseconds of the coordinator's clock.
    pub since_ns: i64,
    /// Its end.
    pub until_ns: i64,
    /// Ranks in order.
    pub ranks: Vec<RankTime>,
}

/// One rank of it. Shares of the time looked at.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct RankTime {
    /// Rank in the job.
    pub rank: i32,
    /// Host.
    pub node: String,
    /// Process.
    pub pid: i64,
    /// Outside communication calls.
    pub compute: f64,
    /// In calls that are not compared call by call.
    pub unscored: f64,
    /// In calls that are.
    pub scored: f64,
    /// Held off its CPU, by kind, those that are not zero; none where that is not known.
    pub held: Option<Vec<(Kind, f64)>>,
    /// Share of all waiting that ends at this rank along the wait-for graph.
    pub blame: f64,
}
