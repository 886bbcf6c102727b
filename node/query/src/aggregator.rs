//! The intermediate aggregator of a tree: asks leaves for another node's question and passes on what they say, each piece with its
//! leaf's number, so that the coordinator merges as if it had asked them itself. Nothing is merged here: an answer stays the
//! leaf's own, whole or void. The coordinator's side is `subtree`; partial groups are merged on their way (`combining`).

use std::sync::Arc;
use std::time::Duration;

use mesh::{Encoded, Responder};
use model::wire::{FromLeaf, Leaf, LeafReply, Response};
use query_planner::{MergePool, NodeError, NodeStats};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::keepalive::keepalive_interval;
use super::leaf::{LeafFailure, LeafRequest, RowSink, Target};

/// Questions that are relayed at a time; more are left to their coordinators.
const AT_ONCE: usize = 16;
/// Leaves of one question.
const MOST_LEAVES: usize = 4_096;
/// Leaves asked at a time.
pub(super) const LEAVES_AT_ONCE: usize = 128;
/// Pieces between the leaves and the way to the coordinator.
const QUEUE: usize = 32;
/// Pieces are sent together when they come within this time, up to so many bytes.
const TOGETHER: Duration = Duration::from_millis(2);
const TOGETHER_BYTES: u64 = 256 << 10;

/// The relaying of one node.
#[derive(Debug)]
pub struct Relays {
    turns: Semaphore,
    /// Databases in which rows are combined.
    pool: Arc<MergePool>,
}

impl Default for Relays {
    fn default() -> Self {
        Self { turns: Semaphore::new(AT_ONCE), pool: Arc::default() }
    }
}

impl Relays {
    /// Leave to relay to so many leaves.
    pub(super) fn turn(&self, leaves: usize) -> Result<SemaphorePermit<'_>, NodeError> {
        if leaves > MOST_LEAVES {
            return Err(NodeError::Failed(format!("more than {MOST_LEAVES} nodes to relay to")));
        }
        let turn = self.turns.try_acquire();
        turn.map_err(|_| NodeError::Failed("this node relays as many questions as it may".into()))
    }

    pub(super) fn pool(&self) -> Arc<MergePool> {
        Arc::clone(&self.pool)
    }

    /// Asks `leaves` and sends what they say; the result is the last response.
    pub async fn relay(
        &self,
        ask: Arc<LeafRequest>,
        leaves: Vec<Leaf>,
        out: &mut Responder,
        cancelled: CancellationToken,
    ) -> Response {
        let _turn = match self.turn(leaves.len()) {
            Ok(turn) => turn,
            Err(refusal) => return Response::Failed(refusal),
        };
        let waited_for = leaves.len();
        let (pieces, inbox) = mpsc::channel(QUEUE);
        // Dropped with this future: whatever still runs here, and (by stream reset) on the leaves, stops.
        let stop = cancelled.child_token();
        let _stop_on_return = stop.clone().drop_guard();
        let asking = tokio::spawn(ask_all(Arc::clone(&ask), leaves, pieces, stop.clone()));
        let sent = tokio::select! {
            sent = send_on(inbox, waited_for, keepalive_interval(&ask), out) => sent,
            () = stop.cancelled() => Err(()),
            () = tokio::time::sleep_until(ask.deadline.into()) => Err(()),
        };
        asking.abort();
        match sent {
            Ok(()) => Response::Done(NodeStats::default()),
            Err(()) => Response::Failed(NodeError::Stopped("the deadline passed, or the coordinator has gone".into())),
        }
    }
}

async fn ask_all(ask: Arc<LeafRequest>, leaves: Vec<Leaf>, pieces: mpsc::Sender<FromLeaf>, stop: CancellationToken) {
    let Ok(request) = ask.request() else { return };
    let turns = Arc::new(Semaphore::new(LEAVES_AT_ONCE));
    let mut asked = JoinSet::new();
    for (index, leaf) in leaves.into_iter().enumerate() {
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
        let (ask, request, pieces, stop) = (Arc::clone(&ask), request.clone(), pieces.clone(), stop.clone());
        asked.spawn(async move {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let mut rows = RowSink::Forwarded(pieces.clone(), index);
            let outcome = ask_leaf(&ask, leaf, &request, stop, &mut rows).await;
            let reply = match outcome {
                Ok(stats) => LeafReply::Done(stats),
                Err(LeafFailure::Sql(message)) => LeafReply::Failed(NodeError::Sql(message)),
                Err(LeafFailure::Unreachable(why) | LeafFailure::Missing(why)) => LeafReply::Missing(why),
                Err(LeafFailure::OverBudget) => LeafReply::Missing("over budget".into()),
                // The coordinator knows what it has passed on.
                Err(LeafFailure::BrokeOff { why, .. }) => LeafReply::Missing(why),
            };
            let _ = pieces.send(FromLeaf { leaf: index, reply }).await;
            drop(turn);
        });
    }
    drop(pieces);
    while asked.join_next().await.is_some() {}
}

/// Asks one leaf, which may be this node. One that cannot be reached soon is left to the coordinator, whose way to it may be better.
pub(super) async fn ask_leaf(
    ask: &LeafRequest,
    leaf: Leaf,
    request: &Encoded,
    stop: CancellationToken,
    rows: &mut RowSink,
) -> Result<NodeStats, LeafFailure> {
    match leaf.node.parse() {
        Ok(name) if name == *ask.mesh.identity().node() => ask.run_here(stop, rows).await,
        Ok(name) => {
            let reached_by = std::time::Instant::now() + Duration::from_millis(ask.left_ms().into()) / 2;
            ask.run_at(&Target { name, address: leaf.address, local: false }, request, reached_by, rows).await
        }
        Err(error) => Err(LeafFailure::Missing(format!("failed: {error}"))),
    }
}

/// Sends pieces until every leaf's answer has ended: together where they come together, and a sign of life where
/// nothing comes.
async fn send_on(
    mut inbox: mpsc::Receiver<FromLeaf>,
    mut waited_for: usize,
    keepalive_interval: Duration,
    out: &mut Responder,
) -> Result<(), ()> {
    while waited_for > 0 {
        let mut pieces = Vec::new();
        let mut bytes = 0;
        let mut until = Instant::now() + keepalive_interval;
        while bytes < TOGETHER_BYTES && waited_for > 0 {
            match tokio::time::timeout_at(until, inbox.recv()).await {
                Ok(Some(piece)) => {
                    if let LeafReply::Batch { batch, .. } = &piece.reply {
                        bytes += batch.size_bytes();
                    } else {
                        waited_for -= 1;
                    }
                    if pieces.is_empty() {
                        until = Instant::now() + TOGETHER;
                    }
                    pieces.push(piece);
                }
                Ok(None) => return Err(()),
                Err(_) => break,
            }
        }
        out.send(Response::Leaves(pieces)).await.map_err(|error| tracing::debug!("relaying: {error}"))?;
    }
    Ok(())
}
