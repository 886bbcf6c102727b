//! Makes plans: the order in which the rules try, and the stack that a deep question needs. How
//! each rule keeps the contract is explained in `rules/`.

use crate::api::AskOptions;
use crate::ast;
use crate::catalog::Catalog;
use crate::check::check;
use crate::ctes;
use crate::error::QueryError;
use crate::hints;
use crate::limits::MAX_SQL_BYTES;
use crate::names::quoted;
use crate::plan::{Fragment, Plan, Strategy, Targets};
use crate::rewrite::normalise;
use crate::rules;
use crate::shape::Shape;
use crate::{memory, stop};

/// Plan one SELECT against the union's catalogue.
///
/// # Errors
/// What is wrong with the SQL, or why it cannot be answered exactly.
pub fn plan(sql: &str, catalog: &Catalog, options: &AskOptions) -> Result<Plan, QueryError> {
    if sql.len() > MAX_SQL_BYTES {
        return Err(QueryError::refused(format!("the SQL is longer than {MAX_SQL_BYTES} bytes")));
    }
    with_stack_for(sql, || plan_here(sql, catalog, options))
}

/// The plan for a question to one node: the whole question goes there, unless the node would answer
/// the fragments of a plan for many faster.
///
/// # Errors
/// As for [`plan`].
pub fn plan_for_one(sql: &str, catalog: &Catalog, understands: impl Fn(&Fragment) -> bool) -> Result<Plan, QueryError> {
    let at_once = plan(sql, catalog, &AskOptions { single_node: true, ..AskOptions::default() })?;
    if at_once.fragments.iter().all(&understands) {
        return Ok(at_once);
    }
    let apart = plan(sql, catalog, &AskOptions::default())?;
    // What the executor answers from has many rows.
    let is_large = |table: &str| {
        understands(&Fragment {
            table: table.to_owned(),
            sql: format!("SELECT count(*) FROM {}", quoted(table)),
            columns: 1,
            reads: vec![(table.to_owned(), Vec::new())],
            targets: Targets::All,
            combine: None,
            partials: Vec::new(),
        })
    };
    let is_simple = match apart.strategy {
        Strategy::Aggregate | Strategy::Rows => true,
        // Subqueries that hand groups on, and rows of tables that have few: joining those here
        // costs next to nothing.
        Strategy::Parts => apart
            .fragments
            .iter()
            .all(|fragment| fragment.combine.is_some() || !fragment.reads.iter().any(|(table, _)| is_large(table))),
        _ => false,
    };
    // (Several fragments are arms of a view, and those that SQLite answers cost it no more than
    // within the text.)
    Ok(if is_simple && apart.fragments.iter().any(&understands) { apart } else { at_once })
}

/// Longer texts are not looked at to find out how deep they are.
const SHORT_SQL_BYTES: usize = 4096;

/// Works on a text: a deep one on a stack that is large enough for the deepest tree that the parser
/// makes, since everything that walks a tree recurses.
pub(crate) fn with_stack_for<T: Send>(
    sql: &str,
    work: impl FnOnce() -> Result<T, QueryError> + Send,
) -> Result<T, QueryError> {
    if sql.len() < SHORT_SQL_BYTES && ast::is_shallow(sql) {
        return work();
    }
    // The question's deadline and memory are those of its thread.
    let (stop, account) = (stop::of_this_thread(), memory::account_here());
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("plan".to_owned())
            .stack_size(64 << 20)
            .spawn_scoped(scope, move || {
                let _watched = stop.as_ref().map(stop::Stop::here);
                let _cap = account.as_ref().map(memory::cap_of);
                work()
            })
            .map_err(|error| QueryError::refused(format!("cannot start a planning thread: {error}")))?
            .join()
            .unwrap_or_else(|_| Err(QueryError::refused("the planner failed on this SQL; please report it")))
    })
}

fn plan_here(sql: &str, catalog: &Catalog, options: &AskOptions) -> Result<Plan, QueryError> {
    let question = check(sql, catalog)?;
    if stop::is_over_here() {
        return Err(QueryError::out_of_time());
    }
    if options.per_node {
        return rules::per_node::plan(&question);
    }
    if let Some(plan) = rules::push::plan(&question, options)? {
        return Ok(plan);
    }
    let (select, _) = normalise(&question)?;
    let shaped = ctes::inlined(&select);
    if let Some(shape) = Shape::of(shaped.as_ref().unwrap_or(&select), catalog) {
        if rules::aggregate::suits_groups_by_node(&shape)
            && let Some(plan) = rules::aggregate::plan(&question, &shape)?
        {
            return Ok(plan);
        }
        if let Some(plan) = rules::rows::plan(&question, &shape)? {
            return Ok(plan);
        }
        if let Some(plan) = rules::aggregate::plan(&question, &shape)? {
            return Ok(plan);
        }
    }
    let mut plan = match rules::parts::plan(&question)? {
        Some(plan) => Plan { lazily: Some(Box::new(rules::fetch::plan(&question)?)), ..plan },
        None => rules::fetch::plan(&question)?,
    };
    plan.notes.extend(hints::across_nodes(&question.select));
    Ok(plan)
}
