//! One node's part of a question, asked of it wherever it is: here, or over the mesh. Its rows go into a [`Rows`] as they
//! come. Who asks many of them at once is `fanout` (for a question of this host) and `relay` (for another node's).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use certs::NodeName;
use query_planner::{Batch, NodeError, NodeStats, NodeTask};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::exec::Executor;
use super::kept::SnapshotUse;
use crate::mesh::wire::{LeafPiece, LeafSaid, Request, Response};
use crate::mesh::{AskError, Encoded, Mesh};

/// A node to ask.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its name; the certificate on the connection must say the same.
    pub name: NodeName,
    /// Where it listens.
    pub address: SocketAddr,
    /// True for the asker itself: no network.
    pub local: bool,
}

/// Why a target's answer is not in the result.
#[derive(Debug)]
pub(super) enum Lost {
    /// It was not reached, or broke off: somebody else, or another attempt, may have more luck.
    Unreached(String),
    /// It is missing from coverage for this reason; the others' answers count.
    Missing(String),
    /// The SQL itself fails, as it would on the union.
    Sql(String),
    /// What has been gathered from all targets does not fit the asker's budget.
    OverBudget,
}

impl Lost {
    pub(super) fn of(error: NodeError) -> Self {
        match error {
            NodeError::Sql(message) => Self::Sql(message),
            NodeError::Stopped(why) if why.contains("deadline") => Self::Missing(format!("timeout: {why}")),
            other => Self::Missing(other.to_string()),
        }
    }

    fn on_the_way(error: &AskError) -> Self {
        match error {
            AskError::Unreachable(_) => Self::Unreached(error.to_string()),
            other => Self::Missing(other.to_string()),
        }
    }
}

/// The whole answer of one target: its batches with the index of their part, and what it did.
pub(super) type Whole = (Vec<(usize, Batch)>, NodeStats);

/// Bytes that all targets of a round have sent so far: they are held until each answer is whole.
#[derive(Debug, Clone)]
pub(super) struct Gathered {
    bytes: Arc<AtomicU64>,
    limit: u64,
}

impl Gathered {
    pub(super) fn new(limit: u64) -> Self {
        Self { bytes: Arc::default(), limit }
    }

    fn take(&self, batch: &Batch) -> Result<(), Lost> {
        let more = batch.size_bytes();
        let before = self.bytes.fetch_add(more, Ordering::Relaxed);
        if before.saturating_add(more) > self.limit { Err(Lost::OverBudget) } else { Ok(()) }
    }
}

/// The batches of one target that is not whole yet. Dropped, they no longer count against the budget.
#[derive(Debug)]
pub(super) struct Held {
    gathered: Gathered,
    batches: Vec<(usize, Batch)>,
    bytes: u64,
}

impl Held {
    pub(super) fn new(gathered: &Gathered) -> Self {
        Self { gathered: gathered.clone(), batches: Vec::new(), bytes: 0 }
    }

    pub(super) fn push(&mut self, part: usize, batch: Batch) -> Result<(), Lost> {
        self.bytes += batch.size_bytes();
        self.gathered.take(&batch)?;
        self.batches.push((part, batch));
        Ok(())
    }

    /// The batches of a whole answer; they go on counting against the budget.
    pub(super) fn into_whole(mut self, stats: NodeStats) -> Whole {
        self.bytes = 0;
        (std::mem::take(&mut self.batches), stats)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gathered.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Where a target's rows go.
#[derive(Debug)]
pub(super) enum Rows {
    /// Held until the answer is whole.
    Held(Held),
    /// Passed on at once, under this number; a full queue holds the target up.
    Passed(mpsc::Sender<LeafPiece>, u32),
}

impl Rows {
    async fn take(&mut self, part: usize, batch: Batch) -> Result<(), Lost> {
        match self {
            Self::Held(held) => held.push(part, batch),
            Self::Passed(pieces, leaf) => {
                let said = LeafSaid::Batch { part: u32::try_from(part).unwrap_or(u32::MAX), batch };
                let piece = LeafPiece { leaf: *leaf, said };
                pieces.send(piece).await.map_err(|_| Lost::Missing("the asker has gone".into()))
            }
        }
    }
}

/// What many nodes are asked alike.
pub struct LeafAsk {
    /// The way to them.
    pub mesh: Mesh,
    /// Runs this node's own part.
    pub executor: Arc<Executor>,
    /// What to do.
    pub task: NodeTask,
    /// What it has to do with another round of its question.
    pub snapshot: Option<SnapshotUse>,
    /// Until when.
    pub deadline: Instant,
}

impl LeafAsk {
    /// Time left, milliseconds.
    pub(super) fn left_ms(&self) -> u32 {
        let left = self.deadline.saturating_duration_since(Instant::now());
        u32::try_from(left.as_millis()).unwrap_or(u32::MAX)
    }

    /// The request to every other node.
    pub(super) fn request(&self) -> Result<Encoded, AskError> {
        let (deadline_ms, task) = (self.left_ms(), self.task.clone());
        Encoded::of(&match self.snapshot {
            None => Request::Task { deadline_ms, task },
            Some(snapshot) => Request::RoundTask { deadline_ms, task, snapshot },
        })
    }

    /// This node's own part, without the network.
    pub(super) async fn here(&self, stop: CancellationToken, rows: &mut Rows) -> Result<NodeStats, Lost> {
        if self.snapshot.is_none()
            && let Some(small) = self.executor.run_small(&self.task)
        {
            let small = small.map_err(Lost::of)?;
            for (part, batch) in small.batches {
                rows.take(part, batch).await?;
            }
            return Ok(small.stats);
        }
        let (batches, mut produced) = mpsc::channel(4);
        let running = Arc::clone(&self.executor).run(self.task.clone(), self.snapshot, self.deadline, stop, batches);
        let gather = async {
            while let Some((part, batch)) = produced.recv().await {
                if let Err(lost) = rows.take(part, batch).await {
                    produced.close();
                    return Err(lost);
                }
            }
            Ok(())
        };
        let (outcome, gathered) = tokio::join!(running, gather);
        gathered?;
        outcome.map_err(Lost::of)
    }

    /// Another node's part.
    pub(super) async fn there(&self, to: &Target, request: &Encoded, rows: &mut Rows) -> Result<NodeStats, Lost> {
        let lost = |error: AskError| Lost::on_the_way(&error);
        let mut responses =
            self.mesh.ask_encoded(&to.name, to.address, request, self.deadline.into()).await.map_err(lost)?;
        loop {
            match responses.next().await.map_err(lost)? {
                Some(Response::Batch { part, batch }) => rows.take(part as usize, batch).await?,
                Some(Response::Done(stats)) => return Ok(stats),
                Some(Response::Failed(error)) => return Err(Lost::of(error)),
                Some(Response::Unsupported(what)) => return Err(Lost::Missing(format!("refused: {what}"))),
                other => return Err(Lost::Missing(format!("failed: unexpected answer {other:?}"))),
            }
        }
    }
}
