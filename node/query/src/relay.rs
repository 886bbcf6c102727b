//! The inner node of a tree: asks leaves for another node's question and passes on what they say, each piece with its
//! leaf's number, so that the asker merges as if it had asked them itself. Nothing is merged here: an answer stays the
//! leaf's own, whole or void. The asker's side is `subtree`; partial groups are merged on their way (`combining`).

use std::sync::Arc;
use std::time::Duration;

use mesh::{Encoded, Responder};
use model::wire::{Leaf, LeafPiece, LeafSaid, Response};
use query_planner::memory::{Account, Grant};
use query_planner::{MergePool, NodeError, NodeStats};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::leaf::{LeafAsk, Lost, Rows, Target};
use super::pulse::pulse;

/// Questions that are relayed at a time; more are left to their askers.
const AT_ONCE: usize = 16;
/// Leaves of one question.
const MOST_LEAVES: usize = 4_096;
/// Leaves asked at a time.
pub(super) const LEAVES_AT_ONCE: usize = 128;
/// Pieces between the leaves and the way to the asker.
const QUEUE: usize = 32;
/// Pieces are sent together when they come within this time, up to so many bytes.
const TOGETHER: Duration = Duration::from_millis(2);
const TOGETHER_BYTES: u64 = 256 << 10;
/// Memory of the pieces of one question, bytes.
const MEMORY_BYTES: u64 = 128 << 20;

/// A piece, and what its rows take of the question's memory.
pub(super) type Counted = (LeafPiece, Option<Grant>);

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
        ask: Arc<LeafAsk>,
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
        let memory = Account::new(MEMORY_BYTES);
        // Dropped with this future: whatever still runs here, and (by stream reset) on the leaves, stops.
        let stop = cancelled.child_token();
        let _stop_on_return = stop.clone().drop_guard();
        let asking = tokio::spawn(ask_all(Arc::clone(&ask), leaves, pieces, memory, stop.clone()));
        let sent = tokio::select! {
            sent = send_on(inbox, waited_for, pulse(&ask), out) => sent,
            () = stop.cancelled() => Err(()),
            () = tokio::time::sleep_until(ask.deadline.into()) => Err(()),
        };
        asking.abort();
        match sent {
            Ok(()) => Response::Done(NodeStats::default()),
            Err(()) => Response::Failed(NodeError::Stopped("the deadline passed, or the asker has gone".into())),
        }
    }
}

async fn ask_all(
    ask: Arc<LeafAsk>,
    leaves: Vec<Leaf>,
    pieces: mpsc::Sender<Counted>,
    memory: Arc<Account>,
    stop: CancellationToken,
) {
    let Ok(request) = ask.request() else { return };
    let turns = Arc::new(Semaphore::new(LEAVES_AT_ONCE));
    let mut asked = JoinSet::new();
    for (index, leaf) in leaves.into_iter().enumerate() {
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
        let (ask, request, pieces, stop) = (Arc::clone(&ask), request.clone(), pieces.clone(), stop.clone());
        let memory = Arc::clone(&memory);
        asked.spawn(async move {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let mut rows = Rows::Passed(pieces.clone(), index, Arc::clone(&memory));
            let outcome = ask_leaf(&ask, leaf, &request, stop, &mut rows).await;
            let said = match outcome {
                Ok(stats) => LeafSaid::Done(stats),
                Err(Lost::Sql(message)) => LeafSaid::Failed(NodeError::Sql(message)),
                Err(Lost::Unreached(why) | Lost::Missing(why)) => LeafSaid::Missing(why),
                Err(Lost::OverBudget(why)) => LeafSaid::Missing(match why {
                    Some(why) => format!("over budget: {why}"),
                    None => "over budget".into(),
                }),
                // The asker knows what it has passed on.
                Err(Lost::BrokeOff { why, .. }) => LeafSaid::Missing(why),
            };
            let _ = pieces.send((LeafPiece { leaf: index, said }, None)).await;
            drop(turn);
        });
    }
    drop(pieces);
    while asked.join_next().await.is_some() {}
}

/// Asks one leaf, which may be this node. One that cannot be reached soon is left to the asker, whose way to it may be better.
pub(super) async fn ask_leaf(
    ask: &LeafAsk,
    leaf: Leaf,
    request: &Encoded,
    stop: CancellationToken,
    rows: &mut Rows,
) -> Result<NodeStats, Lost> {
    match leaf.node.parse() {
        Ok(name) if name == *ask.mesh.identity().node() => ask.here(stop, rows).await,
        Ok(name) => {
            let reached_by = std::time::Instant::now() + Duration::from_millis(ask.left_ms().into()) / 2;
            ask.there(&Target { name, address: leaf.address, local: false }, request, reached_by, rows).await
        }
        Err(error) => Err(Lost::Missing(format!("failed: {error}"))),
    }
}

/// Sends pieces until every leaf's answer has ended: together where they come together, and a sign of life where
/// nothing comes.
async fn send_on(
    mut inbox: mpsc::Receiver<Counted>,
    mut waited_for: usize,
    pulse: Duration,
    out: &mut Responder,
) -> Result<(), ()> {
    while waited_for > 0 {
        let (mut pieces, mut counted) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        let mut until = Instant::now() + pulse;
        while bytes < TOGETHER_BYTES && waited_for > 0 {
            match tokio::time::timeout_at(until, inbox.recv()).await {
                Ok(Some((piece, memory))) => {
                    counted.extend(memory);
                    if let LeafSaid::Batch { batch, .. } = &piece.said {
                        bytes += batch.data_bytes();
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
