//! Owns which segments and rows conditions admit. Comparisons are SQLite's: an integer column holds
//! integers and NULL, a text column text and NULL (the tables are strict), and where a constant
//! would first be converted, SQLite does it all.

use query_planner::Value;
use query_planner::scan::{By, Comparison, Constant, Derived, Scan, Test, evaluate};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Statement};

use super::super::Kind;
use super::super::encode::{Cell, Encoded, Scalar};
use super::super::pick::{Admits, Pick, TextTest, Verdict, holds, most_telling_first, united, verdict};
use super::super::segment::{Segment, SegmentError};

/// Conditions with their constants worked out.
pub(super) struct Filter {
    conditions: Vec<(String, Admits)>,
    derived: Vec<Derived>,
    /// Nothing is admitted at all.
    never: bool,
}

/// Integers below a number: `(least, greatest)`, empty when the first exceeds the second.
fn below(value: &Value, or_equal: bool) -> Option<(i64, i64)> {
    const EMPTY: (i64, i64) = (i64::MAX, i64::MIN);
    Some(match value {
        Value::Integer(value) if or_equal => (i64::MIN, *value),
        Value::Integer(value) => value.checked_sub(1).map_or(EMPTY, |greatest| (i64::MIN, greatest)),
        Value::Real(value) => {
            // -2^63 and 2^63 are doubles.
            let edge = -(i64::MIN as f64);
            if *value >= edge {
                (i64::MIN, i64::MAX)
            } else if *value < -edge {
                EMPTY
            } else {
                let floor = value.floor();
                let greatest = floor as i64;
                if or_equal || floor < *value {
                    (i64::MIN, greatest)
                } else {
                    greatest.checked_sub(1).map_or(EMPTY, |greatest| (i64::MIN, greatest))
                }
            }
        }
        _ => return None,
    })
}

fn complement(ranges: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let mut out = Vec::new();
    let mut next = Some(i64::MIN);
    for (least, greatest) in ranges {
        if let Some(start) = next.filter(|start| start < least) {
            out.push((start, least - 1));
        }
        next = greatest.checked_add(1);
        if next.is_none() {
            return out;
        }
    }
    out.extend(next.map(|start| (start, i64::MAX)));
    out
}

fn intersection(a: (i64, i64), b: (i64, i64)) -> (i64, i64) {
    (a.0.max(b.0), a.1.min(b.1))
}

/// Where nothing can be admitted: a comparison with NULL.
const NOTHING: Admits = Admits::Integers { ranges: Vec::new(), null: false };

fn integers(test: &Test, values: &[Value]) -> Option<Admits> {
    let number = |value: &Value| matches!(value, Value::Integer(_) | Value::Real(_));
    let at_least = |value: &Value| below(value, false).map(|range| complement(&united(vec![range])));
    let equal = |value: &Value| -> Option<Vec<(i64, i64)>> {
        let upper = below(value, true)?;
        Some(united(at_least(value)?.into_iter().map(|range| intersection(range, upper)).collect()))
    };
    let plain = |ranges: Vec<(i64, i64)>| Some(Admits::Integers { ranges: united(ranges), null: false });
    match test {
        Test::Compare(comparison, _) => {
            let value = values.first()?;
            if *value == Value::Null {
                return Some(match comparison {
                    Comparison::Is => Admits::Integers { ranges: Vec::new(), null: true },
                    Comparison::IsNot => Admits::Integers { ranges: vec![(i64::MIN, i64::MAX)], null: false },
                    _ => NOTHING,
                });
            }
            if !number(value) {
                return None;
            }
            match comparison {
                Comparison::Equal | Comparison::Is => plain(equal(value)?),
                Comparison::Unequal => plain(complement(&equal(value)?)),
                Comparison::IsNot => Some(Admits::Integers { ranges: complement(&equal(value)?), null: true }),
                Comparison::Less => plain(vec![below(value, false)?]),
                Comparison::LessOrEqual => plain(vec![below(value, true)?]),
                Comparison::Greater => plain(complement(&united(vec![below(value, true)?]))),
                Comparison::GreaterOrEqual => plain(at_least(value)?),
            }
        }
        Test::Between { not, .. } => {
            let [low, high] = values else { return None };
            if !number(low) || !number(high) {
                return None;
            }
            let upper = below(high, true)?;
            let within = united(at_least(low)?.into_iter().map(|range| intersection(range, upper)).collect());
            plain(if *not { complement(&within) } else { within })
        }
        Test::In { not, .. } => {
            let mut ranges = Vec::new();
            let mut null = false;
            for value in values {
                match value {
                    Value::Null => null = true,
                    value if number(value) => ranges.extend(equal(value)?),
                    _ => return None,
                }
            }
            match (not, null) {
                (true, true) => Some(NOTHING),
                (true, false) => plain(complement(&united(ranges))),
                (false, _) => plain(ranges),
            }
        }
    }
}

fn texts(test: &Test, values: &[Value]) -> Option<Admits> {
    let plain = |test| Some(Admits::Text { test, null: false });
    let text = |value: &Value| match value {
        Value::Text(text) => Some(text.clone()),
        _ => None,
    };
    match test {
        Test::Compare(comparison, _) => {
            let value = values.first()?;
            if *value == Value::Null {
                return Some(match comparison {
                    Comparison::Is => Admits::Text { test: TextTest::None, null: true },
                    Comparison::IsNot => Admits::Text { test: TextTest::All, null: false },
                    _ => Admits::Text { test: TextTest::None, null: false },
                });
            }
            let than = text(value)?;
            let among = |not| TextTest::Among { not, list: vec![than.clone()] };
            let less = |or_equal, not| TextTest::Less { than: than.clone(), or_equal, not };
            match comparison {
                Comparison::Equal | Comparison::Is => plain(among(false)),
                Comparison::Unequal => plain(among(true)),
                Comparison::IsNot => Some(Admits::Text { test: among(true), null: true }),
                Comparison::Less => plain(less(false, false)),
                Comparison::LessOrEqual => plain(less(true, false)),
                Comparison::Greater => plain(less(true, true)),
                Comparison::GreaterOrEqual => plain(less(false, true)),
            }
        }
        Test::Between { not, .. } => {
            let [low, high] = values else { return None };
            plain(TextTest::Between { not: *not, low: text(low)?, high: text(high)? })
        }
        Test::In { not, .. } => {
            let has_null = values.contains(&Value::Null);
            let list: Vec<Vec<u8>> =
                values.iter().filter(|value| **value != Value::Null).map(text).collect::<Option<_>>()?;
            if *not && has_null {
                return plain(TextTest::None);
            }
            plain(TextTest::Among { not: *not, list })
        }
    }
}

fn is_true(value: &Value) -> Option<bool> {
    match value {
        Value::Null => Some(false),
        Value::Integer(value) => Some(*value != 0),
        Value::Real(value) => Some(*value != 0.0),
        _ => None,
    }
}

impl Filter {
    /// Work out a scan's constants. None when a condition is one that only SQLite decides.
    pub(super) fn of(
        conn: &Connection,
        scan: &Scan,
        kinds: &[(String, Kind)],
        node: &str,
        now_unix_ns: i64,
    ) -> rusqlite::Result<Option<Self>> {
        let mut filter = Self { conditions: Vec::new(), derived: scan.derived.clone(), never: false };
        let gates: Vec<&Constant> = scan.gates.iter().collect();
        for gate in evaluate(conn, &gates, node, now_unix_ns)? {
            match is_true(&gate) {
                Some(holds) => filter.never |= !holds,
                None => return Ok(None),
            }
        }
        for condition in &scan.filter {
            let constants: Vec<&Constant> = match &condition.test {
                Test::Compare(_, constant) => vec![constant],
                Test::Between { low, high, .. } => vec![low, high],
                Test::In { list, .. } => list.iter().collect(),
            };
            let values = evaluate(conn, &constants, node, now_unix_ns)?;
            let kind = kinds.iter().find(|(name, _)| *name == condition.column).map(|(_, kind)| *kind);
            let admits = match kind {
                Some(Kind::Integer) => integers(&condition.test, &values),
                Some(Kind::Text) => texts(&condition.test, &values),
                Some(Kind::Blob) | None => None,
            };
            match admits {
                Some(admits) => filter.conditions.push((condition.column.clone(), admits)),
                None => return Ok(None),
            }
        }
        Ok(Some(filter))
    }

    /// From now on only rows whose integers lie in these ranges are wanted.
    pub(super) fn narrow(&mut self, narrowed: &[(String, Vec<(i64, i64)>)]) {
        let admits = |ranges: &Vec<(i64, i64)>| Admits::Integers { ranges: ranges.clone(), null: false };
        self.conditions.extend(narrowed.iter().map(|(column, ranges)| (column.clone(), admits(ranges))));
    }

    /// Values of an integer column that the conditions leave.
    pub(super) fn times(&self, column: &str) -> (i64, i64) {
        if self.never {
            return (i64::MAX, i64::MIN);
        }
        let (mut least, mut greatest) = (i64::MIN, i64::MAX);
        for (name, admits) in &self.conditions {
            if let (true, Admits::Integers { ranges, null: false }) = (name == column, admits) {
                least = least.max(ranges.first().map_or(i64::MAX, |range| range.0));
                greatest = greatest.min(ranges.last().map_or(i64::MIN, |range| range.1));
            }
        }
        (least, greatest)
    }

    /// Whether a segment can have rows that all conditions admit.
    pub(super) fn may_hold(&self, segment: &Segment) -> bool {
        !self.never && self.conditions.iter().all(|(name, admits)| self.verdict(segment, name, admits) != Verdict::No)
    }

    /// Which groups of a segment's summary the conditions admit: those that do not admit all rows
    /// anyway must be on the columns that it groups by. None when one is not.
    pub(super) fn of_summary(&self, segment: &Segment, keys: &[&str]) -> Option<impl Fn(&[Scalar]) -> bool + '_> {
        let mut on: Vec<(usize, &Admits)> = Vec::new();
        for (name, admits) in &self.conditions {
            if self.verdict(segment, name, admits) != Verdict::All {
                on.push((keys.iter().position(|key| key == name)?, admits));
            }
        }
        Some(move |key: &[Scalar]| on.iter().all(|(at, admits)| holds(admits, key[*at].cell())))
    }

    /// The conditions that do not admit all of a segment's rows, each with its column.
    pub(super) fn of_segment(&self, conn: &Connection, segment: &Segment) -> Result<Vec<Pick>, SegmentError> {
        let cutting =
            self.conditions.iter().filter(|(name, admits)| self.verdict(segment, name, admits) == Verdict::Some);
        let picks = cutting.map(|(name, admits)| Ok(Pick::new(self.column(conn, segment, name)?, admits.clone())));
        let mut picks = picks.collect::<Result<Vec<_>, SegmentError>>()?;
        most_telling_first(&mut picks);
        Ok(picks)
    }
}

/// What an expression makes of a text (`By::Sql`).
fn value_of(statement: &mut Statement<'_>, text: Cell<'_>, is_text: bool) -> rusqlite::Result<Scalar> {
    if let Some(at) = statement.parameter_index(By::VALUE)? {
        let value = match text {
            Cell::Null => ValueRef::Null,
            Cell::Integer(value) => ValueRef::Integer(value),
            Cell::Text(text) => ValueRef::Text(text),
        };
        statement.raw_bind_parameter(at, ToSqlOutput::Borrowed(value))?;
    }
    let mut rows = statement.raw_query();
    let row = rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
    match row.get_ref(0)? {
        ValueRef::Null => Ok(Scalar::Null),
        ValueRef::Integer(value) if !is_text => Ok(Scalar::Integer(value)),
        ValueRef::Text(text) if is_text => Ok(Scalar::Text(text.to_vec())),
        other => Err(rusqlite::Error::InvalidColumnType(0, "an expression".to_owned(), other.data_type())),
    }
}

impl Filter {
    /// A column of the scan.
    pub(super) fn column(&self, conn: &Connection, segment: &Segment, name: &str) -> Result<Encoded, SegmentError> {
        match self.derived.iter().find(|derived| derived.name == name) {
            None => segment.column(conn, name),
            Some(Derived { of, by: By::Sql { sql, is_text }, .. }) => {
                let mut statement = conn.prepare_cached(&format!("SELECT {sql}"))?;
                let made = segment.column(conn, of)?.made(|text| value_of(&mut statement, text, *is_text))?;
                made.ok_or_else(|| segment.damaged(of.clone()))
            }
            Some(Derived { of, by, .. }) => {
                segment.column(conn, of)?.derive(by).ok_or_else(|| segment.damaged(of.clone()))
            }
        }
    }

    fn verdict(&self, segment: &Segment, name: &str, admits: &Admits) -> Verdict {
        // Of what is derived a header says nothing.
        if self.derived.iter().any(|derived| derived.name == name) {
            return Verdict::Some;
        }
        verdict(segment, name, admits)
    }
}
