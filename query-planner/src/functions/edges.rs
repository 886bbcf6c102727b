//! `first(x, ts)` and `last(x, ts)`: the value of `x` in the row with the least and the greatest
//! `ts`.
//!
//! Rows whose `ts` is NULL do not count; of no row the result is NULL. `x` may be NULL there, and
//! NULL is then the result. Values compare as SQLite compares them by BINARY (numbers below text
//! below blobs). **Ties**: of several rows with the same `ts`, `first` takes the least `x` and
//! `last` the greatest (NULL is below all; of 1 and 1.0, `first` takes the integer and `last` the
//! real), so the result does not depend on the order of the rows or on which node has them.
//!
//! The state, and what is shipped, is that one row's `ts` and `x`.

use std::cmp::Ordering;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Result};

use super::fold::Args;
use super::state::{Finish, Partial, Problem, Reader, define, define_state, write_varint};
use crate::batch::Value;

pub(super) fn register(conn: &Connection) -> Result<()> {
    define_state::<Edge<false>>(conn, "mesh_first", 2)?;
    define_state::<Edge<true>>(conn, "mesh_last", 2)?;
    define(conn, Take::<false>, &[2])?;
    define(conn, Take::<true>, &[2])
}

/// The best row so far: (ts, x).
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Edge<const LAST: bool>(Option<(Value, Value)>);

/// The order of ORDER BY, completed: of numbers that are equal the integer is first.
fn compare(a: &Value, b: &Value) -> Ordering {
    let class = |value: &Value| match value {
        Value::Null => 0,
        Value::Integer(_) | Value::Real(_) => 1,
        Value::Text(_) => 2,
        Value::Blob(_) => 3,
    };
    match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => a.cmp(b),
        (Value::Real(a), Value::Real(b)) => a.total_cmp(b),
        (Value::Integer(a), Value::Real(b)) => compare_mixed(*a, *b).then(Ordering::Less),
        (Value::Real(a), Value::Integer(b)) => compare_mixed(*b, *a).reverse().then(Ordering::Greater),
        (Value::Text(a), Value::Text(b)) | (Value::Blob(a), Value::Blob(b)) => a.cmp(b),
        _ => class(a).cmp(&class(b)),
    }
}

/// As ORDER BY has it: 1 and 1.0 are the same time.
fn compare_times(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Integer(a), Value::Real(b)) => compare_mixed(*a, *b),
        (Value::Real(a), Value::Integer(b)) => compare_mixed(*b, *a).reverse(),
        (Value::Real(a), Value::Real(b)) => a.partial_cmp(b).unwrap_or(Ordering::Equal),
        _ => compare(a, b),
    }
}

/// An integer against a double, exactly.
#[allow(clippy::cast_possible_truncation)]
fn compare_mixed(a: i64, b: f64) -> Ordering {
    if b >= 9_223_372_036_854_775_808.0 {
        Ordering::Less
    } else if b < -9_223_372_036_854_775_808.0 {
        Ordering::Greater
    } else {
        // The whole part fits; what is behind the point decides between equal ones.
        a.cmp(&(b.trunc() as i64)).then(0.0.partial_cmp(&b.fract()).unwrap_or(Ordering::Equal))
    }
}

impl<const LAST: bool> Edge<LAST> {
    fn offer(&mut self, time: Value, value: Value) {
        let better = match &self.0 {
            None => true,
            Some((best_time, best)) => {
                let order = compare_times(&time, best_time).then_with(|| compare(&value, best));
                order == if LAST { Ordering::Greater } else { Ordering::Less }
            }
        };
        if better {
            self.0 = Some((time, value));
        }
    }
}

impl<const LAST: bool> Partial for Edge<LAST> {
    const KIND: u8 = if LAST { b'l' } else { b'f' };

    fn add(&mut self, args: &Args<'_>) -> std::result::Result<(), Problem> {
        // Most rows lose by their time: look at it before copying anything.
        let time = match args.value(1) {
            ValueRef::Null => return Ok(()),
            time => Value::from_sqlite(time),
        };
        let loses = if LAST { Ordering::Less } else { Ordering::Greater };
        if self.0.as_ref().is_none_or(|(best, _)| compare_times(&time, best) != loses) {
            self.offer(time, Value::from_sqlite(args.value(0)));
        }
        Ok(())
    }

    fn merge(&mut self, other: Self) -> std::result::Result<(), Problem> {
        if let Some((time, value)) = other.0 {
            self.offer(time, value);
        }
        Ok(())
    }

    fn write(&mut self, out: &mut Vec<u8>) {
        for value in self.0.iter().flat_map(|(time, value)| [time, value]) {
            let (tag, bytes) = match value {
                Value::Null => (0, &[][..]),
                Value::Integer(value) => (1, &value.to_le_bytes()[..]),
                Value::Real(value) => (2, &value.to_le_bytes()[..]),
                Value::Text(bytes) => (3, bytes.as_slice()),
                Value::Blob(bytes) => (4, bytes.as_slice()),
            };
            out.push(tag);
            if tag > 2 {
                write_varint(out, bytes.len() as u128);
            }
            out.extend(bytes);
        }
    }

    fn read(bytes: &mut Reader<'_>) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Edge(None));
        }
        let mut value = || {
            Some(match bytes.byte()? {
                0 => Value::Null,
                1 => Value::Integer(bytes.take().map(i64::from_le_bytes)?),
                2 => Value::Real(bytes.real().filter(|real| !real.is_nan())?),
                tag @ (3 | 4) => {
                    let len = usize::try_from(bytes.varint()?).ok()?;
                    let (head, rest) = bytes.0.split_at_checked(len)?;
                    bytes.0 = rest;
                    if tag == 3 { Value::Text(head.to_vec()) } else { Value::Blob(head.to_vec()) }
                }
                _ => return None,
            })
        };
        let time = value().filter(|time| *time != Value::Null)?;
        Some(Edge(Some((time, value()?))))
    }
}

#[derive(Clone, Copy)]
struct Take<const LAST: bool>;

impl<const LAST: bool> Finish for Take<LAST> {
    type Partial = Edge<LAST>;
    type Parameter = ();

    fn name(&self) -> &'static str {
        if LAST { "last" } else { "first" }
    }

    fn parameter(&self, _: &Args<'_>, _: usize) -> std::result::Result<(), String> {
        Ok(())
    }

    fn is_same((): (), (): ()) -> bool {
        true
    }

    fn finish(&self, state: Edge<LAST>, _: Option<()>) -> std::result::Result<Value, String> {
        Ok(state.0.map_or(Value::Null, |(_, value)| value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of<const LAST: bool>(rows: &[(Value, Value)]) -> Edge<LAST> {
        let mut edge = Edge(None);
        rows.iter().cloned().for_each(|(time, value)| edge.offer(time, value));
        edge
    }

    fn shipped<const LAST: bool>(mut edge: Edge<LAST>) -> Edge<LAST> {
        let mut bytes = Vec::new();
        edge.write(&mut bytes);
        Edge::read(&mut Reader(&bytes)).expect("own bytes")
    }

    #[test]
    fn integers_and_doubles_compare_exactly() {
        let big = 9_007_199_254_740_993i64;
        assert_eq!(compare_mixed(big, 9_007_199_254_740_992.0), Ordering::Greater);
        assert_eq!(compare_mixed(3, 3.5), Ordering::Less);
        assert_eq!(compare_mixed(-3, -3.5), Ordering::Greater);
        assert_eq!(compare_mixed(i64::MIN, -9_223_372_036_854_775_808.0), Ordering::Equal);
        assert_eq!(compare_mixed(i64::MAX, 9_223_372_036_854_775_808.0), Ordering::Less);
        assert_eq!(compare_mixed(0, f64::NEG_INFINITY), Ordering::Greater);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            (-3i64..3).prop_map(Value::Integer),
            (-3i32..3).prop_map(|i| Value::Real(f64::from(i) / 2.0)),
            "[ab]{0,2}".prop_map(|text| Value::Text(text.into_bytes())),
            "[ab]{0,2}".prop_map(|text| Value::Blob(text.into_bytes())),
        ]
    }

    fn time() -> impl Strategy<Value = Value> {
        prop_oneof![(0i64..3).prop_map(Value::Integer), (0i32..5).prop_map(|i| Value::Real(f64::from(i) / 2.0))]
    }

    proptest! {
        #[test]
        fn order_and_split_change_nothing(rows in prop::collection::vec((time(), any_value()), 0..30), at in 0usize..30) {
            let (left, right) = rows.split_at(at.min(rows.len()));
            let mut first = shipped(of::<false>(right));
            first.merge(shipped(of::<false>(left))).expect("no problem");
            prop_assert_eq!(first.0.map(|(_, x)| format!("{x:?}")), of::<false>(&rows).0.map(|(_, x)| format!("{x:?}")));
            let mut last = shipped(of::<true>(right));
            last.merge(shipped(of::<true>(left))).expect("no problem");
            prop_assert_eq!(last.0.map(|(_, x)| format!("{x:?}")), of::<true>(&rows).0.map(|(_, x)| format!("{x:?}")));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(mut edge) = Edge::<true>::read(&mut Reader(&bytes)) {
                let other = edge.clone();
                edge.merge(other).expect("no problem");
            }
        }
    }
}
