//! Which jobs a target knows, and which made calls in a time: a job that nobody knows is a mistake of
//! who asks, and not a job that does nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use model::Question;
use model::cells::{integer, quoted, text};
use query_planner::Value;

use crate::target::Target;
use crate::values::millis;

/// Time to find out about a job.
const PATIENCE: Duration = Duration::from_secs(10);
/// Jobs that the error names.
const NAMED: usize = 20;

/// Error: no such job.
#[derive(Debug, thiserror::Error)]
#[error("no job '{job}' is known: {known}")]
pub struct UnknownJob {
    job: String,
    known: String,
}

/// A job's calls in a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSeen {
    /// Its id; none of calls whose processes' environment names no job.
    pub id: Option<String>,
    /// How many calls.
    pub calls: i64,
    /// When the first and the last began, Unix nanoseconds.
    pub span_ns: (i64, i64),
}

/// The job that is shown where a span has several: the one that called last. The others are named,
/// in one sentence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chosen {
    /// The job; none where calls name none.
    pub job: Option<String>,
    /// Who else made calls, as text; none where nobody did.
    pub others: Option<String>,
}

impl Chosen {
    /// Of the jobs of a span, `asked` or else the first.
    #[must_use]
    pub fn of(jobs: &[JobSeen], asked: Option<&str>) -> Self {
        let job = asked.map(str::to_owned).or_else(|| jobs.first().and_then(|seen| seen.id.clone()));
        let others: Vec<&str> =
            jobs.iter().filter_map(|seen| seen.id.as_deref()).filter(|id| Some(*id) != job.as_deref()).collect();
        let unnamed = jobs.iter().find(|seen| seen.id.is_none()).filter(|_| job.is_some());
        let named = match others.len() {
            0 => None,
            1 => Some(format!("job {} (--job {} shows it)", others[0], others[0])),
            n => {
                let more = if n > NAMED { format!(" and {} more", n - NAMED) } else { String::new() };
                let shown = others.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
                Some(format!("jobs {shown}{more} (--job ID shows one)"))
            }
        };
        let unnamed = unnamed.map(|seen| format!("{} calls of processes that name no job", seen.calls));
        let both: Vec<String> = [named, unnamed].into_iter().flatten().collect();
        Self { job, others: (!both.is_empty()).then(|| both.join("; ")) }
    }
}

impl Target {
    /// The jobs that made calls in a span, the one that called last first; at the end calls of no
    /// job, without an id.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub fn jobs_in(&self, (since_ns, until_ns): (i64, i64), timeout_ms: u64) -> anyhow::Result<Vec<JobSeen>> {
        let sql = format!(
            "SELECT job_id, count(*), min(ts_ns), max(ts_ns) FROM collectives WHERE ts_ns >= {since_ns} AND ts_ns < {until_ns} \
             GROUP BY job_id"
        );
        let found = self.rows(Question { sql, timeout_ms, ..Question::default() }, usize::MAX, "")?;
        let of = |row: &Vec<Value>| JobSeen {
            id: Some(text(row, 0)).filter(|id| !id.is_empty()),
            calls: integer(row, 1).unwrap_or(0),
            span_ns: (integer(row, 2).unwrap_or(0), integer(row, 3).unwrap_or(0)),
        };
        let mut jobs: Vec<JobSeen> = found.rows.iter().map(of).collect();
        jobs.sort_by_key(|seen| (seen.id.is_none(), std::cmp::Reverse((seen.span_ns.1, seen.calls))));
        Ok(jobs)
    }

    /// Makes sure that a job is known where one is named, by `job_id` or `job_id.step_id`. Where a
    /// node does not answer, it may be known there.
    ///
    /// # Errors
    /// It is not ([`UnknownJob`]).
    pub fn check_job(&self, job: Option<&str>) -> Result<(), UnknownJob> {
        let Some(job) = job else { return Ok(()) };
        let without_step = job.rsplit_once('.').map(|(id, _)| id);
        let ids: Vec<String> = [Some(job), without_step].into_iter().flatten().map(quoted).collect();
        let of_job = format!("job_id IN ({})", ids.join(", "));
        // The cheaper table first: one that knows the job is enough.
        let known = |condition: &str, enough: Option<&str>| -> Option<BTreeSet<String>> {
            let mut known = BTreeSet::new();
            for (table, step) in [("processes", "step_id"), ("collectives", "NULL")] {
                let sql = format!("SELECT DISTINCT job_id, {step} FROM {table} WHERE {condition}");
                let question = Question { sql, timeout_ms: millis(PATIENCE), ..Question::default() };
                let found = self.rows(question, usize::MAX, "").ok()?;
                if !found.coverage.is_complete() {
                    return None;
                }
                for row in &found.rows {
                    let (id, step) = (text(row, 0), text(row, 1));
                    if !step.is_empty() {
                        known.insert(format!("{id}.{step}"));
                    }
                    known.insert(id);
                }
                if enough.is_some_and(|job| known.contains(job)) {
                    break;
                }
            }
            Some(known)
        };
        match known(&of_job, Some(job)) {
            Some(found) if !found.contains(job) => {}
            _ => return Ok(()),
        }
        let Some(all) = known("job_id IS NOT NULL", None) else { return Ok(()) };
        // A step goes without saying.
        let jobs: Vec<&str> = all.iter().map(String::as_str).filter(|id| !is_step(id, &all)).collect();
        let shown = jobs.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        let known = match jobs.len() {
            0 => "no process that was recorded names a job in its environment".to_owned(),
            n if n > NAMED => format!("{n} are, such as {shown} (all with rankmesh jobs)"),
            1 => format!("only {shown} is"),
            _ => format!("known are {shown}"),
        };
        Err(UnknownJob { job: job.to_owned(), known })
    }
}

fn is_step(id: &str, all: &BTreeSet<String>) -> bool {
    id.rsplit_once('.').is_some_and(|(job, _)| all.contains(job))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(id: Option<&str>) -> JobSeen {
        JobSeen { id: id.map(str::to_owned), calls: 7, span_ns: (1, 2) }
    }

    #[test]
    fn one_job_is_shown_and_the_others_are_named() {
        let chosen = |jobs: &[JobSeen], asked| {
            let Chosen { job, others } = Chosen::of(jobs, asked);
            (job.unwrap_or_default(), others.unwrap_or_default())
        };
        let three = [seen(Some("c")), seen(Some("b")), seen(Some("a"))];
        assert_eq!(chosen(&three, None), ("c".into(), "jobs b, a (--job ID shows one)".into()));
        assert_eq!(chosen(&three[1..], Some("a")), ("a".into(), "job b (--job b shows it)".into()));
        assert_eq!(chosen(&[seen(None)], None), (String::new(), String::new()));
        let with_none = [seen(Some("a")), seen(None)];
        assert_eq!(chosen(&with_none, None), ("a".into(), "7 calls of processes that name no job".into()));
    }
}
