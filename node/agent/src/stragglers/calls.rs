//! The calls that a verdict is made of, gathered over the mesh.
//!
//! Rows come through an ordinary mesh query (so coverage is the query's), clock offsets through
//! pings, and the calls that ranks are in right now from their agents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use digest::time_use::TimeUse;
use futures::StreamExt;
use gossip::Member;
use model::wire::{OpenCall, Request, Response};
use model::{Coverage, StragglersQuestion};
use query::Coordinator;
use query::access::Caller;
use query::ask::{self, AskError, QueryOutcome, Question};
use query_planner::{NodeClock, Value};
use verdicts::point_to_point::{self, Rows};
use verdicts::{ClockOffset, InCall, Input, Names, NodeCoverage, Span, SyncCall};

use super::super::asking::Asking;
use super::super::open_calls::in_call;
use super::super::{Shared, device};

/// Calls that one analysis takes: they are in memory, with what is made of them, about 1 KB each.
pub(in super::super) const MOST_CALLS: usize = 6_000_000;
/// Peers measured at once.
const PEERS_AT_ONCE: usize = 32;

/// The clocks of the nodes against this one's; of files within a span.
pub(in super::super) async fn clocks(
    coordinator: &Coordinator,
    span: Option<(i64, i64)>,
    deadline: Instant,
) -> BTreeMap<String, ClockOffset> {
    query::clocks::clocks(coordinator, span, deadline)
        .await
        .into_iter()
        .map(|(node, clock)| {
            let NodeClock { offset_ns, bound_ns, at_ns, drift_ppb, drift_bound_ppb } = clock;
            (node, ClockOffset { offset_ns, bound_ns, at_ns, drift_ppb, drift_bound_ppb })
        })
        .collect()
}

/// What to fetch of a span.
pub(in super::super) fn span_of(
    question: &StragglersQuestion,
    clocks: &BTreeMap<String, ClockOffset>,
    since_ns: i64,
    until_ns: i64,
) -> Span {
    let slack_ns = clocks.values().map(|clock| clock.offset_ns.abs().saturating_add(clock.bound_ns)).max().unwrap_or(0);
    Span { since_ns, until_ns, slack_ns, job: question.job.clone(), comm: question.comm }
}

/// The calls of a span out of the stores, with what belongs to them: synchronise calls, and where
/// the time of ranks went that meet in calls to single ranks. At most so many calls.
///
/// # Errors
/// As [`ask::ask`].
pub(in super::super) async fn calls_of(
    asking: Asking<'_>,
    question: &StragglersQuestion,
    span: &Span,
    clocks: BTreeMap<String, ClockOffset>,
    most: usize,
) -> Result<(Input, Coverage), AskError> {
    let mut calls = Calls { most, ..Calls::default() };
    let sql = verdicts::sql(span);
    let query = || asking.query(sql.clone(), &question.nodes, &question.labels);
    let coverage = match read_calls(asking, query(), &mut calls, true).await {
        // A node broke off within its rows. The second attempt reads all rows before it uses any,
        // so that such a node counts as missing.
        Err(AskError::Failed { coverage: Some(_), .. }) if calls.seen > 0 => {
            calls = Calls { most, ..Calls::default() };
            read_calls(asking, query(), &mut calls, false).await?
        }
        read => read?,
    };
    let Calls { input, rows, .. } = calls;
    let mut input = Input {
        clocks,
        coverage: NodeCoverage {
            asked: coverage.asked,
            answered: coverage.answered,
            missing: coverage.missing.iter().map(|gone| (gone.node.clone(), gone.reason.clone())).collect(),
            notes: coverage.notes.clone(),
        },
        since_ns: span.since_ns,
        until_ns: span.until_ns,
        ..input
    };
    if !input.unnumbered.is_empty() {
        // If they cannot be read, none is taken to be lost.
        match asking.rows_for(question, verdicts::losses_sql(span)).await {
            Ok((rows, _)) => rows.iter().for_each(|row| input.push_loss_row(row)),
            Err(error) => tracing::debug!("lost records: {error}"),
        }
    }
    if input.enqueues() {
        // If they cannot be read, the verdict rests on entries, which it notes.
        match asking.rows_for(question, verdicts::syncs_sql(span)).await {
            Ok((rows, _)) => rows.iter().for_each(|row| input.push_sync_row(row)),
            Err(error) => tracing::debug!("synchronise calls: {error}"),
        }
        input.drop_waits_of_devices();
    }
    if input.observations.iter().chain(&input.unnumbered).any(|seen| seen.tier == 1) {
        // If they cannot be read, time in which a rank was stopped in a call counts as a wait, and what
        // held it off its CPU is not known.
        match asking.rows_for(question, verdicts::halts_sql(span)).await {
            Ok((stretches, _)) => {
                let cut = verdicts::take_halts(&mut input, &stretches, &rows);
                input.coverage.notes.extend(cut);
            }
            Err(error) => tracing::debug!("halts of processes: {error}"),
        }
    }
    input.times = times(asking, question, rows, &input).await;
    Ok((input, coverage))
}

/// Calls as their rows come.
#[derive(Default)]
struct Calls {
    input: Input,
    rows: Rows,
    names: Names,
    seen: usize,
    most: usize,
}

impl Calls {
    fn take(&mut self, rows: &[Vec<Value>]) -> Result<(), AskError> {
        self.seen += rows.len();
        if self.seen > self.most {
            let message = format!(
                "more than {} calls in this time: ask for a shorter one, a job or a communicator (--since, --job, --comm)",
                self.most
            );
            return Err(AskError::failed(message));
        }
        for row in rows {
            if self.rows.call(row) {
                let pushed = self.input.push_row(row, &mut self.names);
                pushed.map_err(|error| AskError::failed(error.to_string()))?;
            }
        }
        Ok(())
    }
}

/// Asks for calls and takes them in, with `as_they_come` while nodes still send.
async fn read_calls(
    asking: Asking<'_>,
    asked: Question,
    calls: &mut Calls,
    as_they_come: bool,
) -> Result<Coverage, AskError> {
    let Asking { coordinator, caller, cancelled, .. } = asking;
    let outcome = if as_they_come {
        ask::ask_each(coordinator, asked, caller, cancelled.clone(), |chunk| calls.take(&chunk.rows)).await?
    } else {
        ask::ask_as(coordinator, asked, caller, cancelled.clone()).await?
    };
    let QueryOutcome::Answer { answer, coverage, .. } = outcome else {
        return Err(AskError::failed("the planner gave no answer"));
    };
    calls.take(&answer.rows)?;
    Ok(coverage)
}

/// Where the time of ranks went that meet in calls in which not all of them do.
async fn times(asking: Asking<'_>, question: &StragglersQuestion, mut rows: Rows, input: &Input) -> Vec<TimeUse> {
    if !rows.are_unscored() {
        return Vec::new();
    }
    rows.syncs(&input.syncs);
    match asking.rows_for(question, point_to_point::PROCESSES_SQL.to_owned()).await {
        Ok((processes, _)) => processes.iter().for_each(|row| rows.process(row)),
        Err(error) => tracing::debug!("ranks of processes: {error}"),
    }
    let times = rows.times();
    let Some(sql) = rows.off_cpu_sql(&times, &input.clocks) else { return times };
    match asking.rows_for(question, sql).await {
        Ok((stretches, notes)) if !notes.iter().any(|note| note.contains(model::NOT_RECORDED)) => {
            rows.off_cpu(&stretches);
            rows.times()
        }
        Ok(_) => times,
        Err(error) => {
            tracing::debug!("time off the CPU: {error}");
            times
        }
    }
}

/// The calls that ranks are in right now, of every member that answers within the deadline, and the
/// synchronise calls that they are in. A member that does not
/// answer is left out here; its rows' coverage has the reason.
pub(super) async fn open_calls(
    shared: &Shared,
    wanted: &StragglersQuestion,
    caller: &Caller,
    deadline: Instant,
) -> (Vec<InCall>, Vec<SyncCall>) {
    let members: Vec<Member> = shared
        .coordinator
        .gossip
        .members()
        .into_iter()
        .filter(Member::may_live)
        .filter(|member| ask::is_chosen(member, &wanted.nodes, &wanted.labels))
        .collect();
    futures::stream::iter(members)
        .map(|member| async move {
            let calls = if member.is_self {
                shared.recording.open_calls_of(caller.access.viewer())
            } else {
                let name = member.name.parse().ok()?;
                let request = match caller.access.viewer() {
                    Some(uid) => Request::OpenCalls.own(uid).ok()?,
                    None => Request::OpenCalls,
                };
                let mut answer = shared.mesh.ask(&name, member.address, request, deadline.into()).await.ok()?;
                match answer.next().await {
                    Ok(Some(Response::OpenCalls(calls))) => calls,
                    _ => return None,
                }
            };
            let node: Arc<str> = member.name.as_str().into();
            let matters = |call: &OpenCall| {
                (wanted.job.is_none() || wanted.job == call.job_id)
                    && (wanted.comm.is_none() || wanted.comm == call.comm_hash)
            };
            let waits: Vec<SyncCall> = calls.iter().filter_map(|call| device::open_wait(&node, call)).collect();
            let open: Vec<_> =
                calls.iter().filter(|call| matters(call)).filter_map(|call| in_call(&node, call)).collect();
            Some((open, waits))
        })
        .buffer_unordered(PEERS_AT_ONCE)
        .filter_map(|calls| async move { calls })
        .fold((vec![], vec![]), |(mut open, mut waits), (more, more_waits)| async move {
            open.extend(more);
            waits.extend(more_waits);
            (open, waits)
        })
        .await
}
