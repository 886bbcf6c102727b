//! What a query looks like, judged without the planner: the yardstick for its choice of strategy.
//!
//! Only the text counts here. `rung.rs` compares a plan and its costs with what the shape allows.

use std::collections::BTreeSet;

use sqlite3_parser::ast::{
    As, Cmd, Distinctness, Expr, FromClause, FunctionTail, JoinConstraint, JoinOperator, JoinType, Literal, OneSelect,
    Operator, ResultColumn, Select, SelectTable, Stmt,
};
use sqlite3_parser::lexer::sql::Parser;
use sqlite3_parser::{Bump, FallibleIterator as _};

/// The class of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// No table: the coordinator answers alone.
    Constant,
    /// Rows of one table: filtered, sorted, made distinct or cut at the nodes, never fetched whole.
    Scan {
        /// SELECT DISTINCT.
        distinct: bool,
        /// LIMIT plus OFFSET, when both are plain numbers.
        cut: Option<u64>,
    },
    /// Aggregates of one table: partial states travel, not rows.
    Aggregate {
        /// GROUP BY.
        grouped: bool,
        /// Every aggregate has a partial state of fixed size, and no HAVING, LIMIT or DISTINCT
        /// drops groups after the merge: then the number of shipped rows is known from the answer.
        plain: bool,
    },
    /// Joins, subqueries, CTEs, compounds, windows, views: fetching is allowed.
    General,
}

/// What matters about a query's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The class.
    pub shape: Shape,
    /// ORDER BY terms of the outermost SELECT as places in the result (from 0); `None` for a term
    /// that is not one.
    pub order_by: Vec<Option<usize>>,
    /// Columns that USING names, in lower case; SQLite's authorizer does not tell them.
    pub joined_on: Vec<String>,
    /// NATURAL JOIN: which columns are compared is not in the text.
    pub natural: bool,
    /// Tables read once, in lower case, on which WHERE has a plain condition of their own: their
    /// rows must be filtered before they travel.
    pub filtered: BTreeSet<String>,
    /// Places in the result (from 0) that are a `group_concat` without ORDER BY of its own, with
    /// its separator: the order of its parts is SQLite's to choose, the parts are not.
    pub concatenated: Vec<(usize, String)>,
}

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

/// Look at one SELECT. `None` when it is none.
pub fn facts(sql: &str, is_view: &dyn Fn(&str) -> bool) -> Option<Facts> {
    let bump = Bump::new();
    let Ok(Some(Cmd::Stmt(Stmt::Select(select)))) = Parser::new(&bump, sql.as_bytes()).next() else { return None };
    let mut seen = Seen::default();
    seen.select(select);
    Some(Facts {
        shape: shape(select, &seen, is_view),
        filtered: filtered(select, &seen, is_view),
        order_by: order_by(select),
        joined_on: seen.joined_on,
        natural: seen.natural,
        concatenated: concatenated(select),
    })
}

fn shape(select: &Select<'_>, seen: &Seen, is_view: &dyn Fn(&str) -> bool) -> Shape {
    if seen.tables == 0 && seen.functions_as_tables == 0 && !seen.recursive {
        return Shape::Constant;
    }
    if select.with.is_some() || select.body.compounds.is_some() || seen.selects > 1 || seen.windows {
        return Shape::General;
    }
    let OneSelect::Select { distinctness, from: Some(from), group_by, having, .. } = &select.body.select else {
        return Shape::General;
    };
    match only_table(from) {
        Some(table) if !is_view(&plain_name(table)) => {}
        _ => return Shape::General,
    }
    let distinct = matches!(distinctness, Some(Distinctness::Distinct));
    if group_by.is_some() || seen.small_aggregates + seen.large_aggregates > 0 {
        let plain = seen.large_aggregates == 0
            && !seen.distinct_aggregates
            && !distinct
            && having.is_none()
            && select.limit.is_none();
        return Shape::Aggregate { grouped: group_by.is_some(), plain };
    }
    let cut = select.limit.and_then(|limit| {
        let count = number(&limit.expr)?;
        let offset = limit.offset.as_ref().map_or(Some(0), number)?;
        count.checked_add(offset)
    });
    Shape::Scan { distinct, cut }
}

fn order_by(select: &Select<'_>) -> Vec<Option<usize>> {
    let columns: &[ResultColumn<'_>] = match &select.body.select {
        OneSelect::Select { columns, .. } => columns,
        OneSelect::Values(_) => &[],
    };
    let starred = columns.iter().any(|column| !matches!(column, ResultColumn::Expr(..)));
    select
        .order_by
        .unwrap_or_default()
        .iter()
        .map(|term| {
            if let Some(place) = number(&term.expr) {
                return usize::try_from(place).ok()?.checked_sub(1);
            }
            if starred {
                return None;
            }
            columns.iter().position(|column| match column {
                ResultColumn::Expr(expr, alias) => {
                    let alias = alias.as_ref().map(|alias| match alias {
                        As::As(name) | As::Elided(name) => name.0,
                    });
                    let named = match &term.expr {
                        Expr::Id(id) => alias.is_some_and(|alias| alias.eq_ignore_ascii_case(id.0)),
                        _ => false,
                    };
                    named || *expr == term.expr
                }
                ResultColumn::Star | ResultColumn::TableStar(_) => false,
            })
        })
        .collect()
}

/// The columns of a SELECT without compounds that are a `group_concat` whose order is open.
fn concatenated(select: &Select<'_>) -> Vec<(usize, String)> {
    let OneSelect::Select { columns, .. } = &select.body.select else { return Vec::new() };
    let starred = columns.iter().any(|column| !matches!(column, ResultColumn::Expr(..)));
    if starred || select.body.compounds.is_some() {
        return Vec::new();
    }
    let separator = |column: &ResultColumn<'_>| match column {
        ResultColumn::Expr(Expr::FunctionCall { name, args, order_by: None, .. }, _)
            if ["group_concat", "string_agg"].iter().any(|known| name.0.eq_ignore_ascii_case(known)) =>
        {
            match args.unwrap_or_default() {
                [_] => Some(",".to_owned()),
                [_, Expr::Literal(Literal::String(text))] => Some(plain_name(text).replace("''", "'")),
                _ => None,
            }
        }
        _ => None,
    };
    columns.iter().enumerate().filter_map(|(place, column)| Some((place, separator(column)?))).collect()
}

fn number(expr: &Expr<'_>) -> Option<u64> {
    match expr {
        Expr::Literal(Literal::Numeric(text)) => text.parse().ok(),
        _ => None,
    }
}

fn only_table<'a>(from: &'a FromClause<'_>) -> Option<&'a str> {
    if from.joins.as_ref().is_some_and(|joins| !joins.is_empty()) {
        return None;
    }
    match from.select? {
        SelectTable::Table(name, _, _) => Some(name.name.0),
        SelectTable::Sub(inner, _) => only_table(inner),
        SelectTable::TableCall(..) | SelectTable::Select(..) => None,
    }
}

/// Tables that a condition of the outermost WHERE restricts on its own.
fn filtered(select: &Select<'_>, seen: &Seen, is_view: &dyn Fn(&str) -> bool) -> BTreeSet<String> {
    let OneSelect::Select { from: Some(from), where_clause: Some(condition), .. } = &select.body.select else {
        return BTreeSet::new();
    };
    // A view may read any table once more.
    let reads_more = seen.names.iter().any(|name| is_view(name));
    if select.with.is_some() || select.body.compounds.is_some() || reads_more {
        return BTreeSet::new();
    }
    // An outer join lets rows through that WHERE judges after the join.
    let Some(entries) = inner_tables(from) else { return BTreeSet::new() };
    let mut conditions = Vec::new();
    split_and(condition, &mut conditions);
    let mut tables = BTreeSet::new();
    for condition in conditions {
        let mut owners = BTreeSet::new();
        if is_plain(condition, &entries, &mut owners) && owners.len() == 1 {
            tables.append(&mut owners);
        }
    }
    tables.retain(|table| seen.names.iter().filter(|name| *name == table).count() == 1);
    tables
}

/// Alias and table of each entry of a FROM clause that has plain tables and inner joins only.
fn inner_tables(from: &FromClause<'_>) -> Option<Vec<(String, String)>> {
    let mut tables: Vec<&SelectTable<'_>> = from.select.into_iter().collect();
    for join in from.joins.iter().flatten() {
        match join.operator {
            JoinOperator::TypedJoin(Some(kind)) if kind.intersects(JoinType::LEFT | JoinType::RIGHT) => return None,
            JoinOperator::Comma | JoinOperator::TypedJoin(_) => tables.push(&join.table),
        }
    }
    tables
        .into_iter()
        .map(|table| match table {
            SelectTable::Table(name, alias, _) => {
                let name = plain_name(name.name.0).to_ascii_lowercase();
                let alias = alias.as_ref().map(|(As::As(alias) | As::Elided(alias))| plain_name(alias.0));
                Some((alias.map_or_else(|| name.clone(), |alias| alias.to_ascii_lowercase()), name))
            }
            _ => None,
        })
        .collect()
}

fn split_and<'a, 'b>(condition: &'a Expr<'b>, out: &mut Vec<&'a Expr<'b>>) {
    match condition {
        Expr::Binary(left, Operator::And, right) => {
            split_and(left, out);
            split_and(right, out);
        }
        Expr::Parenthesized(inner) if inner.len() == 1 => split_and(&inner[0], out),
        other => out.push(other),
    }
}

/// Whether a condition is made of columns, literals and operators; `owners` takes the tables of its
/// columns.
fn is_plain(expr: &Expr<'_>, entries: &[(String, String)], owners: &mut BTreeSet<String>) -> bool {
    let mut all = |exprs: &[&Expr<'_>]| exprs.iter().all(|expr| is_plain(expr, entries, owners));
    match expr {
        Expr::Literal(_) => true,
        Expr::Between { lhs, start, end, .. } => all(&[lhs, start, end]),
        Expr::Binary(left, _, right) => all(&[left, right]),
        Expr::InList { lhs, rhs, .. } => {
            all(&[lhs]) && rhs.unwrap_or_default().iter().all(|expr| is_plain(expr, entries, owners))
        }
        Expr::IsNull(expr) | Expr::NotNull(expr) | Expr::Unary(_, expr) => all(&[expr]),
        Expr::Parenthesized(inner) => inner.iter().all(|expr| is_plain(expr, entries, owners)),
        Expr::Qualified(table, _) => {
            let alias = plain_name(table.0).to_ascii_lowercase();
            let owner = entries.iter().find(|(entry, _)| *entry == alias);
            owners.extend(owner.map(|(_, table)| table.clone()));
            owner.is_some()
        }
        // Whose it is in a join only the schema says.
        Expr::Id(_) | Expr::Name(_) if entries.len() == 1 => {
            owners.insert(entries[0].1.clone());
            true
        }
        _ => false,
    }
}

fn plain_name(name: &str) -> String {
    name.trim_matches(['"', '`', '[', ']', '\'']).to_owned()
}

/// What occurs anywhere in a statement.
#[derive(Debug, Default)]
struct Seen {
    selects: usize,
    tables: usize,
    /// Of those tables, once for each use.
    names: Vec<String>,
    functions_as_tables: usize,
    recursive: bool,
    windows: bool,
    small_aggregates: usize,
    large_aggregates: usize,
    distinct_aggregates: bool,
    joined_on: Vec<String>,
    natural: bool,
}

impl Seen {
    fn select(&mut self, select: &Select<'_>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shape_of(sql: &str) -> Shape {
        facts(sql, &|name| name == "v").unwrap().shape
    }

    #[test]
    fn shapes() {
        let scan = |distinct, cut| Shape::Scan { distinct, cut };
        let aggregate = |grouped, plain| Shape::Aggregate { grouped, plain };
        for (sql, shape) in [
            ("SELECT 1 + 2", Shape::Constant),
            ("SELECT 1 IN (SELECT 2)", Shape::Constant),
            ("VALUES (1), (2)", Shape::Constant),
            ("SELECT count(*)", Shape::Constant),
            ("SELECT a FROM t WHERE b > 1 ORDER BY c", scan(false, None)),
            ("SELECT a FROM (t) AS x", scan(false, None)),
            ("SELECT DISTINCT a FROM t LIMIT 3 OFFSET 2", scan(true, Some(5))),
            ("SELECT a FROM t LIMIT 1 + 1", scan(false, None)),
            ("SELECT max(a, b) FROM t", scan(false, None)),
            ("SELECT count(*) FROM t", aggregate(false, true)),
            ("SELECT -max(a) + 1 FROM t AS x WHERE NOT b IN (1, 2)", aggregate(false, true)),
            ("SELECT count(DISTINCT a) FROM t", aggregate(false, false)),
            ("SELECT a FROM t GROUP BY a, b", aggregate(true, true)),
            ("SELECT a FROM t GROUP BY a HAVING sum(b) > 1", aggregate(true, false)),
            ("SELECT DISTINCT a FROM t GROUP BY a", aggregate(true, false)),
            ("SELECT a FROM t ORDER BY count(*)", aggregate(false, true)),
            ("SELECT a FROM v", Shape::General),
            ("SELECT a FROM t, u", Shape::General),
            ("SELECT a FROM t JOIN u USING (a)", Shape::General),
            ("SELECT a FROM t WHERE a IN (SELECT b FROM u)", Shape::General),
            ("SELECT a FROM t WHERE a IN u", Shape::General),
            ("SELECT 1 IN u", Shape::General),
            ("SELECT a FROM t WHERE EXISTS (SELECT 1)", Shape::General),
            ("SELECT row_number() OVER (ORDER BY a) FROM t", Shape::General),
            ("SELECT a FROM t UNION SELECT b FROM t", Shape::General),
            ("WITH x AS (SELECT a FROM t) SELECT * FROM x", Shape::General),
            ("SELECT a FROM (SELECT a FROM t)", Shape::General),
        ] {
            assert_eq!(shape_of(sql), shape, "{sql}");
        }
        assert_eq!(facts("DELETE FROM t", &|_| false), None);
        assert_eq!(facts("SELECT FROM", &|_| false), None);
    }

    #[test]
    fn order_terms_are_found_in_the_result() {
        let order = |sql: &str| facts(sql, &|_| false).unwrap().order_by;
        assert_eq!(order("SELECT a, b FROM t"), []);
        assert_eq!(order("SELECT a, b AS x FROM t ORDER BY 2 DESC, a, X"), [Some(1), Some(0), Some(1)]);
        assert_eq!(order("SELECT a, b FROM t ORDER BY c"), [None]);
        assert_eq!(order("SELECT *, a FROM t ORDER BY a, 1"), [None, Some(0)]);
        assert_eq!(order("SELECT a UNION SELECT b ORDER BY 1"), [Some(0)]);
    }

    #[test]
    fn conditions_of_one_table_are_told() {
        let filtered = |sql: &str| {
            let tables = facts(sql, &|name| name == "v").unwrap().filtered;
            tables.into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(filtered("SELECT 1 FROM t AS x, u WHERE x.a > 1 AND (u.b IN (1, 2) AND x.a = u.a)"), "t u");
        assert_eq!(filtered("SELECT 1 FROM t WHERE a BETWEEN 1 AND 2 AND b IN (SELECT c FROM u)"), "t");
        assert_eq!(filtered("SELECT 1 FROM t WHERE a > 1 AND b IN (SELECT c FROM t)"), "");
        assert_eq!(filtered("SELECT 1 FROM t LEFT JOIN u ON 1 WHERE u.a IS NULL"), "");
        assert_eq!(filtered("SELECT 1 FROM t, u WHERE a > 1"), "");
        assert_eq!(filtered("SELECT 1 FROM t, v WHERE t.a > 1"), "");
        assert_eq!(filtered("SELECT 1 FROM t, u WHERE t.a > u.a OR t.b = 1"), "");
        assert_eq!(filtered("SELECT 1 FROM t WHERE abs(a) = 1 AND 1 = 1"), "");
    }

    #[test]
    fn joined_columns_are_told() {
        let facts = |sql: &str| facts(sql, &|_| false).unwrap();
        assert_eq!(facts("SELECT 1 FROM t JOIN u USING (A, \"b\")").joined_on, ["a", "b"]);
        assert!(facts("SELECT 1 FROM t NATURAL LEFT JOIN u").natural);
        assert!(!facts("SELECT 1 FROM t LEFT JOIN u ON a = b").natural);
    }

    #[test]
    fn concatenation_without_order_is_told() {
        let concatenated = |sql: &str| facts(sql, &|_| false).unwrap().concatenated;
        let of = |place: usize, separator: &str| (place, separator.to_owned());
        assert_eq!(
            concatenated("SELECT a, group_concat(DISTINCT x), string_agg(x, '; ') FROM t"),
            [of(1, ","), of(2, "; ")]
        );
        for known in ["group_concat(x ORDER BY x)", "count(x)", "length(group_concat(x))", "group_concat(x, y)"] {
            assert_eq!(concatenated(&format!("SELECT {known} FROM t")), []);
        }
    }
}
