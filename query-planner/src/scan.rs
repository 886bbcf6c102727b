//! What a fragment asks, as a value: the table, the filter, the keys and aggregates or the columns
//! and order, so that a node can answer it by an executor of its own (rollups, columns) instead of
//! SQLite.
//!
//! The value is read from the fragment's SQL, at the node. So it always means the same as the SQL
//! that `--explain` shows and that SQLite would run, nothing new travels, and a node of any version
//! may use it or not (docs/decisions/0005-typed-parts-are-read-from-sql.md). What is not understood
//! is no scan ([`Scan::of`] is `None`), and SQLite does it.

mod expressions;
mod foreign;
mod joins;
mod lists;
mod names;
mod operands;
mod outputs;
#[cfg(test)]
mod tests;
mod types;
mod windows;

pub use types::*;

use self::names::{Conditions, Names, View, has_aggregate, source};
use crate::ast::{Expr, Output as AstOutput, Query, Select, Source, With, parse_shallow_select, parse_view, same_name};
use crate::batch::Value;

impl Scan {
    /// The scan that `sql` is. `columns` gives the columns of this node's tables.
    #[must_use]
    pub fn of(sql: &str, columns: ColumnsOf<'_>) -> Option<Scan> {
        Self::through_views(sql, columns, &|_| None, &|_| None)
    }

    /// As [`Scan::of`], also for a view that only picks, renames and derives columns of such a
    /// table and filters its rows: `view` gives a view's CREATE statement. And for such a table
    /// joined with others, of which `plain` knows the columns.
    #[must_use]
    pub fn through_views(
        sql: &str,
        columns: ColumnsOf<'_>,
        plain: PlainColumnsOf<'_>,
        view: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Scan> {
        Reading { columns, plain, view }.scan(&parse_shallow_select(sql).ok()?)
    }

    /// All columns that the scan reads, each once.
    #[must_use]
    pub fn columns(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self.filter.iter().map(|condition| condition.column.as_str()).collect();
        all.extend(self.predicates.iter().flat_map(Operand::columns));
        match &self.output {
            Output::Groups(groups) => {
                all.extend(groups.keys.iter().flat_map(Operand::columns));
                for column in &groups.columns {
                    if let GroupColumn::Aggregate(_, Some(operand)) = column {
                        all.extend(operand.columns());
                    }
                }
            }
            Output::Rows(rows) => {
                all.extend(rows.order.iter().flat_map(|order| order.by.columns()));
                for column in &rows.columns {
                    if let RowColumn::Value(operand) = column {
                        all.extend(operand.columns());
                    }
                }
            }
        }
        if let Some(windowed) = &self.windowed {
            all.extend(windowed.filter.iter().map(|condition| condition.column.as_str()));
            all.extend(windowed.operands().into_iter().flat_map(Operand::columns));
            all.retain(|name| windowed.calls.iter().all(|call| call.column.name != *name));
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// What a store has, for reading statements.
struct Reading<'c> {
    columns: ColumnsOf<'c>,
    plain: PlainColumnsOf<'c>,
    view: &'c dyn Fn(&str) -> Option<String>,
}

impl Reading<'_> {
    /// The scan that a SELECT is.
    fn scan(&self, select: &Select) -> Option<Scan> {
        let listed = lists::with_lists(select);
        let select = listed.as_ref().unwrap_or(select);
        self.of_one(select).or_else(|| self.joined(select))
    }

    /// Over one table, or what shows one.
    fn of_one(&self, select: &Select) -> Option<Scan> {
        let Self { columns, view, .. } = *self;
        let mut select = select.clone();
        let with = select.with.take();
        let query = select.single()?;
        if query.having.is_some() {
            return None;
        }
        let from = query.from.as_ref().filter(|from| from.joins.is_empty())?;
        let mut conditions = Conditions::default();
        let mut through = |select: &Select, alias: Option<String>, node: Option<String>| {
            let mut found = View::of(select, columns)?;
            conditions = std::mem::take(&mut found.conditions);
            Some((found.table.clone(), Names::through(found, alias, node)))
        };
        let (table, mut names) = match (&with, source(&from.first)) {
            (Some(with), _) => {
                let (select, alias) = only_cte(with, &from.first)?;
                through(select, Some(alias), None)?
            }
            (None, Some((table, alias, node))) => match columns(&table) {
                Some(columns) => (table, Names::of(columns, alias, node)),
                None => through(&parse_view(&view(&table)?).ok()?, alias, node)?,
            },
            // An arm of a view (`rules/branches.rs`).
            (None, None) => match &from.first {
                Source::Select { select, alias } => through(select, alias.clone(), None)?,
                _ => return None,
            },
        };
        names.named_windows.clone_from(&query.windows);
        let before = names.is_windowed.then(|| std::mem::take(&mut conditions));
        conditions.add(&names, query.filter.as_ref())?;
        let is_grouped = !query.group_by.is_empty()
            || query.columns.iter().any(|output| matches!(output, AstOutput::Expr(expr, _) if has_aggregate(expr)));
        let output = match (is_grouped, query.distinct) {
            (true, true) => return None,
            (true, false) => Output::Groups(names.groups(query, &select)?),
            (false, true) => Output::Groups(names.groups(&by_all(query), &select)?),
            (false, false) => Output::Rows(names.rows(query, &select)?),
        };
        let has_inner = names.is_windowed;
        let (derived, calls) = names.into_derived();
        // Windows over groups are another thing.
        if is_grouped && !has_inner && !calls.is_empty() {
            return None;
        }
        let before = before.or_else(|| (!calls.is_empty()).then(|| std::mem::take(&mut conditions)));
        let windowed =
            before.map(|Conditions { filter, predicates, gates }| Windowed { filter, predicates, gates, calls });
        let Conditions { filter, predicates, gates } = conditions;
        Some(Scan { table, joined: None, derived, filter, predicates, gates, windowed, output })
    }
}

/// The common table expression that FROM names, where there is one and no more, and its name there.
fn only_cte<'w>(with: &'w With, source: &Source) -> Option<(&'w Select, String)> {
    let ([cte], Source::Table { schema: None, name, alias, .. }) = (with.ctes.as_slice(), source) else { return None };
    let is_it = same_name(&cte.name, name) && cte.columns.is_empty() && !with.recursive;
    is_it.then(|| (&cte.select, alias.clone().unwrap_or_else(|| name.clone())))
}

/// DISTINCT as what it is: groups by all that is shown.
fn by_all(query: &Query) -> Query {
    let group_by = (1..=query.columns.len()).map(|position| Expr::Literal(position.to_string())).collect();
    Query { group_by, ..query.clone() }
}

/// The values of constants on a node.
///
/// # Errors
/// As SQLite's, when one fails (an overflow, say).
pub fn evaluate(
    conn: &rusqlite::Connection,
    constants: &[&Constant],
    node: &str,
    now_unix_ns: i64,
) -> rusqlite::Result<Vec<Value>> {
    constants
        .iter()
        .map(|Constant(sql)| {
            if let Ok(integer) = sql.parse() {
                return Ok(Value::Integer(integer));
            }
            let mut statement = conn.prepare_cached(&format!("SELECT {sql}"))?;
            crate::exec::bind(&mut statement, node, now_unix_ns)?;
            let mut rows = statement.raw_query();
            match rows.next()? {
                Some(row) => Ok(Value::from_sqlite(row.get_ref(0)?)),
                None => Ok(Value::Null),
            }
        })
        .collect()
}
