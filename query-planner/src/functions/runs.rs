//! `median`, `percentile`, `percentile_cont`, `percentile_disc` (SQLite's own, its words and its
//! arithmetic) and `mad`.
//!
//! The state is the multiset of the values as doubles (so SQLite takes them), kept as sorted runs
//! (value, count). It is exact, and whatever a question asks of one argument (`median(x)`,
//! `percentile(x, 99)`, `mad(x)`) shares one state.
//!
//! Shipped are the runs, each as the distance to the value before and, where above one, the count,
//! in varints of seven bits a byte. Where all values are 64-bit integers, distances are of
//! integers: a run of durations in nanoseconds costs 1 to 5 bytes. Else they are of the doubles'
//! bit patterns in numeric order, and a run costs up to 11 bytes. A node ships at most min(rows,
//! distinct values) runs a group, under the byte budget of the question; a node and the coordinator
//! hold 16 bytes a run, and refuse a group of more than 32 Mi different values. Selecting the rank
//! in several rounds of questions would ship less for long columns of distinct values; it is not
//! done yet.
//!
//! `mad(x)` is the median of |x - median(x)|, both medians as `median` takes them, unscaled (1.4826
//! `mad` estimates the standard deviation of normal data). Of 0.0 and -0.0 in one group, -0.0 is
//! the lower one (SQLite leaves that to the order of the rows).

use rusqlite::{Connection, Result};

use super::fold::Args;
use super::state::{
    Finish, Partial, Problem, Reader, define, define_merge, define_state, finite, unzigzag, write_varint, zigzag,
};
use crate::batch::Value;

/// Values gathered before they are sorted in.
const PENDING: usize = 4096;
/// Runs that a state may have, 512 MiB of them.
const MOST_RUNS: usize = 32 << 20;

pub(super) fn register(conn: &Connection) -> Result<()> {
    define_state::<Runs>(conn, "mesh_runs", 1)?;
    define_merge(conn, Rank { name: "median", scale: None, discrete: false }, &[1])?;
    define_merge(conn, Rank { name: "percentile", scale: Some(100.0), discrete: false }, &[2])?;
    define_merge(conn, Rank { name: "percentile_cont", scale: Some(1.0), discrete: false }, &[2])?;
    define_merge(conn, Rank { name: "percentile_disc", scale: Some(1.0), discrete: true }, &[2])?;
    define(conn, Deviation, &[1])
}

/// Values by their key (see [`key`]) with their counts.
#[derive(Debug, Clone, Default)]
pub(super) struct Runs {
    /// Keys strictly ascending.
    sorted: Vec<(u64, u64)>,
    /// In any order.
    pending: Vec<(u64, u64)>,
}

/// A double as an integer of the same order; -0.0 is below 0.0.
fn key(value: f64) -> u64 {
    let bits = value.to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

fn value(key: u64) -> f64 {
    f64::from_bits(if key >> 63 == 1 { key & !(1 << 63) } else { !key })
}

/// The value as an integer, if it is one of 64 bits and not -0.0.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
fn integer(value: f64) -> Option<i64> {
    let integer = value as i64;
    let fits = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&value);
    (fits && key(integer as f64) == key(value)).then_some(integer)
}

/// The ranks (from 0) of the one or two values that make the result, of `count` values.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn places(count: u64, fraction: f64, discrete: bool) -> Option<(u64, u64)> {
    let last = count.checked_sub(1)?;
    let place = fraction * last as f64;
    let low = (place as u64).min(last);
    Some((low, if discrete || place == low as f64 || low == last { low } else { low + 1 }))
}

/// The value at a fraction of `total` integers, as [`at_fraction`] has it of their runs: from those
/// that follow the lowest `below`, in any order, as far as the result needs them.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
pub(super) fn select_place(values: &mut [i64], below: u64, total: u64, fraction: f64, discrete: bool) -> Option<f64> {
    let (low, high) = places(total, fraction, discrete)?;
    let at = low.checked_sub(below)? as usize;
    if at >= values.len() {
        return None;
    }
    let (_, value, above) = values.select_nth_unstable(at);
    let a = *value as f64;
    if discrete {
        return Some(a);
    }
    let b = if high == low { a } else { *above.iter().min()? as f64 };
    Some(a + (b - a) * (fraction * (total - 1) as f64 - low as f64))
}

impl Runs {
    /// Of ascending integers.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn of_sorted(values: &[i64]) -> Runs {
        let mut sorted: Vec<(u64, u64)> = Vec::new();
        for &value in values {
            let key = key(value as f64);
            match sorted.last_mut() {
                Some((last, count)) if *last == key => *count += 1,
                _ => sorted.push((key, 1)),
            }
        }
        Runs { sorted, pending: Vec::new() }
    }

    fn push(&mut self, key: u64, count: u64) -> std::result::Result<(), Problem> {
        self.pending.push((key, count));
        // Amortised: what is sorted again is at most as long as what is new.
        if self.pending.len() >= PENDING.max(self.sorted.len()) {
            self.settle();
            if self.sorted.len() > MOST_RUNS {
                return Err(Problem::TooMany);
            }
        }
        Ok(())
    }

    fn settle(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        self.sorted.append(&mut self.pending);
        self.sorted.sort_by_key(|(key, _)| *key);
        self.sorted.dedup_by(|(key, count), (kept, total)| {
            let same = key == kept;
            if same {
                *total = total.saturating_add(*count);
            }
            same
        });
    }

    fn sorted(&mut self) -> impl Iterator<Item = (f64, u64)> + Clone {
        self.settle();
        self.sorted.iter().map(|(key, count)| (value(*key), *count))
    }
}

/// The value at a fraction of sorted runs, by SQLite's arithmetic (percentCompute in its source).
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn at_fraction(runs: impl Iterator<Item = (f64, u64)> + Clone, fraction: f64, discrete: bool) -> Option<f64> {
    let count = runs.clone().fold(0u64, |sum, (_, count)| sum.saturating_add(count));
    let (low, high) = places(count, fraction, discrete)?;
    let place = fraction * (count - 1) as f64;
    let (mut before, mut low_value, mut high_value) = (0u64, None, None);
    for (value, count) in runs {
        before = before.saturating_add(count);
        if low < before {
            low_value = low_value.or(Some(value));
        }
        if high < before {
            high_value = Some(value);
            break;
        }
    }
    let (a, b) = (low_value?, high_value?);
    Some(if discrete { a } else { a + (b - a) * (place - low as f64) })
}

impl Partial for Runs {
    const KIND: u8 = b'r';

    fn add(&mut self, args: &Args<'_>) -> std::result::Result<(), Problem> {
        if let Some(value) = finite(args, 0)? {
            self.push(key(value), 1)?;
        }
        Ok(())
    }

    fn remove(&mut self, args: &Args<'_>) -> bool {
        self.settle();
        if let Ok(Some(value)) = finite(args, 0)
            && let Ok(at) = self.sorted.binary_search_by_key(&key(value), |(key, _)| *key)
        {
            self.sorted[at].1 -= 1;
            if self.sorted[at].1 == 0 {
                self.sorted.remove(at);
            }
        }
        true
    }

    fn merge(&mut self, other: Self) -> std::result::Result<(), Problem> {
        other.sorted.into_iter().chain(other.pending).try_for_each(|(key, count)| self.push(key, count))
    }

    fn heap_bytes(&self) -> usize {
        let values = self.sorted.capacity() + self.pending.capacity();
        // Sorting needs half of it once more.
        (values + values / 2) * size_of::<(u64, u64)>()
    }

    fn write(&mut self, out: &mut Vec<u8>) {
        self.settle();
        let integers: Option<Vec<i64>> = self.sorted.iter().map(|(key, _)| integer(value(*key))).collect();
        out.push(u8::from(integers.is_none()));
        let mut before: Option<usize> = None;
        for (i, (key, count)) in self.sorted.iter().enumerate() {
            let distance = match (&integers, before) {
                (Some(integers), None) => zigzag(integers[i]),
                (Some(integers), Some(before)) => integers[i].wrapping_sub(integers[before]).cast_unsigned(),
                (None, None) => *key,
                (None, Some(before)) => key - self.sorted[before].0,
            };
            before = Some(i);
            write_varint(out, u128::from(distance) << 1 | u128::from(*count > 1));
            if *count > 1 {
                write_varint(out, u128::from(*count));
            }
        }
    }

    fn read(bytes: &mut Reader<'_>) -> Option<Self> {
        let reals = match bytes.byte()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let mut sorted: Vec<(u64, u64)> = Vec::new();
        let mut before: Option<u64> = None;
        while !bytes.is_empty() {
            let word = bytes.varint()?;
            let distance = u64::try_from(word >> 1).ok()?;
            let count = if word & 1 == 1 { bytes.varint_u64().filter(|count| *count > 1)? } else { 1 };
            // Integers, shifted to be unsigned, ascend as keys do.
            let at = match before {
                None if reals => distance,
                None => unzigzag(distance).cast_unsigned() ^ 1 << 63,
                Some(before) => before.checked_add(distance)?,
            };
            before = Some(at);
            #[allow(clippy::cast_precision_loss)]
            let run = if reals { at } else { key((at ^ 1 << 63).cast_signed() as f64) };
            let ascends = sorted.last().is_none_or(|(last, _)| *last < run);
            if !ascends || !value(run).is_finite() {
                return None;
            }
            sorted.push((run, count));
        }
        Some(Runs { sorted, pending: Vec::new() })
    }
}

/// A fraction argument, as SQLite's percentiles read it: a number between 0 and `scale`, divided by
/// it.
pub(super) fn fraction(args: &Args<'_>, at: usize, scale: f64, name: &str) -> std::result::Result<f64, String> {
    args.looks_numeric(at)
        .map(|number| number / scale)
        .filter(|fraction| (0.0..=1.0).contains(fraction))
        .ok_or_else(|| format!("the fraction argument to {name}() is not between 0.0 and {scale:.1}"))
}

/// Whether SQLite takes two fractions for the same.
pub(super) fn same_fraction(a: f64, b: f64) -> bool {
    (-0.001..=0.001).contains(&(a - b))
}

#[derive(Clone, Copy)]
struct Rank {
    name: &'static str,
    /// What the fraction argument is at most; None for a median.
    scale: Option<f64>,
    discrete: bool,
}

impl Finish for Rank {
    type Partial = Runs;
    type Parameter = f64;

    fn name(&self) -> &'static str {
        self.name
    }

    fn parameter(&self, args: &Args<'_>, at: usize) -> std::result::Result<f64, String> {
        self.scale.map_or(Ok(0.5), |scale| fraction(args, at, scale, self.name))
    }

    fn is_same(a: f64, b: f64) -> bool {
        same_fraction(a, b)
    }

    fn finish(&self, mut state: Runs, fraction: Option<f64>) -> std::result::Result<Value, String> {
        let result = fraction.and_then(|fraction| at_fraction(state.sorted(), fraction, self.discrete));
        Ok(result.map_or(Value::Null, Value::Real))
    }
}

#[derive(Clone, Copy)]
struct Deviation;

impl Finish for Deviation {
    type Partial = Runs;
    type Parameter = ();

    fn name(&self) -> &'static str {
        "mad"
    }

    fn parameter(&self, _: &Args<'_>, _: usize) -> std::result::Result<(), String> {
        Ok(())
    }

    fn is_same((): (), (): ()) -> bool {
        true
    }

    fn finish(&self, mut state: Runs, _: Option<()>) -> std::result::Result<Value, String> {
        let runs = state.sorted();
        let Some(median) = at_fraction(runs.clone(), 0.5, false) else { return Ok(Value::Null) };
        let mut distances: Vec<(f64, u64)> = runs.map(|(value, count)| ((value - median).abs(), count)).collect();
        distances.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(at_fraction(distances.into_iter(), 0.5, false).map_or(Value::Null, Value::Real))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[f64]) -> Runs {
        let mut runs = Runs::default();
        values.iter().for_each(|value| runs.push(key(*value), 1).expect("few values"));
        runs
    }

    fn bytes(mut runs: Runs) -> Vec<u8> {
        let mut bytes = Vec::new();
        runs.write(&mut bytes);
        bytes
    }

    fn shipped(runs: Runs) -> Runs {
        Runs::read(&mut Reader(&bytes(runs))).expect("own bytes")
    }

    fn mad(values: &[f64]) -> Value {
        Deviation.finish(of(values), Some(())).expect("no error")
    }

    #[test]
    fn known_values() {
        assert_eq!(mad(&[]), Value::Null);
        assert_eq!(mad(&[4.0]), Value::Real(0.0));
        // R: mad(c(1, 1, 2, 2, 4, 6, 9), constant = 1)
        assert_eq!(mad(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]), Value::Real(1.0));
        assert_eq!(at_fraction(of(&[1.0, 2.0, 3.0, 4.0]).sorted(), 0.5, false), Some(2.5));
        assert_eq!(at_fraction(of(&[1.0, 2.0, 3.0, 4.0]).sorted(), 0.5, true), Some(2.0));
    }

    #[test]
    fn runs_of_integers_are_short() {
        // A hundred thousand durations of some microseconds, in nanoseconds.
        #[allow(clippy::cast_precision_loss)]
        let values: Vec<f64> = (0..100_000u64).map(|i| (i * 7919 % 40_009 + 20_000) as f64).collect();
        assert!(bytes(of(&values)).len() < 3 * 40_010);
        assert_eq!(bytes(of(&[5.0; 1000])).len(), 4);
    }

    #[test]
    fn damaged_states_are_refused() {
        for bad in [&[][..], &[2], &[0, 0x80], &[0, 2, 0], &[0, 3, 1], &[1, 0]] {
            assert!(Runs::read(&mut Reader(bad)).is_none(), "{bad:?}");
        }
    }

    fn any_value() -> impl Strategy<Value = f64> {
        #[allow(clippy::cast_precision_loss)]
        let integers = prop_oneof![(-40i64..40).prop_map(|i| i as f64), any::<i64>().prop_map(|i| i as f64)];
        prop_oneof![integers, any::<f64>().prop_filter("finite", |v| v.is_finite()), Just(0.0), Just(-0.0)]
    }

    proptest! {
        #[test]
        fn splitting_changes_nothing(values in prop::collection::vec(any_value(), 0..200), at in 0usize..200) {
            let (left, right) = values.split_at(at.min(values.len()));
            let mut merged = shipped(of(right));
            merged.merge(shipped(of(left))).expect("no problem");
            merged.settle();
            let mut at_once = of(&values);
            at_once.settle();
            prop_assert_eq!(&merged.sorted, &at_once.sorted);
            let mut sorted = values;
            sorted.sort_by(f64::total_cmp);
            let expanded: Vec<u64> = at_once.sorted().flat_map(|(v, n)| (0..n).map(move |_| v.to_bits())).collect();
            prop_assert_eq!(expanded, sorted.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Some(mut runs) = Runs::read(&mut Reader(&bytes)) {
                let other = runs.clone();
                runs.merge(other).expect("no problem");
                at_fraction(runs.sorted(), 0.99, false);
            }
        }
    }
}
