//! `rankmesh nodes`: the members of the mesh.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Context;
use ask::args::ReportFormat;
use ask::output::{quiet, render};
use ask::{Connector, Exit, Target};
use model::LocalRequest;
use record::shortened;
use serde_json::Value;
use verdicts::hostlist::{fold_names, fold_ranges};

use super::args::NodesArgs;

/// Characters of how a node records; what is behind a colon, and more, follows the table.
const RECORDING: usize = 16;

/// Lists the members of the mesh.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(args: NodesArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let socket = args.socket.of_slurm_job(args.job.as_deref(), connector)?;
    let json = Target::agent(&socket, connector).document(LocalRequest::Nodes)?;
    let mut out = std::io::stdout().lock();
    match args.format {
        ReportFormat::Json => writeln!(out, "{}", quiet(&json))?,
        ReportFormat::Table => {
            write!(out, "{}", table(&serde_json::from_str::<Vec<Value>>(&json).context("reading the agent's list")?))?
        }
    }
    Ok(Exit::Complete)
}

fn table(nodes: &[Value]) -> String {
    let rows = nodes.iter().map(|node| {
        let text = |key: &str| node[key].as_str().unwrap_or_default().to_owned();
        let labels = node["labels"].as_object().map_or_else(String::new, |labels| {
            labels
                .iter()
                .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
                .collect::<Vec<_>>()
                .join(",")
        });
        let ranks = node["ranks"].as_array().into_iter().flatten().filter_map(Value::as_u64);
        let name = if node["self"] == true { format!("{} (this node)", text("name")) } else { text("name") };
        vec![
            name,
            text("address"),
            text("state"),
            fold_ranges(ranks),
            node["store_rows"].as_u64().map_or_else(|| "-".to_owned(), |rows| rows.to_string()),
            shortened(text("capture").split(':').next().unwrap_or_default(), RECORDING),
            labels,
        ]
    });
    let table = render(
        &["name", "address", "state", "ranks", "rows", "recording", "labels"],
        rows,
        &[false, false, false, false, true],
    );
    format!("{table}\n{}", more_of_recording(nodes))
}

/// What did not fit into the table, with the nodes of which it holds.
fn more_of_recording(nodes: &[Value]) -> String {
    let mut of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        let capture = node["capture"].as_str().unwrap_or_default();
        if capture.contains(':') || capture.chars().count() > RECORDING {
            of.entry(capture).or_default().push(node["name"].as_str().unwrap_or_default());
        }
    }
    of.iter()
        .map(|(capture, nodes)| record::wrapped(&format!("{}: {capture}", fold_names(nodes.iter().copied()))))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rank_ranges() {
        assert_eq!(fold_ranges([0, 1, 2, 3, 7]), "0-3,7");
        assert_eq!(fold_ranges([]), "");
        assert_eq!(fold_ranges([5]), "5");
    }

    #[test]
    fn what_is_printed_fits_80_columns() {
        let node = |name: &str, capture: &str| {
            json!({ "name": name, "address": "127.0.0.1:53431", "state": "live", "ranks": [0, 1, 2, 3], "store_rows": 21_764,
                "self": name == "n1", "capture": capture, "labels": { "job": "4711" } })
        };
        let slices = "on, in slices: 57.8 % of the time (budget 1 %)";
        let text = table(&[node("n1", slices), node("n2", slices), node("n3", "off"), node("n4", "on")]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(
            text.contains("  on, in slices  job=4711\n") && text.ends_with(&format!("\nn[1-2]: {slices}\n")),
            "{text}"
        );
    }
}
