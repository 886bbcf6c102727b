//! A rank as reports name it, and sets of ranks as ranges: what a report says of many ranks costs
//! as much as it has gaps, not as it has ranks.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A process of the job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct RankRef {
    /// Its rank in the largest communicator that it belongs to.
    pub rank: i32,
    /// Its host.
    pub node: String,
    /// Its process there.
    pub pid: i64,
}

/// A set of ranks of one communicator: inclusive ranges, in order, that neither overlap nor touch.
/// Written as `0-3,7,9-8191`; serialised as a list of pairs, `[[0,3],[7,7],[9,8191]]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Ranks(Vec<(i32, i32)>);

impl Ranks {
    /// The ranks from 0 up to but not including `size` that are not in `known`: at most one range
    /// more than `known` has ranks, whatever `size` is.
    #[must_use]
    pub fn all_but(known: &BTreeSet<i32>, size: i32) -> Self {
        let (mut gaps, mut from) = (Vec::new(), 0);
        for &rank in known.range(0..size.max(0)) {
            if rank > from {
                gaps.push((from, rank - 1));
            }
            from = rank + 1;
        }
        if from < size {
            gaps.push((from, size - 1));
        }
        Self(gaps)
    }

    /// Leaves the first so many ranges; whether there were more.
    pub fn keep_first(&mut self, ranges: usize) -> bool {
        let more = self.0.len() > ranges;
        self.0.truncate(ranges);
        more
    }

    /// Add the ranks of another set.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend(&other.0);
        self.0.sort_unstable();
        self.0.dedup_by(|next, before| {
            let joins = i64::from(next.0) <= i64::from(before.1) + 1;
            if joins {
                before.1 = before.1.max(next.1);
            }
            joins
        });
    }

    /// The ranks of its first ranges.
    #[must_use]
    pub fn first_ranges(&self, most: usize) -> Self {
        Self(self.0.iter().take(most).copied().collect())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many ranks.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(first, last)| u64::from(last.abs_diff(*first)) + 1).sum()
    }

    /// The inclusive ranges, in order.
    #[must_use]
    pub fn ranges(&self) -> &[(i32, i32)] {
        &self.0
    }
}

impl FromIterator<i32> for Ranks {
    fn from_iter<T: IntoIterator<Item = i32>>(ranks: T) -> Self {
        let mut set = Self::default();
        set.extend(&Self(ranks.into_iter().map(|rank| (rank, rank)).collect()));
        set
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            if first == last { write!(f, "{comma}{first}")? } else { write!(f, "{comma}{first}-{last}")? }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_written_short() {
        let known = BTreeSet::from([4, 5, 6, 8, 9_000]);
        let ranks = Ranks::all_but(&known, 8_192);
        assert_eq!((ranks.to_string().as_str(), ranks.count()), ("0-3,7,9-8191", 8_188));
        assert_eq!(serde_json::to_string(&ranks).unwrap(), "[[0,3],[7,7],[9,8191]]");
        assert_eq!(Ranks::all_but(&BTreeSet::new(), i32::MAX).count(), i32::MAX as u64);
        assert!(Ranks::all_but(&known, -5).is_empty());
    }

    proptest! {
        #[test]
        fn they_are_sets(
            known in proptest::collection::btree_set(-5i32..60, 0..40),
            size in 0i32..50,
            more in proptest::collection::btree_set(-5i32..60, 0..40),
        ) {
            let numbers = |set: &Ranks| set.ranges().iter().flat_map(|(first, last)| *first..=*last).collect::<BTreeSet<_>>();
            let mut ranks = Ranks::all_but(&known, size);
            let mut expected: BTreeSet<i32> = (0..size).filter(|rank| !known.contains(rank)).collect();
            prop_assert_eq!(numbers(&ranks), expected.clone());
            ranks.extend(&more.iter().copied().collect());
            expected.extend(more);
            prop_assert_eq!(ranks.count(), expected.len() as u64);
            prop_assert_eq!(numbers(&ranks), expected);
            prop_assert!(ranks.ranges().windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{:?}", ranks);
        }
    }
}
