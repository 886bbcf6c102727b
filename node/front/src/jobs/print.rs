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

/// The table, and below it who was a culprit in several jobs.
pub(super) fn text(jobs: &Jobs) -> String {
    let is_accounted = jobs.jobs.iter().any(|job| job.accounting.is_some());
    let currency = jobs.jobs.iter().find_map(|job| Some(job.money.as_ref()?.currency.clone()));
    let money = currency.map(|currency| format!("cost ({currency})"));
    let mut columns = vec!["job"];
    columns.extend(is_accounted.then_some(["user", "account", "state"]).into_iter().flatten());
    columns.extend(["nodes", "ranks", "began", "time", "step p50", "p99", "waited rank-s", "most for", "verdicts"]);
    columns.extend(money.as_deref());
    let of_account = if is_accounted { 3 } else { 0 };
    let right: Vec<bool> =
        columns.iter().enumerate().map(|(at, _)| [2, 4, 5, 6, 7, 10].contains(&at.wrapping_sub(of_account))).collect();
    let rows = jobs.jobs.iter().map(|job| row(job, is_accounted, money.is_some()));
    let table = render(&columns, rows, &right);
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
    format!("{table}\n{}", verdicts::wrapped(&out))
}

fn row(job: &Job, is_accounted: bool, has_money: bool) -> Vec<String> {
    let mut cells = vec![job.job_id.clone()];
    if is_accounted {
        let known = job.accounting.clone().unwrap_or_default();
        cells.extend([known.user, known.account, known.state]);
    }
    let folded = fold_names(job.nodes.iter().map(String::as_str));
    let of = |ns: Option<i64>| ns.map_or_else(|| "-".to_owned(), duration);
    let waited = job.waited.as_ref();
    let most = waited.and_then(|waited| waited.culprits.first()).map_or_else(String::new, |charge| {
        let share = waited.map_or(0.0, |waited| charge.rank_seconds / waited.rank_seconds.max(f64::MIN_POSITIVE));
        format!("rank {} on {} ({:.0} %)", charge.rank, charge.node, share * 100.0)
    });
    cells.extend([
        verdicts::hostlist::first_parts(&folded, HOSTS),
        job.ranks.to_string(),
        store::show_time(job.first_ns),
        duration(job.last_ns - job.first_ns),
        of(job.steps.as_ref().map(|steps| steps.p50_ns)),
        of(job.steps.as_ref().map(|steps| steps.p99_ns)),
        waited.map_or_else(|| "-".to_owned(), |waited| format!("{:.1}", waited.rank_seconds)),
        most,
        verdict(&job.verdicts),
    ]);
    if has_money {
        cells.push(job.money.as_ref().map_or_else(String::new, |money| amount(money.total)));
    }
    cells
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
    export(&Export { db, out: out.to_owned(), tables: vec!["jobs".to_owned()], since: None })?;
    eprintln!("{} jobs into {}", jobs.jobs.len(), printable(&out.display().to_string()));
    Ok(())
}
