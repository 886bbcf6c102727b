//! Requests of people and programs and the agent's answers, whichever way they came: over the local
//! socket (`local`) or over the mesh with a certificate of their own (`serve`). Those modules
//! decide who may ask what; every request is written to the audit here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use model::{Failure, FailureKind, LocalRequest, LocalResponse};
use query::access::Caller;
use query::ask::{self, AskError, QueryOutcome, Question, RowChunk};
use query_planner::{ColumnMeta, Value};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Shared;
pub(super) use super::answer_sink::AnswerSink;
use super::audit::{Asking, Outcome};
use super::stragglers::{self, Asked};

/// Rows of one frame to the client, and their bytes.
const ROWS_PER_FRAME: usize = 2_000;
const BYTES_PER_FRAME: u64 = 1 << 20;
/// Bytes of one row: together with what may come before it in its frame it is still smaller than
/// the largest frame.
const LARGEST_ROW: u64 = 6 << 20;

/// How long to wait for nodes that are asked which tables they have.
const FOR_TABLES: Duration = Duration::from_secs(5);

/// Answers one request of `caller`, who is the user `uid` of this host or came over the mesh;
/// `asking` begins the audit entry of a kind of question.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    request: LocalRequest,
    caller: &Caller,
    uid: Option<u32>,
    asking: impl Fn(&'static str) -> Asking + Send,
    to: &mut impl AnswerSink,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    match request {
        LocalRequest::Query(question) => {
            let asking = asking("query").question(&question.sql);
            let outcome = query(shared, question, caller, to, stop).await;
            shared
                .auditor
                .done(asking, outcome.as_ref().map_or_else(|e| Outcome::Failed(format!("{e:#}")), Clone::clone));
            outcome?;
        }
        LocalRequest::Nodes => {
            let asking = asking("nodes");
            let nodes = serde_json::to_string(&super::facts::node_list(&shared.coordinator))?;
            shared.auditor.done(asking, Outcome::Answered { rows: None, bytes: None });
            to.send(LocalResponse::Text(nodes)).await?;
        }
        LocalRequest::Doctor => {
            let examination = super::health::examine(shared).await;
            report(shared, asking("doctor"), Ok(examination), to).await?;
        }
        LocalRequest::Tables => {
            let deadline = Instant::now() + FOR_TABLES;
            let tables = query::tables::tables(&shared.coordinator, deadline).await;
            let tables = tables.map_err(AskError::failed);
            report(shared, asking("tables"), tables, to).await?;
        }
        LocalRequest::Stacks(question) => {
            let asking = asking("stacks");
            let answer = super::stacks::ask(shared, question, caller, &stop).await;
            report(shared, asking, answer, to).await?;
        }
        LocalRequest::Explain(question) => {
            let asking = asking("explain");
            let answer = super::explain::answer(Asked::mesh(shared), question, caller, stop).await;
            report(shared, asking, answer, to).await?;
        }
        LocalRequest::Mark(mark) => {
            let asking = asking("mark");
            report(shared, asking, super::mark::mark(shared, &mark, caller, uid), to).await?;
        }
        LocalRequest::Board(question) => {
            let asking = asking("board");
            let (response, outcome) = match super::board::answer(shared, question, &caller.for_analysis(), stop).await {
                Ok(board) => (LocalResponse::Board(Box::new(board)), Outcome::Answered { rows: None, bytes: None }),
                Err(error) => failure(error),
            };
            shared.auditor.done(asking, outcome);
            to.send(response).await?;
        }
        LocalRequest::Watch(question) => {
            shared.auditor.done(asking("watch"), Outcome::Answered { rows: None, bytes: None });
            super::watch::watch(shared, question, caller, to, stop).await?;
        }
        LocalRequest::Stragglers(question) => {
            let asking = asking("stragglers");
            let caller = caller.for_analysis();
            let answer = stragglers::verdict(Asked::mesh(shared), question, &caller, stop).await;
            report(shared, asking, answer, to).await?;
        }
        LocalRequest::OnBehalf(_) => {
            let wrong = "not allowed: only a front end on this host asks for others, and says so once";
            let wrong = Failure::new(FailureKind::Forbidden, wrong);
            report(shared, asking("connect"), Err::<(), _>(AskError::wrong(wrong)), to).await?;
        }
    }
    Ok(())
}

/// Sends an answer that is one JSON document, and writes it to the audit.
async fn report<T: Serialize + Sync>(
    shared: &Shared,
    asking: Asking,
    answer: Result<T, AskError>,
    to: &mut impl AnswerSink,
) -> anyhow::Result<()> {
    let (response, outcome) = match answer {
        Ok(answer) => {
            let json = serde_json::to_string(&answer)?;
            (LocalResponse::Text(json), Outcome::Answered { rows: None, bytes: None })
        }
        Err(error) => failure(error),
    };
    shared.auditor.done(asking, outcome);
    to.send(response).await
}

async fn query(
    shared: &Arc<Shared>,
    question: Question,
    caller: &Caller,
    to: &mut impl AnswerSink,
    stop: CancellationToken,
) -> anyhow::Result<Outcome> {
    // When the client stops reading, the question is cancelled.
    let _stop_on_return = stop.clone().drop_guard();
    let (out, mut chunks) = mpsc::channel(1);
    let mut asking = std::pin::pin!(ask::ask_into(&shared.coordinator, question, caller, stop, out));
    let mut given = None;
    let outcome = loop {
        tokio::select! {
            biased;
            Some(RowChunk { columns, rows }) = chunks.recv() => give(to, columns, rows, &mut given).await?,
            outcome = &mut asking => break outcome,
        }
    };
    while let Ok(RowChunk { columns, rows }) = chunks.try_recv() {
        give(to, columns, rows, &mut given).await?;
    }
    match outcome {
        Ok(QueryOutcome::Plan(text)) => {
            to.send(LocalResponse::Text(text)).await?;
            Ok(Outcome::Answered { rows: None, bytes: None })
        }
        Ok(QueryOutcome::Answer { answer, coverage, elapsed, explained }) => {
            give(to, answer.columns, answer.rows, &mut given).await?;
            let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
            to.send(LocalResponse::End { coverage, elapsed_ns, explained }).await?;
            Ok(Outcome::Answered { rows: given, bytes: None })
        }
        Err(error) => {
            let (response, outcome) = failure(error);
            to.send(response).await?;
            Ok(outcome)
        }
    }
}

/// Sends rows, before the first ones the columns; `given` counts them.
async fn give(
    to: &mut impl AnswerSink,
    columns: Vec<ColumnMeta>,
    rows: Vec<Vec<Value>>,
    given: &mut Option<u64>,
) -> anyhow::Result<()> {
    if given.is_none() {
        to.send(LocalResponse::Columns(columns)).await?;
    }
    *given = Some(given.unwrap_or(0) + rows.len() as u64);
    let (mut frame, mut bytes) = (Vec::new(), 0);
    for row in rows {
        let more = row.iter().map(Value::data_bytes).sum::<u64>();
        if more > LARGEST_ROW {
            let message = format!(
                "a row of the answer has {} MiB, more than the {} MiB that can be handed on; select less of it (substr, length)",
                more >> 20,
                LARGEST_ROW >> 20
            );
            to.send(LocalResponse::failed(message.clone())).await?;
            bail!(message);
        }
        bytes += more;
        frame.push(row);
        if frame.len() >= ROWS_PER_FRAME || bytes >= BYTES_PER_FRAME {
            bytes = 0;
            to.send(LocalResponse::Rows(std::mem::take(&mut frame))).await?;
        }
    }
    if frame.is_empty() { Ok(()) } else { to.send(LocalResponse::Rows(frame)).await }
}

fn failure(error: AskError) -> (LocalResponse, Outcome) {
    match error {
        AskError::Wrong(failure) => (LocalResponse::Wrong(failure.clone()), Outcome::Refused(failure.message)),
        AskError::Failed { failure, coverage } => {
            (LocalResponse::Failed { failure: failure.clone(), coverage }, Outcome::Failed(failure.message))
        }
    }
}
