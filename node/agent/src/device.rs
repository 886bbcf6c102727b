//! What hosts record of waiting for their devices, for the stragglers question: NCCL's calls only
//! enqueue, and the wait for the other ranks is in the synchronise call that follows. Also which
//! collectives cannot be seen: replays of graphs.
//!
//! Waits that are not over come with the open calls, as calls of [`LIBRARY`]; finished ones are
//! rows (`cuda_calls`).

use std::sync::Arc;

use model::StragglersQuestion;
use model::wire::OpenCall;
use verdicts::{Span, SyncCall};

use super::asking::Asking;
use super::graphs;

/// The library name under which a wait for the device is among the open calls. An older coordinator
/// takes it for a call that it cannot place.
pub(super) const LIBRARY: &str = "cuda";

/// A wait that is not over, as an open call.
pub(super) fn open_call(wait: &node_bpf::DeviceWait) -> OpenCall {
    OpenCall {
        pid: wait.pid,
        rank: wait.rank,
        nranks: None,
        comm_hash: None,
        func: "synchronize".to_owned(),
        seq: None,
        entry_ns: wait.ts_ns,
        tier: 0,
        library: LIBRARY.to_owned(),
        root: None,
        tag: None,
        job_id: None,
        comm_seq: None,
        bytes: None,
        datatype: None,
        reduce_op: None,
    }
}

/// The same at the coordinator; none where the call is of another kind.
pub(super) fn open_wait(node: &Arc<str>, call: &OpenCall) -> Option<SyncCall> {
    let node = Arc::clone(node);
    (call.library == LIBRARY).then(|| SyncCall { node, pid: call.pid.into(), start_ns: call.entry_ns, duration_ns: 0 })
}

/// Notes on what is not among the collectives of the span because graphs were replayed.
pub(super) async fn blind_spots(asking: Asking<'_>, question: &StragglersQuestion, span: &Span) -> Vec<String> {
    let mut notes = vec![];
    match asking.rows_for(question, graphs::launch_sql(span)).await {
        Ok((rows, _)) => {
            if let Some(launches) = rows.first().and_then(|row| graphs::launches(row)) {
                let captured = asking.rows_for(question, graphs::captured_sql(span)).await.ok();
                let captured = captured.and_then(|(rows, _)| match rows.first()?.first()? {
                    query_planner::Value::Integer(calls) => Some(*calls),
                    _ => None,
                });
                notes.push(graphs::replay_note(launches, captured));
            }
        }
        Err(error) => notes.push(format!("launches of graphs could not be asked for: {error}")),
    }
    notes
}
