//! `rankmesh explain`: a verdict with the chain of events behind it.
//!
//! Owns what is asked for an explanation and when: the verdict (`stragglers`), what both hosts
//! recorded of the culprit and one peer (`causes`), who waited in the worst steps, what changed on
//! the host (`around`), and where the two are now (`stacks`). A finding on requests is `tail`'s.
//! `explain::chain` makes a chain of that, `explain::page` its text.

mod around;
mod others;
mod tail;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ::causes::Cause;
use explain::chain;
use futures::future::join_all;
use model::explanation::{Cost, EXPLANATION_VERSION, Explanation, Place, Since};
use model::{AskedSpan, Coverage, ExplainQuestion, ExplainWhat, Failure, Missing, StragglersQuestion};
use query::access::{Access, Caller};
use query::ask::AskError;
use query_planner::Value;
use tokio_util::sync::CancellationToken;
use verdicts::Kind;
use verdicts::{Culprit, Report, Role, Verdict};

use super::asking::Asking;
use super::causes::{self, Gathered};
use super::stragglers::{self, Asked, StragglersAnswer};

/// The part of a question's time in which the verdict has to be ready.
const FOR_VERDICT: f64 = 0.6;
/// Time before and after a step in which its collective is looked for.
const MARGIN_NS: i64 = 1_000_000_000;
/// Samples of the culprit and its peer, and the time between two.
const SAMPLES: u32 = 20;
const EVERY_MS: u32 = 50;

/// Explains.
///
/// # Errors
/// As [`stragglers::verdict`]; there is no such finding.
pub async fn answer(
    of: Asked<'_>,
    question: ExplainQuestion,
    caller: &Caller,
    cancelled: CancellationToken,
) -> Result<Explanation, AskError> {
    let deadline = Instant::now() + Duration::from_millis(question.timeout_ms);
    let analysis = caller.for_analysis();
    let requester = Requester { of, caller, analysis: &analysis, deadline, cancelled: &cancelled };
    let span = match question.what {
        ExplainWhat::Of(span) => span,
        ExplainWhat::Finding { ts_ns } => match about(&requester, ts_ns).await? {
            About::Span(since_ns, until_ns) => AskedSpan::Between { since_ns, until_ns },
            About::Tail(finding) => return Ok(finding.explained(&requester).await),
        },
    };
    let may_go_on = !matches!(span, AskedSpan::Between { .. });
    let asked = StragglersQuestion {
        span,
        job: question.job,
        comm: question.comm,
        timeout_ms: (question.timeout_ms as f64 * FOR_VERDICT) as u64,
        nodes: question.nodes,
        labels: question.labels,
    };
    let verdict = stragglers::verdict(of, asked, &analysis, cancelled.clone()).await?;
    Ok(of_verdict(&requester, verdict, may_go_on && of.live.is_some()).await)
}

/// What a finding is about.
enum About {
    /// The ranks of this time, up to then.
    Span(i64, i64),
    /// The requests of a service.
    Tail(tail::Finding),
}

async fn about(requester: &Requester<'_>, ts_ns: i64) -> Result<About, AskError> {
    let sql = format!("SELECT {} FROM findings WHERE ts_ns = {ts_ns} LIMIT 1", tail::COLUMNS);
    let rows = requester.shown(sql, "").await.map_err(AskError::failed)?;
    if let Some(finding) = rows.first().and_then(|row| tail::Finding::of(row)) {
        return Ok(About::Tail(finding));
    }
    match rows.first().map(Vec::as_slice) {
        Some([_, Value::Integer(since_ns), Value::Integer(until_ns), ..]) if since_ns < until_ns => {
            // The end of it: what a verdict is made of.
            Ok(About::Span(*since_ns.max(&until_ns.saturating_sub(60_000_000_000)), *until_ns))
        }
        _ => Err(AskError::wrong(format!(
            "there is no finding {ts_ns}; rankmesh query \"SELECT ts_ns, verdict, rank FROM findings\" lists them"
        ))),
    }
}

/// Asks for what one explanation needs.
struct Requester<'a> {
    of: Asked<'a>,
    /// The caller, for rows that are shown as they are.
    caller: &'a Caller,
    /// The same, for rows that only go into the analysis.
    analysis: &'a Caller,
    deadline: Instant,
    cancelled: &'a CancellationToken,
}

impl<'a> Requester<'a> {
    fn asking(&self, caller: &'a Caller) -> Asking<'a> {
        Asking { coordinator: self.of.coordinator, caller, deadline: self.deadline, cancelled: self.cancelled }
    }

    /// Rows that are shown as they are, asked for with the requester's own rights.
    async fn shown(&self, sql: String, node: &str) -> Result<Vec<Vec<Value>>, Failure> {
        let nodes = if node.is_empty() { Vec::new() } else { vec![node.to_owned()] };
        self.asking(self.caller).rows(sql, &nodes).await.map(|(rows, _)| rows)
    }

    async fn analysed(&self, sql: String) -> Result<Vec<Vec<Value>>, Failure> {
        self.asking(self.analysis).rows(sql, &[]).await.map(|(rows, _)| rows)
    }
}

/// The statement of a report, without its evidence.
fn started(verdict: &StragglersAnswer) -> Explanation {
    let report = &verdict.report;
    let what = verdict.text.lines().take_while(|line| !line.trim().is_empty());
    let missing = report.coverage.missing.iter();
    let sql = verdict.sql.iter().map(|shown| (shown.title.clone(), shown.sql.clone()));
    Explanation {
        version: EXPLANATION_VERSION,
        what: what.map(str::trim).collect::<Vec<_>>().join("\n"),
        clock_of: verdict.standing.as_ref().and_then(|about| about.reference.clone()),
        clock_bound_ns: report.evidence.clock_bound_ns,
        not_visible: report.evidence.not_visible.clone(),
        sql: sql.collect(),
        coverage: Coverage {
            asked: report.coverage.asked,
            answered: report.coverage.answered,
            missing: missing.map(|(node, why)| Missing { node: node.clone(), reason: why.clone() }).collect(),
            notes: report.coverage.notes.clone(),
        },
        ..Explanation::default()
    }
}

async fn of_verdict(requester: &Requester<'_>, verdict: StragglersAnswer, is_now: bool) -> Explanation {
    let mut found = started(&verdict);
    if requester.of.live.is_none() {
        found.not_visible.push("what its ranks do now: stores were asked, no agent".to_owned());
        let base = verdict.report.evidence.clocks.iter().find(|(_, clock)| clock.offset_ns == 0 && clock.bound_ns == 0);
        found.clock_of = base.filter(|_| verdict.report.evidence.clocks.len() > 1).map(|(node, _)| node.clone());
    }
    let report = &verdict.report;
    match &report.verdict {
        Verdict::Rank { culprit, .. } => of_rank(requester, report, culprit, is_now, &mut found).await,
        Verdict::Hang(hang) => others::hang(requester, hang, is_now, &mut found).await,
        Verdict::Network(network) => others::network(network, &mut found),
        Verdict::StageImbalance { stages, .. } => others::stages(stages, &mut found),
        Verdict::DataImbalance { .. } => others::simple("data_imbalance", "data_imbalance", &mut found),
        Verdict::WorkImbalance { .. } => others::simple("work_imbalance", "work_imbalance", &mut found),
        Verdict::None => others::simple("none", "whole_job", &mut found),
        Verdict::Unknown { .. } => others::simple("unknown", "", &mut found),
    }
    found.not_visible.sort();
    found.not_visible.dedup();
    found
}

async fn of_rank(requester: &Requester<'_>, report: &Report, culprit: &Culprit, is_now: bool, found: &mut Explanation) {
    found.verdict = "rank".to_owned();
    found.cost = Some(cost(report, culprit));
    found.since = Some(Since {
        since_ns: culprit.since_ns,
        until_ns: culprit.until_ns,
        from_start: culprit.since_start,
        ongoing: culprit.ongoing && is_now,
        last_in: culprit.last_in,
        collectives: culprit.collectives,
    });
    found.place = Some(Place { rank: culprit.rank, node: culprit.node.clone(), pid: culprit.pid, ..Place::default() });
    let (gathered, line) = futures::future::join(
        causes::gathered(requester.asking(requester.analysis), report, &BTreeSet::new()),
        others::line(requester, report, culprit, is_now && culprit.ongoing),
    )
    .await;
    let cause = report.cause.clone().or_else(|| gathered.as_ref().map(Gathered::cause));
    if let Some(cause) = &cause {
        found.cause = Some(cause.summary.clone());
        found.kinds = cause.named.iter().map(|kind| kind.name().to_owned()).collect();
        found.ruled_out = ruled_out(cause);
        found.not_visible.extend(cause.not_visible.iter().cloned());
        found.values = values(cause, culprit);
    }
    match line {
        Ok(lines) => {
            let line = lines.text(cause.as_ref().map_or(&[], |cause| &cause.named));
            found.place.iter_mut().for_each(|place| place.line.clone_from(&line));
        }
        Err(why) => found.not_visible.push(format!("where it is in its code: {why}")),
    }
    found.runbook = Some(found.kinds.first().cloned().unwrap_or_else(|| "unattributed".to_owned()));
    found.sql.extend(gathered.iter().flat_map(|gathered| gathered.sql().iter().cloned()));
    if let (Some(cause), Some(gathered)) = (&cause, &gathered) {
        examples(requester, report, culprit, cause, gathered, found).await;
    }
    around::place_and_changes(requester, report, culprit, found).await;
}

fn cost(report: &Report, culprit: &Culprit) -> Cost {
    let comm = report.per_comm.iter().find(|comm| comm.comm_hash == culprit.comm_hash);
    let ranks = comm.into_iter().flat_map(|comm| &comm.ranks).filter(|rank| rank.role != Role::Culprit);
    Cost {
        nodes: ranks.map(|rank| rank.node.clone()).collect(),
        gpu_seconds: report.cost.gpu_seconds_wasted,
        gpus_lost: report.cost.gpus_lost,
        gpu_seconds_per_step: report.cost.per_step.map(|step| step.gpu_seconds_wasted),
        upper_bound: report.cost.upper_bound,
        waiting: report.cost.charged.unwrap_or_else(|| comm.map_or(0, |comm| comm.heard.saturating_sub(1))),
    }
}

/// Differences that were seen but are too small, or as large at the peer.
fn ruled_out(cause: &Cause) -> Vec<String> {
    let seen = cause.parts.iter().filter(|part| !part.named).map(|part| {
        format!(
            "{}: {} in its late intervals, {} of its peer",
            part.kind.name(),
            record::units::duration(part.culprit_ns),
            record::units::duration(part.peer_ns)
        )
    });
    let named: Vec<&str> = cause.named.iter().map(|kind| chain::table(*kind)).collect();
    let looked = cause.looked_at.iter().filter(|topic| {
        let of_named = [
            ("offcpu", "off the CPU"),
            ("block_io", "block"),
            ("memory_events", "faults"),
            ("gpu_samples", "GPU"),
            ("cuda_calls", "CUDA"),
        ];
        !topic.starts_with("communication")
            && !of_named.iter().any(|(table, word)| named.contains(table) && topic.contains(word))
    });
    seen.chain(looked.map(|topic| format!("{topic}: looked at, does not explain it"))).collect()
}

/// Values for a runbook's commands.
fn values(cause: &Cause, culprit: &Culprit) -> Vec<(String, String)> {
    let mut values = BTreeMap::from([
        ("PID", culprit.pid.to_string()),
        ("RANK", culprit.rank.to_string()),
        ("NODE", culprit.node.clone()),
    ]);
    for part in cause.parts.iter().filter(|part| part.named) {
        let Some(name) = part.what.first().map(|what| what.name.as_str()) else { continue };
        let word = name.split_whitespace().next().unwrap_or_default().to_owned();
        let pid = name.rsplit_once("(pid ").and_then(|(_, rest)| rest.strip_suffix(')')).map(str::to_owned);
        match part.kind {
            Kind::CpuStolen => values.extend(pid.map(|pid| ("OTHER", pid))),
            Kind::BlockIo if name.ends_with(')') => values.extend([("DEVICE", word)]),
            Kind::GpuThrottled => {
                values.extend(
                    name.strip_prefix("GPU ").and_then(|gpu| gpu.split(' ').next()).map(|gpu| ("GPU", gpu.to_owned())),
                );
            }
            _ => {}
        }
    }
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The worst steps, and who waited in them.
async fn examples(
    requester: &Requester<'_>,
    report: &Report,
    culprit: &Culprit,
    cause: &Cause,
    gathered: &Gathered,
    found: &mut Explanation,
) {
    let late = gathered.worst(report, cause);
    let hash = u64::from_str_radix(&culprit.comm_hash, 16).unwrap_or(0).cast_signed();
    let sql = |late: &chain::Late| {
        let into = late.into.as_ref()?;
        let from_ns = late.entry_ns.saturating_sub(late.late_ns + MARGIN_NS);
        let to_ns = late.entry_ns.saturating_add(MARGIN_NS);
        Some(format!(
            "SELECT rank, wait_ns FROM lateness({from_ns}, {to_ns}) WHERE comm_hash = {hash} AND func = '{}' AND seq = {}",
            into.func.replace('\'', "''"),
            into.seq
        ))
    };
    let questions: Vec<Option<String>> = late.iter().map(sql).collect();
    let waits = join_all(questions.iter().map(|sql| waits_of(requester, sql.as_deref()))).await;
    for ((late, waits), sql) in late.into_iter().zip(waits).zip(questions) {
        let waits: Vec<(i64, i64)> = match waits {
            Ok(rows) => {
                rows.iter().filter_map(|row| pair(row)).filter(|(rank, _)| *rank != i64::from(culprit.rank)).collect()
            }
            Err(why) => {
                found.not_visible.push(format!("who waited in a step: {why}"));
                Vec::new()
            }
        };
        let example = chain::example(late, culprit.rank, &culprit.node, &waits, report.evidence.tier);
        found.sql.extend(sql.map(|sql| (format!("who waited in {}", example.collective), sql)));
        found.examples.push(example);
    }
}

/// Who waited for how long, by a question for that; nobody without one.
async fn waits_of(requester: &Requester<'_>, sql: Option<&str>) -> Result<Vec<Vec<Value>>, Failure> {
    match sql {
        Some(sql) => requester.analysed(sql.to_owned()).await,
        None => Ok(Vec::new()),
    }
}

fn pair(row: &[Value]) -> Option<(i64, i64)> {
    match row {
        [Value::Integer(a), Value::Integer(b)] => Some((*a, *b)),
        _ => None,
    }
}

/// Whether the requester may see processes of others.
pub(super) fn sees_processes(caller: &Caller) -> bool {
    caller.access != Access::Reader
}
