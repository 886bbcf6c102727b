//! The digests received from all nodes, and which window can be judged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::page::{Page, RECENT_NS};
use super::{GRACE_NS, NODE_WINDOWS};
use digest::{Digest, reference_id, window_of};
use observed::TimeUse;

/// Whether a node is there, by the mesh's failure detector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Its heartbeat arrives.
    Live,
    /// It does not.
    Dead,
}

/// Dead hosts of a job: the answer must not look complete because they are gone.
#[derive(Debug, Clone, Default)]
pub struct DeadHosts {
    /// Those that said last that they had ranks of it.
    pub of_job: Arc<BTreeSet<String>>,
    /// Those of which it is not known what they ran. They count where ranks of the job are not heard.
    pub perhaps: Arc<BTreeSet<String>>,
    /// The job's ranks, where that is known: where all are heard from hosts that live, `perhaps` have
    /// none.
    pub ranks: Option<i32>,
}

/// Digests of a node by which others number their calls: of twice as many windows as are gossiped at
/// a time.
const RECENT_DIGESTS: usize = 2 * NODE_WINDOWS as usize + 1;

/// Keeps the digests of the last windows. A copy costs little: it shares them, until one of
/// both receives more of a node.
#[derive(Debug, Clone, Default)]
pub struct Board {
    pages: BTreeMap<Arc<str>, Arc<Page>>,
    /// Live hosts of the job, as far as that is known: of each a digest is expected.
    hosts: Arc<BTreeSet<String>>,
    /// Hosts that count as missing as long as the mesh lists them as dead.
    dead_hosts: DeadHosts,
    /// Live hosts of which it is not known here whether they run the job.
    unclear: usize,
    /// Hosts that record calls of the job in time slices, and when they said so last, on this host's
    /// steady clock.
    slices: BTreeMap<Arc<str>, i64>,
    /// A host said so once.
    was_in_slices: bool,
}

impl Board {
    fn page(&mut self, node: &str) -> &mut Page {
        if !self.pages.contains_key(node) {
            self.pages.insert(node.into(), Arc::default());
        }
        Arc::make_mut(self.pages.entry(node.into()).or_default())
    }

    /// Takes in a digest that came at `now_ns` of this host's steady clock; false where it was
    /// known.
    pub fn receive(&mut self, node: &str, digest: Digest, now_ns: i64) -> bool {
        self.page(node).receive(node, Arc::new(digest), now_ns)
    }

    /// Takes in where the time of a node's processes went, as it sent with a window.
    pub fn receive_times(&mut self, node: &str, window: i64, times: Vec<TimeUse>) {
        self.page(node).receive_times(window, times);
    }

    /// Takes in whether a node records calls of the job in time slices, as it said at `now_ns` of this
    /// host's steady clock.
    pub fn receive_slices(&mut self, node: &str, in_slices: bool, now_ns: i64) {
        if in_slices {
            self.was_in_slices = true;
            self.slices.insert(node.into(), now_ns);
        } else {
            self.slices.remove(node);
        }
    }

    /// Whether a live host of the job records calls of it in time slices: digests do not tell of
    /// these.
    #[must_use]
    pub fn is_in_slices(&self, now_ns: i64) -> bool {
        let counts = |(node, at_ns): (&Arc<str>, &i64)| {
            self.hosts.contains(&**node) && now_ns.saturating_sub(*at_ns) < RECENT_NS
        };
        self.slices.iter().any(counts)
    }

    /// Whether hosts of the job recorded calls of it in time slices and none says that it still does.
    pub(super) fn left_slices(&self) -> bool {
        self.was_in_slices && self.slices.is_empty() && !self.hosts.is_empty()
    }

    /// A digest of a node could not be read: it is not guessed at, and the node is listed as
    /// missing, with the reason, until one can be.
    pub fn refuse(&mut self, node: &str, why: String) {
        self.page(node).unread = Some(why);
    }

    /// Whether a digest of this window (of the node's own clock) is known.
    #[must_use]
    pub fn knows(&self, node: &str, window: i64) -> bool {
        self.pages.get(node).is_some_and(|page| page.knows(window))
    }

    /// The last digests of some nodes with only these communicators and functions, of twice as many
    /// windows as are gossiped at a time: for [`Collector::number`](digest::Collector::number).
    fn digests_by(&self, lanes: &BTreeSet<(u64, Arc<str>)>, who: impl Fn(&str) -> bool) -> Vec<(&str, Vec<Digest>)> {
        let of = |digest: &Digest| Digest {
            window: digest.window,
            clock: digest.clock,
            processes: digest.processes.clone(),
            lanes: digest
                .lanes
                .iter()
                .filter(|lane| lanes.contains(&(lane.comm_hash, Arc::clone(&lane.func))))
                .cloned()
                .collect(),
            ..Digest::default()
        };
        let recent = |page: &Page| {
            let mut last: Vec<Digest> = page.digests().rev().take(RECENT_DIGESTS).map(of).collect();
            last.reverse();
            last
        };
        self.pages().filter(|(name, _)| who(name)).map(|(name, page)| (name, recent(page))).collect()
    }

    /// The last digests of those nodes that a host needs to find the numbers of its calls: of each
    /// communicator and function the first node that has numbers; where none has, the first that
    /// calls it and the first with runs of it.
    #[must_use]
    pub fn digests_needed(&self, lanes: &BTreeSet<(u64, Arc<str>)>) -> Vec<(&str, Vec<Digest>)> {
        let mut needed: BTreeSet<&str> = BTreeSet::new();
        for (comm, func) in lanes {
            let first = |is: &dyn Fn(&Page) -> bool| self.pages().find(|(_, page)| is(page)).map(|(name, _)| name);
            let calls = |page: &Page, with_runs: bool| {
                let lanes = page.digests().rev().take(RECENT_DIGESTS).flat_map(|digest| &digest.lanes);
                let mut here = lanes.filter(|lane| lane.comm_hash == *comm && lane.func == *func);
                here.any(|lane| !with_runs || !lane.blocks.is_empty())
            };
            match first(&|page| page.numbers(*comm, func, RECENT_DIGESTS as i64)) {
                Some(numbered) => drop(needed.insert(numbered)),
                None => needed.extend([false, true].into_iter().filter_map(|runs| first(&|page| calls(page, runs)))),
            }
        }
        self.digests_by(lanes, |name| needed.contains(name))
    }

    /// Whether anything was received from a node.
    #[must_use]
    pub fn knows_of(&self, node: &str) -> bool {
        self.pages.contains_key(node)
    }

    /// Whether a digest of any node came lately, at `now_ns` of this host's steady clock.
    #[must_use]
    pub fn is_active(&self, now_ns: i64) -> bool {
        self.pages().any(|(_, page)| page.is_recent(now_ns))
    }

    /// Which nodes are there. Those that are not listed are forgotten with their digests.
    pub fn presence(&mut self, nodes: &BTreeMap<String, Presence>) {
        self.pages.retain(|name, _| nodes.contains_key(&**name));
        self.slices.retain(|name, _| nodes.get(&**name) == Some(&Presence::Live));
        for (name, page) in &mut self.pages {
            let dead = nodes.get(&**name) == Some(&Presence::Dead);
            if page.dead != dead {
                Arc::make_mut(page).dead = dead;
            }
        }
    }

    /// The live hosts of the job: one that sends nothing is missing.
    pub fn expect_of(&mut self, hosts: &Arc<BTreeSet<String>>) {
        self.hosts = Arc::clone(hosts);
    }

    /// The dead hosts of the job: they are missing.
    pub fn miss(&mut self, dead_hosts: DeadHosts) {
        self.dead_hosts = dead_hosts;
    }

    /// So many live hosts may run the job, too: their cells of the mesh do not name all jobs.
    pub fn unclear(&mut self, hosts: usize) {
        self.unclear = hosts;
    }

    pub(super) fn unclear_hosts(&self) -> usize {
        self.unclear
    }

    pub(super) fn dead_hosts(&self) -> &DeadHosts {
        &self.dead_hosts
    }

    pub(super) fn hosts(&self) -> &BTreeSet<String> {
        &self.hosts
    }

    /// Communicators in which a rank of any node was in a call for long, by its last digest.
    #[must_use]
    pub fn waited_in(&self) -> BTreeSet<u64> {
        self.pages.values().flat_map(|page| page.waited_in()).collect()
    }

    /// The live node to whose clock all are to be aligned at `now_ns` of this host's steady clock:
    /// the first by name of those whose digests come.
    #[must_use]
    pub fn reference(&self, now_ns: i64) -> Option<&str> {
        self.active(now_ns).next().map(|(name, _)| name)
    }

    pub(super) fn pages(&self) -> impl Iterator<Item = (&str, &Page)> {
        self.pages.iter().map(|(name, page)| (&**name, &**page))
    }

    /// Live nodes of which digests came lately.
    fn active(&self, now_ns: i64) -> impl Iterator<Item = (&str, &Page)> {
        self.pages().filter(move |(_, page)| !page.dead && page.is_recent(now_ns))
    }

    /// The reference to which most digests that came last are aligned, by its id; of equals the
    /// lowest.
    pub(super) fn aligned_to(&self, now_ns: i64) -> Option<u16> {
        let mut count: BTreeMap<u16, usize> = BTreeMap::new();
        for (_, page) in self.active(now_ns) {
            if let Some(clock) = page.digests().rev().find_map(|digest| digest.clock) {
                *count.entry(clock.reference).or_default() += 1;
            }
        }
        count.into_iter().max_by_key(|(id, n)| (*n, std::cmp::Reverse(*id))).map(|(id, _)| id)
    }

    /// The name and the page of the node that a reference's id stands for.
    pub(super) fn reference_page(&self, reference: u16) -> Option<(&str, &Page)> {
        self.pages().find(|(name, _)| reference_id(name) == reference)
    }

    /// The clock of a reference at `now_ns` of this host's steady clock: by its own digests, or
    /// where there are none by those of another node that knows it.
    pub(super) fn axis(&self, reference: u16, now_ns: i64) -> Axis {
        let own = self.reference_page(reference).map(|(_, page)| page);
        let by = |page: &Page| Some(page.now_ns(now_ns)?.saturating_sub(page.ahead_ns(reference)));
        let other = || self.active(now_ns).find_map(|(_, page)| by(page));
        Axis { reference, era: own.map_or(0, Page::era), now_ns: own.and_then(by).or_else(other).unwrap_or(now_ns) }
    }

    /// Live nodes of which digests came lately, with the last window up to which none of theirs is
    /// missing, of the reference's clock. None where that lies in the future: what the node knows
    /// of the reference's clock is wrong.
    pub(super) fn expected(&self, now_ns: i64, axis: Axis) -> impl Iterator<Item = (&str, Option<i64>)> {
        let soon = window_of(axis.now_ns) + NODE_WINDOWS;
        let complete_to = move |page: &Page| page.complete_to(axis.reference).filter(|window| *window <= soon);
        self.active(now_ns).map(move |(name, page)| (name, complete_to(page)))
    }

    /// The latest window that can be judged: the digest of it, or of a later one, has come
    /// from every live node with ranks, or the grace is over. None where no digest came lately.
    pub(super) fn closed(&self, now_ns: i64, axis: Axis) -> Option<i64> {
        let last = window_of(axis.now_ns.saturating_sub(GRACE_NS)) - 1;
        let complete_to: Vec<i64> = self.expected(now_ns, axis).map(|(_, window)| window.unwrap_or(i64::MIN)).collect();
        let (newest, all) = (complete_to.iter().max()?, complete_to.iter().min()?);
        Some((*all).max(last).min(*newest)).filter(|window| *window > i64::MIN)
    }
}

/// The clock by which windows are judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    /// The id of its node.
    pub(super) reference: u16,
    /// How often it began anew.
    pub(super) era: u64,
    /// What time it is by it.
    pub(super) now_ns: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_in_slices_as_long_as_one_of_its_live_hosts_says_so() {
        let mut board = Board::default();
        let present = |presence| BTreeMap::from([("a".to_owned(), presence), ("b".to_owned(), Presence::Live)]);
        board.presence(&present(Presence::Live));
        board.expect_of(&Arc::new(BTreeSet::from(["a".to_owned()])));
        board.receive_slices("b", true, 0);
        assert!(!board.is_in_slices(0), "b is no host of the job");
        board.receive_slices("a", true, 0);
        assert!(board.is_in_slices(RECENT_NS - 1) && !board.is_in_slices(RECENT_NS), "it is not heard any more");
        board.receive_slices("a", false, 1);
        assert!(!board.is_in_slices(1), "its ranks that were recorded in slices have ended");
        board.receive_slices("a", true, 2);
        board.presence(&present(Presence::Dead));
        assert!(!board.is_in_slices(2));
    }
}
