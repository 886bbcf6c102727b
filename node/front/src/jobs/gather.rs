//! The questions that a list of jobs is made of.

use std::collections::{BTreeMap, BTreeSet};

use ask::UsageError;
use ask::rows::Client;
use explain::cost::Waste;
use explain::repeat;
use model::cells::{NO_VERDICTS, integer, quoted, real, text};
use query_planner::Value;
use verdicts::{Coupling, cycle_of};

use super::{Job, Jobs, Steps, VerdictSpan};
use crate::rates::Priced;
use crate::waits::{self, Calls, NAMED, Named};

/// Calls in which the cycle of a step is looked for.
const CYCLE_CALLS: usize = 4_096;

/// The jobs that made calls in the asked time.
///
/// # Errors
/// As [`Client::ask`]; no job is stored of that time.
pub(super) fn jobs(job: Option<&str>, span_ns: Option<(i64, i64)>, client: &Client<'_>) -> anyhow::Result<Jobs> {
    let (since_ns, until_ns) = span_ns.unwrap_or((i64::MIN, i64::MAX));
    let of_job = job.map_or_else(String::new, |job| format!(" AND job_id = {}", quoted(job)));
    let calls = client.ask(format!(
        "SELECT job_id, node, pid, comm_hash, func, count(*), min(ts_ns), max(ts_ns + ifnull(duration_ns, 0)), \
         max(nranks), max(duration_ns) FROM collectives WHERE ts_ns >= {since_ns} AND ts_ns < {until_ns}{of_job} GROUP BY job_id, node, pid, comm_hash, func"
    ))?;
    let mut coverage = calls.coverage;
    let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
    let mut calls_without_job = 0;
    for row in &calls.rows {
        match row.first() {
            Some(Value::Text(_)) => seen.entry(text(row, 0)).or_default().add(row),
            _ => calls_without_job += integer(row, 5).unwrap_or(0),
        }
    }
    if seen.is_empty() {
        let whose = job.map_or_else(String::new, |job| format!(" of job {job}"));
        let without = match calls_without_job {
            0 => String::new(),
            n => format!("; {n} calls belong to none (their processes' environment names no job)"),
        };
        return Err(UsageError(format!("no calls{whose} are stored in this time{without}")).into());
    }
    let findings = client.ask(format!(
        "SELECT {NAMED}, verdict, cause, cost_gpu_s FROM findings WHERE verdict NOT IN {NO_VERDICTS} \
         AND until_ns >= {since_ns} AND since_ns < {until_ns} ORDER BY ts_ns"
    ));
    let findings = match findings {
        Ok(found) => {
            coverage.also(found.coverage);
            found.rows
        }
        Err(error) => {
            coverage.notes.push(format!("findings cannot be had: {error:#}"));
            Vec::new()
        }
    };
    let named = Named::of(&findings);
    let mut jobs: Vec<Job> = Vec::new();
    let mut seen: Vec<(String, Seen)> = seen.into_iter().collect();
    seen.sort_by_key(|(_, seen)| std::cmp::Reverse(seen.first_ns));
    for (job_id, seen) in seen {
        let mut job = seen.job(job_id);
        job.verdicts = spans(&findings, &job);
        if !client.left().is_zero() {
            job.steps = steps(client, &seen, &job.job_id)?;
        }
        if !client.left().is_zero() {
            let comms: Vec<String> = seen.comms.keys().map(i64::to_string).collect();
            let span_ns = (seen.first_ns, seen.last_ns);
            let of = Calls { comms, span_ns, calls: seen.calls, longest_ns: seen.longest_ns };
            let named = named.of_job(&job.job_id);
            let waited =
                (!of.comms.is_empty()).then(|| waits::waited(client, &of, &named, &mut coverage)).transpose()?;
            // (That nothing could be matched is no sum of 0.)
            job.waited = waited.filter(|waited| waited.is_of_some() || waited.incomplete == 0);
            if of.comms.is_empty() {
                job.waited = Some(waits::Waited { asked_since_ns: seen.first_ns, ..waits::Waited::default() });
            }
        }
        jobs.push(job);
    }
    let suspected = client.ask(repeat::sql(since_ns));
    let repeat_culprits = suspected.map(|found| repeat::suspected(&found.rows)).unwrap_or_default();
    Ok(Jobs { version: 1, jobs, repeat_culprits, calls_without_job, coverage })
}

/// What a job's calls show of it.
#[derive(Debug, Default)]
struct Seen {
    nodes: BTreeSet<String>,
    processes: BTreeSet<(String, i64)>,
    most_ranks: i64,
    first_ns: i64,
    last_ns: i64,
    calls: i64,
    longest_ns: i64,
    comms: BTreeMap<i64, Comm>,
}

/// A communicator of a job.
#[derive(Debug, Default)]
struct Comm {
    nranks: i64,
    /// Collectives that all ranks have to enter, by process.
    calls: BTreeMap<(String, i64), i64>,
    /// Their functions.
    funcs: BTreeSet<String>,
}

impl Seen {
    fn add(&mut self, row: &[Value]) {
        let (node, pid, func) = (text(row, 1), integer(row, 2).unwrap_or(0), text(row, 4));
        let (calls, nranks) = (integer(row, 5).unwrap_or(0), integer(row, 8).unwrap_or(0));
        let (first_ns, last_ns) = (integer(row, 6).unwrap_or(0), integer(row, 7).unwrap_or(0));
        self.first_ns = if self.calls == 0 { first_ns } else { self.first_ns.min(first_ns) };
        self.last_ns = self.last_ns.max(last_ns);
        self.calls += calls;
        self.longest_ns = self.longest_ns.max(integer(row, 9).unwrap_or(0));
        self.most_ranks = self.most_ranks.max(nranks);
        if let Some(comm) = integer(row, 3) {
            let comm = self.comms.entry(comm).or_default();
            comm.nranks = comm.nranks.max(nranks);
            if Coupling::of(&func) == Coupling::All {
                *comm.calls.entry((node.clone(), pid)).or_default() += calls;
                comm.funcs.insert(func);
            }
        }
        self.nodes.insert(node.clone());
        self.processes.insert((node, pid));
    }

    fn job(&self, job_id: String) -> Job {
        Job {
            job_id,
            nodes: self.nodes.iter().cloned().collect(),
            ranks: self.most_ranks.max(i64::try_from(self.processes.len()).unwrap_or(i64::MAX)),
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            calls: self.calls,
            ..Job::default()
        }
    }
}

/// How long the job's steps took, by one process's own clock.
fn steps(client: &Client<'_>, seen: &Seen, job: &str) -> anyhow::Result<Option<Steps>> {
    let most = |comm: &Comm| comm.calls.values().copied().max().unwrap_or(0);
    let largest = seen.comms.iter().max_by_key(|(_, comm)| (comm.nranks.min(most(comm)), most(comm)));
    let Some((hash, comm)) = largest else { return Ok(None) };
    let Some(((node, pid), _)) = comm.calls.iter().max_by_key(|(_, calls)| **calls) else { return Ok(None) };
    let funcs: Vec<String> = comm.funcs.iter().map(|func| quoted(func)).collect();
    let of = format!(
        "FROM collectives WHERE node = {} AND pid = {pid} AND comm_hash = {hash} AND job_id = {} AND func IN ({}) \
         AND ts_ns >= {} AND ts_ns <= {}",
        quoted(node),
        quoted(job),
        funcs.join(", "),
        seen.first_ns,
        seen.last_ns
    );
    let called = client.ask(format!("SELECT func {of} ORDER BY ts_ns LIMIT {CYCLE_CALLS}"))?;
    let called: Vec<String> = called.rows.iter().map(|row| text(row, 0)).collect();
    let Some(cycle) = cycle_of(called.iter().map(String::as_str)) else { return Ok(None) };
    let found = client.ask(format!(
        "SELECT count(step_ns), percentile(step_ns, 50), percentile(step_ns, 90), percentile(step_ns, 99), max(step_ns) \
         FROM (SELECT ts_ns - lag(ts_ns, {cycle}) OVER (ORDER BY ts_ns) AS step_ns {of})"
    ))?;
    let Some(row) = found.rows.first() else { return Ok(None) };
    let ns = |at: usize| real(row, at).map(|ns| ns.round() as i64);
    let (Some(count), Some(p50_ns), Some(p90_ns), Some(p99_ns), Some(max_ns)) =
        (integer(row, 0), ns(1), ns(2), ns(3), ns(4))
    else {
        return Ok(None);
    };
    Ok(Some(Steps { node: node.clone(), pid: *pid, collectives: cycle, count, p50_ns, p90_ns, p99_ns, max_ns }))
}

/// The verdicts on a job that named a culprit or a cause, each up to the next. `findings`: the
/// columns [`NAMED`], then verdict, cause and cost.
fn spans(findings: &[Vec<Value>], job: &Job) -> Vec<VerdictSpan> {
    let of_job: Vec<&Vec<Value>> = findings.iter().filter(|row| text(row, 5) == job.job_id).collect();
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let found_ns = |row: &[Value]| integer(row, 3).unwrap_or(0);
    let mut spans = Vec::new();
    for (at, row) in of_job.iter().enumerate() {
        let verdict = text(row, 6);
        if verdict == "none" {
            continue;
        }
        let since_ns = integer(row, 2).unwrap_or_else(|| found_ns(row)).max(job.first_ns);
        let until_ns = of_job.get(at + 1).map_or(job.last_ns, |next| found_ns(next)).max(since_ns);
        spans.push(VerdictSpan {
            verdict,
            since_ns,
            until_ns,
            rank: integer(row, 0),
            node: some(text(row, 1)),
            cause: some(text(row, 7)),
            cost_gpu_s: real(row, 8),
        });
    }
    spans
}

/// What a job's waiting cost, by the rates of its hosts.
pub(super) fn price(job: &mut Job, priced: Option<&Priced>) {
    let (Some(priced), Some(waited)) = (priced, &mut job.waited) else { return };
    let asked_s = job.last_ns.saturating_sub(waited.asked_since_ns).max(1) as f64 / 1e9;
    let waste = Waste {
        gpu_seconds: waited.rank_seconds,
        gpus_lost: waited.rank_seconds / asked_s,
        gpu_seconds_per_step: None,
        upper_bound: false,
    };
    let nodes: Vec<&str> = job.nodes.iter().map(String::as_str).collect();
    job.money = priced.money(&waste, &nodes);
    for charge in &mut waited.culprits {
        charge.money = job.money.as_ref().map(|money| charge.rank_seconds / 3600.0 * money.gpu_hour);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.as_bytes().to_vec())
    }

    fn finding(job: &str, verdict: &str, node: &str, at_ns: i64) -> Vec<Value> {
        let ns = Value::Integer(at_ns);
        vec![
            Value::Integer(3),
            text(node),
            ns.clone(),
            ns,
            Value::Null,
            text(job),
            text(verdict),
            text("sleep"),
            Value::Real(2.5),
        ]
    }

    #[test]
    fn a_verdict_holds_until_the_next_of_its_job() {
        let findings = [
            finding("1", "rank", "n1", 10),
            finding("2", "rank", "n1", 15),
            finding("1", "none", "", 20),
            finding("1", "hang", "n2", 30),
        ];
        let job = |id: &str| Job { job_id: id.to_owned(), last_ns: 50, ..Job::default() };
        let spans: Vec<(String, i64, i64)> =
            spans(&findings, &job("1")).into_iter().map(|span| (span.verdict, span.since_ns, span.until_ns)).collect();
        assert_eq!(spans, [("rank".to_owned(), 10, 20), ("hang".to_owned(), 30, 50)]);
    }
}
