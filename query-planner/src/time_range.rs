//! Which stretch of time a statement can see, from its own conditions: so that a node mentions the
//! gaps in its data that touch the question, and not every gap it ever had.

use std::ops::Range;

use crate::ast::{Expr, Output, Query, Source, conjuncts, parse_shallow_select, unquote};

/// The widest range that limits nothing.
const EVERYTHING: Range<i64> = i64::MIN..i64::MAX;

/// The values of the time columns `columns` (equal names mean equal things, whatever table they are
/// of) that rows seen by `sql` can have: from top-level comparisons with integer literals.
/// `i64::MIN..i64::MAX` where nothing is certain: joins, compounds, other conditions, statements
/// that do not parse.
pub fn time_range(sql: &str, columns: &[&str]) -> Range<i64> {
    match parse_shallow_select(sql) {
        Ok(select) => select.single().map_or(EVERYTHING, |query| of_query(query, columns)),
        Err(_) => EVERYTHING,
    }
}

fn of_query(query: &Query, columns: &[&str]) -> Range<i64> {
    let Some(from) = query.from.as_ref().filter(|from| from.joins.is_empty()) else { return EVERYTHING };
    let mut range = match &from.first {
        Source::Table { .. } => EVERYTHING,
        // The wrapper that adds `node`: its time columns are the table's own.
        Source::Select { select, .. } => match select.single() {
            Some(inner) if passes_through(inner, columns) => of_query(inner, columns),
            _ => return EVERYTHING,
        },
        _ => return EVERYTHING,
    };
    for condition in query.filter.as_ref().map(conjuncts).unwrap_or_default() {
        let Some(allowed) = allowed(condition, columns) else { continue };
        range = range.start.max(allowed.start)..range.end.min(allowed.end);
    }
    range
}

/// `SELECT *, …` that gives no other column the name of a time column.
fn passes_through(query: &Query, columns: &[&str]) -> bool {
    let is_time = |name: &str| columns.iter().any(|column| unquote(name).eq_ignore_ascii_case(column));
    query.columns.contains(&Output::Star)
        && query.group_by.is_empty()
        && query.columns.iter().all(|output| match output {
            Output::Star => true,
            Output::Expr(_, Some(alias)) => !is_time(alias),
            _ => false,
        })
}

/// The values that one condition allows, when it compares a time column with an integer.
fn allowed(condition: &Expr, columns: &[&str]) -> Option<Range<i64>> {
    let is_time = |expr: &Expr| match expr.peeled() {
        Expr::Column { name, .. } => columns.iter().any(|column| unquote(name).eq_ignore_ascii_case(column)),
        _ => false,
    };
    match condition {
        Expr::Between { lhs, not: false, low, high } if is_time(lhs) => {
            Some(low.integer()?..high.integer()?.saturating_add(1))
        }
        Expr::Binary(lhs, operator, rhs) => {
            let (operator, bound) = if is_time(lhs) {
                (*operator, rhs.integer()?)
            } else if is_time(rhs) {
                let mirrored = match *operator {
                    "<" => ">",
                    "<=" => ">=",
                    ">" => "<",
                    ">=" => "<=",
                    other => other,
                };
                (mirrored, lhs.integer()?)
            } else {
                return None;
            };
            match operator {
                "<" => Some(i64::MIN..bound),
                "<=" => Some(i64::MIN..bound.saturating_add(1)),
                ">" => Some(bound.saturating_add(1)..i64::MAX),
                ">=" => Some(bound..i64::MAX),
                "=" | "==" => Some(bound..bound.saturating_add(1)),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(sql: &str) -> Range<i64> {
        time_range(sql, &["ts_ns"])
    }

    #[test]
    fn comparisons_narrow_the_range() {
        assert_eq!(range("SELECT 1 FROM t WHERE ts_ns >= 5 AND (ts_ns < 9 AND x = 1)"), 5..9);
        assert_eq!(range("SELECT 1 FROM t WHERE 5 < \"TS_NS\" AND t.ts_ns <= 9"), 6..10);
        assert_eq!(range("SELECT 1 FROM t WHERE ts_ns BETWEEN -5 AND 9"), -5..10);
        assert_eq!(range("SELECT 1 FROM t WHERE ts_ns = 7"), 7..8);
    }

    #[test]
    fn the_wrapper_that_adds_the_node_is_seen_through() {
        let sql =
            "SELECT node, max(x) FROM (SELECT *, CAST(:n AS TEXT) AS node FROM t WHERE ts_ns > 3) AS t WHERE ts_ns < 9";
        assert_eq!(range(sql), 4..9);
        let renamed = "SELECT 1 FROM (SELECT *, x AS ts_ns FROM t) AS t WHERE ts_ns < 9";
        assert_eq!(range(renamed), EVERYTHING);
    }

    #[test]
    fn whatever_is_not_certain_is_everything() {
        for sql in [
            "SELECT 1 FROM t",
            "SELECT 1 FROM t WHERE ts_ns > 5 OR x",
            "SELECT 1 FROM t WHERE ts_ns > 5 + x",
            "SELECT 1 FROM t WHERE ts_ns NOT BETWEEN 1 AND 2",
            "SELECT 1 FROM t, u WHERE t.ts_ns > 5",
            "SELECT 1 FROM t WHERE ts_ns > 5 UNION SELECT 2 FROM t",
            "not SQL",
        ] {
            assert_eq!(range(sql), EVERYTHING, "{sql}");
        }
    }
}
