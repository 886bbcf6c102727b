//! One round of a question: what all its nodes are asked, and where their answers go.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mesh::Encoded;
use query_planner::RoundAsk;
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::inbox::{Inbox, ResponseSender};
use super::leaf::{
    BufferedBytes, BufferedRows, LeafAnswer, LeafEvent, LeafFailure, LeafRequest, RowSink, StreamedRows, Target,
};

/// What the tasks of one round share.
#[derive(Clone)]
pub(super) struct RoundRequest {
    pub(super) request: Arc<LeafRequest>,
    pub(super) encoded: Encoded,
    pub(super) buffered: BufferedBytes,
    /// Where rows go on as they come: bytes of a target that are buffered until its answer is
    /// complete.
    pub(super) streamed_bytes: Option<u64>,
    pub(super) events: ResponseSender,
    pub(super) stop: CancellationToken,
}

/// A round in flight: which targets were asked, and where they answer.
pub(super) struct RoundInFlight {
    pub(super) asked: Vec<usize>,
    pub(super) inbox: Inbox,
    pub(super) buffered: BufferedBytes,
    /// The permit was given up already, since nothing came for long enough.
    pub(super) waited: bool,
    /// Whether nodes keep their snapshots for what follows.
    pub(super) keeps: bool,
    /// Stops whatever still runs, here and (by stream reset) on every node.
    pub(super) _stop_on_drop: DropGuard,
}

/// How long a question waits for nodes with its permit.
pub(super) const PATIENCE: Duration = Duration::from_millis(20);

impl RoundInFlight {
    /// Waits until all have answered or there is enough to work on, but not for long.
    pub(super) async fn ready(&mut self) {
        self.waited = tokio::time::timeout(PATIENCE, self.inbox.ready()).await.is_err();
    }
}

/// A request of a run that was sent before the run asks for it.
pub(super) struct SentRound {
    pub(super) wanted: Arc<RoundAsk>,
    pub(super) started: RoundInFlight,
}

impl SentRound {
    /// The answers, where all have come.
    pub(super) fn answered(&mut self) -> Option<AnsweredRound> {
        let events = Arc::new(self.started.inbox.take_all()?);
        let RoundInFlight { asked, buffered, keeps, .. } = &self.started;
        let (asked, buffered, wanted) = (asked.clone(), buffered.clone(), Arc::clone(&self.wanted));
        Some(AnsweredRound { wanted, asked, buffered, keeps: *keeps, events })
    }
}

/// The answers to a request. They are lent to a run, which may have to be made again.
pub(super) struct AnsweredRound {
    pub(super) wanted: Arc<RoundAsk>,
    asked: Vec<usize>,
    pub(super) buffered: BufferedBytes,
    pub(super) keeps: bool,
    pub(super) events: Arc<Vec<LeafEvent>>,
}

impl AnsweredRound {
    /// For a run that takes them.
    pub(super) fn into_sent(self) -> SentRound {
        let started = RoundInFlight {
            asked: self.asked,
            inbox: Inbox::of(Arc::unwrap_or_clone(self.events)),
            buffered: self.buffered,
            waited: true,
            keeps: self.keeps,
            _stop_on_drop: CancellationToken::new().drop_guard(),
        };
        SentRound { wanted: self.wanted, started }
    }
}

/// What a run that may not wait works with: the answers that are there. What it asks for beyond
/// them is sent and ends the run, which is made again when that has been answered.
#[derive(Default)]
pub(super) struct InlineRun {
    pub(super) answered: Vec<AnsweredRound>,
    /// How many of them the run has asked for.
    pub(super) used: usize,
    pub(super) sent: Option<SentRound>,
}

impl InlineRun {
    /// Takes the answers to what was sent; false where they are not all there, or not little: more
    /// than so many `rounds` and `bytes` in all.
    pub(super) fn take_answers(&mut self, rounds: usize, bytes: u64) -> bool {
        let Some(sent) = &mut self.sent else { return false };
        let before: u64 = self.answered.iter().map(|round| round.buffered.bytes()).sum();
        if self.answered.len() >= rounds || before + sent.started.buffered.bytes() > bytes {
            return false;
        }
        let Some(answered) = sent.answered() else { return false };
        self.sent = None;
        self.answered.push(answered);
        true
    }

    /// All of it, for a run that may wait.
    pub(super) fn into_sent(self) -> VecDeque<SentRound> {
        self.answered.into_iter().map(AnsweredRound::into_sent).chain(self.sent).collect()
    }
}

impl RoundRequest {
    /// Where the rows of a target go.
    pub(super) fn sink_of(&self, target: usize) -> RowSink {
        match (self.streamed_bytes, &self.events) {
            (Some(most), ResponseSender::Streaming(to)) => {
                RowSink::Streamed(StreamedRows::new(&self.buffered, most, target, to.clone()))
            }
            _ => RowSink::Buffered(BufferedRows::new(&self.buffered)),
        }
    }

    /// Asks one target directly, and sends the outcome to `events`.
    pub(super) fn start(&self, runtime: &Handle, (target, to): (usize, Target)) {
        let round = self.clone();
        runtime.spawn(async move {
            let outcome = round.direct(target, &to).await;
            let _ = round.events.send(LeafEvent::Finished(target, outcome)).await;
        });
    }

    async fn direct(&self, target: usize, to: &Target) -> Result<LeafAnswer, LeafFailure> {
        let (request, mut rows) = (&self.request, self.sink_of(target));
        let outcome = if to.local {
            request.run_here(&to.name, self.stop.clone(), &mut rows).await
        } else {
            tokio::select! {
                stats = request.run_at(to, &self.encoded, request.deadline, &mut rows) => stats,
                () = self.stop.cancelled() => return Err(LeafFailure::of("cancelled")),
            }
        };
        rows.finish(outcome)
    }
}
