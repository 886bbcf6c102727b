//! The crate's contracts with its callers: what is asked of a node, what comes back, how it fails.

use serde::{Deserialize, Serialize};

use crate::batch::{Batch, Value};

/// A place in the user's SQL, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// The question cannot be planned: it is wrong, or it cannot be answered under the union contract.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct QueryError {
    /// What is wrong and what to do.
    pub message: String,
    /// Where in the SQL, when known.
    pub span: Option<Span>,
}

/// What a question may cost, at each node and at the asker.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Budget {
    /// Rows a node may ship for one task.
    pub node_rows: u64,
    /// Bytes a node may ship for one task.
    pub node_bytes: u64,
    /// Bytes the asker may hold for one question.
    pub asker_bytes: u64,
}

/// What the asker chose beside the SQL.
#[derive(Debug, Clone, Default)]
pub struct AskOptions {
    /// Run the SQL as it stands on each node and concatenate, `node` first.
    pub per_node: bool,
}

/// What one node is asked to do in one round: a list of parts, all executed inside one read transaction, so that they
/// see one snapshot. Travels by value (serde).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeTask {
    // `pub parts: Vec<NodePart>` stands here once plan.rs has NodePart.
    /// The asker's wall clock at the question's start, Unix nanoseconds: 'now' is this instant on every node.
    pub now_unix_ns: i64,
    /// Limits for this task.
    pub budget: Budget,
}

/// What a node did for a task.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NodeStats {
    /// Rows shipped.
    pub rows: u64,
    /// Approximate bytes shipped, before framing.
    pub bytes: u64,
    /// Time spent executing.
    pub elapsed_ns: u64,
    /// What the node knows to be unusual about its answer (a table it lacks, …); goes to coverage notes.
    pub notes: Vec<String>,
}

/// A node could not do its task. Reaches coverage as the reason.
#[derive(Debug, Clone, thiserror::Error, Serialize, Deserialize)]
pub enum NodeError {
    /// The task ran past its row or byte budget.
    #[error("over budget: {0}")]
    OverBudget(String),
    /// The task was stopped (deadline, cancel).
    #[error("stopped: {0}")]
    Stopped(String),
    /// SQLite refused or failed.
    #[error("failed: {0}")]
    Failed(String),
}

/// The question was planned but could not be answered.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RunError {
    /// The asker's budget or a node's is exhausted; the text names the part of the query to narrow.
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
}

/// How a part's answers reach the merge: called by [`Fanout::ask`] for each batch with the node's name and the index of
/// the part. An error stops the question on every node.
pub type Sink<'a> = &'a mut dyn FnMut(&str, usize, Batch) -> Result<(), RunError>;

/// Asks nodes. One implementation speaks QUIC, one runs in memory for tests.
///
/// A node whose answer did not arrive whole must contribute nothing: the implementation buffers or, when batches of a
/// node have already been handed to the sink and the node then fails, returns [`RunError::Internal`] after noting the
/// node as missing, and the caller runs the plan again without it. (`node` buffers per node up to its budget.)
pub trait Fanout {
    /// Ask every node for `task`. Returns the names of the nodes that answered whole, with their statistics.
    ///
    /// # Errors
    /// What the sink returned, or a stop.
    fn ask(&mut self, task: &NodeTask, sink: Sink<'_>) -> Result<Vec<(String, NodeStats)>, RunError>;
}

/// A column of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnMeta {
    /// Name as SQLite would give it.
    pub name: String,
    /// Declared type when the column is a plain table column, else empty.
    pub decl_type: String,
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
    /// Time in the merge.
    pub merge_ns: u64,
}
