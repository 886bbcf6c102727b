//! `rankmesh explain`: a verdict with the chain of what was seen behind it, its cost, and what to do.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use explain::cost::Waste;
use explain::runbook::{Values, filled, only_commands};
use model::explanation::Explanation;
use model::{ExplainQuestion, ExplainWhat, LocalRequest};

use super::args::{AskArgs, RateArgs, ReportFormat, SocketArg};
use super::local::{self, Reply};
use super::query::say_coverage;
use super::rates::Priced;
use super::runbook;
use super::times::parse_time;
use super::values::{parse_duration, parse_hash};
use super::{Exit, UsageError};
use crate::output::{printable, printable_lines, quiet};

/// Flags of `rankmesh explain`.
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The local agent.
    #[command(flatten)]
    socket: SocketArg,
    /// Whom to ask.
    #[command(flatten)]
    ask: AskArgs,
    /// What a GPU costs.
    #[command(flatten)]
    rate: RateArgs,
    /// Explain the verdict of the stores' last time instead of the standing one
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["between", "finding"])]
    since: Option<Duration>,
    /// Explain the verdict of this time: 10m (ago), 14:05:30 or 2026-11-22T03:00 (this host's zone)
    #[arg(long, num_args = 2, value_names = ["A", "B"], value_parser = parse_time, conflicts_with = "finding", allow_hyphen_values = true)]
    between: Vec<i64>,
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
    #[arg(value_name = "FINDING-ID")]
    finding: Option<i64>,
}

pub(super) fn run(mut args: ExplainArgs) -> anyhow::Result<Exit> {
    match super::slurm::reach_own_mesh(&args.socket, &mut args.job)? {
        Ok(socket) => args.socket = socket,
        Err(exit) => return Ok(exit),
    }
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let what = match (args.finding, args.between.as_slice(), args.since) {
        (Some(ts_ns), ..) => ExplainWhat::Finding { ts_ns },
        (None, &[since_ns, until_ns], _) if since_ns < until_ns => ExplainWhat::Between { since_ns, until_ns },
        (None, &[_, _], _) => return Err(UsageError("--between A B: A has to be before B".to_owned()).into()),
        (None, _, Some(since)) => ExplainWhat::Since { since_ms: millis(since) },
        (None, _, None) => ExplainWhat::Standing,
    };
    let request = LocalRequest::Explain(ExplainQuestion {
        what,
        job: args.job.clone(),
        comm: args.comm,
        timeout_ms: millis(args.ask.timeout),
        nodes: args.ask.nodes.clone(),
        labels: args.ask.label.clone(),
    });
    let priced = Priced::of(&args.rate, &args.socket)?;
    let reply = local::ask(&args.socket, &request).inspect_err(say_coverage)?;
    let Reply::Text(json) = reply else { bail!("the agent gave rows for an explanation") };
    let found: Explanation = serde_json::from_str(&json).context("reading the agent's explanation")?;
    if args.ask.require_all && !found.coverage.is_complete() {
        found.coverage.lines().iter().for_each(|line| eprintln!("{}", printable(line)));
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
    let mut out = std::io::stdout().lock();
    match args.format {
        ReportFormat::Json => {
            let mut value = serde_json::to_value(&found)?;
            if let Some(money) = money {
                value["money"] = serde_json::to_value(money)?;
            }
            writeln!(out, "{}", quiet(&value.to_string()))?;
        }
        ReportFormat::Table => {
            write!(out, "{}", explain::page::text(&found, args.show_sql))?;
            if let Some(money) = money {
                writeln!(out, "{}", money.text())?;
            }
            write!(out, "{}", to_do(&found, args.runbook)?)?;
            let lines = found.coverage.lines();
            lines.iter().for_each(|line| eprintln!("{}", printable(line)));
        }
    }
    out.flush()?;
    Ok(if found.coverage.is_complete() { Exit::Complete } else { Exit::Partial })
}

/// What to do: the commands of the runbook that fits, or all of it.
fn to_do(found: &Explanation, whole: bool) -> anyhow::Result<String> {
    let Some(kind) = &found.runbook else { return Ok(String::new()) };
    let Some(page) = runbook::text(Path::new(runbook::SITE_PAGES), kind)? else { return Ok(String::new()) };
    let values: Values = found.values.iter().cloned().collect();
    if whole {
        return Ok(printable_lines(&format!("\n{}", filled(&page, &values))) + "\n");
    }
    let title = page.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default();
    let mut out = format!("\nWhat to do (rankmesh runbook {kind}): {title}\n");
    for section in ["Check", "Fix", "Verify"] {
        let commands = only_commands(&page, section, &values);
        if !commands.is_empty() {
            out.push_str(&format!("  {section}:\n"));
            commands.lines().filter(|line| !line.is_empty()).for_each(|line| out.push_str(&format!("    {line}\n")));
        }
    }
    Ok(printable_lines(&out) + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_has_the_real_process_in_its_commands() {
        let found = Explanation {
            runbook: Some("cpu_stolen".to_owned()),
            values: vec![("OTHER".to_owned(), "812".to_owned()), ("PID".to_owned(), "4711".to_owned())],
            ..Explanation::default()
        };
        let text = to_do(&found, false).unwrap();
        assert!(text.contains("renice -n 19 -p 812") && text.contains("taskset -cp 4711"), "{text}");
        assert!(to_do(&found, true).unwrap().contains("## Fix"));
        assert_eq!(to_do(&Explanation::default(), false).unwrap(), "");
    }
}
