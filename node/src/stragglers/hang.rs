//! Hangs: ranks that wait in a collective which others have not entered, and who it is that everybody waits for.
//!
//! Pure. Works on how far each rank got in each communicator ([`Progress`]), not on times of past calls. The verdict is
//! put together in `verdict.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::Serialize;

use super::observation::{Coupling, Input, Observation, SyncCall};
use super::report::RankRef;
use super::rules::Rules;
use super::summary::hex;

/// How far a process got with one function of one communicator.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The node that knows it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// Rank in the communicator.
    pub rank: i32,
    /// Size of the communicator, when known.
    pub nranks: Option<i32>,
    /// The communicator.
    pub comm_hash: u64,
    /// What counts the calls: a function, or "any" where one counter serves all functions of the communicator.
    pub func: Arc<str>,
    /// Last call entered (or enqueued); none before the first.
    pub entered: Option<u64>,
    /// Last call that was left (or that the device completed); none before the first.
    pub completed: Option<u64>,
    /// When the oldest call that is not complete was entered, Unix nanoseconds of the node's own clock.
    pub since_ns: Option<i64>,
    /// Name of that call, where `func` does not say it.
    pub waiting_in: Option<Arc<str>>,
    /// The rank of the communicator that that call sends to or receives from, or its root.
    pub peer: Option<i32>,
    /// When the process began to wait for its device in the synchronise call that it is in, Unix nanoseconds of the node's
    /// own clock.
    pub syncing_since_ns: Option<i64>,
}

/// A process of the job that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// The node that knows it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// When, Unix nanoseconds of the node's own clock.
    pub at_ns: i64,
    /// How, in words ("exit 1", "signal 9"); empty where that is not known.
    pub how: String,
}

/// How far each process got, from the calls it has finished and those it is in: `open` are calls entered and not left
/// (their `duration_ns` says nothing). A call that is in both lists has been left in the meantime.
#[must_use]
pub fn progress(finished: &[Observation], open: &[Observation]) -> Vec<Progress> {
    progress_of(finished, open, &[], &[])
}

/// The same, where calls that only enqueue are complete once a synchronise call after them has been left: `synced` are
/// those that were, `syncing` those in which processes are.
#[must_use]
pub fn progress_of(
    finished: &[Observation],
    open: &[Observation],
    synced: &[SyncCall],
    syncing: &[SyncCall],
) -> Vec<Progress> {
    let mut waiting: HashMap<(&str, i64), (i64, i64)> = HashMap::new();
    for call in syncing {
        waiting.insert((&call.node, call.pid), (call.start_ns, i64::MIN));
    }
    for call in synced {
        if let Some((since, before)) = waiting.get_mut(&(&*call.node, call.pid))
            && call.start_ns < *since
        {
            *before = (*before).max(call.start_ns);
        }
    }
    let mut lanes: BTreeMap<(&str, i64, u64, &str), Progress> = BTreeMap::new();
    let lane = |seen: &Observation| Progress {
        node: Arc::clone(&seen.node),
        pid: seen.pid,
        rank: seen.rank,
        nranks: seen.nranks,
        comm_hash: seen.comm_hash,
        func: Arc::clone(&seen.func),
        entered: None,
        completed: None,
        since_ns: None,
        waiting_in: None,
        peer: None,
        syncing_since_ns: None,
    };
    for seen in finished {
        let key = (&*seen.node, seen.pid, seen.comm_hash, &*seen.func);
        let p = lanes.entry(key).or_insert_with(|| lane(seen));
        p.entered = p.entered.max(Some(seen.seq));
        match waiting.get(&(&*seen.node, seen.pid)) {
            // Enqueued since the last synchronise call that was left: not known to be complete.
            Some((since, before)) if seen.tier == 0 && seen.entry_ns > *before => {
                p.since_ns = Some(*since);
            }
            _ => p.completed = p.completed.max(Some(seen.seq)),
        }
    }
    for seen in open {
        let key = (&*seen.node, seen.pid, seen.comm_hash, &*seen.func);
        let p = lanes.entry(key).or_insert_with(|| lane(seen));
        if p.completed.is_none_or(|c| c < seen.seq) {
            // Calls of a blocking library: all before it have been left.
            p.completed = seen.seq.checked_sub(1);
            p.entered = Some(seen.seq);
            p.since_ns = Some(seen.entry_ns);
            p.peer = seen.root;
        }
    }
    let mut all: Vec<Progress> = lanes.into_values().collect();
    complete_together(&mut all, &waiting);
    for p in &mut all {
        p.syncing_since_ns = waiting.get(&(&*p.node, p.pid)).map(|(since, _)| *since);
    }
    all
}

/// When a process left a synchronise call may have been missed. What others have completed, and it has entered, it has
/// completed as well: all ranks meet in it.
fn complete_together(all: &mut [Progress], waiting: &HashMap<(&str, i64), (i64, i64)>) {
    let mut furthest: BTreeMap<(u64, Arc<str>), u64> = BTreeMap::new();
    for p in all.iter().filter(|p| Coupling::of(&p.func) == Coupling::All) {
        if let Some(completed) = p.completed {
            let most = furthest.entry((p.comm_hash, Arc::clone(&p.func))).or_default();
            *most = completed.max(*most);
        }
    }
    for p in all.iter_mut().filter(|p| waiting.contains_key(&(&*p.node, p.pid))) {
        let most = furthest.get(&(p.comm_hash, Arc::clone(&p.func))).copied();
        p.completed = p.completed.max(most.min(p.entered));
        if p.completed == p.entered {
            p.since_ns = None;
        }
    }
}

/// What a rank that everybody waits for is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Absence {
    /// It has not entered the collective in which others wait.
    NotEntered,
    /// It has entered, as everybody has, but does not get through: others are past it.
    Stuck,
    /// Its process has ended.
    Gone,
}

/// A rank that others wait for while it waits for nobody.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Missing {
    /// Who.
    #[serde(flatten)]
    pub who: RankRef,
    /// What it is doing.
    pub absence: Absence,
    /// The communicator in which most ranks wait for it.
    pub comm_hash: String,
    /// The function.
    pub func: String,
    /// The call that it has not entered, or in which it is stuck.
    pub seq: u64,
    /// Ranks that wait for it, directly or through others.
    pub holds_up: usize,
}

/// A rank that waits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Waiting {
    /// Who.
    #[serde(flatten)]
    pub who: RankRef,
    /// In what.
    pub func: String,
    /// Of which communicator.
    pub comm_hash: String,
    /// Which call.
    pub seq: u64,
    /// Since when, Unix nanoseconds of the asker's clock.
    pub since_ns: Option<i64>,
}

/// A hang.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Hang {
    /// The ranks that everybody waits for. Empty where ranks wait for each other in a circle (calls in different order).
    pub missing: Vec<Missing>,
    /// Ranks that have not been heard and that others wait for: communicator and rank in it.
    pub not_heard: Vec<(String, i32)>,
    /// The ranks that wait, longest first.
    pub waiting: Vec<Waiting>,
    /// Since when nothing moves: the latest of the waits' beginnings, Unix nanoseconds of the asker's clock.
    pub since_ns: Option<i64>,
}

/// Larger communicators than this are not searched for ranks that were not heard.
const MOST_RANKS: i32 = 65_536;

/// Which process, by place in a table.
type Who = usize;
/// Where somebody is waited for: communicator and function, with the call and what it does there.
type Places<'a> = BTreeMap<(u64, &'a str), (u64, Absence)>;

/// Look for a hang: somebody has waited for longer than `rules.hang_ns` up to the end of the span.
///
/// In a communicator a rank stands at the call after the last one it completed. It waits for each other rank that stands
/// at an earlier call, or at the same one without having entered it. Those who are waited for, and wait for nobody, are
/// what everybody waits for.
pub(crate) fn find(input: &Input, rules: &Rules) -> Option<Hang> {
    let people = People::of(input);
    let mut search = Search { hang: Hang::default(), waits_for: BTreeMap::new(), wanted: BTreeMap::new() };
    let since = |p: &Progress| {
        let since = p.since_ns.filter(|_| p.entered.is_some_and(|e| e >= next(p)))?;
        let since_ns = input.clocks.get(&*p.node).map_or(since, |c| c.align(since));
        (input.until_ns.saturating_sub(since_ns) >= rules.hang_ns).then_some(since_ns)
    };
    for ((comm, func), ranks) in &people.lanes {
        let meets = *func == "any" || Coupling::of(func) == Coupling::All;
        for &(who, p) in ranks {
            let Some(since_ns) = since(p).filter(|_| !people.gone.contains(&who)) else { continue };
            search.hang.waiting.push(Waiting {
                who: people.refs[who].clone(),
                func: p.waiting_in.as_ref().unwrap_or(&p.func).to_string(),
                comm_hash: hex(*comm),
                seq: next(p),
                since_ns: Some(since_ns),
            });
            if meets {
                search.all_of((*comm, func), (who, p), ranks);
            } else {
                search.one_of((*comm, func), (who, p), &people);
            }
        }
    }
    let Search { mut hang, waits_for, wanted } = search;
    if hang.waiting.is_empty() || (waits_for.is_empty() && hang.not_heard.is_empty()) {
        return None;
    }
    // Who waits for its device is not to blame, though the record of what it waits for may be lost; unless nobody else is.
    let to_blame = |who: &Who| !waits_for.contains_key(who);
    let others = wanted.keys().any(|who| to_blame(who) && !people.syncing.contains(who));
    for (who, places) in &wanted {
        if !to_blame(who) || (others && people.syncing.contains(who)) {
            continue;
        }
        let waits_here = |comm: u64| people.lanes.iter().filter(|((c, _), _)| *c == comm).map(|(_, r)| r.len()).max();
        let Some((&(comm, func), &(seq, absence))) = places.iter().max_by_key(|((comm, _), _)| waits_here(*comm))
        else {
            continue;
        };
        let named = hang.waiting.iter().find(|w| w.seq == seq && w.comm_hash == hex(comm));
        let func = named.map_or_else(|| func.to_owned(), |w| w.func.clone());
        hang.missing.push(Missing {
            who: people.refs[*who].clone(),
            absence: if people.gone.contains(who) { Absence::Gone } else { absence },
            comm_hash: hex(comm),
            func,
            seq,
            holds_up: upstream(*who, &waits_for),
        });
    }
    // Who is stuck does not wait for anybody.
    hang.waiting.retain(|w| !hang.missing.iter().any(|m| m.who == w.who));
    hang.missing.sort_by_key(|m| (std::cmp::Reverse(m.holds_up), m.who.rank));
    hang.not_heard.sort();
    hang.not_heard.dedup();
    hang.waiting.sort_by_key(|w| (w.since_ns, w.who.rank));
    hang.since_ns = hang.waiting.iter().filter_map(|w| w.since_ns).max();
    Some(hang)
}

/// Who is there.
struct People<'a> {
    refs: Vec<RankRef>,
    /// How far each got, by communicator and function.
    lanes: BTreeMap<(u64, &'a str), Vec<(Who, &'a Progress)>>,
    /// By communicator and rank in it.
    at: HashMap<(u64, i32), Who>,
    /// Whose process has ended.
    gone: BTreeSet<Who>,
    /// Whose host waits for its device.
    syncing: BTreeSet<Who>,
}

impl<'a> People<'a> {
    fn of(input: &'a Input) -> Self {
        let mut known: BTreeMap<(&str, i64), Who> = BTreeMap::new();
        let mut people = Self {
            refs: Vec::new(),
            lanes: BTreeMap::new(),
            at: HashMap::new(),
            gone: BTreeSet::new(),
            syncing: BTreeSet::new(),
        };
        let mut sizes: Vec<i32> = Vec::new();
        for p in &input.progress {
            let who = *known.entry((&p.node, p.pid)).or_insert_with(|| {
                people.refs.push(RankRef { rank: p.rank, node: p.node.to_string(), pid: p.pid });
                sizes.push(0);
                people.refs.len() - 1
            });
            // The rank of the job is that of the largest communicator.
            let size = p.nranks.unwrap_or(0);
            if size > sizes[who] {
                sizes[who] = size;
                people.refs[who].rank = p.rank;
            }
            people.at.insert((p.comm_hash, p.rank), who);
            if p.syncing_since_ns.is_some() {
                people.syncing.insert(who);
            }
            people.lanes.entry((p.comm_hash, &p.func)).or_default().push((who, p));
        }
        people.gone = input.gone.iter().filter_map(|g| known.get(&(&*g.node, g.pid)).copied()).collect();
        people
    }
}

/// What is found out about who waits for whom.
struct Search<'a> {
    hang: Hang,
    waits_for: BTreeMap<Who, BTreeSet<Who>>,
    wanted: BTreeMap<Who, Places<'a>>,
}

impl<'a> Search<'a> {
    /// In a call in which all ranks meet: it waits for those that have not come.
    fn all_of(&mut self, lane: (u64, &'a str), (who, p): (Who, &Progress), ranks: &[(Who, &Progress)]) {
        let at = next(p);
        for (other, q) in ranks.iter().filter(|(other, _)| *other != who) {
            let stands = next(q);
            let entered = q.entered.is_some_and(|e| e >= stands);
            if stands < at || (stands == at && !entered) {
                let absence = if entered { Absence::Stuck } else { Absence::NotEntered };
                self.waits_for.entry(who).or_default().insert(*other);
                self.wanted.entry(*other).or_default().insert(lane, (stands, absence));
            }
        }
        let heard: BTreeSet<i32> = ranks.iter().map(|(_, q)| q.rank).collect();
        let all = p.nranks.unwrap_or(0).min(MOST_RANKS);
        self.hang.not_heard.extend((0..all).filter(|r| !heard.contains(r)).map(|r| (hex(lane.0), r)));
    }

    /// In a call to one rank: it waits for that one. Where it is not known which, it waits all the same, and is not to
    /// blame.
    fn one_of(&mut self, lane: (u64, &'a str), (who, p): (Who, &Progress), people: &People<'_>) {
        let waits = self.waits_for.entry(who).or_default();
        let Some(peer) = p.peer.filter(|peer| *peer != p.rank) else { return };
        match people.at.get(&(lane.0, peer)) {
            Some(other) => {
                waits.insert(*other);
                self.wanted.entry(*other).or_default().entry(lane).or_insert((next(p), Absence::NotEntered));
            }
            None => self.hang.not_heard.push((hex(lane.0), peer)),
        }
    }
}

/// The call at which a rank stands: the first that it has not completed.
fn next(p: &Progress) -> u64 {
    p.completed.map_or(0, |c| c.saturating_add(1))
}

/// How many wait for one, directly or through others.
fn upstream(of: Who, waits_for: &BTreeMap<Who, BTreeSet<Who>>) -> usize {
    let mut reached = BTreeSet::from([of]);
    loop {
        let more: Vec<Who> = waits_for
            .iter()
            .filter(|(who, others)| !reached.contains(who) && !others.is_disjoint(&reached))
            .map(|(who, _)| *who)
            .collect();
        if more.is_empty() {
            return reached.len() - 1;
        }
        reached.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    fn at(rank: i32, comm: u64, entered: u64, completed: u64) -> Progress {
        Progress {
            node: format!("n{rank}").into(),
            pid: 1,
            rank,
            nranks: Some(4),
            comm_hash: comm,
            func: "all_reduce".into(),
            entered: Some(entered),
            completed: Some(completed),
            since_ns: (entered > completed).then_some(10 * S),
            waiting_in: None,
            peer: None,
            syncing_since_ns: None,
        }
    }

    fn find_in(progress: Vec<Progress>, until_ns: i64) -> Option<Hang> {
        find(&Input { progress, until_ns, ..Input::default() }, &Rules::default())
    }

    fn missing(hang: &Hang) -> Vec<i32> {
        hang.missing.iter().map(|m| m.who.rank).collect()
    }

    #[test]
    fn the_rank_that_did_not_come_is_missing_and_only_after_a_while() {
        let job = || vec![at(0, 1, 8, 7), at(1, 1, 8, 7), at(2, 1, 7, 7), at(3, 1, 8, 7)];
        assert_eq!(find_in(job(), 11 * S), None);
        let hang = find_in(job(), 60 * S).unwrap();
        assert_eq!(missing(&hang), [2]);
        assert_eq!(
            (hang.missing[0].absence, hang.missing[0].seq, hang.missing[0].holds_up),
            (Absence::NotEntered, 8, 3)
        );
        assert_eq!((hang.waiting.len(), hang.since_ns), (3, Some(10 * S)));
    }

    #[test]
    fn who_waits_elsewhere_is_not_to_blame() {
        // Ranks 0 and 1 wait for 2, which waits in another communicator for 3, which computes.
        let pair = |mut p: Progress| {
            p.nranks = Some(2);
            p.rank -= 2;
            p
        };
        let job = vec![
            at(0, 1, 8, 7),
            at(1, 1, 8, 7),
            at(2, 1, 7, 7),
            at(3, 1, 7, 7),
            pair(at(2, 2, 5, 4)),
            pair(at(3, 2, 4, 4)),
        ];
        let hang = find_in(job, 60 * S).unwrap();
        assert_eq!(missing(&hang), [3]);
        assert_eq!(hang.missing[0].holds_up, 3);
    }

    #[test]
    fn who_is_in_but_never_leaves_is_stuck() {
        let hang = find_in(vec![at(0, 1, 9, 8), at(1, 1, 9, 8), at(2, 1, 9, 5), at(3, 1, 9, 8)], 60 * S).unwrap();
        assert_eq!(missing(&hang), [2]);
        assert_eq!((hang.missing[0].absence, hang.missing[0].seq), (Absence::Stuck, 6));
    }

    #[test]
    fn a_circle_blames_nobody_and_a_rank_that_was_not_heard_is_told() {
        let other = |mut p: Progress| {
            p.func = "barrier".into();
            p
        };
        // 0 is in an all_reduce, 1 in a barrier.
        let circle = vec![at(0, 1, 1, 0), at(1, 1, 0, 0), other(at(0, 1, 0, 0)), other(at(1, 1, 1, 0))]
            .into_iter()
            .map(|mut p| {
                p.nranks = Some(2);
                p
            })
            .collect();
        let hang = find_in(circle, 60 * S).unwrap();
        assert_eq!((hang.missing.len(), hang.waiting.len()), (0, 2));
        let hang = find_in(vec![at(0, 1, 8, 7), at(1, 1, 8, 7), at(3, 1, 8, 7)], 60 * S).unwrap();
        assert_eq!(hang.not_heard, [(hex(1), 2)]);
    }

    #[test]
    fn progress_comes_from_finished_and_open_calls() {
        let job = crate::stragglers::simulate::Job::default();
        let mut input = job.observe(1);
        // Step 60: rank 3 does not come, the others are in the call; what follows has not happened.
        let mut open: Vec<Observation> =
            input.observations.iter().filter(|o| o.seq == 60 && o.rank != 3).cloned().collect();
        input.observations.retain(|o| o.seq < 60);
        // One that has been left since it was asked for.
        open.extend(input.observations.iter().find(|o| o.rank == 5 && o.seq == 58).cloned());
        input.progress = progress(&input.observations, &open);
        assert_eq!(input.progress.len(), 8);
        let hang = find(&input, &Rules::default()).unwrap();
        assert_eq!(missing(&hang), [3]);
        assert_eq!((hang.missing[0].seq, hang.waiting.len(), hang.missing[0].holds_up), (60, 7, 7));
        input.progress = progress(&input.observations, &[]);
        assert_eq!(find(&input, &Rules::default()), None);
    }
}
