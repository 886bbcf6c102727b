//! Hosts that are culprits again and again over different jobs: a finding of its own
//! (`verdict = 'repeat_culprit'`), written by whoever writes the finding that makes it one. A job
//! that is slow because of its own program names other hosts each time; a host that it follows has
//! a fault.

use std::time::Duration;

use model::cells::{quoted, text};
use query::ask::{self, QueryOutcome, Question};
use record::printable;
use serde_json::json;
use store::{Finding, Source};
use tokio_util::sync::CancellationToken;

use super::super::Shared;

/// Different jobs of which a host was the culprit, from which on that is a finding.
const JOBS: usize = 3;
/// So far back; findings are kept longer than that.
const BACK_NS: i64 = 30 * 86_400_000_000_000;
/// Jobs that a finding names, the newest.
const NAMED: usize = 32;
/// Time for asking the mesh.
const PATIENCE_MS: u64 = 5_000;
/// How many times there are to wait for, and how far they are apart.
const SLOTS: u64 = 6;
const SLOT: Duration = Duration::from_millis(500);
/// The kind of the finding.
const VERDICT: &str = "repeat_culprit";

/// What this agent has written, the last of it: the store may not show it yet.
#[derive(Debug, Default)]
pub(super) struct Reported(std::collections::VecDeque<(String, String)>);

impl Reported {
    /// Whether it was not written yet; it is from now on.
    fn is_new(&mut self, node: &str, job: &str) -> bool {
        let written = (node.to_owned(), job.to_owned());
        if self.0.contains(&written) {
            return false;
        }
        self.0.truncate(NAMED - 1);
        self.0.push_front(written);
        true
    }
}

/// Looks whether the host that `named` names was the culprit of other jobs, too, and writes so.
/// With each further job it is written again; for the same jobs once.
///
/// Two agents may be about to write at once: each is the first judge of another step of the job, or
/// its first judge has just changed. So each waits for a time of its own, in which what the others
/// write can be seen, and looks again.
pub(super) async fn look(shared: &Shared, named: &Finding, reported: &mut Reported, stop: &CancellationToken) {
    let (Some(node), Some(job)) = (&named.culprit_node, &named.job_id) else { return };
    let found = async || known(shared, named, node, stop).await.and_then(|rows| finding(named, node, job, &rows));
    if found().await.is_none() || !reported.is_new(node, job) {
        return;
    }
    tokio::time::sleep(delay(shared.identity.node().as_str(), node, job)).await;
    let Some(found) = found().await else { return };
    tracing::warn!("{}", printable(&found.text));
    if let Source::Store(store) = shared.source.as_ref() {
        store.ingest().finding(found.row);
    }
}

/// How long an agent waits before it writes: different agents most likely for different times, each
/// for one of a few that are longer apart than a commit takes to be seen.
fn delay(agent: &str, node: &str, job: &str) -> Duration {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (agent, node, job).hash(&mut hasher);
    SLOT * u32::try_from(hasher.finish() % SLOTS).unwrap_or(0)
}

/// Each job of which the host was the culprit, the newest first, and whether that was reported
/// then.
async fn known(
    shared: &Shared,
    named: &Finding,
    node: &str,
    stop: &CancellationToken,
) -> Option<Vec<Vec<query_planner::Value>>> {
    let since_ns = named.ts_ns.saturating_sub(BACK_NS);
    let question = Question {
        sql: format!(
            "SELECT job_id, max(ts_ns) AS last_ns, max(verdict = '{VERDICT}') FROM findings WHERE culprit_node = {} AND \
             job_id IS NOT NULL AND verdict <> 'archive' AND ts_ns >= {since_ns} GROUP BY job_id ORDER BY last_ns DESC",
            quoted(node)
        ),
        timeout_ms: PATIENCE_MS,
        ..Question::default()
    };
    match ask::ask(&shared.coordinator, question, stop.clone()).await {
        Ok(QueryOutcome::Answer { answer, .. }) => Some(answer.rows),
        _ => None,
    }
}

/// A finding, and what the log says of it.
#[derive(Debug)]
struct Repeat {
    row: Finding,
    text: String,
}

/// `rows`: each job of which the host was the culprit, the newest first, and whether that was
/// reported then. None where there are too few, or this job's was reported.
fn finding(named: &Finding, node: &str, job: &str, rows: &[Vec<query_planner::Value>]) -> Option<Repeat> {
    let is_reported = |row: &Vec<query_planner::Value>| matches!(row.get(2), Some(query_planner::Value::Integer(1)));
    let jobs = jobs(rows, job);
    if jobs.len() < JOBS || rows.iter().any(|row| text(row, 0) == *job && is_reported(row)) {
        return None;
    }
    let text = sentence(node, rows, job);
    let detail = json!({
        "text": text, "node": node, "jobs": jobs.len(),
        "job_ids": jobs.iter().take(NAMED).collect::<Vec<_>>(), "since_ns": named.ts_ns.saturating_sub(BACK_NS),
        "cause": named.cause,
    });
    let row = Finding {
        ts_ns: named.ts_ns.saturating_add(1),
        since_ns: named.since_ns,
        until_ns: named.until_ns,
        verdict: VERDICT.to_owned(),
        culprit_node: Some(node.to_owned()),
        job_id: Some(job.to_owned()),
        detail: detail.to_string(),
        ..Finding::default()
    };
    Some(Repeat { row, text })
}

/// The jobs, this one first: its finding may not be in the answer yet.
fn jobs(rows: &[Vec<query_planner::Value>], job: &str) -> Vec<String> {
    let others = rows.iter().map(|row| text(row, 0)).filter(|known| known != job);
    [job.to_owned()].into_iter().chain(others).collect()
}

fn sentence(node: &str, rows: &[Vec<query_planner::Value>], job: &str) -> String {
    let jobs = jobs(rows, job);
    let newest = jobs.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    format!(
        "{node} was the culprit in {} different jobs in 30 days, the last of them {newest}: look at the host itself",
        jobs.len()
    )
}

#[cfg(test)]
mod tests {
    use query_planner::Value;

    use super::*;

    fn row(job: &str, reported: i64) -> Vec<Value> {
        vec![Value::Text(job.as_bytes().to_vec()), Value::Integer(1), Value::Integer(reported)]
    }

    #[test]
    fn a_host_is_named_with_the_third_job_and_each_further_one_once() {
        let named = Finding { ts_ns: 2 * BACK_NS, ..Finding::default() };
        let found = |job: &str, rows: &[Vec<Value>]| finding(&named, "n7", job, rows).map(|found| found.row);
        assert_eq!(found("2", &[row("2", 0), row("1", 0)]).map(|found| found.detail), None, "two jobs are chance");
        let third = found("3", &[row("2", 0), row("1", 0)]).expect("the third, whose own finding is not answered yet");
        assert_eq!((third.verdict.as_str(), third.culprit_node.as_deref()), (VERDICT, Some("n7")));
        assert!(third.detail.contains(r#""jobs":3"#) && third.detail.contains("3, 2, 1"), "{}", third.detail);
        assert!(found("3", &[row("3", 1), row("2", 0), row("1", 0)]).is_none(), "it was reported");
        let delays: std::collections::BTreeSet<Duration> =
            (0..64).map(|n| delay(&format!("n{n}"), "n7", "3")).collect();
        assert_eq!(delays.len(), 6, "{delays:?}");
        let mut reported = Reported::default();
        assert!(reported.is_new("n7", "3") && !reported.is_new("n7", "3") && reported.is_new("n7", "4"));
        assert!(found("4", &[row("3", 1), row("2", 0), row("1", 0)]).is_some(), "a further job");
    }
}
