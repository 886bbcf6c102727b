//! Snapshots that this node keeps between the two rounds of a question: the connection whose read transaction the first
//! round began, until the second takes it or its time is over.
//!
//! So both rounds see one state of the store, whatever is stored or dropped meanwhile, and a node that was restarted
//! (perhaps with other data) cannot answer the second round of a question whose first it answered in its former life: the
//! snapshot is gone with that life. A kept snapshot holds up the checkpoints of the store's log, as a long question does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use query_planner::NodeError;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::lock::lock;

/// Snapshots kept at a time; a question in two rounds beyond that is refused here.
const MOST: usize = 64;

/// How a task stands to the other round of its question. Travels by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotUse {
    /// The question, by a number that nobody can guess.
    pub question: u128,
    /// Whether this node has answered a round of this question: then only that round's snapshot will do.
    pub of_earlier: bool,
    /// How long to keep the snapshot for another round, milliseconds; 0: not.
    pub keep_ms: u32,
}

/// The snapshots of one node.
#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<BTreeMap<u128, Snapshot>>);

#[derive(Debug)]
struct Snapshot {
    conn: Connection,
    /// Ends the wait for the end of its time.
    _waiting: DropGuard,
}

impl Kept {
    /// Snapshots kept now.
    pub(super) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// The snapshot that `wanted` is about; `None` where the task may begin one.
    pub(super) fn take(&self, wanted: SnapshotUse) -> Result<Option<Connection>, NodeError> {
        let mut kept = lock(&self.0);
        if let Some(found) = kept.remove(&wanted.question) {
            return Ok(Some(found.conn));
        }
        if wanted.of_earlier {
            return Err(NodeError::Failed(
                "restarted between two rounds of the question, or gave up the snapshot of the first".into(),
            ));
        }
        if wanted.keep_ms > 0 && kept.len() >= MOST {
            return Err(NodeError::Failed(format!(
                "busy: {MOST} questions in two rounds have their snapshots kept here; ask again in some seconds"
            )));
        }
        Ok(None)
    }

    /// Keeps `conn`, which is inside its read transaction, for `wanted.keep_ms` from now. To be called within a runtime.
    pub(super) fn keep(self: &Arc<Self>, wanted: SnapshotUse, conn: Connection, longest: Duration) {
        let ended = CancellationToken::new();
        let snapshot = Snapshot { conn, _waiting: ended.clone().drop_guard() };
        lock(&self.0).insert(wanted.question, snapshot);
        let until = Instant::now() + Duration::from_millis(wanted.keep_ms.into()).min(longest);
        let kept = Arc::clone(self);
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = tokio::time::sleep_until(until.into()) => {
                    let over = lock(&kept.0).remove(&wanted.question);
                    drop(over);
                }
            }
        });
    }

    /// Gives up the snapshot of a question that is over.
    pub(super) fn release(&self, question: u128) {
        let over = lock(&self.0).remove(&question);
        drop(over);
    }
}
