//! Hangs: ranks that wait in a collective which others have not entered, and who it is that
//! everybody waits for.
//!
//! Pure. Works on how far each rank got in each communicator ([`Progress`]), not on times of past
//! calls. `search` finds who waits for whom. The verdict is put together in `verdict.rs`.

mod search;
#[cfg(test)]
mod tests;

use observed::{Activity, RankRef, Ranks};
use serde::{Deserialize, Serialize};

pub(crate) use search::find;

/// What a rank that everybody waits for is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Absence {
    /// It has not entered the collective in which others wait.
    NotEntered,
    /// It has entered, as everybody has, but does not get through: others are past it.
    Stuck,
    /// It has entered, and its process is stopped there.
    Stopped,
    /// Its process has ended.
    Gone,
}

/// A rank that others wait for while it waits for nobody.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Missing {
    /// Who.
    #[serde(flatten)]
    pub who: RankRef,
    /// What it is doing.
    pub absence: Absence,
    /// The communicator in which most ranks wait for it.
    pub comm_hash: String,
    /// The function.
    pub func: String,
    /// The call that it has not entered, or in which it is stuck.
    pub seq: u64,
    /// What its threads do, where its host says so.
    pub activity: Option<Activity>,
    /// Ranks that wait for it, directly or through others; directly alone where many thousands of
    /// ranks wait in as many different calls.
    pub holds_up: usize,
}

/// A rank that waits.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Waiting {
    /// Who.
    #[serde(flatten)]
    pub who: RankRef,
    /// In what.
    pub func: String,
    /// Of which communicator.
    pub comm_hash: String,
    /// Which call.
    pub seq: u64,
    /// Since when, Unix nanoseconds of the coordinator's clock.
    pub since_ns: Option<i64>,
    /// What its threads do, where its host says so.
    pub activity: Option<Activity>,
}

/// A call that all ranks of a communicator have entered and that none has left.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Jam {
    /// The communicator.
    pub comm_hash: String,
    /// The function.
    pub func: String,
    /// The call.
    pub seq: u64,
    /// Ranks in it.
    pub ranks: usize,
}

/// Ranks of a communicator that are not in the data: they, or their hosts, may be gone.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct NotHeard {
    /// The communicator.
    pub comm_hash: String,
    /// Which ranks of it: inclusive ranges, first and last.
    pub ranks: Ranks,
    /// How many these are.
    pub count: u64,
}

impl NotHeard {
    /// Of a communicator.
    #[must_use]
    pub fn new(comm_hash: String, ranks: Ranks) -> Self {
        Self { comm_hash, count: ranks.count(), ranks }
    }
}

/// A hang.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct Hang {
    /// The ranks that everybody waits for. Empty where ranks wait for each other in a circle (calls
    /// in different order), or all in one call (`jammed`).
    pub missing: Vec<Missing>,
    /// Ranks that are not in the data and that others wait for, each communicator once.
    pub not_heard: Vec<NotHeard>,
    /// Calls that everybody has entered and nobody leaves, where that names no rank.
    pub jammed: Vec<Jam>,
    /// The ranks that wait, longest first.
    pub waiting: Vec<Waiting>,
    /// Since when nothing moves: the latest of the waits' beginnings, Unix nanoseconds of the
    /// coordinator's clock.
    pub since_ns: Option<i64>,
}
