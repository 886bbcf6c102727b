//! Parts of a question whose results are few go to the nodes as values.
//!
//! `… WHERE pid NOT IN (SELECT pid FROM b)`,
//! `… FROM a JOIN (SELECT k, avg(x) AS m FROM a GROUP BY k) AS p ON p.k = a.k`: strategy 4
//! (`parts.rs`) merges the part and fetches the rows of `a`. With the part's few rows written into
//! the question as values, the rest is over one table, and the rules for rows and aggregates have a
//! plan for it: nodes join, filter and aggregate, and what is shipped is as small as the answer.
//! Both plans are made beforehand; which one runs depends on the part's rows, once they are there
//! (`run.rs`): at most [`MAX_KEYS`] rows of at most [`MAX_KEY_BYTES`], as what keys may have
//! (`semijoin.rs`).
//!
//! # Why it keeps the contract
//! A part stands for itself: its rows are the same wherever they are looked at. They are written so
//! that SQLite reads back what they were: integers, texts, and doubles as quotients of integers
//! that fit into a double; what cannot be written so (blobs, infinities, text with a NUL) leaves
//! the other plan. Each column has the affinity that it had, by a cast that changes no value of the
//! column (else the other plan), and collates by BINARY as it did. So the values are a replicated
//! table, for which the rules for rows and aggregates keep the contract.
//!
//! The second round is asked of the snapshots of the first.

use crate::ast::{Expr, Output, Select, Source, VisitMut, quote_name, walk_mut};
use crate::batch::Value;
use crate::catalog::{Catalog, Column, Kind, Table};
use crate::check::check;
use crate::ctes;
use crate::limits::{MAX_KEY_BYTES, MAX_KEYS};
use crate::names::affinity;
use crate::plan::{Fragment, Merge, MergeTable, Plan, ValueSet, WithValues};
use crate::rewrite::normalise;
use crate::shape::Shape;

/// How the table of a part's values is called.
const PREFIX: &str = "mesh_values_";

/// The plan with the parts' values, where there is one. `select` is the question with merge SQL
/// over the `parts`' tables in place of its parts; fragment `i` of `whole` fills merge table `i`.
pub(super) fn plan(
    select: &Select,
    parts: &[(Fragment, MergeTable)],
    plain: &Plan,
    catalog: &Catalog,
) -> Option<WithValues> {
    let Merge::Sql { tables, .. } = &plain.merge else { return None };
    let place = |name: &str| tables.iter().position(|table| table.name == name);
    let first: Vec<usize> = parts.iter().map(|(_, table)| place(&table.name)).collect::<Option<_>>()?;
    // With nothing left to fetch it is the plan already; a semi-join has rounds of its own.
    if first.len() == plain.fragments.len() || !plain.reductions.is_empty() {
        return None;
    }
    let mut select = select.clone();
    let mut put = Put { parts, sets: Vec::new(), failed: false };
    put.select(&mut select);
    let sets = put.sets;
    if put.failed || sets.is_empty() {
        return None;
    }
    let mut catalog = catalog.clone();
    for set in &sets {
        catalog.tables.insert(set.name.clone(), as_replicated(set));
    }
    let sql = select.to_string();
    let question = check(&sql, &catalog).ok()?;
    let (normal, _) = normalise(&question).ok()?;
    let shaped = ctes::inlined(&normal);
    let shape = Shape::of(shaped.as_ref().unwrap_or(&normal), &catalog)?;
    let plan = match super::rows::plan(&question, &shape).ok()? {
        Some(plan) => plan,
        None => super::aggregate::plan(&question, &shape).ok()??,
    };
    let mut plan = Plan { columns: plain.columns.clone(), ..plan };
    for fragment in &mut plan.fragments {
        if !fragment.sql.starts_with("SELECT ") {
            return None;
        }
        fragment.reads.retain(|(table, _)| sets.iter().all(|set| set.name != *table));
        let tables: Vec<&str> = fragment.reads.iter().map(|(table, _)| table.as_str()).collect();
        fragment.table = tables.join(", ");
    }
    Some(WithValues { first, sets, plan: Box::new(plan) })
}

/// Puts tables of values in place of merge SQL.
struct Put<'p> {
    parts: &'p [(Fragment, MergeTable)],
    sets: Vec<ValueSet>,
    failed: bool,
}

impl VisitMut for Put<'_> {
    fn select(&mut self, node: &mut Select) {
        let part = node.single().and_then(|query| query.from.as_ref()).and_then(|from| match &from.first {
            Source::Table { name, .. } if from.joins.is_empty() => {
                self.parts.iter().find(|(_, table)| table.name == *name).map(|(_, table)| table)
            }
            _ => None,
        });
        match part {
            None => walk_mut::select(self, node),
            Some(table) => match self.put(node, table) {
                Some(values) => *node = values,
                None => self.failed = true,
            },
        }
    }
}

impl Put<'_> {
    fn put(&mut self, part: &Select, table: &MergeTable) -> Option<Select> {
        if table.columns.iter().any(|column| !column.collation.eq_ignore_ascii_case("BINARY")) {
            return None;
        }
        let name = format!("{PREFIX}{}", self.sets.len() + 1);
        let (mut affinities, mut columns) = (Vec::new(), Vec::new());
        for (at, output) in part.single()?.columns.iter().enumerate() {
            let Output::Expr(expr, alias) = output else { return None };
            affinities.push(match expr.peeled() {
                Expr::Column { name, .. } => {
                    let named = |column: &&crate::plan::MergeColumn| crate::ast::same_name(&column.name, name);
                    // (A column without a type converts nothing, which no expression can express.)
                    table
                        .columns
                        .iter()
                        .find(named)
                        .map(|column| column.affinity.clone())
                        .filter(|name| !name.is_empty())?
                }
                Expr::Cast(_, type_name) => affinity(type_name).to_owned(),
                Expr::Collate(..) => return None,
                _ => String::new(),
            });
            columns.push(Output::Expr(Expr::column(&column_name(at)), alias.clone()));
        }
        self.sets.push(ValueSet { name: name.clone(), sql: part.to_string(), affinities });
        let source =
            Source::Table { schema: None, name: quote_name(&name), alias: None, indexed: crate::ast::Indexed::Any };
        let from = Some(crate::ast::From { first: source, joins: Vec::new() });
        Some(Select::of(crate::ast::Query { columns, from, ..Default::default() }))
    }
}

pub(super) fn column_name(at: usize) -> String {
    format!("v{at}")
}

/// A table of values as a catalogue shows it.
fn as_replicated(set: &ValueSet) -> Table {
    let column = |(at, affinity): (usize, &String)| Column {
        name: column_name(at),
        decl_type: affinity.clone(),
        collation: "BINARY".to_owned(),
        plain: true,
    };
    Table {
        name: set.name.clone(),
        sql: String::new(),
        columns: set.affinities.iter().enumerate().map(column).collect(),
        replicated: true,
        kind: Kind::Table,
        varies: false,
        rowid_column: None,
    }
}

/// The fragments of the plan with values, with these values; none where they are too many or cannot
/// be written.
pub(crate) fn with_rows(with: &WithValues, values: &[Vec<Vec<Value>>]) -> Option<Plan> {
    let rows: usize = values.iter().map(Vec::len).sum();
    let bytes: u64 = values.iter().flatten().flatten().map(Value::data_bytes).sum();
    if rows > MAX_KEYS || bytes > MAX_KEY_BYTES {
        return None;
    }
    let mut plan = Plan::clone(&with.plan);
    for fragment in &mut plan.fragments {
        fragment.sql = with_sets(&with.sets, values, &fragment.sql)?;
    }
    Some(plan)
}

/// A statement with the sets that it names; none where their rows cannot be written.
pub(crate) fn with_sets(sets: &[ValueSet], values: &[Vec<Vec<Value>>], sql: &str) -> Option<String> {
    let mut expressions = Vec::new();
    for (set, rows) in sets.iter().zip(values) {
        // (Names that planning adds appear where they are used, and nowhere else.)
        if sql.contains(&set.name) {
            expressions.push(format!("{} AS ({})", set.name, written(set, rows)?));
        }
    }
    Some(match (expressions.is_empty(), sql.strip_prefix("WITH ")) {
        (true, _) => sql.to_owned(),
        (_, Some(rest)) => format!("WITH {}, {rest}", expressions.join(", ")),
        (_, None) => format!("WITH {} {sql}", expressions.join(", ")),
    })
}

/// The values of a set as a SELECT.
fn written(set: &ValueSet, rows: &[Vec<Value>]) -> Option<String> {
    let column = |(at, affinity): (usize, &String)| {
        let of = if rows.is_empty() { "NULL".to_owned() } else { format!("column{}", at + 1) };
        let of = if affinity.is_empty() { of } else { format!("CAST({of} AS {affinity})") };
        format!("{of} AS {}", column_name(at))
    };
    let columns: Vec<String> = set.affinities.iter().enumerate().map(column).collect();
    let columns = columns.join(", ");
    if rows.is_empty() {
        return Some(format!("SELECT {columns} WHERE 0"));
    }
    let mut all = Vec::with_capacity(rows.len());
    for row in rows {
        let cells = row.iter().zip(&set.affinities).map(|(value, affinity)| literal(value, affinity));
        all.push(format!("({})", cells.collect::<Option<Vec<_>>>()?.join(", ")));
    }
    Some(format!("SELECT {columns} FROM (VALUES {})", all.join(", ")))
}

/// A value as SQL that gives it again, also after a cast to its column's affinity.
fn literal(value: &Value, affinity: &str) -> Option<String> {
    let fits = |affinities: &[&str]| affinity.is_empty() || affinities.contains(&affinity);
    match value {
        Value::Null => Some("NULL".to_owned()),
        // (The least integer has no literal.)
        Value::Integer(i64::MIN) => None,
        Value::Integer(value) => fits(&["INT", "NUM"]).then(|| value.to_string()),
        Value::Real(value) => fits(&["REAL"]).then(|| real(*value))?,
        Value::Text(text) => {
            let text = std::str::from_utf8(text).ok().filter(|text| fits(&["TEXT"]) && !text.contains('\0'))?;
            Some(format!("'{}'", text.replace('\'', "''")))
        }
        Value::Blob(_) => None,
    }
}

/// A double as a quotient or product of an integer of 53 bits and a power of two, each of which is
/// a double: no digits that somebody would have to round.
fn real(value: f64) -> Option<String> {
    const FRACTION_BITS: i64 = 52;
    let bits = value.abs().to_bits();
    let (exponent, fraction) =
        ((bits >> FRACTION_BITS).cast_signed(), (bits & ((1 << FRACTION_BITS) - 1)).cast_signed());
    if bits == 0 {
        return value.is_sign_positive().then(|| "0.0".to_owned());
    }
    if !value.is_normal() {
        return None;
    }
    let mut mantissa = fraction | 1 << FRACTION_BITS;
    let mut power = exponent - 1023 - FRACTION_BITS;
    while mantissa & 1 == 0 {
        mantissa >>= 1;
        power += 1;
    }
    let mantissa = if value < 0.0 { -mantissa } else { mantissa };
    let (operator, by) = if power < 0 { ('/', -power) } else { ('*', power) };
    let by = 1_i64.checked_shl(u32::try_from(by).ok()?).filter(|by| *by > 0)?;
    Some(format!("(CAST({mantissa} AS REAL) {operator} CAST({by} AS REAL))"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rusqlite::Connection;

    use super::*;

    fn read_back(sql: &str) -> Value {
        let conn = Connection::open_in_memory().expect("memory");
        conn.query_row(&format!("SELECT {sql}"), [], |row| row.get_ref(0).map(Value::from_sqlite)).expect(sql)
    }

    proptest! {
        #[test]
        fn doubles_come_back_as_they_were(value in any::<f64>(), small in -1e6..1e6) {
            for value in [value, small, small / 7.0, value / 3.0] {
                if let Some(sql) = real(value) {
                    prop_assert_eq!(read_back(&sql), Value::Real(value), "{}", sql);
                }
            }
            prop_assert!(real(small).is_some() || small.abs() < 1e-2);
        }

        #[test]
        fn texts_and_integers_come_back_as_they_were(text in ".*", value in any::<i64>()) {
            for (value, affinity) in [(Value::Text(text.into_bytes()), "TEXT"), (Value::Integer(value), "INT")] {
                if let Some(sql) = literal(&value, affinity) {
                    prop_assert_eq!(read_back(&format!("CAST({sql} AS {affinity})")), value.clone());
                    prop_assert_eq!(read_back(&sql), value);
                }
            }
        }
    }

    #[test]
    fn what_a_cast_would_change_is_not_written() {
        assert_eq!(literal(&Value::Integer(1), "TEXT"), None);
        assert_eq!(literal(&Value::Text(b"1".to_vec()), "INT"), None);
        assert_eq!(literal(&Value::Real(2.0), "NUM"), None);
        assert_eq!(literal(&Value::Text(b"a\0b".to_vec()), ""), None);
        assert_eq!(real(f64::INFINITY), None);
        assert_eq!(real(f64::NAN), None);
    }
}
