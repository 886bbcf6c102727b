//! Makes the graph of who waits for whom, of a size that is that of the input.
//!
//! All who wait in the collective of one position wait for the same ranks: those that have entered
//! fewer collectives of the communicator. So members are ordered by how many they have entered, and
//! there is one vertex for each number, which leads to the members with it and to the vertex of the
//! next lower number: with n members there are at most 3 n edges, not n^2.

use std::collections::{BTreeMap, BTreeSet};

use observed::{InCall, Input, Progress, Ranks, Rules};

use super::graph::{Graph, Vertex};
use super::meeting::{Meeting, is_nonblocking};
use super::people::{Comm, People, Who};

/// A process that waits in a call, or for its device, and has for a while.
#[derive(Debug)]
pub(super) struct Wait<'a> {
    pub(super) who: Who,
    /// The call; none where it waits for its device.
    pub(super) call: Option<&'a InCall>,
    /// The communicator and position that it waits at, of collectives: where it waits for its device,
    /// the first that another has not entered.
    pub(super) place: Option<(u64, u64)>,
    /// Since when, on the coordinator's clock.
    pub(super) since_ns: i64,
    /// For as long as a hang takes.
    pub(super) is_long: bool,
    /// Where its edges lead to.
    pub(super) leads_to: Vec<Vertex>,
    /// Where it waits for its device in a call to one rank: the communicator, and the call.
    pub(super) pair: Option<(u64, &'static str)>,
}

/// A call that all have entered and some do not leave.
#[derive(Debug)]
pub(super) struct Jammed {
    pub(super) ranks: usize,
    /// When the last of them entered.
    pub(super) since_ns: i64,
    /// Whether it is devices that are waited for.
    pub(super) device: bool,
    pub(super) func: String,
}

/// What is found out about who waits for whom.
pub(super) struct Waits<'a> {
    pub(super) graph: Graph,
    pub(super) all: Vec<Wait<'a>>,
    /// Who waits for somebody, or in a call that all have entered: it is not to blame.
    pub(super) waiting: BTreeSet<Who>,
    /// Of these, those of which it is not known for whom.
    pub(super) unclear: BTreeSet<Who>,
    /// Who waits for ranks that are not in the data.
    pub(super) for_absent: BTreeSet<Who>,
    /// These, by communicator, where they are waited for for as long as a hang takes.
    pub(super) absent: BTreeMap<u64, Ranks>,
    /// Communicators of which all such ranks are among these.
    all_absent: BTreeSet<u64>,
    pub(super) jammed: BTreeMap<(u64, u64), Jammed>,
    /// Who is stopped in a call for long, and in which.
    pub(super) stopped: BTreeMap<Who, &'a InCall>,
    /// By communicator: the furthest position at which anybody waits for all that have not come.
    pub(super) furthest: BTreeMap<u64, u64>,
}

impl<'a> Waits<'a> {
    pub(super) fn of(input: &'a Input, people: &mut People<'a>, rules: &Rules) -> Self {
        let mut waits = Self {
            graph: Graph::new(people.refs.len()),
            all: Vec::new(),
            waiting: BTreeSet::new(),
            unclear: BTreeSet::new(),
            for_absent: BTreeSet::new(),
            absent: BTreeMap::new(),
            all_absent: BTreeSet::new(),
            jammed: BTreeMap::new(),
            stopped: BTreeMap::new(),
            furthest: BTreeMap::new(),
        };
        waits.find(input, people, rules);
        let comms: BTreeSet<u64> = waits.all.iter().flat_map(|wait| waits.comms_of(wait, people)).collect();
        let mut levels = BTreeMap::new();
        for comm in comms {
            people.complete(comm);
            levels.insert(comm, Levels::of(comm, people, &mut waits.graph));
        }
        let mut all = std::mem::take(&mut waits.all);
        for wait in &mut all {
            waits.follow(wait, people, &levels);
        }
        for wait in &all {
            for to in &wait.leads_to {
                waits.graph.edge(wait.who, *to);
            }
        }
        waits.all = all;
        waits
    }

    /// Who is in a call, or waits for its device, and has for a while.
    fn find(&mut self, input: &'a Input, people: &People<'a>, rules: &Rules) {
        let lasted = |since_ns: i64| input.until_ns.saturating_sub(since_ns);
        let mut add = |who: Who, call: Option<&'a InCall>, since_ns: i64| {
            if lasted(since_ns) < rules.hang_ns.min(Rules::HANG_WAITER_NS) {
                return;
            }
            let is_long = lasted(since_ns) >= rules.hang_ns;
            if people.is_out(who) {
                if let Some(call) = call.filter(|_| is_long && !people.gone.contains(&who)) {
                    self.stopped.entry(who).or_insert(call);
                }
                return;
            }
            let place = call.and_then(|call| call.comm_hash.zip(call.comm_seq));
            self.all.push(Wait { who, call, place, since_ns, is_long, leads_to: Vec::new(), pair: None });
        };
        for (who, calls) in &people.calls {
            for call in calls.iter().filter(|call| Meeting::of(&call.func) != Meeting::Pending) {
                let since_ns = input.clocks.get(&*call.node).map_or(call.since_ns, |c| c.align(call.since_ns));
                add(*who, Some(call), since_ns);
            }
        }
        for (who, since_ns) in &people.syncing {
            add(*who, None, *since_ns);
        }
    }

    /// The communicators that a wait may be in.
    fn comms_of(&self, wait: &Wait<'_>, people: &People<'_>) -> Vec<u64> {
        match wait.call {
            Some(call) if Meeting::of(&call.func) != Meeting::Wait => call.comm_hash.into_iter().collect(),
            _ => people.comms_of.get(&wait.who).cloned().unwrap_or_default(),
        }
    }

    fn follow(&mut self, wait: &mut Wait<'a>, people: &People<'a>, levels: &BTreeMap<u64, Levels>) {
        let Some(call) = wait.call else { return self.follow_device(wait, people, levels) };
        let mut clear = false;
        match Meeting::of(&call.func) {
            Meeting::Send | Meeting::Receive => clear = self.peer(wait, call, people, levels),
            Meeting::Wait => {
                for pending in people.calls[&wait.who].iter().filter(|of| Meeting::of(&of.func) == Meeting::Pending) {
                    clear |= self.peer(wait, pending, people, levels);
                }
                for (comm, level) in levels_of(wait.who, people, levels) {
                    let said = wait.call.and_then(|call| call.comm_seq).filter(|_| call.comm_hash == Some(*comm));
                    let Some(position) = said.or_else(|| level.pending.get(&wait.who).copied()) else { continue };
                    wait.place = Some((*comm, position));
                    clear |= self.collective(wait, (*comm, position), Meeting::All, people, level);
                }
            }
            meeting => {
                if let Some((place, level)) = wait.place.and_then(|place| Some((place, levels.get(&place.0)?))) {
                    clear = self.collective(wait, place, meeting, people, level);
                }
            }
        }
        if !clear {
            self.waiting.insert(wait.who);
            self.unclear.insert(wait.who);
        }
    }

    /// A call to one rank; whether it is known to which.
    fn peer(
        &mut self,
        wait: &mut Wait<'a>,
        call: &InCall,
        people: &People<'a>,
        levels: &BTreeMap<u64, Levels>,
    ) -> bool {
        let (Some(comm), Some(peer)) = (call.comm_hash, call.root) else { return false };
        if peer < 0 {
            // From any rank.
            let Some(level) = levels.get(&comm) else { return false };
            wait.leads_to.extend(level.all);
            self.waiting.insert(wait.who);
            return level.all.is_some();
        }
        self.waiting.insert(wait.who);
        match people.at.get(&(comm, peer)) {
            // A message to itself leads to itself.
            Some(other) => wait.leads_to.push(*other),
            None => {
                self.for_absent.insert(wait.who);
                if wait.is_long {
                    self.absent.entry(comm).or_default().extend(&[peer].into_iter().collect());
                }
            }
        }
        true
    }

    /// A collective; whether it is known for whom it waits.
    fn collective(
        &mut self,
        wait: &mut Wait<'a>,
        (comm, position): (u64, u64),
        meeting: Meeting,
        people: &People<'a>,
        level: &Levels,
    ) -> bool {
        let Some(of) = people.comms.get(&comm) else { return false };
        let root = wait.call.and_then(|call| call.root);
        let own = wait.call.and_then(|call| call.rank);
        let rooted = matches!(meeting, Meeting::RootSends | Meeting::RootReceives);
        let root = root.filter(|root| rooted && own.is_some_and(|own| own != *root));
        let root = root.and_then(|root| of.member(*people.at.get(&(comm, root))?));
        let to_come = || of.members.iter().filter(|m| m.entered.is_some_and(|e| e <= position));
        let late = root.filter(|m| meeting == Meeting::RootSends && m.entered.is_some_and(|e| e <= position));
        if let Some(root) = late {
            wait.leads_to.push(root.who);
        } else if root.is_some() && (to_come().count() > 1 || level.uncounted) {
            // Data go through other ranks, both ways; nobody knows through which.
            return false;
        } else if meeting == Meeting::Below {
            let below = of.members.iter().filter(|m| own.is_none_or(|own| m.rank < own));
            wait.leads_to.extend(below.filter(|m| m.entered.is_some_and(|e| e <= position)).map(|m| m.who));
        } else {
            let furthest = self.furthest.entry(comm).or_default();
            *furthest = position.max(*furthest);
            wait.leads_to.extend(level.before(position + 1));
        }
        wait.leads_to.extend(level.out_at.get(&position));
        let absent = !of.absent.is_empty();
        if absent {
            self.lacks(wait, comm, of);
        }
        if absent || !wait.leads_to.is_empty() {
            self.waiting.insert(wait.who);
            return true;
        }
        // Of a function with a root others may be further, and are not through for that.
        if level.uncounted || rooted && level.last > position + 1 {
            return false;
        }
        // All have entered it: who is in it while others are further is stuck.
        if level.last <= position + 1 {
            let func = wait.call.map_or("", |call| &call.func);
            self.jam((comm, position), wait, func);
        }
        true
    }

    /// It waits for all ranks of a communicator that are not in the data.
    fn lacks(&mut self, wait: &Wait<'_>, comm: u64, of: &Comm<'_>) {
        self.for_absent.insert(wait.who);
        if wait.is_long && self.all_absent.insert(comm) {
            self.absent.entry(comm).or_default().extend(&of.absent);
        }
    }

    fn jam(&mut self, place: (u64, u64), wait: &Wait<'_>, func: &str) {
        self.waiting.insert(wait.who);
        let new = || Jammed { ranks: 0, since_ns: i64::MIN, device: false, func: func.to_owned() };
        let jam = self.jammed.entry(place).or_insert_with(new);
        jam.ranks += 1;
        jam.since_ns = jam.since_ns.max(wait.since_ns);
        jam.device |= wait.call.is_none();
    }

    /// It waits for its device: for whatever of what it enqueued another has not.
    fn follow_device(&mut self, wait: &mut Wait<'a>, people: &People<'a>, levels: &BTreeMap<u64, Levels>) {
        let mut all_entered: Option<(usize, u64, u64, Option<&Progress>)> = None;
        for (comm, level) in levels_of(wait.who, people, levels) {
            let Some(of) = people.comms.get(comm) else { continue };
            let Some(member) = of.member(wait.who) else { continue };
            let Some(entered) = member.entered.filter(|entered| *entered > 0) else { continue };
            let before = level.before(entered);
            if let Some((vertex, fewest)) = before.zip(level.fewest) {
                wait.leads_to.push(vertex);
                wait.place = wait.place.or(Some((*comm, fewest)));
                let furthest = self.furthest.entry(*comm).or_default();
                *furthest = (entered - 1).max(*furthest);
            } else if !of.absent.is_empty() {
                self.waiting.insert(wait.who);
                self.lacks(wait, *comm, of);
            } else if level.last == entered && !level.uncounted {
                let size = of.members.len();
                if all_entered.is_none_or(|(known, ..)| known < size) {
                    all_entered = Some((size, *comm, entered - 1, member.progress));
                }
            }
            let pairs = member.progress.into_iter().flat_map(|p| &p.pairs);
            for pair in pairs {
                let other = people.at.get(&(*comm, pair.peer)).and_then(|who| of.member(*who));
                let Some(other) = other else { continue };
                let theirs = other.progress.and_then(|p| p.pairs.iter().find(|of| of.peer == member.rank));
                let theirs = theirs.copied().unwrap_or_default();
                let unmet = match (theirs.sent < pair.received, theirs.received < pair.sent) {
                    (true, _) => "recv",
                    (_, true) => "send",
                    _ => continue,
                };
                wait.leads_to.push(other.who);
                wait.pair = wait.pair.or(Some((*comm, unmet)));
            }
        }
        if !wait.leads_to.is_empty() {
            self.waiting.insert(wait.who);
        } else if let Some((_, comm, position, progress)) = all_entered {
            let made = progress.and_then(|p| p.recent.iter().find(|made| made.position == position));
            let func = made.map_or("", |made| &made.func);
            wait.place = wait.place.or(Some((comm, position)));
            if let Some(stopped) = levels.get(&comm).and_then(|level| level.stopped_after.get(&position)) {
                wait.leads_to.push(*stopped);
                self.waiting.insert(wait.who);
                let furthest = self.furthest.entry(comm).or_default();
                *furthest = position.max(*furthest);
                return;
            }
            self.jam((comm, position), wait, func);
        }
    }
}

/// The members of a communicator by how many collectives they have entered.
struct Levels {
    /// By number: leads to all members that have entered so many or fewer.
    vertices: BTreeMap<u64, Vertex>,
    /// Leads to all members.
    all: Option<Vertex>,
    /// By position: who is stopped or has ended in it.
    out_at: BTreeMap<u64, Vertex>,
    /// By position: who was stopped after leaving it. Where calls only enqueue, what the device does
    /// then may need the process (NCCL's proxy thread moves data between hosts).
    stopped_after: BTreeMap<u64, Vertex>,
    /// The fewest that a member has entered, and the most.
    fewest: Option<u64>,
    last: u64,
    /// Of some member it is not known.
    uncounted: bool,
    /// Who has begun a collective that it has not waited for, and at which position.
    pending: BTreeMap<Who, u64>,
}

impl Levels {
    fn of(comm: u64, people: &People<'_>, graph: &mut Graph) -> Self {
        let mut levels = Self {
            vertices: BTreeMap::new(),
            all: None,
            out_at: BTreeMap::new(),
            stopped_after: BTreeMap::new(),
            fewest: None,
            last: 0,
            uncounted: false,
            pending: BTreeMap::new(),
        };
        let Some(of) = people.comms.get(&comm) else { return levels };
        let mut by_number: BTreeMap<u64, Vec<Who>> = BTreeMap::new();
        let mut all: Vec<Vertex> = Vec::new();
        for member in &of.members {
            let Some(entered) = member.entered else {
                levels.uncounted = true;
                all.push(member.who);
                continue;
            };
            by_number.entry(entered).or_default().push(member.who);
            let Some(last) = entered.checked_sub(1) else { continue };
            let recent = member.progress.and_then(|p| p.recent.iter().find(|made| made.position == last));
            if recent.is_some_and(|made| is_nonblocking(&made.func)) {
                levels.pending.insert(member.who, last);
            }
            let calls = people.calls.get(&member.who);
            let inside = calls.is_some_and(|calls| {
                calls.iter().any(|call| (call.comm_hash, call.comm_seq) == (Some(comm), Some(last)))
            });
            if people.gone.contains(&member.who) && member.left < entered || inside && people.is_halted(member.who) {
                let vertex = *levels.out_at.entry(last).or_insert_with(|| graph.vertex());
                graph.edge(vertex, member.who);
            } else if people.is_stopped(member.who) && !people.syncing.contains_key(&member.who) {
                let vertex = *levels.stopped_after.entry(last).or_insert_with(|| graph.vertex());
                graph.edge(vertex, member.who);
            }
        }
        levels.fewest = by_number.keys().next().copied();
        levels.last = by_number.keys().next_back().copied().unwrap_or(0);
        let mut before = None;
        for (number, here) in by_number {
            let vertex = graph.vertex();
            here.iter().for_each(|who| graph.edge(vertex, *who));
            before.into_iter().for_each(|before| graph.edge(vertex, before));
            levels.vertices.insert(number, vertex);
            before = Some(vertex);
        }
        all.extend(before);
        if !all.is_empty() {
            let vertex = graph.vertex();
            all.into_iter().for_each(|of| graph.edge(vertex, of));
            levels.all = Some(vertex);
        }
        levels
    }

    /// The vertex of all members that have entered fewer than so many.
    fn before(&self, number: u64) -> Option<Vertex> {
        self.vertices.range(..number).next_back().map(|(_, vertex)| *vertex)
    }
}

/// The communicators of a process.
fn levels_of<'l>(
    who: Who,
    people: &'l People<'_>,
    levels: &'l BTreeMap<u64, Levels>,
) -> impl Iterator<Item = (&'l u64, &'l Levels)> {
    people.comms_of.get(&who).into_iter().flatten().filter_map(|comm| Some((comm, levels.get(comm)?)))
}
