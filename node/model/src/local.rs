//! What people and programs ask an agent, on its local socket or over the mesh with a certificate
//! of their own, and what it answers. The order of variants is part of the format, as in `wire`:
//! add at the end, never remove or reorder.

use query_planner::{ColumnMeta, Value};
use serde::{Deserialize, Serialize};

use crate::board::{Board, BoardQuestion};
use crate::coverage::Coverage;
use crate::failure::Failure;

/// What the command line asks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum LocalRequest {
    /// A SQL question.
    Query(Question),
    /// Who holds the job up.
    Stragglers(StragglersQuestion),
    /// The members of the mesh.
    Nodes,
    /// Where ranks are: their call stacks.
    Stacks(StacksQuestion),
    /// Record a mark in this host's store.
    Mark(Mark),
    /// A verdict with the chain behind it.
    Explain(ExplainQuestion),
    /// What ranks did, window by window. Answered by one [`LocalResponse::Board`].
    Board(BoardQuestion),
    /// The verdict and the rank table, now and at each change, at most twice a second, until the
    /// client closes the connection: [`LocalResponse::Watch`]s.
    Watch(WatchQuestion),
    /// The tables that can be asked for: a JSON list of [`TableSeen`].
    Tables,
    /// The request that follows on this connection is a front end's, for one of its clients. Only
    /// on a local socket, and once. (A request inside a request could be nested without end.)
    OnBehalf(OnBehalf),
    /// How every node is and whom it reaches: a JSON document.
    Doctor,
}

/// For whom a front end asks. It may have less than the front end itself, never more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnBehalf {
    /// The front end's number of the request, for the audit; letters, digits and `-`, at most
    /// [`OnBehalf::LONGEST`].
    pub request_id: String,
    /// Whom it serves, by a name of its own, in the same characters: each has a queue of its own.
    pub client: String,
    /// As a reader, whatever the front end itself may see.
    pub reader: bool,
}

impl OnBehalf {
    /// Characters of an id or a name.
    pub const LONGEST: usize = 64;

    /// Whether id and name are what they may be.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let plain = |text: &str| {
            text.len() <= Self::LONGEST && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        plain(&self.request_id) && plain(&self.client)
    }
}

/// What the agent answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum LocalResponse {
    /// Columns of the result that follows.
    Columns(Vec<ColumnMeta>),
    /// Some rows.
    Rows(Vec<Vec<Value>>),
    /// The result is complete.
    End {
        /// Who is in it.
        coverage: Coverage,
        /// From question to answer.
        elapsed_ns: u64,
        /// The plan with what each node shipped.
        explained: String,
    },
    /// A text: a plan, or a JSON document (nodes, stragglers).
    Text(String),
    /// The question is wrong (exit code 2).
    Wrong(Failure),
    /// No answer (exit code 1).
    Failed {
        /// What happened.
        failure: Failure,
        /// Who had answered by then.
        coverage: Option<Coverage>,
    },
    /// What ranks did, or a part of it.
    Board(Box<Board>),
    /// What stands now: a [`Watched`](crate::watch::Watched) as JSON. Others follow.
    Watch(String),
}

impl LocalResponse {
    /// No answer, and nothing is known of who had answered.
    pub fn failed(why: impl Into<Failure>) -> Self {
        Self::Failed { failure: why.into(), coverage: None }
    }

    /// Whether nothing follows this response.
    #[must_use]
    pub fn is_last(&self) -> bool {
        !matches!(self, Self::Columns(_) | Self::Rows(_) | Self::Watch(_))
    }
}

/// A table or view of the nodes that are asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSeen {
    /// Its name.
    pub name: String,
    /// Its visible columns, in order; none where only a question to it tells.
    pub columns: Vec<ColumnMeta>,
}

/// A question as it comes over the local socket.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Question {
    /// The user's SQL.
    pub sql: String,
    /// Deadline.
    pub timeout_ms: u64,
    /// Ask only these nodes; empty is all.
    pub nodes: Vec<String>,
    /// Ask only nodes with all these labels.
    pub labels: Vec<(String, String)>,
    /// Concatenate instead of merging.
    pub per_node: bool,
    /// Give the plan instead of running it.
    pub plan_only: bool,
    /// Give the plan and what running it cost in addition to the answer.
    pub analyze: bool,
}

/// What `rankmesh explain` asks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExplainQuestion {
    /// Which verdict.
    pub what: ExplainWhat,
    /// Only this job.
    pub job: Option<String>,
    /// Only this communicator.
    pub comm: Option<u64>,
    /// Deadline.
    pub timeout_ms: u64,
    /// Ask only these nodes.
    pub nodes: Vec<String>,
    /// Ask only nodes with these labels.
    pub labels: Vec<(String, String)>,
}

/// Which verdict is explained.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ExplainWhat {
    /// That of a time.
    Of(AskedSpan),
    /// That of a finding's time.
    Finding {
        /// `findings.ts_ns`.
        ts_ns: i64,
    },
}

/// The time that a verdict is asked for, by the asked agent's clock. One that lasts to now has the calls
/// that ranks are in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AskedSpan {
    /// What stands now, by the standing verdict where there can be one; of files, the time before
    /// their last call.
    #[default]
    Now,
    /// So long up to now; of files, before their last call and up to their end.
    Last {
        /// Milliseconds.
        ms: u64,
    },
    /// From then up to now, or to the files' end.
    Since {
        /// Unix nanoseconds.
        ns: i64,
    },
    /// A time of the past.
    Between {
        /// From here, Unix nanoseconds.
        since_ns: i64,
        /// To here.
        until_ns: i64,
    },
}

/// What is to be watched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchQuestion {
    /// The job whose verdict and ranks are wanted, by `job_id` or `job_id.step_id`; none: the one
    /// that is worst off.
    pub job: Option<String>,
}

/// What `rankmesh mark` notes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mark {
    /// What happened: an epoch, a phase, a deployment.
    pub text: String,
    /// Names with values.
    pub attributes: Vec<(String, String)>,
}

/// What `rankmesh stragglers` asks.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StragglersQuestion {
    /// Which time.
    pub span: AskedSpan,
    /// Only this job.
    pub job: Option<String>,
    /// Only this communicator.
    pub comm: Option<u64>,
    /// Deadline.
    pub timeout_ms: u64,
    /// Ask only these nodes.
    pub nodes: Vec<String>,
    /// Ask only nodes with these labels.
    pub labels: Vec<(String, String)>,
}

/// Which stacks a node is to take of its ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StacksWanted {
    /// Only this job's ranks.
    pub job: Option<String>,
    /// Only these ranks; empty is all.
    pub ranks: Vec<u32>,
    /// Also the child processes of those.
    pub children: bool,
    /// All threads, not the first of each process only.
    pub all_threads: bool,
    /// Of programs in Python, too, the functions of C, … and not those of Python.
    #[serde(default)]
    pub native: bool,
    /// Samples of each process.
    pub samples: u32,
    /// Time between two samples, milliseconds.
    pub every_ms: u32,
}

/// What `rankmesh stacks` asks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StacksQuestion {
    /// What each node is to do.
    pub wanted: StacksWanted,
    /// Deadline.
    pub timeout_ms: u64,
    /// Ask only these nodes; empty is all.
    pub nodes: Vec<String>,
    /// Ask only nodes with all these labels.
    pub labels: Vec<(String, String)>,
}

impl StragglersQuestion {
    /// Whether standing verdicts answer it: there is one for each job, of all its hosts.
    #[must_use]
    pub fn takes_standing(&self) -> bool {
        self.span == AskedSpan::Now && self.comm.is_none() && self.nodes.is_empty() && self.labels.is_empty()
    }
}
