//! `rankmesh doctor`: every node of the mesh, and the paths between them, with remedies.
//!
//! The agent asks the members (`agent::health`), `judge` concludes (a pure function of their
//! answers), `text` prints for people. The JSON has both; docs/operations.md explains its fields.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use ask::args::{ReportFormat, SocketArg};
use ask::output::cell_text;
use ask::rows::Client;
use ask::{Connector, Exit, Target};
use clap::Args;
use model::LocalRequest;
use query_planner::Value;
use serde::Serialize;

mod judge;
mod text;

/// Losses within this time are a finding.
const LOSSES: &str = "SELECT node, probe, reason, sum(lost) FROM capture_loss \
     WHERE ts_ns > CAST(strftime('%s', 'now') AS INTEGER) * 1000000000 - 3600000000000 GROUP BY 1, 2, 3";

/// Time for that question.
const LOSSES_WITHIN: Duration = Duration::from_secs(5);

/// Flags of `rankmesh doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The local agent.
    #[command(flatten)]
    socket: SocketArg,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    format: ReportFormat,
}

/// The JSON document for scripts.
#[derive(Debug, Serialize)]
struct Report {
    examination: judge::Examination,
    findings: Vec<judge::Finding>,
}

/// Exit code 0 when nothing was found that is wrong, 1 when something was.
pub fn run(args: &DoctorArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let target = Target::agent(&args.socket, connector);
    let json = target.document(LocalRequest::Doctor)?;
    let examination: judge::Examination = serde_json::from_str(&json).context("reading what the agent says")?;
    let mut findings = judge::judge(&examination);
    findings.extend(losses(&target));
    findings.sort_by(|a, b| (a.state, &a.node).cmp(&(b.state, &b.node)));
    let wrong = findings.iter().any(|finding| finding.state == judge::State::Wrong);
    let report = Report { examination, findings };
    let mut out = std::io::stdout().lock();
    match args.format {
        ReportFormat::Json => writeln!(out, "{}", ask::output::quiet(&serde_json::to_string(&report)?))?,
        ReportFormat::Table => write!(out, "{}", text::text(&report.examination, &report.findings))?,
    }
    Ok(if wrong { Exit::Failed } else { Exit::Complete })
}

/// What nodes could not record or keep in the last hour.
fn losses(target: &Target) -> Vec<judge::Finding> {
    match Client::of_all(target, LOSSES_WITHIN).ask(LOSSES.to_owned()) {
        Ok(found) => found.rows.iter().filter_map(|row| loss(row)).collect(),
        Err(error) => vec![judge::losses_unknown(&format!("{error:#}"))],
    }
}

fn loss(row: &[Value]) -> Option<judge::Finding> {
    let [node, probe, reason, Value::Integer(lost)] = row else { return None };
    (*lost > 0).then(|| judge::lost(&cell_text(node), &cell_text(probe), &cell_text(reason), *lost))
}
