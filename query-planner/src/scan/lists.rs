//! `IN (SELECT …)` over nothing but values, written as a list: a condition on a column, for which no
//! join is needed. Where a column and a value are of different kinds the two would differ by
//! affinities; such a condition is understood by nobody here.

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
            walk_mut::expr(self, node);
        }
    }
    let mut listed = ctes::inlined(select).unwrap_or_else(|| select.clone());
    let mut lists = Lists(false);
    lists.select(&mut listed);
    lists.0.then_some(listed)
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
    let Query { distinct: _, columns, from: Some(from), filter: None, group_by, having: None, windows } = query else {
        return None;
    };
    let ([Output::Expr(shown, _)], Source::Select { select, .. }) = (columns.as_slice(), &from.first) else {
        return None;
    };
    if !from.joins.is_empty() || !group_by.is_empty() || !windows.is_empty() {
        return None;
    }
    let (shown, cast) = match shown.peeled() {
        Expr::Cast(of, name) => (of.peeled(), Some(affinity(name))),
        other => (other, None),
    };
    let inner = match &select.first {
        Core::Values(_) => "column1".to_owned(),
        Core::Query(query) => match query.columns.as_slice() {
            [Output::Expr(_, Some(alias))] => alias.clone(),
            _ => return None,
        },
    };
    let is_it = matches!(shown, Expr::Column { name, .. } if same_name(name, &inner));
    let is_null = |value: &Expr| matches!(value, Expr::Literal(text) if text.eq_ignore_ascii_case("NULL"));
    // A cast that changes nothing.
    let is_kept = |value: &Expr| match cast {
        None => true,
        Some("INT") => is_null(value) || value.integer().is_some(),
        Some("TEXT") => is_null(value) || matches!(value, Expr::Literal(text) if text.starts_with('\'')),
        Some(_) => false,
    };
    values(select).filter(|values| is_it && values.iter().all(is_kept))
}
