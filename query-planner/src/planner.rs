//! Makes plans: the order in which the rules try, and the stack that a deep question needs. How
//! each rule keeps the contract is said in `rules/`.

use crate::api::{AskOptions, QueryError};
use crate::ast;
use crate::catalog::Catalog;
use crate::check::check;
use crate::ctes;
use crate::hints;
use crate::limits::MAX_SQL_BYTES;
use crate::plan::Plan;
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

/// Longer texts are not looked at to find out how deep they are.
const SHORT_SQL_BYTES: usize = 4096;

/// Works on a text: a deep one on a stack that is large enough for the deepest tree that the parser
/// makes, since whoever walks a tree recurses.
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
