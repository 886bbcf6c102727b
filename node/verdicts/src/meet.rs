//! Where calls only enqueue and no synchronise call was seen: when the ranks met all the same, told
//! from the entries of all of them on aligned clocks.
//!
//! A host that waits for each call before it goes on cannot enter the next one before the last rank
//! has entered this one (its peer, for a send or receive). Where the entries bear that out, the
//! time from then on is its own.

use std::collections::{HashMap, HashSet};

use super::input::Input;
use super::observation::{Coupling, Observation};
use super::waited::Waited;
use crate::rules::Rules;

/// When a process went on after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// When the call returned: it does not only enqueue, or its wait was seen.
    Returned,
    /// When the last of the ranks it meets had entered.
    At(Met),
    /// A rank that it meets was not heard, or a record was lost.
    Unknown,
}

/// An instant on a node's own clock, told from what was entered on other hosts: as the clocks say,
/// and at the earliest and latest were they wrong by their bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Met {
    pub(crate) at_ns: i64,
    pub(crate) earliest_ns: i64,
    pub(crate) latest_ns: i64,
}

/// An entry on the coordinator's clock, and how far that may be wrong.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) node: &'a str,
    pub(crate) at_ns: i64,
    pub(crate) bound_ns: i64,
}

impl Entry<'_> {
    fn of<'a>(input: &Input, seen: &'a Observation) -> Option<Entry<'a>> {
        let clock = input.clocks.get(&*seen.node)?;
        let at_ns = clock.align(seen.entry_ns);
        Some(Entry { node: &seen.node, at_ns, bound_ns: clock.bound_within(at_ns, at_ns) })
    }
}

/// The last entries of ranks that meet, by node.
pub(crate) struct Lasts<'a>(pub(crate) Vec<Entry<'a>>);

impl<'a> Lasts<'a> {
    fn of(mut entries: Vec<Entry<'a>>) -> Self {
        entries.sort_by_key(|entry| (entry.node, std::cmp::Reverse(entry.at_ns)));
        entries.dedup_by_key(|entry| entry.node);
        // The latest first: who looks for the latest of the others mostly finds it there.
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.at_ns.saturating_add(entry.bound_ns)));
        Self(entries)
    }

    /// When the last of them had entered, for one that entered as `mine` says; on the clock of its
    /// node, where that is `entry_ns`.
    pub(crate) fn met(&self, mine: Entry<'_>, entry_ns: i64) -> Met {
        let (mut at, mut earliest, mut latest) = (mine.at_ns, mine.at_ns, mine.at_ns);
        for last in &self.0 {
            let bound_ns = if last.node == mine.node { 0 } else { last.bound_ns.saturating_add(mine.bound_ns) };
            at = at.max(last.at_ns);
            earliest = earliest.max(last.at_ns.saturating_sub(bound_ns));
            latest = latest.max(last.at_ns.saturating_add(bound_ns));
        }
        let on_node = |at_ns: i64| entry_ns.saturating_add(at_ns.saturating_sub(mine.at_ns));
        Met { at_ns: on_node(at), earliest_ns: on_node(earliest), latest_ns: on_node(latest) }
    }
}

/// For each observation when its process went on; none where no call needs it, or where hosts do
/// not wait for calls.
pub(crate) fn reconstruct(input: &Input, waited: &[Waited]) -> Option<Vec<Left>> {
    let seen = &input.observations;
    let needs = |i: usize| seen[i].tier == 0 && waited[i] == Waited::Unseen;
    if !(0..seen.len()).any(needs) || (0..seen.len()).any(|i| seen[i].tier == 0 && !needs(i)) {
        return None;
    }
    let mut groups: HashMap<(u64, &str, u64), Vec<usize>> = HashMap::new();
    for i in (0..seen.len()).filter(|&i| needs(i) && Coupling::of(&seen[i].func) == Coupling::All) {
        groups.entry((seen[i].comm_hash, &seen[i].func, seen[i].seq)).or_default().push(i);
    }
    let processes: HashSet<(&str, i64)> = seen.iter().map(|o| (&*o.node, o.pid)).collect();
    let mut left = vec![Left::Returned; seen.len()];
    for group in groups.values() {
        // Where everybody that was heard is in it, a rank that was not makes all of them alike
        // wait.
        let everybody = group.len() as f64 >= Rules::EVERYBODY * processes.len() as f64 && group.len() > 2;
        let all = group.first().and_then(|&i| usize::try_from(seen[i].nranks?).ok()).filter(|_| !everybody);
        let all = all.or(everybody.then_some(group.len()));
        let entries: Option<Vec<Entry<'_>>> = group.iter().map(|&i| Entry::of(input, &seen[i])).collect();
        let lasts = entries.filter(|_| all == Some(group.len())).map(Lasts::of);
        for &i in group {
            let met = lasts.as_ref().zip(Entry::of(input, &seen[i]));
            left[i] = met.map_or(Left::Unknown, |(lasts, mine)| Left::At(lasts.met(mine, seen[i].entry_ns)));
        }
    }
    pairs(input, &needs, &mut left);
    hosts_wait(input, &left).then_some(left)
}

/// Sends and receives from one rank to another between two meetings of the job: communicator, from,
/// to, which meeting.
type Lane = (u64, i32, i32, u64);

/// A receive ends when its peer has entered the send. Between two meetings of the job the k-th
/// receive from a rank meets its k-th send; where the numbers differ, a record was lost.
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
            if let (Some(mine), Some(theirs)) = (Entry::of(input, &seen[i]), Entry::of(input, &seen[peer])) {
                left[i] = Left::At(Lasts(vec![theirs]).met(mine, seen[i].entry_ns));
            }
        }
    }
}

/// For each call, how many meetings of its process's largest communicator came before it, by that
/// communicator's own count.
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
            let Left::At(Met { at_ns: at, .. }) = left[pair[0]] else { continue };
            let returned = seen[pair[0]].entry_ns.saturating_add(seen[pair[0]].duration_ns);
            if at > returned.saturating_add(2 * widest) {
                telling += 1;
                broken += usize::from(seen[pair[1]].entry_ns.saturating_add(2 * widest) < at);
            }
        }
    }
    telling >= Rules::HOSTS_WAIT_TELLING && broken as f64 <= Rules::HOSTS_WAIT_BROKEN * telling as f64
}
