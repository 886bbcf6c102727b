//! What a query looks like, judged without the planner: the yardstick for its choice of strategy.
//!
//! Only the text counts here; `seen.rs` walks through it. `rung.rs` compares a plan and its costs
//! with what the shape allows.

mod seen;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use sqlite3_parser::ast::{
    As, Cmd, Distinctness, Expr, FromClause, JoinOperator, JoinType, Literal, OneSelect, Operator, ResultColumn,
    Select, SelectTable, Stmt,
};
use sqlite3_parser::lexer::sql::Parser;
use sqlite3_parser::{Bump, FallibleIterator as _};

use seen::Seen;

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
