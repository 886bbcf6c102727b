//! Lays stretches over intervals: each instant of an interval counts for at most one kind, the
//! first by precedence.

use std::collections::BTreeMap;
use std::sync::Arc;

use observed::Kind;

use super::evidence::{Gap, Recorded, Stretch};

/// What was seen in one or more intervals.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Covered {
    /// Length without communication.
    pub(crate) compute_ns: i64,
    /// Time by kind and by who or what.
    pub(crate) by: BTreeMap<Kind, BTreeMap<Arc<str>, Amount>>,
}

/// How much of one thing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) ns: i64,
    pub(crate) count: usize,
    pub(crate) bytes: Option<i64>,
}

impl Covered {
    pub(crate) fn of(&self, kind: Kind) -> i64 {
        self.by.get(&kind).map_or(0, |whats| whats.values().map(|amount| amount.ns).sum())
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.compute_ns += other.compute_ns;
        for (kind, whats) in &other.by {
            let mine = self.by.entry(*kind).or_default();
            for (what, amount) in whats {
                let sum = mine.entry(Arc::clone(what)).or_default();
                sum.ns += amount.ns;
                sum.count += amount.count;
                sum.bytes = add_bytes(sum.bytes, amount.bytes);
            }
        }
    }
}

/// None is not known, and adds nothing.
pub(crate) fn add_bytes(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    }
}

/// What was seen in each interval, in their order.
pub(crate) fn lay(recorded: &Recorded) -> Vec<Covered> {
    let mut stretches: Vec<&Stretch> = recorded.stretches.iter().filter(|s| s.end_ns > s.start_ns).collect();
    stretches.sort_by_key(|s| s.start_ns);
    // The latest end among all stretches up to each: lets the search for those that reach into an
    // interval stop early.
    let mut reach: Vec<i64> = stretches.iter().map(|s| s.end_ns).collect();
    for i in 1..reach.len() {
        reach[i] = reach[i].max(reach[i - 1]);
    }
    recorded
        .gaps
        .iter()
        .map(|gap| {
            let from = reach.partition_point(|end| *end <= gap.start_ns);
            let to = stretches.partition_point(|s| s.start_ns < gap.end_ns);
            over(gap, stretches.get(from..to).unwrap_or_default())
        })
        .collect()
}

fn over(gap: &Gap, stretches: &[&Stretch]) -> Covered {
    let mut covered = Covered { compute_ns: gap.end_ns - gap.start_ns, ..Covered::default() };
    let mut inside: Vec<&Stretch> = stretches
        .iter()
        .copied()
        .filter(|s| s.end_ns > gap.start_ns && s.start_ns < gap.end_ns && s.tid.is_none_or(|tid| tid == gap.tid))
        .collect();
    // Within a kind what knows its bytes says more: a request to a device, and not just that the
    // thread waited for one.
    inside.sort_by_key(|s| (s.kind, s.bytes.is_none(), s.start_ns, s.end_ns));
    let mut taken = Taken::default();
    for stretch in inside {
        let ns = taken.take(stretch.start_ns.max(gap.start_ns), stretch.end_ns.min(gap.end_ns));
        if stretch.kind == Kind::Communication {
            covered.compute_ns -= ns;
            continue;
        }
        if ns == 0 {
            continue;
        }
        let amount = covered.by.entry(stretch.kind).or_default().entry(Arc::clone(&stretch.what)).or_default();
        amount.ns += ns;
        amount.count += 1;
        amount.bytes = add_bytes(amount.bytes, stretch.bytes);
    }
    covered
}

/// Instants that are spoken for: disjoint ranges, start to end.
#[derive(Default)]
struct Taken(BTreeMap<i64, i64>);

impl Taken {
    /// Take what is free of a range; how much that was.
    fn take(&mut self, mut start_ns: i64, mut end_ns: i64) -> i64 {
        if end_ns <= start_ns {
            return 0;
        }
        let mut free = end_ns - start_ns;
        let touching: Vec<(i64, i64)> = self
            .0
            .range(..=end_ns)
            .rev()
            .take_while(|(_, end)| **end >= start_ns)
            .map(|(start, end)| (*start, *end))
            .collect();
        for (start, end) in touching {
            free -= (end.min(end_ns) - start.max(start_ns)).max(0);
            self.0.remove(&start);
            start_ns = start_ns.min(start);
            end_ns = end_ns.max(end);
        }
        self.0.insert(start_ns, end_ns);
        free
    }
}
