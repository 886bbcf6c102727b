//! `rankmesh cost`: what waiting for late ranks cost a job, by culprit and cause, from the stores.
//!
//! In a collective nobody leaves before everybody has entered: the rank that waits least came last,
//! and what all ranks wait longer than it is charged to it. Causes are those of `findings` that held
//! at the time. The span is asked for in slices, the newest first, so that a long job's answer says
//! how far it got instead of failing.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use explain::cost::{Money, Waste, amount};
use model::Coverage;
use serde::Serialize;

use super::args::{RateArgs, ReportFormat};
use super::rates::Priced;
use super::rows::{Asker, quoted};
#[cfg(feature = "serve")]
use super::target::Target;
use super::target::TargetArgs;
use super::values::parse_duration;
use super::{Exit, UsageError};
use crate::cells::{integer, real, text};
use crate::output::{printable, quiet, render};

/// A slice of the span: one question to the mesh.
const SLICE_NS: i64 = 20_000_000_000;
/// Culprits listed in text.
const ROWS: usize = 20;

/// Flags of `rankmesh cost`.
#[derive(Debug, Args)]
pub(super) struct CostArgs {
    /// Whom to ask.
    #[command(flatten)]
    target: TargetArgs,
    /// What a GPU costs.
    #[command(flatten)]
    rate: RateArgs,
    /// Only this job; of a Slurm job with a mesh of its own, that mesh
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// How far back [default: all that the stores have]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    since: Option<Duration>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    format: ReportFormat,
}

/// What `--format json` prints.
#[derive(Debug, Serialize)]
pub(super) struct Bill {
    version: u32,
    job: Option<String>,
    since_ns: i64,
    until_ns: i64,
    /// The slices that were asked reach back to here only.
    asked_since_ns: i64,
    collectives: i64,
    rank_seconds: f64,
    culprits: Vec<Charge>,
    #[serde(skip_serializing_if = "Option::is_none")]
    money: Option<Money>,
    /// Collectives of calls that only enqueue: they hold no waits.
    without_waits: i64,
    coverage: Coverage,
}

/// What one culprit cost by one cause.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Charge {
    rank: i64,
    node: String,
    cause: String,
    collectives: i64,
    rank_seconds: f64,
    money: Option<f64>,
}

pub(super) fn run(mut args: CostArgs) -> anyhow::Result<Exit> {
    let target = match args.target.of_any_job(&mut args.job)? {
        Ok(target) => target,
        Err(exit) => return Ok(exit),
    };
    let priced = Priced::of(&args.rate, &target)?;
    let asker = Asker::of(&target, &args.target);
    let mut bill = bill(args.job, args.since, target.now_ns(), &asker)?;
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
            bill.coverage.lines().iter().for_each(|line| eprintln!("{}", printable(line)));
        }
    }
    out.flush()?;
    Ok(if complete { Exit::Complete } else { Exit::Partial })
}

/// The bill of a job, priced.
///
/// # Errors
/// As [`Target::query`]; nothing is stored of that time.
#[cfg(feature = "serve")]
pub(super) fn of(
    target: &Target,
    job: Option<String>,
    since: Option<Duration>,
    timeout: Duration,
    rate: &RateArgs,
) -> anyhow::Result<Bill> {
    let mut bill = bill(job, since, target.now_ns(), &Asker::of_all(target, timeout))?;
    price(&mut bill, Priced::of(rate, target)?.as_ref());
    Ok(bill)
}

impl Bill {
    /// Whether every node and all the time is in it.
    pub(super) fn is_complete(&self) -> bool {
        self.coverage.is_complete() && self.asked_since_ns <= self.since_ns
    }

    /// Who is in it.
    #[cfg(feature = "serve")]
    pub(super) fn coverage(&self) -> &Coverage {
        &self.coverage
    }
}

fn bill(job: Option<String>, since: Option<Duration>, now_ns: i64, asker: &Asker<'_>) -> anyhow::Result<Bill> {
    let of_job = job.as_ref().map_or_else(String::new, |job| format!(" AND job_id = {}", quoted(job)));
    let back = |since: Duration| now_ns.saturating_sub(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX));
    let since_ns = since.map_or(0, back);
    let comms = asker.ask(format!(
        "SELECT comm_hash, min(ts_ns), max(ts_ns), sum(tier = 0) FROM collectives \
         WHERE ts_ns >= {since_ns} AND comm_hash IS NOT NULL{of_job} GROUP BY comm_hash"
    ))?;
    let mut coverage = comms.coverage;
    let hashes: Vec<String> =
        comms.rows.iter().filter_map(|row| integer(row, 0)).map(|hash| hash.to_string()).collect();
    if hashes.is_empty() {
        let whose = job.as_ref().map_or_else(String::new, |job| format!(" of job {job}"));
        return Err(UsageError(format!("no collectives{whose} are stored in this time")).into());
    }
    let first_ns = comms.rows.iter().filter_map(|row| integer(row, 1)).min().unwrap_or(now_ns).max(since_ns);
    let last_ns = comms.rows.iter().filter_map(|row| integer(row, 2)).max().unwrap_or(now_ns);
    let findings = asker.ask(
        "SELECT rank, culprit_node, since_ns, ts_ns, json_extract(detail, '$.cause.named[0]') FROM findings \
         WHERE verdict <> 'archive' ORDER BY ts_ns"
            .to_owned(),
    );
    let named = Named::of(&findings.map(|found| found.rows).unwrap_or_default());
    let mut sums: BTreeMap<(i64, String, String), (i64, f64)> = BTreeMap::new();
    let (mut without_waits, mut until_ns) = (0, last_ns.saturating_add(1));
    while until_ns > first_ns && !asker.left().is_zero() {
        let from_ns = until_ns.saturating_sub(SLICE_NS).max(first_ns);
        // The one that waits least came last; beside one min() alone, and no max(), SQLite gives the
        // other columns of its row (https://sqlite.org/lang_select.html#bareagg).
        let asked = asker.ask(format!(
            "SELECT rank, node, count(*), sum(waited), sum(enqueued > 0) FROM (SELECT min(wait_ns) AS least, rank, node, \
             sum(wait_ns) AS waited, sum(tier = 0) AS enqueued FROM lateness({from_ns}, {until_ns}) \
             WHERE comm_hash IN ({}) GROUP BY comm_hash, func, seq HAVING count(*) = avg(ranks) AND count(*) > 1) \
             GROUP BY rank, node",
            hashes.join(", ")
        ));
        let slice = match asked {
            Ok(slice) => slice,
            // The time is up: what there is says how far it got.
            Err(_) if asker.left() < Duration::from_millis(50) && until_ns <= last_ns => break,
            Err(error) => return Err(error),
        };
        if !slice.coverage.is_complete() {
            coverage = slice.coverage;
        }
        for row in &slice.rows {
            let (Some(rank), node) = (integer(row, 0), text(row, 1)) else { continue };
            let cause = named.at(rank, &node, from_ns, until_ns);
            let sum = sums.entry((rank, node, cause)).or_default();
            sum.0 += integer(row, 2).unwrap_or(0);
            sum.1 += real(row, 3).unwrap_or(0.0) / 1e9;
            without_waits += integer(row, 4).unwrap_or(0);
        }
        until_ns = from_ns;
    }
    let mut culprits: Vec<Charge> = sums
        .into_iter()
        .map(|((rank, node, cause), (collectives, rank_seconds))| Charge {
            rank,
            node,
            cause,
            collectives,
            rank_seconds,
            money: None,
        })
        .collect();
    culprits.sort_by(|a, b| b.rank_seconds.total_cmp(&a.rank_seconds));
    Ok(Bill {
        version: 1,
        job,
        since_ns: first_ns,
        until_ns: last_ns,
        asked_since_ns: until_ns,
        collectives: culprits.iter().map(|charge| charge.collectives).sum(),
        rank_seconds: culprits.iter().map(|charge| charge.rank_seconds).sum(),
        culprits,
        money: None,
        without_waits,
        coverage,
    })
}

fn price(bill: &mut Bill, priced: Option<&Priced>) {
    let wall_s = (bill.until_ns - bill.asked_since_ns).max(1) as f64 / 1e9;
    let waste = Waste {
        gpu_seconds: bill.rank_seconds,
        gpus_lost: bill.rank_seconds / wall_s,
        gpu_seconds_per_step: None,
        upper_bound: false,
    };
    let nodes: std::collections::BTreeSet<&str> = bill.culprits.iter().map(|charge| charge.node.as_str()).collect();
    let nodes: Vec<&str> = nodes.into_iter().collect();
    let money = priced.and_then(|priced| priced.money(&waste, &nodes));
    for charge in &mut bill.culprits {
        charge.money = money.as_ref().map(|money| charge.rank_seconds / 3600.0 * money.gpu_hour);
    }
    bill.money = money;
}

fn printed(bill: &Bill) -> String {
    let seconds = (bill.until_ns - bill.asked_since_ns) as f64 / 1e9;
    let mut out = format!(
        "In {seconds:.0} s ranks waited {:.1} rank-seconds in {} collectives for the one that came last.\n",
        bill.rank_seconds, bill.collectives
    );
    if let Some(money) = &bill.money {
        out.push_str(&money.text());
        out.push('\n');
    }
    let header = match &bill.money {
        Some(money) => format!("money ({})", money.currency),
        None => "money".to_owned(),
    };
    let rows = bill.culprits.iter().take(ROWS).map(|charge| {
        let share = if bill.rank_seconds > 0.0 { charge.rank_seconds / bill.rank_seconds * 100.0 } else { 0.0 };
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
    if bill.culprits.len() > ROWS {
        out.push_str(&format!("… and {} more (--format json has all)\n", bill.culprits.len() - ROWS));
    }
    if bill.asked_since_ns > bill.since_ns {
        let left = (bill.asked_since_ns - bill.since_ns) as f64 / 1e9;
        out.push_str(&format!("The time was up: {left:.0} s before that are not in it (give --timeout or --since)\n"));
    }
    if bill.without_waits > 0 {
        out.push_str(&format!(
            "{} collectives were calls that only enqueue: what their ranks waited is not in these figures\n",
            bill.without_waits
        ));
    }
    out
}

/// Which causes findings name, and since when, in order.
struct Named(Vec<NamedCause>);

struct NamedCause {
    since_ns: i64,
    /// Rank and node; none where nobody was named.
    who: Option<(i64, String)>,
    cause: String,
}

impl Named {
    /// `rows`: rank, node, since, found at, cause.
    fn of(rows: &[Vec<query_planner::Value>]) -> Self {
        let one = |row: &Vec<query_planner::Value>| {
            let since_ns = integer(row, 2).or(integer(row, 3)).unwrap_or(0);
            let who = integer(row, 0).map(|rank| (rank, text(row, 1)));
            let cause = text(row, 4);
            NamedCause { since_ns, who, cause: if cause.is_empty() { "unattributed".to_owned() } else { cause } }
        };
        let mut all: Vec<NamedCause> = rows.iter().map(one).collect();
        all.sort_by_key(|named| named.since_ns);
        Self(all)
    }

    /// The cause that was found for this rank and held in this time: until the next finding.
    fn at(&self, rank: i64, node: &str, from_ns: i64, until_ns: i64) -> String {
        let held = self.0.iter().enumerate().rev().find(|(at, named)| {
            let ended_ns = self.0.get(at + 1).map_or(i64::MAX, |next| next.since_ns);
            let is_it = named.who.as_ref().is_some_and(|(known, host)| *known == rank && host == node);
            is_it && named.since_ns < until_ns && ended_ns > from_ns
        });
        held.map_or_else(|| "not named".to_owned(), |(_, named)| named.cause.clone())
    }
}

#[cfg(test)]
mod tests {
    use query_planner::Value;

    use super::*;

    #[test]
    fn waits_go_to_the_cause_that_held_at_the_time() {
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        let row = |rank: Option<i64>, since_ns: i64, cause: Option<&str>| {
            vec![
                rank.map_or(Value::Null, Value::Integer),
                text("n1"),
                Value::Integer(since_ns),
                Value::Integer(since_ns),
                cause.map_or(Value::Null, text),
            ]
        };
        let named = Named::of(&[row(Some(3), 100, Some("sleep")), row(None, 200, None), row(Some(3), 300, None)]);
        assert_eq!(named.at(3, "n1", 110, 120), "sleep");
        assert_eq!(named.at(3, "n1", 210, 220), "not named", "nobody was named meanwhile");
        assert_eq!(named.at(3, "n1", 310, 320), "unattributed");
        assert_eq!(named.at(3, "n2", 110, 120), "not named");
        assert_eq!(named.at(2, "n1", 110, 120), "not named");
    }

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
            asked_since_ns: 10_000_000_000,
            collectives: 10,
            rank_seconds: 36.0,
            culprits: vec![charge],
            money: None,
            without_waits: 2,
            coverage: Coverage::default(),
        };
        let plain = printed(&bill);
        assert!(
            plain.contains("10 s before that are not in it") && plain.contains("2 collectives were calls that only"),
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
        bill.culprits[0].money = Some(1.0);
        assert!(printed(&bill).contains("money (EUR)"), "{}", printed(&bill));
    }
}
