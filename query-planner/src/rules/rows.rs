//! Strategy 2: nodes filter, project, sort and cut; the coordinator puts rows together.
//!
//! Over a distributed FROM (see `spread.rs`) WHERE and the result columns are computed row by row,
//! so they are the same at a node as over the union. ORDER BY … LIMIT k OFFSET j: a row among the
//! first k+j of the union is among the first k+j of its node; so each node ships its first k+j with
//! the sort keys, and the coordinator sorts and cuts again, with the same collations and NULL
//! order. DISTINCT: duplicates within a node go first, those between nodes at the coordinator; with
//! it ORDER BY may name result columns only, else which duplicate's key counts would depend on
//! where rows lie.
//!
//! The same holds when each group (or window) is on one node, GROUP BY node: then a node's groups
//! are groups of the union, HAVING and aggregates included, and the plan is called `push`: nothing
//! but sorting is left to the coordinator.

use crate::ast::{Expr, Limit, Output, Over, Select, Sort, Source, Visit, VisitMut, unquote, walk, walk_mut};
use crate::check::Question;
use crate::error::QueryError;
use crate::functions;
use crate::plan::{Fragment, Merge, MergeColumn, MergeTable, Plan, Strategy, Targets};
use crate::rewrite::with_node_sources;
use crate::shape::Shape;

/// The merge's only table.
pub(super) const ROWS: &str = "rows";

pub(crate) fn plan(question: &Question<'_>, shape: &Shape) -> Result<Option<Plan>, QueryError> {
    Ok(planned(question, shape, false))
}

/// The plan of a subquery that sorts and cuts, drops duplicates, or has groups that are on one node
/// each: always by merge SQL, whose result columns have the affinities and collations of the
/// subquery's.
pub(super) fn plan_inner(question: &Question<'_>, shape: &Shape) -> Option<Plan> {
    (shape.limit.is_some() || shape.query.distinct || shape.is_grouped())
        .then(|| planned(question, shape, true))
        .flatten()
}

fn planned(question: &Question<'_>, shape: &Shape, inner: bool) -> Option<Plan> {
    let by_node = shape.is_grouped_by_node();
    if (shape.is_grouped() && !by_node) || (shape.has_window() && !windows_by_node(shape)) {
        return None;
    }
    let width = question.columns.len();
    let mut query = shape.query.clone();
    let has_star = query.columns.iter().any(|output| !matches!(output, Output::Expr(..)));
    if has_star && question.tables().any(|table| table.varies) {
        return None;
    }
    // What the merge shows for each result column, and how its own column compares.
    let (shown, mut columns): (Vec<Expr>, Vec<MergeColumn>) = if shape.query.distinct || inner {
        let outputs = outputs(shape)?;
        if outputs.len() != width {
            return None;
        }
        outputs.into_iter().unzip()
    } else {
        (0..width).map(|i| (Expr::column(&format!("c{i}")), column(i, "", "BINARY"))).unzip()
    };
    // Every sort term as the position of a result column, an extra one where it must be.
    let mut orders = Vec::new();
    for order in &shape.order_by {
        let collation = shape.scope.collation(&order.sort.expr)?;
        let fits = |at: &usize| !has_star && columns[*at].collation.eq_ignore_ascii_case(&collation);
        let at = match order.output.filter(|_| !has_star) {
            Some(at) if !shape.query.distinct && !inner => {
                columns[at].collation = collation;
                at
            }
            Some(at) if fits(&at) => at,
            _ if shape.query.distinct => return None,
            _ => {
                let at = columns.len();
                query.columns.push(Output::Expr(order.sort.expr.clone(), Some(format!("o{}", at - width))));
                columns.push(column(at, "", &collation));
                at
            }
        };
        orders.push((at, order.sort.desc, order.sort.nulls_first));
    }
    let mut node_select = Select::of(query);
    if let Some(rows) = shape.rows_needed() {
        node_select.limit = Some(Limit { count: Expr::Literal(rows.to_string()), offset: None });
        node_select.order_by = orders
            .iter()
            .map(|(at, desc, nulls_first)| Sort {
                expr: Expr::Literal((at + 1).to_string()),
                desc: *desc,
                nulls_first: *nulls_first,
            })
            .collect();
    }
    exact_sums(&mut node_select);
    with_node_sources(&mut node_select, question);
    let fragment = Fragment {
        table: question.tables().map(|table| table.name.clone()).collect::<Vec<_>>().join(", "),
        sql: node_select.to_string(),
        columns: u32::try_from(columns.len()).unwrap_or(u32::MAX),
        reads: super::reads_of(question, question.tables()),
        targets: targets(shape),
        combine: None,
        partials: Vec::new(),
    };
    let merge = if orders.is_empty() && shape.limit.is_none() && !shape.query.distinct && !inner {
        Merge::Concat { with_node: false }
    } else {
        let shown = if inner { shown } else { (0..width).map(|i| Expr::column(&format!("c{i}"))).collect() };
        let sql = merge_sql(shape, &shown, &orders);
        Merge::Sql { sql, tables: vec![MergeTable { name: ROWS.to_owned(), columns }], setup: Vec::new() }
    };
    Some(Plan {
        strategy: if by_node { Strategy::Push } else { Strategy::Rows },
        columns: question.columns.clone(),
        reductions: Vec::new(),
        fragments: vec![fragment],
        merge,
        notes: Vec::new(),
        lazily: None,
        with_values: None,
    })
}

/// Groups that are on one node each are summed there. SQLite's own addition may overflow on the
/// way, by the order in which rows happen to come; the exact one does not. Subqueries keep their
/// functions: what is outside may refer to their columns by the text of an expression.
fn exact_sums(select: &mut Select) {
    struct Rename;
    impl VisitMut for Rename {
        fn select(&mut self, _: &mut Select) {}
        fn source(&mut self, _: &mut Source) {}
        fn expr(&mut self, node: &mut Expr) {
            if let Expr::Call(call) = node
                && call.over.is_none()
                && call.args.len() == 1
                && let Some(exact) = functions::exact_sum(&unquote(&call.name))
            {
                call.name = exact.to_owned();
            }
            walk_mut::expr(self, node);
        }
    }
    walk_mut::select(&mut Rename, select);
}

pub(super) fn targets(shape: &Shape) -> Targets {
    shape.nodes.clone().map_or(Targets::All, Targets::Named)
}

fn column(at: usize, affinity: &str, collation: &str) -> MergeColumn {
    MergeColumn { name: format!("c{at}"), affinity: affinity.to_owned(), collation: collation.to_owned(), filled: true }
}

fn merge_sql(shape: &Shape, shown: &[Expr], orders: &[(usize, Option<bool>, Option<bool>)]) -> String {
    let columns: Vec<String> = shown.iter().map(ToString::to_string).collect();
    let distinct = if shape.query.distinct { "DISTINCT " } else { "" };
    let mut sql = format!("SELECT {distinct}{} FROM {ROWS}", columns.join(", "));
    if !orders.is_empty() {
        let terms: Vec<String> = orders
            .iter()
            .map(|(at, desc, nulls_first)| {
                let expr = Expr::column(&format!("c{at}"));
                Sort { expr, desc: *desc, nulls_first: *nulls_first }.to_string()
            })
            .collect();
        sql.push_str(&format!(" ORDER BY {}", terms.join(", ")));
    }
    if let Some((count, offset)) = shape.limit {
        sql.push_str(&format!(" LIMIT {count}"));
        if offset != 0 {
            sql.push_str(&format!(" OFFSET {offset}"));
        }
    }
    sql
}

/// For every result column, `*` written out: what stands for it in the merge, and the merge's own
/// column.
fn outputs(shape: &Shape) -> Option<Vec<(Expr, MergeColumn)>> {
    let mut all: Vec<(Expr, MergeColumn)> = Vec::new();
    for output in &shape.query.columns {
        let starred = match output {
            Output::Star => shape.scope.star()?,
            Output::TableStar(alias) => shape.scope.table_star(alias)?,
            Output::Expr(expr, _) => {
                let merged = column(all.len(), shape.scope.stored_affinity(expr), &shape.scope.collation(expr)?);
                all.push((shape.scope.stand_in(expr, &merged.name), merged));
                continue;
            }
        };
        for info in starred {
            let merged = column(all.len(), info.affinity.unwrap_or(""), &info.collation);
            all.push((info.stand_in(&merged.name), merged));
        }
    }
    Some(all)
}

/// Whether every window is partitioned by the node column.
fn windows_by_node(shape: &Shape) -> bool {
    struct Windows<'s>(&'s Shape, bool);
    impl Visit for Windows<'_> {
        fn expr(&mut self, node: &Expr) {
            if let Expr::Call(call) = node {
                match &call.over {
                    None => {}
                    Some(Over::Window(window)) => {
                        self.1 &= window.partition_by.iter().any(|expr| self.0.scope.parts_by_node(expr));
                    }
                    Some(Over::Name(_)) => self.1 = false,
                }
            }
            walk::expr(self, node);
        }
    }
    let mut windows = Windows(shape, true);
    windows.query(&shape.query);
    shape.order_by.iter().for_each(|order| windows.expr(&order.sort.expr));
    windows.1
}
