//! A snapshot of the current state, from which metrics are made.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ask::values::millis;
use ask::{Piece, Target, UsageError};
use model::cells::{integer, text};
use model::watch::{JobNow, RankNow, Watched};
use model::{LocalRequest, Question, WatchQuestion};

/// Time for each state, and for the question about losses.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most jobs whose ranks are asked for; of others only the verdict is known.
const JOBS: usize = 32;
/// Span of which lost records are reported.
const LOST_NS: i64 = 60_000_000_000;

/// An agent's current state.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// The verdicts, and the nodes.
    pub(super) watched: Watched,
    /// Ranks of jobs, worst first.
    pub(super) ranks: Vec<(JobNow, Vec<RankNow>)>,
    /// Jobs whose ranks were not asked for.
    pub(super) jobs_left_out: usize,
    /// Records that nodes lost in the last minute.
    pub(super) lost: BTreeMap<String, i64>,
    /// How long it took to gather.
    pub(super) took: Duration,
}

impl Snapshot {
    /// Gathers it; `own` leaves out data of other agents.
    ///
    /// # Errors
    /// Stores are asked, or the agent does not answer.
    pub(super) fn gather(target: &Target, own: bool) -> anyhow::Result<Self> {
        if target.is_stores() {
            return Err(UsageError("stores have no metrics: they are of what goes on".to_owned()).into());
        }
        let started = Instant::now();
        let mut watched = first(target, None)?;
        if own {
            let agent = watched.agent.clone();
            watched.jobs.retain(|job| is_judge(job, &agent));
            watched.nodes.retain(|node| node.is_self);
        }
        let mut ranks = Vec::new();
        for job in watched.jobs.iter().take(JOBS) {
            let Some(id) = &job.id else { continue };
            let of_job = match &watched.job {
                Some(shown) if shown.name == job.name => watched.clone(),
                // The job may have ended meanwhile.
                _ => match first(target, Some(id.clone())) {
                    Ok(of_job) => of_job,
                    Err(error) => {
                        tracing::debug!("ranks of job {id}: {error:#}");
                        continue;
                    }
                },
            };
            if let Some(shown) = of_job.job {
                ranks.push((shown, of_job.ranks));
            }
        }
        let jobs_left_out = watched.jobs.len().saturating_sub(JOBS);
        let lost = lost(target, own.then_some(watched.agent.as_str()))?;
        Ok(Self { watched, ranks, jobs_left_out, lost, took: started.elapsed() })
    }
}

/// Whether this agent judges a job; among agents of an earlier release, which all judge, no judge
/// is named.
pub(super) fn is_judge(job: &JobNow, agent: &str) -> bool {
    job.judge.as_ref().is_none_or(|judge| judge.is_empty() || judge == agent)
}

/// The first state that an agent sends.
pub(super) fn first(target: &Target, job: Option<String>) -> anyhow::Result<Watched> {
    const ENOUGH: &str = "enough";
    let (started, mut found) = (Instant::now(), None);
    let asked = target.ask_into(LocalRequest::Watch(WatchQuestion { job }), &mut |piece| match piece {
        Piece::Watched(json) => {
            found = Some(serde_json::from_str(&json).context("reading what the agent pushes")?);
            bail!(ENOUGH)
        }
        _ if started.elapsed() >= PATIENCE => bail!("timeout: the agent said nothing for {PATIENCE:?}"),
        _ => Ok(()),
    });
    match (found, asked) {
        (Some(watched), _) => Ok(watched),
        (None, Err(error)) => Err(error),
        (None, Ok(_)) => bail!("the agent ended the push before it said anything"),
    }
}

fn lost(target: &Target, of: Option<&str>) -> anyhow::Result<BTreeMap<String, i64>> {
    let until_ns = target.now_ns();
    let sql = top::questions::losses(until_ns.saturating_sub(LOST_NS), until_ns);
    let nodes = of.map(str::to_owned).into_iter().collect();
    let question = Question { sql, timeout_ms: millis(PATIENCE), nodes, ..Question::default() };
    match target.rows(question, usize::MAX, "") {
        // Nodes that serve a file of another program have no such table.
        Err(error) if ask::is_usage(&error) => Ok(BTreeMap::new()),
        Err(error) => Err(error),
        Ok(found) => Ok(found.rows.iter().map(|row| (text(row, 0), integer(row, 1).unwrap_or(0))).collect()),
    }
}
