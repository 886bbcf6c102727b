//! `rankmesh cost`: what waiting for late ranks cost a job, by culprit and cause, from the stores.
//!
//! `waits` computes it.

use std::io::Write;
use std::time::Duration;

use anyhow::bail;
use ask::args::{ReportFormat, SpanArgs, TargetArgs};
use ask::output::{quiet, render, say_coverage};
use ask::rows::Client;
use ask::{Connector, Exit, Target, UsageError};
use clap::Args;
use explain::cost::{Money, Waste, amount};
use model::Coverage;
use model::cells::{integer, quoted, text};
use model::explanation::Place;
use serde::Serialize;

use super::args::RateArgs;
use super::rates::Priced;
use super::waits::{self, Calls, Charge, Named, Waited};

/// Culprits listed in text.
const ROWS: usize = 20;

/// Flags of `rankmesh cost`.
#[derive(Debug, Args)]
pub struct CostArgs {
    /// Whom to ask.
    #[command(flatten)]
    target: TargetArgs,
    /// What a GPU costs.
    #[command(flatten)]
    rate: RateArgs,
    /// Only this job; of a Slurm job with a mesh of its own, that mesh
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Of which time; without it all that the stores have.
    #[command(flatten)]
    span: SpanArgs,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    format: ReportFormat,
}

/// What `--format json` prints.
#[derive(Debug, Serialize)]
pub struct Bill {
    version: u32,
    job: Option<String>,
    since_ns: i64,
    until_ns: i64,
    #[serde(flatten)]
    waited: Waited,
    #[serde(skip_serializing_if = "Option::is_none")]
    money: Option<Money>,
    coverage: Coverage,
}

/// Prints what waiting for late ranks cost.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(mut args: CostArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let target = args.target.of_any_job(&mut args.job, connector)?;
    let priced = Priced::of(&args.rate, &target)?;
    let client = Client::of(&target, &args.target);
    let mut bill = bill(args.job, args.span.resolved_ns(&target)?, &client)?;
    let complete = bill.is_complete();
    if args.target.ask.require_all && !complete {
        bail!("the answer is partial and --require-all was given: nothing is printed");
    }
    price(&mut bill, priced.as_ref());
    let mut out = std::io::stdout().lock();
    match args.format {
        ReportFormat::Json => writeln!(out, "{}", quiet(&serde_json::to_string(&bill)?))?,
        ReportFormat::Table => {
            write!(out, "{}", printed(&bill))?;
            say_coverage(&bill.coverage);
        }
    }
    out.flush()?;
    Ok(if complete { Exit::Complete } else { Exit::Partial })
}

/// The bill of a job, priced.
///
/// # Errors
/// As [`Target::query`]; nothing is stored of that time.
pub fn of(
    target: &Target,
    job: Option<String>,
    span_ns: Option<(i64, i64)>,
    timeout: Duration,
    rate: &RateArgs,
) -> anyhow::Result<Bill> {
    let mut bill = bill(job, span_ns, &Client::of_all(target, timeout))?;
    price(&mut bill, Priced::of(rate, target)?.as_ref());
    Ok(bill)
}

/// The bill, so far, of the job of a process; none where its job is not known, or no answer came in
/// that time.
pub fn so_far(target: &Target, place: &Place, patience: Duration, priced: Option<&Priced>) -> Option<Bill> {
    let client = Client::of_all(target, patience);
    let jobs = client.ask(format!(
        "SELECT job_id FROM processes WHERE node = {} AND pid = {} AND job_id IS NOT NULL ORDER BY seen_ns DESC LIMIT 1",
        quoted(&place.node),
        place.pid
    ));
    let job = jobs.ok()?.rows.first().map(|row| text(row, 0))?;
    let mut bill = bill(Some(job), None, &client).ok()?;
    price(&mut bill, priced);
    (bill.waited.asked_since_ns < bill.until_ns).then_some(bill)
}

impl Bill {
    /// In one sentence: the waiting in the job, and the part of it that one rank caused.
    pub fn sentence(&self, rank: i32) -> String {
        let seconds = (self.until_ns - self.waited.asked_since_ns) as f64 / 1e9;
        let of_it: Vec<&Charge> = self.waited.culprits.iter().filter(|charge| charge.rank == i64::from(rank)).collect();
        let for_it = of_it.iter().fold(0.0, |sum, charge| sum + charge.rank_seconds);
        let money = of_it.iter().try_fold(0.0, |sum, charge| Some(sum + charge.money?));
        let money = money.zip(self.money.as_ref());
        let money = money.map_or_else(String::new, |(paid, of)| format!(" ({} {})", amount(paid), of.currency));
        let span = if self.waited.asked_since_ns > self.since_ns { "in its last" } else { "in its" };
        let partial = if self.is_complete() { "" } else { ", as far as was answered (rankmesh cost has the rest)" };
        format!(
            "The job so far: {span} {seconds:.0} s ranks waited {for_it:.1} rank-seconds{money} for rank {rank}, of {:.1} for all{partial}.",
            self.waited.rank_seconds
        )
    }

    /// Whether any collective's waiting is in it.
    pub fn is_of_some(&self) -> bool {
        self.waited.is_of_some()
    }

    /// Whether all nodes and all of the time are in it.
    pub fn is_complete(&self) -> bool {
        self.coverage.is_complete() && self.waited.asked_since_ns <= self.since_ns
    }

    /// Coverage of it.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }
}

fn bill(job: Option<String>, span_ns: Option<(i64, i64)>, client: &Client<'_>) -> anyhow::Result<Bill> {
    let of_job = job.as_ref().map_or_else(String::new, |job| format!(" AND job_id = {}", quoted(job)));
    let (since_ns, until_ns) = span_ns.unwrap_or((0, i64::MAX));
    let comms = client.ask(format!(
        "SELECT comm_hash, min(ts_ns), max(ts_ns), count(*), max(duration_ns) FROM collectives \
         WHERE ts_ns >= {since_ns} AND ts_ns < {until_ns} AND comm_hash IS NOT NULL{of_job} GROUP BY comm_hash"
    ))?;
    let mut coverage = comms.coverage;
    let hashes: Vec<String> =
        comms.rows.iter().filter_map(|row| integer(row, 0)).map(|hash| hash.to_string()).collect();
    if hashes.is_empty() {
        let whose = job.as_ref().map_or_else(String::new, |job| format!(" of job {job}"));
        return Err(UsageError(format!("no collectives{whose} are stored in this time")).into());
    }
    let first_ns = comms.rows.iter().filter_map(|row| integer(row, 1)).min().unwrap_or(since_ns);
    let last_ns = comms.rows.iter().filter_map(|row| integer(row, 2)).max().unwrap_or(since_ns);
    let calls = comms.rows.iter().filter_map(|row| integer(row, 3)).sum();
    let longest_ns = comms.rows.iter().filter_map(|row| integer(row, 4)).max().unwrap_or(0);
    let of = Calls { comms: hashes, span_ns: (first_ns, last_ns), calls, longest_ns };
    let waited = waits::waited(client, &of, &Named::ask(client), &mut coverage)?;
    Ok(Bill { version: 1, job, since_ns: first_ns, until_ns: last_ns, waited, money: None, coverage })
}

fn price(bill: &mut Bill, priced: Option<&Priced>) {
    let wall_s = (bill.until_ns - bill.waited.asked_since_ns).max(1) as f64 / 1e9;
    let waste = Waste {
        gpu_seconds: bill.waited.rank_seconds,
        gpus_lost: bill.waited.rank_seconds / wall_s,
        gpu_seconds_per_step: None,
        upper_bound: false,
    };
    let nodes: std::collections::BTreeSet<&str> =
        bill.waited.culprits.iter().map(|charge| charge.node.as_str()).collect();
    let nodes: Vec<&str> = nodes.into_iter().collect();
    let money = priced.and_then(|priced| priced.money(&waste, &nodes));
    for charge in &mut bill.waited.culprits {
        charge.money = money.as_ref().map(|money| charge.rank_seconds / 3600.0 * money.gpu_hour);
    }
    bill.money = money;
}

fn printed(bill: &Bill) -> String {
    let seconds = (bill.until_ns - bill.waited.asked_since_ns) as f64 / 1e9;
    if !bill.is_of_some() {
        let words = "In {} s no collective was recorded of which all ranks' calls can be told by their number (those of a \
                     communicator whose beginning was not recorded have none): what ranks waited is not known here. rankmesh \
                     stragglers also matches calls by when they ended.";
        return record::wrapped(&words.replace("{}", &format!("{seconds:.0}")));
    }
    let mut out = record::wrapped(&format!(
        "In {seconds:.0} s ranks waited {:.1} rank-seconds in {} collectives for the one that came last.",
        bill.waited.rank_seconds, bill.waited.collectives
    ));
    if bill.waited.incomplete > 0 {
        let words = "{} more collectives are not in it: not all of their ranks' calls have a number here (a host without \
                     an agent, an agent that was started again, time slices).";
        out.push_str(&record::wrapped(&words.replace("{}", &bill.waited.incomplete.to_string())));
    }
    if let Some(money) = &bill.money {
        out.push_str(&money.text());
        out.push('\n');
    }
    let header = match &bill.money {
        Some(money) => format!("money ({})", money.currency),
        None => "money".to_owned(),
    };
    let rows = bill.waited.culprits.iter().take(ROWS).map(|charge| {
        let share =
            if bill.waited.rank_seconds > 0.0 { charge.rank_seconds / bill.waited.rank_seconds * 100.0 } else { 0.0 };
        let mut cells = vec![
            charge.rank.to_string(),
            charge.node.clone(),
            charge.cause.clone(),
            charge.collectives.to_string(),
            format!("{:.1}", charge.rank_seconds),
            format!("{share:.0} %"),
        ];
        cells.extend(charge.money.map(amount));
        cells
    });
    let mut columns = vec!["rank", "node", "cause", "last in", "rank-seconds", "share"];
    columns.extend(bill.money.is_some().then_some(header.as_str()));
    out.push_str(&render(&columns, rows, &[true, false, false, true, true, true, true]));
    out.push('\n');
    if bill.waited.culprits.len() > ROWS {
        out.push_str(&format!("… and {} more (--format json has all)\n", bill.waited.culprits.len() - ROWS));
    }
    if bill.waited.asked_since_ns > bill.since_ns {
        let left = (bill.waited.asked_since_ns - bill.since_ns) as f64 / 1e9;
        let words = format!("The time was up: {left:.0} s before that are not in it (give --timeout or --since)");
        out.push_str(&record::wrapped(&words));
    }
    if bill.waited.without_waits > 0 {
        out.push_str(&record::wrapped(&format!(
            "{} collectives were calls that only enqueue: what their ranks waited is not in these figures",
            bill.waited.without_waits
        )));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_says_what_it_does_not_hold() {
        let charge = Charge {
            rank: 3,
            node: "n1".into(),
            cause: "sleep".into(),
            collectives: 10,
            rank_seconds: 36.0,
            money: None,
        };
        let mut bill = Bill {
            version: 1,
            job: None,
            since_ns: 0,
            until_ns: 20_000_000_000,
            waited: Waited {
                asked_since_ns: 10_000_000_000,
                collectives: 10,
                rank_seconds: 36.0,
                culprits: vec![charge],
                without_waits: 2,
                incomplete: 3,
            },
            money: None,
            coverage: Coverage::default(),
        };
        let plain = printed(&bill);
        assert!(plain.lines().all(|line| line.chars().count() <= 80), "{plain}");
        assert!(
            plain.contains("10 s before that are not in it")
                && plain.contains("2 collectives were calls that only")
                && plain.contains("3 more collectives are not in it"),
            "{plain}"
        );
        bill.money = Some(Money {
            currency: "EUR".into(),
            gpu_hour: 100.0,
            total: 1.0,
            per_hour: 360.0,
            per_step: None,
            upper_bound: false,
            without_rate: 0,
        });
        bill.waited.culprits[0].money = Some(1.0);
        assert!(printed(&bill).contains("money (EUR)"), "{}", printed(&bill));
        assert_eq!(
            bill.sentence(3),
            "The job so far: in its last 10 s ranks waited 36.0 rank-seconds (1.00 EUR) for rank 3, of 36.0 for all, as far as was \
             answered (rankmesh cost has the rest)."
        );
        bill.waited.asked_since_ns = 0;
        assert_eq!(
            bill.sentence(2),
            "The job so far: in its 20 s ranks waited 0.0 rank-seconds (0.00 EUR) for rank 2, of 36.0 for all."
        );
    }

    #[test]
    fn where_nothing_can_be_matched_the_bill_says_why() {
        let coverage = Coverage::default();
        let waited = Waited::default();
        let bill = Bill { version: 1, job: None, since_ns: 0, until_ns: 20_000_000_000, waited, money: None, coverage };
        let said = printed(&bill);
        assert!(said.starts_with("In 20 s no collective was recorded") && !said.contains("0.0"), "{said}");
        assert!(said.contains("rankmesh stragglers") && said.lines().all(|line| line.chars().count() <= 80), "{said}");
    }
}
