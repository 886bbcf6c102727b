//! Looks for a hang: who waits for whom, as a graph whose size is that of the input.
//!
//! All who wait in one call of a communicator wait for the same ranks: those that stand at an
//! earlier call, and those that stand at this one without having entered it. So there is one vertex
//! for each call that is waited in, which leads to the vertex of the call before it; with n entries
//! of progress there are at most 4 n edges, not n^2.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use observed::{Activity, Coupling, Input, Progress, RankRef, Ranks, Rules, hex};

use super::{Absence, Hang, Jam, Missing, NotHeard, Waiting};

/// Edges followed to find how many wait for each rank that is named, in all; beyond, only those
/// that wait for it directly count.
const MOST_STEPS: usize = 20_000_000;

/// Which process, by place in a table.
type Who = usize;
/// A vertex of the graph of waits: a process, or (from the number of processes on) a call.
type Vertex = usize;
/// A communicator and function.
type Lane<'a> = (u64, &'a str);
/// Where somebody is waited for: communicator and function, with the call and what it does there.
type Places<'a> = BTreeMap<Lane<'a>, (u64, Absence)>;

/// Look for a hang: somebody has waited for longer than `rules.hang_ns` up to the end of the span.
///
/// In a communicator a rank stands at the call after the last one it completed. It waits for each
/// other rank that stands at an earlier call, or at the same one without having entered it, or
/// there with its process stopped or ended. Those who are waited for, and wait for nobody, are what
/// everybody waits for. Where all have entered the same call and none of them is stopped, it is a
/// hang after longer, and nobody is named.
pub(crate) fn find(input: &Input, rules: &Rules) -> Option<Hang> {
    if input.progress.iter().all(|p| p.since_ns.is_none()) {
        return None;
    }
    let people = People::of(input);
    let mut search = Search::new(people.refs.len());
    let since = |p: &Progress| {
        let since = p.since_ns.filter(|_| p.entered.is_some_and(|e| e >= next(p)))?;
        Some(input.clocks.get(&*p.node).map_or(since, |c| c.align(since)))
    };
    let lasted = |since_ns: i64| input.until_ns.saturating_sub(since_ns);
    for (&(comm, func), ranks) in &people.lanes {
        let mut waiters = Vec::new();
        for &(who, p) in ranks {
            let Some(since_ns) = since(p).filter(|since| lasted(*since) >= rules.hang_ns.min(Rules::HANG_WAITER_NS))
            else {
                continue;
            };
            let long = lasted(since_ns) >= rules.hang_ns;
            if people.is_out(who) {
                if long && !people.gone.contains(&who) {
                    search.stopped.entry(who).or_insert(((comm, func), next(p)));
                }
                continue;
            }
            if long {
                search.long.insert(who);
                search.hang.waiting.push(Waiting {
                    who: people.refs[who].clone(),
                    func: p.waiting_in.as_ref().unwrap_or(&p.func).to_string(),
                    comm_hash: hex(comm),
                    seq: next(p),
                    since_ns: Some(since_ns),
                    activity: people.doing.get(&who).copied(),
                });
            }
            waiters.push(Waiter { who, p, since_ns });
        }
        if waiters.is_empty() {
            continue;
        }
        if func == "any" || Coupling::of(func) == Coupling::All {
            search.all_of((comm, func), &waiters, ranks, &people);
        } else {
            waiters.iter().for_each(|waiter| search.one_of((comm, func), waiter, &people));
        }
    }
    search.hang(&people, |jam| {
        let times = if jam.device { Rules::DEVICE_JAM_TIMES } else { Rules::JAM_TIMES };
        lasted(jam.since_ns) >= rules.hang_ns.saturating_mul(times)
    })
}

/// A process that is in a call and has been for a while.
struct Waiter<'a> {
    who: Who,
    p: &'a Progress,
    since_ns: i64,
}

/// Who is there.
struct People<'a> {
    refs: Vec<RankRef>,
    /// How far each got, by communicator and function.
    lanes: BTreeMap<Lane<'a>, Vec<(Who, &'a Progress)>>,
    /// The most processes in one of a communicator's lanes.
    sizes: HashMap<u64, usize>,
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
        let mut known: HashMap<(&str, i64), Who> = HashMap::new();
        let mut people = Self {
            refs: Vec::new(),
            lanes: BTreeMap::new(),
            sizes: HashMap::new(),
            at: HashMap::new(),
            gone: BTreeSet::new(),
            syncing: BTreeSet::new(),
            doing: BTreeMap::new(),
        };
        let mut largest: Vec<i32> = Vec::new();
        for p in &input.progress {
            let who = *known.entry((&p.node, p.pid)).or_insert_with(|| {
                people.refs.push(RankRef { rank: p.rank, node: p.node.to_string(), pid: p.pid });
                largest.push(0);
                people.refs.len() - 1
            });
            // The rank of the job is that of the largest communicator.
            let size = p.nranks.unwrap_or(0);
            if size > largest[who] {
                largest[who] = size;
                people.refs[who].rank = p.rank;
            }
            people.at.insert((p.comm_hash, p.rank), who);
            if p.syncing_since_ns.is_some() {
                people.syncing.insert(who);
            }
            people.lanes.entry((p.comm_hash, &p.func)).or_default().push((who, p));
        }
        for ((comm, _), ranks) in &people.lanes {
            let size = people.sizes.entry(*comm).or_default();
            *size = ranks.len().max(*size);
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
struct Search<'a> {
    hang: Hang,
    /// Who has waited for as long as a hang takes.
    long: BTreeSet<Who>,
    /// Who waits for somebody, or in a call that all have entered.
    waits: BTreeSet<Who>,
    graph: Graph,
    wanted: BTreeMap<Who, Places<'a>>,
    jammed: BTreeMap<Lane<'a>, Jammed>,
    /// Who is stopped in a call, and in which.
    stopped: BTreeMap<Who, (Lane<'a>, u64)>,
    /// Ranks that are not in the data and that somebody has waited for as long as a hang takes, by
    /// communicator: of calls in which all meet, and of calls to one rank.
    absent: BTreeMap<u64, Ranks>,
    absent_peers: BTreeMap<u64, BTreeSet<i32>>,
}

impl<'a> Search<'a> {
    fn new(people: usize) -> Self {
        Self {
            hang: Hang::default(),
            long: BTreeSet::new(),
            waits: BTreeSet::new(),
            graph: Graph { vertices: people, edges: Vec::new() },
            wanted: BTreeMap::new(),
            jammed: BTreeMap::new(),
            stopped: BTreeMap::new(),
            absent: BTreeMap::new(),
            absent_peers: BTreeMap::new(),
        }
    }

    /// In calls in which all ranks meet: who is in one waits for those that have not come, or are
    /// stopped there.
    fn all_of(&mut self, lane: Lane<'a>, waiters: &[Waiter<'_>], ranks: &[(Who, &Progress)], people: &People<'_>) {
        let mut in_call: BTreeMap<u64, Vec<&Waiter<'_>>> = BTreeMap::new();
        waiters.iter().for_each(|waiter| in_call.entry(next(waiter.p)).or_default().push(waiter));
        let Some((&furthest, _)) = in_call.last_key_value() else { return };
        let mut by_call: BTreeMap<u64, Vec<(Who, &Progress)>> = BTreeMap::new();
        ranks.iter().for_each(|&(who, p)| by_call.entry(next(p)).or_default().push((who, p)));
        let together = by_call.len() == 1 && ranks.len() > 1;

        let known: BTreeSet<i32> = ranks.iter().map(|(_, p)| p.rank).collect();
        let size = ranks.iter().filter_map(|(_, p)| p.nranks).max().unwrap_or(0);
        let absent = Ranks::all_but(&known, size);
        if !absent.is_empty() && waiters.iter().any(|waiter| self.long.contains(&waiter.who)) {
            self.absent.entry(lane.0).or_default().extend(&absent);
        }

        // Leads to all that stand at an earlier call.
        let mut earlier: Option<Vertex> = None;
        for (number, here) in by_call.range(..=furthest) {
            let entered = |p: &Progress| p.entered.is_some_and(|e| e >= *number);
            let is_late = |who: Who, p: &Progress| !entered(p) || people.is_out(who);
            let late: Vec<Who> = here.iter().filter(|(who, p)| is_late(*who, p)).map(|(who, _)| *who).collect();
            let call = in_call.get(number).map(|waiters| {
                let call = self.graph.vertex();
                self.graph.edges.extend(earlier.iter().map(|earlier| (call, *earlier)));
                self.graph.edges.extend(late.iter().map(|who| (call, *who)));
                self.graph.edges.extend(waiters.iter().map(|waiter| (waiter.who, call)));
                if earlier.is_some() || !late.is_empty() {
                    self.waits.extend(waiters.iter().map(|waiter| waiter.who));
                } else if together && absent.is_empty() {
                    self.waits.extend(waiters.iter().map(|waiter| waiter.who));
                    self.jam(lane, *number, waiters);
                }
                call
            });
            for &(who, p) in here.iter().filter(|(who, p)| *number < furthest || is_late(*who, p)) {
                let absence = match (entered(p), people.is_halted(who)) {
                    (false, _) => Absence::NotEntered,
                    (true, true) => Absence::Stopped,
                    (true, false) => Absence::Stuck,
                };
                self.wanted.entry(who).or_default().insert(lane, (*number, absence));
            }
            if *number < furthest {
                let all = self.graph.vertex();
                // The call leads to those that are late in it, and to the calls before.
                self.graph.edges.extend(call.or(earlier).map(|before| (all, before)));
                let rest = here.iter().filter(|(who, p)| call.is_none() || !is_late(*who, p));
                self.graph.edges.extend(rest.map(|(who, _)| (all, *who)));
                earlier = Some(all);
            }
        }
    }

    /// All have entered a call, and nobody leaves it.
    fn jam(&mut self, lane: Lane<'a>, seq: u64, waiters: &[&Waiter<'_>]) {
        let Some(first) = waiters.first() else { return };
        self.jammed.insert(
            lane,
            Jammed {
                seq,
                ranks: waiters.len(),
                since_ns: waiters.iter().map(|waiter| waiter.since_ns).max().unwrap_or(first.since_ns),
                device: waiters.iter().any(|waiter| waiter.p.syncing_since_ns.is_some()),
                func: first.p.waiting_in.as_ref().unwrap_or(&first.p.func).to_string(),
            },
        );
    }

    /// In a call to one rank: it waits for that one. Where it is not known which, it waits all the
    /// same, and is not to blame.
    fn one_of(&mut self, lane: Lane<'a>, waiter: &Waiter<'_>, people: &People<'_>) {
        self.waits.insert(waiter.who);
        let Some(peer) = waiter.p.peer.filter(|peer| *peer != waiter.p.rank) else { return };
        match people.at.get(&(lane.0, peer)) {
            Some(other) => {
                self.graph.edges.push((waiter.who, *other));
                let place = (next(waiter.p), Absence::NotEntered);
                self.wanted.entry(*other).or_default().entry(lane).or_insert(place);
            }
            None if self.long.contains(&waiter.who) => {
                self.absent_peers.entry(lane.0).or_default().insert(peer);
            }
            None => {}
        }
    }

    /// Puts it together; `lasts` says whether a jam has lasted for long enough to be a hang.
    fn hang(mut self, people: &People<'_>, lasts: impl Fn(&Jammed) -> bool) -> Option<Hang> {
        let (leads_to, comes_from) = self.graph.neighbours();
        let mut waited_for = vec![false; self.graph.vertices];
        Reach::new(&leads_to).visit(self.long.iter().copied(), |vertex| waited_for[vertex] = true);
        let to_blame = |who: &Who| waited_for[*who] && !self.waits.contains(who);
        for (comm, peers) in std::mem::take(&mut self.absent_peers) {
            self.absent.entry(comm).or_default().extend(&peers.into_iter().collect());
        }
        // Who waits for its device is not to blame, though the record of what it waits for may be
        // lost; unless nobody else is.
        let others = self.wanted.keys().any(|who| to_blame(who) && !people.syncing.contains(who));
        // Calls have the name of the function by which ranks wait in them.
        let mut names: HashMap<(&str, u64), &str> = HashMap::new();
        for waiting in &self.hang.waiting {
            names.entry((&waiting.comm_hash, waiting.seq)).or_insert(&waiting.func);
        }
        // Ranks that the same vertices lead to hold up the same ones.
        let mut held_up: HashMap<&[Vertex], usize> = HashMap::new();
        let mut upstream = Reach::new(&comes_from);
        let mut missing = |who: Who, ((comm, func), seq): (Lane<'_>, u64), absence: Absence| {
            let comm_hash = hex(comm);
            let before = comes_from[who].as_slice();
            let holds_up = *held_up.entry(before).or_insert_with(|| {
                let mut count = 0;
                upstream.visit([who], |other| count += usize::from(other != who && other < people.refs.len()));
                count
            });
            Missing {
                who: people.refs[who].clone(),
                absence,
                func: names.get(&(&*comm_hash, seq)).map_or(func, |name| *name).to_owned(),
                comm_hash,
                seq,
                activity: people.doing.get(&who).copied(),
                holds_up,
            }
        };
        let mut blamed = Vec::new();
        for (who, places) in &self.wanted {
            if !to_blame(who) || (others && people.syncing.contains(who)) {
                continue;
            }
            let size = |comm: u64| people.sizes.get(&comm).copied();
            let Some((&lane, &(seq, absence))) = places.iter().max_by_key(|((comm, _), _)| size(*comm)) else {
                continue;
            };
            let absence = if people.gone.contains(who) { Absence::Gone } else { absence };
            blamed.push(missing(*who, (lane, seq), absence));
        }
        let mut jams = Vec::new();
        if self.hang.waiting.is_empty() {
            // Nobody waits: all are stopped.
            blamed.extend(self.stopped.iter().map(|(who, at)| missing(*who, *at, Absence::Stopped)));
            if blamed.is_empty() {
                return None;
            }
        } else if blamed.is_empty() && self.absent.is_empty() {
            if self.waits.is_empty() || (!self.jammed.is_empty() && !self.jammed.values().any(&lasts)) {
                return None;
            }
            let lasting = self.jammed.iter().filter(|(_, jam)| lasts(jam));
            jams.extend(lasting.map(|((comm, _), jam)| Jam {
                comm_hash: hex(*comm),
                func: jam.func.clone(),
                seq: jam.seq,
                ranks: jam.ranks,
            }));
        }
        let mut hang = std::mem::take(&mut self.hang);
        (hang.missing, hang.jammed) = (blamed, jams);
        // Who is stuck does not wait for anybody.
        let stuck: BTreeSet<&RankRef> = hang.missing.iter().map(|m| &m.who).collect();
        hang.waiting.retain(|w| !stuck.contains(&w.who));
        hang.missing.sort_by_key(|m| (std::cmp::Reverse(m.holds_up), m.who.rank));
        hang.not_heard = self.absent.into_iter().map(|(comm, ranks)| NotHeard::new(hex(comm), ranks)).collect();
        hang.waiting.sort_by_key(|w| (w.since_ns, w.who.rank));
        hang.since_ns = hang.waiting.iter().filter_map(|w| w.since_ns).max();
        Some(hang)
    }
}

/// Who waits for whom.
struct Graph {
    vertices: usize,
    /// From who waits to who, or what, is waited for.
    edges: Vec<(Vertex, Vertex)>,
}

impl Graph {
    fn vertex(&mut self) -> Vertex {
        self.vertices += 1;
        self.vertices - 1
    }

    /// By vertex: those that its edges lead to, and those that they come from.
    fn neighbours(&self) -> (Vec<Vec<Vertex>>, Vec<Vec<Vertex>>) {
        let (mut leads_to, mut comes_from) = (vec![Vec::new(); self.vertices], vec![Vec::new(); self.vertices]);
        for &(from, to) in &self.edges {
            leads_to[from].push(to);
            comes_from[to].push(from);
        }
        (leads_to, comes_from)
    }
}

/// Follows edges.
struct Reach<'a> {
    edges: &'a [Vec<Vertex>],
    /// The visit in which a vertex was seen last.
    seen: Vec<usize>,
    visits: usize,
    steps: usize,
}

impl<'a> Reach<'a> {
    fn new(edges: &'a [Vec<Vertex>]) -> Self {
        Self { edges, seen: vec![0; edges.len()], visits: 0, steps: 0 }
    }

    /// Calls `found` once for each vertex that edges lead to from some, directly or through others.
    /// After [`MOST_STEPS`] in all visits no further than one call: only what nobody's job looks
    /// like takes so many.
    fn visit(&mut self, from: impl IntoIterator<Item = Vertex>, mut found: impl FnMut(Vertex)) {
        self.visits += 1;
        let mut next: Vec<(Vertex, usize)> = from.into_iter().map(|vertex| (vertex, 0)).collect();
        while let Some((vertex, depth)) = next.pop() {
            if self.steps > MOST_STEPS && depth > 1 {
                continue;
            }
            self.steps += self.edges[vertex].len();
            for &other in &self.edges[vertex] {
                if std::mem::replace(&mut self.seen[other], self.visits) != self.visits {
                    found(other);
                    next.push((other, depth + 1));
                }
            }
        }
    }
}

/// The call at which a rank stands: the first that it has not completed.
fn next(p: &Progress) -> u64 {
    p.completed.map_or(0, |c| c.saturating_add(1))
}
