//! Recorded jobs of others, read as input: traces that published studies of stragglers ship.
//!
//! Pure: text in, [`Input`] out. Opening and unpacking files is the caller's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;

use super::hang::Progress;
use super::observation::{Input, Observation, Work};

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

/// Read a trace of the straggler study of ByteDance (Lin et al., "Understanding Stragglers in Large Model Training Using
/// What-if Analysis", 2025): CSV, one operation of one rank a line, times in seconds from the start of its step.
///
/// Steps are laid end to end. Compute phases become [`Work`]. Gradient reduce-scatters and parameter all-gathers meet the
/// ranks of a stage (its data parallel group), embedding all-reduces the first and the last stage of a replica, sends and
/// receives a replica's pipeline. Ranks are those of the job; every rank is a node of its own, without a known clock: the
/// trace's times are not relied on across ranks.
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

    // Each rank's clock begins with its own first operation: what the clocks say across ranks is not relied on.
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
    let mut input = Input { since_ns: -1_000_000_000, until_ns: ns(at) + 1, ..Input::default() };
    let mut nodes: BTreeMap<i64, Arc<str>> = BTreeMap::new();
    let mut sequence: BTreeMap<(i64, u64, &str), u64> = BTreeMap::new();
    ops.sort_by(|a, b| (a.rank, a.step).cmp(&(b.rank, b.step)).then(a.start.total_cmp(&b.start)));
    for op in &ops {
        let Some((step, begin)) = begins.get(&op.step) else { continue };
        let node = Arc::clone(nodes.entry(op.rank).or_insert_with(|| format!("rank{}", op.rank).into()));
        let (start_ns, duration_ns) = (ns(begin + op.start), ns(op.length));
        let (func, comm_hash, nranks) = match op.name {
            name if name.ends_with("-compute") || name == "optimizer" => {
                input.work.push(Work { node, pid: op.rank, name: name.into(), start_ns, duration_ns });
                continue;
            }
            "grads-reduce-scatter" => ("reduce_scatter", group(1, op.stage), i32::try_from(replicas.len()).ok()),
            "params-all-gather" => ("all_gather", group(1, op.stage), i32::try_from(replicas.len()).ok()),
            "embedding-grads-all-reduce" => ("all_reduce", group(2, op.dp), Some(2)),
            name if name.ends_with("-send") => ("send", group(3, op.dp), None),
            name if name.ends_with("-recv") => ("recv", group(3, op.dp), None),
            _ => continue,
        };
        let pair = matches!(func, "send" | "recv");
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
            duration_ns,
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

/// Read a dump of PyTorch's NCCL flight recorder of a whole job: a JSON object of one dump a rank, keyed by rank (the
/// form in which NVIDIA's resiliency extension ships its recorded hangs).
///
/// Only how far each rank got in each process group is taken: enqueued, and completed by the device. Groups are counted
/// as one lane ("any"), as the recorder counts them; point-to-point groups are left out.
///
/// # Errors
/// [`ImportError::Json`] when the text is not such an object.
pub fn flight_recorder(text: &str) -> Result<Input, ImportError> {
    let dumps: BTreeMap<String, Dump> = serde_json::from_str(text).map_err(|e| ImportError::Json(e.to_string()))?;
    let mut input = Input { since_ns: i64::MIN, ..Input::default() };
    for (rank, dump) in &dumps {
        let rank: i32 = rank.parse().map_err(|_| ImportError::Json(format!("{rank:?} is no rank")))?;
        let node: Arc<str> = format!("rank{rank}").into();
        // The status is keyed by the process's own group ids, the groups by the job's names. Both count up in the order
        // of creation.
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
            input.until_ns = input.until_ns.max(entries().map(|e| e.time_created_ns).max().unwrap_or(0));
            if members.len() < 2 || entries().any(|e| e.is_p2p) || group.desc.contains("PIPELINE") {
                continue;
            }
            input.progress.push(Progress {
                node: Arc::clone(&node),
                pid: i64::from(rank),
                rank,
                nranks: None,
                comm_hash: *name,
                func: "any".into(),
                entered: u64::try_from(status.last_enqueued_collective).ok(),
                completed: u64::try_from(status.last_completed_collective).ok(),
                since_ns: oldest.map(|e| e.time_created_ns),
                waiting_in: oldest.map(|e| e.profiling_name.trim_start_matches("nccl:").into()),
                peer: None,
                syncing_since_ns: None,
            });
        }
    }
    input.heard.asked = dumps.len();
    input.heard.answered = dumps.len();
    // The recorder is dumped when its watchdog gives up on a collective, minutes after the last call was made.
    input.until_ns = input.until_ns.saturating_add(WATCHDOG_NS);
    Ok(input)
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
    use crate::stragglers::{Report, Rules, Verdict, analyse, text};

    fn data(name: &str) -> String {
        format!("{}/../../shared/data/straggler/{name}", env!("CARGO_MANIFEST_DIR"))
    }

    /// The recorded job, where the data folder lies beside the checkout.
    fn recorded(name: &str) -> Option<String> {
        let file =
            format!("{}/../../shared/data/straggler/bytedance/csv/trace-{name}.csv.gz", env!("CARGO_MANIFEST_DIR"));
        if !std::path::Path::new(&file).exists() {
            eprintln!("skipped: no recorded jobs beside this checkout");
            return None;
        }
        let unpacked = std::process::Command::new("gzip").args(["-dc", &file]).output().unwrap();
        assert!(unpacked.status.success());
        Some(String::from_utf8(unpacked.stdout).unwrap())
    }

    fn named(report: &Report) -> Vec<i32> {
        match &report.verdict {
            Verdict::Rank { culprit, also, .. } => std::iter::once(culprit).chain(also).map(|c| c.rank).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn the_recorded_slow_replica_is_slow_because_of_rank_0() {
        let Some(csv) = recorded("AR") else { return };
        let report = analyse(&bytedance_csv(&csv).unwrap(), &Rules::default());
        println!("{}", text(&report));
        assert_eq!(named(&report), [0], "{:#?}", report.verdict);
        let Verdict::Rank { held_up, .. } = &report.verdict else { unreachable!() };
        assert_eq!(held_up.iter().map(|h| h.rank).collect::<Vec<_>>(), [16, 32, 48], "its replica's later stages");
    }

    /// The recorded job with ranks renamed, clocks shifted and some ranks missing.
    fn altered(csv: &str, rename: &dyn Fn(i64) -> i64, shift: &dyn Fn(i64) -> f64, dropped: &[i64]) -> String {
        let mut lines = csv.lines();
        let mut out = format!("{}\n", lines.next().unwrap());
        for line in lines {
            let mut fields: Vec<String> = line.split(',').map(str::to_owned).collect();
            let rank: i64 = fields[2].parse().unwrap();
            if dropped.contains(&rank) {
                continue;
            }
            fields[2] = rename(rank).to_string();
            fields[5] = (fields[5].parse::<f64>().unwrap() + shift(rank)).to_string();
            out.push_str(&fields.join(","));
            out.push('\n');
        }
        out
    }

    #[test]
    fn renamed_shifted_and_missing_ranks_change_nothing() {
        let (Some(slow), Some(stage)) = (recorded("AR"), recorded("ST")) else { return };
        let rename = |r: i64| (r * 7 + 13) % 64;
        let shift = |r: i64| (r * 37 % 11) as f64 - 5.0;
        for dropped in [&[][..], &[4], &[8], &[48], &[16, 60], &[4, 12], &[32, 36, 40]] {
            let report = analyse(&bytedance_csv(&altered(&slow, &rename, &shift, dropped)).unwrap(), &Rules::default());
            assert_eq!(named(&report), [13], "without {dropped:?}: {:#?}", report.verdict);
        }
        // The culprit itself is not heard: nobody else is named for it.
        let report = analyse(&bytedance_csv(&altered(&slow, &rename, &shift, &[0])).unwrap(), &Rules::default());
        assert_eq!(named(&report), [] as [i32; 0]);
        for dropped in [&[][..], &[0], &[3], &[2, 5]] {
            let report =
                analyse(&bytedance_csv(&altered(&stage, &rename, &shift, dropped)).unwrap(), &Rules::default());
            assert!(matches!(report.verdict, Verdict::StageImbalance { .. }), "{dropped:?}: {:#?}", report.verdict);
        }
        for dropped in [6, 7] {
            // One replica of the slow stage alone could be a slow rank: it is not called one.
            let report =
                analyse(&bytedance_csv(&altered(&stage, &rename, &shift, &[dropped])).unwrap(), &Rules::default());
            assert_eq!(named(&report), [] as [i32; 0], "{:#?}", report.verdict);
        }
    }

    #[test]
    fn the_recorded_stage_imbalance_names_no_rank() {
        let Some(csv) = recorded("ST") else { return };
        let report = analyse(&bytedance_csv(&csv).unwrap(), &Rules::default());
        println!("{}", text(&report));
        let Verdict::StageImbalance { ranks, ratio, .. } = &report.verdict else { panic!("{:#?}", report.verdict) };
        assert_eq!(ranks.iter().map(|r| r.rank).collect::<Vec<_>>(), [6, 7]);
        assert!((1.5..1.8).contains(ratio), "{ratio}");
    }

    #[test]
    fn what_is_not_such_a_trace_is_refused() {
        assert_eq!(bytedance_csv("a,b\n1,2\n"), Err(ImportError::Column("dp_rank")));
        let header = "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc\n";
        assert!(bytedance_csv(header).unwrap().observations.is_empty());
        let broken = format!("{header}0,0,0,1,optimizer,soon,1,0,0,0,0\n");
        assert_eq!(bytedance_csv(&broken), Err(ImportError::Line { line: 2, column: "start_ts" }));
    }

    #[test]
    fn the_recorded_hangs_are_named_exactly() {
        for (name, truth) in [("gpu_error_1st", [12, 14]), ("lock_gil_2nd", [10, 15])] {
            let Ok(dump) = std::fs::read_to_string(data(&format!("nvrx-hangs/json/{name}.json"))) else {
                eprintln!("skipped: no recorded hangs beside this checkout");
                return;
            };
            let report = analyse(&flight_recorder(&dump).unwrap(), &Rules::default());
            println!("{}", text(&report));
            let Verdict::Hang(hang) = &report.verdict else { panic!("{name}: {:#?}", report.verdict) };
            let mut missing: Vec<i32> = hang.missing.iter().map(|m| m.who.rank).collect();
            missing.sort_unstable();
            assert_eq!(missing, truth, "{name}");
        }
    }
}
