//! The stragglers question: gather the collectives of a span over the mesh, put them on this node's
//! clock, score.
//!
//! Rows come through an ordinary mesh query (so coverage is the query's), offsets through pings;
//! the analysis itself is `verdicts`, which does no IO.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use explain::{chain, page};
use futures::StreamExt;
use gossip::Member;
use model::wire::{OpenCall, Request, Response};
use model::{Coverage, StragglersQuestion};
use query::Coordinator;
use query::access::Caller;
use query::ask::{self, AskError, QueryOutcome, Question};
use query_planner::{NodeClock, Value};
use record::unix_now_ns;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use verdicts::point_to_point::{self, Rows, TimeUse};
use verdicts::{ClockOffset, Input, Names, NodeCoverage, Observation, Report, Rules, Span, SyncCall, Verdict};

use super::causes::Gathered;
use super::open_calls::observed;
use super::past_findings::{self, PastFinding};
use super::standing::{self, About, Current};
use super::{Shared, device};

/// How far back the stores are asked where the question does not say.
const SINCE_MS: u64 = 60_000;
/// The first span asked for where there is no standing verdict: short, so that what was before the
/// agents started, or another job, is soon out of it.
const RECENT_MS: u64 = 10_000;
/// Calls that one analysis takes: they are in memory, with what is made of them, about 1 KB each.
const MOST_CALLS: usize = 6_000_000;
/// Longest that the standing verdict waits for its cause: who asks wants the verdict now, and a host
/// that has just died is not yet known as silent.
const CAUSE_PATIENCE: Duration = Duration::from_millis(1_500);
/// Peers measured at once.
const PEERS_AT_ONCE: usize = 32;

/// A verdict with its coverage, as it goes to the command line.
#[derive(Debug, Serialize)]
pub struct StragglersAnswer {
    /// The analysis.
    #[serde(flatten)]
    pub report: Report,
    /// How the verdict came about, where it is the standing one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standing: Option<About>,
    /// The standing verdicts on the other jobs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_jobs: Vec<OtherJob>,
    /// The report as text for people, of long tables the worst rows.
    pub text: String,
    /// The same with all rows, where that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all: Option<String>,
    /// Findings that agents wrote in the span; empty of the standing verdict.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    findings: Vec<PastFinding>,
    /// The SQL that gives its figures again; none of the standing verdict, which is made from
    /// digests.
    pub sql: Vec<verdicts::Shown>,
    /// From question to verdict.
    pub elapsed_ms: f64,
}

/// The standing verdict on a job other than the one which is reported in full.
#[derive(Debug, Serialize)]
pub struct OtherJob {
    /// The verdict.
    pub verdict: Verdict,
    /// How it came about.
    pub standing: About,
}

/// The standing verdict where it answers the question, else that of the most recent span of the
/// stores.
async fn standing_or_recent(
    shared: &Shared,
    question: StragglersQuestion,
    caller: &Caller,
    cancelled: CancellationToken,
) -> Result<StragglersAnswer, AskError> {
    let started = Instant::now();
    let deadline = started + Duration::from_millis(question.timeout_ms);
    // The standing verdicts are of everybody's jobs.
    let takes_standing = question.takes_standing() && caller.access.viewer().is_none();
    if takes_standing {
        let mut all = shared.standing.all();
        all.retain(|current| question.job.as_ref().is_none_or(|job| current.name.is(job)));
        if !all.is_empty() {
            let first = all.remove(0);
            return Ok(from_standing(shared, first, all, started, deadline, &cancelled).await);
        }
    }
    if !takes_standing || question.job.is_some() {
        let since_ns = ago_ns(question.since_ms.unwrap_or(SINCE_MS));
        return from_stores(Asked::mesh(shared), &question, caller, since_ns, None, started, &cancelled).await;
    }
    let mut answer =
        from_stores(Asked::mesh(shared), &question, caller, ago_ns(RECENT_MS), None, started, &cancelled).await?;
    let mut asked_ms = RECENT_MS;
    if matches!(answer.report.verdict, Verdict::Unknown { .. }) {
        answer =
            from_stores(Asked::mesh(shared), &question, caller, ago_ns(SINCE_MS), None, started, &cancelled).await?;
        asked_ms = SINCE_MS;
    }
    let note = format!(
        "There is no standing verdict: no call was recorded that its communicator's start tells the number of. These are the \
         stores' last {} s; for more: --since 5m\n",
        asked_ms / 1_000
    );
    for text in std::iter::once(&mut answer.text).chain(&mut answer.all) {
        text.push_str(&note);
    }
    Ok(answer)
}

/// Whose rows are judged, and, where agents run, which agent reports what ranks do right now.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Asks the nodes.
    pub coordinator: &'a Coordinator,
    /// The agent that asks; none where the nodes are files, of hosts that nobody can ask any more.
    pub live: Option<&'a Shared>,
}

impl<'a> Asked<'a> {
    /// The mesh of an agent.
    pub(super) fn mesh(shared: &'a Shared) -> Self {
        Self { coordinator: &shared.coordinator, live: Some(shared) }
    }

    /// Stores without agents.
    pub fn files(coordinator: &'a Coordinator) -> Self {
        Self { coordinator, live: None }
    }
}

/// The verdict of a span, Unix nanoseconds of this node's clock; without a span the standing one,
/// or of files that of their most recent span.
///
/// # Errors
/// As [`ask::ask`].
pub async fn verdict(
    of: Asked<'_>,
    question: StragglersQuestion,
    span: Option<(i64, i64)>,
    caller: &Caller,
    cancelled: CancellationToken,
) -> Result<StragglersAnswer, AskError> {
    match (span, of.live) {
        (Some((since_ns, until_ns)), _) => {
            from_stores(of, &question, caller, since_ns, Some(until_ns), Instant::now(), &cancelled).await
        }
        (None, Some(shared)) => standing_or_recent(shared, question, caller, cancelled).await,
        (None, None) => {
            let started = Instant::now();
            let (since_ns, until_ns) = last_of_files(of.coordinator, &question, caller, started, &cancelled).await?;
            from_stores(of, &question, caller, since_ns, Some(until_ns), started, &cancelled).await
        }
    }
}

fn ago_ns(ms: u64) -> i64 {
    unix_now_ns() - ns(ms)
}

fn ns(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000_000)
}

/// The most recent span of files: up to their newest row, from as long before the last collective
/// as the question asks for. (An agent goes on recording its host when the job has ended.)
async fn last_of_files(
    coordinator: &Coordinator,
    question: &StragglersQuestion,
    caller: &Caller,
    started: Instant,
    cancelled: &CancellationToken,
) -> Result<(i64, i64), AskError> {
    let back_ns = ns(question.since_ms.unwrap_or(SINCE_MS));
    let deadline = started + Duration::from_millis(question.timeout_ms);
    let asked = super::causes::ask(
        coordinator,
        verdicts::last_sql(question.job.as_deref(), question.comm),
        question.nodes.clone(),
        caller,
        deadline,
        cancelled,
    );
    let last_call_ns = match asked.await {
        Ok((rows, _)) => rows.first().and_then(|row| model::cells::integer(row, 0)),
        Err(message) => return Err(AskError::Failed { message, coverage: None }),
    };
    let newest = query::files::span_ns(coordinator).map(|(_, newest_ns)| newest_ns).or(last_call_ns);
    let newest_ns = newest.unwrap_or_else(unix_now_ns);
    Ok((last_call_ns.unwrap_or(newest_ns).min(newest_ns).saturating_sub(back_ns), newest_ns.saturating_add(1)))
}

/// Asks the stores; without `until_ns` up to now, and then also for the calls that ranks are in.
async fn from_stores(
    of: Asked<'_>,
    question: &StragglersQuestion,
    caller: &Caller,
    since_ns: i64,
    until_ns: Option<i64>,
    started: Instant,
    cancelled: &CancellationToken,
) -> Result<StragglersAnswer, AskError> {
    let Asked { coordinator, live } = of;
    let deadline = started + Duration::from_millis(question.timeout_ms);
    let is_now = until_ns.is_none();
    let until_ns = until_ns.unwrap_or_else(unix_now_ns);
    let clocks = clocks(coordinator, Some((since_ns, until_ns)), deadline).await;
    let span = span_of(question, &clocks, since_ns, until_ns);
    let (mut input, _) = calls_of(coordinator, question, caller, &span, clocks, deadline, cancelled).await?;
    let live = live.filter(|_| is_now);
    let (open, waits) = match live {
        Some(shared) => open_calls(shared, question, caller, deadline).await,
        None => (Vec::new(), Vec::new()),
    };
    let (numbered, unnumbered): (Vec<_>, Vec<_>) = open.into_iter().partition(|(_, numbered)| *numbered);
    let calls = |open: Vec<(Observation, bool)>| open.into_iter().map(|(seen, _)| seen).collect::<Vec<_>>();
    let numbered = calls(numbered);
    input.open_unnumbered = calls(unnumbered);
    input.progress = verdicts::progress_of(&input.observations, &numbered, &input.syncs, &waits);
    input.syncing = waits;
    if let Some(shared) = live {
        input.doing = super::activity::of_those_who_wait(shared, &input, deadline).await;
    }
    let end_note = ended(coordinator, question, &input, live.is_some());
    let unknown = input.observations.iter().any(|seen| !input.clocks.contains_key(&*seen.node));
    // Computed while the rest is asked for.
    let analysis = tokio::task::spawn_blocking(move || verdicts::analyse_owned(input, &Rules::default()));
    let rest = async {
        let blind_spots = device::blind_spots(coordinator, question, caller, &span, cancelled).await;
        (blind_spots, findings(coordinator, question, &span, caller, deadline, cancelled).await)
    };
    let (analysed, (blind_spots, (findings, more))) = tokio::join!(analysis, rest);
    let mut report = analysed.map_err(|error| AskError::Failed { message: error.to_string(), coverage: None })?;
    report.coverage.notes.extend(blind_spots);
    report.evidence.notes.extend(end_note);
    // Of such calls only the entries count, and those of different hosts cannot be compared.
    if coordinator.way.mesh().is_none()
        && unknown
        && report.evidence.tier == 0
        && matches!(report.verdict, Verdict::None)
    {
        report.verdict = Verdict::Unknown {
            why:
                "calls may only enqueue, and what the hosts' clocks were against each other is not kept in these files"
                    .into(),
        };
    }
    let silent = BTreeSet::new();
    let (cause, gathered) =
        super::causes::with_evidence(coordinator, &report, &silent, caller, deadline, cancelled).await;
    report.cause = cause;
    if let Some(network) = super::causes::network(coordinator, &report, &silent, caller, deadline, cancelled).await {
        report.verdict = network;
    }
    let after = example(&report, gathered.as_ref()) + &past_findings::lines(&findings, more);
    let (text, all) = texts(&report, &after);
    let sql = verdicts::show_sql(&report);
    Ok(StragglersAnswer {
        report,
        standing: None,
        other_jobs: Vec::new(),
        text,
        all,
        findings,
        sql,
        elapsed_ms: started.elapsed().as_secs_f64() * 1e3,
    })
}

/// The clocks of the nodes against this one's; of files within a span.
pub(super) async fn clocks(
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
pub(super) fn span_of(
    question: &StragglersQuestion,
    clocks: &BTreeMap<String, ClockOffset>,
    since_ns: i64,
    until_ns: i64,
) -> Span {
    let slack_ns = clocks.values().map(|clock| clock.offset_ns.abs().saturating_add(clock.bound_ns)).max().unwrap_or(0);
    Span { since_ns, until_ns, slack_ns, job: question.job.clone(), comm: question.comm }
}

/// The calls of a span out of the stores, with what belongs to them: synchronise calls, and where
/// the time of ranks went that meet in calls to single ranks.
///
/// # Errors
/// As [`ask::ask`].
pub(super) async fn calls_of(
    coordinator: &Coordinator,
    question: &StragglersQuestion,
    caller: &Caller,
    span: &Span,
    clocks: BTreeMap<String, ClockOffset>,
    deadline: Instant,
    cancelled: &CancellationToken,
) -> Result<(Input, Coverage), AskError> {
    let mut calls = Calls::default();
    let asked = asked(question, verdicts::sql(span), deadline);
    let coverage = match read_calls(coordinator, asked.clone(), caller, cancelled, &mut calls, true).await {
        // A node broke off within its rows. The second attempt reads all rows before it uses any,
        // so that such a node counts as missing.
        Err(AskError::Failed { coverage: Some(_), .. }) if calls.seen > 0 => {
            calls = Calls::default();
            let asked = self::asked(question, asked.sql, deadline);
            read_calls(coordinator, asked, caller, cancelled, &mut calls, false).await?
        }
        read => read?,
    };
    let Calls { input, rows, .. } = calls;
    let mut input = Input {
        clocks,
        heard: NodeCoverage {
            asked: coverage.asked,
            answered: coverage.answered,
            missing: coverage.missing.iter().map(|gone| (gone.node.clone(), gone.reason.clone())).collect(),
            notes: coverage.notes.clone(),
        },
        since_ns: span.since_ns,
        until_ns: span.until_ns,
        ..input
    };
    if input.enqueues() {
        for row in syncs(coordinator, question, caller, span, deadline, cancelled).await {
            input.push_sync_row(&row);
        }
        input.drop_waits_of_devices();
    }
    input.times = times(coordinator, rows, question, &input, caller, deadline, cancelled).await;
    Ok((input, coverage))
}

/// Calls as their rows come.
#[derive(Default)]
struct Calls {
    input: Input,
    rows: Rows,
    names: Names,
    seen: usize,
}

impl Calls {
    fn take(&mut self, rows: &[Vec<Value>]) -> Result<(), AskError> {
        self.seen += rows.len();
        if self.seen > MOST_CALLS {
            let message = format!(
                "more than {MOST_CALLS} calls in this time: ask for a shorter one, a job or a communicator (--since, --job, --comm)"
            );
            return Err(AskError::Failed { message, coverage: None });
        }
        for row in rows {
            if self.rows.call(row) {
                let pushed = self.input.push_row(row, &mut self.names);
                pushed.map_err(|error| AskError::Failed { message: error.to_string(), coverage: None })?;
            }
        }
        Ok(())
    }
}

/// Asks for calls and takes them in, with `as_they_come` while nodes still send.
async fn read_calls(
    coordinator: &Coordinator,
    asked: Question,
    caller: &Caller,
    cancelled: &CancellationToken,
    calls: &mut Calls,
    as_they_come: bool,
) -> Result<Coverage, AskError> {
    let outcome = if as_they_come {
        ask::ask_each(coordinator, asked, caller, cancelled.clone(), |chunk| calls.take(&chunk.rows)).await?
    } else {
        ask::ask_as(coordinator, asked, caller, cancelled.clone()).await?
    };
    let QueryOutcome::Answer { answer, coverage, .. } = outcome else {
        return Err(AskError::Failed { message: "the planner gave no answer".into(), coverage: None });
    };
    calls.take(&answer.rows)?;
    Ok(coverage)
}

/// A question of a verdict to the nodes that it is about, with the time that is left.
fn asked(of: &StragglersQuestion, sql: String, deadline: Instant) -> Question {
    let left = deadline.saturating_duration_since(Instant::now());
    Question {
        sql,
        timeout_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        nodes: of.nodes.clone(),
        labels: of.labels.clone(),
        per_node: false,
        plan_only: false,
        analyze: false,
    }
}

/// The findings of a span, and whether there are more than are listed. If they cannot be read the
/// verdict stands without them.
async fn findings(
    coordinator: &Coordinator,
    question: &StragglersQuestion,
    span: &Span,
    caller: &Caller,
    deadline: Instant,
    cancelled: &CancellationToken,
) -> (Vec<PastFinding>, bool) {
    let sql = past_findings::sql(span);
    match super::causes::ask(coordinator, sql, question.nodes.clone(), caller, deadline, cancelled).await {
        Ok((rows, _)) => past_findings::read(&rows),
        Err(error) => {
            tracing::debug!("findings of the span: {error}");
            (Vec::new(), false)
        }
    }
}

/// A note on a job whose calls stop before the end of the span: that it has ended, where agents run
/// (`live`) and none of them has a rank any more.
fn ended(coordinator: &Coordinator, question: &StragglersQuestion, input: &Input, live: bool) -> Option<String> {
    let members = coordinator.gossip.members();
    let mut asked = members.iter().filter(|member| ask::is_chosen(member, &question.nodes, &question.labels));
    let ended = live && asked.all(|member| member.may_live() && member.facts.ranks.is_empty());
    verdicts::end_note(input, ended)
}

/// The report as text with what follows it, and where that differs, the same with all rows of its
/// tables.
fn texts(report: &Report, after: &str) -> (String, Option<String>) {
    let (text, all) = (verdicts::text(report), verdicts::text_of_all(report));
    let all = (all != text).then(|| all + after);
    (text + after, all)
}

/// The worst step as an example.
fn example(report: &Report, gathered: Option<&Gathered>) -> String {
    let mut text = String::new();
    if let (Verdict::Rank { culprit, .. }, Some(cause), Some(gathered)) = (&report.verdict, &report.cause, gathered) {
        let worst = gathered.worst(report, cause).into_iter().next();
        let example = worst.map(|late| chain::example(late, culprit.rank, &culprit.node, &[], report.evidence.tier));
        if let Some(example) = example.as_ref().and_then(page::short) {
            let _ = writeln!(text, "{example}");
        }
        let _ = writeln!(text, "More, and what to do: rankmesh explain");
    }
    text
}

/// Where the time of ranks went that meet in calls in which not all of them do.
async fn times(
    coordinator: &Coordinator,
    mut rows: Rows,
    question: &StragglersQuestion,
    input: &Input,
    caller: &Caller,
    deadline: Instant,
    cancelled: &CancellationToken,
) -> Vec<TimeUse> {
    if !rows.are_unscored() {
        return Vec::new();
    }
    let ask = |sql: String| super::causes::ask(coordinator, sql, question.nodes.clone(), caller, deadline, cancelled);
    match ask(point_to_point::PROCESSES_SQL.to_owned()).await {
        Ok((processes, _)) => processes.iter().for_each(|row| rows.process(row)),
        Err(error) => tracing::debug!("ranks of processes: {error}"),
    }
    let times = rows.times();
    let Some(sql) = rows.off_cpu_sql(&times, &input.clocks) else { return times };
    match ask(sql).await {
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

/// The standing verdicts: the first in full, with the cause of the named rank's lateness, and a
/// summary of the other jobs.
async fn from_standing(
    shared: &Shared,
    mut current: Current,
    others: Vec<Current>,
    started: Instant,
    deadline: Instant,
    cancelled: &CancellationToken,
) -> StragglersAnswer {
    let brief = standing::with_full_report(shared, &mut current, deadline).await.err();
    let mut report = Report::clone(&current.standing.report);
    let silent = shared.standing.silent_judges(current.job);
    let deadline = deadline.min(Instant::now() + CAUSE_PATIENCE);
    let (coordinator, caller) = (&shared.coordinator, Caller::agent());
    let (cause, gathered) =
        super::causes::with_evidence(coordinator, &report, &silent, &caller, deadline, cancelled).await;
    report.cause = cause;
    if let Some(network) = super::causes::network(coordinator, &report, &silent, &caller, deadline, cancelled).await {
        report.verdict = network;
    }
    let about = current.about();
    report.coverage.notes.extend(silent.iter().map(|judge| format!("{judge}, a judge of the job, does not answer")));
    let mut after = example(&report, gathered.as_ref());
    let by = match about.judge.as_deref() {
        Some(judge) => format!("by {judge}, a judge of the job"),
        None => "kept by every agent alike".to_owned(),
    };
    let _ = writeln!(
        after,
        "Standing verdict, {:.1} s old, {by}; times on {}'s clock. For more, ask the stores: --since 60s",
        about.age_ms as f64 / 1e3,
        about.reference.as_deref().unwrap_or("each host"),
    );
    if let Some(why) = brief {
        let judge = about.judge.as_deref().unwrap_or("the judge");
        let _ = writeln!(
            after,
            "{judge} did not give its whole report ({why}): this is what it told everybody, without the tables"
        );
    }
    differing(&mut after, &about);
    let mut other_jobs = Vec::new();
    for other in others {
        let (report, about) = (&other.standing.report, other.about());
        let sentence = if other.is_well() { explain::watched::sentence(report) } else { verdicts::text(report) };
        let _ = writeln!(after, "\n{}:\n{}", other.name, sentence.trim_end());
        differing(&mut after, &about);
        other_jobs.push(OtherJob { verdict: report.verdict.clone(), standing: about });
    }
    let (mut text, mut all) = texts(&report, &after);
    if !other_jobs.is_empty() {
        for text in std::iter::once(&mut text).chain(&mut all) {
            text.insert_str(0, &format!("{}:\n", current.name));
        }
    }
    StragglersAnswer {
        report,
        standing: Some(about),
        other_jobs,
        text,
        all,
        findings: Vec::new(),
        sql: Vec::new(),
        elapsed_ms: started.elapsed().as_secs_f64() * 1e3,
    }
}

/// Adds a line where judges differ.
fn differing(text: &mut String, about: &About) {
    if about.differ {
        let verdicts: Vec<String> =
            about.judges.iter().map(|about| format!("{} says {}", about.judge, about.verdict)).collect();
        let _ = writeln!(text, "The job's judges differ about the same window: {}", verdicts.join(", "));
    }
}

/// The synchronise calls in which hosts waited for what their collectives enqueued. If they cannot
/// be read, the verdict rests on entries, which it notes.
async fn syncs(
    coordinator: &Coordinator,
    question: &StragglersQuestion,
    caller: &Caller,
    span: &Span,
    deadline: Instant,
    cancelled: &CancellationToken,
) -> Vec<Vec<Value>> {
    let asked = asked(question, verdicts::syncs_sql(span), deadline);
    match ask::ask_as(coordinator, asked, caller, cancelled.clone()).await {
        Ok(QueryOutcome::Answer { answer, .. }) => answer.rows,
        Ok(_) => Vec::new(),
        Err(error) => {
            tracing::debug!("synchronise calls: {error}");
            Vec::new()
        }
    }
}

/// The calls that ranks are in right now, of every member that answers within the deadline, and
/// whether they have a number; and the synchronise calls that they are in. A member that does not
/// answer is left out here; its rows' coverage has the reason.
async fn open_calls(
    shared: &Shared,
    wanted: &StragglersQuestion,
    caller: &Caller,
    deadline: Instant,
) -> (Vec<(Observation, bool)>, Vec<SyncCall>) {
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
            let open: Vec<_> = calls.into_iter().filter(matters).filter_map(|call| open(&node, call)).collect();
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

/// An open call, and whether it has a number.
fn open(node: &Arc<str>, call: OpenCall) -> Option<(Observation, bool)> {
    let numbered = call.seq.is_some();
    Some((observed(node, OpenCall { seq: call.seq.or(Some(0)), ..call })?, numbered))
}
