//! Brings the calls of different ranks together: one [`Comm`] per communicator, one [`Met`] per
//! collective.
//!
//! Owns the key (communicator, func, seq), completeness and alignment of clocks. The scores made
//! from it lie in `score.rs`, compute times are made in `compute_time.rs`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::classes::{classes, refine};
use super::comm::{Cell, Comm, Member, Met};
use super::compute_time::{ComputeTime, follow};
use super::input::Input;
use super::meet::reconstruct;
use super::observation::{ClockOffset, Coupling, Observation, Process};
use super::rules::Rules;
use super::sampled::{LaneTotal, Totals};
use super::waited::{Waited, waited};

/// Match everything.
pub(crate) fn communicators(input: &Input, rules: &Rules) -> Vec<Comm> {
    let waited = waited(input);
    let met = reconstruct(input, &waited);
    let (own, followed) = follow(input, &waited, met.as_deref());
    let totals: Vec<&Totals> = followed.iter().chain(&input.totals).collect();
    let classes = classes(&totals);
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
        let own = ComputeTime { compute_ns: cell.compute_ns, unsure: cell.unsure };
        let part = Part { seen: &cell.seen, own, weight: cell.weight, waited, called_ns };
        by_comm.entry(cell.seen.comm_hash).or_default().calls.push(part);
    }
    for totals in &totals {
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
        comm.by_steps = told.contains(&comm.hash);
        comm.reconstructed = (reconstructed || comm.by_steps) && comm.tier == 0;
    }
    refine(&mut comms, &totals);
    comms
}

/// What was heard of one communicator.
#[derive(Default)]
struct Heap<'a> {
    /// Calls and cells.
    calls: Vec<Part<'a>>,
    lanes: Vec<(&'a Totals, &'a LaneTotal)>,
}

/// One call, or a run of calls by their means.
struct Part<'a> {
    seen: &'a Observation,
    own: ComputeTime,
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

fn one(hash: u64, heap: &Heap<'_>, classes: &HashMap<Process, usize>, input: &Input, rules: &Rules) -> Comm {
    let mut comm = Comm { hash, tier: u8::MAX, ..Comm::default() };
    let who = |seen: &'_ Observation| (seen.rank, Arc::as_ptr(&seen.node), seen.pid);
    let mut places: BTreeMap<(i32, &str, i64), usize> = BTreeMap::new();
    // The calls of a process mostly follow each other.
    for calls in heap.calls.chunk_by(|a, b| who(a.seen) == who(b.seen)) {
        let seen = calls[0].seen;
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

    let mut groups: HashMap<(&Arc<str>, u64), Meeting> = HashMap::new();
    let mut last = None;
    for &Part { seen, own, weight, waited, called_ns } in &heap.calls {
        if Coupling::of(&seen.func) != Coupling::All {
            continue;
        }
        let duration_ns = match waited {
            Waited::Until(end) if comm.lifted => end.saturating_sub(seen.entry_ns),
            _ if comm.lifted => continue,
            _ => called_ns,
        };
        let place = match last {
            Some((before, place)) if before == who(seen) => place,
            _ => places[&(seen.rank, &*seen.node, seen.pid)],
        };
        last = Some((who(seen), place));
        let entry_ns = comm.members[place].clock.map_or(seen.entry_ns, |c| c.align(seen.entry_ns));
        let ComputeTime { compute_ns, unsure } = own;
        let cell = Cell { entry_ns, duration_ns, called_ns, compute_ns, unsure };
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
        // Only now a place for every member: what a wrong store claims must not cost more than what
        // it sends.
        let mut row = vec![None; comm.members.len()];
        cells.into_iter().for_each(|(place, cell)| row[place] = Some(cell));
        all_met.push((key, Met { at_ns, func: Arc::clone(key.0), weight, cells: row }));
    }
    // The same order for every coordinator, also where two begin at the same time.
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
        let own: Vec<Option<i64>> = comms[0].met.iter().map(|m| m.cells[0].unwrap().compute_ns).collect();
        assert_eq!(own, [None, Some(20), None, Some(10)]);
        assert_eq!(comms[0].one_sided, 1);
    }
}
