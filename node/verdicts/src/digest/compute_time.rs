//! Follows a process's own time: the time outside any communication call since it left the previous
//! coupling call of the same communicator, as `compute_time.rs` of the analysis computes it from
//! rows; the call with which it opens a step; and its steps (`steps.rs`).

use std::collections::HashMap;
use std::sync::Arc;

use super::steps::Stepping;
use crate::Observation;
use crate::observation::Coupling;

/// One process.
#[derive(Debug, Default)]
pub(super) struct ComputeTime {
    in_call_until: Option<i64>,
    outside_ns: i64,
    /// Calls so far.
    place: u64,
    /// Place of the last call before which a record was missing.
    gap_at: u64,
    /// By communicator: place of its last coupling call, and time outside up to then.
    previous: HashMap<u64, (u64, i64)>,
    /// By communicator and function: last number.
    last_of: HashMap<(u64, Arc<str>), u64>,
    /// The largest communicator in which it met others: size and hash.
    largest: Option<(Option<i32>, u64)>,
    met: bool,
    openers: HashMap<Arc<str>, u64>,
    pub(super) steps: Stepping,
}

impl ComputeTime {
    /// Take the next call, in order of entry; gives the own time before it where it is a coupling
    /// one and that is known.
    pub(super) fn next(&mut self, seen: &Observation) -> Option<i64> {
        self.place += 1;
        if let Some(until) = self.in_call_until {
            self.outside_ns = self.outside_ns.saturating_add(seen.entry_ns.saturating_sub(until).max(0));
        }
        let left = seen.entry_ns.saturating_add(seen.duration_ns);
        self.in_call_until = self.in_call_until.max(Some(left));
        if let Some(before) = self.last_of.insert((seen.comm_hash, Arc::clone(&seen.func)), seen.seq)
            && seen.seq != before.wrapping_add(1)
        {
            self.gap_at = self.place;
        }
        self.steps.take(seen, self.outside_ns);
        match Coupling::of(&seen.func) {
            Coupling::All => {}
            Coupling::Pair if self.met => {
                *self.openers.entry(Arc::clone(&seen.func)).or_default() += 1;
                self.met = false;
                return None;
            }
            _ => return None,
        }
        let comm = (seen.nranks, seen.comm_hash);
        self.largest = self.largest.max(Some(comm));
        self.met |= self.largest == Some(comm);
        let (place, outside) = self.previous.insert(seen.comm_hash, (self.place, self.outside_ns))?;
        (place >= self.gap_at).then(|| self.outside_ns - outside)
    }

    /// It waited for its device, which is none of its own time. What lies before a call that was
    /// taken already is not looked at.
    pub(super) fn busy(&mut self, start_ns: i64, end_ns: i64) {
        if let Some(until) = self.in_call_until {
            self.outside_ns = self.outside_ns.saturating_add(start_ns.saturating_sub(until).max(0));
        }
        self.in_call_until = self.in_call_until.max(Some(end_ns));
    }

    /// A communicator is no more.
    pub(super) fn ended(&mut self, comm_hash: u64) {
        self.previous.remove(&comm_hash);
        self.last_of.retain(|(comm, _), _| *comm != comm_hash);
        self.largest = self.largest.filter(|(_, comm)| *comm != comm_hash);
    }

    /// The call that mostly opened a step since this was asked last; forgets it slowly.
    pub(super) fn opens(&mut self) -> Option<Arc<str>> {
        let most = self.openers.iter().max_by_key(|(name, n)| (**n, Arc::clone(name)));
        let name = most.map(|(name, _)| Arc::clone(name));
        self.openers.values_mut().for_each(|n| *n -= *n / 8);
        name
    }
}
