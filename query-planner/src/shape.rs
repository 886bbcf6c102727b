//! The shape of a question that nodes can work on: one query whose FROM is distributed over the
//! nodes (`spread.rs`), with every name in it resolved (`scope.rs`). `rules/rows.rs` and
//! `rules/aggregate.rs` plan over shapes; what has no shape is planned in parts or fetched.

use crate::ast::{Expr, Limit, Output, Query, Select, Sort, Visit, VisitMut, same_name, unquote, walk_mut};
use crate::catalog::Catalog;
use crate::expressions::{contains, is_aggregate};
use crate::scope::Scope;
use crate::spread::{Remote, is_partitioned};

/// One query over a distributed FROM, names resolved, positions and aliases in GROUP BY, HAVING,
/// WHERE and ORDER BY replaced by what they stand for.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) query: Query,
    pub(crate) order_by: Vec<Order>,
    pub(crate) limit: Option<(i64, i64)>,
    pub(crate) scope: Scope,
    /// The nodes that WHERE admits.
    pub(crate) nodes: Option<Vec<String>>,
}

/// An ORDER BY term.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) sort: Sort,
    /// The result column that it names, by position, alias or the same expression.
    pub(crate) output: Option<usize>,
}

impl Shape {
    /// The shape of a normalised SELECT, if it has one.
    pub(crate) fn of(select: &Select, catalog: &Catalog) -> Option<Shape> {
        let mut query = select.single()?.clone();
        let from = query.from.as_ref()?;
        if !is_partitioned(from, query.filter.as_ref(), catalog) {
            return None;
        }
        let scope = Scope::of(from, catalog)?;
        let limit = match &select.limit {
            None => None,
            Some(limit) => Some(constant_limit(limit)?),
        };
        let mut order_by = select.order_by.clone();
        // A subquery over partitioned tables cannot run at a node.
        let mut remote = Remote { catalog, outer: Some(&scope), found: false };
        remote.query(&query);
        order_by.iter().for_each(|sort| remote.expr(&sort.expr));
        if remote.found {
            return None;
        }
        let outputs = query.columns.clone();
        let plain: Vec<Option<&Expr>> = outputs
            .iter()
            .map(|output| match output {
                Output::Expr(expr, _) => Some(expr),
                _ => None,
            })
            .collect();
        let has_star = plain.iter().any(Option::is_none);
        let mut resolve = Resolve { scope: &scope, outputs: &outputs, aliases: true, failed: false };
        for key in &mut query.group_by {
            match key.integer() {
                Some(_) if has_star => return None,
                Some(position) => *key = output_at(&plain, position)?.clone(),
                None => {}
            }
            resolve.expr(key);
            // Printed back, a number would be read as a position.
            if key.integer().is_some() {
                return None;
            }
        }
        query.filter.iter_mut().chain(query.having.iter_mut()).for_each(|expr| resolve.expr(expr));
        let mut orders = Vec::new();
        for sort in &mut order_by {
            let (bare, collate) = split_collate(&sort.expr);
            let mut output = None;
            if let Some(position) = bare.integer() {
                if has_star {
                    return None;
                }
                output_at(&plain, position)?;
                output = usize::try_from(position - 1).ok();
            } else if let Expr::Column { table: None, name } = bare {
                output = outputs
                    .iter()
                    .position(|output| matches!(output, Output::Expr(_, Some(alias)) if same_name(alias, name)));
            }
            if let Some(at) = output {
                let expr = plain.get(at).copied().flatten()?.clone().paren();
                sort.expr = match collate {
                    Some(name) => Expr::Collate(Box::new(expr), name),
                    None => expr,
                };
                output = output.filter(|_| split_collate(&sort.expr).1.is_none());
            }
            resolve.expr(&mut sort.expr);
            orders.push(Order { sort: sort.clone(), output });
        }
        resolve.aliases = false;
        for output in &mut query.columns {
            if let Output::Expr(expr, _) = output {
                resolve.expr(expr);
            }
        }
        if resolve.failed {
            return None;
        }
        for order in &mut orders {
            if order.output.is_none() {
                order.output = query.columns.iter().position(
                    |output| matches!(output, Output::Expr(expr, _) if expr.peeled() == order.sort.expr.peeled()),
                );
            }
        }
        let nodes = query.filter.as_ref().and_then(|filter| scope.admitted_nodes(filter));
        Some(Shape { query, order_by: orders, limit, scope, nodes })
    }

    /// Whether rows are collapsed: GROUP BY or an aggregate anywhere.
    pub(crate) fn is_grouped(&self) -> bool {
        !self.query.group_by.is_empty() || self.query.having.is_some() || self.any_output(is_aggregate)
    }

    /// Whether a window function is called.
    pub(crate) fn has_window(&self) -> bool {
        self.any_output(|expr| matches!(expr, Expr::Call(call) if call.over.is_some()))
    }

    /// Whether a test holds anywhere in the result columns, HAVING or ORDER BY (subqueries
    /// excepted).
    fn any_output(&self, test: fn(&Expr) -> bool) -> bool {
        self.query
            .columns
            .iter()
            .filter_map(|output| match output {
                Output::Expr(expr, _) => Some(expr),
                _ => None,
            })
            .chain(self.query.having.iter())
            .chain(self.order_by.iter().map(|order| &order.sort.expr))
            .any(|expr| contains(expr, test))
    }

    /// Whether every group is on one node: a key is the node column.
    pub(crate) fn is_grouped_by_node(&self) -> bool {
        self.query.group_by.iter().any(|key| self.scope.parts_by_node(key))
    }

    /// How many rows a node needs to ship at most for LIMIT and OFFSET.
    pub(crate) fn rows_needed(&self) -> Option<i64> {
        let (count, offset) = self.limit?;
        if count < 0 { None } else { count.checked_add(offset.max(0)) }
    }
}

fn output_at<'e>(outputs: &[Option<&'e Expr>], position: i64) -> Option<&'e Expr> {
    outputs.get(usize::try_from(position.checked_sub(1)?).ok()?).copied().flatten()
}

/// `x COLLATE c` as (x, c).
fn split_collate(expr: &Expr) -> (&Expr, Option<String>) {
    match expr.peeled() {
        Expr::Collate(inner, name) => (split_collate(inner).0, Some(name.clone())),
        other => (other, None),
    }
}

fn constant_limit(limit: &Limit) -> Option<(i64, i64)> {
    let offset = match &limit.offset {
        None => 0,
        Some(offset) => offset.integer()?,
    };
    Some((limit.count.integer()?, offset))
}

/// Brings column references into one spelling and puts result columns in place of their aliases.
struct Resolve<'a> {
    scope: &'a Scope,
    outputs: &'a [Output],
    aliases: bool,
    failed: bool,
}

impl VisitMut for Resolve<'_> {
    fn expr(&mut self, node: &mut Expr) {
        let Expr::Column { table, name } = node else {
            walk_mut::expr(self, node);
            return;
        };
        if let Some((source, column)) = self.scope.find(table.as_deref(), name) {
            let is_merged = self.scope.merged.iter().any(|merged| merged.eq_ignore_ascii_case(&column.name));
            *name = crate::ast::quote_name(&column.name);
            *table = match &source.alias {
                Some(alias) if self.scope.sources.len() > 1 && !is_merged => Some(crate::ast::quote_name(alias)),
                _ if is_merged => table.take(),
                _ => None,
            };
            return;
        }
        if table.is_none() {
            let aliased = self.outputs.iter().find_map(|output| match output {
                Output::Expr(expr, Some(alias)) if self.aliases && same_name(alias, name) => Some(expr),
                _ => None,
            });
            match aliased {
                Some(expr) => {
                    let mut expr = expr.clone().paren();
                    let mut inner = Resolve { scope: self.scope, outputs: self.outputs, aliases: false, failed: false };
                    inner.expr(&mut expr);
                    self.failed |= inner.failed;
                    *node = expr;
                }
                None if matches!(unquote(name).to_ascii_lowercase().as_str(), "true" | "false") => {}
                None => self.failed = true,
            }
        } else {
            self.failed = true;
        }
    }

    // A subquery has names of its own; it reads replicated tables only and stays as it is. Names of
    // ours in it (correlation) keep their meaning, since sources keep their aliases.
    fn select(&mut self, _: &mut Select) {}
}
