//! Exact sums of integers and doubles, whatever their order and however they are split over nodes.
//!
//! SQLite adds doubles with Kahan-Babuska-Neumaier compensation, so its last bit depends on the
//! order of the rows. A union has no order of its own; this sum is the correctly rounded one, the
//! same for every split. Doubles go into a fixed-point accumulator that spans their whole range
//! (Kulisch); integers, also those that are doubles, into 128 bits.

/// Limbs of 32 bits, the lowest of weight 2^-1088; 1024 + 1088 + 128 bits leave room for 2^64
/// additions and more.
const LIMBS: usize = 70;
/// Weight of limb 0, as a power of two, negated.
const BIAS: i32 = 1088;
/// Additions between two carry passes: each adds less than 2^32 to a limb of 63 bits.
const CARRY_EVERY: u32 = 1 << 29;

/// The state of sum, total and avg.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExactSum {
    /// Values added (NULL excluded).
    pub(crate) count: i64,
    /// Whether anything but an integer was added.
    pub(crate) real: bool,
    integers: i128,
    positive_infinity: bool,
    negative_infinity: bool,
    reals: Option<Box<Accumulator>>,
}

#[derive(Debug, Clone)]
struct Accumulator {
    limbs: [i64; LIMBS],
    pending: u32,
}

impl Default for Accumulator {
    fn default() -> Self {
        Accumulator { limbs: [0; LIMBS], pending: 0 }
    }
}

impl Accumulator {
    fn add(&mut self, value: f64) {
        let bits = value.to_bits();
        let exponent = i32::try_from((bits >> 52) & 0x7ff).unwrap_or_default();
        let fraction = bits & ((1 << 52) - 1);
        let (mantissa, power) = if exponent == 0 { (fraction, -1074) } else { (fraction | (1 << 52), exponent - 1075) };
        self.add_scaled(u128::from(mantissa), power, value.is_sign_negative());
    }

    /// Add `magnitude * 2^power`; the magnitude has at most 96 bits.
    fn add_scaled(&mut self, magnitude: u128, power: i32, negative: bool) {
        let position = usize::try_from(power + BIAS).unwrap_or_default();
        let (limb, shift) = (position / 32, position % 32);
        let mut rest = magnitude << shift;
        let mut at = limb;
        while rest != 0 && at < LIMBS {
            let chunk = i64::try_from(rest & 0xffff_ffff).unwrap_or_default();
            self.limbs[at] += if negative { -chunk } else { chunk };
            rest >>= 32;
            at += 1;
        }
        self.pending += 1;
        if self.pending >= CARRY_EVERY {
            self.carry();
        }
    }

    /// Bring every limb but the last into 0..2^32; the last keeps the sign.
    fn carry(&mut self) {
        let mut carry = 0i64;
        for (i, limb) in self.limbs.iter_mut().enumerate() {
            let sum = *limb + carry;
            if i + 1 == LIMBS {
                *limb = sum;
            } else {
                *limb = sum & 0xffff_ffff;
                carry = sum >> 32;
            }
        }
        self.pending = 0;
    }

    fn merge(&mut self, other: &Accumulator) {
        let mut other = other.clone();
        other.carry();
        self.carry();
        for (mine, theirs) in self.limbs.iter_mut().zip(other.limbs) {
            *mine += theirs;
        }
        self.pending = 1;
    }

    /// Whether the value is negative, and its absolute value with every limb carried.
    fn sign_and_magnitude(&self) -> (bool, Accumulator) {
        let mut work = self.clone();
        work.carry();
        let negative = work.limbs[LIMBS - 1] < 0;
        if negative {
            work.limbs.iter_mut().for_each(|limb| *limb = -*limb);
            work.carry();
        }
        (negative, work)
    }

    /// The nearest double, ties to even.
    fn round(&self) -> f64 {
        let (negative, work) = self.sign_and_magnitude();
        let bit = |at: usize| (work.limbs[at / 32] >> (at % 32)) & 1 == 1;
        let Some(top) = (0..LIMBS).rev().find(|i| work.limbs[*i] != 0) else {
            return 0.0;
        };
        let high = top * 32 + 63 - usize::try_from(work.limbs[top].leading_zeros()).unwrap_or_default();
        let lowest = usize::try_from(BIAS - 1074).unwrap_or_default();
        let low = high.saturating_sub(52).max(lowest);
        let mut mantissa = (low..=high).rev().fold(0u64, |acc, at| (acc << 1) | u64::from(bit(at)));
        if low > 0 && bit(low - 1) {
            let sticky = (0..low - 1).any(bit);
            if sticky || mantissa & 1 == 1 {
                mantissa += 1;
            }
        }
        let power = i32::try_from(low).unwrap_or_default() - BIAS;
        #[allow(clippy::cast_precision_loss)] // at most 2^53
        let magnitude = mantissa as f64 * power_of_two(power);
        if negative { -magnitude } else { magnitude }
    }
}

/// 2^power; infinite above the range of doubles.
fn power_of_two(power: i32) -> f64 {
    match power {
        1024.. => f64::INFINITY,
        -1022..1024 => f64::from_bits(u64::try_from(power + 1023).unwrap_or_default() << 52),
        _ => f64::from_bits(1u64 << u32::try_from((power + 1074).max(0)).unwrap_or_default()),
    }
}

impl ExactSum {
    /// Add an integer.
    pub(crate) fn add_integer(&mut self, value: i64) {
        self.count += 1;
        self.integers += i128::from(value);
    }

    /// Add `count` integers whose sum is `sum`.
    pub(crate) fn add_integers(&mut self, count: i64, sum: i128) {
        self.count += count;
        self.integers += sum;
    }

    /// Add a double.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
    pub(crate) fn add_real(&mut self, value: f64) {
        self.count += 1;
        self.real = true;
        // Most are integers (`1.0 * bytes`): those cost one addition. (Beyond 64 bits `as` gives an
        // end of the range; of those 2^63 alone is itself again, and is left to the other branch.)
        let integer = value as i64;
        if integer as f64 == value && integer != i64::MAX {
            self.integers += i128::from(integer);
        } else if value == f64::INFINITY {
            self.positive_infinity = true;
        } else if value == f64::NEG_INFINITY {
            self.negative_infinity = true;
        } else if value != 0.0 && !value.is_nan() {
            self.reals.get_or_insert_default().add(value);
        }
    }

    /// Add another state.
    pub(crate) fn merge(&mut self, other: &ExactSum) {
        self.count += other.count;
        self.real |= other.real;
        self.integers += other.integers;
        self.positive_infinity |= other.positive_infinity;
        self.negative_infinity |= other.negative_infinity;
        if let Some(theirs) = &other.reals {
            self.reals.get_or_insert_default().merge(theirs);
        }
    }

    /// The sum when only integers were added; None when it is not a 64-bit integer.
    pub(crate) fn integer(&self) -> Option<i64> {
        i64::try_from(self.integers).ok()
    }

    /// The sum as a double; None for infinity minus infinity (SQLite gives NULL).
    pub(crate) fn double(&self) -> Option<f64> {
        match (self.positive_infinity, self.negative_infinity) {
            (true, true) => return None,
            (true, false) => return Some(f64::INFINITY),
            (false, true) => return Some(f64::NEG_INFINITY),
            (false, false) => {}
        }
        let mut all = self.reals.as_deref().cloned().unwrap_or_default();
        let magnitude = self.integers.unsigned_abs();
        let negative = self.integers < 0;
        all.add_scaled(magnitude & 0xffff_ffff_ffff_ffff, 0, negative);
        all.add_scaled(magnitude >> 64, 64, negative);
        Some(all.round())
    }

    /// The state as bytes, short where the values are of similar size.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let reals = self.reals.as_ref().map(|reals| reals.sign_and_magnitude());
        let flags = u8::from(self.real)
            | u8::from(self.positive_infinity) << 1
            | u8::from(self.negative_infinity) << 2
            | u8::from(reals.is_some()) << 3
            | u8::from(reals.as_ref().is_some_and(|(negative, _)| *negative)) << 4;
        let mut out = vec![flags];
        out.extend(self.count.to_le_bytes());
        out.extend(self.integers.to_le_bytes());
        if let Some((_, reals)) = &reals {
            let first = reals.limbs.iter().position(|limb| *limb != 0).unwrap_or(0);
            let last = reals.limbs.iter().rposition(|limb| *limb != 0).map_or(first, |at| at + 1);
            out.push(u8::try_from(first).unwrap_or_default());
            out.push(u8::try_from(last - first).unwrap_or_default());
            for limb in &reals.limbs[first..last] {
                if *limb >= 0 && *limb <= 0xffff_ffff {
                    out.push(0);
                    out.extend(u32::try_from(*limb).unwrap_or_default().to_le_bytes());
                } else {
                    out.push(1);
                    out.extend(limb.to_le_bytes());
                }
            }
        }
        out
    }

    /// Read a state; None when the bytes are not one.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<ExactSum> {
        fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
            let (head, rest) = bytes.split_first_chunk::<N>()?;
            *bytes = rest;
            Some(*head)
        }
        let mut bytes = bytes;
        let [flags] = take::<1>(&mut bytes)?;
        let mut sum = ExactSum {
            count: i64::from_le_bytes(take(&mut bytes)?),
            real: flags & 1 != 0,
            integers: i128::from_le_bytes(take(&mut bytes)?),
            positive_infinity: flags & 2 != 0,
            negative_infinity: flags & 4 != 0,
            reals: None,
        };
        if flags & 8 != 0 {
            let [first, len] = take::<2>(&mut bytes)?;
            let mut reals = Accumulator::default();
            for at in usize::from(first)..usize::from(first) + usize::from(len) {
                let limb = match take::<1>(&mut bytes)? {
                    [0] => i64::from(u32::from_le_bytes(take(&mut bytes)?)),
                    _ => i64::from_le_bytes(take(&mut bytes)?),
                };
                // A limb that does not come from `carry` could overflow a later addition.
                let sane = (0..1 << 32).contains(&limb) || (at + 1 == LIMBS && limb.unsigned_abs() < 1 << 60);
                *reals.limbs.get_mut(at).filter(|_| sane)? = if flags & 16 != 0 { -limb } else { limb };
            }
            sum.reals = Some(Box::new(reals));
        }
        bytes.is_empty().then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum_of(values: &[f64]) -> ExactSum {
        let mut sum = ExactSum::default();
        values.iter().for_each(|value| sum.add_real(*value));
        sum
    }

    #[test]
    fn cancels_exactly() {
        assert_eq!(sum_of(&[1e308, 1e308, -1e308, 1.0, -1e308]).double(), Some(1.0));
        assert_eq!(sum_of(&[1e16, 1.0, -1e16]).double(), Some(1.0));
        assert_eq!(sum_of(&[-0.1, -0.2, -0.3]).double(), Some(-0.6));
        assert_eq!(sum_of(&[f64::MAX, f64::MAX]).double(), Some(f64::INFINITY));
        assert_eq!(sum_of(&[5e-324, 5e-324]).double(), Some(1e-323));
        assert_eq!(sum_of(&[f64::INFINITY, f64::NEG_INFINITY]).double(), None);
    }

    #[test]
    fn integers_stay_exact_past_64_bits() {
        let mut sum = ExactSum::default();
        sum.add_integer(i64::MAX);
        sum.add_integer(1);
        assert_eq!(sum.integer(), None);
        sum.add_integer(-2);
        assert_eq!(sum.integer(), Some(i64::MAX - 1));
        sum.add_real(0.5);
        assert_eq!(sum.double(), Some(9_223_372_036_854_775_806.5));
    }

    #[test]
    fn doubles_that_are_integers_stay_exact_and_doubles() {
        // 2^63 and beyond do not fit into 64 bits.
        let edge = 9_223_372_036_854_775_808.0;
        for values in [[1e15, 0.5], [edge, -0.25], [-edge, 0.25], [edge * 4.0, 3.0], [-0.0, 0.0], [1e300, -1.0]] {
            let mut kulisch = Accumulator::default();
            values.iter().filter(|value| **value != 0.0).for_each(|value| kulisch.add(*value));
            let sum = sum_of(&values);
            assert!(sum.real);
            assert_eq!(sum.double(), Some(kulisch.round()), "{values:?}");
            assert_eq!(ExactSum::from_bytes(&sum.to_bytes()).and_then(|sum| sum.double()), sum.double());
        }
    }

    #[test]
    fn damaged_states_are_refused() {
        let bytes = sum_of(&[0.1, -7.0]).to_bytes();
        assert!(ExactSum::from_bytes(&bytes[..bytes.len() - 1]).is_none());
        assert!(ExactSum::from_bytes(&[8]).is_none());
        let mut extra = bytes.clone();
        extra.push(0);
        assert!(ExactSum::from_bytes(&extra).is_none());
    }

    proptest! {
        #[test]
        fn one_value_is_itself(value in any::<f64>().prop_filter("finite", |v| v.is_finite() && *v != 0.0)) {
            prop_assert_eq!(sum_of(&[value]).double(), Some(value));
        }

        #[test]
        fn splitting_changes_nothing(values in prop::collection::vec(any::<f64>().prop_filter("finite", |v| v.is_finite()), 0..40), at in 0usize..40) {
            let (left, right) = values.split_at(at.min(values.len()));
            let mut merged = ExactSum::from_bytes(&sum_of(right).to_bytes()).expect("own bytes");
            merged.merge(&ExactSum::from_bytes(&sum_of(left).to_bytes()).expect("own bytes"));
            prop_assert_eq!(merged.double().map(f64::to_bits), sum_of(&values).double().map(f64::to_bits));
        }

        #[test]
        fn two_values_round_as_ieee(a in any::<f64>().prop_filter("finite", |v| v.is_finite()), b in any::<f64>().prop_filter("finite", |v| v.is_finite())) {
            let sum = sum_of(&[a, b]).double().expect("finite");
            prop_assert!(sum == a + b, "{sum} {}", a + b);
        }
    }
}
