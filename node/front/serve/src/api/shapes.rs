//! What answers look like, for the description: what clients may rely on. Documents may have more
//! members than are named here; fields are only added. A test holds real answers against them.
#![expect(dead_code, reason = "they are described, and never made: the documents are the commands'")]

use serde_json::Value;
use utoipa::ToSchema;

/// Who was asked, who answered, and what those who answered know to be missing from their data.
#[derive(ToSchema)]
pub(super) struct Coverage {
    /// Nodes that were asked.
    asked: u64,
    /// Of these, those that are in the answer.
    answered: u64,
    /// The others. Empty: the answer is whole.
    missing: Vec<Missing>,
    /// What answering nodes know to be missing from their data: lost records, retention, sampling.
    notes: Vec<String>,
}

/// A node that was asked and is not in the answer.
#[derive(ToSchema)]
pub(super) struct Missing {
    node: String,
    /// `timeout`, `unreachable`, `refused`, `over budget` or `failed`, and more words.
    reason: String,
}

/// A column of rows.
#[derive(ToSchema)]
pub(super) struct Column {
    name: String,
    /// As declared; empty where it is computed.

    #[schema(rename = "type")]
    decl_type: String,
}

/// Rows of a question.
#[derive(ToSchema)]
pub(super) struct Rows {
    columns: Vec<Column>,
    /// A list for each row, in the order of the columns: integers of 64 bits as integers, reals,
    /// texts, null; what JSON has no form for as an object: `{"blob": "00ff"}`, `{"text": "61ff"}`
    /// (a text that is not UTF-8), both in hexadecimal digits, `{"real": "Inf"}` and
    /// `{"real": "-Inf"}`.
    rows: Vec<Vec<Value>>,
    coverage: Coverage,
    /// From question to answer, milliseconds.
    elapsed_ms: f64,
}

/// Rows of `findings`.
#[derive(ToSchema)]
pub(super) struct Findings {
    /// `node`, then the columns of the table `findings`.
    columns: Vec<Column>,
    /// Oldest first.
    rows: Vec<Vec<Value>>,
    /// There are others: ask again `after` the last of these. Without `after`: older ones; `after=0`
    /// begins with the first.
    more: bool,
    coverage: Coverage,
}

/// A verdict: the document of `rankmesh stragglers --format json` (docs/verdicts.md).
#[derive(ToSchema)]
pub(super) struct Verdict {
    /// `kind`: `rank`, `hang`, `stage_imbalance`, `data_imbalance`, `work_imbalance`, `network`,
    /// `none` or `unknown`; of a rank also `rank`, `node`, `pid`, `late_by_ns`, `last_in` of
    /// `collectives`; of none and unknown `why`.
    #[schema(value_type = Object)]
    verdict: Value,
    /// What the waiting cost.
    #[schema(value_type = Object)]
    cost: Value,
    /// By what: `tier`, `since_ns`, `until_ns`, `collectives`, clocks, and what was not visible.
    #[schema(value_type = Object)]
    evidence: Value,
    /// What explains it: `kind` and `text`; null where nothing does.
    #[schema(value_type = Option<Object>)]
    cause: Value,
    /// Ranks of each communicator with their figures.
    per_comm: Vec<Value>,
    coverage: VerdictCoverage,
    /// The same in words.
    text: String,
}

/// As `Coverage`, with pairs.
#[derive(ToSchema)]
pub(super) struct VerdictCoverage {
    asked: u64,
    answered: u64,
    /// Pairs of a node and the reason why it is missing.
    missing: Vec<Vec<String>>,
    notes: Vec<String>,
}

/// An explanation: the document of `rankmesh explain --format json`.
#[derive(ToSchema)]
pub(super) struct Explanation {
    version: u32,
    /// Kind of the verdict.
    verdict: String,
    /// The verdict in words.
    what: String,
    /// Who: `rank`, `node`, `pid`, and what is known of where it runs; null where nobody is named.
    #[schema(value_type = Option<Object>)]
    place: Value,
    /// Why, in words.
    cause: Option<String>,
    /// Link by link what was seen, each with `at_ns`, `node`, `what` and the table it is of.
    chain: Vec<Value>,
    /// What was looked at, and is not it.
    ruled_out: Vec<String>,
    not_visible: Vec<String>,
    /// The runbook that fits.
    runbook: Option<String>,
    coverage: Coverage,
    /// The page in words.
    text: String,
    /// What to do: the runbook's commands for this process.
    commands: String,
}

/// Call stacks: the document of `rankmesh stacks --format json`.
#[derive(ToSchema)]
pub(super) struct Stacks {
    /// `classes` (`path` from the outermost function inwards, `members`, `samples` of
    /// `of_samples`), `tree`, `members`, `without_stacks`.
    #[schema(value_type = Object)]
    merged: Value,
    /// Processes without a stack: `node`, `rank`, `pid`, `reason`.
    unread: Vec<Value>,
    coverage: Coverage,
    elapsed_ms: f64,
}

/// A member of the mesh; of stores a store.
#[derive(ToSchema)]
pub(super) struct Node {
    name: String,
    address: String,
    /// `live` or `dead`.
    state: String,
    #[schema(value_type = Object)]
    labels: Value,
    /// Ranks that run there.
    ranks: Vec<u32>,
    /// Release.
    version: String,
    /// `on`, or why it does not record.
    capture: String,
    /// Null of a node in another cell of a large mesh: not told that far.
    store_rows: Option<u64>,
    /// First and last time in its store, Unix nanoseconds; null of an empty one, and of another cell's.
    store_span_ns: Option<Vec<i64>>,
    /// It is the agent that was asked.
    #[schema(rename = "self")]
    is_self: bool,
}

/// A table or view that can be asked for.
#[derive(ToSchema)]
pub(super) struct Table {
    name: String,
    /// `table` or `view`; null where it is not documented.
    kind: Option<String>,
    /// What its rows are.
    about: Option<String>,
    columns: Vec<TableColumn>,
}

/// A column of a table.
#[derive(ToSchema)]
pub(super) struct TableColumn {
    name: String,
    /// As declared.

    #[schema(rename = "type")]
    decl_type: String,
    /// What it holds, with its unit.
    meaning: Option<String>,
}

/// A bill: the document of `rankmesh cost --format json`.
#[derive(ToSchema)]
pub(super) struct Bill {
    version: u32,
    job: Option<String>,
    since_ns: i64,
    until_ns: i64,
    /// From then on it was asked for.
    asked_since_ns: i64,
    /// Collectives that were looked at.
    collectives: i64,
    /// Seconds that ranks waited in them, together.
    rank_seconds: f64,
    /// By rank, host and cause, dearest first: `rank`, `node`, `cause`, `collectives`,
    /// `rank_seconds`, `money`.
    culprits: Vec<Value>,
    coverage: Coverage,
}

/// How long requests take, and what the slowest have more of: the document of `rankmesh tail
/// --format json` (docs/serving.md).
#[derive(ToSchema)]
pub(super) struct Tail {
    version: u32,
    since_ns: i64,
    until_ns: i64,
    by: front::tail::By,
    /// Those with the most requests first.
    services: Vec<front::tail::Service>,
    /// Services that are not among them, since there were too many.
    left_out: u64,
    coverage: Coverage,
}

/// What ranks did, window by window (docs/top.md). Times of cells are microseconds, null where not
/// known.
#[derive(ToSchema)]
pub(super) struct Board {
    version: u32,
    job: String,
    /// Who kept it; null where it is made from the stores.
    judge: Option<String>,
    /// Places of ranks hold within one epoch.
    epoch: u64,
    clock_bound_ns: Option<i64>,
    window_ns: i64,
    first_rank: u32,
    /// `rank`, `node`, `pid` each.
    ranks: Vec<Value>,
    /// `end_ns`, `collectives`, and by place of the rank `late`, `wait`, `compute` each.
    windows: Vec<Value>,
    /// There is more: ask again for what ends after the last of these.
    more: bool,
    coverage: Coverage,
}

/// What stands, or stood (docs/top.md).
#[derive(ToSchema)]
pub(super) struct Watched {
    version: u32,
    /// The agent that says so; empty where it is made from stores.
    agent: String,
    /// When it was made; of a span its end. Unix nanoseconds.
    at_ns: i64,
    /// The job that is shown: `name`, `id`, `verdict`, `sentence`, `is_ill`, `culprits`, `cause`,
    /// `step_ns`, …
    #[schema(value_type = Option<Object>)]
    job: Value,
    /// All jobs, those that are not well first.
    jobs: Vec<Value>,
    /// Ranks of the job that is shown, worst first: `rank`, `node`, `pid`, `role`, `late_ns`,
    /// `wait_ns`, …
    ranks: Vec<Value>,
    /// `name`, `state`, `recording`, `ranks`, `rows`, `span_ns`, `clock_bound_ns`, `version` each.
    nodes: Vec<Value>,
    coverage: Coverage,
}

/// One collective, rank by rank.
#[derive(ToSchema)]
pub(super) struct Step {
    /// Function and number.
    collective: String,
    /// Clocks of its hosts are not known, and set so that its ranks leave it together.
    by_ends: bool,
    ranks: Vec<StepRank>,
    /// What hosts recorded of these ranks in it: `node`, `pid`, `at_ns`, `duration_ns`, `what`
    /// each.
    events: Vec<Value>,
    coverage: Coverage,
}

/// A rank's part of a collective.
#[derive(ToSchema)]
pub(super) struct StepRank {
    rank: i64,
    node: String,
    pid: i64,
    /// When it entered, Unix nanoseconds of the clock of who was asked.
    entry_ns: i64,
    /// How long it was in the call.
    duration_ns: i64,
    /// How far its entry may be wrong; null where its host's clock is not known.
    bound_ns: Option<i64>,
    /// How long it computed before; null where that is not known.
    own_ns: Option<i64>,
}
