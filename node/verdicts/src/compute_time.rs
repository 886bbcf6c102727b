//! Follows a process call by call, from rows and for digests alike: the compute time between its
//! collectives, which is what it spends outside communication and synchronise calls, and what it
//! calls altogether.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::input::Input;
use super::meet::Left;
use super::observation::{Coupling, Observation};
use super::sampled::{LaneTotal, Totals, Unsure};
use super::waited::Waited;

/// What a process did between two collectives of a communicator, on its own clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ComputeTime {
    /// Time outside any communication or synchronise call; none for the first collective, and where
    /// a record between the two is missing.
    pub(crate) compute_ns: Option<i64>,
    /// How far the clocks' bounds leave it open, where waits were told from other hosts' entries.
    pub(crate) unsure: Option<Unsure>,
}

/// Three readings of an instant or a length, nanoseconds: as the clocks say, and with every wait
/// that was told from other hosts' clocks at its shortest and at its longest.
type Readings = [i64; 3];

/// Follows one process.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    busy_until: Option<Readings>,
    outside_ns: Readings,
    /// Calls so far.
    place: u64,
    /// Place of the last call before which a record was missing.
    gap_at: u64,
    /// By communicator: place of its last coupling call, and time outside up to then.
    previous: HashMap<u64, (u64, Readings)>,
    /// By communicator and function: last number.
    last_of: HashMap<(u64, Arc<str>), u64>,
    /// The largest communicator in which it met others: size and hash.
    largest: Option<(Option<i32>, u64)>,
    met: bool,
    openers: HashMap<Arc<str>, u64>,
}

impl Follower {
    /// Takes the next call, in order of entry; gives the compute time before it where it is a
    /// coupling one that `counts`, and that is known.
    pub(crate) fn next(&mut self, seen: &Observation, ends_ns: Readings, counts: bool) -> Option<Readings> {
        self.place += 1;
        self.busy(seen.entry_ns, ends_ns);
        if let Some(before) = self.last_of.insert((seen.comm_hash, Arc::clone(&seen.func)), seen.seq)
            && seen.seq != before.wrapping_add(1)
        {
            self.gap_at = self.place;
        }
        let comm = (seen.nranks, seen.comm_hash);
        match Coupling::of(&seen.func) {
            Coupling::All => {
                self.largest = self.largest.max(Some(comm));
                self.met |= self.largest == Some(comm);
            }
            Coupling::Pair if std::mem::take(&mut self.met) => {
                *self.openers.entry(Arc::clone(&seen.func)).or_default() += 1;
                return None;
            }
            _ => return None,
        }
        let now = (self.place, self.outside_ns);
        let (place, outside) = if counts { self.previous.insert(seen.comm_hash, now)? } else { return None };
        (place >= self.gap_at).then(|| std::array::from_fn(|i| self.outside_ns[i] - outside[i]))
    }

    /// It was in a call, or waited for its device, which is none of its compute time. What lies
    /// before what was taken already is not looked at.
    pub(crate) fn busy(&mut self, start_ns: i64, ends_ns: Readings) {
        let until = self.busy_until.unwrap_or([i64::MAX; 3]);
        for (sum, until) in self.outside_ns.iter_mut().zip(until) {
            *sum = sum.saturating_add(start_ns.saturating_sub(until).max(0));
        }
        self.busy_until =
            Some(self.busy_until.map_or(ends_ns, |until| std::array::from_fn(|i| until[i].max(ends_ns[i]))));
    }

    /// A record may be missing before the next call.
    fn gap(&mut self) {
        self.gap_at = self.place + 1;
    }

    /// Time outside calls so far.
    pub(crate) fn outside_ns(&self) -> i64 {
        self.outside_ns[0]
    }

    /// A communicator is no more.
    pub(crate) fn ended(&mut self, comm_hash: u64) {
        self.previous.remove(&comm_hash);
        self.last_of.retain(|(comm, _), _| *comm != comm_hash);
        self.largest = self.largest.filter(|(_, comm)| *comm != comm_hash);
    }

    /// The call that mostly opened a step since this was asked last: the first to a single rank
    /// after a meeting of the largest communicator. Forgets it slowly.
    pub(crate) fn opens(&mut self) -> Option<Arc<str>> {
        let most = self.openers.iter().max_by_key(|(name, n)| (**n, Arc::clone(name)));
        let name = most.map(|(name, _)| Arc::clone(name));
        self.openers.values_mut().for_each(|n| *n -= *n / 8);
        name
    }
}

/// A stretch in which a process does not work on its own: a call, or a wait for its device.
struct Busy {
    start_ns: i64,
    ends_ns: Readings,
    /// Which observation; none for a synchronise call and for a call without a number.
    call: Option<usize>,
}

/// Follows the processes of an input: for each observation its compute time, and what each process
/// called.
pub(crate) fn follow(input: &Input, waited: &[Waited], met: Option<&[Left]>) -> (Vec<ComputeTime>, Vec<Totals>) {
    let observations = &input.observations;
    let mut processes: BTreeMap<(&Arc<str>, i64), Vec<Busy>> = BTreeMap::new();
    for (i, seen) in observations.iter().enumerate() {
        let end_ns = seen.entry_ns.saturating_add(seen.duration_ns);
        let ends_ns = match met.map(|met| met[i]) {
            Some(Left::At(left)) => [left.at_ns, left.earliest_ns, left.latest_ns].map(|left_ns| left_ns.max(end_ns)),
            _ => [end_ns; 3],
        };
        let busy = Busy { start_ns: seen.entry_ns, ends_ns, call: Some(i) };
        processes.entry((&seen.node, seen.pid)).or_default().push(busy);
    }
    let left_out = input.unnumbered.iter().map(|o| (&o.node, o.pid, o.entry_ns, o.duration_ns));
    let synced = input.syncs.iter().map(|s| (&s.node, s.pid, s.start_ns, s.duration_ns));
    for (node, pid, start_ns, duration_ns) in synced.chain(left_out) {
        if let Some(list) = processes.get_mut(&(node, pid)) {
            let end_ns = start_ns.saturating_add(duration_ns.max(0));
            list.push(Busy { start_ns, ends_ns: [end_ns; 3], call: None });
        }
    }
    let mut own = vec![ComputeTime::default(); observations.len()];
    let mut totals = Vec::with_capacity(processes.len());
    for ((node, pid), mut stretches) in processes {
        stretches.sort_by_key(|busy| busy.start_ns);
        let gaps = gaps(&stretches, observations, met);
        let mut follower = Follower::default();
        let mut lanes: BTreeMap<(u64, &str), LaneTotal> = BTreeMap::new();
        for (busy, gap) in stretches.iter().zip(gaps) {
            if gap {
                follower.gap();
            }
            let Some((i, seen)) = busy.call.map(|i| (i, &observations[i])) else {
                follower.busy(busy.start_ns, busy.ends_ns);
                continue;
            };
            lanes.entry((seen.comm_hash, &seen.func)).or_insert_with(|| LaneTotal::of(seen)).count(1, seen.nranks);
            if let Some([compute_ns, most, least]) = follower.next(seen, busy.ends_ns, waited[i] != Waited::WithLater) {
                let open = Unsure { less_ns: (compute_ns - least).max(0), more_ns: (most - compute_ns).max(0) };
                own[i] = ComputeTime { compute_ns: Some(compute_ns), unsure: met.map(|_| open) };
            }
        }
        let lanes = lanes.into_values().collect();
        totals.push(Totals { node: Arc::clone(node), pid, opens: follower.opens(), lanes });
    }
    (own, totals)
}

/// For each stretch whether a record may be missing before it: one of a lane whose numbers do not
/// follow each other lay anywhere between its two calls. The same after a call of which it is not
/// known when it was over.
fn gaps(stretches: &[Busy], observations: &[Observation], met: Option<&[Left]>) -> Vec<bool> {
    let mut changes = vec![0i64; stretches.len() + 2];
    let mut last_of: HashMap<(u64, &str), (usize, u64)> = HashMap::new();
    for (place, i) in stretches.iter().enumerate().filter_map(|(place, busy)| Some((place, busy.call?))) {
        let seen = &observations[i];
        if let Some((before, seq)) = last_of.insert((seen.comm_hash, &seen.func), (place, seen.seq))
            && seen.seq != seq.wrapping_add(1)
        {
            changes[before + 1] += 1;
            changes[place + 1] -= 1;
        }
        if met.is_some_and(|met| met[i] == Left::Unknown) {
            changes[place + 1] += 1;
            changes[place + 2] -= 1;
        }
    }
    let open = changes.iter().scan(0, |open, change| {
        *open += change;
        Some(*open > 0)
    });
    open.take(stretches.len()).collect()
}
