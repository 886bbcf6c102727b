//! A plan as text: strategy, what each node runs, what is shipped, what the coordinator runs.

use std::fmt::Write as _;

use crate::api::Answer;
use crate::ast::quote_name;
use crate::exec::{ADMITTED, RAN};
use crate::limits::MAX_KEYS;
use crate::plan::{Merge, Plan, ReductionBy, Targets};

/// The plan for `--explain`: stable, one fact a line.
pub fn explain(plan: &Plan) -> String {
    let Some(with_values) = &plan.with_values else { return explain_one(plan) };
    let first: Vec<String> = with_values.first.iter().map(ToString::to_string).collect();
    let mut out = explain_one(plan);
    let _ = writeln!(
        out,
        "or, where the results of fragment {} are at most {MAX_KEYS} rows, with them as values:",
        first.join(", ")
    );
    for set in &with_values.sets {
        let _ = writeln!(out, "  values {}:\n    {}", set.name, set.sql);
    }
    for line in explain_one(&with_values.plan).lines() {
        let _ = writeln!(out, "  {line}");
    }
    out
}

fn explain_one(plan: &Plan) -> String {
    let mut out = format!("strategy: {}\n", plan.strategy);
    for (i, fragment) in plan.fragments.iter().enumerate() {
        let whom = match &fragment.targets {
            Targets::All => "every node".to_owned(),
            Targets::Named(names) if names.is_empty() => "no node".to_owned(),
            Targets::Named(names) => names.join(", "),
            Targets::AnyOne => "any one node".to_owned(),
        };
        let reduction = plan.reductions.iter().find(|reduction| reduction.fragment == i);
        let round = reduction.map_or_else(String::new, |reduction| match &reduction.by {
            ReductionBy::Driver(by) => match by.keys {
                Some(_) => {
                    format!(
                        "; round 2, filtered by the keys of fragment {} when they are at most {MAX_KEYS}",
                        by.driver
                    )
                }
                None => format!("; round 2, filtered by the rows of fragment {}", by.driver),
            },
            ReductionBy::Rows(by) => {
                let drivers: Vec<String> = by.drivers.iter().map(ToString::to_string).collect();
                let drivers = drivers.join(", ");
                format!(
                    "; round 2, by the rows of fragment {drivers} when they are fewer than fragment {} counts",
                    by.counted
                )
            }
        });
        let waits = plan.with_values.as_ref().is_some_and(|with_values| !with_values.first.contains(&i));
        let round = if waits { "; round 2".to_owned() } else { round };
        let _ = writeln!(
            out,
            "fragment {i} ({whom}, ships {} columns of {}{round}):\n  {}",
            fragment.columns, fragment.table, fragment.sql
        );
        match reduction.map(|reduction| &reduction.by) {
            Some(ReductionBy::Driver(by)) => {
                let keys = by
                    .keys
                    .iter()
                    .map(|(column, keys)| format!("{} IN (fragment {}'s {keys})", quote_name(column), by.driver));
                let bounds =
                    by.bounds.iter().map(|bound| format!("{} {} ({})", bound.column, bound.operator, bound.sql));
                let conditions: Vec<String> = keys.chain(bounds).collect();
                let word = if by.filter.is_some() { "AND" } else { "WHERE" };
                let _ = writeln!(out, "  + {word} {}", conditions.join(" AND "));
            }
            Some(ReductionBy::Rows(by)) => {
                let _ = writeln!(out, "  or {}", by.sql);
                for set in &by.sets {
                    let _ = writeln!(out, "  with {}: {}", set.name, set.sql);
                }
            }
            None => {}
        }
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
                let _ = writeln!(out, "merge table {} (fragment {i}): {}", table.name, columns.join(", "));
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

/// The plan with what a run of it cost: rows, bytes and milliseconds at each node, and at the
/// merge.
pub fn explain_analyze(plan: &Plan, answer: &Answer) -> String {
    #[allow(clippy::cast_precision_loss)]
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut out = explain(plan);
    if !out.ends_with('\n') {
        out.push('\n');
    }
    let (mut shipped, mut admitted) = (0, 0_u64);
    for (node, stats) in &answer.node_stats {
        let _ =
            writeln!(out, "ran on {node}: {} rows, {} bytes, {:.2} ms", stats.rows, stats.bytes, ms(stats.elapsed_ns));
        shipped += stats.rows;
        for note in &stats.notes {
            if let Some(rows) = note.strip_prefix(ADMITTED) {
                admitted = admitted.saturating_add(rows.parse().unwrap_or(0));
            } else if let Some(how) = note.strip_prefix(RAN) {
                let _ = writeln!(out, "  from {how}");
            }
        }
    }
    for chosen in &answer.chosen {
        let _ = writeln!(out, "chosen: {chosen}");
    }
    if admitted > shipped {
        let _ = writeln!(
            out,
            "shipped: {shipped} rows; had nodes made nothing of the rows that their conditions admit: {admitted}"
        );
    }
    let _ = writeln!(out, "merge: {} rows, {:.2} ms", answer.rows.len(), ms(answer.merge_ns));
    out
}
