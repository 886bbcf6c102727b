//! Waiting for an answer, and handling each response.

use std::future::Future;
use std::time::{Duration, Instant};

use model::{Failure, FailureKind, LocalRequest, LocalResponse};
use tokio_util::sync::CancellationToken;

use crate::backend::{NoAnswer, Piece, Reply, Stopped, Take};
use crate::exit::wrong;

/// Silence after which the receiver of the pieces gets [`Piece::Idle`].
pub(crate) const IDLE: Duration = Duration::from_secs(1);

/// How long to wait for an agent beyond a question's own time: its reason why there is no answer
/// should come first.
const BEYOND: Duration = Duration::from_millis(240);

/// The time that an agent has for a request, if the request has a limit.
#[derive(Debug)]
pub struct Deadline {
    timeout_ms: u64,
    until: Option<Instant>,
}

impl Deadline {
    /// The time limit of the request, from now on.
    pub fn of(request: &LocalRequest) -> Self {
        let timeout_ms = match request {
            LocalRequest::Query(question) => question.timeout_ms,
            LocalRequest::Stacks(question) => question.timeout_ms,
            LocalRequest::Explain(question) => question.timeout_ms,
            LocalRequest::Board(question) => question.timeout_ms,
            LocalRequest::Nodes
            | LocalRequest::Tables
            | LocalRequest::Doctor
            | LocalRequest::Watch(_)
            | LocalRequest::Stragglers(_)
            | LocalRequest::OnBehalf(_)
            | LocalRequest::Mark(_) => {
                return Self { timeout_ms: 0, until: None };
            }
        };
        // Practically for ever, if the clock's range ends before.
        let until = Instant::now().checked_add(Duration::from_millis(timeout_ms).saturating_add(BEYOND));
        Self { timeout_ms, until }
    }

    /// The next response; none if nothing came for a second, which `take` is then told.
    ///
    /// # Errors
    /// The time is over, or what `take` returned.
    pub async fn next<T>(
        &self,
        response: impl Future<Output = T>,
        take: &mut (dyn FnMut(Piece) -> anyhow::Result<()> + '_),
    ) -> anyhow::Result<Option<T>> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let patience = left.map_or(IDLE, |left| left.min(IDLE));
        if let Ok(response) = tokio::time::timeout(patience, response).await {
            return Ok(Some(response));
        }
        if self.until.is_some_and(|until| Instant::now() >= until) {
            let why = format!("timeout: the agent gave no answer within {} ms, nor said why", self.timeout_ms);
            return Err(NoAnswer { failure: Failure::new(FailureKind::Timeout, why), coverage: None }.into());
        }
        take(Piece::Idle)?;
        Ok(None)
    }
}

/// Passes a response to `take`; returns the reply, once it is the last.
///
/// # Errors
/// It is an error, or what `take` returned.
pub fn deliver(response: LocalResponse, take: Take<'_>) -> anyhow::Result<Option<Reply>> {
    match response {
        LocalResponse::Columns(columns) => take(Piece::Columns(columns)).map(|()| None),
        LocalResponse::Rows(rows) => take(Piece::Rows(rows)).map(|()| None),
        LocalResponse::Watch(json) => take(Piece::Watched(json)).map(|()| None),
        LocalResponse::Board(board) => Ok(Some(Reply::Board(board))),
        LocalResponse::Text(text) => Ok(Some(Reply::Text(text))),
        LocalResponse::End { coverage, elapsed_ns, explained } => {
            Ok(Some(Reply::Result { coverage, elapsed_ms: elapsed_ns as f64 / 1e6, explained }))
        }
        LocalResponse::Wrong(failure) => Err(wrong(failure)),
        LocalResponse::Failed { failure, coverage } => Err(NoAnswer { failure, coverage }.into()),
    }
}

/// Asks on this thread, until `stop`: the agent stops the question on every node when its client
/// closes the connection.
///
/// # Errors
/// [`Stopped`], or what `asking` returned.
pub fn run_until_stopped<T>(
    stop: &CancellationToken,
    asking: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(stop.run_until_cancelled(asking)).unwrap_or_else(|| Err(Stopped.into()))
}
