//! Whether a rank that is named on a busy host waited for a CPU that other programs had: it then
//! does hold the others up, however healthy the job is by itself.

use std::collections::BTreeMap;
use std::ops::Range;

use agent::Agent;
use anyhow::bail;
use query::ask::{self, QueryOutcome, Question};
use query_planner::Value;
use tokio_util::sync::CancellationToken;
use verdicts::Culprit;

/// Shares of a span (Unix nanoseconds) in which each rank was runnable and had no CPU, by rank,
/// from the scheduler's records of all agents.
///
/// # Errors
/// The question is not answered.
pub async fn cpu_waits(agent: &Agent, span: Range<i64>) -> anyhow::Result<BTreeMap<i32, f64>> {
    let sql = format!(
        "SELECT p.rank, sum(o.run_delay_ns) FROM offcpu o JOIN processes p ON p.node = o.node AND p.pid = o.pid \
         WHERE o.ts_ns >= {} AND o.ts_ns < {} AND p.rank IS NOT NULL GROUP BY p.rank",
        span.start, span.end
    );
    let question = Question { sql, timeout_ms: 60_000, ..Question::default() };
    let answered = ask::ask(&agent.shared().coordinator, question, CancellationToken::new()).await?;
    let QueryOutcome::Answer { answer, .. } = answered else { bail!("a plan") };
    let share = |row: &Vec<Value>| match row[..] {
        [Value::Integer(rank), Value::Integer(ns)] => {
            Some((i32::try_from(rank).ok()?, ns as f64 / (span.end - span.start).max(1) as f64))
        }
        _ => None,
    };
    Ok(answer.rows.iter().filter_map(share).collect())
}

/// Whether those waits explain that a rank is late: it waited longer than the median rank did, by
/// at least half of the share that it costs.
#[must_use]
pub fn explain(waits: &BTreeMap<i32, f64>, culprit: &Culprit) -> bool {
    let mut all: Vec<f64> = waits.values().copied().collect();
    all.sort_by(f64::total_cmp);
    let Some(median) = all.get(all.len() / 2) else { return false };
    waits.get(&culprit.rank).is_some_and(|wait| wait - median >= culprit.share / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waits_that_the_others_do_not_have_explain_lateness() {
        let waits = BTreeMap::from([(0, 0.02), (1, 0.09), (2, 0.03), (3, 0.02)]);
        let late = |rank, share| Culprit { rank, share, ..Culprit::default() };
        assert!(explain(&waits, &late(1, 0.08)));
        assert!(!explain(&waits, &late(1, 0.3)) && !explain(&waits, &late(2, 0.08)) && !explain(&waits, &late(7, 0.0)));
        assert!(!explain(&BTreeMap::new(), &late(1, 0.08)));
    }
}
