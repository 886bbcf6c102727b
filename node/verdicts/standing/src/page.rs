//! One node's digests, and what time it is by its clock.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::{LONG_LOOKBACK, LOOKBACK, NODE_WINDOWS, RARE_LOOKBACK};
use digest::{Digest, Reached, WINDOW_NS, end_of, reference_id, window_of};
use observed::{Coupling, Progress, Rules, TimeUse};

/// Runs of calls kept of one node beyond the short look back.
const MOST_BLOCKS: usize = 4_096;
/// Lanes in these digests, likewise.
const MOST_KEPT_LANES: usize = 16_384;
/// Windows for which it is remembered how far a process got.
const REMEMBER: i64 = 1_200;
/// Lanes of one node of which that is remembered, at most: those of the newest digests.
const MOST_LANES: usize = 8_192;
/// Digests by which the time of a node's clock is estimated.
const LATELY: usize = 4;
/// A node counts as one with ranks for so long after its last digest.
pub(super) const RECENT_NS: i64 = 10_000_000_000;

/// A digest, and when it came.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub(super) digest: Arc<Digest>,
    /// On the steady clock of the host that received it.
    at_ns: i64,
    /// Runs of calls in it.
    pub(super) blocks: usize,
    /// Lanes in it.
    lanes: usize,
    /// The longest mean duration of one of these, microseconds.
    pub(super) longest_us: u64,
    /// The largest communicators in which all ranks meet, of those in it,
    pub(super) largest: Vec<Meets>,
    /// and their size.
    pub(super) most_ranks: Option<i32>,
}

/// A communicator in a digest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meets {
    pub(super) ranks: i32,
    pub(super) comm_hash: u64,
    /// The most runs of calls of one rank.
    pub(super) runs: usize,
}

impl Meets {
    fn largest(digest: &Digest) -> Vec<Self> {
        let coupling = digest.lanes.iter().filter(|lane| Coupling::of(&lane.func) == Coupling::All);
        let mut largest: Vec<Self> = Vec::new();
        for lane in coupling {
            let (ranks, runs) = (lane.nranks.unwrap_or(lane.rank.saturating_add(1)), lane.blocks.len());
            if largest.first().is_some_and(|known| ranks < known.ranks) {
                continue;
            }
            largest.retain(|known| known.ranks == ranks);
            match largest.iter_mut().find(|known| known.comm_hash == lane.comm_hash) {
                Some(known) => known.runs = known.runs.max(runs),
                None => largest.push(Self { ranks, comm_hash: lane.comm_hash, runs }),
            }
        }
        largest
    }
}

/// How often the largest communicators met, over digests of one node.
#[derive(Default)]
pub(super) struct Meetings {
    ranks: i32,
    runs: BTreeMap<u64, usize>,
}

impl Meetings {
    /// In communicators of so many ranks and more.
    pub(super) fn of(ranks: i32) -> Self {
        Self { ranks, runs: BTreeMap::new() }
    }

    /// Adds a digest. How often that of the largest met that met most, in runs of calls of a rank.
    pub(super) fn add(&mut self, received: &Received) -> usize {
        for meets in &received.largest {
            if meets.ranks > self.ranks {
                *self = Self { ranks: meets.ranks, ..Self::default() };
            } else if meets.ranks < self.ranks {
                continue;
            }
            *self.runs.entry(meets.comm_hash).or_default() += meets.runs;
        }
        self.runs.values().copied().max().unwrap_or(0)
    }
}

/// The digests of one node.
#[derive(Debug, Clone, Default)]
pub(super) struct Page {
    name: Arc<str>,
    /// What its clock is called as a reference.
    id: u16,
    /// By window of the node's own clock.
    received: BTreeMap<i64, Received>,
    /// How far each lane got.
    lanes: Reached,
    pub(super) dead: bool,
    /// Where its processes' time went, by the window that ends it.
    times: BTreeMap<i64, Arc<Vec<TimeUse>>>,
    /// Why its last digest could not be read.
    pub(super) unread: Option<String>,
    /// How often its windows began anew, at an earlier time: it was started again after its clock
    /// had been set.
    era: u64,
}

impl Page {
    /// Takes in a digest that came at `now_ns`; false where it was known.
    pub(super) fn receive(&mut self, node: &str, digest: Arc<Digest>, now_ns: i64) -> bool {
        let window = digest.window;
        // So many digests lie in gossip at once: none is overtaken by more.
        let anew = match self.received.get(&window) {
            Some(known) if known.digest == digest => return false,
            Some(_) => true,
            None => self.received.last_key_value().is_some_and(|(newest, _)| window <= newest - NODE_WINDOWS),
        };
        if anew {
            self.received.clear();
            self.lanes.renumber(window);
            self.era += 1;
        }
        (self.id, self.unread) = (reference_id(node), None);
        self.remember(node, &digest);
        let (blocks, longest_us, largest) = (digest.blocks(), digest.longest_us(), Meets::largest(&digest));
        let (lanes, most_ranks) = (digest.lanes.len(), largest.first().map(|meets| meets.ranks));
        let received = Received { digest, at_ns: now_ns, blocks, lanes, longest_us, largest, most_ranks };
        self.received.insert(window, received);

        self.forget();
        true
    }

    /// Takes in where the time of the node's processes went, as sent with a window.
    pub(super) fn receive_times(&mut self, window: i64, times: Vec<TimeUse>) {
        // So long before what is known: its clock was set, and it was started again.
        if self.times.last_key_value().is_some_and(|(newest, _)| window <= newest - NODE_WINDOWS) {
            self.times.clear();
        }
        self.times.insert(window, Arc::new(times));
        self.times = self.times.split_off(&(window - LONG_LOOKBACK));
    }

    /// Where the time of its processes went, in these windows of the reference's clock.
    pub(super) fn times(&self, windows: RangeInclusive<i64>, reference: u16) -> impl Iterator<Item = &TimeUse> {
        let ahead_ns = self.ahead_ns(reference);
        let within = self.times.iter().filter(move |(window, _)| windows.contains(&aligned(**window, ahead_ns)));
        within.flat_map(|(_, times)| times.iter())
    }

    /// Its digests, the oldest first.
    pub(super) fn digests(&self) -> impl DoubleEndedIterator<Item = &Digest> {
        self.received.values().map(|received| &*received.digest)
    }

    pub(super) fn knows(&self, window: i64) -> bool {
        self.received.contains_key(&window)
    }

    pub(super) fn era(&self) -> u64 {
        self.era
    }

    /// How far each lane got.
    pub(super) fn lanes(&self) -> &Reached {
        &self.lanes
    }

    /// How far each process got, as of a window of the reference's clock: what was reported last, or
    /// of lanes of which more is known by now, up to then.
    pub(super) fn progress(&self, window: i64, reference: u16) -> Vec<Progress> {
        let ahead_ns = self.ahead_ns(reference);
        let mut lanes = self.lanes.clone();
        lanes.retain(|of| aligned(of.window, ahead_ns) <= window);
        let digests: Vec<&Digest> = self.within(i64::MIN..=window, reference).collect();
        if lanes.lanes().count() < self.lanes.lanes().count() {
            digests.iter().for_each(|digest| lanes.add(digest));
        }
        lanes.progress(&self.name, &digests)
    }

    /// Whether its last digests hold the number of a call in a communicator's function.
    pub(super) fn numbers(&self, comm: u64, func: &str, windows: i64) -> bool {
        let newest = self.received.last_key_value().map_or(i64::MIN, |(window, _)| *window);
        let mut here = self.lanes.lanes().filter(|((_, of, name), _)| *of == comm && **name == *func);
        here.any(|(_, of)| of.window > newest.saturating_sub(windows) && of.is_numbered)
    }

    /// The communicators that its processes are in calls of by its last digest, or may wait for
    /// their devices in.
    pub(super) fn waited_in(&self) -> impl Iterator<Item = u64> {
        let last = self.digests().next_back();
        let calls = last.into_iter().flat_map(|digest| &digest.long_calls).filter_map(|call| call.comm);
        let syncing = last.into_iter().flat_map(|digest| &digest.processes).filter(|p| p.device_ms.is_some());
        let syncing: BTreeSet<u32> = syncing.map(|process| process.pid).collect();
        let lanes = self.lanes.lanes().map(|((pid, comm, _), _)| (*pid, *comm));
        let of_devices = lanes.filter(move |(pid, _)| syncing.contains(pid)).map(|(_, comm)| comm);
        calls.map(|of| of.comm_hash).chain(of_devices)
    }

    /// How far the node's clock is ahead of a reference's, by the last digest that says it. Where
    /// none does, by the last that says it of any reference: mostly their clocks agree.
    pub(super) fn ahead_ns(&self, reference: u16) -> i64 {
        if self.id == reference {
            return 0;
        }
        let of = |digest: &Digest| digest.clock;
        let mut clocks = self.digests().rev().filter_map(of);
        let by_this = clocks.find(|clock| clock.reference == reference);
        by_this.or_else(|| self.digests().rev().find_map(of)).map_or(0, |clock| clock.offset_us.saturating_mul(1_000))
    }

    /// Its digests of these windows of the reference's clock.
    pub(super) fn within(
        &self,
        windows: RangeInclusive<i64>,
        reference: u16,
    ) -> impl DoubleEndedIterator<Item = &Digest> {
        self.received_within(windows, reference).map(|received| &*received.digest)
    }

    /// The same, with what is known of each.
    pub(super) fn received_within(
        &self,
        windows: RangeInclusive<i64>,
        reference: u16,
    ) -> impl DoubleEndedIterator<Item = &Received> {
        // Every window of its clock is as many windows before the reference's.
        let later = aligned(0, self.ahead_ns(reference));
        let own = |window: i64| window.saturating_sub(later);
        // A range that ends before it begins is empty, and not one that a map takes.
        let until = own(*windows.end()).saturating_add(1);
        self.received.range(own(*windows.start()).min(until)..until).map(|(_, received)| received)
    }

    /// The window of the reference's clock in which its last digest lies.
    pub(super) fn newest(&self, reference: u16) -> Option<i64> {
        let (window, _) = self.received.last_key_value()?;
        Some(aligned(*window, self.ahead_ns(reference)))
    }

    /// The last window, aligned, before which none is missing: later ones may have overtaken it on
    /// the way.
    pub(super) fn complete_to(&self, reference: u16) -> Option<i64> {
        let (&first, _) = self.received.first_key_value()?;
        let (&newest, _) = self.received.last_key_value()?;
        let from = first.max(newest - NODE_WINDOWS);
        let missing = (from..newest).find(|window| !self.knows(*window));
        Some(aligned(missing.map_or(newest, |window| window - 1), self.ahead_ns(reference)))
    }

    /// When its last digest came.
    fn received_ns(&self) -> Option<i64> {
        self.received.last_key_value().map(|(_, received)| received.at_ns)
    }

    /// Whether a digest of it came lately.
    pub(super) fn is_recent(&self, now_ns: i64) -> bool {
        self.received_ns().is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < RECENT_NS)
    }

    /// What time it is by the node's own clock, at `now_ns` of the host's that received its
    /// digests: no less than what those came with that were on the way for the shortest time.
    pub(super) fn now_ns(&self, now_ns: i64) -> Option<i64> {
        let lately = self.received.iter().rev().take(LATELY);
        let ahead_ns = lately.map(|(window, received)| end_of(*window).saturating_sub(received.at_ns)).max()?;
        Some(now_ns.saturating_add(ahead_ns))
    }

    /// How far its wall clock is ahead of the one by which its digests count time.
    pub(super) fn wall_ahead_ns(&self) -> i64 {
        self.digests().next_back().map_or(0, |digest| digest.wall_ahead_ms.saturating_mul(1_000_000))
    }

    fn remember(&mut self, node: &str, digest: &Digest) {
        if *self.name != *node {
            self.name = node.into();
        }
        self.lanes.add(digest);
    }

    fn forget(&mut self) {
        let Some((&newest, _)) = self.received.last_key_value() else { return };
        self.lanes.retain(|of| of.window > newest - REMEMBER);
        let known = self.lanes.lanes().count();
        if known > MOST_LANES {
            let mut windows: Vec<i64> = self.lanes.lanes().map(|(_, of)| of.window).collect();
            windows.sort_unstable();
            let mut excess = known - MOST_LANES;
            let last = windows[excess - 1];
            self.lanes.retain(|of| {
                let goes = of.window <= last && excess > 0;
                excess -= usize::from(goes);
                !goes
            });
        }
        // What is within the short look back is kept in any case.
        if self.received.first_key_value().is_some_and(|(oldest, _)| *oldest >= newest - LOOKBACK - NODE_WINDOWS) {
            return;
        }
        let (mut blocks, mut lanes, mut keep_from) = (0, 0, newest - RARE_LOOKBACK);
        let (mut meetings, mut met) = (Meetings::default(), 0);
        for (window, received) in self.received.iter().rev() {
            blocks += received.blocks;
            lanes += received.lanes;
            let many = blocks > MOST_BLOCKS || lanes > MOST_KEPT_LANES;
            if met < 2 * Rules::FEW_COLLECTIVES {
                met = meetings.add(received);
            }
            let enough = met >= 2 * Rules::FEW_COLLECTIVES;
            if many && *window < newest - LOOKBACK - NODE_WINDOWS || enough && *window < newest - LONG_LOOKBACK {
                keep_from = keep_from.max(window + 1);
                break;
            }
        }
        self.received = self.received.split_off(&keep_from);
    }
}

/// The window of the reference's clock that a window of a clock so far ahead of it mostly lies in.
pub(super) fn aligned(window: i64, ahead_ns: i64) -> i64 {
    window_of(end_of(window).saturating_sub(WINDOW_NS / 2).saturating_sub(ahead_ns))
}
