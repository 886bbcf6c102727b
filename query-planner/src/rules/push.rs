//! Strategy 1: the whole question goes to one node.
//!
//! This keeps the contract when that node's store has every row the union would show: the question
//! asks one node only, or reads replicated tables only (equal everywhere, so any one node's copy is
//! the union's), or reads no table at all, in which case the coordinator answers alone and no node
//! is asked, however many there are.
//!
//! Work partitioned by `node` (GROUP BY node, joins on equal node) needs every node and is planned
//! by `rows` and `aggregate`, whose FROM analysis knows such joins.

use crate::api::AskOptions;
use crate::check::Question;
use crate::error::QueryError;
use crate::plan::{Merge, Plan, Strategy, Targets};
use crate::rewrite::normalise;

pub(crate) fn plan(question: &Question<'_>, options: &AskOptions) -> Result<Option<Plan>, QueryError> {
    if question.reads.is_empty() {
        let (select, _) = normalise(question)?;
        return Ok(Some(Plan {
            strategy: Strategy::Coordinator,
            columns: question.columns.clone(),
            reductions: Vec::new(),
            fragments: Vec::new(),
            merge: Merge::Sql { tables: Vec::new(), setup: Vec::new(), sql: select.to_string() },
            notes: Vec::new(),
            lazily: None,
            with_values: None,
        }));
    }
    let targets = if question.tables().all(|table| table.replicated) {
        Targets::AnyOne
    } else if options.single_node {
        Targets::All
    } else {
        return Ok(None);
    };
    Ok(Some(Plan {
        strategy: Strategy::Push,
        columns: question.columns.clone(),
        reductions: Vec::new(),
        fragments: vec![super::per_node::as_written(question, targets)?],
        merge: Merge::Concat { with_node: false },
        notes: Vec::new(),
        lazily: None,
        with_values: None,
    }))
}
