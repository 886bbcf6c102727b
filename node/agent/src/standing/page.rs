//! What the ranks of a job did in the last minutes: given by its judges, and asked for where these
//! are other hosts.

use std::time::{Duration, Instant};

use model::board::{Board, BoardQuestion, Known};
use model::wire::{Request, Response};

use super::super::Shared;
use super::Current;

/// Longest that a judge is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// What this host keeps of a job, for whoever asks it.
pub(crate) fn page(shared: &Shared, job: u64, since_ns: Option<i64>, known: Option<Known>) -> Option<Board> {
    shared.standing.kept.page(job, since_ns, known)
}

/// What is kept of the job of a standing verdict: by this host, where it judges the job, else by
/// the first of its judges that gives it.
///
/// # Errors
/// None of them does; in words.
pub(crate) async fn page_of(
    shared: &Shared,
    current: &Current,
    question: &BoardQuestion,
    deadline: Instant,
) -> Result<Board, String> {
    let (since_ns, known, own) = (question.since_ns, question.known, shared.identity.node().to_string());
    let named =
        |board: Board, judge: &str| Board { job: current.name.to_string(), judge: Some(judge.to_owned()), ..board };
    let mut why = "nothing is kept of it yet".to_owned();
    // An asker that goes on with one judge's places stays with that judge.
    for verdict in &current.judges {
        let given = if verdict.judge == own {
            page(shared, current.job, since_ns, known)
        } else {
            match of_judge(shared, &verdict.judge, current.job, question, deadline).await {
                Ok(board) => board,
                Err(error) => {
                    why = format!("{}: {error}", verdict.judge);
                    continue;
                }
            }
        };
        if let Some(board) = given {
            return Ok(named(board, &verdict.judge));
        }
    }
    Err(why)
}

async fn of_judge(
    shared: &Shared,
    judge: &str,
    job: u64,
    question: &BoardQuestion,
    deadline: Instant,
) -> Result<Option<Board>, String> {
    let left = deadline.saturating_duration_since(Instant::now()) / 2;
    let deadline = tokio::time::Instant::now() + PATIENCE.min(left);
    let request = Request::Board { job, since_ns: question.since_ns, known: question.known };
    match super::ask(shared, judge, request, deadline).await? {
        Response::Board(board) => Ok(board.map(|board| *board)),
        other => Err(other.summary()),
    }
}
