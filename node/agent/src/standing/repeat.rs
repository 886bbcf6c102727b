//! Hosts that are culprits again and again over different jobs: a finding of its own
//! (`verdict = 'repeat_culprit'`), written by whoever writes the finding that makes it one. Which
//! hosts these are says [`explain::repeat`]: a job that is slow because of its own program names
//! any of its hosts; one that is named more often has a fault.

use std::time::Duration;

use explain::repeat;
use model::cells::{integer, quoted};
use query::ask::{self, QueryOutcome, Question};
use query_planner::Value;
use record::printable;
use serde_json::json;
use store::{Finding, Source};
use tokio_util::sync::CancellationToken;

use super::super::Shared;

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

/// Looks whether the host that `named` names is named in more jobs than chance would have it, and
/// writes so. With each further job it is written again; for the same jobs once.
///
/// Two agents may be about to write at once: each is the first judge of another step of the job, or
/// its first judge has just changed. So each waits for a time of its own, in which what the others
/// write can be seen, and looks again.
pub(super) async fn look(shared: &Shared, named: &Finding, reported: &mut Reported, stop: &CancellationToken) {
    let (Some(node), Some(job)) = (&named.culprit_node, &named.job_id) else { return };
    let found = async || {
        if is_reported(shared, named, node, job, stop).await? {
            return None;
        }
        let rows = rows(shared, repeat::sql(named.ts_ns.saturating_sub(BACK_NS)), stop).await?;
        finding(named, node, job, &rows)
    };
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

/// Whether it was written with this job.
async fn is_reported(
    shared: &Shared,
    named: &Finding,
    node: &str,
    job: &str,
    stop: &CancellationToken,
) -> Option<bool> {
    let sql = format!(
        "SELECT count(*) FROM findings WHERE verdict = '{VERDICT}' AND culprit_node = {} AND job_id = {} AND ts_ns >= {}",
        quoted(node),
        quoted(job),
        named.ts_ns.saturating_sub(BACK_NS)
    );
    Some(integer(rows(shared, sql, stop).await?.first()?, 0)? > 0)
}

async fn rows(shared: &Shared, sql: String, stop: &CancellationToken) -> Option<Vec<Vec<Value>>> {
    let question = Question { sql, timeout_ms: PATIENCE_MS, ..Question::default() };
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

/// `rows`: what findings name of this time. None where this job's finding is not among them yet
/// (asked again with the next), or the host is named no more often than by chance.
fn finding(named: &Finding, node: &str, job: &str, rows: &[Vec<Value>]) -> Option<Repeat> {
    let suspect = repeat::suspected(rows).into_iter().find(|suspect| suspect.node == node)?;
    if !suspect.jobs.iter().any(|known| known == job) {
        return None;
    }
    let text = format!("in 30 days {}: look at the host itself", suspect.sentence());
    let detail = json!({
        "text": text, "node": node, "jobs": suspect.jobs.len(), "of_jobs": suspect.of_jobs,
        "expected": suspect.expected, "job_ids": suspect.jobs.iter().take(NAMED).collect::<Vec<_>>(),
        "since_ns": named.ts_ns.saturating_sub(BACK_NS), "cause": named.cause,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(job: &str) -> Vec<Value> {
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        let hosts = text(r#"["n1","n2","n7","n8"]"#);
        vec![text(job), text("n7"), text("rank"), Value::Integer(job.parse().unwrap()), hosts, Value::Null]
    }

    #[test]
    fn a_host_is_named_once_with_each_job_that_makes_it_more_than_chance() {
        let named = Finding { ts_ns: 2 * BACK_NS, ..Finding::default() };
        let found = |job: &str, rows: &[Vec<Value>]| finding(&named, "n7", job, rows).map(|found| found.row);
        let rows = ["4", "3", "2", "1"].map(row);
        assert!(found("4", &rows[1..]).is_none(), "three jobs of four hosts are chance");
        let fourth = found("4", &rows).expect("the fourth");
        assert_eq!((fourth.verdict.as_str(), fourth.culprit_node.as_deref()), (VERDICT, Some("n7")));
        assert!(fourth.detail.contains(r#""jobs":4"#) && fourth.detail.contains("4, 3, 2, 1"), "{}", fourth.detail);
        assert!(found("5", &rows).is_none(), "its own finding, a hang, does not count");
        let delays: std::collections::BTreeSet<Duration> =
            (0..64).map(|n| delay(&format!("n{n}"), "n7", "3")).collect();
        assert_eq!(delays.len(), 6, "{delays:?}");
        let mut reported = Reported::default();
        assert!(reported.is_new("n7", "3") && !reported.is_new("n7", "3") && reported.is_new("n7", "4"));
    }
}
