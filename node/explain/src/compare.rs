//! Two spans of a job compared: which figures changed, by how much, and how sure that is.
//!
//! Pure. A figure is a list of values of each side, one a block of time. The shift is the
//! Hodges-Lehmann estimate (the median of all differences of a value after and one before), its
//! interval that of the Mann-Whitney test (Hollander and Wolfe, "Nonparametric Statistical
//! Methods", 2nd ed. 1999, 4.2 and 4.3, normal approximation), the effect Cliff's delta (1993).
//! Consecutive blocks are correlated: the variance is multiplied by the factor that their first
//! autocorrelation gives (Bayley and Hammersley, "The effective number of independent observations
//! in an autocorrelated time series", 1946). Intervals hold for all figures together (Bonferroni).

use serde::Serialize;
use stats::median;

/// Most values of a side: with more, blocks are to be made longer.
pub const MOST: usize = 512;
/// Fewest values of a side.
const FEWEST: usize = 4;
/// Probability that an interval of any figure misses the true value.
const MISSES: f64 = 0.05;
/// Differences below this part of the figure are named as too small to matter.
const SMALL: f64 = 0.01;

/// One figure of both sides.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figure {
    /// Its name: `compute time`.
    pub measure: String,
    /// Its object: `rank 3`.
    pub of: String,
    /// `ns`, `%`, `a second`.
    pub unit: &'static str,
    /// Values before.
    pub before: Vec<f64>,
    /// Values after.
    pub after: Vec<f64>,
}

/// The comparison of a figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// See [`Figure::measure`].
    pub measure: String,
    /// See [`Figure::of`].
    pub of: String,
    /// See [`Figure::unit`].
    pub unit: &'static str,
    /// Median before; none without values.
    pub before: Option<f64>,
    /// Median after.
    pub after: Option<f64>,
    /// Values on both sides.
    pub values: [usize; 2],
    /// The difference; none where there are too few values.
    pub shift: Option<Shift>,
    /// The outcome.
    pub verdict: Outcome,
}

/// A difference with its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Shift {
    /// Hodges-Lehmann estimate.
    pub estimate: f64,
    /// The true shift is not below this,
    pub low: f64,
    /// nor above this, at 95 % for all figures together.
    pub high: f64,
    /// Cliff's delta: how often a value after is more than one before, less how often it is less.
    pub effect: f64,
}

/// Whether a figure changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is more.
    More,
    /// It is less.
    Less,
    /// It differs, by less than 1 %.
    Small,
    /// No difference that this data can show.
    NotShown,
    /// Too few values on one side.
    TooFew,
    /// There only before, or only after.
    OneSided,
}

/// Compares all figures; those that changed come first, the largest relative change before.
#[must_use]
pub fn compare(figures: &[Figure]) -> Vec<Change> {
    let tested = figures.iter().filter(|f| f.before.len() >= FEWEST && f.after.len() >= FEWEST).count();
    let z = quantile(1.0 - MISSES / 2.0 / tested.max(1) as f64);
    let mut changes: Vec<Change> = figures.iter().map(|figure| change(figure, z)).collect();
    let rank = |change: &Change| {
        let changed = matches!(change.verdict, Outcome::More | Outcome::Less);
        (changed, change.shift.zip(change.before).map_or(0.0, |(s, b)| (s.estimate / b.abs().max(1e-9)).abs()))
    };
    changes.sort_by(|a, b| {
        let (a, b) = (rank(a), rank(b));
        b.0.cmp(&a.0).then(b.1.total_cmp(&a.1))
    });
    changes
}

fn change(figure: &Figure, z: f64) -> Change {
    let (before, after) = (&figure.before, &figure.after);
    let shift = shift(before, after, z);
    let usual = median(before.iter().copied()).unwrap_or(0.0).abs();
    let verdict = match shift {
        _ if before.is_empty() != after.is_empty() => Outcome::OneSided,
        None => Outcome::TooFew,
        Some(s) if s.low <= 0.0 && s.high >= 0.0 => Outcome::NotShown,
        Some(s) if s.estimate.abs() < SMALL * usual => Outcome::Small,
        Some(s) if s.estimate > 0.0 => Outcome::More,
        Some(_) => Outcome::Less,
    };
    Change {
        measure: figure.measure.clone(),
        of: figure.of.clone(),
        unit: figure.unit,
        before: median(before.iter().copied()),
        after: median(after.iter().copied()),
        values: [before.len(), after.len()],
        shift,
        verdict,
    }
}

fn shift(before: &[f64], after: &[f64], z: f64) -> Option<Shift> {
    let finite = |values: &[f64]| values.len() >= FEWEST && values.iter().all(|value| value.is_finite());
    if !finite(before) || !finite(after) || before.len() > MOST || after.len() > MOST {
        return None;
    }
    let (n, m) = (before.len() as f64, after.len() as f64);
    let mut differences: Vec<f64> = after.iter().flat_map(|a| before.iter().map(move |b| a - b)).collect();
    differences.sort_by(f64::total_cmp);
    let more = differences.iter().filter(|d| **d > 0.0).count() as f64;
    let less = differences.iter().filter(|d| **d < 0.0).count() as f64;
    let inflation = inflation(before).max(inflation(after));
    let below = n * m / 2.0 - z * (n * m * (n + m + 1.0) / 12.0 * inflation).sqrt();
    // Too few values for an interval of this certainty: every difference is possible.
    let at = (below.floor() >= 1.0).then_some(below.floor() as usize);
    let (low, high) = match at {
        Some(at) => (differences[at - 1], differences[differences.len() - at]),
        None => (f64::MIN, f64::MAX),
    };
    Some(Shift { estimate: median(differences.iter().copied())?, low, high, effect: (more - less) / (n * m) })
}

/// By how much the variance of a mean is larger than that of independent values.
fn inflation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    if variance <= 0.0 {
        return 1.0;
    }
    let next: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    // The estimate is too low by about 1/n (Marriott and Pope 1954).
    let rho = (next / variance + 1.0 / n).clamp(0.0, 0.99);
    ((1.0 + rho) / (1.0 - rho)).min(n)
}

/// Quantile of the standard normal distribution, by halving; its distribution function by the
/// complementary error function (Abramowitz and Stegun 7.1.26, error below 1.5e-7).
fn quantile(p: f64) -> f64 {
    let tail = |z: f64| {
        let x = z / std::f64::consts::SQRT_2;
        let t = 1.0 / (1.0 + 0.327_591_1 * x);
        let poly =
            t * (0.254_829_592 + t * (-0.284_496_736 + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
        0.5 * poly * (-x * x).exp()
    };
    let (mut low, mut high) = (0.0, 8.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if tail(middle) > 1.0 - p { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn figure(before: &[f64], after: &[f64]) -> Figure {
        Figure { measure: "m".into(), of: "x".into(), unit: "ns", before: before.to_vec(), after: after.to_vec() }
    }

    /// Values around `centre` that look like noise and are the same each time.
    fn noise(centre: f64, spread: f64, seed: u64, n: usize) -> Vec<f64> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
        };
        (0..n).map(|_| centre + spread * (next() + next() + next())).collect()
    }

    #[test]
    fn the_normal_quantiles_are_those_of_tables() {
        for (p, z) in [(0.975, 1.959_964), (0.995, 2.575_829), (0.999_5, 3.290_527)] {
            assert!((quantile(p) - z).abs() < 1e-3, "{p}: {}", quantile(p));
        }
    }

    #[test]
    fn a_change_is_found_with_its_size_and_no_change_is_not() {
        let changed = &compare(&[figure(&noise(100.0, 5.0, 1, 60), &noise(110.0, 5.0, 2, 60))])[0];
        let shift = changed.shift.unwrap();
        assert_eq!(changed.verdict, Outcome::More);
        assert!((shift.estimate - 10.0).abs() < 1.5 && shift.low < 10.0 && shift.high > 10.0, "{shift:?}");
        assert!(shift.effect > 0.9, "{shift:?}");
        let same = &compare(&[figure(&noise(100.0, 5.0, 1, 60), &noise(100.0, 5.0, 2, 60))])[0];
        assert_eq!(same.verdict, Outcome::NotShown, "{same:?}");
        let small = &compare(&[figure(&noise(100.0, 0.1, 1, 60), &noise(100.5, 0.1, 2, 60))])[0];
        assert_eq!(small.verdict, Outcome::Small, "{small:?}");
    }

    #[test]
    fn too_few_values_or_one_side_give_no_shift() {
        assert_eq!(compare(&[figure(&[1.0, 2.0], &[9.0, 9.0])])[0].verdict, Outcome::TooFew);
        assert_eq!(compare(&[figure(&[], &[9.0; 9])])[0].verdict, Outcome::OneSided);
        // Four against four can never be sure at 95 % of a hundred figures together.
        let many: Vec<Figure> = (0..100).map(|_| figure(&[1.0, 1.1, 1.2, 1.3], &[9.0, 9.1, 9.2, 9.3])).collect();
        assert!(compare(&many).iter().all(|change| change.verdict == Outcome::NotShown));
    }

    /// Of hundreds of comparisons of a process with itself hardly any is called a change, also
    /// where consecutive values are strongly correlated.
    #[test]
    fn noise_is_no_change() {
        let walk = |seed: u64| {
            let mut level = 0.0;
            let steps = noise(0.0, 1.0, seed, 60);
            steps
                .iter()
                .map(|step| {
                    level = 0.8 * level + step;
                    100.0 + level
                })
                .collect::<Vec<f64>>()
        };
        let of = |values: &dyn Fn(u64) -> Vec<f64>| {
            let figures = (1..400).map(|seed| figure(&values(2 * seed), &values(2 * seed + 1)));
            figures.filter(|f| !matches!(compare(std::slice::from_ref(f))[0].verdict, Outcome::NotShown)).count()
        };
        let (independent, alike) = (of(&|seed| noise(100.0, 5.0, seed, 60)), of(&walk));
        assert!(independent <= 32 && alike <= 40, "of 399: {independent} independent, {alike} alike");
    }

    proptest! {
        #[test]
        fn an_interval_holds_its_estimate_and_is_mirrored_with_the_sides(
            before in prop::collection::vec(-1e9..1e9f64, 4..40),
            after in prop::collection::vec(-1e9..1e9f64, 4..40),
        ) {
            let there = change(&figure(&before, &after), 1.96).shift.unwrap();
            let back = change(&figure(&after, &before), 1.96).shift.unwrap();
            prop_assert!(there.low <= there.estimate && there.estimate <= there.high);
            prop_assert!((there.estimate + back.estimate).abs() <= 1e-3);
            prop_assert!((there.effect + back.effect).abs() <= 1e-9);
        }
    }
}
