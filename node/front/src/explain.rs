//! `rankmesh explain`: a verdict with the chain of events behind it, its cost, and what to do.

use std::io::Write;
use std::time::Duration;

use anyhow::bail;
use ask::args::{ReportFormat, SpanArgs, TargetArgs};
use ask::output::{quiet, say_coverage};
use ask::values::parse_hash;
use ask::{Connector, Exit};
use clap::Args;
use explain::cost::Waste;
use model::{ExplainQuestion, ExplainWhat};

use super::args::RateArgs;
use super::query::print_coverage;
use super::rates::Priced;
use super::{cost, runbook};

/// Time for asking the stores what the job has lost so far.
const SO_FAR: Duration = Duration::from_secs(3);

/// Flags of `rankmesh explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Whom to ask.
    #[command(flatten)]
    target: TargetArgs,
    /// What a GPU costs.
    #[command(flatten)]
    rate: RateArgs,
    /// Of which time.
    #[command(flatten)]
    span: SpanArgs,
    /// Only this job; of a Slurm job with a mesh of its own, that mesh
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Only this communicator, by its hexadecimal hash
    #[arg(long, value_name = "HASH", value_parser = parse_hash)]
    comm: Option<u64>,
    /// Also print the SQL that gives the figures again
    #[arg(long)]
    show_sql: bool,
    /// Also print the whole runbook, not its commands alone
    #[arg(long)]
    runbook: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    format: ReportFormat,
    /// Explain this finding: its `ts_ns` in the table `findings`
    #[arg(value_name = "FINDING-ID", conflicts_with_all = ["since", "until", "between"])]
    finding: Option<i64>,
}

/// Prints the chain behind a verdict.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(mut args: ExplainArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let target = args.target.of_any_job(&mut args.job, connector)?;
    let what = match (args.finding, args.span.resolved(&target)?) {
        (Some(ts_ns), _) => ExplainWhat::Finding { ts_ns },
        (None, span) => ExplainWhat::Of(span),
    };
    let question = ExplainQuestion {
        what,
        job: args.job.clone(),
        comm: args.comm,
        timeout_ms: args.target.timeout_ms(),
        nodes: args.target.ask.nodes.clone(),
        labels: args.target.ask.label.clone(),
    };
    let priced = Priced::of(&args.rate, &target)?;
    let found = target.explain(question).inspect_err(print_coverage)?;
    if args.target.ask.require_all && !found.coverage.is_complete() {
        say_coverage(&found.coverage);
        bail!("the answer is partial and --require-all was given: nothing is printed");
    }
    let money = found.cost.as_ref().zip(priced.as_ref()).and_then(|(cost, priced)| {
        let waste = Waste {
            gpu_seconds: cost.gpu_seconds,
            gpus_lost: cost.gpus_lost,
            gpu_seconds_per_step: cost.gpu_seconds_per_step,
            upper_bound: cost.upper_bound,
        };
        priced.money(&waste, &cost.nodes.iter().map(String::as_str).collect::<Vec<_>>())
    });
    // Of a verdict that is still on: what its job has lost by now.
    let is_on = found.since.as_ref().is_some_and(|since| since.ongoing);
    let place = found.place.as_ref().filter(|_| is_on);
    let so_far =
        place.and_then(|place| cost::so_far(&target, place, SO_FAR, priced.as_ref()).map(|bill| (place, bill)));
    let mut out = std::io::stdout().lock();
    match args.format {
        ReportFormat::Json => {
            let mut value = serde_json::to_value(&found)?;
            if let Some(money) = money {
                value["money"] = serde_json::to_value(money)?;
            }
            if let Some((_, bill)) = &so_far {
                value["so_far"] = serde_json::to_value(bill)?;
            }
            writeln!(out, "{}", quiet(&value.to_string()))?;
        }
        ReportFormat::Table => {
            write!(out, "{}", explain::page::text(&found, args.show_sql))?;
            if let Some(money) = money {
                writeln!(out, "{}", money.text())?;
            }
            if let Some((place, bill)) = so_far.as_ref().filter(|(_, bill)| bill.is_of_some()) {
                write!(out, "{}", record::wrapped(&bill.sentence(place.rank)))?;
            }
            write!(out, "{}", runbook::to_do(&found, args.runbook)?)?;
            say_coverage(&found.coverage);
        }
    }
    out.flush()?;
    Ok(if found.coverage.is_complete() { Exit::Complete } else { Exit::Partial })
}
