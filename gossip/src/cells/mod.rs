//! A mesh of more nodes than can gossip in full: cells, and what they know of each other.
//!
//! Within a cell (some 250 nodes) everybody gossips in full, as in a small mesh. Three members of
//! each cell, its delegates, say who is in it and who of them lives, to delegates of other cells;
//! the other members ask their own delegates for what is new. So everybody knows everybody's name,
//! address and state, and what changes often stays in the cell. `ALGORITHM.md` explains it.
//!
//! This is the protocol alone: no socket, no clock, no task. The caller hands in what comes (what
//! the cell's gossip knows, messages, time) and takes out what is to be done. It may be a simulator
//! of many nodes.
//!
//! - `cell`: names of cells, and which one a node belongs to. `card`: what a node says to all.
//!   `report`: what a delegate says of its cell. `known`, `table`: what is known of one cell, of all.
//!   `steady`: who is heard without a gap. `rounds`: what is done in each round, `moves`: which cell
//!   is the right one. `wire`, `bytes`: messages; `receive`: what is done with one. `people`: who lives where, by all
//!   that is known. `pool`: for simulations. The driver's side is `part`, one level up.

mod bytes;
pub(crate) mod card;
pub(crate) mod cell;
mod known;
mod moves;
mod people;
mod pool;
mod receive;
mod report;
mod rounds;
mod steady;
mod table;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use card::Entry;
use card::MAX_FACTS_BYTES;
pub use card::{Card, SealedCard};
use card::{MAX_ROLL, Roll};
pub use cell::{CellId, place_of};
use cell::{mix, weight};
use known::{DELEGATES, MAX_BEATS, Which};
use people::People;
pub use people::{Mate, Person, Tells};
pub use pool::Pool;
pub use report::Sums;
use report::{Bits, Report};
pub(crate) use report::{MAX_JOBS, is_job};
use steady::Role;
pub use table::MAX_CELLS;
use table::Table;
use wire::Message;
pub use wire::is_about_cells;
pub(crate) use wire::{HEAD_BYTES, unwrap, wrap};

use crate::member::MemberState;
use crate::seal::{Sealer, Sealing};

/// Addresses that are tried in turn because nobody else may know of who is there.
const MAX_CONTACTS: usize = 256;
/// Addresses in an answer to who asks where it belongs.
const DOORS: usize = 8;
/// Rolls that are asked for in one round.
const FETCHES: usize = 16;
/// For so many rounds who has come to a cell does not speak for it: it has to meet its members first.
const NEW_FOR: u32 = 6;
/// For so many rounds a larger cell has to be the right one before a node goes back to it: who has
/// just come knows few, and to few everything looks like one small cell.
const JOINS_AFTER: u32 = 60;
/// Word that there are other cells excuses silent members for a while, and the next word only after
/// so many times as long: any member can send it.
const APART_AGAIN: u32 = 10;

/// How one node takes part.
#[derive(Debug, Clone)]
pub struct CellsConfig {
    /// Its name.
    pub node: String,
    /// Its rack; empty where none is given.
    pub rack: String,
    /// Its incarnation.
    pub generation: u64,
    /// Where it is reached.
    pub address: SocketAddr,
    /// Nodes of a cell at most.
    pub most: usize,
    /// Time between two calls of a delegate; other members call every second one.
    pub round: Duration,
    /// A cell of which nothing was heard for so long is silent: its members are asked for a while, and
    /// then dead.
    pub silent_after: Duration,
    /// How long a silent cell stays listed.
    pub forget_after: Duration,
    /// Members that are called now and then whatever is known of them.
    pub seeds: Vec<SocketAddr>,
    /// Where its choices at random begin.
    pub seed: u64,
}

impl CellsConfig {
    /// The usual timing: cells of 256, rounds of 500 ms, silent after 6 s, forgotten after an hour.
    #[must_use]
    pub fn new(node: impl Into<String>, rack: impl Into<String>, generation: u64, address: SocketAddr) -> Self {
        Self {
            node: node.into(),
            rack: rack.into(),
            generation,
            address,
            most: 256,
            round: Duration::from_millis(500),
            silent_after: Duration::from_secs(6),
            forget_after: Duration::from_secs(3_600),
            seeds: Vec::new(),
            seed: generation,
        }
    }
}

/// What the caller has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this to a member.
    Send {
        /// Where it is.
        to: SocketAddr,
        /// The message.
        payload: Vec<u8>,
    },
    /// Gossip within this cell from now on, as the incarnation that [`Cells::card`] names; where this
    /// is the cell already, only the doors are new.
    Move {
        /// The cell.
        cell: CellId,
        /// Members of it that may be called first.
        doors: Vec<SocketAddr>,
    },
}

/// One node's part; see the module.
pub struct Cells {
    cfg: CellsConfig,
    sealing: Sealing,
    own: SealedCard,
    entry: Arc<Entry>,
    tells: Tells,
    people: People,
    table: Table,
    /// Delegates of the own cell by all that it knows, this node among them or not: hash and
    /// address.
    delegates: Vec<(u64, SocketAddr)>,
    reported: Option<Duration>,
    report_due: bool,
    report_serial: u64,
    rounds: u64,
    /// Which of the delegates this member asked last, and whether it is to answer yet.
    looked: usize,
    unanswered: bool,
    next_round: Duration,
    contacts: Vec<SocketAddr>,
    /// Delegates that a member of a silent cell has named: called in the next round.
    found: Vec<SocketAddr>,
    /// Since when another cell would be right, and which.
    wanted: Option<(CellId, Duration)>,
    /// Until when members of its cell may be on their way to another, or come from one.
    unsettled_until: Duration,
    /// When the last word that there are other cells came that excuses silent members.
    apart: Option<Duration>,
    /// Whom it has asked where it belongs, and not heard.
    asked: Vec<SocketAddr>,
    random: u64,
    out: VecDeque<Output>,
}

impl Cells {
    /// A node that knows nobody; `sealer` as in [`crate::GossipConfig`].
    #[must_use]
    pub fn new(cfg: CellsConfig, sealer: Option<Arc<dyn Sealer>>, pool: Arc<Pool>, now: Duration) -> Self {
        let sealing = Sealing::of(sealer);
        let card = Card {
            name: cfg.node.clone(),
            rack: cfg.rack.clone(),
            generation: cfg.generation,
            serial: 1,
            address: cfg.address,
            cell: CellId::WHOLE,
            facts: String::new(),
            later: Vec::new(),
        };
        let own = SealedCard::new(card, &sealing);
        let entry = Arc::new(Entry::new(own.card.clone()));
        let random = mix(cfg.seed ^ entry.name_hash);
        Self {
            delegates: vec![(entry.name_hash, cfg.address)],
            table: Table::new(sealing.clone(), pool, cfg.round, cfg.silent_after),
            people: People::new(cfg.round),
            next_round: now + cfg.round.mul_f64((random % 1_000) as f64 / 1_000.0),
            cfg,
            sealing,
            own,
            entry,
            tells: Tells::default(),
            reported: None,
            report_due: true,
            report_serial: 0,
            rounds: 0,
            looked: 0,
            unanswered: false,
            contacts: Vec::new(),
            found: Vec::new(),
            wanted: None,
            unsettled_until: Duration::ZERO,
            apart: None,
            asked: Vec::new(),
            random,
            out: VecDeque::new(),
        }
    }

    /// This node's card, to be told within the cell; another one after [`Output::Move`] and
    /// [`Cells::say`].
    #[must_use]
    pub fn card(&self) -> &SealedCard {
        &self.own
    }

    /// The cell that it is in.
    #[must_use]
    pub fn cell(&self) -> CellId {
        self.own.card.cell
    }

    /// Sets what this node says: to all, and within the cell. Facts that are longer than a card
    /// takes leave the former ones; whether they were taken.
    pub fn say(&mut self, facts: &str, tells: Tells) -> bool {
        let fits = facts.len() <= MAX_FACTS_BYTES;
        if fits && self.own.card.facts != facts {
            let facts = facts.to_owned();
            self.set_card(|card| card.facts = facts);
        }
        self.report_due |= self.tells != tells;
        self.tells = tells;
        fits
    }

    fn set_card(&mut self, change: impl FnOnce(&mut Card)) {
        let mut card = self.own.card.clone();
        change(&mut card);
        card.serial += 1;
        self.own = SealedCard::new(card, &self.sealing);
        self.entry = Arc::new(Entry::new(self.own.card.clone()));
        self.report_due = true;
    }

    /// A mate by the card that it tells within the cell; `None` where it is not its owner's.
    #[must_use]
    pub fn mate(&self, card: SealedCard, state: MemberState, tells: Tells) -> Option<Mate> {
        card.is_good(&self.sealing).then(|| Mate::new(card, state, tells))
    }

    /// What the cell's gossip knows now: its members but this node.
    pub fn set_mates(&mut self, mates: Vec<Mate>, now: Duration) {
        let own = self.cell();
        self.people.mates = mates.into_iter().filter(|mate| mate.entry.card.cell == own).take(MAX_ROLL - 1).collect();
        self.people.version += 1;
        self.report_due = true;
        self.table.mates = (own, self.people.mates.iter().map(|mate| Arc::clone(&mate.entry)).collect());
        let living = self.people.mates.iter().filter(|mate| mate.state == MemberState::Live);
        let mut all: Vec<(u64, SocketAddr)> = living
            .map(|mate| (mate.entry.name_hash, mate.entry.card.address))
            .chain([(self.entry.name_hash, self.cfg.address)])
            .collect();
        all.sort_by_key(|(hash, _)| std::cmp::Reverse(weight(own, *hash)));
        all.truncate(DELEGATES);
        self.delegates = all;
        self.set_role(now);
    }

    fn set_role(&mut self, now: Duration) {
        let is_chosen = self.delegates.iter().any(|(hash, _)| *hash == self.entry.name_hash);
        let is_new = self.people.came.is_some_and(|came| now < came + NEW_FOR * self.cfg.round);
        self.table.set_role(if is_chosen && !is_new { Role::Delegate } else { Role::Member }, now);
    }

    /// Whether it speaks for its cell.
    #[must_use]
    pub fn is_delegate(&self) -> bool {
        self.table.role == Role::Delegate
    }

    /// Everybody else who is known, of each name the newest life, sorted by name.
    #[must_use]
    pub fn people(&self, now: Duration) -> Vec<Person> {
        let mut all = self.people.all(&self.table, &self.entry, self.cfg.forget_after, now);
        let own = self.delegates.iter().map(|(hash, _)| *hash);
        let speakers: HashSet<u64> = self.table.authors().chain(own).collect();
        all.iter_mut().for_each(|person| person.speaks = speakers.contains(&person.entry.name_hash));
        all
    }

    /// A higher generation of this node's own name that others list as dead: an earlier life with a
    /// clock ahead of this one's.
    #[must_use]
    pub fn outranked_by(&self) -> Option<u64> {
        let (own, name) = (self.own.card.generation, self.entry.name_hash);
        let members = self.table.cells().flat_map(|(_, members)| members);
        let earlier = members.filter(|(entry, lives)| !lives && entry.name_hash == name);
        earlier.map(|(entry, _)| entry.card.generation).filter(|generation| *generation > own).max()
    }

    /// Jobs of other cells, as far as these name them, with their hosts, the dead included: host and
    /// job.
    pub fn jobs(&self) -> impl Iterator<Item = (&str, &str)> {
        let others = self.table.jobs().filter(|(cell, ..)| *cell != self.cell());
        others
            .flat_map(|(_, jobs, _)| jobs)
            .flat_map(|(job, hosts)| hosts.iter().map(|entry| (entry.card.name.as_str(), job.as_str())))
    }

    /// Other cells that run more jobs than they name: their members may run any.
    pub fn unnamed_jobs(&self) -> impl Iterator<Item = CellId> {
        let others = self.table.jobs().filter(|(cell, _, more)| *cell != self.cell() && *more > 0);
        others.map(|(cell, ..)| cell)
    }

    /// The cells that are known by their reports: sums.
    pub fn sums(&self) -> impl Iterator<Item = (CellId, &Sums)> {
        self.table.reports().map(|(report, _)| (report.cell, &report.sums))
    }

    /// Bytes that the knowledge of other cells takes, about, were nothing shared with other nodes of
    /// the process.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.table.bytes() + self.people.bytes()
    }

    /// A number that changes when [`Cells::people`] may answer otherwise.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.table.version.wrapping_add(self.people.version)
    }

    /// What is refused for want of room or of a seal, since the start.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.table.refused + self.sealing.forged()
    }

    /// Whether there is any other cell, or this node has heard that there is.
    #[must_use]
    pub fn is_one_of_many(&self) -> bool {
        let own = self.cell();
        own != CellId::WHOLE || self.table.knows_others(own) || !self.contacts.is_empty()
    }

    /// Begins a further life: of this generation, in the same cell.
    pub fn begin_anew(&mut self, generation: u64) {
        self.set_card(|card| card.generation = generation);
    }

    /// Seals anew what it says to all.
    pub fn reseal(&mut self) {
        self.set_card(|_| {});
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn send(&mut self, to: SocketAddr, message: &Message) {
        if to != self.cfg.address {
            self.out.push_back(Output::Send { to, payload: wire::write(message) });
        }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_add(1);
        (mix(self.random) % below.max(1) as u64) as usize
    }
}
