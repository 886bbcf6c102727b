//! An intermediate aggregator: the node of a tree that asks leaves for another node's question and
//! sends on what they answer. The coordinator's side is `tree`.
//!
//! There is one way through, with two treatments of rows. Rows whose fragments ship partial
//! aggregates ([`Combine`]) are kept until a leaf's answer is complete, combined with other leaves'
//! and sent as one node's rows with the numbers of the leaves that are in them, so that the
//! coordinator's work grows with the number of aggregators. All other rows are sent on as they
//! come, each batch with its leaf's number, and the coordinator merges as if it had asked the
//! leaves itself.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use gossip::Seat;
use mesh::{Encoded, Responder};
use model::wire::{FromLeaf, Leaf, LeafReply, Response};
use query_planner::memory::{self, Account};
use query_planner::{Batch, Combine, MergePool, NodeError, NodeStats, NodeTask, Stop};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::keepalive::keepalive_interval;
use super::leaf::{BufferedBytes, BufferedRows, LeafEvent, LeafFailure, LeafRequest, RowSink, StreamedRows, Target};

/// Questions that are served at a time; more are left to their coordinators.
const MAX_QUESTIONS: usize = 16;
/// Leaves of one question.
const MAX_LEAVES: usize = 4_096;
/// Leaves asked at a time.
const LEAVES_AT_ONCE: usize = 128;
/// Events between the leaves and the way to the coordinator.
const QUEUE: usize = 32;
/// Rows that are sent on as they come go together with what follows them within this time, up to so
/// many bytes.
const FORWARD_LINGER: Duration = Duration::from_millis(2);
const FORWARD_BYTES: u64 = 256 << 10;
/// Bytes of leaves' rows that may be buffered to combine them; with more the subtree is given back
/// to the coordinator.
const MAX_BUFFERED_BYTES: u64 = 48 << 20;
/// Memory of one question here, bytes: rows that wait to be sent, or to be combined, and combining.
const MEMORY_BYTES: u64 = 256 << 20;
/// Complete answers are combined and sent when they are so large together.
const COMBINE_BYTES: u64 = 4 << 20;
/// More rows than this are combined on a thread that may block.
const INLINE_ROWS: u32 = 512;
/// At the deadline, time for the leaves' own timeouts to be reported.
const GRACE: Duration = Duration::from_millis(20);

/// The aggregator of one node.
#[derive(Debug)]
pub struct Aggregator {
    permits: Semaphore,
    /// Databases in which rows are combined.
    pool: Arc<MergePool>,
}

impl Default for Aggregator {
    fn default() -> Self {
        Self { permits: Semaphore::new(MAX_QUESTIONS), pool: Arc::default() }
    }
}

impl Aggregator {
    /// Asks `leaves` and sends what they answer to `out`; the result is the last response.
    /// `combine`: how the rows of each fragment combine, where they are to be combined here.
    pub async fn run(
        &self,
        mut request: LeafRequest,
        leaves: Vec<Leaf>,
        combine: Option<Vec<Combine>>,
        out: &mut Responder,
        cancelled: CancellationToken,
    ) -> Response {
        if leaves.len() > MAX_LEAVES {
            return Response::failed(format!("more than {MAX_LEAVES} nodes to relay to"));
        }
        let Ok(_permit) = self.permits.try_acquire() else {
            return Response::failed("this node relays as many questions as it may");
        };
        if let Some(combine) = &combine {
            if combine.len() != request.task.fragments.len() {
                return Response::failed("each fragment needs to be told how its rows combine");
            }
            declare_partials(&mut request.task, combine);
        }
        let (last, interval) = (Instant::from(request.deadline) + GRACE, keepalive_interval(&request));
        let (events, inbox) = mpsc::channel(QUEUE);
        let open = leaves.len();
        // Dropped with this future: whatever still runs here, and (by stream reset) on the leaves,
        // stops.
        let stop = cancelled.child_token();
        let _stop_on_drop = stop.clone().drop_guard();
        let memory = Account::new(MEMORY_BYTES);
        let limit =
            if combine.is_some() { request.task.budget.coordinator_bytes.min(MAX_BUFFERED_BYTES) } else { u64::MAX };
        let buffered = BufferedBytes::new(limit, &memory);
        let asking = ask_all(Arc::new(request), leaves, combine.is_some(), buffered.clone(), events, stop.clone());
        let _asking = AbortOnDropHandle::new(tokio::spawn(asking));
        let mut outbound = Outbound {
            buffered,
            memory,
            combine: combine.map(Into::into),
            pool: Arc::clone(&self.pool),
            last,
            interval,
            complete: Vec::new(),
            batches: Vec::new(),
            messages: Vec::new(),
            bytes: 0,
            taken: 0,
        };
        let sent = tokio::select! {
            sent = outbound.send_all(inbox, open, out) => sent,
            () = stop.cancelled() => Err(NodeError::Stopped("the coordinator has gone".into())),
            // A coordinator that neither reads nor goes away.
            () = tokio::time::sleep_until(last + GRACE) => Err(NodeError::Timeout("the deadline passed".into())),
        };
        match sent {
            Ok(()) => Response::Done(NodeStats::default()),
            Err(error) => Response::Failed(error.into()),
        }
    }
}

/// Writes into the task which columns are partial aggregates (it is sent outside the task): so that
/// a leaf's damaged rows spoil no other leaf's.
fn declare_partials(task: &mut NodeTask, combine: &[Combine]) {
    for (fragment, combine) in task.fragments.iter_mut().zip(combine) {
        fragment.partials = combine.partials();
    }
}

/// Asks all leaves from one task: what a leaf answers is mostly little, and a task of its own for
/// each would cost as much as reading it.
async fn ask_all(
    request: Arc<LeafRequest>,
    leaves: Vec<Leaf>,
    combining: bool,
    buffered: BufferedBytes,
    events: mpsc::Sender<LeafEvent>,
    stop: CancellationToken,
) {
    let Ok(encoded) = request.encoded() else { return };
    let stop = &stop;
    let mut leaves: Vec<(usize, Leaf)> = leaves.into_iter().enumerate().collect();
    // This node's own fragment last: it may run inline, and no leaf should wait for it before being
    // asked.
    leaves.sort_by_key(|(_, leaf)| leaf.node.parse().is_ok_and(|name| request.way.executor_of(&name).is_some()));
    let ask_one = |(index, leaf): (usize, Leaf)| {
        let (request, encoded, events) = (&request, &encoded, events.clone());
        let mut rows = if combining {
            RowSink::Buffered(BufferedRows::new(&buffered))
        } else {
            RowSink::Streamed(StreamedRows::new(&buffered, 0, index, events.clone()))
        };
        async move {
            let outcome = ask_leaf(request, leaf, encoded, stop, &mut rows).await;
            let _ = events.send(LeafEvent::Finished(index, rows.finish(outcome))).await;
        }
    };
    futures::stream::iter(leaves).for_each_concurrent(LEAVES_AT_ONCE, ask_one).await;
}

/// Asks one leaf, which may be this node. One that cannot be reached in half of the time is left to
/// the coordinator, whose way to it may be better.
async fn ask_leaf(
    request: &LeafRequest,
    leaf: Leaf,
    encoded: &Encoded,
    stop: &CancellationToken,
    rows: &mut RowSink,
) -> Result<NodeStats, LeafFailure> {
    match leaf.node.parse() {
        Ok(name) if request.way.executor_of(&name).is_some() => request.run_here(&name, stop.clone(), rows).await,
        Ok(name) => {
            let reached_by = std::time::Instant::now() + Duration::from_millis(request.left_ms().into()) / 2;
            request
                .run_at(
                    &Target { name, address: leaf.address, local: false, seat: Seat::default() },
                    encoded,
                    reached_by,
                    rows,
                )
                .await
        }
        Err(error) => Err(LeafFailure::of(format!("failed: {error}"))),
    }
}

/// What the leaves answered and has not been sent yet.
struct Outbound {
    /// What the rows count to, until they are sent or combined.
    buffered: BufferedBytes,
    memory: Arc<Account>,
    /// How the rows of each fragment combine; none where they are sent on.
    combine: Option<Arc<[Combine]>>,
    pool: Arc<MergePool>,
    /// Until when anything is sent.
    last: Instant,
    /// How often the coordinator gets a sign of life.
    interval: Duration,
    /// Complete answers to combine: the leaf's number and what it did; and the rows of all of them.
    complete: Vec<(u32, NodeStats)>,
    batches: Vec<(usize, Batch)>,
    /// What goes on as it is.
    messages: Vec<FromLeaf>,
    /// Bytes of rows in all of these.
    bytes: u64,
    /// Memory of those in `messages`.
    taken: u64,
}

impl Outbound {
    /// Sends until the answers of `open` leaves have ended: together what comes together, and a
    /// sign of life where nothing comes.
    async fn send_all(
        &mut self,
        mut inbox: mpsc::Receiver<LeafEvent>,
        mut open: usize,
        out: &mut Responder,
    ) -> Result<(), NodeError> {
        let (linger, enough) = match self.combine {
            Some(_) => (self.interval, COMBINE_BYTES),
            None => (FORWARD_LINGER, FORWARD_BYTES),
        };
        while open > 0 {
            let mut until = (Instant::now() + self.interval).min(self.last);
            while open > 0 && self.bytes < enough {
                match timeout_at(until, inbox.recv()).await {
                    Ok(Some(event)) => {
                        if self.is_empty() {
                            until = until.min(Instant::now() + linger);
                        }
                        open -= usize::from(matches!(event, LeafEvent::Finished(..)));
                        self.take(event)?;
                    }
                    Ok(None) => return Err(NodeError::Failed("the leaves could not be asked".into())),
                    Err(_) => break,
                }
            }
            self.ship(out).await?;
            if open > 0 && Instant::now() >= self.last {
                return Err(NodeError::Timeout("the deadline passed".into()));
            }
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.complete.is_empty() && self.messages.is_empty()
    }

    fn take(&mut self, event: LeafEvent) -> Result<(), NodeError> {
        let (leaf, batches, end) = match event {
            LeafEvent::Rows(leaf, batch) => (leaf, vec![batch], None),
            LeafEvent::Finished(leaf, Ok((batches, stats))) => (leaf, batches, Some(LeafReply::Done(stats))),
            LeafEvent::Finished(leaf, Err(failure)) => (leaf, Vec::new(), Some(self.reply_of(failure)?)),
        };
        let leaf = u32::try_from(leaf).unwrap_or(u32::MAX);
        self.bytes += batches.iter().map(|(_, batch)| batch.data_bytes()).sum::<u64>();
        match end {
            Some(LeafReply::Done(stats)) if self.combine.is_some() => {
                self.batches.extend(batches);
                self.complete.push((leaf, stats));
            }
            end => {
                self.taken += batches.iter().map(|(_, batch)| batch.size_bytes()).sum::<u64>();
                let rows = batches.into_iter().map(|(fragment, batch)| {
                    let fragment = u32::try_from(fragment).unwrap_or(u32::MAX);
                    LeafReply::Batch { fragment, batch }
                });
                self.messages.extend(rows.chain(end).map(|reply| FromLeaf { leaf, reply }));
            }
        }
        Ok(())
    }

    /// Sends what has been gathered; where that is nothing, a sign of life.
    async fn ship(&mut self, out: &mut Responder) -> Result<(), NodeError> {
        let gone = |error| NodeError::Stopped(format!("sending leaves' rows: {error}"));
        let (complete, messages) = (std::mem::take(&mut self.complete), std::mem::take(&mut self.messages));
        let batches = std::mem::take(&mut self.batches);
        self.bytes = 0;
        if let (Some(combine), false) = (&self.combine, complete.is_empty()) {
            let combined = self.combined(combine, batches).await?;
            for (fragment, batch) in combined.into_iter().enumerate().filter(|(_, batch)| batch.rows > 0) {
                out.batch(u32::try_from(fragment).unwrap_or(u32::MAX), batch).await.map_err(gone)?;
            }
            out.send(Response::Combined(complete)).await.map_err(gone)?;
            if messages.is_empty() {
                return Ok(());
            }
        }
        let sent = out.send(Response::Leaves(messages)).await.map_err(gone);
        self.buffered.merged(std::mem::take(&mut self.taken));
        sent
    }

    /// The rows of each fragment, combined.
    async fn combined(&self, combine: &Arc<[Combine]>, batches: Vec<(usize, Batch)>) -> Result<Vec<Batch>, NodeError> {
        let rows: u32 = batches.iter().map(|(_, batch)| batch.rows).fold(0, u32::saturating_add);
        let (combine, pool, stop) = (Arc::clone(combine), Arc::clone(&self.pool), Stop::at(Some(self.last.into_std())));
        let (memory, buffered) = (Arc::clone(&self.memory), self.buffered.clone());
        let taken: u64 = batches.iter().map(|(_, batch)| batch.size_bytes()).sum();
        let work = move || -> Result<Vec<Batch>, NodeError> {
            let _cap = memory::cap_of(&memory);
            let mut of_fragments: Vec<Vec<Batch>> = combine.iter().map(|_| Vec::new()).collect();
            for (fragment, batch) in batches {
                let of_fragment = of_fragments.get_mut(fragment);
                of_fragment
                    .ok_or_else(|| NodeError::Failed(format!("a leaf answered fragment {fragment}")))?
                    .push(batch);
            }
            let combined = combine.iter().zip(of_fragments).map(|(combine, mut batches)| match batches.len() {
                0 => Ok(Batch::default()),
                1 => Ok(batches.swap_remove(0)),
                _ => combine.combined(&batches, &pool, &stop),
            });
            let combined = combined.collect();
            buffered.merged(taken);
            combined
        };
        if rows <= INLINE_ROWS {
            return work();
        }
        let joined = tokio::task::spawn_blocking(work).await;
        joined.unwrap_or_else(|panic| Err(NodeError::Failed(format!("combining failed: {panic}"))))
    }

    /// Why there is no answer of a leaf, as it is sent on.
    fn reply_of(&self, failure: LeafFailure) -> Result<LeafReply, NodeError> {
        match failure {
            LeafFailure::OverBudget(why) => {
                let over_limit = || format!("more than {} MiB of leaves' rows", MAX_BUFFERED_BYTES >> 20);
                let why = why.map_or_else(over_limit, |why| why.to_string());
                match self.combine {
                    Some(_) => Err(NodeError::OverBudget(why)),
                    None => Ok(LeafReply::Failed(NodeError::OverBudget(why).into())),
                }
            }
            // The coordinator knows which rows it has already.
            LeafFailure::Failed(why) | LeafFailure::BrokeOff { why, .. } => Ok(LeafReply::Failed(why)),
        }
    }
}
