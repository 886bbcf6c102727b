//! `--per-node`: the SQL as it stands runs on each node, and the rows are put one after the other
//! with the node's name first. This is the one mode that answers for each store instead of for the
//! union; the user asked for it by name.

use crate::check::Question;
use crate::error::QueryError;
use crate::plan::{ColumnMeta, Fragment, Merge, Plan, Strategy, Targets};
use crate::rewrite::{normalise, with_node_sources};

pub(crate) fn plan(question: &Question<'_>) -> Result<Plan, QueryError> {
    let mut columns = vec![ColumnMeta { name: "node".to_owned(), decl_type: "TEXT".to_owned() }];
    columns.extend(question.columns.iter().cloned());
    Ok(Plan {
        strategy: Strategy::PerNode,
        columns,
        reductions: Vec::new(),
        fragments: vec![as_written(question, Targets::All)?],
        merge: Merge::Concat { with_node: true },
        notes: Vec::new(),
        lazily: None,
        with_values: None,
    })
}

/// The whole question as one fragment.
pub(super) fn as_written(question: &Question<'_>, targets: Targets) -> Result<Fragment, QueryError> {
    let (mut select, changed) = normalise(question)?;
    with_node_sources(&mut select, question);
    Ok(Fragment {
        table: question.tables().map(|table| table.name.clone()).collect::<Vec<_>>().join(", "),
        sql: if changed { select.to_string() } else { question.sql.trim().trim_end_matches(';').to_owned() },
        columns: u32::try_from(question.columns.len()).unwrap_or(u32::MAX),
        reads: super::reads_of(question, question.tables()),
        targets,
        combine: None,
        partials: Vec::new(),
    })
}
