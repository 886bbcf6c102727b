//! What stands now, for whoever watches: the verdict on a job with its ranks, and the other jobs in
//! a line each. Pushed as JSON by an agent (`LocalRequest::Watch`), made in the same form of a span
//! of the past: a front end shows both alike.
//!
//! Fields are only added, and a missing one reads as its default, so that a front end of one
//! release reads another's.

use serde::{Deserialize, Serialize};

use crate::coverage::Coverage;

/// The version of the JSON form: raised when a field changes its meaning or goes.
pub const WATCH_VERSION: u32 = 1;

/// What stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watched {
    /// See [`WATCH_VERSION`].
    pub version: u32,
    /// The agent that made it; empty where it is made from stores.
    pub agent: String,
    /// When it was made, Unix nanoseconds of the agent's clock.
    pub at_ns: i64,
    /// The job that is shown; none where no verdict stands.
    pub job: Option<JobNow>,
    /// All jobs, those that are not well first; that which is shown among them.
    pub jobs: Vec<JobNow>,
    /// The ranks of the job that is shown, worst first.
    pub ranks: Vec<RankNow>,
    /// Why ranks are missing in the table, in words; none where none is missing.
    pub brief: Option<String>,
    /// The nodes of the mesh.
    pub nodes: Vec<NodeNow>,
    /// The nodes whose data is in it.
    pub coverage: Coverage,
    /// How the agent itself does; none where it is made from stores, or the agent is of an earlier
    /// release.
    pub own: Option<AgentNow>,
}

/// How an agent does. Counts are since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentNow {
    /// Processor time that it has used, nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Its resident memory, bytes.
    pub memory_bytes: Option<u64>,
    /// Its threads.
    pub threads: Option<u64>,
    /// Gossip messages that went out,
    pub gossip_sent: u64,
    /// and their bytes.
    pub gossip_sent_bytes: u64,
    /// Gossip messages that came in,
    pub gossip_received: u64,
    /// and their bytes.
    pub gossip_received_bytes: u64,
    /// Gossip messages that were dropped: a queue was full, or the peer was not reached.
    pub gossip_dropped: u64,
    /// Memory that questions have now, bytes.
    pub question_memory_bytes: u64,
    /// What they may have together, bytes.
    pub question_memory_most_bytes: u64,
    /// Questions of other nodes that were served.
    pub served: u64,
    /// Records that the store has taken; none without a store.
    pub stored: Option<u64>,
    /// Records that the store lost: its queue was full, or they could not be written.
    pub store_lost: Option<u64>,
    /// Records that wait for the store.
    pub store_queued: Option<u64>,
    /// Bytes of the store's files.
    pub store_bytes: Option<u64>,
    /// Events that probes could not hand over; none where nothing is captured by probes.
    pub capture_lost: Option<u64>,
    /// What recording took of the process that makes most calls, in millionths of its time, in the
    /// last ten seconds; none where it is not measured.
    pub recording_ppm: Option<u64>,
    /// What a recorded call costs, nanoseconds.
    pub recorded_call_ns: Option<u64>,
    /// Requests that servers of this host have answered, by service.
    pub services: Vec<ServiceNow>,
    /// What had grown before the agent's start is among these; right after it that is not known yet.
    pub grown_is_known: bool,
}

/// Upper bounds of the durations that [`ServiceNow`] counts, nanoseconds: 1 ms to 100 s, each at most
/// 1.7 times the one before.
pub const REQUEST_BOUNDS_NS: [u64; 31] = {
    const STEPS: [u64; 6] = [10, 15, 20, 30, 50, 70];
    let (mut bounds, mut at, mut unit) = ([0; 31], 0, 100_000);
    while at < bounds.len() {
        bounds[at] = STEPS[at % STEPS.len()] * unit;
        at += 1;
        if at % STEPS.len() == 0 {
            unit *= 10;
        }
    }
    bounds
};

/// The requests of a service on a host since its agent's start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceNow {
    /// Its name.
    pub name: String,
    /// Requests.
    pub count: u64,
    /// Of these failed: status from 500 on, gRPC's not 0, reset, or not answered.
    pub errors: u64,
    /// Durations of the answered ones together, nanoseconds.
    pub sum_ns: u64,
    /// How many of the answered ones took so long: up to each of [`REQUEST_BOUNDS_NS`], and longer.
    pub durations: Vec<u64>,
    /// Its 99th percentile has grown over its own past; none where it has not.
    pub grown: Option<GrownNow>,
}

/// The 99th percentile of a service's durations on a host, where it has grown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GrownNow {
    /// Since when, Unix nanoseconds.
    pub since_ns: i64,
    /// It, when that was found.
    pub p99_ns: i64,
    /// The median of its past.
    pub past_p99_ns: i64,
    /// That in words.
    pub sentence: String,
    /// What explains it, in words.
    pub cause: Option<String>,
}

/// A job and its verdict.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobNow {
    /// What it is called.
    pub name: String,
    /// What [`BoardQuestion`](crate::board::BoardQuestion) and other requests take for it; none
    /// where no job id is known.
    pub id: Option<String>,
    /// Its ranks, where known.
    pub nranks: Option<i64>,
    /// Kind of the verdict, as in `stragglers`.
    pub verdict: String,
    /// The verdict in words.
    pub sentence: String,
    /// Somebody holds it up, or it hangs.
    pub is_ill: bool,
    /// Who, dearest first.
    pub culprits: Vec<CulpritNow>,
    /// What explains it, in words.
    pub cause: Option<String>,
    /// Sum over the waiting ranks of the time that they waited, seconds.
    pub gpu_seconds: Option<f64>,
    /// As if so many ranks did nothing.
    pub gpus_lost: Option<f64>,
    /// That is at most so.
    pub upper_bound: bool,
    /// How long a step takes, nanoseconds; none where steps cannot be recognised.
    pub step_ns: Option<i64>,
    /// Evidence tier.
    pub tier: u8,
    /// How far times of different hosts may be wrong against each other, nanoseconds.
    pub clock_bound_ns: Option<i64>,
    /// What could not be seen, in words.
    pub not_visible: Vec<String>,
    /// What else was seen, in words.
    pub notes: Vec<String>,
    /// Who judged it; none where it is made from stores.
    pub judge: Option<String>,
    /// The job's judges differ about it.
    pub differ: bool,
    /// End of what was judged, Unix nanoseconds.
    pub until_ns: i64,
    /// Time since then when this was made, milliseconds.
    pub age_ms: i64,
    /// Nodes whose window had not come.
    pub silent: Vec<String>,
}

/// Who holds a job up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CulpritNow {
    /// Its rank.
    pub rank: i64,
    /// Its host.
    pub node: String,
    /// Its process there; none of a rank of which only the number is known.
    pub pid: Option<i64>,
    /// By how much it is late, nanoseconds.
    pub late_by_ns: Option<i64>,
    /// Since when, Unix nanoseconds.
    pub since_ns: Option<i64>,
    /// The onset may be earlier.
    pub since_start: bool,
    /// Of so many collectives,
    pub collectives: u64,
    /// it was last in these.
    pub last_in: u64,
}

/// A rank over the span that a verdict is about.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankNow {
    /// Its rank in the job.
    pub rank: i64,
    /// Its host.
    pub node: String,
    /// Its process there.
    pub pid: i64,
    /// `culprit`, `held_up`, `victim` or `peer`.
    pub role: String,
    /// Mean of its entry minus the first entry, nanoseconds; none where a clock is not known.
    pub late_ns: Option<i64>,
    /// Mean time in calls beyond what the rank took that waited least.
    pub wait_ns: Option<i64>,
    /// Mean of its excess over the median of the others, a collective.
    pub excess_ns: Option<i64>,
    /// The same as a share of wall time; of ranks that meet in calls to single ranks, the share of
    /// all waiting that ends at it.
    pub share: f64,
    /// Mean of how much more compute time it took than the median of the ranks that do the same.
    pub compute_excess_ns: Option<i64>,
    /// Robust z over the span; none for two or three ranks.
    pub z: Option<f64>,
    /// Windows in which it was flagged,
    pub flagged: u64,
    /// of so many.
    pub windows: u64,
    /// Share of wall time outside communication calls; of ranks that meet in calls to single ranks.
    pub compute_share: Option<f64>,
}

/// A node of the mesh.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeNow {
    /// Its name.
    pub name: String,
    /// `live`, `dead` or another state of the failure detector; `file` of a store without an agent.
    pub state: String,
    /// What it records, or why not.
    pub recording: String,
    /// Ranks that run there.
    pub ranks: Vec<u32>,
    /// Rows of its store; none where not known: of nodes in other cells of a large mesh.
    pub rows: Option<u64>,
    /// Oldest and newest time in it, Unix nanoseconds of its own clock.
    pub span_ns: Option<(i64, i64)>,
    /// How far its clock may be wrong against the reference, nanoseconds; none where not known.
    pub clock_bound_ns: Option<i64>,
    /// Release.
    pub version: String,
    /// It is the agent that was asked.
    pub is_self: bool,
}
