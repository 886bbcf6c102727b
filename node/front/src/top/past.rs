//! The state at a time in the past, out of the stores, in the form in which an agent sends the
//! current state: the same screens show both.

use anyhow::Context;
use ask::{Chosen, JobSeen, Target};
use explain::watched;
use model::board::{Board, BoardQuestion};
use model::watch::{JobNow, NodeNow, WATCH_VERSION, Watched};
use model::{AskedSpan, Coverage, LocalRequest, Missing, StragglersQuestion};
use serde_json::Value;
use verdicts::Report;

/// Length of the span before an instant by which it is judged.
const LOOKBACK_NS: i64 = 30_000_000_000;
/// Length of the span before the last call of stores by which that end is judged.
const LAST_MS: u64 = 60_000;
/// Length of the span of which windows are shown.
const WINDOWS_NS: i64 = 120_000_000_000;
/// Time for one question.
const TIMEOUT_MS: u64 = 60_000;

/// How the note on other jobs of the time begins.
pub(super) const ALSO: &str = "also in this time: ";

/// The id of a job in the stores' rows: those do not distinguish its steps.
pub(super) fn job_id(job: &str) -> &str {
    match job.rsplit_once('.') {
        Some((id, step)) if !id.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit()) => id,
        _ => job,
    }
}

/// The span by which an instant is judged.
pub(super) fn before(at_ns: i64) -> (i64, i64) {
    (at_ns.saturating_sub(LOOKBACK_NS), at_ns)
}

/// The state by the calls of a span; without one at the end of the last calls in the stores. Of
/// several jobs that of `job`, or of the one that called last.
///
/// # Errors
/// The stores give no answer.
pub fn watched(target: &Target, job: Option<&str>, span: Option<(i64, i64)>) -> anyhow::Result<Watched> {
    let time =
        span.or_else(|| target.stored_ns().map(|(oldest_ns, newest_ns)| (oldest_ns, newest_ns.saturating_add(1))));
    let seen = time.map(|time| target.jobs_in(time, TIMEOUT_MS)).transpose()?.unwrap_or_default();
    let Chosen { job, others } = Chosen::of(&seen, job);
    let question = StragglersQuestion {
        span: span
            .map_or(AskedSpan::Last { ms: LAST_MS }, |(since_ns, until_ns)| AskedSpan::Between { since_ns, until_ns }),
        job: job.clone(),
        comm: None,
        timeout_ms: TIMEOUT_MS,
        nodes: Vec::new(),
        labels: Vec::new(),
    };
    let json = target.stragglers(question)?;
    let report: Report = serde_json::from_str(&json).context("reading the verdict")?;
    // The stores' newest row may be long after the last call.
    let end_ns = span.map(|(_, until_ns)| until_ns).unwrap_or_else(|| {
        let last_ns = report.evidence.since_ns.saturating_add(i64::try_from(LAST_MS).unwrap_or(0) * 1_000_000 + 1);
        report.evidence.until_ns.min(last_ns)
    });
    let mut shown = watched::job(&report, None);
    shown.name = job.as_ref().map_or_else(|| "calls that name no job".to_owned(), |job| format!("job {job}"));
    shown.id = job;
    shown.until_ns = end_ns;
    shown.notes.extend(others.map(|others| format!("{ALSO}{others}")));
    let rest = seen.iter().filter(|seen| seen.id.is_some() && seen.id != shown.id).map(not_judged);
    let jobs = std::iter::once(shown.clone()).chain(rest).collect();
    let judged = &report.coverage;
    Ok(Watched {
        version: WATCH_VERSION,
        agent: String::new(),
        at_ns: end_ns,
        jobs,
        job: Some(shown),
        ranks: watched::ranks(&report),
        brief: None,
        nodes: nodes(target, &report)?,
        coverage: Coverage {
            asked: judged.asked,
            answered: judged.answered,
            missing: judged
                .missing
                .iter()
                .map(|(node, reason)| Missing { node: node.clone(), reason: reason.clone() })
                .collect(),
            notes: judged.notes.clone(),
        },
        own: None,
    })
}

/// A job that made calls in the time and is not the one that is shown.
fn not_judged(seen: &JobSeen) -> JobNow {
    let ran = record::units::duration(seen.span_ns.1 - seen.span_ns.0);
    JobNow {
        name: seen.id.as_ref().map(|id| format!("job {id}")).unwrap_or_default(),
        id: seen.id.clone(),
        verdict: "not judged".to_owned(),
        sentence: format!("{} calls in {ran} of this time; Enter judges it", seen.calls),
        until_ns: seen.span_ns.1,
        ..JobNow::default()
    }
}

/// The windows up to `at_ns`, out of the stores.
///
/// # Errors
/// The stores give no answer.
pub fn board(target: &Target, job: Option<&str>, at_ns: i64) -> anyhow::Result<Board> {
    target.board(BoardQuestion {
        job: job.map(str::to_owned),
        since_ns: Some(at_ns.saturating_sub(WINDOWS_NS)),
        until_ns: Some(at_ns),
        timeout_ms: TIMEOUT_MS,
        ..BoardQuestion::default()
    })
}

fn nodes(target: &Target, report: &Report) -> anyhow::Result<Vec<NodeNow>> {
    let json = target.document(LocalRequest::Nodes)?;
    let nodes: Vec<Value> = serde_json::from_str(&json).context("reading the list of nodes")?;
    let bound = |name: &str| report.evidence.clocks.iter().find(|(node, _)| node == name).map(|(_, c)| c.bound_ns);
    let of = |node: &Value| {
        let text = |key: &str| node[key].as_str().unwrap_or_default().to_owned();
        let ranks = node["ranks"].as_array().into_iter().flatten().filter_map(Value::as_u64);
        let name = text("name");
        NodeNow {
            state: text("state"),
            recording: text("capture"),
            ranks: ranks.filter_map(|rank| u32::try_from(rank).ok()).collect(),
            rows: node["store_rows"].as_u64(),
            span_ns: node["store_span_ns"]
                .as_array()
                .and_then(|span| Some((span.first()?.as_i64()?, span.get(1)?.as_i64()?))),
            clock_bound_ns: bound(&name),
            version: text("version"),
            is_self: node["self"] == true,
            name,
        }
    };
    Ok(nodes.iter().map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::job_id;

    #[test]
    fn a_step_is_no_part_of_a_jobs_id() {
        assert_eq!(["812.0", "812", "run.a", ".5", "a.b.12"].map(job_id), ["812", "812", "run.a", ".5", "a.b"]);
    }
}
