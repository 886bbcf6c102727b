//! Snapshots that this node keeps between the two rounds of a question: the connection whose read
//! transaction the first round began, until the second takes it or its time is over.
//!
//! So both rounds see one state of the store, whatever is stored or dropped meanwhile, and a node
//! that was restarted (perhaps with other data) cannot answer the second round of a question whose
//! first it answered before the restart: the snapshot ended with that process. All tasks of one
//! question see one snapshot of a node, one after the other, also where an intermediate aggregator
//! is lost and the question asks again. A kept snapshot holds up the checkpoints of the store's
//! log, as a long question does.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::SnapshotUse;
use parking_lot::Mutex;
use query_planner::NodeError;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::reader::Reader;

/// Snapshots kept at a time; a question in two rounds beyond that is refused here.
const MAX_KEPT: usize = 64;

/// The snapshots of one node.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    state: Mutex<State>,
    /// Notified when a task's use of a snapshot has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    kept: BTreeMap<u128, Snapshot>,
    in_use: BTreeMap<u128, Use>,
}

#[derive(Debug)]
struct Snapshot {
    reader: Reader,
    /// How long it is kept.
    until: Instant,
    /// Dropped, it ends the timer that would drop the snapshot.
    _waiting: DropGuard,
}

/// A running task of a question.
#[derive(Debug)]
struct Use {
    stop: CancellationToken,
    /// The question was over meanwhile.
    released: bool,
}

/// What one task of a question has: the snapshot of an earlier one, or the right to begin one.
/// Until it is dropped no other task of the question runs here.
#[derive(Debug)]
pub(super) struct SnapshotLease {
    snapshots: Arc<Snapshots>,
    wanted: SnapshotUse,
    /// The snapshot, where there is one already, and how long it was to be kept.
    pub(super) earlier: Option<(Reader, Instant)>,
    /// Cancelled with the task, or when its question asks again.
    pub(super) stop: CancellationToken,
    runtime: Handle,
}

impl Snapshots {
    /// Snapshots kept now.
    pub(super) fn len(&self) -> usize {
        self.state.lock().kept.len()
    }

    /// The snapshot that `wanted` is about, or the right to begin one. A task of the same question
    /// that still runs is stopped: the node that asked for it (an intermediate aggregator that was
    /// lost) no longer reads its answer, and its snapshot belongs to the question. To be called
    /// within a runtime.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        wanted: SnapshotUse,
        cancelled: &CancellationToken,
    ) -> Result<SnapshotLease, NodeError> {
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if let Some(lease) = self.try_acquire(wanted, cancelled)? {
                return Ok(lease);
            }
            ended.await;
        }
    }

    /// As [`Snapshots::acquire`] without waiting: `None` while another task of the question runs.
    pub(super) fn try_acquire(
        self: &Arc<Self>,
        wanted: SnapshotUse,
        cancelled: &CancellationToken,
    ) -> Result<Option<SnapshotLease>, NodeError> {
        let mut state = self.state.lock();
        if let Some(other) = state.in_use.get(&wanted.question) {
            other.stop.cancel();
            return Ok(None);
        }
        let earlier = state.kept.remove(&wanted.question).map(|found| (found.reader, found.until));
        if earlier.is_none() && wanted.of_earlier {
            return Err(NodeError::Failed(
                "restarted between two rounds of the question, or gave up the snapshot of the first".into(),
            ));
        }
        if earlier.is_none() && wanted.keep_ms > 0 && state.kept.len() >= MAX_KEPT {
            return Err(NodeError::Busy(format!(
                "busy: {MAX_KEPT} questions in two rounds have their snapshots kept here; ask again in some seconds"
            )));
        }
        let stop = cancelled.child_token();
        state.in_use.insert(wanted.question, Use { stop: stop.clone(), released: false });
        drop(state);
        Ok(Some(SnapshotLease { snapshots: Arc::clone(self), wanted, earlier, stop, runtime: Handle::current() }))
    }

    /// Gives up the snapshot of a question that is over.
    pub(super) fn release(&self, question: u128) {
        let mut state = self.state.lock();
        if let Some(at_work) = state.in_use.get_mut(&question) {
            at_work.released = true;
        }
        let over = state.kept.remove(&question);
        drop(state);
        drop(over);
    }
}

impl SnapshotLease {
    /// Whether the question wants its snapshot kept.
    pub(super) fn keeps(&self) -> bool {
        self.wanted.keep_ms > 0
    }

    /// Keeps `reader`, which is inside its read transaction, as long as was wanted, from now on,
    /// but no longer than `longest`.
    pub(super) fn keep(&self, reader: Reader, longest: Duration) {
        self.put_back(reader, Instant::now() + Duration::from_millis(self.wanted.keep_ms.into()).min(longest));
    }

    /// Keeps `reader`, which is inside its read transaction, until `until`.
    pub(super) fn put_back(&self, reader: Reader, until: Instant) {
        let question = self.wanted.question;
        let ended = CancellationToken::new();
        let snapshot = Snapshot { reader, until, _waiting: ended.clone().drop_guard() };
        let mut state = self.snapshots.state.lock();
        if state.in_use.get(&question).is_none_or(|at_work| at_work.released) {
            return;
        }
        state.kept.insert(question, snapshot);
        drop(state);
        let snapshots = Arc::clone(&self.snapshots);
        self.runtime.spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = tokio::time::sleep_until(until.into()) => {
                    let over = snapshots.state.lock().kept.remove(&question);
                    drop(over);
                }
            }
        });
    }
}

impl Drop for SnapshotLease {
    fn drop(&mut self) {
        self.snapshots.state.lock().in_use.remove(&self.wanted.question);
        self.snapshots.ended.notify_waiters();
    }
}
