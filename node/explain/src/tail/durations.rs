//! Durations of requests with how many had each.

use std::collections::BTreeMap;

/// Bits behind the leading one that [`Durations::coarse`] keeps.
const COARSE_BITS: u32 = 4;

/// Durations, nanoseconds, each with how many requests had it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Durations(BTreeMap<u64, u64>);

impl Durations {
    /// Counts requests that took so long.
    pub fn add(&mut self, ns: u64, count: u64) {
        if count > 0 {
            *self.0.entry(ns).or_default() += count;
        }
    }

    /// Counts those of another as well.
    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(ns, count)| self.add(*ns, *count));
    }

    /// How many requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The shortest duration that this share of the requests, 0 to 1, does not exceed; 0 of none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> i64 {
        let needed = share * self.count() as f64;
        let mut up_to = 0;
        let reached = self.0.iter().find(|(_, count)| {
            up_to += **count;
            up_to as f64 >= needed
        });
        reached.map_or(0, |(ns, _)| i64::try_from(*ns).unwrap_or(i64::MAX))
    }

    /// How many took as long or longer.
    #[must_use]
    pub fn from(&self, ns: i64) -> u64 {
        self.0.range(u64::try_from(ns).unwrap_or(0)..).map(|(_, count)| count).sum()
    }

    /// The same, each within 3 %: in little memory.
    #[must_use]
    pub fn coarse(&self) -> Self {
        let mut coarse = Self::default();
        self.0.iter().for_each(|(ns, count)| coarse.add(rounded(*ns), *count));
        coarse
    }
}

fn rounded(ns: u64) -> u64 {
    let shift = (63 - (ns | 1).leading_zeros()).saturating_sub(COARSE_BITS);
    ((ns >> shift) << shift) | ((1 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantiles_are_durations_that_were_added() {
        let mut all = Durations::default();
        assert_eq!((all.quantile(0.99), all.count()), (0, 0));
        all.add(10, 490);
        all.add(90, 10);
        assert_eq!((all.quantile(0.5), all.quantile(0.98), all.quantile(0.99)), (10, 10, 90));
        assert_eq!((all.from(90), all.from(91), all.from(0)), (10, 0, 500));
        all.merge(&all.clone());
        assert_eq!((all.count(), all.from(11)), (1_000, 20));
    }

    proptest! {
        #[test]
        fn coarse_ones_are_as_many_and_near(durations in prop::collection::vec(0_u64..1 << 50, 1..100)) {
            let mut all = Durations::default();
            durations.iter().for_each(|ns| all.add(*ns, 1));
            prop_assert_eq!(all.coarse().count(), all.count());
            for ns in durations {
                prop_assert!(rounded(ns).abs_diff(ns) as f64 <= ns as f64 / 32.0, "{} for {}", rounded(ns), ns);
            }
        }
    }
}
