//! Trees whose inner nodes combine: where the parts of a question ship partial groups ([`Combine`]), an inner node makes the
//! rows of its leaves one node's rows and sends those, with the names of the leaves whose rows are in them, so that the
//! asker's work grows with the number of inner nodes. Both sides are here. Whatever else a question ships is passed on leaf by
//! leaf (`relay`, `subtree`).
//!
//! A leaf's rows are combined when its answer is whole, and count at the asker with the message that names the leaf, once:
//! what was sent before an inner node was lost counts, and all others are asked directly.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use mesh::Responder;
use model::wire::{Leaf, LeafPiece, LeafSaid, Request, Response};
use query_planner::memory::{self, Account};
use query_planner::{Batch, Combine, MergePool, NodeError, NodeStats, NodeTask, Stop};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{inner_of, leaves_of, left_for_inner};
use crate::inbox::Ends;
use crate::leaf::{Gathered, Held, LeafAsk, Lost, Rows, Said, Target, Whole, shown_stats};
use crate::pulse::{pulse, silence};
use crate::relay::{LEAVES_AT_ONCE, Relays, ask_leaf};

/// What an inner node may hold of its leaves' rows; with more it gives the subtree back to the asker.
const HELD_BYTES: u64 = 48 << 20;
/// Memory that it may take for them and for combining them, bytes.
const MEMORY_BYTES: u64 = 256 << 20;
/// Whole answers are combined and sent when they are so large together.
const SHIP_BYTES: u64 = 4 << 20;
/// More rows than this are combined on a thread that may block.
const FEW_ROWS: u32 = 512;
/// At the deadline, time for the leaves' own timeouts to be told.
const GRACE: Duration = Duration::from_millis(20);

/// How the rows of a task's parts combine, if those of all parts do.
fn combines(task: &NodeTask) -> Option<Vec<Combine>> {
    let combines: Option<Vec<Combine>> = task.parts.iter().map(|part| part.combine.clone()).collect();
    combines.filter(|combines| !combines.is_empty())
}

/// Asks the nodes of a group through one of them that combines their rows, and hands each leaf's outcome to `ended`: all rows
/// of several come with one of them. The leaves that have to be asked directly go to `direct`: at once those that the inner node
/// cannot reach, at the end those that are open. False where the task's rows do not combine: then nobody was asked.
pub(super) async fn ask(
    ask: &LeafAsk,
    group: &[(usize, Target)],
    rows_of: &(impl Fn(usize) -> Rows + Sync),
    ended: &Ends,
    direct: &(impl Fn((usize, Target)) + Sync),
) -> bool {
    let Some(combine) = combines(&ask.task) else { return false };
    let mut open = vec![true; group.len()];
    if let Err(why) = through_inner(ask, combine, group, rows_of, &mut open, ended, direct).await {
        tracing::debug!(%why, "a subtree was lost; its open leaves are asked directly");
    }
    group.iter().zip(open).filter(|(_, open)| *open).for_each(|(leaf, _)| direct(leaf.clone()));
    true
}

async fn through_inner(
    ask: &LeafAsk,
    combine: Vec<Combine>,
    group: &[(usize, Target)],
    rows_of: &(impl Fn(usize) -> Rows + Sync),
    open: &mut [bool],
    ended: &Ends,
    direct: &(impl Fn((usize, Target)) + Sync),
) -> Result<(), String> {
    let inner = inner_of(ask.mesh.identity().node(), group).ok_or("an empty group")?;
    let first = group.first().map(|(target, _)| *target).ok_or("an empty group")?;
    let request = Request::Combine {
        deadline_ms: left_for_inner(ask),
        task: ask.task.clone(),
        leaves: leaves_of(group),
        combine,
        snapshot: ask.snapshot,
    };
    let silence = silence(ask);
    let asked = timeout(silence, ask.mesh.ask(&inner.name, inner.address, request, ask.deadline.into()));
    let mut responses = asked.await.map_err(|_| "no sign of life")?.map_err(|error| error.to_string())?;
    let mut rows = rows_of(first);
    let close = |at: u32, open: &mut [bool]| -> Result<&(usize, Target), String> {
        let at = at as usize;
        let is_open = open.get_mut(at).ok_or("it names a leaf that it was not given")?;
        if !std::mem::take(is_open) {
            return Err("it names a leaf twice".to_owned());
        }
        group.get(at).ok_or_else(|| "it names a leaf that it was not given".to_owned())
    };
    // Nobody waits any more: the question is over.
    let over = |_| "the question is over".to_owned();
    loop {
        let response = timeout(silence, responses.next()).await.map_err(|_| "no sign of life")?;
        match response.map_err(|error| error.to_string())? {
            Some(Response::Batch { part, batch }) => {
                match ask.take(&mut rows, part, batch).await {
                    Ok(()) => {}
                    // Of all its leaves' rows none are known to be whole: they are asked themselves.
                    Err(Lost::Missing(why)) => return Err(why),
                    Err(lost) => {
                        open.fill(false);
                        return ended.send(Said::Ended(first, rows.ended(Err(lost)))).await.map_err(over);
                    }
                }
            }
            Some(Response::Combined(leaves)) => {
                let mut named = Vec::with_capacity(leaves.len());
                for (leaf, stats) in leaves {
                    named.push((close(leaf, open)?.0, stats));
                }
                let mut rows = Some(std::mem::replace(&mut rows, rows_of(first)));
                for (target, stats) in named {
                    let whole = match rows.take() {
                        Some(rows) => rows.ended(Ok(stats)),
                        None => Ok((Vec::new(), shown_stats(stats))),
                    };
                    ended.send(Said::Ended(target, whole)).await.map_err(over)?;
                }
            }
            Some(Response::Leaves(pieces)) => {
                for piece in pieces {
                    let lost = match piece.said {
                        LeafSaid::Failed(error) => Lost::of(error),
                        LeafSaid::Missing(why) if why.starts_with("unreachable") => {
                            direct(close(piece.leaf, open)?.clone());
                            continue;
                        }
                        LeafSaid::Missing(why) => Lost::missing(&why),
                        LeafSaid::Batch { .. } | LeafSaid::Done(_) => return Err("it passes rows on".to_owned()),
                    };
                    let target = close(piece.leaf, open)?.0;
                    ended.send(Said::Ended(target, Err(lost))).await.map_err(over)?;
                }
            }
            Some(Response::Done(_)) => return Ok(()),
            Some(other) => return Err(other.in_short()),
            None => return Err("its answer ended early".to_owned()),
        }
    }
}

impl Relays {
    /// Asks `leaves`, combines what they answer and sends that; the result is the last response.
    pub async fn combine(
        &self,
        ask: Arc<LeafAsk>,
        leaves: Vec<Leaf>,
        combine: Vec<Combine>,
        out: &mut Responder,
        cancelled: CancellationToken,
    ) -> Response {
        let _turn = match self.turn(leaves.len()) {
            Ok(turn) => turn,
            Err(refusal) => return Response::Failed(refusal),
        };
        if combine.len() != ask.task.parts.len() {
            return Response::Failed(NodeError::Failed("each part needs to be told how its rows combine".into()));
        }
        let ask = Arc::new(LeafAsk { task: with_partials(&ask.task, &combine), ..LeafAsk::clone(&ask) });
        let waited_for = leaves.len();
        let (ends, inbox) = mpsc::channel(waited_for.max(1));
        // Dropped with this future: whatever still runs here, and (by stream reset) on the leaves, stops.
        let stop = cancelled.child_token();
        let _stop_on_return = stop.clone().drop_guard();
        let memory = Account::new(MEMORY_BYTES);
        let gathered = Gathered::new(ask.task.budget.asker_bytes.min(HELD_BYTES), &memory);
        let asking = tokio::spawn(ask_all(Arc::clone(&ask), leaves, ends, stop.clone(), gathered.clone()));
        let mut combining = Combining {
            gathered,
            memory,
            combine: combine.into(),
            deadline: ask.deadline.into(),
            pulse: pulse(&ask),
            pool: self.pool(),
            ready: Vec::new(),
            batches: Vec::new(),
            bytes: 0,
            pieces: Vec::new(),
        };
        let sent = tokio::select! {
            sent = combining.all(inbox, waited_for, out) => sent,
            () = stop.cancelled() => Err(NodeError::Stopped("the asker has gone".into())),
        };
        asking.abort();
        match sent {
            Ok(()) => Response::Done(NodeStats::default()),
            Err(error) => Response::Failed(error),
        }
    }
}

/// The task with what its columns are, which is sent beside it: so that a leaf's damaged rows spoil nobody else's.
fn with_partials(task: &NodeTask, combine: &[Combine]) -> NodeTask {
    let mut task = task.clone();
    for (part, combine) in task.parts.iter_mut().zip(combine) {
        part.partials = combine.partials();
    }
    task
}

async fn ask_all(
    ask: Arc<LeafAsk>,
    leaves: Vec<Leaf>,
    ends: mpsc::Sender<(u32, Result<Whole, Lost>)>,
    stop: CancellationToken,
    gathered: Gathered,
) {
    let Ok(request) = ask.request() else { return };
    let of_one = |(index, leaf): (usize, Leaf)| {
        let (ask, request, stop) = (Arc::clone(&ask), request.clone(), stop.clone());
        let mut rows = Rows::Held(Held::new(&gathered));
        async move {
            let outcome = ask_leaf(&ask, leaf, &request, stop, &mut rows).await;
            (u32::try_from(index).unwrap_or(u32::MAX), rows.ended(outcome))
        }
    };
    let mut leaves: Vec<(usize, Leaf)> = leaves.into_iter().enumerate().collect();
    // This node's own part last: it may be worked on then and there, and nobody need wait for it to be asked.
    let own = ask.mesh.identity().node().clone();
    leaves.sort_by_key(|(_, leaf)| own.as_str() == leaf.node);
    let mut leaves = leaves.into_iter();
    // One task for all: what a leaf says here is little, and a task of its own for each would cost as much as hearing it.
    let mut asked: FuturesUnordered<_> = leaves.by_ref().take(LEAVES_AT_ONCE).map(of_one).collect();
    while let Some(said) = asked.next().await {
        asked.extend(leaves.next().map(of_one));
        if ends.send(said).await.is_err() {
            return;
        }
    }
}

/// What an inner node has of its leaves' answers and has not sent yet.
struct Combining {
    /// What the batches count to.
    gathered: Gathered,
    memory: Arc<Account>,
    combine: Arc<[Combine]>,
    deadline: Instant,
    pulse: Duration,
    pool: Arc<MergePool>,
    /// Whole answers: who gave them, and their rows.
    ready: Vec<(u32, NodeStats)>,
    batches: Vec<(usize, Batch)>,
    bytes: u64,
    /// Leaves without an answer.
    pieces: Vec<LeafPiece>,
}

impl Combining {
    async fn all(
        &mut self,
        mut inbox: mpsc::Receiver<(u32, Result<Whole, Lost>)>,
        mut waited_for: usize,
        out: &mut Responder,
    ) -> Result<(), NodeError> {
        let last = self.deadline + GRACE;
        while waited_for > 0 {
            let until = (Instant::now() + self.pulse).min(last);
            while waited_for > 0 && self.bytes < SHIP_BYTES {
                match timeout_at(until, inbox.recv()).await {
                    Ok(Some((leaf, outcome))) => {
                        self.take(leaf, outcome)?;
                        waited_for -= 1;
                    }
                    Ok(None) => return Err(NodeError::Failed("the leaves could not be asked".into())),
                    Err(_) => break,
                }
            }
            self.ship(out).await?;
            if waited_for > 0 && Instant::now() >= last {
                return Err(NodeError::Stopped("the deadline passed".into()));
            }
        }
        Ok(())
    }

    fn take(&mut self, leaf: u32, outcome: Result<Whole, Lost>) -> Result<(), NodeError> {
        let said = match outcome {
            Ok((batches, stats)) => {
                self.bytes += batches.iter().map(|(_, batch)| batch.data_bytes()).sum::<u64>();
                self.batches.extend(batches);
                self.ready.push((leaf, stats));
                return Ok(());
            }
            Err(Lost::OverBudget(why)) => {
                let too_much = || format!("more than {} MiB of leaves' rows", HELD_BYTES >> 20);
                return Err(NodeError::OverBudget(why.map_or_else(too_much, |why| why.to_string())));
            }
            Err(Lost::Sql(message)) => LeafSaid::Failed(NodeError::Sql(message)),
            Err(Lost::Unreached(why) | Lost::Missing(why) | Lost::BrokeOff { why, .. }) => LeafSaid::Missing(why),
        };
        self.pieces.push(LeafPiece { leaf, said });
        Ok(())
    }

    /// Sends what there is; where there is nothing, a sign of life.
    async fn ship(&mut self, out: &mut Responder) -> Result<(), NodeError> {
        let gone = |error| NodeError::Stopped(format!("sending combined rows: {error}"));
        let (ready, pieces) = (std::mem::take(&mut self.ready), std::mem::take(&mut self.pieces));
        self.bytes = 0;
        if !ready.is_empty() {
            for (part, batch) in self.combined().await?.into_iter().enumerate() {
                if batch.rows > 0 {
                    out.batch(u32::try_from(part).unwrap_or(u32::MAX), batch).await.map_err(gone)?;
                }
            }
            out.send(Response::Combined(ready.clone())).await.map_err(gone)?;
        }
        if !pieces.is_empty() || ready.is_empty() {
            out.send(Response::Leaves(pieces)).await.map_err(gone)?;
        }
        Ok(())
    }

    /// The rows of each part.
    async fn combined(&mut self) -> Result<Vec<Batch>, NodeError> {
        let batches = std::mem::take(&mut self.batches);
        let rows: u32 = batches.iter().map(|(_, batch)| batch.rows).fold(0, u32::saturating_add);
        let (combine, pool, stop) =
            (Arc::clone(&self.combine), Arc::clone(&self.pool), Stop::at(Some((self.deadline + GRACE).into_std())));
        let (memory, gathered) = (Arc::clone(&self.memory), self.gathered.clone());
        let taken: u64 = batches.iter().map(|(_, batch)| batch.size_bytes()).sum();
        let work = move || -> Result<Vec<Batch>, NodeError> {
            let _cap = memory::cap_of(&memory);
            let mut of_parts: Vec<Vec<Batch>> = combine.iter().map(|_| Vec::new()).collect();
            for (part, batch) in batches {
                let of_part = of_parts.get_mut(part);
                of_part.ok_or_else(|| NodeError::Failed(format!("a leaf answered part {part}")))?.push(batch);
            }
            let parts = combine.iter().zip(of_parts).map(|(combine, mut batches)| match batches.len() {
                0 => Ok(Batch::default()),
                1 => Ok(batches.swap_remove(0)),
                _ => combine.combined(&batches, &pool, &stop),
            });
            let combined = parts.collect();
            gathered.merged(taken);
            combined
        };
        if rows <= FEW_ROWS {
            return work();
        }
        let joined = tokio::task::spawn_blocking(work).await;
        joined.unwrap_or_else(|panic| Err(NodeError::Failed(format!("combining failed: {panic}"))))
    }
}
