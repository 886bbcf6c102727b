//! Follows a process call by call: the compute time between its collectives, which is what it
//! spends outside communication and synchronise calls.

use std::collections::HashMap;
use std::sync::Arc;

use crate::observation::{Coupling, Observation};

/// Follows one process. Times are of its node's own clock, nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Follower {
    busy_until_ns: Option<i64>,
    outside_ns: i64,
    /// Calls so far.
    place: u64,
    /// Place of the last call before which a record was missing.
    gap_at: u64,
    /// By communicator: place of its last coupling call, and time outside up to then.
    previous: HashMap<u64, (u64, i64)>,
    /// By communicator and function: last number, and its call's entry.
    last_of: HashMap<(u64, Arc<str>), (u64, i64)>,
    /// The largest communicator in which it met others: size and hash.
    largest: Option<(Option<i32>, u64)>,
    met: bool,
    openers: HashMap<Arc<str>, u64>,
}

impl Follower {
    /// Takes the next call, in order of entry; gives the compute time before it where it is a
    /// coupling one, and that is known: not before the first, and not where a record is missing.
    /// Where one is, gives also since when it may be: no compute time of the process that ends
    /// after that is known.
    pub(super) fn next(&mut self, seen: &Observation) -> (Option<i64>, Option<i64>) {
        self.place += 1;
        self.busy(seen.entry_ns, seen.entry_ns.saturating_add(seen.duration_ns));
        let before = self.last_of.insert((seen.comm_hash, Arc::clone(&seen.func)), (seen.seq, seen.entry_ns));
        let since_ns = before.filter(|(seq, _)| seen.seq != seq.wrapping_add(1)).map(|(_, entry_ns)| entry_ns);
        if since_ns.is_some() {
            self.gap_at = self.place;
        }
        (self.compute_ns(seen), since_ns)
    }

    fn compute_ns(&mut self, seen: &Observation) -> Option<i64> {
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
        let (place, outside_ns) = self.previous.insert(seen.comm_hash, (self.place, self.outside_ns))?;
        (place >= self.gap_at).then(|| self.outside_ns - outside_ns)
    }

    /// It was in a call, or waited for its device, which is none of its compute time. What lies
    /// before what was taken already is not looked at.
    pub(super) fn busy(&mut self, start_ns: i64, end_ns: i64) {
        let until_ns = self.busy_until_ns.unwrap_or(i64::MAX);
        self.outside_ns = self.outside_ns.saturating_add(start_ns.saturating_sub(until_ns).max(0));
        self.busy_until_ns = self.busy_until_ns.max(Some(end_ns));
    }

    /// Time outside calls so far.
    pub(super) fn outside_ns(&self) -> i64 {
        self.outside_ns
    }

    /// A communicator is no more.
    pub(super) fn ended(&mut self, comm_hash: u64) {
        self.previous.remove(&comm_hash);
        self.last_of.retain(|(comm, _), _| *comm != comm_hash);
        self.largest = self.largest.filter(|(_, comm)| *comm != comm_hash);
    }

    /// The call that mostly opened a step since this was asked last: the first to a single rank
    /// after a meeting of the largest communicator. Forgets it slowly.
    pub(super) fn opens(&mut self) -> Option<Arc<str>> {
        let most = self.openers.iter().max_by_key(|(name, n)| (**n, Arc::clone(name)));
        let name = most.map(|(name, _)| Arc::clone(name));
        self.openers.values_mut().for_each(|n| *n -= *n / 8);
        name
    }
}
