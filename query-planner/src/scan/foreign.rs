//! What a SELECT over tables that are no columns (or over none) gives, as far as that shows: sides
//! of a join that SQLite works out by itself. The kind of a column's values is a guess here,
//! checked when the values are there; what decides how they compare (collations) is certain.

use super::{Column, PlainColumnsOf};
use crate::ast::{Compound, Core, Expr, Output, Query, Select, Source, Visit, same_name, unquote, walk};
use crate::functions;
use crate::names::affinity;

/// What an expression gives, if not NULL.
#[derive(Clone, Copy, PartialEq)]
enum ValueKind {
    Integers,
    Text,
    Reals,
    /// NULL only, or nothing that is known.
    Nothing,
}

/// The result columns by name; none where it reads other tables, names something of the query
/// around it, or may differ from time to time.
pub(super) fn columns(select: &Select, plain: PlainColumnsOf<'_>) -> Option<Vec<(String, Option<Column>)>> {
    let mut look = Look { is_same: true };
    look.select(select);
    // (Which rows LIMIT leaves without an order is not to be decided twice.)
    if select.with.is_some() || !look.is_same || (select.limit.is_some() && select.order_by.is_empty()) {
        return None;
    }
    let mut columns = of_core(&select.first, plain)?;
    for (compound, core) in &select.compounds {
        let other = of_core(core, plain)?;
        if *compound != Compound::UnionAll || other.len() != columns.len() {
            return None;
        }
        for ((_, kind), (_, other)) in columns.iter_mut().zip(other) {
            *kind = both(*kind, other);
        }
    }
    let column = |(name, kind): (String, Option<ValueKind>)| {
        let column = match kind {
            Some(ValueKind::Integers) => Some(Column::of_integers(name.clone())),
            Some(ValueKind::Text) => Some(Column::of_text(name.clone(), true)),
            Some(ValueKind::Reals) => Some(Column { is_real: true, ..Column::of_integers(name.clone()) }),
            Some(ValueKind::Nothing) | None => None,
        };
        (name, column)
    };
    Some(columns.into_iter().map(column).collect())
}

/// Whether an expression has no subquery, names no parameter, and gives the same for a row each
/// time.
pub(super) fn is_same_each_time(expr: &Expr) -> bool {
    let mut look = Look { is_same: true };
    look.expr(expr);
    look.is_same
}

struct Look {
    is_same: bool,
}

impl Visit for Look {
    fn source(&mut self, node: &Source) {
        self.is_same &= !matches!(node, Source::Call { .. });
        walk::source(self, node);
    }

    fn expr(&mut self, node: &Expr) {
        match node {
            Expr::Call(call) => self.is_same &= !functions::is_volatile(&call.name),
            Expr::Variable(_)
            | Expr::Collate(..)
            | Expr::Exists(_)
            | Expr::Subquery(_)
            | Expr::InSelect { .. }
            | Expr::InTable { .. } => self.is_same = false,
            _ => {}
        }
        walk::expr(self, node);
    }
}

fn both(a: Option<ValueKind>, b: Option<ValueKind>) -> Option<ValueKind> {
    match (a?, b?) {
        (ValueKind::Nothing, other) | (other, ValueKind::Nothing) => Some(other),
        (a, b) => (a == b).then_some(a),
    }
}

type Named = Vec<(String, Option<ValueKind>)>;

fn of_core(core: &Core, plain: PlainColumnsOf<'_>) -> Option<Named> {
    let query = match core {
        Core::Query(query) => query,
        Core::Values(rows) => {
            let width = rows.first()?.len();
            let of = |at: usize| rows.iter().map(|row| kind_of(row.get(at)?, &[])).reduce(both).flatten();
            return Some((0..width).map(|at| (format!("column{}", at + 1), of(at))).collect());
        }
    };
    let mut sources = Vec::new();
    if let Some(from) = &query.from {
        for source in from.sources() {
            sources.push(of_source(source, plain)?);
        }
    }
    // A name that is none of these is one of the query around.
    let mut names = Names { sources: &sources, aliases: aliases(query), all_known: true };
    names.query(query);
    if !names.all_known {
        return None;
    }
    let mut columns = Vec::new();
    for output in &query.columns {
        let Output::Expr(expr, alias) = output else { return None };
        let name = match (alias, expr.peeled()) {
            (Some(alias), _) => unquote(alias),
            (None, Expr::Column { name, .. }) => unquote(name),
            _ => String::new(),
        };
        columns.push((name, kind_of(expr, &sources)));
    }
    Some(columns)
}

/// A source's name, and its columns.
type Known = (Option<String>, Named);

fn of_source(source: &Source, plain: PlainColumnsOf<'_>) -> Option<Known> {
    match source {
        Source::Table { schema: None, name, alias, .. } => {
            let kind = |column: &Column| match (column.is_text, column.is_real) {
                (true, _) => ValueKind::Text,
                (_, true) => ValueKind::Reals,
                _ => ValueKind::Integers,
            };
            let columns = plain(&unquote(name))?;
            let columns = columns.into_iter().map(|(name, column)| (name, column.as_ref().map(kind))).collect();
            Some((Some(alias.clone().unwrap_or_else(|| name.clone())), columns))
        }
        Source::Select { select, alias } if select.with.is_none() && select.compounds.is_empty() => {
            Some((alias.clone(), of_core(&select.first, plain)?))
        }
        _ => None,
    }
}

fn aliases(query: &Query) -> Vec<&String> {
    fn alias(output: &Output) -> Option<&String> {
        if let Output::Expr(_, alias) = output { alias.as_ref() } else { None }
    }
    query.columns.iter().filter_map(alias).collect()
}

fn find(sources: &[Known], table: Option<&str>, name: &str) -> Option<Option<ValueKind>> {
    let of_table = |(alias, _): &&Known| match (table, alias) {
        (None, _) => true,
        (Some(table), Some(alias)) => same_name(table, alias),
        (Some(_), None) => false,
    };
    let columns = sources.iter().filter(of_table).flat_map(|(_, columns)| columns);
    let mut found = columns.filter(|(column, _)| same_name(name, column)).map(|(_, kind)| *kind);
    let first = found.next()?;
    Some(first.filter(|_| found.next().is_none()))
}

struct Names<'n> {
    sources: &'n [Known],
    aliases: Vec<&'n String>,
    all_known: bool,
}

impl Visit for Names<'_> {
    // What is nested has been looked at with names of its own.
    fn select(&mut self, _: &Select) {}

    fn expr(&mut self, node: &Expr) {
        if let Expr::Column { table, name } = node {
            let is_alias = table.is_none() && self.aliases.iter().any(|alias| same_name(alias, name));
            self.all_known &= is_alias || find(self.sources, table.as_deref(), name).is_some();
        }
        walk::expr(self, node);
    }
}

fn kind_of(expr: &Expr, sources: &[Known]) -> Option<ValueKind> {
    let of = |expr: &Expr| kind_of(expr, sources);
    match expr.peeled() {
        Expr::Column { table, name } => find(sources, table.as_deref(), name)?,
        Expr::Literal(text) if text.eq_ignore_ascii_case("NULL") => Some(ValueKind::Nothing),
        Expr::Literal(text) if text.starts_with('\'') => Some(ValueKind::Text),
        Expr::Literal(text) if text.parse::<i64>().is_ok() => Some(ValueKind::Integers),
        Expr::Literal(text) if text.starts_with(|first: char| first.is_ascii_digit() || first == '.') => {
            Some(ValueKind::Reals)
        }
        Expr::Unary("+" | "-", expr) => of(expr),
        Expr::Cast(_, name) => match affinity(name) {
            "INT" => Some(ValueKind::Integers),
            "TEXT" => Some(ValueKind::Text),
            "REAL" => Some(ValueKind::Reals),
            _ => None,
        },
        Expr::Binary(lhs, "+" | "-" | "*" | "/", rhs) => match (of(lhs)?, of(rhs)?) {
            (ValueKind::Reals, ValueKind::Integers | ValueKind::Reals) | (ValueKind::Integers, ValueKind::Reals) => {
                Some(ValueKind::Reals)
            }
            (a, b) => both(Some(a), Some(b)),
        },
        Expr::Binary(_, "||", _) => Some(ValueKind::Text),
        Expr::Binary(_, "%" | "&" | "|" | "=" | "==" | "<>" | "!=" | "<" | "<=" | ">" | ">=" | "IS" | "IS NOT", _) => {
            Some(ValueKind::Integers)
        }
        Expr::Case { arms, otherwise, .. } => {
            arms.iter().map(|(_, then)| of(then)).chain(otherwise.iter().map(|expr| of(expr))).reduce(both).flatten()
        }
        Expr::Call(call) => match (unquote(&call.name).to_ascii_lowercase().as_str(), call.args.as_slice()) {
            ("count" | "length" | "row_number" | "rank" | "dense_rank", _) => Some(ValueKind::Integers),
            ("avg" | "total", _) => Some(ValueKind::Reals),
            ("sum" | "min" | "max" | "abs" | "lag" | "lead" | "first_value" | "last_value", [first, ..]) => of(first),
            ("coalesce" | "ifnull", args) => args.iter().map(of).reduce(both).flatten(),
            ("upper" | "lower" | "substr" | "trim" | "replace" | "group_concat" | "strftime" | "printf", _) => {
                Some(ValueKind::Text)
            }
            _ => None,
        },
        _ => None,
    }
}
