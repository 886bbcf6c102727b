//! Operations of ranks: the tables of the straggler study of ByteDance.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use observed::{Input, Observation, Payload, SyncCall};
use serde::Deserialize;

use super::ImportError;

/// The columns that are read; others may be there.
pub const COLUMNS: [&str; 7] = ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration"];

/// One operation of one rank: a row of the table.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Operation {
    /// Replica (data parallel rank).
    pub dp_rank: f64,
    /// Stage of the pipeline.
    pub stage: f64,
    /// Rank in the job.
    pub rank: f64,
    /// Training step.
    pub step: f64,
    /// What it does: "forward-compute", "grads-reduce-scatter", …
    pub optype: String,
    /// Start, seconds.
    pub start_ts: f64,
    /// Length, seconds.
    pub duration: f64,
}

impl Operation {
    /// The first column whose number is none that can be worked with.
    fn unfit(&self) -> Option<&'static str> {
        let numbers = [self.dp_rank, self.stage, self.rank, self.step, self.start_ts, self.duration];
        let names = ["dp_rank", "stage", "rank", "step", "start_ts", "duration"];
        names.into_iter().zip(numbers).find(|(_, number)| !number.is_finite()).map(|(name, _)| name)
    }
}

/// Read a trace of the straggler study of ByteDance as it is published: CSV, see [`of_operations`].
/// Fields may be quoted.
///
/// # Errors
/// [`ImportError`] when the text has other columns or a broken line.
pub fn bytedance_csv(text: &str) -> Result<Input, ImportError> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = reader.headers().map_err(|error| ImportError::Csv(error.to_string()))?.clone();
    for column in COLUMNS {
        if header.iter().all(|name| name != column) {
            return Err(ImportError::Column(column));
        }
    }
    let read = reader.deserialize::<Operation>().zip(2..).map(|(row, line)| {
        row.map_err(|error| match error.kind() {
            csv::ErrorKind::Deserialize { pos, err } => {
                let line = pos.as_ref().map_or(line, csv::Position::line);
                let column = err.field().and_then(|at| header.get(usize::try_from(at).ok()?));
                ImportError::Line { line, column: column.unwrap_or("a column").to_owned() }
            }
            _ => ImportError::Csv(error.to_string()),
        })
    });
    of_operations(read)
}

/// The input that a table of the straggler study of ByteDance gives (Lin et al., "Understanding
/// Stragglers in Large Model Training Using What-if Analysis", 2025): one operation of one rank a
/// row, times in seconds from the start of its step.
///
/// Steps are laid end to end. The compute time of a rank is that of its compute phases: while it is
/// in none, nor in a collective, it waits, and that is reported as a wait for its device. Gradient
/// reduce-scatters and parameter all-gathers meet the ranks of a stage (its data parallel group),
/// embedding all-reduces the first and the last stage of a replica, sends and receives a replica's
/// pipeline. Ranks are those of the job; every rank is a node of its own, without a known clock:
/// the trace's times are not relied on across ranks.
///
/// # Errors
/// The first error of `rows`; [`ImportError::Line`] where a number is not finite.
pub fn of_operations(rows: impl Iterator<Item = Result<Operation, ImportError>>) -> Result<Input, ImportError> {
    let mut ops = Vec::new();
    let mut steps: BTreeMap<i64, f64> = BTreeMap::new();
    let mut replicas: BTreeSet<i64> = BTreeSet::new();
    for (row, line) in rows.zip(2..) {
        let row = row?;
        if let Some(column) = row.unfit() {
            return Err(ImportError::Line { line, column: column.to_owned() });
        }
        let [dp, stage, rank, step] = [row.dp_rank, row.stage, row.rank, row.step].map(|number| number as i64);
        replicas.insert(dp);
        ops.push(Op { dp, stage, rank, step, name: row.optype, start: row.start_ts, length: row.duration });
    }

    // Each rank's clock begins with its own first operation: what the clocks say across ranks is
    // not relied on.
    let mut first: BTreeMap<i64, f64> = BTreeMap::new();
    for op in &ops {
        let start = first.entry(op.rank).or_insert(op.start);
        *start = start.min(op.start);
    }
    for op in &mut ops {
        op.start -= first.get(&op.rank).copied().unwrap_or(0.0);
        let end = steps.entry(op.step).or_default();
        *end = end.max(op.start + op.length);
    }
    // Where each step begins when they are laid end to end.
    let mut begins: BTreeMap<i64, (u64, f64)> = BTreeMap::new();
    let mut at = 0.0;
    for (number, (step, length)) in steps.iter().enumerate() {
        begins.insert(*step, (number as u64, at));
        at += length;
    }
    let mut input = Input { since_ns: 0, until_ns: ns(at) + 1, ..Input::default() };
    let mut nodes: BTreeMap<i64, Arc<str>> = BTreeMap::new();
    let mut sequence: BTreeMap<(i64, u64, &str), u64> = BTreeMap::new();
    ops.sort_by(|a, b| (a.rank, a.step).cmp(&(b.rank, b.step)).then(a.start.total_cmp(&b.start)));
    // Until when each rank computes or is in a collective.
    let mut busy_until: BTreeMap<i64, i64> = BTreeMap::new();
    for op in &ops {
        let Some((step, begin)) = begins.get(&op.step) else { continue };
        let node = Arc::clone(nodes.entry(op.rank).or_insert_with(|| format!("rank{}", op.rank).into()));
        let (start_ns, duration_ns) = (ns(begin + op.start), ns(op.length));
        let call = match op.name.as_str() {
            name if name.ends_with("-compute") || name == "optimizer" => None,
            "grads-reduce-scatter" => Some(("reduce_scatter", group(1, op.stage), i32::try_from(replicas.len()).ok())),
            "params-all-gather" => Some(("all_gather", group(1, op.stage), i32::try_from(replicas.len()).ok())),
            "embedding-grads-all-reduce" => Some(("all_reduce", group(2, op.dp), Some(2))),
            name if name.ends_with("-send") => Some(("send", group(3, op.dp), None)),
            name if name.ends_with("-recv") => Some(("recv", group(3, op.dp), None)),
            _ => continue,
        };
        // Sends and receives run during compute phases: only what nothing else fills is a wait.
        let pair = matches!(call, Some(("send" | "recv", ..)));
        if !pair {
            let busy = busy_until.entry(op.rank).or_insert(start_ns);
            if start_ns > *busy {
                let (node, start_ns, duration_ns) = (Arc::clone(&node), *busy, start_ns - *busy);
                input.syncs.push(SyncCall { node, pid: op.rank, start_ns, duration_ns });
            }
            *busy = start_ns.saturating_add(duration_ns).max(*busy);
        }
        let Some((func, comm_hash, nranks)) = call else { continue };
        let seq = if pair {
            let next = sequence.entry((op.rank, comm_hash, func)).or_default();
            *next += 1;
            *next - 1
        } else {
            *step
        };
        input.observations.push(Observation {
            node,
            pid: op.rank,
            rank: i32::try_from(op.rank).unwrap_or(-1),
            nranks,
            comm_hash,
            func: func.into(),
            seq,
            entry_ns: start_ns,
            duration_ns: if pair { 0 } else { duration_ns },
            halted_ns: 0,
            held_ns: 0,
            tier: 3,
            library: "nccl".into(),
            root: None,
            comm_seq: None,
            payload: Payload::default(),
        });
    }
    input.coverage.asked = nodes.len();
    input.coverage.answered = nodes.len();
    Ok(input)
}

struct Op {
    dp: i64,
    stage: i64,
    rank: i64,
    step: i64,
    name: String,
    start: f64,
    length: f64,
}

fn ns(seconds: f64) -> i64 {
    (seconds * 1e9) as i64
}

/// A communicator's hash from its kind and number.
fn group(kind: u64, number: i64) -> u64 {
    kind << 32 | (number.cast_unsigned() & 0xFFFF_FFFF)
}
