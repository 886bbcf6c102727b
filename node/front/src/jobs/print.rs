//! A list of jobs as a table for people, and as a file with a row each.

use std::fmt::Write as _;
use std::path::Path;

use ask::UsageError;
use ask::output::{printable, render};
use explain::cost::amount;
use record::units::duration;
use rusqlite::{Connection, params};
use serde::Serialize;
use store::exchange::{ExchangeError, Export, export};
use verdicts::hostlist::fold_names;

use super::{Job, Jobs, VerdictSpan};

/// Characters of a folded list of hosts.
const HOSTS: usize = 32;
/// Hosts that were culprits in several jobs, listed in text.
const REPEATED: usize = 10;

/// The table, a line of words below each job, and below all who was a culprit in several jobs.
pub(super) fn text(jobs: &Jobs) -> String {
    let columns = ["job", "ranks", "began (UTC)", "time", "step p50", "p99", "waited rank-s"];
    let table = render(&columns, jobs.jobs.iter().map(row), &[false, true, false, true, true, true, true]);
    let mut table = table.lines();
    let mut listed = format!("{}\n", table.next().unwrap_or_default());
    for (line, job) in table.zip(&jobs.jobs) {
        listed.push_str(line);
        listed.push('\n');
        listed.push_str(&record::wrapped(&format!("  {}", words(job))));
    }
    let mut out = String::new();
    let unfinished = jobs.jobs.iter().filter(|job| job.waited.as_ref().is_none_or(|w| w.asked_since_ns > job.first_ns));
    let unfinished = unfinished.count();
    // Writing to a string cannot fail.
    if unfinished > 0 {
        let _ = writeln!(
            out,
            "The time was up: what ranks waited is not known of all the time of {unfinished} jobs (give --timeout, \
             --since or --job)"
        );
    }
    let enqueued: i64 = jobs.jobs.iter().filter_map(|job| Some(job.waited.as_ref()?.without_waits)).sum();
    if enqueued > 0 {
        let _ = writeln!(
            out,
            "{enqueued} collectives were calls that only enqueue: what their ranks waited is not in these figures"
        );
    }
    if jobs.calls_without_job > 0 {
        let _ = writeln!(out, "{} calls belong to no job that their environment names", jobs.calls_without_job);
    }
    for culprit in jobs.repeat_culprits.iter().take(REPEATED) {
        let _ = writeln!(out, "{}", printable(&culprit.sentence()));
    }
    listed + &record::wrapped(&out)
}

fn row(job: &Job) -> Vec<String> {
    let of = |ns: Option<i64>| ns.map_or_else(|| "-".to_owned(), duration);
    vec![
        job.job_id.clone(),
        job.ranks.to_string(),
        store::show_time(job.first_ns).chars().take("2026-11-22 03:04".len()).collect(),
        duration(job.last_ns - job.first_ns),
        of(job.steps.as_ref().map(|steps| steps.p50_ns)),
        of(job.steps.as_ref().map(|steps| steps.p99_ns)),
        job.waited.as_ref().map_or_else(|| "-".to_owned(), |waited| format!("{:.1}", waited.rank_seconds)),
    ]
}

/// Where a job ran, whom its ranks waited for most, its verdicts, whose it was and its cost.
fn words(job: &Job) -> String {
    let folded = fold_names(job.nodes.iter().map(String::as_str));
    let mut words = vec![verdicts::hostlist::first_parts(&folded, HOSTS)];
    if let Some(known) = &job.accounting {
        words.push(format!("{} ({}), {}", known.user, known.account, known.state));
    }
    if let Some(waited) = &job.waited
        && let Some(most) = waited.culprits.first()
    {
        let share = most.rank_seconds / waited.rank_seconds.max(f64::MIN_POSITIVE);
        words.push(format!("waited most for rank {} on {} ({:.0} %)", most.rank, most.node, share * 100.0));
    }
    let verdict = verdict(&job.verdicts);
    words.extend((!verdict.is_empty()).then(|| format!("verdict: {verdict}")));
    words.extend(job.money.as_ref().map(|money| format!("cost {} {}", amount(money.total), money.currency)));
    words.join("; ")
}

/// The verdict that was the current one longest, and how many more there are.
fn verdict(spans: &[VerdictSpan]) -> String {
    let Some(longest) = spans.iter().max_by_key(|span| span.until_ns - span.since_ns) else { return String::new() };
    let who = match (longest.rank, &longest.node) {
        (Some(rank), Some(node)) => format!(" {rank} on {node}"),
        (None, Some(node)) => format!(" {node}"),
        _ => String::new(),
    };
    let more = if spans.len() > 1 { format!(", {} more", spans.len() - 1) } else { String::new() };
    format!("{}{who}, {}{more}", longest.verdict, duration(longest.until_ns - longest.since_ns))
}

/// Whether a file of that name can be written, before anything is asked.
pub(super) fn check_file(out: &Path) -> anyhow::Result<()> {
    let ending = out.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    if !["parquet", "csv", "db"].contains(&ending) {
        return Err(UsageError(ExchangeError::Form(out.to_owned()).to_string()).into());
    }
    if out.exists() {
        return Err(UsageError(ExchangeError::Exists(out.to_owned()).to_string()).into());
    }
    Ok(())
}

/// A list as JSON.
fn json<T: Serialize>(of: &[T]) -> String {
    serde_json::to_string(of).unwrap_or_default()
}

/// Writes the jobs into a new file, a row each; lists are JSON in it.
pub(super) fn file(jobs: &Jobs, out: &Path) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let db = dir.path().join("jobs.db");
    let conn = Connection::open(&db)?;
    conn.execute_batch(
        "CREATE TABLE jobs (job_id TEXT, nodes TEXT, node_count INTEGER, ranks INTEGER, first_ns INTEGER, \
         last_ns INTEGER, calls INTEGER, steps INTEGER, collectives_per_step INTEGER, step_p50_ns INTEGER, \
         step_p90_ns INTEGER, step_p99_ns INTEGER, step_max_ns INTEGER, waited_rank_s REAL, waited_since_ns INTEGER, \
         collectives INTEGER, without_waits INTEGER, culprits TEXT, verdicts TEXT, cost REAL, currency TEXT, \
         user TEXT, account TEXT, partition TEXT, state TEXT, elapsed_s INTEGER, gpus INTEGER, name TEXT); BEGIN",
    )?;
    {
        let mut insert = conn.prepare(&format!("INSERT INTO jobs VALUES (?{})", ", ?".repeat(27)))?;
        for job in &jobs.jobs {
            let (steps, waited, money) = (job.steps.as_ref(), job.waited.as_ref(), job.money.as_ref());
            let known = job.accounting.as_ref();
            insert.execute(params![
                job.job_id,
                json(&job.nodes),
                job.nodes.len() as i64,
                job.ranks,
                job.first_ns,
                job.last_ns,
                job.calls,
                steps.map(|steps| steps.count),
                steps.map(|steps| steps.collectives as i64),
                steps.map(|steps| steps.p50_ns),
                steps.map(|steps| steps.p90_ns),
                steps.map(|steps| steps.p99_ns),
                steps.map(|steps| steps.max_ns),
                waited.map(|waited| waited.rank_seconds),
                waited.map(|waited| waited.asked_since_ns),
                waited.map(|waited| waited.collectives),
                waited.map(|waited| waited.without_waits),
                waited.map(|waited| json(&waited.culprits)),
                json(&job.verdicts),
                money.map(|money| money.total),
                money.map(|money| money.currency.clone()),
                known.map(|known| known.user.clone()),
                known.map(|known| known.account.clone()),
                known.map(|known| known.partition.clone()),
                known.map(|known| known.state.clone()),
                known.and_then(|known| known.elapsed_s),
                known.and_then(|known| known.gpus),
                known.map(|known| known.name.clone()),
            ])?;
        }
    }
    conn.execute_batch("COMMIT")?;
    conn.close().map_err(|(_, error)| error)?;
    export(&Export { db, out: out.to_owned(), tables: vec!["jobs".to_owned()], from_ns: None, until_ns: None })?;
    eprintln!("{} jobs into {}", jobs.jobs.len(), printable(&out.display().to_string()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::waits::{Charge, Waited};
    use super::super::Steps;
    use super::super::accounting::Accounting;
    use super::*;

    #[test]
    fn what_is_printed_fits_80_columns() {
        let charge = Charge { rank: 5, node: "gpu-0123".to_owned(), rank_seconds: 92.0, ..Charge::default() };
        let span = |verdict: &str| VerdictSpan {
            verdict: verdict.to_owned(),
            until_ns: 27_100_000_000,
            rank: Some(5),
            node: Some("gpu-0123".to_owned()),
            ..VerdictSpan::default()
        };
        let accounting = Accounting {
            user: "alice".to_owned(),
            account: "climate".to_owned(),
            state: "CANCELLED by 1000".to_owned(),
            ..Accounting::default()
        };
        let job = Job {
            job_id: "15663105".to_owned(),
            nodes: (100..164).map(|number| format!("gpu-0{number}")).collect(),
            ranks: 512,
            first_ns: 1_795_996_701_675_000_000,
            last_ns: 1_795_997_001_675_000_000,
            steps: Some(Steps { p50_ns: 189_000_000, p99_ns: 377_000_000, ..Steps::default() }),
            waited: Some(Waited { rank_seconds: 100.0, culprits: vec![charge], ..Waited::default() }),
            verdicts: vec![span("rank"), span("none")],
            accounting: Some(accounting),
            ..Job::default()
        };
        let without = Job { job_id: "4711_3".to_owned(), nodes: vec!["n0".to_owned()], ..Job::default() };
        let coverage = model::Coverage::default();
        let jobs =
            Jobs { version: 1, jobs: vec![job, without], repeat_culprits: vec![], calls_without_job: 7, coverage };
        let text = text(&jobs);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("job       ranks  began (UTC)"), "{text}");
        assert!(lines[1].starts_with("15663105    512  2026-11-29 23:58  300 s"), "{text}");
        assert!(
            lines[2].starts_with("  gpu-[0100-0163]; alice (climate), CANCELLED by 1000; waited most for rank 5 on"),
            "{text}"
        );
        assert!(text.contains("(92 %)") && text.contains("verdict: ") && text.contains(", 1 more"), "{text}");
        assert!(
            text.contains("\n4711_3 ") && text.contains("\n  n0\n") && text.contains("7 calls belong to no job"),
            "{text}"
        );
    }
}
