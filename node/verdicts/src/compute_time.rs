//! A process's own time between two collectives: what it spends outside communication and
//! synchronise calls.

use std::collections::HashMap;

use super::input::Input;
use super::meet::Left;
use super::observation::Coupling;
use super::sampled::Unsure;
use super::waited::Waited;

/// A stretch in which a process does not work on its own: a call, or a wait for its device.
struct Busy {
    start_ns: i64,
    end_ns: i64,
    /// The earliest and the latest that it may have ended, where the end was told by other hosts'
    /// clocks.
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
pub(crate) struct ComputeTime {
    /// Its own time.
    pub(crate) compute_ns: Option<i64>,
    /// How far the clocks' bounds leave it open, where waits were told from other hosts' entries.
    pub(crate) unsure: Option<Unsure>,
}

/// How things stand at a call: its place, own time, and the time outside with the earliest and the
/// latest ends.
#[derive(Clone, Copy)]
struct Stand {
    place: usize,
    compute_ns: i64,
    most_ns: i64,
    least_ns: i64,
}

/// For each observation that starts a coupling collective: the time its process spent outside any
/// communication or synchronise call since it left the previous coupling collective of the same
/// communicator. None where that is not known: for the first one, and where a gap in a seq says
/// that a record between the two is missing.
pub(crate) fn compute_times(input: &Input, waited: &[Waited], met: Option<&[Left]>) -> Vec<ComputeTime> {
    let observations = &input.observations;
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
    let mut own = vec![ComputeTime::default(); observations.len()];
    for mut stretches in processes.into_values() {
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
        let mut previous: HashMap<u64, Stand> = HashMap::new();
        for (place, busy) in stretches.iter().enumerate() {
            outside.take(busy.start_ns, busy.end_ns);
            most.take(busy.start_ns, busy.within_ns[0]);
            least.take(busy.start_ns, busy.within_ns[1]);
            let Some((i, seen)) = busy.call.map(|i| (i, &observations[i])) else { continue };
            if Coupling::of(&seen.func) != Coupling::All || waited[i] == Waited::WithLater {
                continue;
            }
            let now = Stand { place, compute_ns: outside.sum_ns, most_ns: most.sum_ns, least_ns: least.sum_ns };
            if let Some(before) = previous.insert(seen.comm_hash, now)
                && missing_before[place] == missing_before[before.place]
            {
                let compute_ns = now.compute_ns - before.compute_ns;
                let unsure = met.is_some().then(|| Unsure {
                    less_ns: (compute_ns - (now.least_ns - before.least_ns)).max(0),
                    more_ns: (now.most_ns - before.most_ns - compute_ns).max(0),
                });
                own[i] = ComputeTime { compute_ns: Some(compute_ns), unsure };
            }
        }
    }
    own
}
