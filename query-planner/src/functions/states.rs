//! The states of aggregates for executors other than SQLite: fed with integers, in bulk, they give
//! the same results and the same bytes as the functions that SQLite calls. What the states are is
//! in `exact`, `quantile` and `runs`.

use std::sync::OnceLock;

use super::exact::ExactSum;
use super::quantile::Sketch;
pub use super::quantile::{read_stored, stored};
use super::runs::{self, Runs};
use super::state::Shipped;
use super::sum::{Finish, OVERFLOW};
use crate::batch::Value;

/// `sum`, `total` and `avg` of integers and doubles.
#[derive(Debug, Clone, Default)]
pub struct Sum(ExactSum);

impl Sum {
    /// Add `count` integers whose sum is `sum`.
    pub fn add(&mut self, count: i64, sum: i128) {
        self.0.add_integers(count, sum);
    }

    /// Add a double.
    pub fn add_real(&mut self, value: f64) {
        self.0.add_real(value);
    }

    /// Add what another one added.
    pub fn merge(&mut self, other: &Self) {
        self.0.merge(&other.0);
    }

    /// How many were added.
    #[must_use]
    pub fn count(&self) -> i64 {
        self.0.count
    }

    /// The partial state.
    #[must_use]
    pub fn state(&self) -> Value {
        Value::Blob(self.0.to_bytes())
    }

    /// `sum(x)`
    ///
    /// # Errors
    /// SQLite's words when it is no 64-bit integer.
    pub fn sum(&self) -> Result<Value, String> {
        self.finish(Finish::Sum)
    }

    /// `total(x)`
    ///
    /// # Errors
    /// None for integers.
    pub fn total(&self) -> Result<Value, String> {
        self.finish(Finish::Total)
    }

    /// `avg(x)`
    ///
    /// # Errors
    /// None for integers.
    pub fn avg(&self) -> Result<Value, String> {
        self.finish(Finish::Avg)
    }

    fn finish(&self, how: Finish) -> Result<Value, String> {
        match how.of(&self.0) {
            Ok(value) => Ok(Value::from_sqlite((&value).into())),
            Err(_) => Err(OVERFLOW.to_string_lossy().into_owned()),
        }
    }
}

/// The sketch of `approx_quantile`, by counts of its buckets.
#[derive(Debug, Clone, Default)]
pub struct Quantiles {
    /// Counts of positive integers by bucket.
    counts: Vec<u64>,
    zero: u64,
    range: Option<(i64, i64)>,
    /// Whatever is negative.
    rest: Sketch,
}

impl Quantiles {
    /// Count an integer.
    #[inline]
    pub fn add(&mut self, buckets: &Buckets, value: i64) {
        if value > 0 {
            let bucket = buckets.of(value.cast_unsigned());
            if bucket >= self.counts.len() {
                self.counts.resize(bucket + 1, 0);
            }
            self.counts[bucket] += 1;
        } else if value == 0 {
            self.zero += 1;
        } else {
            self.rest.push_real(value as f64);
        }
        self.range = Some(self.range.map_or((value, value), |(a, b)| (a.min(value), b.max(value))));
    }

    /// Add what another one counted.
    pub fn merge(&mut self, other: &Quantiles) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.zero += other.zero;
        if let Some((a, b)) = other.range {
            self.range = Some(self.range.map_or((a, b), |(c, d)| (a.min(c), b.max(d))));
        }
        self.rest.absorb(other.rest.clone());
    }

    /// Memory outside this value itself, but for negative values, which are rare.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<u64>()
    }

    /// How many are 0.
    #[must_use]
    pub fn zeros(&self) -> u64 {
        self.zero
    }

    /// How many positive ones are in each bucket, ascending, without empty ones.
    pub fn counts(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.counts.iter().copied().enumerate().filter(|(_, count)| *count > 0)
    }

    /// Add integers from 0 on that were counted elsewhere: zeros, counts by bucket, the least and
    /// the greatest.
    pub fn add_counts(&mut self, zeros: u64, counts: &[(usize, u64)], (least, greatest): (i64, i64)) {
        self.zero += zeros;
        for (bucket, count) in counts {
            if *bucket >= self.counts.len() {
                self.counts.resize(bucket + 1, 0);
            }
            self.counts[*bucket] += count;
        }
        self.range = Some(self.range.map_or((least, greatest), |(a, b)| (a.min(least), b.max(greatest))));
    }

    /// How many integers were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.sketch().count()
    }

    /// The integers among which an exact percentile is, so that only those need to be gathered. Of
    /// a group with negative ones the bracket is all integers.
    #[must_use]
    pub fn bracket(&self, buckets: &Buckets, fraction: f64, discrete: bool) -> Option<Bracket> {
        let (least, greatest) = self.range?;
        let total = self.count();
        let all = Bracket { least, greatest, below: 0, total };
        if least < 0 {
            return Some(all);
        }
        let (low, high) = runs::places(total, fraction, discrete)?;
        let mut before = self.zero;
        let mut bracket = None;
        if low < before {
            bracket = Some(Bracket { least: 0, greatest: 0, below: 0, total });
            if high < before {
                return bracket;
            }
        }
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let last = buckets.last.get(bucket).map_or(i64::MAX, |last| last.cast_signed());
            if bracket.is_none() && low < before + count {
                let first = bucket.checked_sub(1).and_then(|bucket| buckets.last.get(bucket));
                let least = first.map_or(1, |last| last.cast_signed() + 1);
                bracket = Some(Bracket { least, greatest: last, below: before, total });
            }
            if let Some(bracket) = &mut bracket {
                bracket.greatest = last;
            }
            before += count;
            if high < before {
                return bracket;
            }
        }
        Some(all)
    }

    fn sketch(&self) -> Sketch {
        let positive = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        let mut sketch =
            Sketch::of_counts(positive.map(|(bucket, count)| (bucket as i32, *count)), self.zero, self.range);
        sketch.absorb(self.rest.clone());
        sketch
    }

    /// The partial state of a group of `rows` rows.
    #[must_use]
    pub fn state(&self, rows: u64) -> Value {
        Value::Blob(Shipped::complete(self.sketch(), rows > 0).into_bytes())
    }

    /// `approx_quantile(x, fraction)`
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> Value {
        self.sketch().quantile(fraction).map_or(Value::Null, Value::Real)
    }
}

/// Integers between which an exact percentile is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bracket {
    /// The least of them.
    pub least: i64,
    /// The greatest.
    pub greatest: i64,
    /// Integers of the group below.
    pub below: u64,
    /// All integers of the group.
    pub total: u64,
}

impl Bracket {
    /// The percentile, from all integers of the group that are in the bracket, in any order.
    #[must_use]
    pub fn percentile(&self, within: &mut [i64], fraction: f64, discrete: bool) -> Value {
        runs::select_place(within, self.below, self.total, fraction, discrete).map_or(Value::Null, Value::Real)
    }
}

/// Which bucket of the sketch an integer falls into, without a logarithm for each.
#[derive(Debug)]
pub struct Buckets {
    /// By power of two and the seven bits below: the bucket of the least such integer.
    first: Vec<u16>,
    /// The greatest integer of each bucket.
    last: Vec<u64>,
}

impl Buckets {
    /// The table, made once (some 2,000 logarithms by bisection).
    pub fn table() -> &'static Buckets {
        static TABLE: OnceLock<Buckets> = OnceLock::new();
        TABLE.get_or_init(|| {
            let bucket = |value: u64| Sketch::bucket_of(value as f64) as usize;
            let most = bucket(i64::MAX as u64);
            let last = (0..=most)
                .map(|wanted| {
                    let (mut low, mut high) = (1_u64, i64::MAX as u64);
                    while low < high {
                        let middle = high - (high - low) / 2;
                        if bucket(middle) <= wanted { low = middle } else { high = middle - 1 }
                    }
                    low
                })
                .collect();
            let first = (0..64 * 128_u64).map(|cell| bucket(Self::least(cell)) as u16).collect();
            Buckets { first, last }
        })
    }

    fn least(cell: u64) -> u64 {
        let (power, bits) = (cell / 128, cell % 128);
        let value = if power >= 7 { (128 | bits) << (power - 7) } else { (128 | bits) >> (7 - power) };
        value.clamp(1, i64::MAX as u64)
    }

    /// The bucket of a positive integer.
    #[inline]
    #[must_use]
    pub fn of(&self, value: u64) -> usize {
        let power = 63 - value.leading_zeros();
        let bits = if power >= 7 { value >> (power - 7) } else { value << (7 - power) } & 127;
        let cell = (u64::from(power) * 128 + bits) as usize;
        // The cells are narrower than the buckets: one step at most, but that is not relied on.
        let mut bucket = self.first.get(cell).map_or(0, |first| usize::from(*first));
        while self.last.get(bucket).is_some_and(|last| value > *last) {
            bucket += 1;
        }
        bucket
    }
}

/// The state of `median` and its kin, of integers in any order.
#[must_use]
pub fn runs_state(mut values: Vec<i64>, rows: u64) -> Value {
    values.sort_unstable();
    Value::Blob(Shipped::complete(Runs::of_sorted(&values), rows > 0).into_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rusqlite::{Connection, params_from_iter};

    use super::*;

    fn integers() -> impl Strategy<Value = Vec<i64>> {
        let one = prop_oneof![
            0_i64..1000,
            any::<i64>(),
            -50_i64..50,
            (any::<i64>(), 0_u32..63).prop_map(|(value, shift)| value >> shift)
        ];
        prop::collection::vec(one, 0..120)
    }

    fn by_sqlite(values: &[i64], call: &str) -> Result<Value, String> {
        let conn = Connection::open_in_memory().expect("memory");
        crate::functions::register(&conn).expect("functions");
        let rows: Vec<&str> = values.iter().map(|_| "(?)").collect();
        let from = if rows.is_empty() {
            "(SELECT 1 AS x WHERE 0)".to_owned()
        } else {
            format!("(SELECT column1 AS x FROM (VALUES {}))", rows.join(","))
        };
        conn.query_row(&format!("SELECT {call} FROM {from}"), params_from_iter(values), |row| {
            row.get_ref(0).map(Value::from_sqlite)
        })
        .map_err(|error| error.to_string())
    }

    #[test]
    fn buckets_are_those_of_the_logarithm() {
        let table = Buckets::table();
        for bucket in 0..table.last.len() {
            for value in table.last[bucket].saturating_sub(2)..=table.last[bucket].saturating_add(2) {
                if (1..=i64::MAX as u64).contains(&value) {
                    assert_eq!(table.of(value), Sketch::bucket_of(value as f64) as usize, "{value}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn results_are_those_of_sqlites_calls(values in integers(), fraction in 0.0_f64..=1.0) {
            let mut sum = Sum::default();
            sum.add(values.len() as i64, values.iter().map(|value| i128::from(*value)).sum());
            let mut quantiles = Quantiles::default();
            values.iter().for_each(|value| quantiles.add(Buckets::table(), *value));
            let rows = values.len() as u64;
            prop_assert_eq!(sum.state(), by_sqlite(&values, "mesh_sum(x)").unwrap());
            prop_assert_eq!(sum.avg().ok(), by_sqlite(&values, "mesh_exact_avg(x)").ok());
            prop_assert_eq!(sum.total().ok(), by_sqlite(&values, "mesh_exact_total(x)").ok());
            prop_assert_eq!(sum.sum().ok(), by_sqlite(&values, "mesh_exact_sum(x)").ok());
            prop_assert_eq!(quantiles.state(rows), by_sqlite(&values, "mesh_sketch(x)").unwrap());
            prop_assert_eq!(quantiles.quantile(fraction), by_sqlite(&values, &format!("approx_quantile(x, {fraction:?})")).unwrap());
            prop_assert_eq!(runs_state(values.clone(), rows), by_sqlite(&values, "mesh_runs(x)").unwrap());
            for (call, discrete) in [("percentile_cont", false), ("percentile_disc", true)] {
                let ours = quantiles.bracket(Buckets::table(), fraction, discrete).map_or(Value::Null, |bracket| {
                    let within = |value: &i64| (bracket.least..=bracket.greatest).contains(value);
                    let mut within: Vec<i64> = values.iter().copied().filter(within).collect();
                    bracket.percentile(&mut within, fraction, discrete)
                });
                prop_assert_eq!(ours, by_sqlite(&values, &format!("{call}(x, {fraction:?})")).unwrap(), "{}", call);
            }
        }
    }
}
