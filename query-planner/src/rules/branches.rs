//! Aggregation over a view that is UNION ALL of tables, arm by arm.
//!
//! The groups of such a view are the groups of its arms put together, as the groups of a union of
//! stores are those of the stores: what merges partial groups of nodes merges those of arms. So
//! each arm becomes a fragment of its own over one table, which a node can answer from columns,
//! where all of the view would be worked out row by row.
//!
//! An arm's expression stands in the place of the view's column. Their values are the same, but
//! where arms differ in affinity SQLite compares such a column by rules of its own (which depend on
//! whether it moves the comparison into the arms): a question that compares one, or hands it to
//! anything but arithmetic and functions, is left as it is.

use std::collections::BTreeSet;

use crate::ast::{Compound, Core, Expr, Output, Query, Select, Source, Visit, parse_view, quote_name, same_name, walk};
use crate::catalog::{Catalog, Kind, Table, has_node, node_column};
use crate::check::Question;
use crate::names::affinity;
use crate::shape::Shape;

/// One arm of a view.
pub(super) struct Arm {
    /// Stands for the view in FROM.
    pub(super) source: Source,
    /// The table below, and its columns that the arm reads.
    pub(super) reads: (String, Vec<String>),
}

/// The arms of the only source of a question; none where it is no such view.
pub(super) fn arms(question: &Question<'_>, shape: &Shape) -> Option<Vec<Arm>> {
    let from = shape.query.from.as_ref().filter(|from| from.joins.is_empty())?;
    let Source::Table { schema: None, name, alias, .. } = &from.first else { return None };
    let view = question.catalog.find(name).filter(|view| view.kind == Kind::RowView && !view.replicated)?;
    let read = question.reads.get(&view.name.to_ascii_lowercase())?;
    // The node is a column of the view, not of its arms.
    if has_node(view) && read.iter().any(|column| same_name(column, node_column(view))) {
        return None;
    }
    let body = parse_view(&view.sql).ok()?;
    let is_union = body.with.is_none()
        && body.order_by.is_empty()
        && body.limit.is_none()
        && !body.compounds.is_empty()
        && body.compounds.iter().all(|(operator, _)| *operator == Compound::UnionAll);
    if !is_union {
        return None;
    }
    let alias = alias.clone().unwrap_or_else(|| name.clone());
    let cores = std::iter::once(&body.first).chain(body.compounds.iter().map(|(_, core)| core));
    let arms: Vec<(Arm, Vec<&'static str>)> =
        cores.map(|core| arm(core, view, read, &alias, question.catalog)).collect::<Option<_>>()?;
    let differs = |at: &usize| arms.iter().any(|(_, affinities)| affinities.get(*at) != arms[0].1.get(*at));
    let uneven: Vec<&str> = (0..view.columns.len()).filter(differs).map(|at| view.columns[at].name.as_str()).collect();
    let query = &shape.query;
    let outputs = query.columns.iter().map(|output| match output {
        Output::Expr(expr, _) => Some(expr),
        Output::Star | Output::TableStar(_) => None,
    });
    let exprs: Option<Vec<&Expr>> = outputs.collect();
    let sorts = shape.order_by.iter().map(|order| &order.sort.expr);
    let is_free =
        exprs?.into_iter().chain(&query.group_by).chain(&query.having).chain(sorts).all(|expr| is_free(expr, &uneven))
            && query.filter.iter().all(|filter| !names(filter, &uneven));
    is_free.then(|| arms.into_iter().map(|(arm, _)| arm).collect())
}

/// Whether the affinity of columns makes no difference to an expression.
fn is_free(expr: &Expr, uneven: &[&str]) -> bool {
    match expr.peeled() {
        Expr::Column { .. } => true,
        Expr::Call(call) if call.filter.is_none() && call.over.is_none() => {
            call.args.iter().all(|arg| is_free(arg, uneven))
        }
        Expr::Binary(a, "+" | "-" | "*" | "/" | "%", b) => is_free(a, uneven) && is_free(b, uneven),
        other => !names(other, uneven),
    }
}

/// Whether an expression has one of these columns in it.
fn names(expr: &Expr, columns: &[&str]) -> bool {
    let mut names = Names(BTreeSet::new());
    names.expr(expr);
    columns.iter().any(|column| names.0.contains(&quote_name(column).to_ascii_lowercase()))
}

/// An arm, and what affinities its columns have.
fn arm(
    core: &Core,
    view: &Table,
    read: &BTreeSet<String>,
    alias: &str,
    catalog: &Catalog,
) -> Option<(Arm, Vec<&'static str>)> {
    let Core::Query(query) = core else { return None };
    let from = query.from.as_ref()?;
    let Source::Table { schema: None, name, .. } = &from.first else { return None };
    let table = catalog.find(name).filter(|table| table.kind == Kind::Table)?;
    if query.columns.len() != view.columns.len() {
        return None;
    }
    let (mut columns, mut affinities) = (Vec::new(), Vec::new());
    for (output, column) in query.columns.iter().zip(&view.columns) {
        let Output::Expr(expr, _) = output else { return None };
        affinities.push(own_affinity(expr, table));
        if !read.iter().any(|name| name.eq_ignore_ascii_case(&column.name)) {
            continue;
        }
        columns.push(Output::Expr(expr.clone(), Some(quote_name(&column.name))));
    }
    // Only the number of rows counts.
    if columns.is_empty() {
        columns.push(Output::Expr(Expr::Literal("NULL".to_owned()), Some("mesh_row".to_owned())));
    }
    let arm = Query { columns, from: query.from.clone(), filter: query.filter.clone(), ..Query::default() };
    let mut names = Names(BTreeSet::new());
    names.query(&arm);
    let reads = table.columns.iter().map(|column| column.name.clone());
    let reads = reads.filter(|column| names.0.contains(&quote_name(column).to_ascii_lowercase())).collect();
    let source = Source::Select { select: Box::new(Select::of(arm)), alias: Some(alias.to_owned()) };
    Some((Arm { source, reads: (table.name.clone(), reads) }, affinities))
}

/// The affinity of an expression over a table.
fn own_affinity(expr: &Expr, table: &Table) -> &'static str {
    match expr.peeled() {
        Expr::Column { name, .. } => {
            let column = table.columns.iter().find(|column| same_name(&quote_name(&column.name), name));
            // The row id is an integer.
            column.map_or("INT", |column| affinity(&column.decl_type))
        }
        Expr::Cast(_, type_name) => affinity(type_name),
        Expr::Collate(inner, _) => own_affinity(inner, table),
        _ => "",
    }
}

/// Names of columns, without their tables.
struct Names(BTreeSet<String>);

impl Visit for Names {
    fn expr(&mut self, node: &Expr) {
        if let Expr::Column { name, .. } = node {
            self.0.insert(name.to_ascii_lowercase());
        }
        walk::expr(self, node);
    }
}
