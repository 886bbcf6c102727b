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
//! not seen at all, that it cannot be determined.
//!
//! `digest::time_use` adds up calls and time off the CPU, the same for digests and for rows
//! (`rows`), `series` brings it on common windows. Docs: docs/verdicts.md, *Ranks
//! that meet point to point*.

mod blame;
mod history;
mod judge;
mod rows;
mod series;
#[cfg(test)]
mod tests;
mod words;

use observed::Kind;
use serde::{Deserialize, Serialize};

pub use judge::WAITED;
pub(crate) use judge::decide;
pub use rows::{OFF_CPU_COLUMNS, PROCESSES_SQL, RankRow, Rows};
pub(crate) use words::{summary, table};

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
    /// Which communicators the calls are on is not known, and that is why they are not compared.
    #[serde(default)]
    pub unknown: bool,
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
