//! `histogram(x [, buckets])`: how values are spread, as JSON text.
//!
//! `[{"low":1024,"high":1088,"count":7},…]`, ascending, empty buckets left out, at most
//! `buckets` of them (5 to 10,000; 20 by default). Of no value the result is NULL.
//!
//! Buckets are log-linear and do not depend on the data: every power of two is cut into 16 equal
//! parts, so a bucket is at most 6.25 % wide. A value is in a bucket when low <= x < high; for
//! negative values it mirrors (low < x <= high); zero has the bucket 0 to 0. Where more than
//! `buckets` are not empty, all are made coarser together until they fit: 8, 4, 2 and 1 parts of a
//! power of two, then powers of 4, 16, 256 and so on (counted from 1.0).
//!
//! Counts of buckets add up, so merging is exact, and a mesh answers exactly what one store would.
//! Integers are taken as doubles, like in SQLite's percentiles; values that are no numbers and
//! infinite ones are errors; NULL is ignored. Shipped are the buckets of the finest cut that have
//! something, about 2 to 4 bytes each.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write;

use rusqlite::{Connection, Result};

use super::fold::{Args, Number};
use super::state::{Finish, Partial, Problem, Reader, define, define_state, finite, unzigzag, write_varint, zigzag};
use crate::batch::Value;

/// Parts of a power of two, as a power of two.
const PART_BITS: u32 = 4;
/// Bits of a double below those that choose the bucket.
const BELOW: u32 = 52 - PART_BITS;
/// The bucket of 1.0, before it is moved to 0.
const ONE: i64 = 1023 << PART_BITS;
const DEFAULT_BUCKETS: usize = 20;
const LEAST_BUCKETS: i64 = 5;
const MOST_BUCKETS: i64 = 10_000;

pub(super) fn register(conn: &Connection) -> Result<()> {
    define_state::<Buckets>(conn, "mesh_buckets", 1)?;
    define(conn, Histogram, &[1, 2])
}

/// Counts by bucket of the absolute value; the bucket of [1.0, 1.0625) is 0.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Buckets {
    positive: BTreeMap<i64, u64>,
    negative: BTreeMap<i64, u64>,
    zero: u64,
}

/// The bits of a double are its exponent and, below, its fraction: the highest of them count parts
/// of powers of two.
fn bucket(magnitude: f64) -> i64 {
    (magnitude.to_bits() >> BELOW).cast_signed() - ONE
}

/// The lower bound of a bucket, the greatest double for what is past all of them.
fn bound(bucket: i64) -> f64 {
    let bits = u64::try_from(bucket.saturating_add(ONE)).unwrap_or_default();
    let value = f64::from_bits(bits.min(0x7ff << PART_BITS) << BELOW);
    if value.is_finite() { value } else { f64::MAX }
}

impl Buckets {
    fn push(&mut self, value: f64) {
        if value == 0.0 {
            self.zero += 1;
        } else {
            let side = if value > 0.0 { &mut self.positive } else { &mut self.negative };
            *side.entry(bucket(value.abs())).or_default() += 1;
        }
    }

    /// Coarser by `2^shift`.
    fn coarse(side: &BTreeMap<i64, u64>, shift: u32) -> BTreeMap<i64, u64> {
        let mut out = BTreeMap::new();
        for (bucket, count) in side {
            let total: &mut u64 = out.entry(bucket >> shift).or_default();
            *total = total.saturating_add(*count);
        }
        out
    }

    /// (low, high, count), ascending, at most `most` of them.
    fn rows(&self, most: usize) -> Vec<(f64, f64, u64)> {
        let mut shift = 0;
        let (positive, negative) = loop {
            let (positive, negative) = (Self::coarse(&self.positive, shift), Self::coarse(&self.negative, shift));
            // At 2^16 parts each side has at most two buckets: below one, and from one on.
            if positive.len() + negative.len() + usize::from(self.zero > 0) <= most || shift >= 16 {
                break (positive, negative);
            }
            shift += 1;
        };
        let range = |bucket: i64| (bound(bucket << shift), bound((bucket + 1) << shift));
        let mut rows = Vec::new();
        for (bucket, count) in negative.iter().rev() {
            let (near, far) = range(*bucket);
            rows.push((-far, -near, *count));
        }
        if self.zero > 0 {
            rows.push((0.0, 0.0, self.zero));
        }
        for (bucket, count) in &positive {
            let (low, high) = range(*bucket);
            rows.push((low, high, *count));
        }
        rows
    }
}

/// A double as a JSON number: integers without a point, very large and very small ones with an
/// exponent.
fn json_number(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if (1e-5..1e16).contains(&magnitude) {
        format!("{value}")
    } else {
        format!("{value:e}")
    }
}

impl Partial for Buckets {
    const KIND: u8 = b'h';

    fn add(&mut self, args: &Args<'_>) -> std::result::Result<(), Problem> {
        if let Some(value) = finite(args, 0)? {
            self.push(value);
        }
        Ok(())
    }

    fn remove(&mut self, args: &Args<'_>) -> bool {
        match finite(args, 0) {
            Ok(Some(0.0)) => self.zero = self.zero.saturating_sub(1),
            Ok(Some(value)) => {
                let side = if value > 0.0 { &mut self.positive } else { &mut self.negative };
                if let Entry::Occupied(mut entry) = side.entry(bucket(value.abs())) {
                    *entry.get_mut() -= 1;
                    if *entry.get() == 0 {
                        entry.remove();
                    }
                }
            }
            _ => {}
        }
        true
    }

    fn merge(&mut self, other: Self) -> std::result::Result<(), Problem> {
        for (mine, theirs) in [(&mut self.positive, other.positive), (&mut self.negative, other.negative)] {
            for (bucket, count) in theirs {
                let total = mine.entry(bucket).or_default();
                *total = total.saturating_add(count);
            }
        }
        self.zero = self.zero.saturating_add(other.zero);
        Ok(())
    }

    fn heap_bytes(&self) -> usize {
        (self.positive.len() + self.negative.len()) * 2 * size_of::<(i64, u64)>()
    }

    fn write(&mut self, out: &mut Vec<u8>) {
        write_varint(out, u128::from(self.zero));
        for side in [&self.positive, &self.negative] {
            write_varint(out, side.len() as u128);
            let mut before = 0;
            for (bucket, count) in side {
                write_varint(out, u128::from(zigzag(bucket - before)));
                write_varint(out, u128::from(*count));
                before = *bucket;
            }
        }
    }

    fn read(bytes: &mut Reader<'_>) -> Option<Self> {
        let mut buckets = Buckets { zero: bytes.varint_u64()?, ..Buckets::default() };
        for side in [&mut buckets.positive, &mut buckets.negative] {
            let mut bucket = 0i64;
            for _ in 0..bytes.varint_u64()? {
                bucket = bucket.checked_add(unzigzag(bytes.varint_u64()?))?;
                let count = bytes.varint_u64().filter(|count| *count > 0)?;
                let known = (0..0x7ff << PART_BITS).contains(&bucket.checked_add(ONE)?);
                if !known || side.insert(bucket, count).is_some() {
                    return None;
                }
            }
        }
        Some(buckets)
    }
}

#[derive(Clone, Copy)]
struct Histogram;

impl Finish for Histogram {
    type Partial = Buckets;
    type Parameter = usize;
    const PARAMETER: &'static str = "buckets";

    fn name(&self) -> &'static str {
        "histogram"
    }

    fn parameter(&self, args: &Args<'_>, at: usize) -> std::result::Result<usize, String> {
        if at >= args.len() {
            return Ok(DEFAULT_BUCKETS);
        }
        match args.number(at) {
            Number::Integer(buckets @ LEAST_BUCKETS..=MOST_BUCKETS) => {
                Ok(usize::try_from(buckets).unwrap_or(DEFAULT_BUCKETS))
            }
            _ => Err(format!(
                "the number of buckets of histogram() is not an integer between {LEAST_BUCKETS} and {MOST_BUCKETS}"
            )),
        }
    }

    fn is_same(a: usize, b: usize) -> bool {
        a == b
    }

    fn finish(&self, state: Buckets, buckets: Option<usize>) -> std::result::Result<Value, String> {
        let rows = state.rows(buckets.unwrap_or(DEFAULT_BUCKETS));
        if rows.is_empty() {
            return Ok(Value::Null);
        }
        let mut json = String::from("[");
        for (i, (low, high, count)) in rows.into_iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let (low, high) = (json_number(low), json_number(high));
            // Writing to a String cannot fail.
            let _ = write!(json, "{comma}{{\"low\":{low},\"high\":{high},\"count\":{count}}}");
        }
        json.push(']');
        Ok(Value::Text(json.into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[f64]) -> Buckets {
        let mut buckets = Buckets::default();
        values.iter().for_each(|value| buckets.push(*value));
        buckets
    }

    fn shipped(mut buckets: Buckets) -> Buckets {
        let mut bytes = Vec::new();
        buckets.write(&mut bytes);
        Buckets::read(&mut Reader(&bytes)).expect("own bytes")
    }

    fn text(values: &[f64], most: usize) -> String {
        match Histogram.finish(of(values), Some(most)) {
            Ok(Value::Text(text)) => String::from_utf8(text).expect("UTF-8"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn known_buckets() {
        assert_eq!(
            text(&[1000.0, 1024.0, 1087.0, 1088.0, 0.0], 20),
            concat!(
                r#"[{"low":0,"high":0,"count":1},{"low":992,"high":1024,"count":1},"#,
                r#"{"low":1024,"high":1088,"count":2},{"low":1088,"high":1152,"count":1}]"#
            )
        );
        assert_eq!(
            text(&[-1.5, -3.0, 0.3], 20),
            concat!(
                r#"[{"low":-3.125,"high":-3,"count":1},{"low":-1.5625,"high":-1.5,"count":1},"#,
                r#"{"low":0.296875,"high":0.3125,"count":1}]"#
            )
        );
        assert!(text(&[f64::MAX, -5e-324], 5).ends_with(r#""high":1.7976931348623157e308,"count":1}]"#));
        assert_eq!(Histogram.finish(Buckets::default(), None), Ok(Value::Null));
    }

    fn any_value() -> impl Strategy<Value = f64> {
        prop_oneof![-1e6f64..1e6, 1e3f64..2e3, any::<f64>().prop_filter("finite", |v| v.is_finite()), Just(0.0)]
    }

    proptest! {
        #[test]
        fn every_value_is_in_its_bucket(values in prop::collection::vec(any_value(), 1..200), most in 5usize..40) {
            let rows = of(&values).rows(most);
            prop_assert!(rows.len() <= most);
            prop_assert!(rows.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            let mut sorted = values;
            sorted.sort_by(f64::total_cmp);
            let mut sorted = sorted.into_iter();
            for (low, high, count) in rows {
                for _ in 0..count {
                    let value = sorted.next().expect("counted");
                    let inside = if value < 0.0 { low < value && value <= high } else { low <= value && value < high };
                    let at_the_end = value.abs() == f64::MAX || (low == 0.0 && high == 0.0 && value == 0.0);
                    prop_assert!(inside || at_the_end, "{} in {} {}", value, low, high);
                }
            }
            prop_assert_eq!(sorted.next(), None);
        }

        #[test]
        fn splitting_changes_nothing(values in prop::collection::vec(any_value(), 0..200), at in 0usize..200) {
            let (left, right) = values.split_at(at.min(values.len()));
            let mut merged = shipped(of(right));
            merged.merge(shipped(of(left))).expect("no problem");
            prop_assert_eq!(merged, of(&values));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Some(mut buckets) = Buckets::read(&mut Reader(&bytes)) {
                let other = buckets.clone();
                buckets.merge(other).expect("no problem");
                buckets.rows(5);
            }
        }
    }
}
