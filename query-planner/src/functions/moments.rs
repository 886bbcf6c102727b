//! `stddev`, `stddev_samp`, `stddev_pop`, `variance`, `var_samp` and `var_pop`.
//!
//! The state is (n, mean, M2 = sum of squared distances to the mean). Two states merge by the
//! pairwise update of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
//! Computing Sample Variances" (Stanford STAN-CS-79-773, 1979): with d = mean_b - mean_a and n =
//! n_a + n_b,
//!
//!   mean = mean_a + d n_b / n,   M2 = M2_a + M2_b + d^2 n_a n_b / n.
//!
//! No difference of large sums occurs, so nothing cancels. Mean and M2 are kept in double-double
//! arithmetic (Dekker, "A Floating-Point Technique for Extending the Available Precision", 1971;
//! about 105 bits): its errors, near 1e-30 of the result, vanish when the result is rounded to a
//! double. So the result does not depend on the order of the rows or on how they are split over
//! nodes, but where it lies within about 1e-13 of an ulp of a rounding boundary.
//!
//! Values are what `avg` takes: NULL is ignored, text counts as its numeric prefix. Of no value the
//! result is NULL; of one value the sample forms are NULL and the population forms 0.0. An infinite
//! value gives NULL. A variance beyond the range of doubles (a spread above about 1e154) is
//! infinite, and so is its root.

use rusqlite::{Connection, Result};

use super::fold::{Args, Number};
use super::state::{Finish, Partial, Problem, Reader, define, define_state, write_varint};
use crate::batch::Value;

/// Rows that are taken at once.
const BLOCK: usize = 64;

pub(super) fn register(conn: &Connection) -> Result<()> {
    define_state::<Moments>(conn, "mesh_moments", 1)?;
    for (name, root, sample) in [
        ("stddev", true, true),
        ("stddev_samp", true, true),
        ("stddev_pop", true, false),
        ("variance", false, true),
        ("var_samp", false, true),
        ("var_pop", false, false),
    ] {
        define(conn, Spread { name, root, sample }, &[1])?;
    }
    Ok(())
}

/// The unevaluated sum of two doubles, the second below half an ulp of the first.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Twofold {
    high: f64,
    low: f64,
}

/// a + b and its rounding error (Knuth).
fn two_sum(a: f64, b: f64) -> Twofold {
    let high = a + b;
    let b_part = high - a;
    Twofold { high, low: (a - (high - b_part)) + (b - b_part) }
}

/// a * b and its rounding error.
fn two_product(a: f64, b: f64) -> Twofold {
    let high = a * b;
    Twofold { high, low: a.mul_add(b, -high) }
}

impl Twofold {
    fn of(value: f64) -> Twofold {
        Twofold { high: value, low: 0.0 }
    }

    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    fn of_integer(value: i64) -> Twofold {
        let high = value as f64;
        // Exact: both fit 65 bits, and the difference is below 2^11.
        let low = i128::from(value) - high as i128;
        Twofold { high, low: low as f64 }
    }

    #[allow(clippy::cast_precision_loss)]
    fn of_count(value: u64) -> Twofold {
        two_sum((value >> 32 << 32) as f64, (value & 0xffff_ffff) as f64)
    }

    fn plus(self, other: Twofold) -> Twofold {
        let sum = two_sum(self.high, other.high);
        let rest = two_sum(self.low, other.low);
        let sum = two_sum(sum.high, sum.low + rest.high);
        two_sum(sum.high, sum.low + rest.low)
    }

    fn minus(self, other: Twofold) -> Twofold {
        self.plus(Twofold { high: -other.high, low: -other.low })
    }

    fn times(self, other: Twofold) -> Twofold {
        let product = two_product(self.high, other.high);
        two_sum(product.high, product.low + (self.high * other.low + self.low * other.high))
    }

    fn over(self, other: Twofold) -> Twofold {
        let first = self.high / other.high;
        let rest = self.minus(other.times(Twofold::of(first)));
        let second = rest.high / other.high;
        let rest = rest.minus(other.times(Twofold::of(second)));
        two_sum(first, second).plus(Twofold::of(rest.high / other.high))
    }

    fn is_finite(self) -> bool {
        self.high.is_finite() && self.low.is_finite()
    }
}

/// n, mean and M2, and what has no place in them.
#[derive(Debug, Clone, Default)]
pub(super) struct Moments {
    count: u64,
    mean: Twofold,
    squares: Twofold,
    /// How many infinite values were among them.
    infinite: u64,
    /// M2 is beyond the range of doubles.
    overflow: bool,
    /// Values not yet taken in.
    block: Vec<Twofold>,
}

impl Moments {
    fn push(&mut self, value: Twofold) {
        if !value.is_finite() {
            self.infinite += 1;
        } else {
            self.block.push(value);
            if self.block.len() >= BLOCK {
                self.settle();
            }
        }
    }

    /// Take the block in.
    fn settle(&mut self) {
        let block = std::mem::take(&mut self.block);
        let Some(first) = block.first().copied() else { return };
        let count = Twofold::of_count(block.len() as u64);
        let shift = block.iter().fold(Twofold::default(), |sum, value| sum.plus(value.minus(first))).over(count);
        let mean = first.plus(shift);
        let squares = block.iter().fold(Twofold::default(), |sum, value| {
            let distance = value.minus(mean);
            sum.plus(distance.times(distance))
        });
        self.join(block.len() as u64, mean, squares);
        self.block = block;
        self.block.clear();
    }

    /// The pairwise update.
    fn join(&mut self, count: u64, mean: Twofold, squares: Twofold) {
        let total = self.count.saturating_add(count);
        if self.count == 0 {
            (self.mean, self.squares) = (mean, squares);
        } else if count > 0 {
            let [mine, theirs, all] = [self.count, count, total].map(Twofold::of_count);
            let distance = mean.minus(self.mean);
            let between = distance.times(distance).times(mine.times(theirs).over(all));
            self.mean = self.mean.plus(distance.times(theirs.over(all)));
            self.squares = self.squares.plus(squares).plus(between);
        }
        self.count = total;
        if !self.mean.is_finite() || !self.squares.is_finite() {
            self.overflow = true;
            (self.mean, self.squares) = (Twofold::default(), Twofold::default());
        }
    }

    /// The update for one value, backwards; false after an overflow, which cannot be taken back.
    fn pull(&mut self, value: Twofold) -> bool {
        if !value.is_finite() {
            self.infinite = self.infinite.saturating_sub(1);
        } else if self.count <= 1 {
            (self.count, self.mean, self.squares) = (0, Twofold::default(), Twofold::default());
        } else {
            self.count -= 1;
            let before = value.minus(self.mean);
            self.mean = self.mean.minus(before.over(Twofold::of_count(self.count)));
            self.squares = self.squares.minus(before.times(value.minus(self.mean)));
        }
        !self.overflow
    }

    fn variance(&mut self, sample: bool) -> Option<f64> {
        self.settle();
        let divisor = self.count.checked_sub(u64::from(sample)).filter(|divisor| *divisor > 0)?;
        if self.infinite > 0 {
            None
        } else if self.overflow {
            Some(f64::INFINITY)
        } else {
            Some(self.squares.over(Twofold::of_count(divisor)).high.max(0.0))
        }
    }
}

impl Partial for Moments {
    const KIND: u8 = b'm';

    fn add(&mut self, args: &Args<'_>) -> std::result::Result<(), Problem> {
        match args.number(0) {
            Number::Null => {}
            Number::Integer(value) => self.push(Twofold::of_integer(value)),
            Number::Real(value) => self.push(Twofold::of(value)),
        }
        Ok(())
    }

    fn remove(&mut self, args: &Args<'_>) -> bool {
        self.settle();
        match args.number(0) {
            Number::Null => true,
            Number::Integer(value) => self.pull(Twofold::of_integer(value)),
            Number::Real(value) => self.pull(Twofold::of(value)),
        }
    }

    fn merge(&mut self, mut other: Self) -> std::result::Result<(), Problem> {
        self.settle();
        other.settle();
        self.infinite = self.infinite.saturating_add(other.infinite);
        self.overflow |= other.overflow;
        self.join(other.count, other.mean, other.squares);
        Ok(())
    }

    fn write(&mut self, out: &mut Vec<u8>) {
        self.settle();
        out.push(u8::from(self.infinite > 0) | u8::from(self.overflow) << 1);
        write_varint(out, u128::from(self.count));
        if self.count > 0 {
            for part in [self.mean.high, self.mean.low, self.squares.high, self.squares.low] {
                out.extend(part.to_le_bytes());
            }
        }
    }

    fn read(bytes: &mut Reader<'_>) -> Option<Self> {
        let flags = bytes.byte().filter(|flags| *flags < 4)?;
        let mut moments = Moments { infinite: u64::from(flags & 1), overflow: flags & 2 != 0, ..Moments::default() };
        moments.count = bytes.varint_u64()?;
        if moments.count > 0 {
            moments.mean = Twofold { high: bytes.real()?, low: bytes.real()? };
            moments.squares = Twofold { high: bytes.real()?, low: bytes.real()? };
        }
        (moments.mean.is_finite() && moments.squares.is_finite()).then_some(moments)
    }
}

#[derive(Clone, Copy)]
struct Spread {
    name: &'static str,
    root: bool,
    sample: bool,
}

impl Finish for Spread {
    type Partial = Moments;
    type Parameter = ();

    fn name(&self) -> &'static str {
        self.name
    }

    fn parameter(&self, _: &Args<'_>, _: usize) -> std::result::Result<(), String> {
        Ok(())
    }

    fn is_same((): (), (): ()) -> bool {
        true
    }

    fn finish(&self, mut state: Moments, _: Option<()>) -> std::result::Result<Value, String> {
        let variance = state.variance(self.sample);
        Ok(match variance {
            // An infinite value makes the population forms of one value undefined too.
            None => Value::Null,
            Some(variance) if self.root => Value::Real(variance.sqrt()),
            Some(variance) => Value::Real(variance),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[f64]) -> Moments {
        let mut moments = Moments::default();
        values.iter().for_each(|value| moments.push(Twofold::of(*value)));
        moments
    }

    fn shipped(mut moments: Moments) -> Moments {
        let mut bytes = Vec::new();
        moments.write(&mut bytes);
        Moments::read(&mut Reader(&bytes)).expect("own bytes")
    }

    #[test]
    fn known_values() {
        assert_eq!(of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).variance(false), Some(4.0));
        assert_eq!(of(&[]).variance(false), None);
        assert_eq!(of(&[3.0]).variance(true), None);
        assert_eq!(of(&[3.0]).variance(false), Some(0.0));
        // NIST's NumAcc3 and NumAcc4 in small: a large offset costs nothing.
        assert_eq!(
            of(&[10_000_000.2, 10_000_000.1, 10_000_000.3]).variance(true).map(|v| (v * 1e7).round()),
            Some(1e5)
        );
        assert_eq!(of(&vec![0.1; 1000]).variance(true), Some(0.0));
        assert_eq!(of(&[1e308, 1e308, 1e308]).variance(true), Some(0.0));
        assert_eq!(of(&[1e308, -1e308]).variance(true), Some(f64::INFINITY));
        assert_eq!(of(&[1.0, f64::INFINITY, 2.0]).variance(true), None);
    }

    #[test]
    fn integers_keep_their_64_bits() {
        let mut moments = Moments::default();
        for value in [i64::MAX, i64::MAX - 1, i64::MAX - 2] {
            moments.push(Twofold::of_integer(value));
        }
        assert_eq!(moments.variance(true), Some(1.0));
        let mut wide = Moments::default();
        wide.push(Twofold::of_integer(i64::MIN));
        wide.push(Twofold::of_integer(i64::MAX));
        // ((2^64 - 1) / 2)^2, rounded.
        assert_eq!(wide.variance(false), Some(2f64.powi(126)));
    }

    /// (n sum x^2 - (sum x)^2) / (n (n - 1)) in integers.
    #[allow(clippy::cast_precision_loss)]
    fn naive(values: &[i64]) -> f64 {
        let n = values.len() as i128;
        let sum: i128 = values.iter().map(|x| i128::from(*x)).sum();
        let squares: i128 = values.iter().map(|x| i128::from(*x) * i128::from(*x)).sum();
        (n * squares - sum * sum) as f64 / (n * (n - 1)) as f64
    }

    proptest! {
        #[test]
        fn agrees_with_integers(values in prop::collection::vec(-1_000_000_000_000i64..1_000_000_000_000, 2..300)) {
            let mut moments = Moments::default();
            values.iter().for_each(|value| moments.push(Twofold::of_integer(*value)));
            let (mine, theirs) = (moments.variance(true).expect("two"), naive(&values));
            prop_assert!((mine - theirs).abs() <= theirs * 1e-15, "{} {}", mine, theirs);
        }

        #[test]
        fn splitting_and_order_change_nothing(
            values in prop::collection::vec(-1e9f64..1e9, 0..300),
            cuts in prop::collection::vec(0usize..300, 2),
        ) {
            let (a, b) = (cuts[0].min(values.len()), cuts[1].min(values.len()));
            let (a, b) = (a.min(b), a.max(b));
            let mut merged = shipped(of(&values[b..]));
            merged.merge(shipped(of(&values[..a]))).expect("no problem");
            merged.merge(shipped(of(&values[a..b]))).expect("no problem");
            prop_assert_eq!(merged.variance(true).map(f64::to_bits), of(&values).variance(true).map(f64::to_bits));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Some(mut moments) = Moments::read(&mut Reader(&bytes)) {
                let other = moments.clone();
                moments.merge(other).expect("no problem");
                moments.variance(true);
            }
        }
    }
}
