//! Answers what ranks did, window by window: of the last minutes from what a job's judges keep, of
//! any other time from the stores.

use std::sync::Arc;
use std::time::{Duration, Instant};

use model::board::{Board, BoardQuestion};
use query::access::Caller;
use query::ask::AskError;
use tokio_util::sync::CancellationToken;

use super::board_of_stores::{self, BoardSpan};
use super::{Shared, standing};

/// The board that a question asks for.
///
/// # Errors
/// There is no standing verdict on the job, or no judge sends its board; else as
/// [`board_of_stores::board`].
pub(super) async fn answer(
    shared: &Arc<Shared>,
    question: BoardQuestion,
    caller: &Caller,
    cancelled: CancellationToken,
) -> Result<Board, AskError> {
    let deadline = Instant::now() + Duration::from_millis(question.timeout_ms);
    // What judges keep is of everybody's processes.
    let from_stores = question.until_ns.is_some() || question.window_ns.is_some() || caller.access.viewer().is_some();
    if from_stores {
        let span = BoardSpan::of(question, None);
        return board_of_stores::board(&shared.coordinator, &span, caller, &cancelled).await;
    }
    standing::hear(shared).await;
    let mut all = shared.standing.all();
    all.retain(|current| question.job.as_ref().is_none_or(|job| current.name.is(job)));
    let Some(current) = all.first() else {
        let of = question.job.as_ref().map_or_else(String::new, |job| format!(" on job {job}"));
        return Err(AskError::failed(format!(
            "no verdict stands{of}, so no judge keeps what its ranks do; the stores may have it"
        )));
    };
    standing::page_of(shared, current, &question, deadline).await.map_err(|why| {
        AskError::failed(format!(
            "no judge of {} gave what its ranks did ({why}); the stores may have it",
            current.name
        ))
    })
}
