//! Brings the calls of different ranks together: one [`Comm`] per communicator, one [`Met`] per collective.
//!
//! Owns the key (communicator, func, seq), completeness, alignment of clocks and each rank's own time between two
//! collectives. The scores made from it lie in `score.rs`, own times are made in `own.rs`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::classes::{Process, classes, refine};
use super::meet::reconstruct;
use super::observation::{ClockOffset, Coupling, Input, Observation};
use super::own::{Own, Waited, own_times, waited};
use super::rules::Rules;
use super::sampled::{LaneTotal, Totals, Unsure};
use super::stats::median;

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
    /// How far two ranks' aligned times may be wrong against each other: nothing on one node, which has one clock; none
    /// when a clock is not known.
    pub(crate) fn bound_to(&self, other: &Self) -> Option<i64> {
        if self.node == other.node {
            return Some(0);
        }
        Some(self.clock?.bound_ns.saturating_add(other.clock?.bound_ns))
    }
}

/// One rank's part in a collective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cell {
    /// Entry on the asker's clock (on the node's own where that is not known).
    pub(crate) entry_ns: i64,
    /// Time in the call; where the host's wait for it was seen, until the end of that.
    pub(crate) duration_ns: i64,
    /// Time in the call itself.
    pub(crate) called_ns: i64,
    /// Own time since this rank left the previous collective of the communicator; own clock only: the work timed in
    /// between, else the time outside any communication call. None for the first, and where a record was lost.
    pub(crate) own_ns: Option<i64>,
    /// The same with what it waited for single ranks; see [`Own::apart_ns`].
    pub(crate) apart_ns: Option<i64>,
    /// Own time was told from aligned entries: how far the clocks' bounds leave it open.
    pub(crate) unsure: Option<Unsure>,
}

/// One collective, matched.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Met {
    /// When: the median of the aligned entries.
    pub(crate) at_ns: i64,
    /// The function that was called.
    pub(crate) func: Arc<str>,
    /// Collectives that it stands for: more than one where digests give runs of calls by their means.
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
    /// The lowest tier among its calls; 1 where they enqueue and the synchronise calls after them were seen.
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
    /// Own time was timed as work on every member.
    pub(crate) worked: bool,
    /// Own time rests on when the ranks met, told from aligned entries: it may be wrong by the clock bound.
    pub(crate) reconstructed: bool,
    /// It is known of some collectives only, by the steps of digests.
    pub(crate) told: bool,
}

/// Match everything.
pub(crate) fn communicators(input: &Input, rules: &Rules) -> Vec<Comm> {
    let waited = waited(input);
    let met = reconstruct(input, &waited);
    let own = own_times(input, &waited, met.as_deref());
    let classes = classes(input);
    let mut by_comm: BTreeMap<u64, Heap<'_>> = BTreeMap::new();
    for (i, seen) in input.observations.iter().enumerate() {
        by_comm.entry(seen.comm_hash).or_default().calls.push(Part {
            seen,
            own: own[i],
            weight: 1,
            waited: waited[i],
            called_ns: seen.duration_ns,
        });
    }
    for cell in &input.sampled {
        let end_ns = cell.seen.entry_ns.saturating_add(cell.seen.duration_ns);
        let (waited, called_ns) = match cell.waited {
            true => (Waited::Until(end_ns), 0),
            false => (Waited::Unseen, cell.seen.duration_ns),
        };
        let own = Own { own_ns: cell.own_ns, apart_ns: None, unsure: cell.unsure };
        let part = Part { seen: &cell.seen, own, weight: cell.weight, waited, called_ns };
        by_comm.entry(cell.seen.comm_hash).or_default().calls.push(part);
    }
    for totals in &input.totals {
        for lane in &totals.lanes {
            by_comm.entry(lane.comm_hash).or_default().lanes.push((totals, lane));
        }
    }
    let reconstructed = met.is_some();
    let told: HashSet<u64> =
        input.sampled.iter().filter(|cell| cell.unsure.is_some()).map(|cell| cell.seen.comm_hash).collect();
    let mut comms: Vec<Comm> =
        by_comm.into_iter().map(|(hash, heap)| one(hash, &heap, &classes, input, rules)).collect();
    for comm in &mut comms {
        comm.told = told.contains(&comm.hash);
        comm.reconstructed = (reconstructed || comm.told) && comm.tier == 0 && !comm.worked;
    }
    refine(&mut comms, input);
    comms
}

/// What was heard of one communicator.
#[derive(Default)]
struct Heap<'a> {
    /// Calls and cells.
    calls: Vec<Part<'a>>,
    /// Totals of processes whose calls came as cells.
    lanes: Vec<(&'a Totals, &'a LaneTotal)>,
}

/// One call, or a run of calls by their means.
struct Part<'a> {
    seen: &'a Observation,
    own: Own,
    weight: u32,
    waited: Waited,
    /// Time in the call itself.
    called_ns: i64,
}

/// The parts heard of one collective, by place of the member.
#[derive(Default)]
struct Meeting {
    weight: u32,
    cells: Vec<(usize, Cell)>,
}

impl Comm {
    fn count(&mut self, func: &Arc<str>, calls: u64, tier: u8, nranks: Option<i32>) {
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
}

fn one(hash: u64, heap: &Heap<'_>, classes: &HashMap<Process, usize>, input: &Input, rules: &Rules) -> Comm {
    let mut comm = Comm { hash, tier: u8::MAX, ..Comm::default() };
    let mut places: BTreeMap<(i32, &str, i64), usize> = BTreeMap::new();
    let totalled: HashSet<(&str, i64)> = heap.lanes.iter().map(|(t, _)| (&*t.node, t.pid)).collect();
    for Part { seen, .. } in &heap.calls {
        if !totalled.contains(&(&*seen.node, seen.pid)) {
            comm.count(&seen.func, 1, seen.tier, seen.nranks);
        }
        places.entry((seen.rank, &seen.node, seen.pid)).or_default();
    }
    for (totals, lane) in &heap.lanes {
        comm.count(&lane.func, lane.calls, lane.tier, lane.nranks);
        places.entry((lane.rank, &totals.node, totals.pid)).or_default();
    }
    let library = heap.calls.first().map(|part| &part.seen.library).or(heap.lanes.first().map(|(_, l)| &l.library));
    comm.library = library.map(ToString::to_string).unwrap_or_default();
    for (place, (&(rank, node, pid), slot)) in places.iter_mut().enumerate() {
        *slot = place;
        let process: Process = (node.into(), pid);
        let class = classes.get(&process).copied().unwrap_or(usize::MAX);
        let clock = input
            .clocks
            .get(node)
            .map(|clock| ClockOffset { bound_ns: clock.bound_within(input.since_ns, input.until_ns), ..*clock });
        comm.members.push(Member { rank, node: process.0, pid, clock, class });
    }

    let coupling = || heap.calls.iter().filter(|part| Coupling::of(&part.seen.func) == Coupling::All);
    let unseen = coupling().filter(|part| part.waited == Waited::Unseen).count();
    comm.lifted = comm.tier == 0 && unseen as f64 <= (1.0 - rules.present) * coupling().count() as f64;
    comm.tier = if comm.lifted { 1 } else { comm.tier };

    let workers: HashSet<(&str, i64)> = input.work.iter().map(|w| (&*w.node, w.pid)).collect();
    comm.worked = comm.members.iter().all(|m| workers.contains(&(&*m.node, m.pid)));
    let mut groups: HashMap<(&Arc<str>, u64), Meeting> = HashMap::new();
    for &Part { seen, own, weight, waited, called_ns } in &heap.calls {
        if Coupling::of(&seen.func) != Coupling::All {
            continue;
        }
        let duration_ns = match waited {
            Waited::Until(end) if comm.lifted => end.saturating_sub(seen.entry_ns),
            _ if comm.lifted => continue,
            _ => called_ns,
        };
        let place = places[&(seen.rank, &*seen.node, seen.pid)];
        let entry_ns = comm.members[place].clock.map_or(seen.entry_ns, |c| c.align(seen.entry_ns));
        let Own { own_ns, apart_ns, unsure } = own;
        let cell = Cell { entry_ns, duration_ns, called_ns, own_ns, apart_ns, unsure };
        let meeting = groups.entry((&seen.func, seen.seq)).or_default();
        meeting.weight = weight.max(meeting.weight);
        meeting.cells.push((place, cell));
    }
    let least = ((comm.members.len() as f64 * rules.present).ceil() as usize).max(2);
    let mut all_met = Vec::new();
    for (key, Meeting { weight, mut cells }) in groups {
        cells.sort_by_key(|(place, _)| *place);
        cells.dedup_by_key(|(place, _)| *place);
        let Some(at_ns) = middle(&cells, &comm.members) else {
            continue;
        };
        if !(input.since_ns..input.until_ns).contains(&at_ns) {
            continue;
        }
        let present = cells.len();
        if present < least {
            comm.dropped += 1;
            continue;
        }
        if comm.nranks.is_some_and(|n| usize::try_from(n) == Ok(present)) {
            comm.complete += 1;
        } else {
            comm.partial += 1;
        }
        // Only now a place for every member: what a wrong store claims must not cost more than what it sends.
        let mut row = vec![None; comm.members.len()];
        cells.into_iter().for_each(|(place, cell)| row[place] = Some(cell));
        all_met.push((key, Met { at_ns, func: Arc::clone(key.0), weight, cells: row }));
    }
    // The same order for every asker, also where two begin at the same time.
    all_met.sort_by_key(|(key, m): &((&Arc<str>, u64), Met)| (m.at_ns, *key));
    comm.met = all_met.into_iter().map(|(_, m)| m).collect();
    comm
}

/// The median aligned entry; ranks with an unknown clock count only where no other is there.
fn middle(cells: &[(usize, Cell)], members: &[Member]) -> Option<i64> {
    let entries = |known: bool| {
        cells
            .iter()
            .filter(move |(place, _)| !known || members[*place].clock.is_some())
            .map(|(_, cell)| cell.entry_ns)
            .collect::<Vec<i64>>()
    };
    let mut all = entries(true);
    if all.is_empty() {
        all = entries(false);
    }
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

impl Comm {
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

    /// Own time is known though calls only enqueue.
    pub(crate) fn own_known(&self) -> bool {
        self.worked || self.reconstructed
    }

    /// How far apart collectives lie: the median of their distances. None with fewer than two.
    pub(crate) fn period_ns(&self) -> Option<f64> {
        median(self.met.windows(2).map(|w| (w[1].at_ns - w[0].at_ns) as f64 / f64::from(w[1].weight.max(1))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(rank: i32, func: &str, seq: u64, entry_ns: i64, duration_ns: i64) -> Observation {
        Observation {
            node: format!("n{rank}").into(),
            pid: 1,
            rank,
            nranks: Some(2),
            comm_hash: 7,
            func: func.into(),
            seq,
            entry_ns,
            duration_ns,
            tier: 1,
            library: "mpi".into(),
            root: None,
        }
    }

    fn input(observations: Vec<Observation>) -> Input {
        let clock = |offset_ns| ClockOffset::steady(offset_ns, 0);
        Input {
            observations,
            clocks: [("n0".into(), clock(0)), ("n1".into(), clock(1_000))].into(),
            since_ns: 0,
            until_ns: i64::MAX,
            ..Input::default()
        }
    }

    #[test]
    fn calls_meet_by_func_and_seq_on_aligned_clocks() {
        let comms = communicators(
            &input(vec![
                call(0, "all_reduce", 0, 100, 50),
                call(1, "all_reduce", 0, 1_130, 20),
                call(0, "barrier", 0, 200, 10),
                call(1, "barrier", 0, 1_205, 5),
                call(0, "all_reduce", 1, 300, 50),
            ]),
            &Rules::default(),
        );
        let comm = &comms[0];
        assert_eq!((comm.met.len(), comm.complete, comm.partial, comm.dropped), (2, 2, 0, 1));
        let entries: Vec<i64> = comm.met[0].cells.iter().flatten().map(|c| c.entry_ns).collect();
        assert_eq!(entries, [100, 130], "rank 1's clock is 1000 ns ahead");
    }

    #[test]
    fn own_time_leaves_out_every_call_and_stops_at_a_gap() {
        let comms = communicators(
            &input(vec![
                call(0, "all_reduce", 0, 0, 10),
                call(0, "send", 0, 20, 30),
                call(0, "all_reduce", 1, 60, 10),
                call(0, "all_reduce", 3, 100, 10),
                call(0, "all_reduce", 4, 120, 10),
                call(1, "all_reduce", 0, 1_000, 10),
                call(1, "all_reduce", 1, 1_060, 10),
                call(1, "all_reduce", 3, 1_100, 10),
                call(1, "all_reduce", 4, 1_120, 10),
            ]),
            &Rules::default(),
        );
        let own: Vec<Option<i64>> = comms[0].met.iter().map(|m| m.cells[0].unwrap().own_ns).collect();
        assert_eq!(own, [None, Some(20), None, Some(10)]);
        assert_eq!(comms[0].one_sided, 1);
    }
}
