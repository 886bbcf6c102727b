//! Hangs: ranks that wait in calls which others have not entered, and who it is that everybody
//! waits for.
//!
//! Pure. Works on how far each process got on its communicators ([`observed::Progress`]) and on the
//! calls that processes are in ([`observed::InCall`]), not on times of past calls. `meeting` says
//! whom a call waits for, `people` who is there, `waits` makes a graph of it (`graph`), `circle`
//! finds ranks that wait for each other, `differing` calls that do not belong together; `search`
//! puts it together. The verdict is made in `verdict.rs`.

mod circle;
mod differing;
mod graph;
mod meeting;
mod people;
#[cfg(test)]
mod scenes;
mod search;
#[cfg(test)]
mod tests;
mod waits;

use observed::{Activity, RankRef, Ranks};
use serde::{Deserialize, Serialize};

pub(crate) use search::find;

/// What a look for a hang has found.
#[derive(Debug, Default)]
pub(crate) enum Found {
    /// Nobody waits for long, or those that are waited for make calls up to the end.
    #[default]
    Nothing,
    /// Ranks wait in calls that may just take long.
    Early(Early),
    /// A hang.
    Hang(Box<Hang>),
}

/// Ranks that wait in calls which all have entered, or which do not show for whom they wait.
#[derive(Debug)]
pub(crate) struct Early {
    /// How many.
    pub(crate) ranks: usize,
    /// The call of who has waited longest.
    pub(crate) func: String,
    /// How long that is so far, nanoseconds.
    pub(crate) for_ns: i64,
    /// After how long it is a hang, nanoseconds.
    pub(crate) hang_ns: i64,
}

/// Why a rank that everybody waits for is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Absence {
    /// It has not entered the collective in which others wait.
    NotEntered,
    /// It has not sent what others receive from it.
    NotSent,
    /// It has not received what others send to it.
    NotReceived,
    /// It is in no call while others wait in calls that do not show for whom.
    Outside,
    /// It has entered, as everybody has, but does not get through: others are past it.
    Stuck,
    /// It has entered, and its process is stopped there; or after it, where the call only enqueued.
    Stopped,
    /// Its process has ended.
    Gone,
}

/// A call of a rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Call {
    /// The function.
    pub func: String,
    /// Of a wait for a message: the call that began it ("irecv"), of which the rest is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<String>,
    /// The communicator, where it is known.
    pub comm_hash: Option<String>,
    /// Its position on the communicator, from 0; none of calls to one rank.
    pub position: Option<u64>,
    /// Whom it sends to or receives from, or its root, where that rank is known; else none.
    pub peer: Option<RankRef>,
    /// It receives from any rank.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_any: bool,
    /// The tag, where it has one that is known.
    pub tag: Option<i32>,
}

/// A rank that others wait for while it waits for nobody.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Missing {
    /// Who.
    #[serde(flatten)]
    pub who: RankRef,
    /// Why.
    pub absence: Absence,
    /// The call in which others wait for it.
    pub call: Call,
    /// The call that it is in itself, where it is in one; `call` where it is stopped or stuck.
    pub inside: Option<Call>,
    /// What its threads do, where its host says so.
    pub activity: Option<Activity>,
    /// Where it stands in its program, where its host could see that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
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
    pub call: Call,
    /// Since when, Unix nanoseconds of the coordinator's clock.
    pub since_ns: Option<i64>,
    /// What its threads do, where its host says so.
    pub activity: Option<Activity>,
}

/// A step of a circle: a rank waits in a call for the next one.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Edge {
    /// Who waits.
    #[serde(flatten)]
    pub who: RankRef,
    /// In what.
    pub call: Call,
    /// For whom.
    pub waits_for: RankRef,
    /// Where it stands in its program, where its host could see that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
}

/// In what calls of one position differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// In the function.
    Function,
    /// In the root.
    Root,
    /// In the reduction.
    ReduceOp,
    /// In the datatype.
    Datatype,
    /// In how much each rank gives.
    Size,
}

/// Calls of one position of a communicator that do not belong together.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Differing {
    /// The communicator.
    pub comm_hash: String,
    /// The position, from 0: the first at which calls differ.
    pub position: u64,
    /// In what.
    pub difference: Difference,
    /// Which calls were made there, by whom: those of fewest ranks first.
    pub calls: Vec<DifferentCall>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct DifferentCall {
    /// The function.
    pub func: String,
    /// Its root (rank of the communicator), where it has one.
    pub root: Option<i32>,
    /// The reduction.
    pub reduce_op: Option<String>,
    /// The datatype.
    pub datatype: Option<String>,
    /// Payload of a rank, bytes.
    pub bytes: Option<u64>,
    /// Who made it.
    pub ranks: Vec<RankRef>,
    /// Where in the program one of them made it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
}

/// A call that all ranks of a communicator have entered and that none has left.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Jam {
    /// The communicator.
    pub comm_hash: String,
    /// The function.
    pub func: String,
    /// Its position.
    pub position: u64,
    /// Ranks in it.
    pub ranks: usize,
}

/// Ranks of a communicator that are not in the data.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct NotHeard {
    /// The communicator.
    pub comm_hash: String,
    /// Which ranks of it: inclusive ranges, first and last.
    pub ranks: Ranks,
    /// How many these are.
    pub count: u64,
    /// The ranks of the job that they are among, where all processes of the job are known: these
    /// live, and have made no call on the communicator. None: they, or their hosts, may be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub among: Option<Ranks>,
}

impl NotHeard {
    /// Of a communicator.
    #[must_use]
    pub fn new(comm_hash: String, ranks: Ranks) -> Self {
        Self { comm_hash, count: ranks.count(), ranks, among: None }
    }
}

/// A hang.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct Hang {
    /// The ranks that everybody waits for, and that wait for nobody.
    pub missing: Vec<Missing>,
    /// The first place at which ranks of a communicator made calls that do not belong together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differing: Option<Differing>,
    /// Ranks that wait for each other, each for the next and the last for the first.
    #[serde(default)]
    pub circles: Vec<Vec<Edge>>,
    /// Ranks that are not in the data and that others wait for, each communicator once.
    pub not_heard: Vec<NotHeard>,
    /// Calls that everybody has entered and nobody leaves, where that names no rank.
    pub jammed: Vec<Jam>,
    /// Ranks that wait in calls of which it is not known for whom, and that others wait for.
    #[serde(default)]
    pub unclear: Vec<Waiting>,
    /// What NCCL itself says of its communicators, where it was asked: a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl: Option<String>,
    /// The ranks that wait, longest first.
    pub waiting: Vec<Waiting>,
    /// Since when nothing moves: the latest of the waits' beginnings, Unix nanoseconds of the
    /// coordinator's clock.
    pub since_ns: Option<i64>,
}
