//! `IN (SELECT …)` over nothing but values, written as a list, and `(SELECT …)` of one value,
//! written as that: conditions on a column, for which no join is needed. Where a column and a value
//! are of different kinds the two would differ by affinities; such a condition is not understood.

use crate::ast::{Core, Expr, Output, Query, Select, Source, VisitMut, same_name, walk_mut};
use crate::ctes;
use crate::names::affinity;

/// The SELECT with such lists; none where it has none.
pub(super) fn with_lists(select: &Select) -> Option<Select> {
    struct Lists(bool);
    impl VisitMut for Lists {
        fn expr(&mut self, node: &mut Expr) {
            if let Expr::InSelect { lhs, not, select } = node
                && let Some(list) = values(select)
            {
                *node = Expr::InList { lhs: lhs.clone(), not: *not, list };
                self.0 = true;
            }
            if let Expr::Subquery(select) = node
                && let Some(value) = scalar(select)
            {
                *node = value.paren();
                self.0 = true;
            }
            walk_mut::expr(self, node);
        }
    }
    let mut listed = ctes::inlined(select).unwrap_or_else(|| select.clone());
    let mut lists = Lists(false);
    lists.select(&mut listed);
    lists.0.then_some(listed)
}

/// The value of a SELECT of one column that is made of one value alone, with the cast that gives it
/// its affinity.
fn scalar(select: &Select) -> Option<Expr> {
    let plain = |select: &Select| {
        select.with.is_none() && select.compounds.is_empty() && select.order_by.is_empty() && select.limit.is_none()
    };
    if !plain(select) {
        return None;
    }
    match &select.first {
        Core::Values(rows) => match rows.as_slice() {
            [row] => match row.as_slice() {
                [value] => Some(value.clone()).filter(is_constant),
                _ => None,
            },
            _ => None,
        },
        Core::Query(query) => {
            let (shown, cast, inner) = passed_on(query)?;
            let value = scalar(inner)?;
            Some(match cast {
                Some(name) => Expr::Cast(Box::new(value), name.clone()),
                None => value,
            })
            .filter(|_| names(shown, inner))
        }
    }
}

/// Whether an expression is made of literals, signs, casts and quotients.
fn is_constant(expr: &Expr) -> bool {
    match expr.peeled() {
        Expr::Literal(_) => true,
        Expr::Unary("-" | "+", of) | Expr::Cast(of, _) => is_constant(of),
        Expr::Binary(a, "*" | "/", b) => is_constant(a) && is_constant(b),
        _ => false,
    }
}

/// The values of a SELECT of one column that is made of them alone: at least one.
fn values(select: &Select) -> Option<Vec<Expr>> {
    if select.with.is_some() || !select.compounds.is_empty() || !select.order_by.is_empty() || select.limit.is_some() {
        return None;
    }
    match &select.first {
        Core::Values(rows) => {
            let one = |row: &Vec<Expr>| match row.as_slice() {
                [value] => {
                    Some(value.clone()).filter(|value| matches!(value, Expr::Literal(_)) || value.integer().is_some())
                }
                _ => None,
            };
            rows.iter().map(one).collect::<Option<Vec<_>>>().filter(|values| !values.is_empty())
        }
        Core::Query(query) => of_query(query),
    }
}

fn of_query(query: &Query) -> Option<Vec<Expr>> {
    let (shown, cast, inner) = passed_on(query)?;
    let cast = cast.map(|name| affinity(name));
    let is_null = |value: &Expr| matches!(value, Expr::Literal(text) if text.eq_ignore_ascii_case("NULL"));
    // A cast that changes nothing.
    let is_kept = |value: &Expr| match cast {
        None => true,
        Some("INT") => is_null(value) || value.integer().is_some(),
        Some("TEXT") => is_null(value) || matches!(value, Expr::Literal(text) if text.starts_with('\'')),
        Some(_) => false,
    };
    values(inner).filter(|values| names(shown, inner) && values.iter().all(is_kept))
}

/// Of a SELECT that hands one column of another one on: its expression, the type that it casts to,
/// and the other one.
fn passed_on(query: &Query) -> Option<(&Expr, Option<&String>, &Select)> {
    let Query { distinct: _, columns, from: Some(from), filter: None, group_by, having: None, windows } = query else {
        return None;
    };
    let ([Output::Expr(shown, _)], Source::Select { select, .. }) = (columns.as_slice(), &from.first) else {
        return None;
    };
    if !from.joins.is_empty() || !group_by.is_empty() || !windows.is_empty() {
        return None;
    }
    Some(match shown.peeled() {
        Expr::Cast(of, name) => (of.peeled(), Some(name), select),
        other => (other, None, select),
    })
}

/// Whether an expression is the one column of a SELECT.
fn names(shown: &Expr, select: &Select) -> bool {
    let column = match &select.first {
        Core::Values(_) => "column1",
        Core::Query(query) => match query.columns.as_slice() {
            [Output::Expr(_, Some(alias))] => alias,
            _ => return false,
        },
    };
    matches!(shown, Expr::Column { name, .. } if same_name(name, column))
}
