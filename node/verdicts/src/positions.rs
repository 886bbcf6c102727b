//! How far processes got on communicators whose start was not seen: by the calls that they have in
//! common with a process of which it is known, or with the one of which most calls are.
//!
//! `number` says which calls of a function are one collective. From the last of these on a process's
//! collectives are counted, whatever their functions: so it has a position, too, unless records were
//! lost meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use observed::{ClockOffset, Coupling, InCall, Input, Observation, Process, Progress, is_counted, progress_of};

/// The collectives of a process on a communicator, in order of entry, and whether each has a number.
type Calls = Vec<(Observation, bool)>;

/// Finds the positions of collectives that have none, and says how far their processes got.
pub(crate) fn positions(all: &mut Input) {
    let lacks = |p: &Progress| p.uncounted;
    let mut wanted: BTreeSet<u64> = all.progress.iter().filter(|p| lacks(p)).map(|p| p.comm_hash).collect();
    let open = all.in_calls.iter().filter(|call| call.comm_seq.is_none() && is_counted(&call.func));
    wanted.extend(open.filter_map(|call| call.comm_hash));
    let enqueued = all.unnumbered.iter().filter(|seen| seen.tier == 0 && !all.syncing.is_empty());
    wanted.extend(enqueued.map(|seen| seen.comm_hash));
    for comm in wanted {
        of_comm(all, comm);
    }
}

fn of_comm(all: &mut Input, comm: u64) {
    let mut calls: BTreeMap<Process, Calls> = BTreeMap::new();
    let numbered = all.observations.iter().map(|seen| (seen, true));
    let all_calls = numbered.chain(all.unnumbered.iter().map(|seen| (seen, false)));
    for (seen, numbered) in all_calls.filter(|(seen, _)| seen.comm_hash == comm && is_counted(&seen.func)) {
        calls.entry((Arc::clone(&seen.node), seen.pid)).or_default().push((seen.clone(), numbered));
    }
    calls.values_mut().for_each(|calls| calls.sort_by_key(|(seen, _)| seen.entry_ns));
    // Whose positions are known, else of whom most is.
    let knows = |calls: &Calls| calls.iter().any(|(seen, _)| seen.comm_seq.is_some());
    let Some((reference, _)) = calls.iter().max_by_key(|(_, calls)| (knows(calls), calls.len())) else { return };
    let reference = reference.clone();
    let Some(theirs) = calls.get_mut(&reference) else { return };
    if !knows(theirs) {
        (0..).zip(theirs.iter_mut()).for_each(|(place, (seen, _))| seen.comm_seq = Some(place));
    }
    let places: BTreeMap<(Arc<str>, u64), u64> = theirs
        .iter()
        .filter(|(seen, numbered)| *numbered && Coupling::of(&seen.func) == Coupling::All)
        .filter_map(|(seen, _)| Some(((Arc::clone(&seen.func), seen.seq), seen.comm_seq?)))
        .collect();
    let entered: BTreeMap<u64, i64> =
        theirs.iter().filter_map(|(seen, _)| Some((seen.comm_seq?, seen.entry_ns))).collect();
    let is_lost = |node: &Arc<str>, since_ns: i64| all.lost_until_ns.get(node).is_some_and(|at| *at >= since_ns);
    let mut last = BTreeMap::new();
    for (process, own) in &mut calls {
        let known = own.iter().rposition(|(seen, numbered)| {
            seen.comm_seq.is_some() || *numbered && places.contains_key(&(Arc::clone(&seen.func), seen.seq))
        });
        let Some(known) = known else { continue };
        let at =
            own[known].0.comm_seq.or_else(|| places.get(&(Arc::clone(&own[known].0.func), own[known].0.seq)).copied());
        let Some(at) = at else { continue };
        // What is counted from here on may be one too few, here or there.
        let there = entered.get(&at).is_some_and(|entry_ns| is_lost(&reference.0, *entry_ns));
        if there || is_lost(&process.0, own[known].0.entry_ns) {
            continue;
        }
        let place = |of: usize| (at + of as u64).checked_sub(known as u64);
        // Between calls whose positions are known records may be lost.
        own.iter_mut().enumerate().skip(known).for_each(|(of, (seen, _))| seen.comm_seq = place(of));
        last.insert(process.clone(), place(own.len()));
    }
    let left = left(all, calls.values().flatten().map(|(seen, _)| seen));
    for (process, next) in last {
        let Some(own) = calls.get(&process) else { continue };
        let is_own = |node: &Arc<str>, pid: i64| (node, pid) == (&process.0, process.1);
        let clocks = &all.clocks;
        let mut open: Vec<InCall> = Vec::new();
        for call in &mut all.in_calls {
            if call.comm_hash != Some(comm) || !is_own(&call.node, call.pid) || !is_counted(&call.func) {
                continue;
            }
            if call.comm_seq.is_none() {
                call.comm_seq = next.map(|next| not_before(&left, call, next, clocks));
            }
            open.push(call.clone());
        }
        all.progress.retain(|p| p.comm_hash != comm || !is_own(&p.node, p.pid));
        let placed = own.iter().map(|(seen, _)| seen).filter(|seen| seen.comm_seq.is_some());
        all.progress.extend(progress_of(placed, &open));
    }
}

/// By position: when the first rank had surely left the call, on the coordinator's clock, of calls
/// in which all ranks meet.
fn left<'a>(all: &Input, calls: impl Iterator<Item = &'a Observation>) -> BTreeMap<u64, i64> {
    let mut left = BTreeMap::new();
    for seen in calls.filter(|seen| seen.tier > 0 && Coupling::of(&seen.func) == Coupling::All) {
        let Some((position, clock)) = seen.comm_seq.zip(all.clocks.get(&*seen.node)) else { continue };
        let end_ns = clock.align(seen.entry_ns.saturating_add(seen.duration_ns));
        let surely_ns = end_ns.saturating_add(clock.bound_within(end_ns, end_ns));
        let at = left.entry(position).or_insert(surely_ns);
        *at = surely_ns.min(*at);
    }
    left
}

/// The position of a call that is not over, at least `next`. Records between it and the last call
/// whose position is known may be lost; but nobody leaves a call that all have not entered, so it is
/// none of those that another had left before it was entered.
fn not_before(left: &BTreeMap<u64, i64>, open: &InCall, next: u64, clocks: &BTreeMap<String, ClockOffset>) -> u64 {
    let Some(clock) = clocks.get(&*open.node) else { return next };
    let entry_ns = clock.align(open.since_ns);
    let surely_ns = entry_ns.saturating_sub(clock.bound_within(entry_ns, entry_ns));
    let before = left.range(next..).filter(|(_, at)| **at < surely_ns).map(|(position, _)| position + 1);
    before.max().unwrap_or(next)
}
