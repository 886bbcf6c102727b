//! `rankmesh stacks`: where the ranks are.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use ask::output::{printable, quiet, say_coverage};
use ask::{Connector, Exit, Target};
use explain::stacks::{self, StacksAnswer, Unread};
use model::{LocalRequest, StacksQuestion, StacksWanted};

use super::args::{StacksArgs, StacksFormat};
use super::query::print_coverage;

/// Prints where ranks are.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(mut args: StacksArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let target = Target::of_any_job(&args.socket, &[], &mut args.job, connector)?;
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let request = LocalRequest::Stacks(StacksQuestion {
        wanted: StacksWanted {
            job: args.job.clone(),
            ranks: args.ranks.clone().map(|ranks| ranks.0).unwrap_or_default(),
            children: args.children,
            all_threads: args.all_threads,
            native: false,
            samples: args.samples,
            every_ms: u32::try_from(millis(args.every)).unwrap_or(u32::MAX),
        },
        timeout_ms: millis(args.ask.timeout),
        nodes: args.ask.nodes.clone(),
        labels: args.ask.label.clone(),
    });
    let json = target.document(request).inspect_err(print_coverage)?;
    let answer: StacksAnswer = serde_json::from_str(&json).context("reading the agent's stacks")?;
    let coverage = &answer.coverage;
    if args.ask.require_all && !coverage.is_complete() {
        say_coverage(coverage);
        bail!("the answer is partial and --require-all was given: nothing is printed");
    }
    let mut out = std::io::stdout().lock();
    match args.format {
        StacksFormat::Json => writeln!(out, "{}", quiet(&json))?,
        StacksFormat::Folded => write!(out, "{}", stacks::folded(&answer.merged))?,
        StacksFormat::Table => write!(out, "{}", text(&answer))?,
    }
    out.flush()?;
    if args.format != StacksFormat::Json {
        say_coverage(coverage);
    }
    Ok(if coverage.is_complete() { Exit::Complete } else { Exit::Partial })
}

/// The classes, then the processes that could not be read; their names may contain anything.
fn text(answer: &StacksAnswer) -> String {
    let mut text = record::wrapped(&stacks::text(&answer.merged)).trim_end().to_owned();
    if text.is_empty() && answer.unread.is_empty() {
        text.push_str("no ranks: none of the nodes that answered knows a process of the ranks that were asked for");
    }
    if !text.is_empty() {
        text.push('\n');
    }
    for Unread { node, rank, pid, reason } in &answer.unread {
        let who = rank.map_or_else(|| "child process".to_owned(), |rank| format!("rank {rank}"));
        text.push_str(&record::wrapped(&printable(&format!("{who} on {node} (pid {pid}): no stack: {reason}"))));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_printed_fits_80_columns() {
        let frame =
            |name: &str| json!({ "Function": { "Native": { "function": name, "module": "libmpi.so.40.30.4" } } });
        let members = |ranks: &str| json!({ "count": 4, "ranks": ranks, "nodes": "gpu-[1-2]", "others": [] });
        let class = |name: &str, ranks: &str| {
            let path =
                [frame("PMPI_Allreduce"), frame("ompi_coll_base_allreduce_intra_redscat_allgather"), frame(name)];
            json!({ "path": path, "members": members(ranks), "samples": 5, "of_samples": 5 })
        };
        let reason = "another user's process: run as root, or ask an agent that records (rankmesh check says more)";
        let answer = json!({
            "merged": {
                "classes": [class("mca_pml_ob1_recv", "0-3"), class("mca_pml_ob1_send", "4-7")],
                "tree": [], "members": members("0-7"), "without_stacks": json!({ "count": 0, "ranks": "", "nodes": "", "others": [] }),
            },
            "unread": [{ "node": "gpu-3", "rank": 8, "pid": 4711, "reason": reason }],
            "coverage": { "asked": 3, "answered": 3, "missing": [], "notes": [] },
            "elapsed_ms": 1.0,
        });
        let text = text(&serde_json::from_value(answer).expect("an answer"));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("4 ranks (0-3 on gpu-[1-2]): ") && text.contains("> mca_pml_ob1_send [libmpi"), "{text}");
        assert!(text.contains("\nrank 8 on gpu-3 (pid 4711): no stack: another user's"), "{text}");
    }
}
