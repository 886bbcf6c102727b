//! `rankmesh nodes`: the members of the mesh.

use std::io::Write;

use anyhow::Context;
use ask::args::ReportFormat;
use ask::output::{quiet, render};
use ask::{Connector, Exit, Target};
use model::LocalRequest;
use serde_json::Value;
use verdicts::hostlist::fold_ranges;

use super::args::NodesArgs;

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
            writeln!(out, "{}", table(&serde_json::from_str::<Vec<Value>>(&json).context("reading the agent's list")?))?
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
            text("capture"),
            labels,
        ]
    });
    render(
        &["name", "address", "state", "ranks", "rows", "recording", "labels"],
        rows,
        &[false, false, false, false, true],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_ranges() {
        assert_eq!(fold_ranges([0, 1, 2, 3, 7]), "0-3,7");
        assert_eq!(fold_ranges([]), "");
        assert_eq!(fold_ranges([5]), "5");
    }
}
