//! What occurs in a statement, at any depth: a walk through its syntax tree that counts.

use sqlite3_parser::ast::{
    Distinctness, Expr, FromClause, FunctionTail, JoinConstraint, JoinOperator, JoinType, OneSelect, ResultColumn,
    Select, SelectTable,
};

use super::plain_name;

/// Aggregates whose partial state does not grow with the rows.
const SMALL: &[&str] = &["count", "sum", "total", "avg", "min", "max"];

/// All others that SQLite or the mesh has.
const LARGE: &[&str] = &[
    "group_concat",
    "string_agg",
    "json_group_array",
    "json_group_object",
    "median",
    "percentile",
    "mad",
    "stddev",
    "variance",
    "histogram",
    "approx_quantile",
    "approx_count_distinct",
];

/// What occurs anywhere in a statement.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) selects: usize,
    pub(super) tables: usize,
    /// Of those tables, once for each use.
    pub(super) names: Vec<String>,
    pub(super) functions_as_tables: usize,
    pub(super) recursive: bool,
    pub(super) windows: bool,
    pub(super) small_aggregates: usize,
    pub(super) large_aggregates: usize,
    pub(super) distinct_aggregates: bool,
    pub(super) joined_on: Vec<String>,
    pub(super) natural: bool,
}

impl Seen {
    pub(super) fn select(&mut self, select: &Select<'_>) {
        self.selects += 1;
        if let Some(with) = &select.with {
            self.recursive |= with.recursive;
            for cte in with.ctes {
                self.select(cte.select);
            }
        }
        self.one(&select.body.select);
        for arm in select.body.compounds.iter().flatten() {
            self.one(&arm.select);
        }
        for term in select.order_by.unwrap_or_default() {
            self.expr(&term.expr);
        }
        if let Some(limit) = select.limit {
            self.expr(&limit.expr);
            self.exprs(limit.offset.as_ref());
        }
    }

    fn one(&mut self, one: &OneSelect<'_>) {
        match one {
            OneSelect::Select { columns, from, where_clause, group_by, having, window_clause, .. } => {
                self.windows |= window_clause.is_some();
                for column in *columns {
                    if let ResultColumn::Expr(expr, _) = column {
                        self.expr(expr);
                    }
                }
                if let Some(from) = from {
                    self.from(from);
                }
                self.exprs(*where_clause);
                self.exprs(group_by.unwrap_or_default());
                self.exprs(*having);
            }
            OneSelect::Values(rows) => rows.iter().for_each(|row| self.exprs(row.iter())),
        }
    }

    fn from(&mut self, from: &FromClause<'_>) {
        if let Some(table) = from.select {
            self.table(table);
        }
        for join in from.joins.iter().flatten() {
            self.table(&join.table);
            match &join.constraint {
                Some(JoinConstraint::On(expr)) => self.expr(expr),
                Some(JoinConstraint::Using(names)) => {
                    self.joined_on.extend(names.iter().map(|name| plain_name(name.0).to_ascii_lowercase()));
                }
                None => {}
            }
            if let JoinOperator::TypedJoin(Some(kind)) = join.operator {
                self.natural |= kind.contains(JoinType::NATURAL);
            }
        }
    }

    fn table(&mut self, table: &SelectTable<'_>) {
        match table {
            SelectTable::Table(name, _, _) => self.name(name.name.0),
            SelectTable::TableCall(_, args, _) => {
                self.functions_as_tables += 1;
                self.exprs(args.unwrap_or_default());
            }
            SelectTable::Select(select, _) => self.select(select),
            SelectTable::Sub(from, _) => self.from(from),
        }
    }

    fn name(&mut self, table: &str) {
        self.tables += 1;
        self.names.push(plain_name(table).to_ascii_lowercase());
    }

    fn exprs<'a, 'b: 'a>(&mut self, exprs: impl IntoIterator<Item = &'a Expr<'b>>) {
        exprs.into_iter().for_each(|expr| self.expr(expr));
    }

    fn expr(&mut self, expr: &Expr<'_>) {
        match expr {
            Expr::Between { lhs, start, end, .. } => self.exprs([*lhs, *start, *end]),
            Expr::Binary(left, _, right) => self.exprs([*left, *right]),
            Expr::Case { base, when_then_pairs, else_expr } => {
                self.exprs(*base);
                for (when, then) in *when_then_pairs {
                    self.exprs([when, then]);
                }
                self.exprs(*else_expr);
            }
            Expr::Cast { expr, .. } | Expr::Collate(expr, _) | Expr::IsNull(expr) | Expr::NotNull(expr) => {
                self.expr(expr);
            }
            Expr::Unary(_, expr) => self.expr(expr),
            Expr::Exists(select) | Expr::Subquery(select) => self.select(select),
            Expr::FunctionCall { name, distinctness, args, filter_over, .. } => {
                let args = args.unwrap_or_default();
                let distinct = matches!(distinctness, Some(Distinctness::Distinct));
                self.call(name.0, args.len(), distinct, filter_over.as_ref());
                self.exprs(args);
            }
            Expr::FunctionCallStar { name, filter_over } => self.call(name.0, 0, false, filter_over.as_ref()),
            Expr::InList { lhs, rhs, .. } => {
                self.expr(lhs);
                self.exprs(rhs.unwrap_or_default());
            }
            Expr::InSelect { lhs, rhs, .. } => {
                self.expr(lhs);
                self.select(rhs);
            }
            Expr::InTable { lhs, rhs, args, .. } => {
                self.expr(lhs);
                // `IN t` stands for `IN (SELECT * FROM t)`.
                self.selects += 1;
                self.name(rhs.name.0);
                self.exprs(args.unwrap_or_default());
            }
            Expr::Like { lhs, rhs, escape, .. } => {
                self.exprs([*lhs, *rhs]);
                self.exprs(*escape);
            }
            Expr::Parenthesized(exprs) => self.exprs(exprs.iter()),
            Expr::DoublyQualified(..)
            | Expr::Id(_)
            | Expr::Literal(_)
            | Expr::Name(_)
            | Expr::Qualified(..)
            | Expr::Raise(..)
            | Expr::Variable(_) => {}
        }
    }

    fn call(&mut self, name: &str, args: usize, distinct: bool, tail: Option<&FunctionTail<'_>>) {
        if let Some(tail) = tail {
            self.exprs(tail.filter_clause);
            if tail.over_clause.is_some() {
                self.windows = true;
                return;
            }
        }
        let name = name.to_ascii_lowercase();
        // min and max of several arguments are scalar.
        if matches!(name.as_str(), "min" | "max") && args > 1 {
            return;
        }
        if SMALL.contains(&name.as_str()) {
            self.small_aggregates += 1;
            self.distinct_aggregates |= distinct;
        } else if LARGE.contains(&name.as_str()) {
            self.large_aggregates += 1;
        }
    }
}
