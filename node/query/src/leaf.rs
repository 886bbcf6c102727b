//! One node's part of a question, asked of it wherever it is: here, or over the mesh. Its rows go into a [`Rows`] as they
//! come. Who asks many of them at once is `fanout` (for a question of this host) and `relay` (for another node's).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use certs::NodeName;
use mesh::{AskError, Encoded, Mesh};
use model::SnapshotUse;
use model::wire::{LeafPiece, LeafSaid, Request, Response};
use query_planner::memory::{Account, Grant, Refused};
use query_planner::{Batch, NodeError, NodeStats, NodeTask};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::exec::Executor;

/// The asker that a node's own questions wait as.
const OWN: &str = "this node";

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
#[derive(Debug, Clone)]
pub(super) enum Lost {
    /// It was not reached, or broke off: somebody else, or another attempt, may have more luck.
    Unreached(String),
    /// It is missing from coverage for this reason; the others' answers count.
    Missing(String),
    /// The SQL itself fails, as it would on the union.
    Sql(String),
    /// What has been gathered from all targets is more data than a question may gather, or more memory than it may have.
    OverBudget(Option<Refused>),
    /// Rows of it have gone on to the user already, and the rest will not come.
    BrokeOff {
        /// How many.
        rows: u64,
        /// What happened.
        why: String,
    },
}

/// How messages of [`NodeError::Sql`] begin that are no error of the question. A node tells by SQLite's result code and by when
/// an error came; one a release older says so of every error with SQLite's general code, also where the statement does not
/// compile there or bytes of its own are damaged. No value can make SQLite begin a message like this while it runs.
const ONE_NODES_OWN: [&str; 8] = [
    "no such ",
    "near \"",
    "wrong number of arguments to function ",
    "malformed database schema",
    "database disk image is malformed",
    "not authorized",
    "access to ",
    "segment ",
];

/// Characters of a reason that are kept: it is another node's, and goes to terminals and files.
const MOST_REASON_CHARS: usize = 1_000;
/// Notes of one node that are kept.
const MOST_NOTES: usize = 100;

/// Another node's words as they can be shown: on one line and not longer than a reason is.
pub(super) fn shown(text: &str) -> String {
    let mut chars = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut shown: String = chars.by_ref().take(MOST_REASON_CHARS).collect();
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

/// What a node says it did, as much of it as is shown.
pub(super) fn shown_stats(mut stats: NodeStats) -> NodeStats {
    stats.notes.truncate(MOST_NOTES);
    stats.notes.iter_mut().for_each(|note| *note = shown(note));
    stats
}

impl Lost {
    pub(super) fn of(error: NodeError) -> Self {
        match error {
            NodeError::Sql(message) if ONE_NODES_OWN.iter().any(|own| message.starts_with(own)) => {
                Self::missing(&format!("failed: {message}"))
            }
            NodeError::Sql(message) => Self::Sql(shown(&message)),
            NodeError::Stopped(why) if why.contains("deadline") => Self::missing(&format!("timeout: {why}")),
            NodeError::Failed(why) if why.starts_with("busy: ") => Self::missing(&format!("refused: {why}")),
            other => Self::missing(&other.to_string()),
        }
    }

    /// Missing, for a reason in another node's words.
    pub(super) fn missing(why: &str) -> Self {
        Self::Missing(shown(why))
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

/// What all targets of a round have sent so far: it is held until each answer is whole.
#[derive(Debug, Clone)]
pub(super) struct Gathered {
    /// Bytes of data.
    bytes: Arc<AtomicU64>,
    limit: u64,
    /// The question's memory that batches take until they are merged.
    memory: Arc<Grant>,
}

impl Gathered {
    /// Nothing yet, of at most `limit` bytes of data and as much memory as the account has.
    pub(super) fn new(limit: u64, account: &Arc<Account>) -> Self {
        Self { bytes: Arc::default(), limit, memory: Arc::new(Grant::of(account)) }
    }

    /// Bytes of data.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn take(&self, data: u64, memory: u64) -> Result<(), Lost> {
        if self.bytes.fetch_add(data, Ordering::Relaxed).saturating_add(data) > self.limit {
            return Err(Lost::OverBudget(None));
        }
        self.memory.more(memory).map_err(|why| Lost::OverBudget(Some(why)))
    }

    /// A batch is where its memory counts otherwise, or no more.
    pub(super) fn merged(&self, memory: u64) {
        self.memory.less(memory);
    }
}

/// The batches of one target that is not whole yet. Dropped, they no longer count against the budget.
#[derive(Debug)]
pub(super) struct Held {
    gathered: Gathered,
    batches: Vec<(usize, Batch)>,
    /// Bytes of data that count, and of memory.
    bytes: u64,
    memory: u64,
}

impl Held {
    pub(super) fn new(gathered: &Gathered) -> Self {
        Self { gathered: gathered.clone(), batches: Vec::new(), bytes: 0, memory: 0 }
    }

    pub(super) fn push(&mut self, part: usize, batch: Batch) -> Result<(), Lost> {
        let (data, memory) = (batch.data_bytes(), batch.size_bytes());
        self.bytes += data;
        self.gathered.take(data, memory)?;
        self.memory += memory;
        self.batches.push((part, batch));
        Ok(())
    }

    /// The batches held so far, whose data count no more; their memory does until they are [`Gathered::merged`].
    fn let_go(&mut self) -> Vec<(usize, Batch)> {
        self.gathered.bytes.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
        self.memory = 0;
        std::mem::take(&mut self.batches)
    }

    /// The batches of a whole answer; they go on counting against the budget.
    pub(super) fn into_whole(mut self, stats: NodeStats) -> Whole {
        (self.bytes, self.memory) = (0, 0);
        (std::mem::take(&mut self.batches), stats)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gathered.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.gathered.merged(self.memory);
    }
}

/// What a target of a round said: its number among all of them, and some rows or the end.
#[derive(Debug, Clone)]
pub(super) enum Said {
    /// Rows of a part, of an answer that is not whole yet.
    Rows(usize, (usize, Batch)),
    /// Its answer, less the rows that were passed on before, or why there is none.
    Ended(usize, Result<Whole, Lost>),
}

/// The rows of one target that go on to the user: held until its answer is whole, so that a target that fails leaves
/// nothing behind, but not more of them than fit; then passed on as they come.
#[derive(Debug)]
pub(super) struct Flow {
    held: Held,
    most_held_bytes: u64,
    passed_rows: u64,
    target: usize,
    to: mpsc::Sender<Said>,
}

impl Flow {
    pub(super) fn new(gathered: &Gathered, most_held_bytes: u64, target: usize, to: mpsc::Sender<Said>) -> Self {
        Self { held: Held::new(gathered), most_held_bytes, passed_rows: 0, target, to }
    }

    async fn push(&mut self, part: usize, batch: Batch) -> Result<(), Lost> {
        self.held.push(part, batch)?;
        if self.passed_rows == 0 && self.held.bytes <= self.most_held_bytes {
            return Ok(());
        }
        for (part, batch) in self.held.let_go() {
            self.passed_rows += u64::from(batch.rows);
            let said = Said::Rows(self.target, (part, batch));
            self.to.send(said).await.map_err(|_| Lost::Missing("cancelled".into()))?;
        }
        Ok(())
    }
}

/// Where a target's rows go.
#[derive(Debug)]
pub(super) enum Rows {
    /// Held until the answer is whole.
    Held(Held),
    /// To the user.
    Flowing(Flow),
    /// Passed on at once, under this number; a full queue holds the target up.
    Passed(mpsc::Sender<(LeafPiece, Option<Grant>)>, u32, Arc<Account>),
}

impl Rows {
    /// Takes some rows; waits while there is no room for them.
    async fn take(&mut self, part: usize, batch: Batch) -> Result<(), Lost> {
        match self {
            Self::Held(held) => held.push(part, batch),
            Self::Flowing(flow) => flow.push(part, batch).await,
            Self::Passed(pieces, leaf, memory) => {
                let counted = Grant::of(memory);
                counted.more(batch.size_bytes()).map_err(|why| Lost::OverBudget(Some(why)))?;
                let said = LeafSaid::Batch { part: u32::try_from(part).unwrap_or(u32::MAX), batch };
                let piece = LeafPiece { leaf: *leaf, said };
                pieces.send((piece, Some(counted))).await.map_err(|_| Lost::Missing("the asker has gone".into()))
            }
        }
    }

    /// Rows that are out of reach: the target cannot be asked again.
    pub(super) fn passed_rows(&self) -> u64 {
        match self {
            Self::Flowing(flow) => flow.passed_rows,
            Self::Held(_) | Self::Passed(..) => 0,
        }
    }

    /// The end of the target's answer.
    pub(super) fn ended(self, outcome: Result<NodeStats, Lost>) -> Result<Whole, Lost> {
        let rows = self.passed_rows();
        match (outcome, self) {
            (Ok(stats), Self::Held(held) | Self::Flowing(Flow { held, .. })) => Ok(held.into_whole(shown_stats(stats))),
            (Ok(stats), Self::Passed(..)) => Ok((Vec::new(), shown_stats(stats))),
            (Err(Lost::Unreached(why) | Lost::Missing(why)), _) if rows > 0 => Err(Lost::BrokeOff { rows, why }),
            (Err(lost), _) => Err(lost),
        }
    }
}

/// What many nodes are asked alike.
#[derive(Clone)]
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

    /// Takes some rows of a part of the task, from whatever node they come: the only way in, so that no more than the answers of
    /// whole nodes is ever merged.
    pub(super) async fn take(&self, rows: &mut Rows, part: u32, batch: Batch) -> Result<(), Lost> {
        let at = usize::try_from(part).unwrap_or(usize::MAX);
        let fault = |why: &str| Lost::missing(&format!("failed: its answer makes no sense: {why}"));
        let of_task = self.task.parts.get(at).ok_or_else(|| fault("rows of a part that it was not asked for"))?;
        of_task.check(&batch).map_err(|why| fault(&why))?;
        rows.take(at, batch).await
    }

    /// This node's own part, without the network.
    pub(super) async fn here(&self, stop: CancellationToken, rows: &mut Rows) -> Result<NodeStats, Lost> {
        if self.snapshot.is_none()
            && let Some(small) = self.executor.run_small(&self.task)
        {
            let small = small.map_err(Lost::of)?;
            for (part, batch) in small.batches {
                self.take(rows, u32::try_from(part).unwrap_or(u32::MAX), batch).await?;
            }
            return Ok(small.stats);
        }
        // Apart, so that those who never need it do not carry it about.
        Box::pin(self.here_on_a_thread(stop, rows)).await
    }

    async fn here_on_a_thread(&self, stop: CancellationToken, rows: &mut Rows) -> Result<NodeStats, Lost> {
        let (batches, mut produced) = mpsc::channel(4);
        let running =
            Arc::clone(&self.executor).run(OWN, self.task.clone(), self.snapshot, self.deadline, stop, batches);
        let gather = async {
            while let Some((part, batch, _counted)) = produced.recv().await {
                if let Err(lost) = self.take(rows, u32::try_from(part).unwrap_or(u32::MAX), batch).await {
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

    /// Another node's part. One that has not been reached by `reached_by` counts as unreachable.
    pub(super) async fn there(
        &self,
        to: &Target,
        request: &Encoded,
        reached_by: Instant,
        rows: &mut Rows,
    ) -> Result<NodeStats, Lost> {
        let lost = |error: AskError| Lost::on_the_way(&error);
        let asked = self.mesh.ask_encoded(&to.name, to.address, request, self.deadline.into());
        let mut responses = if reached_by < self.deadline {
            let reached = tokio::time::timeout_at(reached_by.into(), asked).await;
            reached.map_err(|_| Lost::Unreached("unreachable: no sign of it in half of the time".into()))?
        } else {
            asked.await
        }
        .map_err(lost)?;
        loop {
            match responses.next().await.map_err(lost)? {
                Some(Response::Batch { part, batch }) => self.take(rows, part, batch).await?,
                Some(Response::Done(stats)) => return Ok(stats),
                Some(Response::Failed(error)) => return Err(Lost::of(error)),
                Some(Response::Unsupported(what)) => return Err(Lost::missing(&format!("refused: {what}"))),
                Some(other) => return Err(Lost::missing(&format!("failed: {}", other.in_short()))),
                None => return Err(Lost::Missing("failed: its answer ended early".to_owned())),
            }
        }
    }
}
