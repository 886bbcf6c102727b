//! Dumps of PyTorch's NCCL flight recorder.

use std::collections::BTreeMap;
use std::sync::Arc;

use observed::{InCall, Input, Progress};
use serde::Deserialize;

use super::ImportError;

/// Read a dump of a whole job as JSON: an object of one dump a rank, keyed by rank (the form in
/// which NVIDIA's resiliency extension ships its recorded hangs). See [`of_dumps`].
///
/// # Errors
/// [`ImportError::Json`] when the text is not such an object.
pub fn flight_recorder(text: &str) -> Result<Input, ImportError> {
    let dumps: BTreeMap<String, Dump> = serde_json::from_str(text).map_err(|e| ImportError::Json(e.to_string()))?;
    let numbered = dumps.into_iter().map(|(rank, dump)| {
        let rank: i32 = rank.parse().map_err(|_| ImportError::Json(format!("{rank:?} is no rank")))?;
        Ok((rank, dump))
    });
    Ok(of_dumps(&numbered.collect::<Result<_, ImportError>>()?))
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

/// The input that the dumps of a job's ranks give.
///
/// Only how far each rank got in each process group is taken: enqueued, and completed by the
/// device. Groups are counted as one lane ("any"), as the recorder counts them; point-to-point
/// groups are left out.
#[must_use]
pub fn of_dumps(dumps: &BTreeMap<i32, Dump>) -> Input {
    let mut input = Input::default();
    // The calls of point-to-point groups count, too: they were seen.
    let created = || dumps.values().flat_map(|dump| &dump.entries).map(|entry| entry.time_created_ns);
    if let (Some(first), Some(last)) = (created().min(), created().max()) {
        // The recorder is dumped when its watchdog gives up on a collective, minutes after the last
        // call was made. The dump does not say when.
        (input.since_ns, input.until_ns) = (first, last.saturating_add(WATCHDOG_NS));
        input.coverage.notes.push(format!(
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
                entered: u64::try_from(status.last_enqueued_collective).ok(),
                ..Progress::default()
            });
            let next = u64::try_from(status.last_completed_collective).map_or(0, |last| last + 1);
            input.in_calls.extend(oldest.map(|e| InCall {
                node: Arc::clone(&node),
                pid: i64::from(rank),
                func: e.profiling_name.trim_start_matches("nccl:").into(),
                comm_hash: Some(*name),
                rank: Some(rank),
                comm_seq: Some(next),
                since_ns: e.time_created_ns,
                ..InCall::default()
            }));
        }
    }
    input.coverage.asked = dumps.len();
    input.coverage.answered = dumps.len();
    input
}

/// What a watchdog waits at least.
pub(super) const WATCHDOG_NS: i64 = 60_000_000_000;

/// What the recorder of one rank wrote, as JSON or as pickle.
#[derive(Debug, Clone, Deserialize)]
pub struct Dump {
    #[serde(default)]
    pg_config: BTreeMap<String, Group>,
    #[serde(default)]
    pg_status: BTreeMap<String, Status>,
    #[serde(default)]
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Deserialize)]
struct Group {
    name: String,
    #[serde(default)]
    desc: String,
    #[serde(default)]
    ranks: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Status {
    last_enqueued_collective: i64,
    last_completed_collective: i64,
}

#[derive(Debug, Clone, Deserialize)]
struct Entry {
    process_group: Vec<String>,
    collective_seq_id: u64,
    profiling_name: String,
    time_created_ns: i64,
    state: String,
    is_p2p: bool,
}
