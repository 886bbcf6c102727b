//! A communicator with its members and its matched collectives.

use std::collections::BTreeMap;
use std::sync::Arc;

use observed::{ClockOffset, Coupling, Unsure};
use stats::median;

/// A rank of a communicator: one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) rank: i32,
    pub(crate) node: Arc<str>,
    pub(crate) pid: i64,
    /// Clock of its node; none when it was never measured.
    pub(crate) clock: Option<ClockOffset>,
    /// Ranks of one class do the same work.
    pub(crate) class: usize,
}

impl Member {
    /// How far two ranks' aligned times may be wrong against each other: nothing on one node, which
    /// has one clock; none when a clock is not known.
    pub(crate) fn bound_to(&self, other: &Self) -> Option<i64> {
        if self.node == other.node {
            return Some(0);
        }
        Some(self.clock?.bound_ns.saturating_add(other.clock?.bound_ns))
    }
}

/// One rank's part in a collective.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cell {
    /// Entry on the coordinator's clock (on the node's own where that is not known).
    pub(crate) entry_ns: i64,
    /// Time in the call; where the host's wait for it was seen, until the end of that.
    pub(crate) duration_ns: i64,
    /// Of the recorded time in the call: its thread was halted.
    pub(crate) halted_ns: i64,
    /// Since the previous collective: it was held off its CPU outside calls.
    pub(crate) held_ns: i64,
    /// Time in the call itself.
    pub(crate) called_ns: i64,
    /// Compute time since this rank left the previous collective of the communicator, on its own
    /// clock: the time outside any communication call. None for the first, and where a record was
    /// lost.
    pub(crate) compute_ns: Option<i64>,
    /// Compute time was derived from aligned entries: how far the clocks' bounds leave it open.
    pub(crate) unsure: Option<Unsure>,
}

impl Cell {
    /// How long it had no CPU, in the call and since the collective before.
    pub(crate) fn off_cpu_ns(&self) -> i64 {
        self.held_ns.saturating_add(self.halted_ns)
    }
}

/// One collective, matched.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Met {
    /// When: the median of the aligned entries.
    pub(crate) at_ns: i64,
    /// The function that was called.
    pub(crate) func: Arc<str>,
    /// Number of the call, of those of the function.
    pub(crate) seq: u64,
    /// Collectives that it stands for: more than one where digests give runs of calls by their
    /// means.
    pub(crate) weight: u32,
    /// One for each member of the communicator, in their order.
    pub(crate) cells: Vec<Option<Cell>>,
}

/// A communicator and its matched collectives in order of time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Comm {
    pub(crate) hash: u64,
    pub(crate) nranks: Option<i32>,
    pub(crate) library: String,
    /// The lowest tier among its calls; 1 where they enqueue and the synchronise calls after them
    /// were seen.
    pub(crate) tier: u8,
    /// Its calls enqueue, and durations reach to the end of the synchronise calls after them.
    pub(crate) lifted: bool,
    /// Calls by name, all couplings.
    pub(crate) funcs: BTreeMap<Arc<str>, u64>,
    /// In order of rank.
    pub(crate) members: Vec<Member>,
    pub(crate) met: Vec<Met>,
    /// Collectives with every rank of the communicator.
    pub(crate) complete: usize,
    /// Collectives used though ranks are missing in them.
    pub(crate) partial: usize,
    /// Collectives not used: too few ranks present.
    pub(crate) dropped: usize,
    /// Calls that make all ranks meet.
    pub(crate) coupled: u64,
    /// Calls that couple one-sidedly or pairwise.
    pub(crate) one_sided: u64,
    /// Of these, those between two ranks.
    pub(crate) paired: u64,
    /// Compute time rests on when the ranks met, derived from aligned entries: it may be wrong by the
    /// clock bound.
    pub(crate) reconstructed: bool,
}

impl Comm {
    /// Count calls of a function.
    pub(crate) fn count(&mut self, func: &Arc<str>, calls: u64, tier: u8, nranks: Option<i32>) {
        self.tier = self.tier.min(tier);
        self.nranks = self.nranks.max(nranks);
        let sum = self.funcs.entry(Arc::clone(func)).or_default();
        *sum = sum.saturating_add(calls);
        let coupling = Coupling::of(func);
        let kind = if coupling == Coupling::All { &mut self.coupled } else { &mut self.one_sided };
        *kind = kind.saturating_add(calls);
        if coupling == Coupling::Pair {
            self.paired = self.paired.saturating_add(calls);
        }
    }

    /// How many of its ranks are not in the data, as far as its size is known.
    pub(crate) fn not_heard(&self) -> usize {
        let all = self.nranks.and_then(|n| usize::try_from(n).ok());
        all.map_or(0, |all| all.saturating_sub(self.members.len()))
    }

    /// Its ranks do not all do the same work.
    pub(crate) fn mixed(&self) -> bool {
        self.members.windows(2).any(|m| m[0].class != m[1].class)
    }

    /// How many collectives a run of matched ones stands for.
    pub(crate) fn stands_for(&self, met: std::ops::Range<usize>) -> f64 {
        self.met.get(met).unwrap_or_default().iter().map(|m| f64::from(m.weight)).sum()
    }

    /// Whether a member's process is in this communicator, too.
    pub(crate) fn has(&self, member: &Member) -> bool {
        self.members.iter().any(|m| m.pid == member.pid && m.node == member.node)
    }

    /// How far apart collectives lie: the median of their distances. None with fewer than two.
    pub(crate) fn period_ns(&self) -> Option<f64> {
        median(self.met.windows(2).map(|w| (w[1].at_ns - w[0].at_ns) as f64 / f64::from(w[1].weight.max(1))))
    }
}
