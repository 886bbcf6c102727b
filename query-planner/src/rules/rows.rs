//! Strategy 2: nodes filter, project, sort and cut; the asker puts rows together.
//!
//! Over a distributed FROM (see `shape.rs`) WHERE and the result columns are computed row by row, so they are the same
//! at a node as over the union. ORDER BY … LIMIT k OFFSET j: a row among the first k+j of the union is among the first
//! k+j of its node; so each node ships its first k+j with the sort keys, and the asker sorts and cuts again, with the
//! same collations and NULL order. DISTINCT: duplicates within a node go first, those between nodes at the asker; with
//! it ORDER BY may name result columns only, else which duplicate's key counts would depend on where rows lie.
//!
//! The same holds when groups (or windows) lie each on one node, GROUP BY node: then a node's groups are groups of the
//! union, HAVING and aggregates included, and the plan is called `push`: nothing but sorting is left to the asker.

use crate::api::{QueryError, Targets};
use crate::ast::{Expr, Limit, Output, Over, Select, Sort, Visit, walk};
use crate::check::Question;
use crate::plan::{Merge, MergeColumn, MergeTable, NodePart, Plan, Strategy};
use crate::rewrite::with_node_sources;
use crate::shape::Shape;

/// The merge's only table.
pub(super) const ROWS: &str = "rows";

pub(crate) fn plan(question: &Question<'_>, shape: &Shape) -> Result<Option<Plan>, QueryError> {
    let by_node = shape.is_grouped_by_node();
    if (shape.is_grouped() && !by_node) || (shape.has_window() && !windows_by_node(shape)) {
        return Ok(None);
    }
    let width = question.columns.len();
    let mut columns = Vec::new();
    if shape.query.distinct {
        match output_collations(shape) {
            Some(collations) if collations.len() == width => columns.extend(collations),
            _ => return Ok(None),
        }
    } else {
        columns.resize(width, "BINARY".to_owned());
    }
    let mut query = shape.query.clone();
    let has_star = query.columns.iter().any(|output| !matches!(output, Output::Expr(..)));
    if has_star && question.tables().any(|table| table.varies) {
        return Ok(None);
    }
    // Every sort term as the position of a result column, an extra one where it must be.
    let mut orders = Vec::new();
    for order in &shape.order_by {
        let Some(collation) = shape.scope.collation(&order.sort.expr) else { return Ok(None) };
        let at = match order.output.filter(|_| !has_star) {
            Some(at) => at,
            None if shape.query.distinct => return Ok(None),
            None => {
                query.columns.push(Output::Expr(order.sort.expr.clone(), Some(format!("o{}", columns.len() - width))));
                columns.push(collation.clone());
                columns.len() - 1
            }
        };
        if !shape.query.distinct {
            columns[at] = collation;
        } else if !columns[at].eq_ignore_ascii_case(&collation) {
            return Ok(None);
        }
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
    with_node_sources(&mut node_select, question);
    let part = NodePart {
        table: question.tables().map(|table| table.name.clone()).collect::<Vec<_>>().join(", "),
        sql: node_select.to_string(),
        columns: u32::try_from(columns.len()).unwrap_or(u32::MAX),
        reads: super::reads_of(question, question.tables()),
        targets: targets(shape),
    };
    let merge = if orders.is_empty() && shape.limit.is_none() && !shape.query.distinct {
        Merge::Concat { with_node: false }
    } else {
        Merge::Sql { sql: merge_sql(shape, width, &orders), tables: vec![merge_table(&columns)], setup: Vec::new() }
    };
    Ok(Some(Plan {
        strategy: if by_node { Strategy::Push } else { Strategy::Rows },
        columns: question.columns.clone(),
        parts: vec![part],
        merge,
        notes: Vec::new(),
    }))
}

pub(super) fn targets(shape: &Shape) -> Targets {
    shape.nodes.clone().map_or(Targets::All, Targets::Named)
}

fn merge_table(collations: &[String]) -> MergeTable {
    MergeTable {
        name: ROWS.to_owned(),
        columns: collations
            .iter()
            .enumerate()
            .map(|(i, collation)| MergeColumn {
                name: format!("c{i}"),
                affinity: String::new(),
                collation: collation.clone(),
                filled: true,
            })
            .collect(),
    }
}

fn merge_sql(shape: &Shape, width: usize, orders: &[(usize, Option<bool>, Option<bool>)]) -> String {
    let columns: Vec<String> = (0..width).map(|i| format!("c{i}")).collect();
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

/// The collation of every result column, `*` written out.
fn output_collations(shape: &Shape) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for output in &shape.query.columns {
        match output {
            Output::Star => all.extend(shape.scope.star()?.iter().map(|column| column.collation.clone())),
            Output::TableStar(alias) => {
                all.extend(shape.scope.table_star(alias)?.iter().map(|column| column.collation.clone()));
            }
            Output::Expr(expr, _) => all.push(shape.scope.collation(expr)?),
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
