//! Follows a process call by call: the compute time between its collectives, which is what it
//! spends outside communication and synchronise calls.

use std::collections::HashMap;
use std::sync::Arc;

use observed::{Coupling, Observation};

/// Follows one process. Times are of its node's own clock, nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Follower {
    busy_until_ns: Option<i64>,
    outside_ns: i64,
    held_ns: i64,
    /// Calls so far.
    place: u64,
    /// Place of the last call before which a record was missing that may hold a wait.
    gap_at: u64,
    /// Its waits for its device are seen.
    synced: bool,
    /// By communicator: place of its last coupling call, and time outside and held up to then.
    previous: HashMap<u64, (u64, i64, i64)>,
    /// By communicator and function: last number, and its call's entry.
    last_of: HashMap<(u64, Arc<str>), (u64, i64)>,
    /// The largest communicator in which it met others: size and hash.
    largest: Option<(Option<i32>, u64)>,
    met: bool,
    openers: HashMap<Arc<str>, u64>,
}

/// What is known of the time before a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Since {
    pub(super) compute_ns: Option<i64>,
    pub(super) held_ns: i64,
    pub(super) gap_since_ns: Option<i64>,
}

impl Follower {
    /// Takes the next call, in order of entry; gives the compute time before it where it is a
    /// coupling one, and that is known: not before the first, and not where a record is missing.
    /// Where one is, gives also since when it may be: no compute time of the process that ends
    /// after that is known.
    pub(super) fn next(&mut self, seen: &Observation) -> Since {
        self.place += 1;
        self.held_ns = self.held_ns.saturating_add(seen.held_ns);
        self.busy(seen.entry_ns, seen.entry_ns.saturating_add(seen.duration_ns));
        let before = self.last_of.insert((seen.comm_hash, Arc::clone(&seen.func)), (seen.seq, seen.entry_ns));
        // A call that only enqueues holds no wait: where these are seen in synchronise calls, one that
        // was lost hides nothing but the microseconds that it took.
        let hides = seen.tier > 0 || !self.synced;
        let missing = before.filter(|(seq, _)| hides && seen.seq != seq.wrapping_add(1));
        let since_ns = missing.map(|(_, entry_ns)| entry_ns);
        if since_ns.is_some() {
            self.gap_at = self.place;
        }
        let (compute_ns, held_ns) = self.since_previous(seen);
        Since { compute_ns, held_ns, gap_since_ns: since_ns }
    }

    /// Compute time, where it is known, and time held since the previous coupling call of the communicator.
    fn since_previous(&mut self, seen: &Observation) -> (Option<i64>, i64) {
        let comm = (seen.nranks, seen.comm_hash);
        match Coupling::of(&seen.func) {
            Coupling::All => {
                self.largest = self.largest.max(Some(comm));
                self.met |= self.largest == Some(comm);
            }
            Coupling::Pair if std::mem::take(&mut self.met) => {
                *self.openers.entry(Arc::clone(&seen.func)).or_default() += 1;
                return (None, 0);
            }
            _ => return (None, 0),
        }
        let now = (self.place, self.outside_ns, self.held_ns);
        let Some((place, outside_ns, held_ns)) = self.previous.insert(seen.comm_hash, now) else { return (None, 0) };
        ((place >= self.gap_at).then(|| self.outside_ns - outside_ns), self.held_ns - held_ns)
    }

    /// It waited for its device in a synchronise call.
    pub(super) fn synced(&mut self, start_ns: i64, end_ns: i64) {
        self.synced = true;
        self.busy(start_ns, end_ns);
    }

    /// It was in a call, or waited for its device, which is none of its compute time. What lies
    /// before what was taken already is not looked at.
    pub(super) fn busy(&mut self, start_ns: i64, end_ns: i64) {
        let until_ns = self.busy_until_ns.unwrap_or(i64::MAX);
        self.outside_ns = self.outside_ns.saturating_add(start_ns.saturating_sub(until_ns).max(0));
        self.busy_until_ns = self.busy_until_ns.max(Some(end_ns));
    }

    /// It was held off its CPU outside calls.
    pub(super) fn held(&mut self, ns: i64) {
        self.held_ns = self.held_ns.saturating_add(ns);
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// Steps of ten calls, one each ten milliseconds, and a wait for the device of 50 ms after them;
    /// the record of one call in seven is lost. What each call's compute time was.
    fn compute_times(tier: u8, waits: bool) -> Vec<Option<i64>> {
        let (mut follower, mut now_ns, mut found) = (Follower::default(), 0, Vec::new());
        for seq in 0..200 {
            now_ns += 10 * MS;
            let call = Observation {
                nranks: Some(2),
                comm_hash: 7,
                func: "all_reduce".into(),
                seq,
                tier,
                ..Default::default()
            };
            if seq % 7 != 3 {
                found.push(follower.next(&Observation { entry_ns: now_ns, duration_ns: 1_000, ..call }).compute_ns);
            }
            if seq % 10 == 9 {
                if waits {
                    follower.synced(now_ns + 1_000, now_ns + 50 * MS);
                }
                now_ns += 50 * MS;
            }
        }
        found
    }

    #[test]
    fn a_lost_call_hides_a_wait_only_where_calls_wait() {
        let known = |found: &[Option<i64>]| found.iter().skip(20).filter(|own| own.is_some()).count();
        let synced = compute_times(0, true);
        assert_eq!(known(&synced), synced.len() - 20, "every compute time is known");
        let longest = synced.iter().skip(20).flatten().max();
        assert!(longest.is_some_and(|ns| *ns < 21 * MS), "at most two calls' and no wait: {longest:?}");
        for found in [compute_times(1, true), compute_times(0, false)] {
            assert!(known(&found) < found.len() - 40, "{} of {}", known(&found), found.len());
        }
    }
}
