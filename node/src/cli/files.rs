//! `--db` given several files or a directory: each file is a node, asked in this process.

use std::path::PathBuf;

use model::{Question, StragglersQuestion};
use query::Coordinator;
use query::access::Caller;
use query::ask::{self, AskError, QueryOutcome, RowChunk};
use query_planner::{ColumnMeta, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::UsageError;
use super::local::{NoAnswer, Piece, Reply};
use crate::agent;

/// Asks the files that `paths` mean; `take` gets the rows as they come.
///
/// # Errors
/// No file can be read, the question is wrong ([`UsageError`]) or failed ([`NoAnswer`]), or what
/// `take` returned.
pub(super) fn ask_into(
    paths: &[PathBuf],
    question: Question,
    take: &mut dyn FnMut(Piece) -> anyhow::Result<()>,
) -> anyhow::Result<Reply> {
    with_files(paths, async |coordinator| asked(coordinator, question, take).await)
}

/// The verdict that files give, as JSON; see `agent::stragglers::of_files`.
///
/// # Errors
/// As [`ask_into`].
pub(super) fn stragglers(
    paths: &[PathBuf],
    question: &StragglersQuestion,
    since_ns: Option<i64>,
    until_ns: Option<i64>,
) -> anyhow::Result<String> {
    with_files(paths, async |coordinator| {
        let answer = agent::stragglers::of_files(coordinator, question, since_ns, until_ns).await.map_err(no_answer)?;
        Ok(serde_json::to_string(&answer)?)
    })
}

fn with_files<T>(paths: &[PathBuf], ask: impl AsyncFnOnce(&Coordinator) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let files = query::files::expand(paths)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let asked = runtime.block_on(async {
        let coordinator = query::files::coordinator(&files, verdicts::VIEWS)?;
        ask(&coordinator).await
    });
    // What still runs only reads.
    runtime.shutdown_background();
    asked
}

fn no_answer(error: AskError) -> anyhow::Error {
    match error {
        AskError::Wrong(message) => UsageError(message).into(),
        AskError::Failed { message, coverage } => NoAnswer { message, coverage }.into(),
    }
}

async fn asked(
    coordinator: &Coordinator,
    question: Question,
    take: &mut dyn FnMut(Piece) -> anyhow::Result<()>,
) -> anyhow::Result<Reply> {
    let (out, mut chunks) = mpsc::channel(1);
    let caller = Caller::agent();
    let stop = CancellationToken::new();
    let _stop_on_return = stop.clone().drop_guard();
    let mut asking = std::pin::pin!(ask::ask_into(coordinator, question, &caller, stop, out));
    let mut begun = false;
    let mut hand_on = |columns: Vec<ColumnMeta>, rows: Vec<Vec<Value>>| {
        if !std::mem::replace(&mut begun, true) {
            take(Piece::Columns(columns))?;
        }
        take(Piece::Rows(rows))
    };
    let outcome = loop {
        tokio::select! {
            biased;
            Some(RowChunk { columns, rows }) = chunks.recv() => hand_on(columns, rows)?,
            outcome = &mut asking => break outcome,
        }
    };
    while let Ok(RowChunk { columns, rows }) = chunks.try_recv() {
        hand_on(columns, rows)?;
    }
    match outcome {
        Ok(QueryOutcome::Plan(text)) => Ok(Reply::Text(text)),
        Ok(QueryOutcome::Answer { answer, coverage, elapsed, explained }) => {
            hand_on(answer.columns, answer.rows)?;
            Ok(Reply::Result { coverage, elapsed_ms: elapsed.as_secs_f64() * 1e3, explained })
        }
        Err(error) => Err(no_answer(error)),
    }
}
