//! One round of a question: what all its nodes are asked, and where their answers go.

use std::sync::Arc;

use mesh::Encoded;
use query_planner::{FirstAsk, NodeTask, Round, Targets};
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
    /// Stops whatever still runs, here and (by stream reset) on every node.
    pub(super) _stop_on_drop: DropGuard,
}

/// The first request of a run, sent before the run starts.
pub(super) struct FirstRound {
    pub(super) first: Arc<FirstAsk>,
    pub(super) started: RoundInFlight,
}

impl FirstRound {
    pub(super) fn is(&self, round: Round, task: &NodeTask, targets: &Targets) -> bool {
        let first = &self.first.task;
        self.first.round == round
            && self.first.targets == *targets
            && first.now_unix_ns == task.now_unix_ns
            && first.fragments == task.fragments
            && first.keys == task.keys
            && first.budget == task.budget
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
                () = self.stop.cancelled() => return Err(LeafFailure::Missing("cancelled".to_owned())),
            }
        };
        rows.finish(outcome)
    }
}
