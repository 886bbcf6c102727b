//! The crate's contracts with its callers: what is asked of a node, what comes back, how it fails.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::batch::{Batch, Value};
use crate::limits::{MAX_FRAGMENT_BYTES, MAX_KEYS};
use crate::memory::SharedReservation;
use crate::plan::{ColumnMeta, Fragment, Targets};

/// What a question may cost, at each node and at the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Rows a node may ship for one task.
    pub node_rows: u64,
    /// Bytes of data ([`Batch::data_bytes`]) that a node may ship for one task.
    pub node_bytes: u64,
    /// Bytes of data that the coordinator may gather for one question.
    pub coordinator_bytes: u64,
}

impl Default for Budget {
    /// 10 million rows and 256 MiB a node, 512 MiB at the coordinator.
    fn default() -> Self {
        Budget { node_rows: 10_000_000, node_bytes: 256 << 20, coordinator_bytes: 512 << 20 }
    }
}

/// What the coordinator chose in addition to the SQL.
#[derive(Debug, Clone, Default)]
pub struct AskOptions {
    /// Run the SQL as it stands on each node and concatenate, `node` first.
    pub per_node: bool,
    /// The fan-out has one node only, so the whole question can go there. The caller must then ask
    /// just that node.
    pub single_node: bool,
}

/// What one node is asked to do in one round: a list of fragments, all executed inside one read
/// transaction, so that they see one snapshot. Travels by value (serde).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeTask {
    /// What to run; results are identified by the index in this list.
    pub fragments: Vec<Fragment>,
    /// For each fragment the values of its anonymous parameters (`?`), in order; a fragment beyond
    /// the end of this list has none.
    pub keys: Vec<Vec<Value>>,
    /// The coordinator's wall clock at the question's start, Unix nanoseconds: 'now' is this
    /// instant on every node.
    pub now_unix_ns: i64,
    /// Limits for this task.
    pub budget: Budget,
    /// The user to whose rows the answer is limited, where the caller may not see all. It is no
    /// part of the encoding: it is sent next to the task, and a task that would be sent without it
    /// is refused.
    #[serde(with = "unsent")]
    pub viewer: Option<u32>,
}

/// Fragments of a task; plans have one a table.
const MAX_FRAGMENTS: usize = 1_000;
/// Tables and columns that the fragments of a task declare as read, all together: each may have to
/// be looked for.
const MOST_READS: usize = 20_000;

impl NodeTask {
    /// Whether the task is no larger than plans make them. It may be another node's, and what is
    /// not bounded by its budget costs time or stack before the first row: so this is looked at
    /// before anything of it is.
    ///
    /// # Errors
    /// What is too large.
    pub fn within_limits(&self) -> Result<(), NodeError> {
        let refuse = |what: String| Err(NodeError::Failed(format!("the task is too large: {what}")));
        if self.fragments.len() > MAX_FRAGMENTS {
            return refuse(format!("{} fragments, {MAX_FRAGMENTS} are allowed", self.fragments.len()));
        }
        if let Some(fragment) = self.fragments.iter().find(|fragment| fragment.sql.len() > MAX_FRAGMENT_BYTES) {
            return refuse(format!("SQL of {} bytes, {MAX_FRAGMENT_BYTES} are allowed", fragment.sql.len()));
        }
        let reads = self
            .fragments
            .iter()
            .flat_map(|fragment| &fragment.reads)
            .map(|(_, columns)| 1 + columns.len())
            .sum::<usize>();
        if reads > MOST_READS {
            return refuse(format!("it reads {reads} tables and columns, {MOST_READS} are allowed"));
        }
        if self.keys.len() > self.fragments.len() || self.keys.iter().any(|keys| keys.len() > MAX_KEYS) {
            return refuse(format!("more than {MAX_KEYS} keys for a fragment, or keys for no fragment"));
        }
        Ok(())
    }
}

/// Encodes nothing, and refuses to leave something out.
mod unsent {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error};

    pub(super) fn serialize<S: Serializer>(viewer: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
        match viewer {
            None => ().serialize(serializer),
            Some(_) => Err(S::Error::custom("a task of one user's must not be sent as everybody's")),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
        <()>::deserialize(deserializer).map(|()| None)
    }
}

/// What a node did for a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Rows shipped.
    pub rows: u64,
    /// Approximate bytes shipped, before framing.
    pub bytes: u64,
    /// Time spent executing.
    pub elapsed_ns: u64,
    /// What the node knows to be unusual about its answer (a table it lacks, …); goes to coverage
    /// notes.
    pub notes: Vec<String>,
}

/// A node could not do its task. Reaches coverage as the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum NodeError {
    /// The task ran past its row or byte budget.
    #[error("over budget: {0}")]
    OverBudget(String),
    /// The task was stopped (cancel, or it is only tried).
    #[error("stopped: {0}")]
    Stopped(String),
    /// The deadline passed.
    #[error("timeout: {0}")]
    Timeout(String),
    /// A runtime error of the SQL itself (integer overflow, malformed JSON, …): the union database
    /// would raise it too.
    #[error("{0}")]
    Sql(String),
    /// The node could not do what was asked of it.
    #[error("failed: {0}")]
    Failed(String),
    /// Too much is asked of the node at the moment.
    #[error("refused: {0}")]
    Busy(String),
}

/// The question was planned but could not be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The coordinator's budget or a node's is exhausted; the text names the part of the query to
    /// narrow.
    #[error("over budget: {0}")]
    OverBudget(String),
    /// Deadline or cancel.
    #[error("stopped: {0}")]
    Stopped(String),
    /// A runtime error that the union database would raise too (integer overflow, …).
    #[error("{0}")]
    Sql(String),
    /// A fault in our own machinery or the fan-out.
    #[error("internal: {0}")]
    Internal(String),
    /// The fan-out sent what was asked for and does not wait for the answers: with them the same
    /// run, made again, goes on. Only fan-outs that may not wait return it, to callers who know.
    #[error("not answered yet")]
    Pending,
}

/// How a fragment's answers reach the merge: called by [`Fanout::ask`] for each batch with the
/// node's name and the index of the fragment; lent where the fan-out may need it once more. An
/// error stops the question on every node.
pub type Sink<'a> = &'a mut dyn FnMut(&str, usize, Cow<'_, Batch>) -> Result<(), RunError>;

/// Where the rows of an answer go, some at a time, in order. It may block: that slows the nodes
/// down. An error stops the question on every node.
pub type Out<'a> = &'a mut dyn FnMut(Vec<Vec<Value>>) -> Result<(), RunError>;

/// Where in a question the asks that follow are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// A run in one round begins.
    Only,
    /// A run in one round begins whose rows go on to the user as they come: rows of a node may
    /// reach the sink before its answer is complete, and a node that fails after that ends the
    /// question.
    Flowing,
    /// A run in two rounds begins.
    First,
    /// The last of two rounds.
    Second,
}

/// Asks nodes. One implementation speaks QUIC, one runs in memory for tests. A node whose answer
/// did not arrive completely must contribute nothing: the implementation buffers or, when batches
/// of a node have already been handed to the sink and the node then fails, returns
/// [`RunError::Internal`] after noting the node as missing, and the caller runs the plan again
/// without it. (`node` buffers per node up to its budget.)
///
/// [`NodeError::Sql`] of any node is not a missing node: the union would fail too, so it ends the
/// question as [`RunError::Sql`].
pub trait Fanout {
    /// A round of asks begins. Of two rounds the second must see what the first saw: a node that
    /// answered the first answers the second from the same snapshot, or is lost (and the question
    /// runs again without it).
    fn round(&mut self, round: Round) {
        let _ = round;
    }

    /// Ask the targets for `task`. Returns the names of the nodes that answered completely, with
    /// their statistics. With [`Targets::All`] and [`Targets::Named`] nodes that do not answer are
    /// left out (coverage names them).
    ///
    /// # Errors
    /// What the sink returned, or a stop.
    fn ask(&mut self, task: &NodeTask, targets: &Targets, sink: Sink<'_>)
    -> Result<Vec<(String, NodeStats)>, RunError>;
}

/// The merged answer of a question.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// Result columns.
    pub columns: Vec<ColumnMeta>,
    /// Result rows, in the order SQLite would give where ORDER BY fixes it.
    pub rows: Vec<Vec<Value>>,
    /// Notes for coverage.
    pub notes: Vec<String>,
    /// Per node and round: what was shipped.
    pub node_stats: Vec<(String, NodeStats)>,
    /// What was chosen between rounds by what the first one brought, and what that spared; for
    /// `--explain`.
    pub chosen: Vec<String>,
    /// Time in the merge.
    pub merge_ns: u64,
    /// What `rows` take of the question's memory; dropped, they count no more.
    pub kept: Option<Arc<SharedReservation>>,
}
