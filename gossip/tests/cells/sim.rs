//! A mesh of cells in virtual time: the real code of `gossip::cells` of each node, messages with
//! delay and loss, links that are cut, nodes that die and come back. Everything at random comes from
//! one seed: the same seed is the same run.
//!
//! Gossip within a cell is a model here, since ten thousand real gossipers are more than a machine
//! carries: a node knows a new mate after [`SPREAD_US`] and a mate's death after [`DEATH_US`], which
//! are what is measured of the real one. Bytes are those of messages between cells alone.

#![allow(dead_code)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gossip::cells::{CellId, Cells, CellsConfig, Mate, Output, Pool, Tells};
use gossip::{MemberState, Sealer};

/// Microseconds after which a mate knows that somebody came, and that somebody died.
const SPREAD_US: (u64, u64) = (300_000, 2_000_000);
const DEATH_US: (u64, u64) = (5_000_000, 6_000_000);
/// What a node knows of its cell is looked at anew this often at most.
const LOOK_US: u64 = 250_000;
/// Length of an agent's seal.
const SEAL_BYTES: usize = 900;

/// A source of numbers.
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub(crate) fn chance(&mut self, share: f64) -> bool {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 >= 1.0 - share
    }
}

/// Seals as long as an agent's, which only their owner can make; counts how many are judged.
pub(crate) struct Seals {
    pub(crate) name: String,
    pub(crate) made: Arc<AtomicU64>,
    pub(crate) judged: Arc<AtomicU64>,
}

fn seal_of(name: &str, statement: &[u8]) -> u64 {
    name.bytes()
        .chain(statement.iter().copied())
        .fold(7u64, |sum, byte| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte))
}

impl Sealer for Seals {
    fn seal(&self, statement: &[u8]) -> Result<String, String> {
        self.made.fetch_add(1, Ordering::Relaxed);
        Ok(format!("{:016x}{}", seal_of(&self.name, statement), "0".repeat(SEAL_BYTES - 16)))
    }

    fn check(&self, node: &str, statement: &[u8], seal: &str) -> Result<(), String> {
        self.judged.fetch_add(1, Ordering::Relaxed);
        if seal.starts_with(&format!("{:016x}", seal_of(node, statement))) { Ok(()) } else { Err("another's".into()) }
    }

    fn epoch(&self) -> u64 {
        0
    }
}

enum Event {
    Tick(usize, u64),
    Look(usize),
    Message {
        from: SocketAddr,
        to: SocketAddr,
        payload: Vec<u8>,
    },
    /// A call of the gossip within the cell of the whole mesh: what a node without mates begins with.
    Call {
        from: usize,
        to: usize,
    },
}

struct Due(u64, u64, Event);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// A stay of a node in a cell.
struct Stay {
    node: usize,
    mate: Mate,
    from: u64,
    /// When this word of it came to be said: mates hear of it as of somebody new.
    until: Option<u64>,
}

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) cells: Option<Cells>,
    pub(crate) generation: u64,
    address: SocketAddr,
    rack: String,
    entered: u64,
    card_serial: u64,
    looks_at: Option<u64>,
    seeds: Vec<SocketAddr>,
    /// It knows where it belongs: until then it calls its seeds, and nobody knows it.
    placed: bool,
    ticks: u64,
    pub(crate) side: u8,
    pub(crate) judged: Arc<AtomicU64>,
    pub(crate) made: Arc<AtomicU64>,
    pub(crate) sent_bytes: u64,
    pub(crate) sent: u64,
    /// How much its own clock is ahead: a step of it is a node that stood still.
    ahead: u64,
}

/// Cells that a node may go to in one life: each is a generation of its card.
const MOVES: u64 = 1_000;

pub(crate) struct Sim {
    pub(crate) now: u64,
    pub(crate) nodes: Vec<Node>,
    queue: BinaryHeap<Reverse<Due>>,
    order: u64,
    pub(crate) random: Random,
    pool: Arc<Pool>,
    stays: BTreeMap<CellId, Vec<Stay>>,
    pub(crate) loss: f64,
    pub(crate) most: usize,
    /// Pairs (from, to) between which nothing gets through in that direction.
    pub(crate) one_way: std::collections::HashSet<(usize, usize)>,
    cut_at: u64,
    healed_at: u64,
    was_cut: bool,
    pub(crate) moves: u64,
    /// Messages and bytes by kind, in the order of the protocol's.
    pub(crate) kinds: [(u64, u64); 12],
}

pub(crate) fn address(index: usize) -> SocketAddr {
    let [_, _, high, low] = (index as u32).to_be_bytes();
    ([10, 0, high, low], 7117).into()
}

fn index(address: SocketAddr) -> usize {
    match address {
        SocketAddr::V4(v4) => {
            let [_, _, high, low] = v4.ip().octets();
            usize::from(high) << 8 | usize::from(low)
        }
        SocketAddr::V6(_) => usize::MAX,
    }
}

/// What a node says of its store and its jobs: 512 nodes run one job.
fn tells(at: usize) -> Tells {
    Tells {
        rows: 1_000,
        span_ns: Some((1, 2)),
        catalogue: 7,
        trust: 1,
        jobs: vec![format!("job{}", at / 512)],
        more_jobs: 0,
    }
}

impl Sim {
    pub(crate) fn new(seed: u64, most: usize) -> Self {
        Self {
            now: 0,
            nodes: Vec::new(),
            queue: BinaryHeap::new(),
            order: 0,
            random: Random(seed),
            pool: Arc::default(),
            stays: BTreeMap::new(),
            loss: 0.01,
            most,
            one_way: Default::default(),
            cut_at: 0,
            healed_at: 0,
            was_cut: false,
            moves: 0,
            kinds: [(0, 0); 12],
        }
    }

    fn at(&mut self, when: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse(Due(when, self.order, event)));
    }

    /// Adds a node that is not started yet; racks of 32.
    pub(crate) fn add(&mut self) -> usize {
        let at = self.nodes.len();
        self.nodes.push(Node {
            name: format!("node{at:05}"),
            cells: None,
            generation: 0,
            address: address(at),
            rack: format!("rack{}", at / 32),
            entered: 0,
            card_serial: 0,
            looks_at: None,
            seeds: Vec::new(),
            placed: false,
            ticks: 0,
            side: 0,
            judged: Arc::default(),
            made: Arc::default(),
            sent_bytes: 0,
            sent: 0,
            ahead: 0,
        });
        at
    }

    /// Starts a node, or starts it anew: it calls its seeds.
    pub(crate) fn start(&mut self, at: usize, seeds: &[usize]) {
        self.kill(at);
        let now = Duration::from_micros(self.now);
        let seed = self.random.next();
        let node = &mut self.nodes[at];
        node.generation += 1;
        // Each cell that it comes to is a further life of its own.
        let mut cfg = CellsConfig::new(&node.name, &node.rack, node.generation * MOVES, node.address);
        cfg.most = self.most;
        cfg.seed = seed;
        cfg.seeds = seeds.iter().map(|seed| address(*seed)).filter(|seed| *seed != node.address).collect();
        (node.seeds, node.placed) = (cfg.seeds.clone(), seeds.is_empty() || seeds.contains(&at));
        let sealer = Seals { name: node.name.clone(), made: node.made.clone(), judged: node.judged.clone() };
        let mut cells = Cells::new(cfg, Some(Arc::new(sealer)), self.pool.clone(), now);
        cells.say(r#"{"l":{"rack":"r12","cluster":"lab"},"v":"0.1.0","h":1311768467463790320,"c":"on"}"#, tells(at));
        let due = cells.due().as_micros() as u64;
        let generation = node.generation;
        node.cells = Some(cells);
        if self.nodes[at].placed {
            self.enter(at);
        }
        self.drain(at);
        self.at(due, Event::Tick(at, generation));
        self.call_seeds(at);
    }

    /// A node is told of one more to call.
    pub(crate) fn hears_of(&mut self, at: usize, other: usize) {
        self.nodes[at].seeds.push(address(other));
    }

    /// As an agent's gossip does, again and again.
    fn call_seeds(&mut self, at: usize) {
        for seed in self.absent_seeds(at) {
            if !self.random.chance(self.loss) {
                let when = self.now + 200 + self.random.next() % 5_000;
                self.at(when, Event::Call { from: at, to: index(seed) });
            }
        }
    }

    /// Who is of the same cell comes to know the caller, and else the cells hear of it.
    fn called(&mut self, from: usize, to: usize) {
        let cell_of = |at: usize| self.nodes.get(at).and_then(|node| node.cells.as_ref()).map(Cells::cell);
        let (Some(theirs), Some(own)) = (cell_of(from), cell_of(to)) else { return };
        let now = Duration::from_micros(self.now + self.nodes[to].ahead);
        if self.is_cut() && self.nodes[from].side != self.nodes[to].side {
            return;
        }
        if theirs == own {
            for at in [from, to] {
                if !std::mem::replace(&mut self.nodes[at].placed, true) {
                    self.enter(at);
                }
            }
        } else if let Some(cells) = self.nodes[to].cells.as_mut() {
            cells.called_from(now, theirs, address(from));
            self.drain(to);
        }
    }

    /// A node stops without a word.
    pub(crate) fn kill(&mut self, at: usize) {
        if self.nodes[at].cells.take().is_some() {
            self.leave(at);
        }
    }

    fn leave(&mut self, at: usize) {
        let now = self.now;
        let mut cells = Vec::new();
        for (cell, stays) in &mut self.stays {
            for stay in stays.iter_mut().filter(|stay| stay.node == at && stay.until.is_none()) {
                stay.until = Some(now);
                cells.push(*cell);
            }
        }
        for cell in cells {
            self.look_after(cell, at, DEATH_US);
        }
    }

    /// The node is in its cell from now on, with its present card.
    fn enter(&mut self, at: usize) {
        let now = self.now;
        let node = &mut self.nodes[at];
        let Some(cells) = &node.cells else { return };
        let card = cells.card().clone();
        let (cell, serial) = (card.card.cell, card.card.serial);
        let Some(mate) = cells.mate(card, MemberState::Live, tells(at)) else { return };
        (node.card_serial, node.entered) = (serial, now);
        let stays = self.stays.entry(cell).or_default();
        stays.retain(|stay| stay.node != at);
        stays.push(Stay { node: at, mate, from: now, until: None });
        self.look_after(cell, at, SPREAD_US);
        // And it comes to know the others.
        for quarter in 1..=10 {
            self.look(at, now + quarter * LOOK_US);
        }
    }

    fn look_after(&mut self, cell: CellId, about: usize, times: (u64, u64)) {
        let now = self.now;
        let mates: Vec<usize> = self
            .stays
            .get(&cell)
            .into_iter()
            .flatten()
            .filter(|stay| stay.until.is_none())
            .map(|stay| stay.node)
            .collect();
        for mate in mates.into_iter().filter(|mate| *mate != about) {
            self.look(mate, now + time(mate, about, times));
        }
    }

    fn look(&mut self, at: usize, when: u64) {
        let when = when / LOOK_US * LOOK_US + LOOK_US + (at as u64 * 7_919) % 1_000;
        self.at(when, Event::Look(at));
    }

    /// What the node knows of its cell.
    fn mates(&self, at: usize) -> Vec<Mate> {
        let node = &self.nodes[at];
        if !node.placed {
            return Vec::new();
        }
        let Some(cell) = node.cells.as_ref().map(Cells::cell) else { return Vec::new() };
        let mut mates = Vec::new();
        for stay in self.stays.get(&cell).into_iter().flatten().filter(|stay| stay.node != at) {
            let apart = self.was_cut && self.nodes[stay.node].side != node.side;
            let mut from = stay.from.max(node.entered);
            let mut until = stay.until;
            if apart && self.cut_at > self.healed_at {
                if from > self.cut_at {
                    continue;
                }
                until = Some(until.map_or(self.cut_at, |until| until.min(self.cut_at)));
            } else if apart && self.healed_at >= self.cut_at + time(at, stay.node, DEATH_US) {
                from = from.max(self.healed_at);
                if stay.until.is_none() && self.now < from + time(at, stay.node, SPREAD_US) && stay.from < self.cut_at {
                    mates.push(stay.mate.in_state(MemberState::Dead));
                    continue;
                }
            }
            let dead = until.is_some_and(|until| self.now >= until + time(at, stay.node, DEATH_US));
            if dead && stay.until.is_none_or(|until| until >= node.entered) {
                mates.push(stay.mate.in_state(MemberState::Dead));
            } else if !dead && self.now >= from + time(at, stay.node, SPREAD_US) {
                mates.push(stay.mate.clone());
            }
        }
        mates
    }

    /// Splits the mesh in two, or joins it again.
    pub(crate) fn cut(&mut self, side: impl Fn(usize) -> u8) {
        for at in 0..self.nodes.len() {
            self.nodes[at].side = side(at);
        }
        self.was_cut = true;
        self.cut_at = self.now;
        self.look_all();
    }

    pub(crate) fn heal(&mut self) {
        self.healed_at = self.now;
        self.look_all();
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.was_cut && self.cut_at > self.healed_at
    }

    fn look_all(&mut self) {
        for at in 0..self.nodes.len() {
            for quarter in 1..=32 {
                self.look(at, self.now + quarter * LOOK_US);
            }
        }
    }

    /// A node's clock jumps, as where its host stood still: what it then does is late.
    pub(crate) fn step_clock(&mut self, at: usize, by: Duration) {
        self.nodes[at].ahead += by.as_micros() as u64;
    }

    fn drain(&mut self, at: usize) {
        let mut moved = false;
        while let Some(output) = self.nodes[at].cells.as_mut().and_then(Cells::poll) {
            match output {
                Output::Send { to, payload } => {
                    self.nodes[at].sent_bytes += payload.len() as u64;
                    self.nodes[at].sent += 1;
                    let kind = &mut self.kinds[usize::from(payload[4]).min(11)];
                    *kind = (kind.0 + 1, kind.1 + payload.len() as u64);
                    if !self.random.chance(self.loss) {
                        let when = self.now + 200 + self.random.next() % 5_000;
                        self.at(when, Event::Message { from: self.nodes[at].address, to, payload });
                    }
                }
                Output::Move { .. } => moved = true,
            }
        }
        let serial = self.nodes[at].cells.as_ref().map_or(0, |cells| cells.card().card.serial);
        if moved && (serial != self.nodes[at].card_serial || !self.nodes[at].placed) {
            self.moves += 1;
            self.nodes[at].placed = true;
            self.leave(at);
            self.enter(at);
        }
    }

    /// Seeds that a node in the cell of the whole mesh does not gossip with.
    fn absent_seeds(&self, at: usize) -> Vec<SocketAddr> {
        let node = &self.nodes[at];
        let Some(CellId::WHOLE) = node.cells.as_ref().map(Cells::cell) else { return Vec::new() };
        let is_whole = |seed: &SocketAddr| {
            let seed = self.nodes.get(index(*seed)).and_then(|seed| seed.cells.as_ref());
            seed.is_some_and(|seed| seed.cell() == CellId::WHOLE)
        };
        node.seeds.iter().filter(|seed| !node.placed || !is_whole(seed)).copied().collect()
    }

    /// Runs until this time.
    pub(crate) fn run_until(&mut self, until: u64) {
        while self.queue.peek().is_some_and(|due| due.0.0 <= until) {
            let Some(Reverse(Due(when, _, event))) = self.queue.pop() else { return };
            self.now = when;
            match event {
                Event::Tick(at, generation) => {
                    let node = &mut self.nodes[at];
                    if node.generation != generation {
                        continue;
                    }
                    let Some(cells) = node.cells.as_mut() else { continue };
                    node.ticks += 1;
                    let calls = node.ticks.is_multiple_of(4);
                    cells.tick(Duration::from_micros(when + node.ahead));
                    let due = (cells.due().as_micros() as u64).saturating_sub(node.ahead).max(when + 1);
                    self.drain(at);
                    self.at(due, Event::Tick(at, generation));
                    if calls {
                        self.call_seeds(at);
                    }
                }
                Event::Call { from, to } => self.called(from, to),
                Event::Look(at) => {
                    if self.nodes[at].looks_at == Some(when) || self.nodes[at].cells.is_none() {
                        continue;
                    }
                    self.nodes[at].looks_at = Some(when);
                    let mates = self.mates(at);
                    let node = &mut self.nodes[at];
                    if let Some(cells) = node.cells.as_mut() {
                        cells.set_mates(mates, Duration::from_micros(when + node.ahead));
                    }
                    self.drain(at);
                }
                Event::Message { from, to, payload } => {
                    let (sender, receiver) = (index(from), index(to));
                    if receiver >= self.nodes.len() {
                        continue;
                    }
                    let cut = self.is_cut() && self.nodes[sender].side != self.nodes[receiver].side;
                    if cut || self.one_way.contains(&(sender, receiver)) {
                        continue;
                    }
                    let name = self.nodes[sender].name.clone();
                    let node = &mut self.nodes[receiver];
                    if let Some(cells) = node.cells.as_mut() {
                        cells.receive(Duration::from_micros(when + node.ahead), &name, from, &payload);
                        self.drain(receiver);
                    }
                }
            }
        }
        self.now = until;
    }

    pub(crate) fn run(&mut self, by: Duration) {
        self.run_until(self.now + by.as_micros() as u64);
    }

    /// How a node's list differs from what is: living ones that it does not list as such, and dead
    /// ones that it does.
    pub(crate) fn wrong(&self, at: usize) -> (usize, usize) {
        let node = &self.nodes[at];
        let Some(cells) = &node.cells else { return (0, 0) };
        let people = cells.people(Duration::from_micros(self.now + node.ahead));
        let listed: HashMap<&str, (MemberState, u64)> = people
            .iter()
            .map(|person| (person.card().name.as_str(), (person.state, person.card().generation)))
            .collect();
        let (mut missing, mut ghosts) = (0, 0);
        for (other, there) in self.nodes.iter().enumerate().filter(|(other, _)| *other != at) {
            let reached = there.cells.is_some() && (!self.is_cut() || there.side == node.side);
            match listed.get(there.name.as_str()) {
                Some((MemberState::Live, generation))
                    if reached && there.cells.as_ref().is_some_and(|it| it.card().card.generation == *generation) => {}
                Some((MemberState::Live, _)) if !reached => ghosts += 1,
                _ if reached => missing += 1,
                _ => {}
            }
            let _ = other;
        }
        (missing, ghosts)
    }

    /// The state in which a node lists another.
    pub(crate) fn state_of(&self, at: usize, other: usize) -> Option<MemberState> {
        let node = &self.nodes[at];
        let people = node.cells.as_ref()?.people(Duration::from_micros(self.now + node.ahead));
        people.iter().find(|person| person.card().name == self.nodes[other].name).map(|person| person.state)
    }

    /// Which nodes it lists in this state.
    pub(crate) fn listed_as(&self, at: usize, state: MemberState) -> Vec<bool> {
        let node = &self.nodes[at];
        let people = node.cells.as_ref().map(|cells| cells.people(Duration::from_micros(self.now + node.ahead)));
        let mut listed = vec![false; self.nodes.len()];
        for person in people.into_iter().flatten().filter(|person| person.state == state) {
            listed[index(person.card().address)] = true;
        }
        listed
    }

    /// Parts of the mesh come off and back, in so many turns. Whoever two nodes have been joined to for
    /// half a minute is never to be dead in the other's list: when that was nevertheless, of all looks
    /// (four a second, at all lists), in whose list, and who.
    pub(crate) fn parts_come_and_go(&mut self, turns: usize) -> Vec<(u64, usize, usize)> {
        let nodes = self.nodes.len();
        let mut joined = vec![vec![0_u64; nodes]; nodes];
        let mut faults = Vec::new();
        for turn in 0..turns {
            let is_cut = turn % 2 == 0;
            if is_cut {
                let share = 0.1 + 0.4 * self.random.below(100) as f64 / 100.0;
                let sides: Vec<u8> = (0..nodes).map(|_| u8::from(self.random.chance(share))).collect();
                self.cut(|at| sides[at]);
            } else {
                self.heal();
            }
            for _ in 0..12 + self.random.below(60) {
                self.run(Duration::from_millis(250));
                for (at, joined) in joined.iter_mut().enumerate() {
                    let dead = self.listed_as(at, MemberState::Dead);
                    for (other, (joined, dead)) in joined.iter_mut().zip(dead).enumerate() {
                        if is_cut && self.nodes[at].side != self.nodes[other].side {
                            *joined = self.now;
                        } else if dead && self.now >= *joined + 30_000_000 {
                            faults.push((self.now, at, other));
                        }
                    }
                }
            }
        }
        faults
    }

    /// Some that run, at random.
    pub(crate) fn some(&mut self, count: usize) -> Vec<usize> {
        let running: Vec<usize> = (0..self.nodes.len()).filter(|at| self.nodes[*at].cells.is_some()).collect();
        if running.len() <= count {
            return running;
        }
        (0..count).map(|_| running[self.random.below(running.len())]).collect()
    }

    /// Runs until `good` of all these nodes, looking once in `step`; how long that took.
    /// How many that run and are reached `at` does not ask: whom it does not list, or lists as dead or by a
    /// former life. (Who is listed in the cell that it has just left, or as `heard`, is asked where it is.)
    pub(crate) fn not_asked(&self, at: usize) -> usize {
        let node = &self.nodes[at];
        let Some(cells) = &node.cells else { return 0 };
        let people = cells.people(Duration::from_micros(self.now + node.ahead));
        let asked: HashMap<&str, u64> = people
            .iter()
            .filter(|person| person.state != MemberState::Dead)
            .map(|person| (person.card().name.as_str(), person.card().generation / MOVES))
            .collect();
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, there)| there);
        let reached = others.filter(|there| there.cells.is_some() && (!self.is_cut() || there.side == node.side));
        reached.filter(|there| asked.get(there.name.as_str()) != Some(&there.generation)).count()
    }

    pub(crate) fn until(
        &mut self,
        watched: &[usize],
        limit: Duration,
        step: Duration,
        good: impl Fn(&Self, usize) -> bool,
    ) -> Option<Duration> {
        let began = self.now;
        loop {
            let bad = watched.iter().filter(|at| self.nodes[**at].cells.is_some()).find(|at| !good(self, **at));
            if bad.is_none() {
                return Some(Duration::from_micros(self.now - began));
            }
            if self.now - began >= limit.as_micros() as u64 {
                return None;
            }
            self.run(step);
        }
    }

    /// Cells and how many live in each.
    pub(crate) fn sizes(&self) -> BTreeMap<CellId, usize> {
        let mut sizes = BTreeMap::new();
        for cells in self.nodes.iter().filter_map(|node| node.cells.as_ref()) {
            *sizes.entry(cells.cell()).or_default() += 1;
        }
        sizes
    }
}

/// A time between two, always the same for the two nodes.
fn time(a: usize, b: usize, (least, most): (u64, u64)) -> u64 {
    least + Random((a as u64) << 32 | b as u64).next() % (most - least)
}
