//! Strategy 3: aggregation in two phases.
//!
//! Over a distributed FROM (see `spread.rs`) a group of the union is the disjoint union of the
//! nodes' groups of the same key. Each node ships one row a group: the key, and for every aggregate
//! a partial state; the coordinator groups these rows by key (same collation, no affinity, so 1 and
//! 1.0 meet as they do in SQLite), merges the states, and only then applies HAVING, ORDER BY,
//! DISTINCT, LIMIT, windows over groups and the expressions around aggregates.
//!
//! | call            | node ships            | merged by                                               |
//! |-----------------|-----------------------|---------------------------------------------------------|
//! | count           | count                 | sum of counts, 0 of none                                |
//! | sum, total, avg | exact sum and count   | exact addition; overflow of the whole is an error       |
//! | min, max        | min, max              | min, max by the argument's collation                    |
//! | group_concat    | group_concat          | group_concat with the same separator (order is free)    |
//! | any, DISTINCT   | the value, as one key | the same call, DISTINCT, over the values; sums exactly  |
//! | others          | a state               | the table in `functions/state.rs`: variance, median …   |
//! A bare column next to aggregates takes its value from some row of the group, and next to a
//! single min or max from the row that has it. The node's row carries such a row's values, and the
//! merge's own single min or max chooses among them; rows of empty groups (an aggregate without
//! GROUP BY gives one on an empty store) are dropped first. Not for two or more of min and max next
//! to bare columns, aggregates with ORDER BY, fractions that vary by row, JSON aggregates,
//! subqueries outside WHERE.

use super::branches::Arm;
use crate::ast::{
    Call, Core, Expr, From, Output, Query, Select, Sort, VisitMut, quote_name, same_name, unquote, walk_mut,
};
use crate::check::Question;
use crate::error::QueryError;
use crate::expressions::{contains, has_subquery, is_aggregate};
use crate::functions;
use crate::partial::{Combine, CombinedColumn, How};
use crate::plan::{Fragment, Merge, MergeColumn, MergeTable, Plan, Strategy};
use crate::rewrite::with_node_sources;
use crate::scope::Scope;
use crate::shape::Shape;

/// The merge's only table.
const GROUPS: &str = "groups";

pub(crate) fn plan(question: &Question<'_>, shape: &Shape) -> Result<Option<Plan>, QueryError> {
    plan_of(question, shape, super::branches::arms(question, shape))
}

/// As [`plan`], with one fragment and one merge table, whatever is asked.
pub(super) fn plan_in_one(question: &Question<'_>, shape: &Shape) -> Result<Option<Plan>, QueryError> {
    plan_of(question, shape, None)
}

fn plan_of(question: &Question<'_>, shape: &Shape, arms: Option<Vec<Arm>>) -> Result<Option<Plan>, QueryError> {
    // Windows over groups are the merge's. (One with a name stands in a clause of its own.)
    if !shape.is_grouped() || !shape.query.windows.is_empty() {
        return Ok(None);
    }
    let mut phases = Phases::new(&shape.scope);
    let Some(sql) = phases.merge_sql(shape) else { return Ok(None) };
    if shape.has_window() && !phases.bare.is_empty() {
        return Ok(None);
    }
    let Some(sql) = phases.finish(sql) else { return Ok(None) };
    let outputs = phases.outputs();
    let width = outputs.len();
    let node_select = Select::of(Query {
        columns: outputs,
        from: shape.query.from.clone(),
        filter: shape.query.filter.clone(),
        group_by: (1..=phases.keys.len() + phases.distinct.len()).map(|i| Expr::Literal(i.to_string())).collect(),
        ..Query::default()
    });
    let fragment = |mut select: Select, (table, reads): (String, Vec<(String, Vec<String>)>)| {
        with_node_sources(&mut select, question);
        Fragment {
            table,
            sql: select.to_string(),
            columns: u32::try_from(width).unwrap_or(u32::MAX),
            reads,
            targets: super::rows::targets(shape),
            combine: phases.combine(),
            partials: phases.named().map(|(_, shipped)| shipped.combined.clone()).collect(),
        }
    };
    let table = |name: &str| MergeTable { name: name.to_owned(), columns: phases.merge_columns() };
    let (fragments, tables, setup) = match arms {
        None => {
            let tables = question.tables().map(|table| table.name.clone()).collect::<Vec<_>>().join(", ");
            let reads = super::reads_of(question, question.tables());
            (vec![fragment(node_select, (tables, reads))], vec![table(GROUPS)], Vec::new())
        }
        Some(arms) => {
            let names: Vec<String> = (1..=arms.len()).map(|at| format!("{GROUPS}{at}")).collect();
            let all: Vec<String> = names.iter().map(|name| format!("SELECT * FROM {name}")).collect();
            let view = format!("CREATE VIEW {GROUPS} AS {}", all.join(" UNION ALL "));
            let mut fragments = Vec::new();
            for arm in arms {
                let mut select = node_select.clone();
                if let Core::Query(query) = &mut select.first {
                    query.from = Some(From { first: arm.source, joins: Vec::new() });
                }
                fragments.push(fragment(select, (arm.reads.0.clone(), vec![arm.reads])));
            }
            (fragments, names.iter().map(|name| table(name)).collect(), vec![view])
        }
    };
    Ok(Some(Plan {
        strategy: Strategy::Aggregate,
        columns: question.columns.clone(),
        reductions: Vec::new(),
        fragments,
        merge: Merge::Sql { tables, setup, sql },
        notes: Vec::new(),
        lazily: None,
        with_values: None,
    }))
}

/// Whether groups that are on one node each (GROUP BY node) are better aggregated in two phases,
/// too.
/// `rows` can push all of such a question, but leaves answer plain keys and aggregates from columns
/// and expressions around aggregates (`avg(x) / 1e6`) only with SQLite, row by row. In two phases
/// as many rows travel, with states as small as the results, and the expressions are computed where
/// the rows are merged. HAVING and LIMIT stay with the leaves: they decide how much travels.
pub(crate) fn suits_groups_by_node(shape: &Shape) -> bool {
    let is_around = |expr: &Expr| !is_aggregate(expr.peeled()) && contains(expr, is_aggregate);
    shape.is_grouped_by_node()
        && !shape.query.distinct
        && shape.query.having.is_none()
        && shape.limit.is_none()
        && shape.query.from.as_ref().is_some_and(|from| from.joins.is_empty())
        && shape.query.columns.iter().any(|output| matches!(output, Output::Expr(expr, _) if is_around(expr)))
        && !shape.query.columns.iter().any(
            |output| matches!(output, Output::Expr(expr, _) if contains(expr, |inner| is_aggregate(inner) && !is_small(inner))),
        )
}

/// Whether an aggregate's state is about as large as its result.
fn is_small(expr: &Expr) -> bool {
    matches!(expr, Expr::Call(call) if !call.distinct && call.filter.is_none()
        && ["count", "sum", "total", "avg", "min", "max"].iter().any(|name| same_name(&call.name, name)))
}

/// A column that a node ships: its expression, and how the merge's column must compare.
struct Shipped {
    expr: Expr,
    affinity: &'static str,
    collation: String,
    /// How values of several nodes become one; None where that is left to the merge.
    combined: Option<How>,
}

/// The columns of the fragment, collected while the merge's expressions are written.
struct Phases<'s> {
    scope: &'s Scope,
    keys: Vec<Shipped>,
    distinct: Vec<Shipped>,
    partials: Vec<Shipped>,
    bare: Vec<Shipped>,
    /// Different calls of min and max, for bare columns.
    extremes: Vec<Expr>,
    filtered_extreme: bool,
    failed: bool,
}

impl<'s> Phases<'s> {
    fn new(scope: &'s Scope) -> Phases<'s> {
        Phases {
            scope,
            keys: Vec::new(),
            distinct: Vec::new(),
            partials: Vec::new(),
            bare: Vec::new(),
            extremes: Vec::new(),
            filtered_extreme: false,
            failed: false,
        }
    }

    /// The merge's SELECT without WHERE; None to step aside.
    fn merge_sql(&mut self, shape: &Shape) -> Option<Merged> {
        for key in &shape.query.group_by {
            if has_subquery(key) || contains(key, is_aggregate) {
                return None;
            }
            let shipped = self.key(key)?;
            self.keys.push(shipped);
        }
        let mut columns = Vec::new();
        for output in &shape.query.columns {
            let (alias, starred) = match output {
                Output::Expr(expr, _) => {
                    columns.push(self.rewritten(expr)?);
                    continue;
                }
                Output::Star => (None, self.scope.star()?),
                Output::TableStar(alias) => (Some(alias.clone()), self.scope.table_star(alias)?),
            };
            for info in starred {
                let column = Expr::Column { table: alias.clone(), name: quote_name(&info.name) };
                // Not where the name alone does not decide which source's column this is.
                self.scope.collation(&column)?;
                columns.push(self.rewritten(&column)?);
            }
        }
        let having = match &shape.query.having {
            Some(expr) => Some(self.rewritten(expr)?),
            None => None,
        };
        let mut order_by = Vec::new();
        for order in &shape.order_by {
            let expr = match order.output {
                Some(at) => Expr::Literal((at + 1).to_string()),
                None => {
                    let expr = self.rewritten(&order.sort.expr)?;
                    // Printed, a number would be read as a position.
                    if expr.integer().is_some() {
                        return None;
                    }
                    expr
                }
            };
            order_by.push(Sort { expr, ..order.sort.clone() });
        }
        Some(Merged { distinct: shape.query.distinct, columns, having, order_by, limit: shape.limit })
    }

    /// An expression of the question as one over the merge's table.
    fn rewritten(&mut self, expr: &Expr) -> Option<Expr> {
        if has_subquery(expr) {
            return None;
        }
        let mut expr = expr.clone();
        self.expr(&mut expr);
        (!self.failed).then_some(expr)
    }

    /// How a grouping expression is shipped.
    fn key(&self, expr: &Expr) -> Option<Shipped> {
        let collation = self.scope.collation(expr)?;
        let combined = Some(How::Key);
        Some(Shipped { expr: expr.clone(), affinity: self.scope.stored_affinity(expr), collation, combined })
    }

    fn aggregate(&mut self, call: &Call) -> Option<Expr> {
        let name = unquote(&call.name).to_ascii_lowercase();
        let name = name.as_str();
        if !call.order_by.is_empty() || call.args.iter().any(|arg| contains(arg, is_aggregate)) {
            return None;
        }
        if call.distinct && !matches!(name, "min" | "max") {
            return self.distinct(name, call);
        }
        let mut node_call = call.clone();
        node_call.distinct = false;
        let (merge, collation, how) = match name {
            "count" => (functions::COUNT_MERGE, "BINARY".to_owned(), How::Count),
            "sum" | "total" | "avg" => {
                node_call.name = functions::SUM_STATE.to_owned();
                let merge = match name {
                    "sum" => functions::SUM_MERGE,
                    "total" => functions::TOTAL_MERGE,
                    _ => functions::AVG_MERGE,
                };
                (merge, "BINARY".to_owned(), How::Sum)
            }
            "min" | "max" => {
                let call = Expr::Call(Box::new(node_call.clone()));
                self.filtered_extreme |= node_call.filter.is_some();
                if !self.extremes.contains(&call) {
                    self.extremes.push(call);
                }
                let how = if name == "min" { How::Min } else { How::Max };
                (name, self.scope.collation(call_arg(&node_call)?)?, how)
            }
            "group_concat" | "string_agg" => {
                let separator = match node_call.args.get(1) {
                    None => None,
                    Some(literal @ Expr::Literal(_)) => Some(literal.clone()),
                    Some(_) => return None,
                };
                let at = self.partial(node_call, "BINARY".to_owned(), None);
                let mut args = vec![Expr::column(&format!("p{at}"))];
                args.extend(separator);
                return Some(Expr::call(name, args));
            }
            _ => return self.state(functions::two_phase(name)?, node_call),
        };
        let merge = merge.to_owned();
        let at = self.partial(node_call, collation, Some(how));
        Some(Expr::call(&merge, vec![Expr::column(&format!("p{at}"))]))
    }

    /// The node makes a state of its rows; arguments that are the same for all rows go to the
    /// merge.
    fn state(&mut self, function: &functions::TwoPhase, mut call: Call) -> Option<Expr> {
        let parameters = call.args.split_off(function.row_args.min(call.args.len()));
        let varies = |expr: &Expr| {
            matches!(expr, Expr::Column { .. })
                || matches!(expr, Expr::Call(call) if functions::is_volatile(&call.name))
        };
        if parameters.iter().any(|parameter| has_subquery(parameter) || contains(parameter, varies)) {
            return None;
        }
        call.name = function.state.to_owned();
        let how = How::State(function.state.to_owned());
        let at = self.partial(call, "BINARY".to_owned(), Some(how));
        let mut args = vec![Expr::column(&format!("p{at}"))];
        args.extend(parameters);
        Some(Expr::call(function.merge, args))
    }

    fn partial(&mut self, call: Call, collation: String, combined: Option<How>) -> usize {
        let expr = Expr::Call(Box::new(call));
        find_or_push(&mut self.partials, Shipped { expr, affinity: "", collation, combined })
    }

    /// DISTINCT: the values themselves are shipped, as one more key, and the merge's own DISTINCT
    /// works on them.
    fn distinct(&mut self, name: &str, call: &Call) -> Option<Expr> {
        let known = matches!(name, "count" | "sum" | "total" | "avg" | "group_concat" | "string_agg")
            || functions::two_phase(name).is_some();
        if !known || call.args.len() != 1 {
            return None;
        }
        let value = call_arg(call)?;
        let collation = self.scope.collation(value)?;
        let expr = match &call.filter {
            None => value.clone(),
            Some(filter) => Expr::Collate(
                Box::new(
                    Expr::Case {
                        base: None,
                        arms: vec![(filter.clone().paren(), value.clone().paren())],
                        otherwise: None,
                    }
                    .paren(),
                ),
                collation.clone(),
            ),
        };
        if has_subquery(&expr) {
            return None;
        }
        let combined = Some(How::Key);
        let at = find_or_push(&mut self.distinct, Shipped { expr, affinity: "", collation, combined });
        let args = vec![Expr::column(&format!("d{at}"))];
        // SQLite's own addition may overflow on the way, by the order in which values happen to
        // come.
        let name = functions::exact_sum(name).map_or_else(|| call.name.clone(), str::to_owned);
        Some(Expr::Call(Box::new(Call { name, args, filter: None, ..call.clone() })))
    }

    /// The fragment's result columns, in the order of [`Phases::merge_columns`].
    fn outputs(&self) -> Vec<Output> {
        self.named().map(|(name, shipped)| Output::Expr(shipped.expr.clone(), Some(name))).collect()
    }

    fn merge_columns(&self) -> Vec<MergeColumn> {
        self.named()
            .map(|(name, shipped)| MergeColumn {
                name,
                affinity: shipped.affinity.to_owned(),
                collation: shipped.collation.clone(),
                filled: true,
            })
            .collect()
    }

    /// How groups of several nodes become those of one. Not where a bare column takes its value
    /// from one row.
    fn combine(&self) -> Option<Combine> {
        if !self.bare.is_empty() {
            return None;
        }
        let columns = self.named().map(|(_, shipped)| {
            Some(CombinedColumn {
                how: shipped.combined.clone()?,
                affinity: shipped.affinity.to_owned(),
                collation: shipped.collation.clone(),
            })
        });
        Some(Combine { columns: columns.collect::<Option<_>>()? })
    }

    fn named(&self) -> impl Iterator<Item = (String, &Shipped)> {
        [("k", &self.keys), ("d", &self.distinct), ("p", &self.partials), ("b", &self.bare)]
            .into_iter()
            .flat_map(|(prefix, list)| list.iter().enumerate().map(move |(i, item)| (format!("{prefix}{i}"), item)))
    }

    /// The whole merge SQL, once it is known what is shipped.
    fn finish(&mut self, query: Merged) -> Option<String> {
        if !self.bare.is_empty() {
            if self.extremes.len() > 1 || self.filtered_extreme {
                return None;
            }
            if self.keys.is_empty() && self.distinct.is_empty() {
                let at = self.partial(count_rows(), "BINARY".to_owned(), Some(How::Count));
                return Some(query.sql(&format!(" WHERE p{at} > 0"), &self.keys));
            }
        }
        Some(query.sql("", &self.keys))
    }
}

/// `count(*)`.
fn count_rows() -> Call {
    Call {
        name: "count".to_owned(),
        distinct: false,
        star: true,
        args: Vec::new(),
        order_by: Vec::new(),
        filter: None,
        over: None,
    }
}

fn call_arg(call: &Call) -> Option<&Expr> {
    match call.args.as_slice() {
        [one] => Some(one),
        _ => None,
    }
}

fn find_or_push(list: &mut Vec<Shipped>, item: Shipped) -> usize {
    match list.iter().position(|other| other.expr == item.expr) {
        Some(at) => at,
        None => {
            list.push(item);
            list.len() - 1
        }
    }
}

impl VisitMut for Phases<'_> {
    fn expr(&mut self, node: &mut Expr) {
        if self.failed {
            return;
        }
        if let Some(at) = self.keys.iter().position(|key| key.expr.peeled() == node.peeled()) {
            *node = self.scope.stand_in(node, &format!("k{at}"));
            return;
        }
        match node {
            Expr::Call(call) if functions::is_aggregate(call) => match self.aggregate(call) {
                Some(merged) => *node = merged,
                None => self.failed = true,
            },
            Expr::Column { table: None, name }
                if matches!(unquote(name).to_ascii_lowercase().as_str(), "true" | "false")
                    && self.scope.column(node).is_none() => {}
            Expr::Column { .. } => match self.key(node) {
                Some(shipped) => {
                    let expr = node.clone();
                    let at = find_or_push(&mut self.bare, shipped);
                    *node = self.scope.stand_in(&expr, &format!("b{at}"));
                }
                None => self.failed = true,
            },
            _ => walk_mut::expr(self, node),
        }
    }
}

/// The merge's SELECT in pieces.
struct Merged {
    distinct: bool,
    columns: Vec<Expr>,
    having: Option<Expr>,
    order_by: Vec<Sort>,
    limit: Option<(i64, i64)>,
}

impl Merged {
    fn sql(&self, filter: &str, keys: &[Shipped]) -> String {
        let list = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(", ");
        let distinct = if self.distinct { "DISTINCT " } else { "" };
        let columns = list(&mut self.columns.iter().map(ToString::to_string));
        let mut sql = format!("SELECT {distinct}{columns} FROM {GROUPS}{filter}");
        if !keys.is_empty() {
            sql.push_str(&format!(" GROUP BY {}", list(&mut (0..keys.len()).map(|i| format!("k{i}")))));
        }
        if let Some(having) = &self.having {
            sql.push_str(&format!(" HAVING {having}"));
        }
        if !self.order_by.is_empty() {
            sql.push_str(&format!(" ORDER BY {}", list(&mut self.order_by.iter().map(ToString::to_string))));
        }
        if let Some((count, offset)) = self.limit {
            sql.push_str(&format!(" LIMIT {count}"));
            if offset != 0 {
                sql.push_str(&format!(" OFFSET {offset}"));
            }
        }
        sql
    }
}
