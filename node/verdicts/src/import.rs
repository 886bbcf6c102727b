//! Recorded jobs of others, read as input: traces that published studies of stragglers ship.
//!
//! Pure: text in, [`Input`] out. Opening and unpacking files is the caller's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;

use super::hang::Progress;
use super::input::Input;
use super::observation::{Observation, SyncCall};

/// A trace that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The header lacks a column.
    #[error(
        "the trace has no column {0}: is it one operation a line, as the straggler study of ByteDance publishes it?"
    )]
    Column(&'static str),
    /// Not the JSON that was expected.
    #[error("not a flight recorder dump of one object a rank: {0}")]
    Json(String),
    /// A line that does not fit the header.
    #[error("line {line} of the trace: {column} is missing or no number")]
    Line {
        /// Counting from 1.
        line: usize,
        /// The column.
        column: &'static str,
    },
}

/// Read a trace of the straggler study of ByteDance (Lin et al., "Understanding Stragglers in Large
/// Model Training Using What-if Analysis", 2025): CSV, one operation of one rank a line, times in
/// seconds from the start of its step.
///
/// Steps are laid end to end. The compute time of a rank is that of its compute phases: while it is
/// in none, nor in a collective, it waits, and that is told as a wait for its device. Gradient
/// reduce-scatters and parameter all-gathers meet the ranks of a stage (its data parallel group),
/// embedding all-reduces the first and the last stage of a replica, sends and receives a replica's
/// pipeline. Ranks are those of the job; every rank is a node of its own, without a known clock:
/// the trace's times are not relied on across ranks.
///
/// # Errors
/// [`ImportError`] when the text has other columns or a broken line.
pub fn bytedance_csv(text: &str) -> Result<Input, ImportError> {
    let mut lines = text.lines().enumerate();
    let header: Vec<&str> = lines.next().map_or_else(Vec::new, |(_, l)| l.trim().split(',').collect());
    let place = |name: &'static str| header.iter().position(|h| *h == name).ok_or(ImportError::Column(name));
    let columns = [place("dp_rank")?, place("stage")?, place("rank")?, place("step")?];
    let (optype, start, duration) = (place("optype")?, place("start_ts")?, place("duration")?);

    let mut ops = Vec::new();
    let mut steps: BTreeMap<i64, f64> = BTreeMap::new();
    let mut replicas: BTreeSet<i64> = BTreeSet::new();
    for (i, line) in lines.filter(|(_, l)| !l.trim().is_empty()) {
        let fields: Vec<&str> = line.trim().split(',').collect();
        let number = |at: usize, column: &'static str| {
            let value: Option<f64> = fields.get(at).and_then(|f| f.parse().ok()).filter(|v: &f64| v.is_finite());
            value.ok_or(ImportError::Line { line: i + 1, column })
        };
        let [dp, stage, rank, step] = [
            number(columns[0], "dp_rank")? as i64,
            number(columns[1], "stage")? as i64,
            number(columns[2], "rank")? as i64,
            number(columns[3], "step")? as i64,
        ];
        let (start, length) = (number(start, "start_ts")?, number(duration, "duration")?);
        let name = *fields.get(optype).ok_or(ImportError::Line { line: i + 1, column: "optype" })?;
        replicas.insert(dp);
        ops.push(Op { dp, stage, rank, step, name, start, length });
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
        let call = match op.name {
            name if name.ends_with("-compute") || name == "optimizer" => None,
            "grads-reduce-scatter" => Some(("reduce_scatter", group(1, op.stage), i32::try_from(replicas.len()).ok())),
            "params-all-gather" => Some(("all_gather", group(1, op.stage), i32::try_from(replicas.len()).ok())),
            "embedding-grads-all-reduce" => Some(("all_reduce", group(2, op.dp), Some(2))),
            name if name.ends_with("-send") => Some(("send", group(3, op.dp), None)),
            name if name.ends_with("-recv") => Some(("recv", group(3, op.dp), None)),
            _ => continue,
        };
        // Sends and receives run beside the compute phases: only what nothing else fills is a wait.
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
            tier: 3,
            library: "nccl".into(),
            root: None,
        });
    }
    input.heard.asked = nodes.len();
    input.heard.answered = nodes.len();
    Ok(input)
}

struct Op<'a> {
    dp: i64,
    stage: i64,
    rank: i64,
    step: i64,
    name: &'a str,
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

/// Read a dump of PyTorch's NCCL flight recorder of a whole job: a JSON object of one dump a rank,
/// keyed by rank (the form in which NVIDIA's resiliency extension ships its recorded hangs).
///
/// Only how far each rank got in each process group is taken: enqueued, and completed by the
/// device. Groups are counted as one lane ("any"), as the recorder counts them; point-to-point
/// groups are left out.
///
/// # Errors
/// [`ImportError::Json`] when the text is not such an object.
pub fn flight_recorder(text: &str) -> Result<Input, ImportError> {
    let dumps: BTreeMap<String, Dump> = serde_json::from_str(text).map_err(|e| ImportError::Json(e.to_string()))?;
    let numbered = dumps.into_iter().map(|(rank, dump)| {
        let rank: i32 = rank.parse().map_err(|_| ImportError::Json(format!("{rank:?} is no rank")))?;
        Ok((rank, dump))
    });
    Ok(progress_of_dumps(&numbered.collect::<Result<_, ImportError>>()?))
}

/// The same from the dumps of the ranks, each a text of its own, as the recorder writes them.
///
/// # Errors
/// [`ImportError::Json`] when a text is not such a dump.
pub fn flight_recorder_ranks<'a>(texts: impl IntoIterator<Item = (i32, &'a str)>) -> Result<Input, ImportError> {
    let read = texts.into_iter().map(|(rank, text)| {
        let dump = serde_json::from_str(text).map_err(|e| ImportError::Json(format!("rank {rank}: {e}")))?;
        Ok((rank, dump))
    });
    Ok(progress_of_dumps(&read.collect::<Result<_, ImportError>>()?))
}

/// Whether a text is the dump of one rank, and not of a whole job keyed by rank.
#[must_use]
pub fn is_one_rank(text: &str) -> bool {
    #[derive(Deserialize)]
    struct One {
        entries: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_str::<One>(text).is_ok_and(|one| one.entries.is_some())
}

fn progress_of_dumps(dumps: &BTreeMap<i32, Dump>) -> Input {
    let mut input = Input::default();
    // The calls of point-to-point groups count, too: they were seen.
    let created = || dumps.values().flat_map(|dump| &dump.entries).map(|entry| entry.time_created_ns);
    if let (Some(first), Some(last)) = (created().min(), created().max()) {
        // The recorder is dumped when its watchdog gives up on a collective, minutes after the last
        // call was made. The dump does not say when.
        (input.since_ns, input.until_ns) = (first, last.saturating_add(WATCHDOG_NS));
        input.heard.notes.push(format!(
            "the dump does not say when it was made: taken to be {} s after the last call",
            WATCHDOG_NS / 1_000_000_000
        ));
    }
    for (&rank, dump) in dumps {
        let node: Arc<str> = format!("rank{rank}").into();
        // The status is keyed by the process's own group ids, the groups by the job's names. Both
        // count up in the order of creation.
        let mut names: Vec<(u64, &Group)> =
            dump.pg_config.iter().filter_map(|(name, group)| Some((name.parse().ok()?, group))).collect();
        let mut ids: Vec<(u64, &Status)> =
            dump.pg_status.iter().filter_map(|(id, status)| Some((id.parse().ok()?, status))).collect();
        names.sort_by_key(|(name, _)| *name);
        ids.sort_by_key(|(id, _)| *id);
        for ((name, group), (_, status)) in names.iter().zip(&ids) {
            let entries = || dump.entries.iter().filter(|e| e.process_group.first() == Some(&group.name));
            let members: Vec<i32> = serde_json::from_str(&group.ranks).unwrap_or_default();
            let oldest = entries().filter(|e| e.state != "completed").min_by_key(|e| e.collective_seq_id);
            if members.len() < 2 || entries().any(|e| e.is_p2p) || group.desc.contains("PIPELINE") {
                continue;
            }
            input.progress.push(Progress {
                node: Arc::clone(&node),
                pid: i64::from(rank),
                rank,
                comm_hash: *name,
                func: "any".into(),
                entered: u64::try_from(status.last_enqueued_collective).ok(),
                completed: u64::try_from(status.last_completed_collective).ok(),
                since_ns: oldest.map(|e| e.time_created_ns),
                waiting_in: oldest.map(|e| e.profiling_name.trim_start_matches("nccl:").into()),
                ..Progress::default()
            });
        }
    }
    input.heard.asked = dumps.len();
    input.heard.answered = dumps.len();
    input
}

/// What a watchdog waits at least.
const WATCHDOG_NS: i64 = 60_000_000_000;

#[derive(Deserialize)]
struct Dump {
    #[serde(default)]
    pg_config: BTreeMap<String, Group>,
    #[serde(default)]
    pg_status: BTreeMap<String, Status>,
    #[serde(default)]
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct Group {
    name: String,
    #[serde(default)]
    desc: String,
    #[serde(default)]
    ranks: String,
}

#[derive(Deserialize)]
struct Status {
    last_enqueued_collective: i64,
    last_completed_collective: i64,
}

#[derive(Deserialize)]
struct Entry {
    process_group: Vec<String>,
    collective_seq_id: u64,
    profiling_name: String,
    time_created_ns: i64,
    state: String,
    is_p2p: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rules, Verdict, analyse};

    #[test]
    fn the_span_is_what_was_recorded() {
        let entry = |seq: i64, at: i64| {
            format!(
                r#"{{"process_group":["3","DATA"],"collective_seq_id":{seq},"profiling_name":"nccl:all_reduce",
                "time_created_ns":{at},"state":"scheduled","is_p2p":false}}"#
            )
        };
        let dump = |entered: i64, entries: &str| {
            format!(
                r#"{{"pg_config":{{"3":{{"name":"3","desc":"DATA","ranks":"[0, 1]"}}}},"entries":[{entries}],
                "pg_status":{{"0":{{"last_enqueued_collective":{entered},"last_completed_collective":4}}}}}}"#
            )
        };
        let start = 1_758_610_505_000_000_000;
        let job = |waiting: &str| format!(r#"{{"0":{waiting},"1":{}}}"#, dump(4, ""));
        let text = job(&dump(6, &format!("{},{}", entry(6, start + 7), entry(5, start))));
        let input = flight_recorder(&text).unwrap();
        assert_eq!((input.since_ns, input.until_ns), (start, start + 7 + WATCHDOG_NS));
        let report = analyse(&input, &Rules::default());
        assert_eq!((report.evidence.since_ns, report.evidence.until_ns), (input.since_ns, input.until_ns));
        let Verdict::Hang(hang) = &report.verdict else { panic!("{:#?}", report.verdict) };
        assert_eq!((hang.missing.len(), hang.missing[0].who.rank), (1, 1));
        // No call, no time.
        let silent = flight_recorder(&job(&dump(4, ""))).unwrap();
        assert_eq!((silent.since_ns, silent.until_ns), (0, 0));

        let header = "dp_rank,stage,rank,step,optype,start_ts,duration\n";
        let csv = format!("{header}0,0,0,7,forward-compute,100.5,1.5\n0,0,0,7,params-all-gather,102.0,0.5\n");
        let input = bytedance_csv(&csv).unwrap();
        assert_eq!((input.since_ns, input.until_ns), (0, 2_000_000_001), "its first operation to its last one's end");
    }

    #[test]
    fn what_is_not_such_a_trace_is_refused() {
        assert_eq!(bytedance_csv("a,b\n1,2\n"), Err(ImportError::Column("dp_rank")));
        let header = "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc\n";
        assert!(bytedance_csv(header).unwrap().observations.is_empty());
        let broken = format!("{header}0,0,0,1,optimizer,soon,1,0,0,0,0\n");
        assert_eq!(bytedance_csv(&broken), Err(ImportError::Line { line: 2, column: "start_ts" }));
    }
}
