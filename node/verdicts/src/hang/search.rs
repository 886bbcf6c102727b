//! Looks for a hang, and says who or what everybody waits for.
//!
//! Who waits for nobody while others wait for it, directly or through others, is what they wait
//! for. Where all who wait come back to themselves it is a circle. Calls of one position that do
//! not belong together come first: what follows on that communicator is their consequence.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use observed::{InCall, Input, RankRef, Rules, hex};

use super::circle::Circles;
use super::differing;
use super::graph::{Reach, Vertex};
use super::meeting::Meeting;
use super::people::{People, Who};
use super::waits::{Jammed, Wait, Waits};
use super::{Absence, Call, Differing, Early, Edge, Found, Hang, Jam, Missing, NotHeard, Waiting};

/// Look for a hang: somebody has waited for longer than `rules.hang_ns` up to the end of the span.
///
/// Where all have entered the same call and none of them is stopped, it is a hang after longer, and
/// nobody is named. Where those that are waited for make calls up to the end, it is none.
pub(crate) fn find(input: &Input, rules: &Rules) -> Found {
    if input.in_calls.is_empty() && input.syncing.is_empty() {
        return Found::Nothing;
    }
    let mut people = People::of(input);
    let waits = Waits::of(input, &mut people, rules);
    let long: BTreeSet<Who> = waits.all.iter().filter(|wait| wait.is_long).map(|wait| wait.who).collect();
    if long.is_empty() && waits.stopped.is_empty() {
        return Found::Nothing;
    }
    let (leads_to, comes_from) = waits.graph.neighbours();
    Search { input, rules, people: &people, waits: &waits, long, leads_to, comes_from, names: RefCell::default() }
        .hang()
}

struct Search<'a> {
    input: &'a Input,
    rules: &'a Rules,
    people: &'a People<'a>,
    waits: &'a Waits<'a>,
    /// Who has waited for as long as a hang takes.
    long: BTreeSet<Who>,
    leads_to: Vec<Vec<Vertex>>,
    comes_from: Vec<Vec<Vertex>>,
    /// Functions of collectives, by communicator and position, that were looked up.
    names: RefCell<HashMap<(u64, u64), Option<&'a str>>>,
}

impl<'a> Search<'a> {
    fn hang(&self) -> Found {
        let count = self.people.refs.len();
        let mut waited_for = vec![false; self.leads_to.len()];
        Reach::new(&self.leads_to).visit(self.long.iter().copied(), |vertex| waited_for[vertex] = true);
        let sinks = || (0..count).filter(|who| waited_for[*who] && !self.waits.waiting.contains(who));
        // Who waits for its device is not to blame, though the record of what it waits for may be
        // lost; unless nobody else is.
        let others = sinks().any(|who| !self.people.syncing.contains_key(&who));
        let sinks: Vec<Who> = sinks().filter(|who| !others || !self.people.syncing.contains_key(who)).collect();
        let differing = self.differing();
        let blamed: Vec<Who> =
            sinks.iter().copied().filter(|who| !differing.as_ref().is_some_and(|d| self.follows(*who, d))).collect();
        let moves = |who: &Who| self.people.moving.contains(who) && !self.people.is_out(*who);
        let still: Vec<Who> = blamed.iter().copied().filter(|who| !moves(who)).collect();

        // Who waits for one of these gets on as soon as that does.
        let ends = sinks.iter().chain(&self.waits.unclear).chain(&self.waits.for_absent).copied();
        let jammed = self.waits.all.iter().filter(|w| w.place.is_some_and(|at| self.waits.jammed.contains_key(&at)));
        let mut explained: BTreeSet<Vertex> = ends.chain(jammed.map(|wait| wait.who)).collect();
        let from: Vec<Vertex> = explained.iter().copied().collect();
        Reach::new(&self.comes_from).visit(from, |vertex| {
            explained.insert(vertex);
        });
        let caught: BTreeSet<Who> = self.long.iter().copied().filter(|who| !explained.contains(who)).collect();
        let circles = self.circles(&caught, differing.as_ref());
        let unclear: BTreeSet<Who> = self.waits.unclear.iter().copied().filter(|who| waited_for[*who]).collect();
        let mut jams: Vec<Jam> = Vec::new();
        let nobody = still.is_empty() && differing.is_none() && circles.is_empty() && self.waits.absent.is_empty();
        if nobody && self.long.is_empty() {
            // Nobody waits: all are stopped.
        } else if nobody {
            if !blamed.is_empty() {
                return Found::Nothing;
            }
            jams.extend(self.waits.jammed.iter().filter(|(_, jam)| self.lasts(jam)).map(|(place, jam)| Jam {
                comm_hash: hex(place.0),
                func: jam.func.clone(),
                position: place.1,
                ranks: jam.ranks,
            }));
            let unclear_ns = self.rules.hang_ns.saturating_mul(Rules::JAM_TIMES);
            let waits = |wait: &&Wait<'_>| self.waits.unclear.contains(&wait.who);
            let long = |wait: &Wait<'_>| self.input.until_ns.saturating_sub(wait.since_ns) >= unclear_ns;
            let holds_up = |wait: &Wait<'_>| wait.is_long && self.holds_up_clearly(wait.who);
            let is_unclear = self.waits.all.iter().filter(waits).any(|wait| long(wait) || holds_up(wait));
            if jams.is_empty() && !is_unclear {
                return self.early(unclear_ns).map_or(Found::Nothing, Found::Early);
            }
        }
        let mut missing = self.missing(&still);
        if nobody && jams.is_empty() && !self.long.is_empty() {
            missing = self.outside();
        }
        if nobody && self.long.is_empty() {
            missing = self.stopped();
            if missing.is_empty() {
                return Found::Nothing;
            }
        }
        let stuck: BTreeSet<&RankRef> = missing.iter().map(|m| &m.who).collect();
        let waiting = |wait: &Wait<'_>| Waiting {
            who: self.people.refs[wait.who].clone(),
            call: self.call_of(wait),
            since_ns: Some(wait.since_ns),
            activity: self.people.doing.get(&wait.who).copied(),
        };
        let mut all: Vec<Waiting> = self.waits.all.iter().filter(|wait| wait.is_long).map(waiting).collect();
        // Who is stuck does not wait for anybody.
        all.retain(|w| !stuck.contains(&w.who));
        all.sort_by_key(|w| (w.since_ns, w.who.rank));
        let mut unclear: Vec<Waiting> =
            self.waits.all.iter().filter(|wait| unclear.contains(&wait.who)).map(waiting).collect();
        unclear.sort_by_key(|w| (w.since_ns, w.who.rank));
        let not_heard = self.waits.absent.iter().map(|(comm, ranks)| {
            let among = self.people.comms.get(comm).and_then(|of| of.among.clone());
            NotHeard { among, ..NotHeard::new(hex(*comm), ranks.clone()) }
        });
        Found::Hang(Box::new(Hang {
            missing,
            differing,
            circles,
            not_heard: not_heard.collect(),
            jammed: jams,
            unclear,
            nccl: None,
            since_ns: all.iter().filter_map(|w| w.since_ns).max(),
            waiting: all,
        }))
    }

    /// Whether somebody waits for this process for long in a call that shows it.
    fn holds_up_clearly(&self, who: Who) -> bool {
        let mut clearly = false;
        Reach::new(&self.comes_from).visit([who], |other| {
            clearly |= other != who && self.long.contains(&other) && !self.waits.unclear.contains(&other);
        });
        clearly
    }

    /// Waits that are not long enough to be a hang. Those for devices are left out: these compute.
    fn early(&self, hang_ns: i64) -> Option<Early> {
        let calls = || self.waits.all.iter().filter(|wait| wait.is_long && wait.call.is_some());
        let first = calls().min_by_key(|wait| wait.since_ns)?;
        Some(Early {
            ranks: calls().map(|wait| wait.who).collect::<BTreeSet<_>>().len(),
            func: self.call_of(first).func,
            for_ns: self.input.until_ns.saturating_sub(first.since_ns),
            hang_ns,
        })
    }

    fn lasts(&self, jam: &Jammed) -> bool {
        let times = if jam.device { Rules::DEVICE_JAM_TIMES } else { Rules::JAM_TIMES };
        self.input.until_ns.saturating_sub(jam.since_ns) >= self.rules.hang_ns.saturating_mul(times)
    }

    /// The first calls that do not belong together, of the communicators in which somebody waits
    /// for long: those that were waited in first.
    fn differing(&self) -> Option<Differing> {
        let mut since: BTreeMap<u64, i64> = BTreeMap::new();
        for wait in self.waits.all.iter().filter(|wait| wait.is_long) {
            let Some((comm, _)) = wait.place else { continue };
            let first = since.entry(comm).or_insert(wait.since_ns);
            *first = wait.since_ns.min(*first);
        }
        let found = since.into_iter().filter_map(|(hash, since_ns)| {
            let (found, _) = differing::first(hash, self.people.comms.get(&hash)?, self.people)?;
            Some((since_ns, found))
        });
        found.min_by_key(|(since_ns, _)| *since_ns).map(|(_, found)| found)
    }

    /// Whether that a process is waited for follows from calls that do not belong together: it made
    /// one of them, or a later one.
    fn follows(&self, who: Who, of: &Differing) -> bool {
        let comm = self.people.comms.iter().find(|(hash, _)| hex(**hash) == of.comm_hash);
        let entered = comm.and_then(|(_, comm)| comm.member(who)?.entered);
        let inside = self.people.calls.contains_key(&who) || self.people.syncing.contains_key(&who);
        entered.is_some_and(|entered| entered > of.position) && inside
    }

    fn circles(&self, caught: &BTreeSet<Who>, differing: Option<&Differing>) -> Vec<Vec<Edge>> {
        if caught.is_empty() {
            return Vec::new();
        }
        let search = Circles::new(&self.waits.all, &self.leads_to, self.people.refs.len());
        let follows = |at: &usize| {
            let wait = &self.waits.all[*at];
            let place = wait.place.map(|(comm, position)| (hex(comm), position));
            differing.is_some_and(|of| place.is_some_and(|(comm, at)| comm == of.comm_hash && at >= of.position))
        };
        let found = search.find(caught).into_iter().filter(|circle| !circle.iter().any(|(at, _)| follows(at)));
        let edge = |(at, to): (usize, Who)| {
            let wait = &self.waits.all[at];
            Edge {
                who: self.people.refs[wait.who].clone(),
                call: self.call_of(wait),
                waits_for: self.people.refs[to].clone(),
                line: None,
            }
        };
        found.map(|circle| circle.into_iter().map(edge).collect()).collect()
    }

    /// The call of a wait.
    fn call_of(&self, wait: &Wait<'_>) -> Call {
        match wait.call {
            Some(call) => {
                let mut found = self.call(wait.who, call);
                if let Some((comm, position)) = wait.place.filter(|_| call.comm_seq.is_none()) {
                    (found.comm_hash, found.position) = (Some(hex(comm)), Some(position));
                }
                found
            }
            None if wait.place.is_none() && wait.pair.is_some() => {
                let (comm, func) = wait.pair.unwrap_or_default();
                Call { func: func.to_owned(), comm_hash: Some(hex(comm)), ..Call::default() }
            }
            None => {
                let func = wait.place.and_then(|place| self.name_at(place)).unwrap_or("synchronize").to_owned();
                let comm_hash = wait.place.map(|(comm, _)| hex(comm));
                Call { func, comm_hash, position: wait.place.map(|(_, position)| position), ..Call::default() }
            }
        }
    }

    /// A call that a process is in; of a wait for a message, with that.
    fn call(&self, who: Who, call: &InCall) -> Call {
        let awaited = self.awaited(who, call).next();
        let of = awaited.unwrap_or(call);
        let peer = of.comm_hash.zip(of.root).and_then(|at| self.people.at.get(&at));
        Call {
            func: call.func.to_string(),
            begun: awaited.map(|of| of.func.to_string()),
            comm_hash: of.comm_hash.map(hex),
            position: of.comm_seq,
            peer: peer.map(|who| self.people.refs[*who].clone()),
            from_any: of.root.is_some_and(|peer| peer < 0),
            tag: of.tag,
        }
    }

    /// The messages that a process waits for in a call that waits for what was begun before.
    fn awaited(&self, who: Who, call: &InCall) -> impl Iterator<Item = &'a InCall> {
        let waits = Meeting::of(&call.func) == Meeting::Wait && call.comm_seq.is_none();
        let calls = self.people.calls.get(&who).filter(|_| waits).into_iter().flatten().copied();
        calls.filter(|of| Meeting::of(&of.func) == Meeting::Pending)
    }

    /// The function of the collective of a position, by those who wait in it, else by those who
    /// made it.
    fn name_at(&self, (comm, position): (u64, u64)) -> Option<&'a str> {
        if let Some(known) = self.names.borrow().get(&(comm, position)) {
            return *known;
        }
        // Who waits for a request has left the call that began it.
        let begun = |call: &&InCall| Meeting::of(&call.func) == Meeting::Wait;
        let inside = self.waits.all.iter().filter(|wait| wait.place == Some((comm, position)));
        let inside = inside.filter_map(|wait| wait.call).filter(|call| !begun(call));
        let members = self.people.comms.get(&comm).into_iter().flat_map(|of| &of.members);
        let made = members.filter_map(|m| m.progress).flat_map(|p| &p.recent);
        let made = made.filter(|made| made.position == position).map(|made| &*made.func);
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        inside.map(|call| &*call.func).chain(made).for_each(|name| *names.entry(name).or_default() += 1);
        let name = names.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name);
        self.names.borrow_mut().insert((comm, position), name);
        name
    }

    /// Ranks of the jobs of those who wait that are in no call, where calls do not show for whom ranks
    /// wait.
    fn outside(&self) -> Vec<Missing> {
        let Some(wait) = self.waits.all.iter().filter(|wait| wait.is_long).min_by_key(|wait| wait.since_ns) else {
            return Vec::new();
        };
        let idle = |who: &Who| {
            let calls = self.people.calls.contains_key(who) || self.people.syncing.contains_key(who);
            !calls && !self.people.moving.contains(who)
        };
        let ranks = self.people.job_of(wait.who).filter(idle);
        let mut found: Vec<Missing> = ranks
            .map(|who| Missing {
                who: self.people.refs[who].clone(),
                absence: if self.people.gone.contains(&who) { Absence::Gone } else { Absence::Outside },
                call: self.call_of(wait),
                inside: None,
                activity: self.people.doing.get(&who).copied(),
                line: None,
                holds_up: self.long.len(),
            })
            .collect();
        found.sort_by_key(|m| m.who.rank);
        found
    }

    /// All who are stopped in calls, where nobody else waits.
    fn stopped(&self) -> Vec<Missing> {
        let mut found: Vec<Missing> = self
            .waits
            .stopped
            .iter()
            .map(|(who, call)| Missing {
                who: self.people.refs[*who].clone(),
                absence: Absence::Stopped,
                call: self.call(*who, call),
                inside: Some(self.call(*who, call)),
                activity: self.people.doing.get(who).copied(),
                line: None,
                holds_up: 0,
            })
            .collect();
        found.sort_by_key(|m| m.who.rank);
        found
    }

    /// Why these are waited for.
    fn missing(&self, blamed: &[Who]) -> Vec<Missing> {
        // Ranks that the same vertices lead to hold up the same ones.
        let mut held_up: HashMap<&[Vertex], usize> = HashMap::new();
        let mut upstream = Reach::new(&self.comes_from);
        let count = self.people.refs.len();
        let mut found: Vec<Missing> = Vec::new();
        for &who in blamed {
            let before = self.comes_from[who].as_slice();
            let holds_up = *held_up.entry(before).or_insert_with(|| {
                let mut waiting = 0;
                upstream.visit([who], |other| waiting += usize::from(other != who && other < count));
                waiting
            });
            let Some((absence, call)) = self.absence(who) else { continue };
            let inside = self.people.calls.get(&who).into_iter().flatten();
            let inside = inside.filter(|call| Meeting::of(&call.func) != Meeting::Pending);
            let inside = inside.max_by_key(|call| call.since_ns);
            let absence = if self.people.gone.contains(&who) { Absence::Gone } else { absence };
            found.push(Missing {
                who: self.people.refs[who].clone(),
                absence,
                call,
                inside: inside.map(|call| self.call(who, call)),
                activity: self.people.doing.get(&who).copied(),
                line: None,
                holds_up,
            });
        }
        found.sort_by_key(|m| (std::cmp::Reverse(m.holds_up), m.who.rank));
        found
    }

    /// Why a rank is waited for, and in which call: in the largest communicator where it is.
    fn absence(&self, who: Who) -> Option<(Absence, Call)> {
        let calls = || self.people.calls.get(&who).into_iter().flatten();
        let comms = self.waits.furthest.iter().filter_map(|(hash, furthest)| {
            let comm = self.people.comms.get(hash)?;
            let member = comm.member(who)?;
            let entered = member.entered?;
            let inside = calls().find(|call| {
                call.comm_hash == Some(*hash) && call.comm_seq.is_some_and(|at| Some(at) == entered.checked_sub(1))
            });
            let is_halted = self.people.is_halted(who);
            let halted = inside.filter(|_| is_halted).and_then(|call| call.comm_seq);
            let is_in = |position: u64| position <= *furthest;
            let mut certain = true;
            let of = match (halted, inside) {
                (Some(position), _) if is_in(position) => (Absence::Stopped, position),
                (_, Some(_)) if is_in(entered) => (Absence::Stuck, entered - 1),
                _ if self.people.gone.contains(&who) && member.left < entered && entered - 1 == *furthest => {
                    (Absence::NotEntered, entered - 1)
                }
                _ if is_in(entered) => (Absence::NotEntered, entered),
                _ if is_halted && entered.checked_sub(1).is_some_and(is_in) => {
                    certain = false;
                    (Absence::Stopped, entered - 1)
                }
                _ => return None,
            };
            Some((certain, comm.members.len(), *hash, of))
        });
        if let Some((_, _, hash, (absence, position))) =
            comms.max_by_key(|(certain, size, hash, _)| (*certain, *size, std::cmp::Reverse(*hash)))
        {
            let func = self.name_at((hash, position)).unwrap_or("collective").to_owned();
            return Some((
                absence,
                Call { func, comm_hash: Some(hex(hash)), position: Some(position), ..Call::default() },
            ));
        }
        // Calls to one rank, or that wait for their root.
        let mut points: BTreeSet<Vertex> = [who].into();
        let mut next = vec![who];
        while let Some(vertex) = next.pop() {
            let before = self.comes_from[vertex].iter().filter(|v| **v >= self.people.refs.len());
            next.extend(before.filter(|v| points.insert(**v)));
        }
        let direct = self.waits.all.iter().filter(|wait| wait.leads_to.iter().any(|to| points.contains(to)));
        let wait = direct.min_by_key(|wait| (!wait.is_long, wait.since_ns))?;
        let func = wait.call.map(|call| &*call.func).or(wait.pair.map(|(_, func)| func));
        let sends = |call: &InCall| self.awaited(wait.who, call).next().is_some_and(|of| of.func.ends_with("send"));
        let absence = match func.map(Meeting::of) {
            Some(Meeting::Wait) if wait.call.is_some_and(sends) => Absence::NotReceived,
            Some(Meeting::Receive | Meeting::Wait) => Absence::NotSent,
            Some(Meeting::Send) => Absence::NotReceived,
            _ => Absence::NotEntered,
        };
        Some((absence, self.call_of(wait)))
    }
}
