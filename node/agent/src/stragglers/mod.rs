//! The stragglers question: the standing verdict where it answers it, else one from the calls of a
//! span, gathered over the mesh (`calls`; `hangs`: what is asked where ranks wait for long) and put
//! on this node's clock.
//!
//! The analysis itself is `verdicts`, which does no IO.

mod calls;
mod hangs;
mod slices;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) use calls::{MOST_CALLS, calls_of, clocks, span_of};
use explain::{chain, page};
use model::cells::{integer, text};
use model::{AskedSpan, StragglersQuestion};
use query::Coordinator;
use query::access::Caller;
use query::ask::AskError;
use record::unix_now_ns;
use serde::Serialize;
pub(super) use slices::missed;
use tokio_util::sync::CancellationToken;
use verdicts::{Input, Process, RankWindows, Report, Rules, Span, Verdict};

use super::asking::Asking;
use super::causes::{self, Gathered};
use super::past_findings::{self, PastFinding};
use super::standing::{self, About, Current};
use super::{Shared, device};

/// How far back the stores are asked where the question does not say.
const SINCE_MS: u64 = 60_000;
/// The first span asked for where there is no standing verdict: short, so that what was before the
/// agents started, or another job, is soon out of it.
const RECENT_MS: u64 = 10_000;
/// Longest that the standing verdict waits for its cause: who asks wants the verdict now, and a
/// host that has just died is not yet known as silent.
const CAUSE_PATIENCE: Duration = Duration::from_millis(1_500);
/// Longest that clocks are asked for where nobody waits for the answer: one member that does not
/// answer must not take the time of the question.
const CLOCK_PATIENCE: Duration = Duration::from_secs(1);
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
    /// What the verdict rests on and what was not visible, as text.
    pub evidence_text: String,
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
        standing::hear(shared).await;
        let mut all = shared.standing.all();
        all.retain(|current| question.job.as_ref().is_none_or(|job| current.name.is(job)));
        if !all.is_empty() {
            let first = all.remove(0);
            return Ok(from_standing(shared, first, all, started, deadline, &cancelled).await);
        }
    }
    if !takes_standing || question.job.is_some() {
        let since_ns = match question.span {
            // The clock of who asks may be ahead.
            AskedSpan::Since { ns } => ns.min(unix_now_ns()),
            AskedSpan::Last { ms } => ago_ns(ms),
            AskedSpan::Now | AskedSpan::Between { .. } => ago_ns(SINCE_MS),
        };
        return from_stores(Asked::mesh(shared), &question, caller, since_ns, None, started, &cancelled).await;
    }
    let mut asked_ms = RECENT_MS;
    let mut answer =
        from_stores(Asked::mesh(shared), &question, caller, ago_ns(asked_ms), None, started, &cancelled).await?;
    if matches!(answer.report.verdict, Verdict::Unknown { .. }) {
        answer =
            from_stores(Asked::mesh(shared), &question, caller, ago_ns(SINCE_MS), None, started, &cancelled).await?;
        asked_ms = SINCE_MS;
    }
    let note = format!(
        "There is no standing verdict: no call was recorded that its communicator's start tells the number of, or a \
         job recorded in slices (up --budget) was not judged yet. These are the stores' last {} s; for more: --since 5m\n",
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

/// The verdict of the span that is asked for.
///
/// # Errors
/// As [`query::ask::ask`].
pub async fn verdict(
    of: Asked<'_>,
    question: StragglersQuestion,
    caller: &Caller,
    cancelled: CancellationToken,
) -> Result<StragglersAnswer, AskError> {
    if let AskedSpan::Between { since_ns, until_ns } = question.span {
        return from_stores(of, &question, caller, since_ns, Some(until_ns), Instant::now(), &cancelled).await;
    }
    if let Some(shared) = of.live {
        return standing_or_recent(shared, question, caller, cancelled).await;
    }
    let started = Instant::now();
    let (since_ns, until_ns) = last_of_files(of.coordinator, &question, caller, started, &cancelled).await?;
    from_stores(of, &question, caller, since_ns, Some(until_ns), started, &cancelled).await
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
    let newest = query::files::span_ns(coordinator).map(|(_, newest_ns)| newest_ns);
    if let (AskedSpan::Since { ns }, Some(newest_ns)) = (question.span, newest) {
        return Ok((ns, newest_ns.saturating_add(1)));
    }
    let deadline = started + Duration::from_millis(question.timeout_ms);
    let asking = Asking { coordinator, caller, deadline, cancelled };
    let sql = verdicts::last_sql(question.job.as_deref(), question.comm);
    let last_call_ns = match asking.rows_for(question, sql).await {
        Ok((rows, _)) => rows.first().and_then(|row| model::cells::integer(row, 0)),
        Err(failure) => return Err(AskError::failed(failure)),
    };
    let newest_ns = newest.or(last_call_ns).unwrap_or_else(unix_now_ns);
    let before_ns = |ms| last_call_ns.unwrap_or(newest_ns).min(newest_ns).saturating_sub(ns(ms));
    let since_ns = match question.span {
        AskedSpan::Since { ns } => ns,
        AskedSpan::Last { ms } => before_ns(ms),
        AskedSpan::Now | AskedSpan::Between { .. } => before_ns(SINCE_MS),
    };
    Ok((since_ns, newest_ns.saturating_add(1)))
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
    let deadline = started + Duration::from_millis(question.timeout_ms);
    let asking = Asking { coordinator: of.coordinator, caller, deadline, cancelled };
    let judged = judged(asking, of.live, question, (since_ns, until_ns), None).await?;
    let Judged { mut report, span, live, .. } = judged;
    let silent = BTreeSet::new();
    let (gathered, (findings, more)) =
        tokio::join!(add_causes(asking, &mut report, &silent), findings(asking, question, &span));
    hangs::add_witnesses(asking, live, &mut report).await;
    let after = example(&report, gathered.as_ref()) + &past_findings::lines(&findings, more);
    let (text, all) = texts(&report, &after);
    let sql = verdicts::show_sql(&report);
    Ok(StragglersAnswer {
        evidence_text: verdicts::evidence(&report),
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

/// Which calls of a span are judged, where not all are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Only {
    /// Those of this job.
    pub(super) job: u64,
    /// As many at most, the last ones.
    pub(super) calls: i64,
    /// Of a span without missed calls, the last so much, nanoseconds.
    pub(super) span_ns: i64,
}

/// What the stores say of a span.
pub(super) struct Judged<'a> {
    /// The verdict, without causes.
    pub(super) report: Report,
    /// What was judged of the span that was asked for.
    pub(super) span: Span,
    /// When the slice began in which these calls were recorded.
    pub(super) began_ns: i64,
    /// Processes that have ended.
    pub(super) ended: BTreeSet<Process>,
    /// The agent, where the span reaches to now.
    live: Option<&'a Shared>,
    /// What each rank did, window by window; none unless [`Only`] some calls were judged.
    pub(super) windows: Option<RankWindows>,
}

/// Judges the calls in the stores of a span, Unix nanoseconds of this node's clock; to now without
/// an end, and then with the calls that ranks are in.
///
/// # Errors
/// As [`query::ask::ask`].
pub(super) async fn judged<'a>(
    asking: Asking<'_>,
    live: Option<&'a Shared>,
    question: &StragglersQuestion,
    (since_ns, until_ns): (i64, Option<i64>),
    only: Option<Only>,
) -> Result<Judged<'a>, AskError> {
    let Asking { coordinator, caller, deadline, .. } = asking;
    let to_now = until_ns.is_none();
    let until_ns = until_ns.unwrap_or_else(unix_now_ns);
    let clocks_by = only.map_or(deadline, |_| deadline.min(Instant::now() + CLOCK_PATIENCE));
    let (clocks, known) = tokio::join!(
        calls::clocks(coordinator, Some((since_ns, until_ns)), clocks_by),
        hangs::known(asking, question, only.map(|only| only.job))
    );
    // What nobody asked for, and what is found by it is told everybody: not of a part of the hosts.
    let whole = |complete: bool| match complete || only.is_none() {
        true => Ok(()),
        false => Err(AskError::failed("a host of the job did not answer in time")),
    };
    whole(known.complete)?;
    let span = calls::span_of(question, &clocks, since_ns, until_ns);
    let (mut slices, complete) = slices::within(asking, question, &span, &clocks).await;
    whole(complete)?;
    let mut span = match slices {
        Some(of) => calls::span_of(question, &clocks, of.since_ns, of.until_ns),
        None => span,
    };
    if let (Some(only), None) = (only, slices) {
        span.since_ns = span.since_ns.max(span.until_ns.saturating_sub(only.span_ns));
    }
    let began_ns = span.since_ns;
    if let Some(only) = only {
        span.since_ns = slices::since_for(asking, question, &span, only.calls).await;
        slices = slices.map(|of| of.from(span.since_ns));
    }
    let most = only.map_or(MOST_CALLS, |only| usize::try_from(only.calls.saturating_mul(2)).unwrap_or(MOST_CALLS));
    let (mut input, _) = calls::calls_of(asking, question, &span, clocks, most).await?;
    let keep_job = |input: &mut Input| {
        if only.is_some() {
            input.keep(|node, pid| known.processes.contains(&(Arc::clone(node), pid)));
        }
    };
    keep_job(&mut input);
    // A job of which nobody calls while another one of its hosts spends their budget: what its ranks
    // have been in since before the slice.
    let stands_still = only.is_some() && to_now && input.observations.is_empty() && input.unnumbered.is_empty();
    if stands_still {
        (span.until_ns, input.until_ns) = (until_ns, until_ns);
    }
    let live = live.filter(|_| to_now && span.until_ns == until_ns);
    let (open, waits) = match live {
        Some(shared) => calls::open_calls(shared, question, caller, deadline).await,
        None => (Vec::new(), Vec::new()),
    };
    (input.in_calls, input.syncing) = (open, waits);
    keep_job(&mut input);
    let (mut missed_until, complete) = slices::missed_until(asking, question, span.until_ns).await;
    whole(complete)?;
    if stands_still {
        missed_until.values_mut().for_each(|until_ns| *until_ns = began_ns.min(*until_ns));
    }
    let untold = match live {
        Some(shared) => {
            slices::add_missed_calls(asking, shared, question, &missed_until, &known.processes, &mut input).await
        }
        None => None,
    };
    let counted_from_ns = missed_until.values().copied().max();
    hangs::add_progress(asking, question, &span, counted_from_ns, known.ranks, &mut input).await;
    if let Some(shared) = live {
        input.doing = super::activity::of_those_who_wait(shared, &input, deadline).await;
    }
    let processes = last_calls(&input);
    let unknown = input.observations.iter().any(|seen| !input.clocks.contains_key(&*seen.node));
    // Computed while the rest is asked for.
    let measures = only.is_some();
    let analysis = tokio::task::spawn_blocking(move || {
        let windows = measures.then(|| verdicts::rank_windows(input.clone(), digest::WINDOW_NS));
        (verdicts::analyse_owned(input, &Rules::default()), windows)
    });
    let rest = async {
        let blind_spots = device::blind_spots(asking, question, &span).await;
        (blind_spots, ended(asking, question, &span, &processes).await)
    };
    let (analysed, (blind_spots, ended)) = tokio::join!(analysis, rest);
    let (mut report, windows) = analysed.map_err(|error| AskError::failed(error.to_string()))?;
    report.coverage.notes.extend(slices.map(|of| of.note()).into_iter().chain(untold));
    report.coverage.notes.extend(blind_spots);
    report.set_ended(&ended, !processes.is_empty() && ended.len() == processes.len());
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
    Ok(Judged { report, span, began_ns, ended, live, windows })
}

/// Adds the cause of the named rank's lateness, and where the network is to blame that verdict;
/// returns what the cause was made of.
async fn add_causes(asking: Asking<'_>, report: &mut Report, silent: &BTreeSet<String>) -> Option<Gathered> {
    let (cause, gathered) = causes::with_evidence(asking, report, silent).await;
    report.cause = cause;
    if let Some(network) = causes::network(asking, report, silent).await {
        report.verdict = network;
    }
    gathered
}

/// The findings of a span, and whether there are more than are listed. If they cannot be read the
/// verdict stands without them.
async fn findings(asking: Asking<'_>, question: &StragglersQuestion, span: &Span) -> (Vec<PastFinding>, bool) {
    match asking.rows_for(question, past_findings::sql(span)).await {
        Ok((rows, _)) => past_findings::read(&rows),
        Err(error) => {
            tracing::debug!("findings of the span: {error}");
            (Vec::new(), false)
        }
    }
}

/// When each process entered its last call, Unix nanoseconds of its node's own clock.
fn last_calls(input: &Input) -> BTreeMap<Process, i64> {
    let mut last: BTreeMap<Process, i64> = BTreeMap::new();
    for seen in input.observations.iter().chain(&input.unnumbered) {
        let at = last.entry((Arc::clone(&seen.node), seen.pid)).or_insert(seen.entry_ns);
        *at = seen.entry_ns.max(*at);
    }
    last
}

/// Those processes that had ended by the end of the span, after their last calls.
async fn ended(
    asking: Asking<'_>,
    question: &StragglersQuestion,
    span: &Span,
    processes: &BTreeMap<Process, i64>,
) -> BTreeSet<Process> {
    let pids: BTreeSet<i64> = processes.keys().map(|(_, pid)| *pid).collect();
    if pids.is_empty() {
        return BTreeSet::new();
    }
    let pids: Vec<String> = pids.iter().map(i64::to_string).collect();
    let sql = format!(
        "SELECT node, pid, max(ts_ns) FROM process_events WHERE event IN ('exit', 'oom_killed') AND pid IN ({}) \
         AND ts_ns >= {} AND ts_ns < {} GROUP BY node, pid",
        pids.join(", "),
        span.since_ns.saturating_sub(span.slack_ns),
        span.until_ns.saturating_add(span.slack_ns)
    );
    // A store of another version has no such table: then nobody is known to have ended.
    let Ok((rows, _)) = asking.rows_for(question, sql).await else { return BTreeSet::new() };
    let ends = rows.iter().filter_map(|row| {
        let process: Process = (text(row, 0).into(), integer(row, 1)?);
        let entered_ns = processes.get(&process)?;
        (integer(row, 2)? >= *entered_ns).then_some(process)
    });
    ends.collect()
}

/// The report as text with what follows it, and where that differs, the same with all rows of its
/// tables.
fn texts(report: &Report, after: &str) -> (String, Option<String>) {
    let after = record::wrapped(after);
    let (text, all) = (verdicts::text(report), verdicts::text_of_all(report));
    let all = (all != text).then(|| all + &after);
    (text + &after, all)
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
    report.coverage.notes.extend(query::ask::doubles(&shared.coordinator.gossip.members()));
    let silent = shared.standing.silent_judges(current.job);
    let asking = Asking { coordinator: &shared.coordinator, caller: &Caller::agent(), deadline, cancelled };
    let gathered = add_causes(asking.within(CAUSE_PATIENCE), &mut report, &silent).await;
    hangs::add_witnesses(asking.within(CAUSE_PATIENCE), Some(shared), &mut report).await;
    let about = current.about();
    // (One that has just died is in the verdict of a window whose calls it had told of.)
    let until = |judge: &str| match report.coverage.is_missing(judge) {
        true => "",
        false => " any more; what it said up to the verdict's window is in",
    };
    let notes: Vec<String> =
        silent.iter().map(|judge| format!("{judge}, a judge of the job, does not answer{}", until(judge))).collect();
    report.coverage.notes.extend(notes);
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
    let (ended, running): (Vec<Current>, Vec<Current>) =
        others.into_iter().partition(|other| ::standing::has_ended(&other.standing.report.verdict));
    if !ended.is_empty() {
        let names: Vec<String> = ended.iter().map(|other| other.name.to_string()).collect();
        let _ = writeln!(after, "\nEnded: {}.", names.join(", "));
        other_jobs.extend(
            ended
                .iter()
                .map(|other| OtherJob { verdict: other.standing.report.verdict.clone(), standing: other.about() }),
        );
    }
    for other in running {
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
        evidence_text: verdicts::evidence(&report),
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
