//! Robust statistics of verdicts: medians, deviations, the z score with its floors, the consistency
//! figure.
//!
//! Owns numbers only: values in, figures out, in linear time. What they are applied to lies in
//! `verdicts` and `causes`, the thresholds in `observed::Rules`.

use std::collections::HashMap;

use observed::Rules;

/// Scales the median absolute deviation to a standard deviation for normal data (1 / Phi^-1(3/4)).
const MAD_TO_SIGMA: f64 = 1.4826;
/// Scales the mean absolute deviation to a standard deviation for normal data (sqrt(pi / 2)); used
/// where the MAD is 0 (Iglewicz and Hoaglin, "How to Detect and Handle Outliers", 1993).
const MEAN_AD_TO_SIGMA: f64 = 1.253_314;
/// A z beyond this says nothing more, and JSON has no infinity.
const Z_CAP: f64 = 9_999.0;

/// Median of any values; none when there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    Middle::of(values.into_iter().collect()).map(|middle| middle.median())
}

/// The values around the middle of a population: its median, and the median of what is left without
/// any one of its values. Found in linear time, where sorting would take longer: medians are what an
/// analysis spends its time on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Middle {
    count: usize,
    below: f64,
    at: f64,
    above: f64,
}

impl Middle {
    /// Of any values; none when there are none.
    pub fn of(mut all: Vec<f64>) -> Option<Self> {
        let count = all.len();
        if count == 0 {
            return None;
        }
        let (below, at, above) = all.select_nth_unstable_by(count / 2, f64::total_cmp);
        let at = *at;
        let below = below.iter().copied().max_by(f64::total_cmp).unwrap_or(at);
        let above = above.iter().copied().min_by(f64::total_cmp).unwrap_or(at);
        Some(Self { count, below, at, above })
    }

    /// The median.
    #[must_use]
    pub fn median(&self) -> f64 {
        if self.count.is_multiple_of(2) { (self.below + self.at) / 2.0 } else { self.at }
    }

    /// The median of the others of one of the values; none where it is the only one.
    pub fn without(&self, value: f64) -> Option<f64> {
        let order = value.total_cmp(&self.at);
        match self.count {
            1 => None,
            count if count.is_multiple_of(2) => Some(if value > self.below { self.below } else { self.at }),
            _ if order.is_lt() => Some((self.at + self.above) / 2.0),
            _ if order.is_gt() => Some((self.below + self.at) / 2.0),
            _ => Some((self.below + self.above) / 2.0),
        }
    }
}

/// Nearest-rank quantile, `q` in 0..=1.
pub fn quantile(values: impl IntoIterator<Item = f64>, q: f64) -> Option<f64> {
    let mut all: Vec<f64> = values.into_iter().collect();
    all.sort_by(f64::total_cmp);
    let last = all.len().checked_sub(1)?;
    let at = (q.clamp(0.0, 1.0) * last as f64).round() as usize;
    all.get(at).copied()
}

/// z of a gap to the median of others, by their median absolute deviation or, where that is 0, the
/// mean one: `gap / scale` with `scale = max(1.4826 MAD, 2 % of |median|, floor)`. Same units for
/// all arguments.
fn z_of(gap: f64, mid: f64, mad: f64, mean: impl Fn() -> f64, floor: f64) -> f64 {
    let spread = if mad > 0.0 { MAD_TO_SIGMA * mad } else { MEAN_AD_TO_SIGMA * mean() };
    let scale = spread.max(Rules::SCALE_FLOOR * mid.abs()).max(floor);
    if gap == 0.0 { 0.0 } else { (gap / scale).clamp(-Z_CAP, Z_CAP) }
}

/// How far values lie above the median of the others, in robust standard deviations. What is needed
/// of the others is found when it is first asked for, and once more for each different median of
/// the others (three at most).
#[derive(Debug, Default)]
pub struct Population {
    all: Vec<f64>,
    middle: Option<Middle>,
    /// By the bits of a median of the others: the distances of all values to it, and their sum.
    apart: HashMap<u64, (Option<Middle>, f64)>,
}

impl Population {
    /// Of any values.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Self {
        Self { all: values.into_iter().collect(), ..Self::default() }
    }

    /// How many values there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The median of the others of a value of the population; of all of it where there is no value.
    pub fn median_of_others(&mut self, own: Option<f64>) -> Option<f64> {
        self.middle = self.middle.or_else(|| Middle::of(self.all.clone()));
        self.middle.and_then(|middle| own.map_or(Some(middle.median()), |own| middle.without(own)))
    }

    /// z of `x` over the others of `own`, a value of the population. None when there are fewer than
    /// two others.
    pub fn z(&mut self, own: f64, x: f64, floor: f64) -> Option<f64> {
        let others = self.count().checked_sub(1).filter(|others| *others >= 2)?;
        let mid = self.median_of_others(Some(own))?;
        let (apart, sum) = self.apart.entry(mid.to_bits()).or_insert_with(|| {
            let apart: Vec<f64> = self.all.iter().map(|value| (value - mid).abs()).collect();
            let sum = apart.iter().sum();
            (Middle::of(apart), sum)
        });
        let own = (own - mid).abs();
        let mad = apart.and_then(|apart| apart.without(own))?;
        Some(z_of(x - mid, mid, mad, || (*sum - own).max(0.0) / others as f64, floor))
    }
}

/// Running count and sum of values. Mergeable by addition.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mean {
    /// How many.
    pub n: f64,
    sum: f64,
}

impl Mean {
    /// Take in one.
    pub fn add(&mut self, x: f64) {
        self.n += 1.0;
        self.sum += x;
    }

    /// Take in those of another.
    pub fn merge(&mut self, other: &Self) {
        self.n += other.n;
        self.sum += other.sum;
    }

    /// None where there are no values.
    pub fn mean(&self) -> Option<f64> {
        (self.n > 0.0).then(|| self.sum / self.n)
    }
}

/// Running count, sum, sum of squares and count of positive values: what a window keeps of one
/// figure of one rank. Mergeable by addition.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moments {
    /// How many.
    pub n: f64,
    /// Their sum,
    pub sum: f64,
    /// that of their squares,
    pub squares: f64,
    /// and how many are above 0.
    pub positive: f64,
}

impl Moments {
    /// Of these values.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let mut moments = Self::default();
        values.iter().for_each(|x| moments.add(*x));
        moments
    }

    /// Take in one.
    pub fn add(&mut self, x: f64) {
        self.n += 1.0;
        self.sum += x;
        self.squares += x * x;
        self.positive += f64::from(u8::from(x > 0.0));
    }

    /// Take in those of another.
    pub fn merge(&mut self, other: &Self) {
        self.n += other.n;
        self.sum += other.sum;
        self.squares += other.squares;
        self.positive += other.positive;
    }

    /// None where there are no values.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.n > 0.0).then(|| self.sum / self.n)
    }

    /// How surely the mean differs from a usual one (in the values' unit) given how the single
    /// values scatter: Student's t of the mean, brought to the scale of a standard normal deviate
    /// of the same tail (Wallace, "Bounds on normal approximations to Student's and the chi-square
    /// distributions", 1959). A few spikes among many zeros give about the root of their number
    /// however tall they are; a rank that is late every time gives a large figure soon. Capped as z
    /// is. None below two values.
    pub fn consistency(&self, usual: f64) -> Option<f64> {
        if self.n < 2.0 {
            return None;
        }
        let (freedom, mean) = (self.n - 1.0, self.sum / self.n);
        let apart = mean - usual;
        if apart == 0.0 {
            return Some(0.0);
        }
        let variance = ((self.squares - self.n * mean * mean) / freedom).max(0.0);
        let t = (apart / (variance / self.n).sqrt()).clamp(-Z_CAP, Z_CAP);
        let normal = (freedom * (t * t / freedom).ln_1p()).sqrt() * (8.0 * freedom + 1.0) / (8.0 * freedom + 3.0);
        Some(normal.copysign(apart))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, over others that the value is not among.
    fn robust_z(x: f64, others: &[f64], floor: f64) -> Option<f64> {
        let mid = median(others.iter().copied()).filter(|_| others.len() >= 2)?;
        let mad = median(others.iter().map(|o| (o - mid).abs()))?;
        let mean = || others.iter().map(|o| (o - mid).abs()).sum::<f64>() / others.len() as f64;
        Some(z_of(x - mid, mid, mad, mean, floor))
    }

    #[test]
    fn z_is_the_published_formula_where_no_floor_binds() {
        // Others 1..=9: median 5, MAD 2. 0.6745 * (20 - 5) / 2 = 5.05875.
        let others: Vec<f64> = (1..=9).map(f64::from).collect();
        let z = robust_z(20.0, &others, 0.0).unwrap();
        assert!((z - 5.0588).abs() < 1e-3, "{z}");
    }

    #[test]
    fn floors_bind_in_turn() {
        let tight = [100.0, 100.001, 99.999, 100.0];
        // 2 % of the median: (103 - 100) / 2.
        assert!((robust_z(103.0, &tight, 0.0).unwrap() - 1.5).abs() < 1e-6);
        // The clock bound: 3 / 30.
        assert!((robust_z(103.0, &tight, 30.0).unwrap() - 0.1).abs() < 1e-6);
        // MAD 0: the mean absolute deviation of 0 0 0 0 10 is 2.
        let flat = [0.0, 0.0, 0.0, 0.0, 10.0];
        assert!((robust_z(50.0, &flat, 0.0).unwrap() - 50.0 / (2.0 * 1.253_314)).abs() < 1e-6);
        // Nothing to scale by at all: capped, not infinite.
        assert_eq!(robust_z(1.0, &[0.0, 0.0, 0.0], 0.0), Some(Z_CAP));
        assert_eq!(robust_z(1.0, &[0.0], 0.0), None);
    }

    #[test]
    fn spikes_are_not_consistent_and_a_steady_excess_is() {
        let mut spikes = Moments::default();
        let mut steady = Moments::default();
        for i in 0..100 {
            spikes.add(if i % 50 == 0 { 1e9 } else { 0.0 });
            steady.add(1.0 + f64::from(i % 3) * 0.1);
        }
        assert!(spikes.consistency(0.0).unwrap() < 2.0);
        assert!(steady.consistency(0.0).unwrap() > 20.0);
        // What everybody else has as well is nothing of its own.
        assert!(steady.consistency(1.1).unwrap().abs() < 2.0 && steady.consistency(1.2).unwrap() < -5.0);
        // Student's t of -3.078 with one degree of freedom has a tail of 10 %, as -1.2816 has.
        let mut two = Moments::default();
        two.add(-3.078 - 1.0);
        two.add(-3.078 + 1.0);
        assert!((two.consistency(0.0).unwrap() + 1.2816).abs() < 0.1, "{two:?}");
    }

    /// Median of a sorted slice; none when it is empty.
    fn median_sorted(sorted: &[f64]) -> Option<f64> {
        let n = sorted.len();
        match n {
            0 => None,
            _ if n % 2 == 1 => Some(sorted[n / 2]),
            _ => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
        }
    }

    proptest! {
        #[test]
        fn median_is_the_middle_of_the_sorted(all in prop::collection::vec(-1e6..1e6f64, 0..40)) {
            let mut sorted = all.clone();
            sorted.sort_by(f64::total_cmp);
            prop_assert_eq!(median(all), median_sorted(&sorted));
        }

        #[test]
        fn each_of_a_population_has_the_z_of_it_over_the_others(
            // Few different values: medians and deviations that are equal, and 0.
            all in prop::collection::vec(prop_oneof![(-3i32..3).prop_map(f64::from), -1e6..1e6f64], 1..30),
            less in 0.0..3.0f64,
            floor in 0.0..2.0f64,
        ) {
            let mut population = Population::new(all.iter().copied());
            for (at, own) in all.iter().enumerate() {
                let mut others = all.clone();
                others.remove(at);
                prop_assert_eq!(population.median_of_others(Some(*own)), median(others.iter().copied()));
                let (one, z) = (population.z(*own, own - less, floor), robust_z(own - less, &others, floor));
                let close = one.zip(z).is_none_or(|(one, z)| (one - z).abs() <= 1e-9 * z.abs().max(1.0));
                prop_assert!(one.is_some() == z.is_some() && close, "{:?} {:?}", one, z);
            }
            prop_assert_eq!(population.median_of_others(None), median(all));
        }

        #[test]
        fn z_does_not_depend_on_the_unit(others in prop::collection::vec(1.0..1e3f64, 3..20), x in 0.0..1e4f64) {
            let a = robust_z(x, &others, 0.0).unwrap();
            let scaled: Vec<f64> = others.iter().map(|o| o * 1e6).collect();
            let b = robust_z(x * 1e6, &scaled, 0.0).unwrap();
            prop_assert!((a - b).abs() <= 1e-6 * a.abs().max(1.0));
        }
    }
}
