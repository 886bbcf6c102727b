//! A plan as text: strategy, what each node runs, what is shipped, what the asker runs.

use std::fmt::Write as _;

use crate::api::Targets;
use crate::plan::{Merge, Plan};

/// The plan for `--explain`: stable, one fact a line.
pub fn explain(plan: &Plan) -> String {
    let mut out = format!("strategy: {}\n", plan.strategy);
    for (i, part) in plan.parts.iter().enumerate() {
        let whom = match &part.targets {
            Targets::All => "every node".to_owned(),
            Targets::Named(names) if names.is_empty() => "no node".to_owned(),
            Targets::Named(names) => names.join(", "),
            Targets::AnyOne => "any one node".to_owned(),
        };
        let _ = writeln!(out, "part {i} ({whom}, ships {} columns of {}):\n  {}", part.columns, part.table, part.sql);
    }
    match &plan.merge {
        Merge::Concat { with_node: true } => out.push_str("merge: concatenate, node first\n"),
        Merge::Concat { with_node: false } => out.push_str("merge: as it comes\n"),
        Merge::Sql { tables, setup, sql } => {
            for (i, table) in tables.iter().enumerate() {
                let columns: Vec<String> = table
                    .columns
                    .iter()
                    .filter(|column| column.filled)
                    .map(|column| {
                        let mut text = column.name.clone();
                        if !column.affinity.is_empty() {
                            let _ = write!(text, " {}", column.affinity);
                        }
                        if !column.collation.eq_ignore_ascii_case("BINARY") {
                            let _ = write!(text, " COLLATE {}", column.collation);
                        }
                        text
                    })
                    .collect();
                let _ = writeln!(out, "merge table {} (part {i}): {}", table.name, columns.join(", "));
            }
            for statement in setup {
                let _ = writeln!(out, "merge setup: {statement}");
            }
            let _ = writeln!(out, "merge:\n  {sql}");
        }
    }
    for note in &plan.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}
