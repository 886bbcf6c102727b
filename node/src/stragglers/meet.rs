//! Where calls only enqueue and no synchronise call was seen: when the ranks met all the same, told from the entries of
//! all of them on aligned clocks.
//!
//! A host that waits for each call before it goes on cannot enter the next one before the last rank has entered this one
//! (its peer, for a send or receive). Where the entries bear that out, the time from then on is its own.

use std::collections::{HashMap, HashSet};

use super::observation::{Coupling, Input, Observation};
use super::own::Waited;

/// Share of telling calls that may break the rule that hosts wait.
const TOLERATED: f64 = 0.05;
/// Share of the processes heard that make everybody.
const MOST: f64 = 0.9;
/// Telling calls that it takes.
const TELLING: usize = 10;

/// When a process went on after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// When the call returned: it does not only enqueue, or its wait was seen.
    Returned,
    /// When the last of the ranks it meets had entered, on its node's own clock.
    At(i64),
    /// A rank that it meets was not heard, or a record was lost.
    Unknown,
}

/// For each observation when its process went on; none where no call needs it, or where hosts do not wait for calls.
pub(crate) fn reconstruct(input: &Input, waited: &[Waited]) -> Option<Vec<Left>> {
    let seen = &input.observations;
    let needs = |i: usize| seen[i].tier == 0 && waited[i] == Waited::Unseen;
    if !(0..seen.len()).any(needs) || (0..seen.len()).any(|i| seen[i].tier == 0 && !needs(i)) {
        return None;
    }
    let aligned = |o: &Observation| input.clocks.get(&*o.node).map(|c| c.align(o.entry_ns));
    let mut groups: HashMap<(u64, &str, u64), Vec<usize>> = HashMap::new();
    for i in (0..seen.len()).filter(|&i| needs(i) && Coupling::of(&seen[i].func) == Coupling::All) {
        groups.entry((seen[i].comm_hash, &seen[i].func, seen[i].seq)).or_default().push(i);
    }
    let processes: HashSet<(&str, i64)> = seen.iter().map(|o| (&*o.node, o.pid)).collect();
    let mut left = vec![Left::Returned; seen.len()];
    for group in groups.values() {
        // Where everybody that was heard is in it, a rank that was not makes all of them alike wait.
        let everybody = group.len() as f64 >= MOST * processes.len() as f64 && group.len() > 2;
        let all = group.first().and_then(|&i| usize::try_from(seen[i].nranks?).ok()).filter(|_| !everybody);
        let all = all.or(everybody.then_some(group.len()));
        let entries: Option<Vec<i64>> = group.iter().map(|&i| aligned(&seen[i])).collect();
        let last = entries.filter(|_| all == Some(group.len())).and_then(|entries| entries.into_iter().max());
        for &i in group {
            left[i] = last.zip(aligned(&seen[i])).map_or(Left::Unknown, |(last, entry)| on_node(&seen[i], entry, last));
        }
    }
    pairs(input, &needs, &mut left);
    hosts_wait(input, &left).then_some(left)
}

/// An aligned time on the clock of the node that made an observation, whose own entry is known on both.
fn on_node(seen: &Observation, entry: i64, at: i64) -> Left {
    Left::At(seen.entry_ns.saturating_add(at.saturating_sub(entry)))
}

/// Sends and receives from one rank to another between two meetings of the job: communicator, from, to, which meeting.
type Lane = (u64, i32, i32, u64);

/// A receive ends when its peer has entered the send. Between two meetings of the job the k-th receive from a rank meets
/// its k-th send; where the numbers differ, a record was lost.
fn pairs(input: &Input, needs: &dyn Fn(usize) -> bool, left: &mut [Left]) {
    let seen = &input.observations;
    let meetings = meetings(seen);
    let mut sends: HashMap<Lane, Vec<usize>> = HashMap::new();
    let mut receives: HashMap<Lane, Vec<usize>> = HashMap::new();
    for i in (0..seen.len()).filter(|&i| needs(i) && Coupling::of(&seen[i].func) == Coupling::Pair) {
        match (&*seen[i].func, seen[i].root) {
            ("send", Some(to)) => sends.entry((seen[i].comm_hash, seen[i].rank, to, meetings[i])).or_default().push(i),
            ("recv", Some(from)) => {
                left[i] = Left::Unknown;
                receives.entry((seen[i].comm_hash, from, seen[i].rank, meetings[i])).or_default().push(i);
            }
            ("send", None) => {}
            _ => left[i] = Left::Unknown,
        }
    }
    for (lane, mut receives) in receives {
        let Some(sends) = sends.get_mut(&lane).filter(|sends| sends.len() == receives.len()) else { continue };
        sends.sort_by_key(|&i| seen[i].entry_ns);
        receives.sort_by_key(|&i| seen[i].entry_ns);
        for (i, &peer) in receives.into_iter().zip(&*sends) {
            let clocks = (input.clocks.get(&*seen[i].node), input.clocks.get(&*seen[peer].node));
            let (Some(mine), Some(theirs)) = clocks else { continue };
            let (entry, sent) = (mine.align(seen[i].entry_ns), theirs.align(seen[peer].entry_ns));
            left[i] = on_node(&seen[i], entry, sent.max(entry));
        }
    }
}

/// For each call, how many meetings of its process's largest communicator came before it, by that communicator's own count.
fn meetings(seen: &[Observation]) -> Vec<u64> {
    let mut processes: HashMap<(&str, i64), Vec<usize>> = HashMap::new();
    for (i, o) in seen.iter().enumerate() {
        processes.entry((&o.node, o.pid)).or_default().push(i);
    }
    let mut meetings = vec![0; seen.len()];
    for calls in processes.values_mut() {
        calls.sort_by_key(|&i| seen[i].entry_ns);
        let lane = |i: usize| (seen[i].nranks, seen[i].comm_hash, &seen[i].func);
        let meets = calls.iter().filter(|&&i| Coupling::of(&seen[i].func) == Coupling::All);
        let largest = meets.map(|&i| lane(i)).max();
        let mut at = 0;
        for &i in &*calls {
            if Some(lane(i)) == largest {
                at = seen[i].seq + 1;
            }
            meetings[i] = at;
        }
    }
    meetings
}

/// Do hosts go on only when the ranks have met, as far as the clocks can tell?
fn hosts_wait(input: &Input, left: &[Left]) -> bool {
    let seen = &input.observations;
    let widest = input.clocks.values().map(|c| c.bound_within(input.since_ns, input.until_ns)).max().unwrap_or(0);
    let mut processes: HashMap<(&str, i64), Vec<usize>> = HashMap::new();
    for (i, o) in seen.iter().enumerate() {
        processes.entry((&o.node, o.pid)).or_default().push(i);
    }
    let (mut telling, mut broken) = (0usize, 0usize);
    for calls in processes.values_mut() {
        calls.sort_by_key(|&i| seen[i].entry_ns);
        for pair in calls.windows(2) {
            let Left::At(at) = left[pair[0]] else { continue };
            let returned = seen[pair[0]].entry_ns.saturating_add(seen[pair[0]].duration_ns);
            if at > returned.saturating_add(2 * widest) {
                telling += 1;
                broken += usize::from(seen[pair[1]].entry_ns.saturating_add(2 * widest) < at);
            }
        }
    }
    telling >= TELLING && broken as f64 <= TOLERATED * telling as f64
}
