//! What `rankmesh explain` answers: a verdict as a chain of what was seen, from the event on a host
//! to who waited for how long. Front ends print it; `explain` makes it.
//!
//! Every link says where it was seen. What was not seen is in `not_visible`, never in a link.

use serde::{Deserialize, Serialize};

use crate::coverage::Coverage;

/// The version of the JSON form: raised when a field changes its meaning or goes.
pub const EXPLANATION_VERSION: u32 = 1;

/// A verdict explained.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// See [`EXPLANATION_VERSION`].
    pub version: u32,
    /// Kind of the verdict, as in `stragglers`; of a finding on requests `tail_grown` or `tail_over`.
    pub verdict: String,
    /// The verdict in words.
    pub what: String,
    /// The culprit's place; none where no process is named.
    pub place: Option<Place>,
    /// What explains the lateness, in words; none where nothing does.
    pub cause: Option<String>,
    /// Kinds of causes that are named, dearest first; each has a runbook.
    pub kinds: Vec<String>,
    /// How one leads to the other, in general.
    pub chain: Vec<Link>,
    /// The worst steps, worst first.
    pub examples: Vec<Example>,
    /// Times of `examples` are on this node's clock; none: on each host's own.
    pub clock_of: Option<String>,
    /// How far times of different hosts may be off each other.
    pub clock_bound_ns: Option<i64>,
    /// Since when and how often.
    pub since: Option<Since>,
    /// What was different on the culprit's host from then on, in words.
    pub changed: Vec<String>,
    /// What was looked at and does not explain it, in words.
    pub ruled_out: Vec<String>,
    /// What could not be seen, in words.
    pub not_visible: Vec<String>,
    /// What it costs; none where nobody is named.
    pub cost: Option<Cost>,
    /// Which runbook fits.
    pub runbook: Option<String>,
    /// Values for the runbook's commands, by the names of its variables.
    pub values: Vec<(String, String)>,
    /// Questions that give the figures again: title and SQL.
    pub sql: Vec<(String, String)>,
    /// Who was asked and who answered.
    pub coverage: Coverage,
}

/// A process and where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its rank.
    pub rank: i32,
    /// Its host.
    pub node: String,
    /// Process id there.
    pub pid: i64,
    /// The CPU on which it was most often put off; none where that was not recorded.
    pub cpu: Option<i64>,
    /// Its cgroup below /sys/fs/cgroup; none where unknown or not visible to the requester.
    pub cgroup: Option<String>,
    /// Its GPU's index, where the cause names one.
    pub gpu: Option<String>,
    /// The line or function that it is in more often than its peer, with the samples of both.
    pub line: Option<String>,
}

/// One link of a chain: what was seen, where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its onset, Unix nanoseconds; none for a statement about the span as a whole.
    pub at_ns: Option<i64>,
    /// For how long.
    pub duration_ns: Option<i64>,
    /// On which host.
    pub node: String,
    /// What happened.
    pub what: String,
    /// Where that was seen: table or sampling.
    pub evidence: String,
    /// Evidence tier of what is known by collectives; none for what a host recorded of itself.
    pub tier: Option<u8>,
}

/// One step as it happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Example {
    /// The collective: function and number.
    pub collective: String,
    /// By how much longer the culprit took to it than its peer.
    pub late_ns: i64,
    /// From the event on the host to who waited, in order of time.
    pub links: Vec<Link>,
}

/// Since when and how often.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Since {
    /// First time, Unix nanoseconds.
    pub since_ns: i64,
    /// Last time.
    pub until_ns: i64,
    /// It was so from the first instant of the span: the onset may be earlier.
    pub from_start: bool,
    /// It goes on.
    pub ongoing: bool,
    /// Collectives in which it came last.
    pub last_in: usize,
    /// Collectives.
    pub collectives: usize,
}

/// Time that ranks waited.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Sum over the ranks, seconds.
    pub gpu_seconds: f64,
    /// As if so many ranks did nothing.
    pub gpus_lost: f64,
    /// Of each step, where steps are known.
    pub gpu_seconds_per_step: Option<f64>,
    /// It is at most this.
    pub upper_bound: bool,
    /// Ranks that wait.
    pub waiting: usize,
    /// The hosts of those ranks that sent data.
    pub nodes: Vec<String>,
}
