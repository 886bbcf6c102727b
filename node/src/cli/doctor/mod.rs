//! `rankmesh doctor`: every node of the mesh, and the ways between them, with what to do.
//!
//! The agent asks the members (`agent::health`), `judge` concludes (a pure function of what they
//! said), `text` prints for people. The JSON is both; docs/operations.md says what its fields mean.

use std::io::Write;

use anyhow::{Context, bail};
use clap::Args;
use model::{LocalRequest, Question};
use query_planner::Value;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::Exit;
use super::args::{ReportFormat, SocketArg};
use super::local::{self, Piece, Reply};
use crate::output::cell_text;

mod judge;
mod text;

/// What was lost within so long is a finding.
const LOSSES: &str = "SELECT node, probe, reason, sum(lost) FROM capture_loss \
     WHERE ts_ns > CAST(strftime('%s', 'now') AS INTEGER) * 1000000000 - 3600000000000 GROUP BY 1, 2, 3";

/// Flags of `rankmesh doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// The local agent.
    #[command(flatten)]
    socket: SocketArg,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    format: ReportFormat,
}

/// All of it, for scripts.
#[derive(Debug, Serialize)]
struct Report {
    examination: judge::Examination,
    findings: Vec<judge::Finding>,
}

/// Exit code 0 when nothing was found that is wrong, 1 when something was.
pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<Exit> {
    let Reply::Text(json) = local::ask(&args.socket, &LocalRequest::Doctor)? else {
        bail!("the agent gave rows where a text was expected")
    };
    let examination: judge::Examination = serde_json::from_str(&json).context("reading what the agent says")?;
    let mut findings = judge::judge(&examination);
    findings.extend(losses(&args.socket));
    findings.sort_by(|a, b| (a.state, &a.node).cmp(&(b.state, &b.node)));
    let wrong = findings.iter().any(|finding| finding.state == judge::State::Wrong);
    let report = Report { examination, findings };
    let mut out = std::io::stdout().lock();
    match args.format {
        ReportFormat::Json => writeln!(out, "{}", crate::output::quiet(&serde_json::to_string(&report)?))?,
        ReportFormat::Table => write!(out, "{}", text::text(&report.examination, &report.findings))?,
    }
    Ok(if wrong { Exit::Failed } else { Exit::Complete })
}

/// What nodes could not record or keep in the last hour.
fn losses(socket: &SocketArg) -> Vec<judge::Finding> {
    let question = Question {
        sql: LOSSES.to_owned(),
        timeout_ms: 5_000,
        nodes: vec![],
        labels: vec![],
        per_node: false,
        plan_only: false,
        analyze: false,
    };
    let mut rows = Vec::new();
    let asked =
        local::ask_into(socket, None, &LocalRequest::Query(question), &CancellationToken::new(), &mut |piece| {
            if let Piece::Rows(more) = piece {
                rows.extend(more);
            }
            Ok(())
        });
    match asked {
        Ok(_) => rows.iter().filter_map(|row| loss(row)).collect(),
        Err(error) => vec![judge::losses_unknown(&format!("{error:#}"))],
    }
}

fn loss(row: &[Value]) -> Option<judge::Finding> {
    let [node, probe, reason, Value::Integer(lost)] = row else { return None };
    (*lost > 0).then(|| judge::lost(&cell_text(node), &cell_text(probe), &cell_text(reason), *lost))
}
