//! Hangs: ranks that wait in a collective which others have not entered, and who it is that
//! everybody waits for.
//!
//! Pure. Works on how far each rank got in each communicator ([`Progress`]), not on times of past
//! calls. `progress` tells that from calls, `search` finds who waits for whom. The verdict is put
//! together in `verdict.rs`.

mod progress;
mod search;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use progress::complete_together;
pub use progress::progress_of;
pub(crate) use search::find;

use super::activity::Activity;
use super::ranks::{RankRef, Ranks};

/// How far a process got with one function of one communicator.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// The node that knows it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// Rank in the communicator.
    pub rank: i32,
    /// Size of the communicator, when known.
    pub nranks: Option<i32>,
    /// The communicator.
    pub comm_hash: u64,
    /// What counts the calls: a function, or "any" where one counter serves all functions of the
    /// communicator.
    pub func: Arc<str>,
    /// Last call entered (or enqueued); none before the first.
    pub entered: Option<u64>,
    /// Last call that was left (or that the device completed); none before the first.
    pub completed: Option<u64>,
    /// When the oldest call that is not complete was entered, Unix nanoseconds of the node's own
    /// clock.
    pub since_ns: Option<i64>,
    /// Name of that call, where `func` does not say it.
    pub waiting_in: Option<Arc<str>>,
    /// The rank of the communicator that that call sends to or receives from, or its root.
    pub peer: Option<i32>,
    /// When the process began to wait for its device in the synchronise call that it is in, Unix
    /// nanoseconds of the node's own clock.
    pub syncing_since_ns: Option<i64>,
}

/// A process of the job that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// The node that knows it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// When, Unix nanoseconds of the node's own clock.
    pub at_ns: i64,
    /// How, in words ("exit 1", "signal 9"); empty where that is not known.
    pub how: String,
}

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
