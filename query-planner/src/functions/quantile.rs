//! `approx_quantile(x, q)`: DDSketch (Masson, Rim, Lee: "DDSketch: A Fast and Fully-Mergeable
//! Quantile Sketch with Relative-Error Guarantees", VLDB 2019).
//!
//! **Bound.** With n values and the rank r = floor(q (n - 1)) from 0, the result is within 1 % of
//! the value of rank r (what `percentile_disc(x, q)` gives), relative to that value. Values nearer
//! to zero than 2.3e-308 count as 0. The least and the greatest value are kept, so q = 0 and q = 1
//! are exact, and so is every q of a single value.
//!
//! A value x > 0 counts in bucket i = ceil(log_g x) with g = (1 + a) / (1 - a) and stands as 2 g^i
//! / (g + 1), which is within a of every value of the bucket; negative values have buckets of their
//! own, zero has one. a is 0.99 %, so that rounding in the logarithm stays inside the 1 %.
//!
//! The state is written here, and not the sketches-ddsketch crate's, for two reasons. That one has
//! 2,048 buckets and then joins the lowest ones, after which the bound no longer holds for them and
//! the result depends on how rows were split; here buckets are kept as they fill (35,500 of either
//! sign cover all doubles; durations from 1 ns to 1 day need about 1,620), so merging is addition,
//! and a mesh answers exactly what one store would. And its bytes carry no version.
//!
//! A blob that [`stored`] made counts as the values it was made of, so that
//! `approx_quantile(sketch, q)` works over sketches kept in a column. Its form: two bytes, then
//! varints: the least value, how much greater the greatest is, the zeros, the number of buckets,
//! and of each the distance to the one before and its count.
//!
//! Shipped are the buckets that are not empty, about 2 to 4 bytes each. Values that are no numbers
//! and infinite ones are errors, as in SQLite's percentiles; NULL is ignored; of no value the
//! result is NULL.

use std::collections::BTreeMap;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Result};

use super::fold::Args;
use super::runs::{fraction, same_fraction};
use super::state::{Finish, Partial, Problem, Reader, define, define_state, finite, unzigzag, write_varint, zigzag};
use crate::batch::Value;

/// The relative error of a bucket.
const ERROR: f64 = 0.0099;

pub(super) fn register(conn: &Connection) -> Result<()> {
    define_state::<Sketch>(conn, "mesh_sketch", 1)?;
    define(conn, Quantile, &[2])
}

/// How a stored sketch begins: the kind of state, and the version of the form.
const STORED: [u8; 2] = [b'q', 1];

/// A sketch of integers from 0 on as it is kept in a column: their range, how many are 0, and
/// counts by ascending bucket of [`super::states::Buckets`].
#[must_use]
pub fn stored((least, greatest): (u64, u64), zeros: u64, counts: &[(u16, u64)]) -> Vec<u8> {
    let mut out = STORED.to_vec();
    for value in [least, greatest.saturating_sub(least), zeros, counts.len() as u64] {
        write_varint(&mut out, u128::from(value));
    }
    let mut before = 0;
    for (bucket, count) in counts {
        write_varint(&mut out, u128::from(bucket - before));
        write_varint(&mut out, u128::from(*count));
        before = *bucket;
    }
    out
}

/// The counts of a stored sketch, by ascending bucket; with them zeros and range. None when the
/// bytes are no such sketch.
#[must_use]
#[allow(clippy::type_complexity)]
pub fn read_stored(bytes: &[u8]) -> Option<((u64, u64), u64, Vec<(u16, u64)>)> {
    let mut bytes = Reader(bytes.strip_prefix(&STORED)?);
    let least = bytes.varint_u64()?;
    let greatest = least.checked_add(bytes.varint_u64()?)?;
    let zeros = bytes.varint_u64()?;
    let mut counts: Vec<(u16, u64)> = Vec::new();
    let mut bucket = 0_u16;
    for at in 0..bytes.varint_u64()? {
        let step = u16::try_from(bytes.varint_u64()?).ok().filter(|step| at == 0 || *step > 0)?;
        bucket = bucket.checked_add(step)?;
        counts.push((bucket, bytes.varint_u64().filter(|count| *count > 0)?));
    }
    (bytes.is_empty() && (zeros > 0 || !counts.is_empty())).then_some(((least, greatest), zeros, counts))
}

/// ln g.
fn log_base() -> f64 {
    ((1.0 + ERROR) / (1.0 - ERROR)).ln()
}

/// Counts by bucket, and the range.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sketch {
    positive: BTreeMap<i32, u64>,
    /// By the bucket of the absolute value.
    negative: BTreeMap<i32, u64>,
    zero: u64,
    least: f64,
    greatest: f64,
    /// Kept, since it is needed for each value.
    log_base: f64,
}

impl Default for Sketch {
    fn default() -> Self {
        Sketch {
            positive: BTreeMap::new(),
            negative: BTreeMap::new(),
            zero: 0,
            least: f64::INFINITY,
            greatest: f64::NEG_INFINITY,
            log_base: log_base(),
        }
    }
}

impl Sketch {
    /// The bucket of a positive value.
    #[allow(clippy::cast_possible_truncation)] // within ±36,000
    pub(super) fn bucket_of(value: f64) -> i32 {
        (value.ln() / log_base()).ceil() as i32
    }

    /// From counts by bucket.
    #[allow(clippy::cast_precision_loss)] // as a double, like the values
    pub(super) fn of_counts(
        positive: impl Iterator<Item = (i32, u64)>,
        zero: u64,
        range: Option<(i64, i64)>,
    ) -> Sketch {
        let empty = Sketch::default();
        let (least, greatest) =
            range.map_or((empty.least, empty.greatest), |(least, greatest)| (least as f64, greatest as f64));
        Sketch { positive: positive.collect(), zero, least, greatest, ..empty }
    }

    /// Count a value.
    pub(super) fn push_real(&mut self, value: f64) {
        self.push(value);
    }

    /// Add what another sketch counted.
    pub(super) fn absorb(&mut self, other: Sketch) {
        // Adding counts never fails.
        let _ = Partial::merge(self, other);
    }

    fn push(&mut self, value: f64) {
        self.least = self.least.min(value);
        self.greatest = self.greatest.max(value);
        if value.abs() < f64::MIN_POSITIVE {
            self.zero += 1;
            return;
        }
        #[allow(clippy::cast_possible_truncation)] // within ±36,000
        let bucket = (value.abs().ln() / self.log_base).ceil() as i32;
        let side = if value > 0.0 { &mut self.positive } else { &mut self.negative };
        *side.entry(bucket).or_default() += 1;
    }

    pub(super) fn count(&self) -> u64 {
        let sum = |side: &BTreeMap<i32, u64>| side.values().fold(0u64, |sum, count| sum.saturating_add(*count));
        sum(&self.negative).saturating_add(self.zero).saturating_add(sum(&self.positive))
    }

    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn quantile(&self, fraction: f64) -> Option<f64> {
        let last = self.count().checked_sub(1)?;
        let rank = ((fraction * last as f64) as u64).min(last);
        if rank == 0 {
            return Some(self.least);
        }
        if rank == last {
            return Some(self.greatest);
        }
        let middle = |bucket: i32| {
            // 2 g^i / (g + 1), through the logarithm: g^i alone may be past the range of doubles.
            (f64::from(bucket) * self.log_base + (2.0 / (1.0 + self.log_base.exp())).ln()).exp()
        };
        let negative = self.negative.iter().rev().map(|(bucket, count)| (-middle(*bucket), *count));
        let zero = (self.zero > 0).then_some((0.0, self.zero));
        let positive = self.positive.iter().map(|(bucket, count)| (middle(*bucket), *count));
        let mut before = 0u64;
        let (value, _) = negative.chain(zero).chain(positive).find(|(_, count)| {
            before = before.saturating_add(*count);
            rank < before
        })?;
        Some(value.max(self.least).min(self.greatest))
    }
}

impl Partial for Sketch {
    const KIND: u8 = b'q';

    fn add(&mut self, args: &Args<'_>) -> std::result::Result<(), Problem> {
        if let ValueRef::Blob(bytes) = args.value(0)
            && let Some(((least, greatest), zero, counts)) = read_stored(bytes)
        {
            let positive = counts.into_iter().map(|(bucket, count)| (i32::from(bucket), count)).collect();
            #[allow(clippy::cast_precision_loss)] // as a double, like the values
            let (least, greatest) = (least as f64, greatest as f64);
            return self.merge(Sketch { positive, zero, least, greatest, ..Sketch::default() });
        }
        if let Some(value) = finite(args, 0)? {
            self.push(value);
        }
        Ok(())
    }

    fn merge(&mut self, other: Self) -> std::result::Result<(), Problem> {
        for (mine, theirs) in [(&mut self.positive, other.positive), (&mut self.negative, other.negative)] {
            for (bucket, count) in theirs {
                let total = mine.entry(bucket).or_default();
                *total = total.saturating_add(count);
            }
        }
        self.zero = self.zero.saturating_add(other.zero);
        self.least = self.least.min(other.least);
        self.greatest = self.greatest.max(other.greatest);
        Ok(())
    }

    fn heap_bytes(&self) -> usize {
        (self.positive.len() + self.negative.len()) * 2 * size_of::<(i32, u64)>()
    }

    fn write(&mut self, out: &mut Vec<u8>) {
        if self.count() == 0 {
            return;
        }
        out.extend(self.least.to_le_bytes());
        out.extend(self.greatest.to_le_bytes());
        write_varint(out, u128::from(self.zero));
        for side in [&self.positive, &self.negative] {
            write_varint(out, side.len() as u128);
            let mut before = 0i64;
            for (bucket, count) in side {
                write_varint(out, u128::from(zigzag(i64::from(*bucket) - before)));
                write_varint(out, u128::from(*count));
                before = i64::from(*bucket);
            }
        }
    }

    fn read(bytes: &mut Reader<'_>) -> Option<Self> {
        let mut sketch = Sketch::default();
        if bytes.is_empty() {
            return Some(sketch);
        }
        sketch.least = bytes.real()?;
        sketch.greatest = bytes.real()?;
        sketch.zero = bytes.varint_u64()?;
        for side in [&mut sketch.positive, &mut sketch.negative] {
            let mut bucket = 0i64;
            for _ in 0..bytes.varint_u64()? {
                bucket = bucket.checked_add(unzigzag(bytes.varint_u64()?))?;
                let count = bytes.varint_u64().filter(|count| *count > 0)?;
                let at = i32::try_from(bucket).ok().filter(|at| at.unsigned_abs() < 1 << 17)?;
                if side.insert(at, count).is_some() {
                    return None;
                }
            }
        }
        let sane = sketch.least.is_finite() && sketch.greatest.is_finite() && sketch.least <= sketch.greatest;
        (sane && sketch.count() > 0).then_some(sketch)
    }
}

#[derive(Clone, Copy)]
struct Quantile;

impl Finish for Quantile {
    type Partial = Sketch;
    type Parameter = f64;

    fn name(&self) -> &'static str {
        "approx_quantile"
    }

    fn parameter(&self, args: &Args<'_>, at: usize) -> std::result::Result<f64, String> {
        fraction(args, at, 1.0, self.name())
    }

    fn is_same(a: f64, b: f64) -> bool {
        same_fraction(a, b)
    }

    fn finish(&self, state: Sketch, fraction: Option<f64>) -> std::result::Result<Value, String> {
        Ok(fraction.and_then(|fraction| state.quantile(fraction)).map_or(Value::Null, Value::Real))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[f64]) -> Sketch {
        let mut sketch = Sketch::default();
        values.iter().for_each(|value| sketch.push(*value));
        sketch
    }

    fn shipped(mut sketch: Sketch) -> Sketch {
        let mut bytes = Vec::new();
        sketch.write(&mut bytes);
        Sketch::read(&mut Reader(&bytes)).expect("own bytes")
    }

    #[test]
    fn known_values() {
        assert_eq!(of(&[]).quantile(0.5), None);
        assert_eq!(of(&[7.0]).quantile(0.5), Some(7.0));
        assert_eq!(of(&[-3.0, 0.0, 0.0, 8.0]).quantile(0.5), Some(0.0));
        assert_eq!(of(&[f64::MAX, f64::MAX, f64::MAX]).quantile(0.5), Some(f64::MAX));
        assert!(shipped(Sketch::default()).quantile(0.5).is_none());
    }

    #[test]
    fn durations_ship_few_bytes() {
        let mut sketch = Sketch::default();
        (1..100_000u32).for_each(|i| sketch.push(f64::from(i) * 1000.0));
        let mut bytes = Vec::new();
        sketch.write(&mut bytes);
        assert!(bytes.len() < 2500, "{}", bytes.len());
    }

    fn any_value() -> impl Strategy<Value = f64> {
        prop_oneof![
            -1e6f64..1e6,
            (1u32..10_000).prop_map(f64::from),
            any::<f64>().prop_filter("finite", |v| v.is_finite()),
            Just(0.0)
        ]
    }

    proptest! {
        #[test]
        fn within_one_percent(values in prop::collection::vec(any_value(), 1..300), fraction in 0.0f64..=1.0) {
            let estimate = of(&values).quantile(fraction).expect("not empty");
            let mut sorted = values;
            sorted.sort_by(f64::total_cmp);
            #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let exact = sorted[(fraction * (sorted.len() - 1) as f64) as usize];
            prop_assert!((estimate - exact).abs() <= exact.abs() * 0.01 + 2.3e-308, "{} for {}", estimate, exact);
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
            if let Some(mut sketch) = Sketch::read(&mut Reader(&bytes)) {
                let other = sketch.clone();
                sketch.merge(other).expect("no problem");
                sketch.quantile(0.7);
            }
        }
    }
}
