//! Which jobs a target knows: a job that nobody knows is a mistake of who asks, and not a job that
//! does nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use model::Question;
use model::cells::{quoted, text};

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

impl Target {
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
