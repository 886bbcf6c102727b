//! What a window keeps of each rank: sums that merge by addition; and whether the time in calls
//! shows the wait.

use serde::{Deserialize, Serialize};
use stats::{Mean, Moments};

/// Whether the time inside the calls shows the wait for the other ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Waits {
    /// Nobody left before everybody had entered: durations hold the wait.
    Seen,
    /// The clocks cannot tell (all entries lie within their bounds): durations are used where they
    /// are long.
    Assumed,
    /// Ranks leave before others enter: the calls only enqueue. Entry times alone are evidence.
    Enqueued,
    /// Calls of a blocking library whose times do not fit together: the numbering of the ranks'
    /// calls does not agree, or a clock is wrong by more than its bound. Nothing follows from them.
    Inconsistent,
}

/// What a window keeps of one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Tally {
    /// Time in the calls.
    pub(crate) duration: Mean,
    /// Aligned entry minus the first entry.
    pub(crate) lateness: Mean,
    /// Duration minus the group's shortest.
    pub(crate) wait: Mean,
    /// How much less this rank waited than the median of the others: clock-free lateness.
    pub(crate) less_wait: Moments,
    /// How much later it entered than the median of the others.
    pub(crate) later: Moments,
    /// Its compute time.
    pub(crate) compute: Mean,
    /// How much more compute time it took than the median of the others of its class.
    pub(crate) more_compute: Moments,
    /// How much less its compute time may be, where it was derived from aligned entries,
    pub(crate) compute_less: Mean,
    /// and how much more.
    pub(crate) compute_more: Mean,
}

impl Tally {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.duration.merge(&other.duration);
        self.lateness.merge(&other.lateness);
        self.wait.merge(&other.wait);
        self.less_wait.merge(&other.less_wait);
        self.later.merge(&other.later);
        self.compute.merge(&other.compute);
        self.more_compute.merge(&other.more_compute);
        self.compute_less.merge(&other.compute_less);
        self.compute_more.merge(&other.compute_more);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    proptest! {
        #[test]
        fn windows_add_up_in_any_order(values in prop::collection::vec(-1_000_000i32..1_000_000, 0..60), cuts in (any::<Index>(), any::<Index>())) {
            // Whole numbers: sums are exact, so that any difference shows.
            let n = values.len();
            let (mut a, mut b) = (cuts.0.index(n + 1), cuts.1.index(n + 1));
            if a > b {
                std::mem::swap(&mut a, &mut b);
            }
            let of = |part: &[i32]| {
                let mut moments = Moments::default();
                part.iter().for_each(|v| moments.add(f64::from(*v)));
                Tally { less_wait: moments, more_compute: moments, ..Tally::default() }
            };
            let sum = |x: Tally, y: &Tally| {
                let mut sum = x;
                sum.merge(y);
                sum
            };
            let (x, y, z) = (of(&values[..a]), of(&values[a..b]), of(&values[b..]));
            let all = of(&values);
            prop_assert_eq!(sum(sum(x, &y), &z), all);
            prop_assert_eq!(sum(x, &sum(y, &z)), all);
            prop_assert_eq!(sum(sum(z, &x), &y), all);
            prop_assert_eq!(sum(all, &Tally::default()), all);
        }
    }
}
