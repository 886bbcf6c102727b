//! Files that `e` writes: what is shown, into the directory in which the command was started.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use serde_json::json;
use top::{Answer, Data, View};

/// Writes the contents of a view as JSON; returns the file's name.
///
/// # Errors
/// It cannot be written, or is there already.
pub(super) fn view(view: View, data: &Data) -> anyhow::Result<PathBuf> {
    let samples: Vec<_> = data
        .samples
        .iter()
        .map(|(node, sample)| {
            json!({
                "node": node, "cpu_busy": sample.cpu, "gpus": sample.gpus, "sm_clock_mhz": sample.sm_mhz,
                "sm_clock_most_mhz": sample.sm_most_mhz, "held_down_by": sample.throttled, "records_lost": sample.lost,
            })
        })
        .collect();
    let table = |answer: &Answer| json!({"sql": answer.sql, "columns": answer.columns, "rows": answer.rows, "notes": answer.notes});
    let mut shown = json!({"view": view.name(), "at_ns": data.show_at, "watched": data.watched});
    match view {
        View::Ranks | View::Heat => shown["board"] = serde_json::to_value(data.board_document())?,
        View::Nodes => shown["samples"] = json!(samples),
        View::Findings => shown["findings"] = table(&data.findings),
        View::Services => shown["services"] = table(&data.services),
        View::Rank => {
            shown["rank"] = match &data.detail {
                Some(detail) => json!({
                    "node": detail.of.0, "pid": detail.of.1, "times": detail.times, "process": detail.process,
                    "stack": detail.stack, "missing": detail.missing,
                }),
                None => json!(null),
            }
        }
        View::Verdict | View::Jobs => {}
    }
    write(&view.name().replace(' ', "-"), "json", &(serde_json::to_string(&shown)? + "\n"))
}

/// Writes an answer as CSV; returns the file's name.
///
/// # Errors
/// As [`view`].
pub(super) fn answer(answer: &Answer) -> anyhow::Result<PathBuf> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    csv.write_record(&answer.columns)?;
    for row in &answer.rows {
        csv.write_record(row)?;
    }
    let bytes = csv.into_inner().map_err(|error| anyhow::anyhow!("{error}"))?;
    write("sql", "csv", &String::from_utf8(bytes)?)
}

fn write(what: &str, ending: &str, text: &str) -> anyhow::Result<PathBuf> {
    let now = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    let path = PathBuf::from(format!("rankmesh-top-{what}-{now}.{ending}"));
    // It names processes and hosts: readable by its owner alone, as stores are.
    let mut options = OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(options.write(true).create_new(true), 0o600);
    let mut file = options.open(&path).with_context(|| format!("writing {}", path.display()))?;
    file.write_all(text.as_bytes())?;
    Ok(path)
}
