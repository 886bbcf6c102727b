//! Hangs: ranks that wait in a collective which others have not entered, and who it is that everybody waits for.
//!
//! Pure. Works on how far each rank got in each communicator ([`Progress`]), not on times of past calls. The verdict is
//! put together in `verdict.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::Serialize;

use super::activity::Activity;
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
    for p in &mut all {
        p.syncing_since_ns = waiting.get(&(&*p.node, p.pid)).map(|(since, _)| *since);
    }
    complete_together(&mut all);
    all
}

/// When a process left a synchronise call may have been missed. What others have completed, and it has entered, it has
/// completed as well: all ranks meet in it.
pub(crate) fn complete_together(all: &mut [Progress]) {
    let mut furthest: BTreeMap<(u64, Arc<str>), u64> = BTreeMap::new();
    for p in all.iter().filter(|p| Coupling::of(&p.func) == Coupling::All) {
        if let Some(completed) = p.completed {
            let most = furthest.entry((p.comm_hash, Arc::clone(&p.func))).or_default();
            *most = completed.max(*most);
        }
    }
    for p in all.iter_mut().filter(|p| p.syncing_since_ns.is_some()) {
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
    /// It has entered, and its process is stopped there.
    Stopped,
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
    /// What its threads do, where its host says so.
    pub activity: Option<Activity>,
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
    /// What its threads do, where its host says so.
    pub activity: Option<Activity>,
}

/// A call that all ranks of a communicator have entered and that none has left.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Jam {
    /// The communicator.
    pub comm_hash: String,
    /// The function.
    pub func: String,
    /// The call.
    pub seq: u64,
    /// Ranks in it.
    pub ranks: usize,
}

/// A hang.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Hang {
    /// The ranks that everybody waits for. Empty where ranks wait for each other in a circle (calls in different order), or all
    /// in one call (`jammed`).
    pub missing: Vec<Missing>,
    /// Ranks that have not been heard and that others wait for: communicator and rank in it.
    pub not_heard: Vec<(String, i32)>,
    /// Calls that everybody has entered and nobody leaves, where that names no rank.
    pub jammed: Vec<Jam>,
    /// The ranks that wait, longest first.
    pub waiting: Vec<Waiting>,
    /// Since when nothing moves: the latest of the waits' beginnings, Unix nanoseconds of the asker's clock.
    pub since_ns: Option<i64>,
}

/// Larger communicators than this are not searched for ranks that were not heard.
const MOST_RANKS: i32 = 65_536;

/// Who has waited for so long is not to blame, whoever waits for it.
const WAITS_NS: i64 = 1_000_000_000;
/// A call that all have entered may just take long. It is a hang after so many times `rules.hang_ns`,
const JAM: i64 = 3;
/// and where processes wait for their devices, which may compute, after so many times.
const DEVICE_JAM: i64 = 20;

/// Which process, by place in a table.
type Who = usize;
/// A communicator and function.
type Lane<'a> = (u64, &'a str);
/// Where somebody is waited for: communicator and function, with the call and what it does there.
type Places<'a> = BTreeMap<Lane<'a>, (u64, Absence)>;

/// Look for a hang: somebody has waited for longer than `rules.hang_ns` up to the end of the span.
///
/// In a communicator a rank stands at the call after the last one it completed. It waits for each other rank that stands
/// at an earlier call, or at the same one without having entered it, or there with its process stopped or ended. Those who are
/// waited for, and wait for nobody, are what everybody waits for. Where all have entered the same call and none of them is
/// stopped, it is a hang after longer, and nobody is named.
pub(crate) fn find(input: &Input, rules: &Rules) -> Option<Hang> {
    let people = People::of(input);
    let mut search = Search::default();
    let since = |p: &Progress| {
        let since = p.since_ns.filter(|_| p.entered.is_some_and(|e| e >= next(p)))?;
        Some(input.clocks.get(&*p.node).map_or(since, |c| c.align(since)))
    };
    let lasted = |since_ns: i64| input.until_ns.saturating_sub(since_ns);
    for ((comm, func), ranks) in &people.lanes {
        let meets = *func == "any" || Coupling::of(func) == Coupling::All;
        for &(who, p) in ranks {
            let Some(since_ns) = since(p).filter(|since| lasted(*since) >= rules.hang_ns.min(WAITS_NS)) else {
                continue;
            };
            let long = lasted(since_ns) >= rules.hang_ns;
            if people.is_out(who) {
                if long && !people.gone.contains(&who) {
                    search.stopped.entry(who).or_insert(((*comm, func), next(p)));
                }
                continue;
            }
            if long {
                search.long.insert(who);
                search.hang.waiting.push(Waiting {
                    who: people.refs[who].clone(),
                    func: p.waiting_in.as_ref().unwrap_or(&p.func).to_string(),
                    comm_hash: hex(*comm),
                    seq: next(p),
                    since_ns: Some(since_ns),
                    activity: people.doing.get(&who).copied(),
                });
            }
            if meets {
                search.all_of((*comm, func), (who, p, since_ns), ranks, &people);
            } else {
                search.one_of((*comm, func), (who, p), &people);
            }
        }
    }
    search.hang(&people, |jam| {
        let times = if jam.device { DEVICE_JAM } else { JAM };
        lasted(jam.since_ns) >= rules.hang_ns.saturating_mul(times)
    })
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
    /// What they do, where their hosts say so.
    doing: BTreeMap<Who, Activity>,
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
            doing: BTreeMap::new(),
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
        for doing in &input.doing {
            let Some(who) = known.get(&(&*doing.node, doing.pid)) else { continue };
            people.doing.insert(*who, doing.activity);
            if doing.activity == Activity::Ended {
                people.gone.insert(*who);
            }
        }
        people
    }

    /// Whether its process is stopped or has ended: it waits for nobody, wherever it is.
    fn is_out(&self, who: Who) -> bool {
        self.gone.contains(&who) || self.is_halted(who)
    }

    fn is_halted(&self, who: Who) -> bool {
        self.doing.get(&who).is_some_and(|activity| activity.is_halted())
    }
}

/// A call that all have entered.
#[derive(Debug)]
struct Jammed {
    seq: u64,
    ranks: usize,
    /// When the last of them did.
    since_ns: i64,
    /// Whether it is devices that are waited for.
    device: bool,
    /// The name of the call.
    func: String,
}

/// What is found out about who waits for whom.
#[derive(Default)]
struct Search<'a> {
    hang: Hang,
    /// Who has waited for as long as a hang takes.
    long: BTreeSet<Who>,
    waits_for: BTreeMap<Who, BTreeSet<Who>>,
    wanted: BTreeMap<Who, Places<'a>>,
    jammed: BTreeMap<Lane<'a>, Jammed>,
    /// Who is stopped in a call, and in which.
    stopped: BTreeMap<Who, (Lane<'a>, u64)>,
}

impl<'a> Search<'a> {
    /// In a call in which all ranks meet: it waits for those that have not come, or are stopped there.
    fn all_of(
        &mut self,
        lane: Lane<'a>,
        (who, p, since_ns): (Who, &Progress, i64),
        ranks: &[(Who, &Progress)],
        people: &People<'_>,
    ) {
        let at = next(p);
        let mut all_here = true;
        for &(other, q) in ranks.iter().filter(|(other, _)| *other != who) {
            let stands = next(q);
            let entered = q.entered.is_some_and(|e| e >= stands);
            if stands < at || (stands == at && (!entered || people.is_out(other))) {
                let absence = match (entered, people.is_halted(other)) {
                    (false, _) => Absence::NotEntered,
                    (true, true) => Absence::Stopped,
                    (true, false) => Absence::Stuck,
                };
                self.waits_for.entry(who).or_default().insert(other);
                self.wanted.entry(other).or_default().insert(lane, (stands, absence));
                all_here = false;
            }
            // Who is past it was let through: it is this one that is stuck.
            all_here &= stands == at;
        }
        let heard: BTreeSet<i32> = ranks.iter().map(|(_, q)| q.rank).collect();
        let all = p.nranks.unwrap_or(0).min(MOST_RANKS);
        let not_heard = (0..all).filter(|r| !heard.contains(r));
        if self.long.contains(&who) {
            let before = self.hang.not_heard.len();
            self.hang.not_heard.extend(not_heard.map(|r| (hex(lane.0), r)));
            all_here &= self.hang.not_heard.len() == before;
        } else {
            all_here &= not_heard.count() == 0;
        }
        if all_here && ranks.len() > 1 {
            self.waits_for.entry(who).or_default();
            let device = p.syncing_since_ns.is_some();
            let func = p.waiting_in.as_ref().unwrap_or(&p.func);
            let jam = self.jammed.entry(lane).or_insert(Jammed {
                seq: at,
                ranks: 0,
                since_ns,
                device,
                func: func.to_string(),
            });
            jam.ranks += 1;
            jam.since_ns = jam.since_ns.max(since_ns);
            jam.device |= device;
        }
    }

    /// In a call to one rank: it waits for that one. Where it is not known which, it waits all the same, and is not to
    /// blame.
    fn one_of(&mut self, lane: Lane<'a>, (who, p): (Who, &Progress), people: &People<'_>) {
        let waits = self.waits_for.entry(who).or_default();
        let Some(peer) = p.peer.filter(|peer| *peer != p.rank) else { return };
        match people.at.get(&(lane.0, peer)) {
            Some(other) => {
                waits.insert(*other);
                self.wanted.entry(*other).or_default().entry(lane).or_insert((next(p), Absence::NotEntered));
            }
            None if self.long.contains(&who) => self.hang.not_heard.push((hex(lane.0), peer)),
            None => {}
        }
    }

    /// Puts it together; `lasts` says whether a jam has lasted for long enough to be a hang.
    fn hang(mut self, people: &People<'_>, lasts: impl Fn(&Jammed) -> bool) -> Option<Hang> {
        let reached = self.reached();
        let to_blame = |who: &Who| reached.contains(who) && !self.waits_for.contains_key(who);
        // Who waits for its device is not to blame, though the record of what it waits for may be lost; unless nobody else is.
        let others = self.wanted.keys().any(|who| to_blame(who) && !people.syncing.contains(who));
        let mut missing = Vec::new();
        for (who, places) in &self.wanted {
            if !to_blame(who) || (others && people.syncing.contains(who)) {
                continue;
            }
            let waits_here =
                |comm: u64| people.lanes.iter().filter(|((c, _), _)| *c == comm).map(|(_, r)| r.len()).max();
            let Some((&lane, &(seq, absence))) = places.iter().max_by_key(|((comm, _), _)| waits_here(*comm)) else {
                continue;
            };
            let absence = if people.gone.contains(who) { Absence::Gone } else { absence };
            missing.push(self.missing(people, *who, (lane, seq), absence));
        }
        if self.hang.waiting.is_empty() {
            // Nobody waits: all are stopped.
            missing.extend(self.stopped.iter().map(|(who, at)| self.missing(people, *who, *at, Absence::Stopped)));
            if missing.is_empty() {
                return None;
            }
        } else if missing.is_empty() && self.hang.not_heard.is_empty() {
            if self.waits_for.is_empty() || (!self.jammed.is_empty() && !self.jammed.values().any(&lasts)) {
                return None;
            }
            let jammed = self.jammed.iter().filter(|(_, jam)| lasts(jam));
            self.hang.jammed = jammed
                .map(|((comm, _), jam)| Jam {
                    comm_hash: hex(*comm),
                    func: jam.func.clone(),
                    seq: jam.seq,
                    ranks: jam.ranks,
                })
                .collect();
        }
        let mut hang = self.hang;
        hang.missing = missing;
        // Who is stuck does not wait for anybody.
        hang.waiting.retain(|w| !hang.missing.iter().any(|m| m.who == w.who));
        hang.missing.sort_by_key(|m| (std::cmp::Reverse(m.holds_up), m.who.rank));
        hang.not_heard.sort();
        hang.not_heard.dedup();
        hang.waiting.sort_by_key(|w| (w.since_ns, w.who.rank));
        hang.since_ns = hang.waiting.iter().filter_map(|w| w.since_ns).max();
        Some(hang)
    }

    fn missing(&self, people: &People<'_>, who: Who, (lane, seq): (Lane<'a>, u64), absence: Absence) -> Missing {
        let (comm, func) = lane;
        let named = self.hang.waiting.iter().find(|w| w.seq == seq && w.comm_hash == hex(comm));
        Missing {
            who: people.refs[who].clone(),
            absence,
            comm_hash: hex(comm),
            func: named.map_or_else(|| func.to_owned(), |w| w.func.clone()),
            seq,
            activity: people.doing.get(&who).copied(),
            holds_up: upstream(who, &self.waits_for),
        }
    }

    /// Those whom the ones that have waited for long wait for, directly or through others.
    fn reached(&self) -> BTreeSet<Who> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<Who> = self.long.iter().copied().collect();
        while let Some(who) = next.pop() {
            let more = self.waits_for.get(&who).into_iter().flatten();
            next.extend(more.copied().filter(|other| reached.insert(*other)));
        }
        reached
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
    use crate::activity::Doing;

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

    fn with(progress: Vec<Progress>, doing: &[(i32, Activity)], until_ns: i64) -> Option<Hang> {
        let doing =
            doing.iter().map(|(rank, activity)| Doing { node: format!("n{rank}").into(), pid: 1, activity: *activity });
        find(&Input { progress, doing: doing.collect(), until_ns, ..Input::default() }, &Rules::default())
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
    fn a_call_that_all_have_entered_and_none_leaves_is_a_hang_of_nobody_known() {
        let job = || (0..4).map(|rank| at(rank, 1, 118, 117)).collect::<Vec<_>>();
        // It may take long.
        assert_eq!(find_in(job(), 14 * S), None);
        let hang = find_in(job(), 20 * S).unwrap();
        assert_eq!((hang.missing.len(), hang.waiting.len(), hang.since_ns), (0, 4, Some(10 * S)));
        let jam = Jam { comm_hash: hex(1), func: "all_reduce".into(), seq: 118, ranks: 4 };
        assert_eq!(hang.jammed, [jam]);
        // The devices may compute.
        let devices = || {
            let mut job = job();
            job.iter_mut().for_each(|p| p.syncing_since_ns = p.since_ns);
            job
        };
        assert_eq!(find_in(devices(), 60 * S), None);
        assert_eq!(find_in(devices(), 71 * S).unwrap().jammed.len(), 1);
        // Everybody sleeps or spins: that names nobody.
        let awake = [(0, Activity::Sleeping), (1, Activity::Running), (2, Activity::BlockIo), (3, Activity::Sleeping)];
        assert_eq!(with(job(), &awake, 14 * S), None);
        let hang = with(job(), &awake, 20 * S).unwrap();
        assert_eq!((hang.missing.len(), hang.waiting[2].activity), (0, Some(Activity::BlockIo)));
        // One that nobody has heard of may be it.
        assert_eq!(find_in(job().split_off(1), 14 * S).unwrap().not_heard, [(hex(1), 0)]);
    }

    #[test]
    fn a_process_that_is_stopped_in_the_call_that_all_have_entered_is_named() {
        let job = || (0..4).map(|rank| at(rank, 1, 118, 117)).collect::<Vec<_>>();
        let asleep = |stopped: i32| {
            (0..4).map(|r| (r, if r == stopped { Activity::Stopped } else { Activity::Sleeping })).collect::<Vec<_>>()
        };
        assert_eq!(with(job(), &asleep(2), 12 * S), None);
        let hang = with(job(), &asleep(2), 14 * S).unwrap();
        assert_eq!(missing(&hang), [2]);
        let m = &hang.missing[0];
        assert_eq!((m.absence, m.seq, m.holds_up), (Absence::Stopped, 118, 3));
        assert_eq!((m.activity, hang.waiting.len(), hang.jammed.len()), (Some(Activity::Stopped), 3, 0));
        // One that was killed in it likewise.
        let hang = with(job(), &[(1, Activity::Ended)], 14 * S).unwrap();
        assert_eq!((missing(&hang), hang.missing[0].absence), (vec![1], Absence::Gone));
        // Stopped before it entered, and stopped after others were let through.
        let before = vec![at(0, 1, 8, 7), at(1, 1, 8, 7), at(2, 1, 7, 7), at(3, 1, 8, 7)];
        let m = &with(before, &asleep(2), 60 * S).unwrap().missing[0];
        assert_eq!((m.who.rank, m.absence, m.activity), (2, Absence::NotEntered, Some(Activity::Stopped)));
        let behind = vec![at(0, 1, 9, 8), at(1, 1, 9, 8), at(2, 1, 8, 7), at(3, 1, 9, 8)];
        let m = &with(behind, &asleep(2), 60 * S).unwrap().missing[0];
        assert_eq!((m.who.rank, m.absence, m.seq), (2, Absence::Stopped, 8));
        // All of them (a job that is suspended).
        let all: Vec<_> = (0..4).map(|rank| (rank, Activity::Stopped)).collect();
        assert_eq!(missing(&with(job(), &all, 60 * S).unwrap()), [0, 1, 2, 3]);
    }

    #[test]
    fn who_is_in_a_call_that_nobody_leaves_is_not_to_blame_elsewhere() {
        let pair = |mut p: Progress| {
            p.nranks = Some(2);
            p.rank -= 2;
            p
        };
        let job = |since_ns: i64| {
            let mut in_pair = [pair(at(2, 2, 5, 4)), pair(at(3, 2, 5, 4))];
            in_pair.iter_mut().for_each(|p| p.since_ns = Some(since_ns));
            let [a, b] = in_pair;
            vec![at(0, 1, 8, 7), at(1, 1, 8, 7), at(2, 1, 7, 7), at(3, 1, 7, 7), a, b]
        };
        // Even where that lasts for less than a hang does.
        assert_eq!(find_in(job(18 * S), 20 * S), None);
        let hang = find_in(job(10 * S), 20 * S).unwrap();
        assert_eq!((hang.missing.len(), hang.jammed.len(), hang.jammed[0].ranks), (0, 1, 2));
        let hang = with(job(18 * S), &[(3, Activity::Traced)], 20 * S).unwrap();
        assert_eq!((missing(&hang), hang.missing[0].holds_up), (vec![3], 3));
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
        let job = crate::simulate::Job::default();
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
