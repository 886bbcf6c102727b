//! `rankmesh check`: what this host can capture, what not, why, and what to do about it; or a
//! store's integrity.
//!
//! `node_bpf::survey` looks, `model` judges (a pure function of what was seen), `text` prints for
//! people. The JSON is the model as it is; docs/operations.md explains its fields.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use ask::Exit;
use ask::args::ReportFormat;
use serde_json::json;
use store;

use super::args::CheckArgs;

mod model;
mod text;

pub(super) fn run(args: CheckArgs) -> anyhow::Result<Exit> {
    match &args.db {
        Some(file) => store_file(file, args.format),
        None => host(args.format),
    }
}

fn host(format: ReportFormat) -> anyhow::Result<Exit> {
    let binary = std::env::current_exe().context("finding this program's file")?;
    let survey = node_bpf::survey(&node_bpf::CaptureConfig::default());
    let report = model::judge(&model::Seen {
        survey: &survey,
        granted: &node_bpf::privileges::granted(),
        binary: &binary.to_string_lossy(),
    });
    let mut out = std::io::stdout().lock();
    match format {
        ReportFormat::Json => writeln!(out, "{}", serde_json::to_string(&report)?)?,
        ReportFormat::Table => write!(out, "{}", text::text(&report))?,
    }
    Ok(if report.capture.possible { Exit::Complete } else { Exit::Failed })
}

fn store_file(file: &Path, format: ReportFormat) -> anyhow::Result<Exit> {
    let problems = store::integrity(file)?;
    let mut out = std::io::stdout().lock();
    match format {
        ReportFormat::Json => {
            writeln!(out, "{}", json!({"file": file, "ok": problems.is_empty(), "problems": problems}))?
        }
        ReportFormat::Table if problems.is_empty() => writeln!(out, "{}: intact", file.display())?,
        ReportFormat::Table => {
            for problem in &problems {
                writeln!(out, "{}: {problem}", file.display())?;
            }
        }
    }
    Ok(if problems.is_empty() { Exit::Complete } else { Exit::Failed })
}
