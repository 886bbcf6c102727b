//! A process's own time between two collectives: what it spends outside communication and synchronise calls, or what was
//! timed as its work.
//!
//! Also: until when a process waited for what a call enqueued, by the synchronise call after it. Where that was not seen,
//! `meet.rs` tells it from the entries of the others.

use std::collections::HashMap;

use super::meet::Left;
use super::observation::{Coupling, Input};
use super::sampled::Unsure;

/// Until when a process waited for what a call enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    /// No synchronise call after it was seen, or the call does not enqueue.
    Unseen,
    /// It has the synchronise call after it in common with a later call of its communicator: that one counts.
    WithLater,
    /// The end of the synchronise call after it, on the node's own clock.
    Until(i64),
}

/// For each observation, the synchronise call that follows it in its process.
pub(crate) fn waited(input: &Input) -> Vec<Waited> {
    let mut waited = vec![Waited::Unseen; input.observations.len()];
    let mut syncs: HashMap<(&str, i64), Vec<(i64, i64)>> = HashMap::new();
    for sync in &input.syncs {
        let end = sync.start_ns.saturating_add(sync.duration_ns.max(0));
        syncs.entry((&sync.node, sync.pid)).or_default().push((sync.start_ns, end));
    }
    if syncs.is_empty() {
        return waited;
    }
    syncs.values_mut().for_each(|list| list.sort_unstable());
    // The last call of a communicator before each synchronise call.
    let mut last: HashMap<(&str, i64, u64, i64), usize> = HashMap::new();
    for (i, seen) in input.observations.iter().enumerate() {
        if seen.tier > 0 || Coupling::of(&seen.func) != Coupling::All {
            continue;
        }
        let Some(list) = syncs.get(&(&*seen.node, seen.pid)) else { continue };
        let Some(&(start, end)) = list.get(list.partition_point(|(start, _)| *start < seen.entry_ns)) else { continue };
        waited[i] = Waited::Until(end);
        if let Some(before) = last.insert((&seen.node, seen.pid, seen.comm_hash, start), i) {
            let earlier = if input.observations[before].entry_ns > seen.entry_ns { i } else { before };
            waited[earlier] = Waited::WithLater;
            if earlier == i {
                last.insert((&seen.node, seen.pid, seen.comm_hash, start), before);
            }
        }
    }
    waited
}

/// A stretch in which a process does not work on its own: a call, or a wait for its device.
struct Busy {
    start_ns: i64,
    end_ns: i64,
    /// The earliest and the latest that it may have ended, where the end was told by other hosts' clocks.
    within_ns: [i64; 2],
    /// Which observation; none for a synchronise call and for a call without a number.
    call: Option<usize>,
}

/// Time outside stretches, as they are taken in order of their starts.
#[derive(Default)]
struct Outside {
    until_ns: Option<i64>,
    sum_ns: i64,
}

impl Outside {
    fn take(&mut self, start_ns: i64, end_ns: i64) {
        let gap = self.until_ns.map_or(0, |until| start_ns.saturating_sub(until).max(0));
        self.sum_ns = self.sum_ns.saturating_add(gap);
        self.until_ns = self.until_ns.max(Some(end_ns));
    }
}

/// What a process did between two collectives of a communicator, on its own clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Own {
    /// Its own time.
    pub(crate) own_ns: Option<i64>,
    /// The time outside the calls in which all ranks of a communicator meet, waits for single ranks included; only where its work was timed.
    pub(crate) apart_ns: Option<i64>,
    /// How far the clocks' bounds leave it open, where waits were told from other hosts' entries.
    pub(crate) unsure: Option<Unsure>,
}

/// How things stand at a call: its place, own time, time apart, and the time outside with the earliest and the latest ends.
#[derive(Clone, Copy)]
struct Stand {
    place: usize,
    own_ns: i64,
    apart_ns: i64,
    most_ns: i64,
    least_ns: i64,
}

/// For each observation that starts a coupling collective: the time its process spent outside any communication or
/// synchronise call since it left the previous coupling collective of the same communicator, or the work timed since.
/// None where that is not known: for the first one, and where a gap in a seq says that a record between the two is missing.
pub(crate) fn own_times(input: &Input, waited: &[Waited], met: Option<&[Left]>) -> Vec<Own> {
    let (observations, work) = (&input.observations, &input.work);
    let mut processes: HashMap<(&str, i64), Vec<Busy>> = HashMap::new();
    for (i, seen) in observations.iter().enumerate() {
        let mut end_ns = seen.entry_ns.saturating_add(seen.duration_ns);
        let mut within_ns = [end_ns; 2];
        if let Some(Left::At(left)) = met.map(|met| met[i]) {
            within_ns = [end_ns.max(left.earliest_ns), end_ns.max(left.latest_ns)];
            end_ns = end_ns.max(left.at_ns);
        }
        let busy = Busy { start_ns: seen.entry_ns, end_ns, within_ns, call: Some(i) };
        processes.entry((&seen.node, seen.pid)).or_default().push(busy);
    }
    let left_out = input.unnumbered.iter().map(|o| (&o.node, o.pid, o.entry_ns, o.duration_ns));
    let synced = input.syncs.iter().map(|s| (&s.node, s.pid, s.start_ns, s.duration_ns));
    for (node, pid, start_ns, duration_ns) in synced.chain(left_out) {
        let end_ns = start_ns.saturating_add(duration_ns.max(0));
        if let Some(list) = processes.get_mut(&(&**node, pid)) {
            list.push(Busy { start_ns, end_ns, within_ns: [end_ns; 2], call: None });
        }
    }
    let mut worked: HashMap<(&str, i64), Vec<(i64, i64)>> = HashMap::new();
    for w in work {
        worked.entry((&w.node, w.pid)).or_default().push((w.start_ns, w.duration_ns));
    }
    // Running sums, to ask for the work before any time.
    for list in worked.values_mut() {
        list.sort_unstable();
        list.iter_mut().fold(0, |sum: i64, (_, length)| {
            *length = sum.saturating_add((*length).max(0));
            *length
        });
    }
    let mut own = vec![Own::default(); observations.len()];
    for (process, mut stretches) in processes {
        stretches.sort_by_key(|busy| busy.start_ns);
        // Places (in `stretches`) before which a record may be missing, as a running count.
        let mut gaps = vec![0i64; stretches.len() + 1];
        let mut last_of: HashMap<(u64, &str), (usize, u64)> = HashMap::new();
        for (place, i) in stretches.iter().enumerate().filter_map(|(place, busy)| Some((place, busy.call?))) {
            let seen = &observations[i];
            if let Some((before, seq)) = last_of.insert((seen.comm_hash, &seen.func), (place, seen.seq))
                && seen.seq != seq.wrapping_add(1)
            {
                gaps[before + 1] += 1;
                gaps[place + 1] -= 1;
            }
            if met.is_some_and(|met| met[i] == Left::Unknown) {
                gaps[place + 1] += 1;
                if place + 2 < gaps.len() {
                    gaps[place + 2] -= 1;
                }
            }
        }
        let mut missing_before = Vec::with_capacity(stretches.len());
        let (mut open, mut total) = (0, 0i64);
        for gap in &gaps[..stretches.len()] {
            open += gap;
            total += i64::from(open > 0);
            missing_before.push(total);
        }
        let (mut outside, mut most, mut least) = (Outside::default(), Outside::default(), Outside::default());
        let mut apart = Outside::default();
        let mut previous: HashMap<u64, Stand> = HashMap::new();
        for (place, busy) in stretches.iter().enumerate() {
            outside.take(busy.start_ns, busy.end_ns);
            most.take(busy.start_ns, busy.within_ns[0]);
            least.take(busy.start_ns, busy.within_ns[1]);
            let Some((i, seen)) = busy.call.map(|i| (i, &observations[i])) else { continue };
            if Coupling::of(&seen.func) != Coupling::All || waited[i] == Waited::WithLater {
                continue;
            }
            apart.take(busy.start_ns, busy.end_ns);
            let work = worked.get(&process);
            let so_far = work.map_or(outside.sum_ns, |list| {
                let before = list.partition_point(|(start, _)| *start < seen.entry_ns);
                before.checked_sub(1).map_or(0, |last| list[last].1)
            });
            let now =
                Stand { place, own_ns: so_far, apart_ns: apart.sum_ns, most_ns: most.sum_ns, least_ns: least.sum_ns };
            if let Some(before) = previous.insert(seen.comm_hash, now)
                && missing_before[place] == missing_before[before.place]
            {
                let own_ns = now.own_ns - before.own_ns;
                let unsure = (met.is_some() && work.is_none()).then(|| Unsure {
                    less_ns: (own_ns - (now.least_ns - before.least_ns)).max(0),
                    more_ns: (now.most_ns - before.most_ns - own_ns).max(0),
                });
                let apart_ns = work.map(|_| now.apart_ns - before.apart_ns);
                own[i] = Own { own_ns: Some(own_ns), apart_ns, unsure };
            }
        }
    }
    own
}
