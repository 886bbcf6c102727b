//! Brings the calls of different ranks together: one [`Comm`] per communicator, one [`Met`] per
//! collective.
//!
//! Owns the key (communicator, func, seq), completeness and alignment of clocks. Cells are made by
//! `digest`, of rows as of digests; the scores made from them lie in `score.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::classes::{classes, refine};
use super::comm::{Cell, Comm, Member, Met};
use super::halts::settle_halts;
use digest::of_rows;
use observed::{ClockOffset, Input, LaneTotal, Process, Rules, Sampled, Totals, parallel, places::Places};

/// Match everything.
pub(crate) fn communicators(input: &Input, rules: &Rules) -> Vec<Comm> {
    let (sampled, followed) = of_rows(input);
    let totals: Vec<&Totals> = followed.iter().chain(&input.totals).collect();
    let classes = classes(&totals);
    let mut by_comm: BTreeMap<u64, Heap<'_>> = BTreeMap::new();
    for of in sampled.iter().chain(&input.sampled) {
        by_comm.entry(of.comm_hash).or_default().sampled.push(of);
    }
    for totals in &totals {
        for lane in &totals.lanes {
            by_comm.entry(lane.comm_hash).or_default().lanes.push((totals, lane));
        }
    }
    let heaps: Vec<(u64, Heap<'_>)> = by_comm.into_iter().collect();
    let mut comms = parallel::map(heaps, input.is_large(), |(hash, mut heap)| {
        heap.keep_one_kind();
        one(hash, &heap, &classes, input, rules)
    });
    refine(&mut comms, &totals);
    comms
}

/// A rank of a communicator: number, node, process.
type Key<'a> = (i32, &'a Arc<str>, i64);

/// The cells of one communicator.
#[derive(Default)]
struct Heap<'a> {
    sampled: Vec<&'a Sampled>,
    lanes: Vec<(&'a Totals, &'a LaneTotal)>,
}

/// The cells of one collective, by place of the member.
#[derive(Default)]
struct Meeting {
    weight: u32,
    cells: Vec<(usize, Cell)>,
}

impl Heap<'_> {
    /// Keeps one kind of times, that which more ranks have: when a device began a collective and when
    /// a host enqueued it cannot be compared. The ranks of the other kind count as missing.
    fn keep_one_kind(&mut self) {
        let of_kind = |device: bool| self.sampled.iter().filter(move |of| (of.tier >= Rules::OF_DEVICE) == device);
        if of_kind(true).next().is_none() || of_kind(false).next().is_none() {
            return;
        }
        let ranks =
            |device: bool| of_kind(device).map(|of| (of.rank, &*of.node, of.pid)).collect::<BTreeSet<_>>().len();
        let device = ranks(true) >= ranks(false);
        self.sampled.retain(|of| (of.tier >= Rules::OF_DEVICE) == device);
        self.lanes.retain(|(_, lane)| (lane.tier >= Rules::OF_DEVICE) == device);
    }
}

fn one(hash: u64, heap: &Heap<'_>, classes: &HashMap<Process, usize>, input: &Input, rules: &Rules) -> Comm {
    let mut comm = Comm { hash, tier: u8::MAX, ..Comm::default() };
    // Who it is that each of the lanes is of; in order, the members.
    let mut keys: Vec<(Key<'_>, usize)> = Vec::with_capacity(heap.sampled.len() + heap.lanes.len());
    keys.extend(heap.sampled.iter().enumerate().map(|(at, of)| ((of.rank, &of.node, of.pid), at)));
    for (totals, lane) in &heap.lanes {
        comm.count(&lane.func, lane.calls, lane.tier, lane.nranks);
        keys.push(((lane.rank, &totals.node, totals.pid), usize::MAX));
    }
    keys.sort_unstable();
    let library = heap.sampled.first().map(|of| &of.library).or(heap.lanes.first().map(|(_, l)| &l.library));
    comm.library = library.map(ToString::to_string).unwrap_or_default();
    let mut places = vec![0; heap.sampled.len()];
    for same in keys.chunk_by(|a, b| a.0 == b.0) {
        let (rank, node, pid) = same[0].0;
        for at in same.iter().map(|(_, at)| *at).filter(|at| *at < usize::MAX) {
            places[at] = comm.members.len();
        }
        let process: Process = (Arc::clone(node), pid);
        let class = classes.get(&process).copied().unwrap_or(usize::MAX);
        // The ranks of a host mostly follow each other.
        let clock = match comm.members.last() {
            Some(before) if before.node == *node => before.clock,
            _ => input
                .clocks
                .get(&**node)
                .map(|clock| ClockOffset { bound_ns: clock.bound_within(input.since_ns, input.until_ns), ..*clock }),
        };
        comm.members.push(Member { rank, node: process.0, pid, clock, class });
    }

    let runs = || heap.sampled.iter().flat_map(|of| &of.runs);
    let unseen = runs().filter(|run| !run.waited).count();
    comm.lifted = comm.tier == 0 && unseen as f64 <= (1.0 - rules.present) * runs().count() as f64;
    comm.tier = if comm.lifted { 1 } else { comm.tier };
    comm.reconstructed = comm.tier == 0 && runs().any(|run| run.unsure.is_some());

    let mut keys: Places<(&str, u64)> = Places::default();
    let mut meetings: Vec<Meeting> = Vec::new();
    for (of, place) in heap.sampled.iter().zip(places) {
        let clock = comm.members[place].clock;
        keys.restart();
        for run in of.runs.iter().filter(|run| run.waited || !comm.lifted) {
            let called_ns = if run.waited { 0 } else { run.duration_ns };
            let duration_ns = if comm.lifted { run.duration_ns } else { called_ns };
            let entry_ns = clock.map_or(run.entry_ns, |clock| clock.align(run.entry_ns));
            let (halted_ns, held_ns) = (run.halted_ns, run.held_ns);
            let (compute_ns, unsure) = (run.compute_ns, run.unsure);
            let cell = Cell { entry_ns, duration_ns, halted_ns, held_ns, called_ns, compute_ns, unsure };
            let at = keys.of((&of.func, run.seq));
            if at == meetings.len() {
                meetings.push(Meeting::default());
            }
            let meeting = &mut meetings[at];
            meeting.weight = run.weight.max(meeting.weight);
            meeting.cells.push((place, cell));
        }
    }
    let least = ((comm.members.len() as f64 * rules.present).ceil() as usize).max(2);
    let mut all_met = Vec::new();
    // By member, the last collective in which it was found.
    let mut found = vec![usize::MAX; comm.members.len()];
    for (number, (key, Meeting { weight, mut cells })) in keys.into_keys().into_iter().zip(meetings).enumerate() {
        // Of a rank's own the first counts.
        cells.retain(|(place, _)| std::mem::replace(&mut found[*place], number) != number);
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
        // Only now a place for every member: what a wrong store claims must not cost more than what
        // it sends.
        let mut row = vec![None; comm.members.len()];
        cells.into_iter().for_each(|(place, cell)| row[place] = Some(cell));
        all_met.push((key, Met { at_ns, func: key.0.into(), seq: key.1, weight, cells: row }));
    }
    // The same order for every coordinator, also where two begin at the same time.
    all_met.sort_by_key(|(key, m): &((&str, u64), Met)| (m.at_ns, *key));
    comm.met = all_met.into_iter().map(|(_, m)| m).collect();
    settle_halts(&mut comm);
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
    let half = all.len() / 2;
    (half < all.len()).then(|| *all.select_nth_unstable(half).1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Observation;

    const US: i64 = 1_000;

    fn call(rank: i32, func: &str, seq: u64, entry_us: i64, duration_us: i64) -> Observation {
        let call = Observation::test_call(rank, 7, func, seq, entry_us * US, duration_us * US);
        Observation { nranks: Some(2), ..call }
    }

    fn input(observations: Vec<Observation>) -> Input {
        let clock = |offset_ns| ClockOffset::steady(offset_ns, 0);
        Input {
            observations,
            clocks: [("n0".into(), clock(0)), ("n1".into(), clock(1_000 * US))].into(),
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
        assert_eq!(entries, [100 * US, 130 * US], "rank 1's clock is 1000 us ahead");
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
        let own: Vec<Option<i64>> = comms[0].met.iter().map(|m| m.cells[0].unwrap().compute_ns).collect();
        assert_eq!(own, [None, Some(20 * US), None, Some(10 * US)]);
        assert_eq!(comms[0].one_sided, 1);
    }
}
