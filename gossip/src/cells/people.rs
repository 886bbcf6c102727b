//! Who lives where, by all that a node knows: the gossip of its cell, reports of the others, who has
//! asked where it belongs, and whom it knew in the cell that it has just left.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::card::{Card, Entry, Roll, SealedCard};
use super::cell::{CellId, Stand, cell_for, hash_of};
use super::report::{Hosts, Sums, is_job};
use super::table::Table;
use crate::member::MemberState;

/// Newcomers that are expected at a time.
const MAX_EXPECTED: usize = 4_096;
/// For so many rounds they are expected, and those of a cell that was left may live where nothing else
/// is heard of them.
const A_WHILE: u32 = 60;
/// So many rounds after a node came to a cell all who chose that cell when it did have come, too.
const ALL_CAME: u32 = 8;

/// What a node tells within its cell and a report sums up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tells {
    /// Rows in its store.
    pub rows: u64,
    /// First and last instant that it has rows for, Unix nanoseconds.
    pub span_ns: Option<(i64, i64)>,
    /// Hash of its catalogue.
    pub catalogue: u64,
    /// Number of its trust list.
    pub trust: u64,
    /// Jobs that it runs, as many as are told on, and how many more.
    pub jobs: Vec<String>,
    /// See [`Tells::jobs`].
    pub more_jobs: u32,
}

/// A member of the own cell, by its gossip.
#[derive(Debug, Clone)]
pub struct Mate {
    pub(crate) entry: Arc<Entry>,
    pub(crate) seal: Arc<str>,
    pub(crate) state: MemberState,
    pub(crate) tells: Arc<Tells>,
}

impl Mate {
    pub(crate) fn new(sealed: SealedCard, state: MemberState, tells: Tells) -> Self {
        let SealedCard { card, seal } = sealed;
        Self { entry: Arc::new(Entry::new(card)), seal: seal.into(), state, tells: Arc::new(tells) }
    }

    /// Whether it tells a card.
    pub(crate) fn is_told(&self) -> bool {
        self.entry.card.serial > 0
    }

    /// The same with another state.
    #[must_use]
    pub fn in_state(&self, state: MemberState) -> Self {
        Self { state, ..self.clone() }
    }

    /// Its card.
    #[must_use]
    pub fn card(&self) -> &Card {
        &self.entry.card
    }
}

/// Somebody, and whether it lives.
#[derive(Debug, Clone)]
pub struct Person {
    pub(crate) entry: Arc<Entry>,
    /// What is known of it.
    pub state: MemberState,
    /// It is a delegate of its cell.
    pub speaks: bool,
}

impl Person {
    /// What it says to all.
    #[must_use]
    pub fn card(&self) -> &Card {
        &self.entry.card
    }
}

/// Keys are hashes already.
#[derive(Default)]
pub(crate) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

type ByName<T> = HashMap<u64, T, BuildHasherDefault<AsItIs>>;

struct Expected {
    name_hash: u64,
    stand: Stand,
    address: SocketAddr,
    cell: CellId,
    at: Duration,
}

/// A member of a cell that this node has left.
struct Former {
    entry: Arc<Entry>,
    /// When it was left.
    since: Duration,
    /// Whether it may have lived then.
    lived: bool,
}

#[derive(Default)]
pub(crate) struct People {
    pub(crate) mates: Vec<Mate>,
    /// Who was in cells that this node has left, the dead included: these have told no card perhaps,
    /// and then no other cell lists them.
    former: Vec<Former>,
    expected: Vec<Expected>,
    pub(crate) a_while: Duration,
    pub(crate) version: u64,
    /// The cell that was right at these versions, and when.
    right: Option<(u64, CellId, Duration)>,
    /// When this node came to its cell; `None` for the first one.
    pub(crate) came: Option<Duration>,
}

/// What a report says of its cell.
pub(crate) struct Summary {
    pub(crate) living: HashSet<u64>,
    pub(crate) sums: Sums,
    pub(crate) jobs: Vec<(String, Hosts)>,
    pub(crate) more_jobs: u32,
}

/// A job that members tell of.
#[derive(Default)]
struct Told {
    hosts: HashSet<u64>,
    /// How much it is to be named: each host gives its jobs the same together, however many it tells
    /// of.
    share: u64,
}

/// What a host gives its jobs together.
const SHARE: u64 = 1 << 20;
/// A job of which other cells name hosts counts so many times as much: nobody there finds its hosts
/// here otherwise.
const ELSEWHERE: u64 = 16;

/// Sums up what members tell, the living and, of jobs, the dead: a job whose host died lacks it. Jobs
/// by the positions of their hosts in the roll; of too many those of most hosts, and rather those that
/// are `elsewhere`, too.
pub(crate) fn sum_up<'m>(
    roll: &Roll,
    mates: impl Iterator<Item = &'m Mate>,
    most_jobs: usize,
    elsewhere: &HashSet<&str>,
) -> Summary {
    let (mut living, mut sums) = (HashSet::new(), Sums::default());
    let mut catalogues: Vec<u64> = Vec::new();
    let mut jobs: BTreeMap<&str, Told> = BTreeMap::new();
    let mut untold = 0;
    for mate in mates {
        let its = || mate.tells.jobs.iter().map(String::as_str).filter(|job| is_job(job));
        let share = SHARE / (its().count() as u64).max(1);
        for job in its() {
            let told = jobs.entry(job).or_default();
            told.hosts.insert(mate.entry.name_hash);
            told.share += share * if elsewhere.contains(job) { ELSEWHERE } else { 1 };
        }
        if mate.state == MemberState::Dead {
            continue;
        }
        untold = mate.tells.more_jobs.max(untold);
        living.insert(mate.entry.name_hash);
        sums.rows = sums.rows.saturating_add(mate.tells.rows);
        sums.trust = sums.trust.max(mate.tells.trust);
        sums.span_ns = match (sums.span_ns, mate.tells.span_ns) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
        catalogues.push(mate.tells.catalogue);
    }
    catalogues.sort_unstable();
    catalogues.dedup();
    let bytes: Vec<u8> = catalogues.iter().flat_map(|hash| hash.to_le_bytes()).collect();
    sums.catalogues = hash_of(&[b"catalogues", &bytes]) as u64;
    let more_jobs = u32::try_from(jobs.len().saturating_sub(most_jobs)).unwrap_or(u32::MAX).saturating_add(untold);
    let of_job = |told: &Told| Hosts::of(roll.entries.iter().map(|entry| told.hosts.contains(&entry.name_hash)));
    let mut named: Vec<(&str, &Told)> = jobs.iter().map(|(job, told)| (*job, told)).collect();
    if named.len() > most_jobs {
        named.sort_by_key(|(_, told)| std::cmp::Reverse(told.share));
        named.truncate(most_jobs);
        named.sort_unstable_by_key(|(job, _)| *job);
    }
    let jobs = named.into_iter().map(|(job, told)| (job.to_owned(), of_job(told))).collect();
    Summary { living, sums, jobs, more_jobs }
}

impl People {
    /// Nobody, of a node that makes rounds of this length.
    pub(crate) fn new(round: Duration) -> Self {
        Self { a_while: A_WHILE * round, ..Self::default() }
    }

    /// The own cell was left: its members are listed until they are heard of otherwise.
    pub(crate) fn leave_cell(&mut self, now: Duration, forget_after: Duration) {
        let of = |mate: Mate| Former { lived: mate.state != MemberState::Dead, entry: mate.entry, since: now };
        let former: Vec<Former> = self.mates.drain(..).map(of).collect();
        let again: HashSet<u64> = former.iter().map(|former| former.entry.name_hash).collect();
        let stays = |former: &Former| !again.contains(&former.entry.name_hash) && now < former.since + forget_after;
        self.former.retain(stays);
        self.former.extend(former);
        self.came = Some(now);
        self.version += 1;
    }

    pub(crate) fn seal_of(&self, entry: &Entry) -> Option<&str> {
        self.mates.iter().find(|mate| mate.entry.id == entry.id).map(|mate| &*mate.seal)
    }

    /// Somebody was told that it belongs there.
    pub(crate) fn expect(&mut self, entry: &Entry, cell: CellId, now: Duration) {
        let a_while = self.a_while;
        self.expected.retain(|expected| expected.name_hash != entry.name_hash && now < expected.at + a_while);
        if self.expected.len() < MAX_EXPECTED {
            let stand = Stand { place: entry.place, depth: cell.depth() };
            let address = entry.card.address;
            self.expected.push(Expected { name_hash: entry.name_hash, stand, address, cell, at: now });
            self.version += 1;
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.mates.len() * (size_of::<Mate>() + size_of::<Entry>() + 1_200) + self.former.len() * 16
    }

    /// Those that may be on their way to another cell.
    fn former(&self, now: Duration) -> impl Iterator<Item = &Arc<Entry>> {
        let may_live = move |former: &&Former| former.lived && now < former.since + self.a_while;
        self.former.iter().filter(may_live).map(|former| &former.entry)
    }

    /// In which cell each name is, by its newest card.
    pub(crate) fn newest(table: &Table, mates: &[Mate], own: &Arc<Entry>) -> ByName<CellId> {
        let mut newest: ByName<((u64, u64), CellId)> = ByName::default();
        let all = table.cells().flat_map(|(_, members)| members.map(|(entry, _)| entry));
        for entry in all.chain(mates.iter().map(|mate| &mate.entry)).chain([own]) {
            let card = (entry.card.age(), entry.card.cell);
            let known = newest.entry(entry.name_hash).or_insert(card);
            *known = card.max(*known);
        }
        newest.into_iter().map(|(name, (_, cell))| (name, cell)).collect()
    }

    /// Everybody but this node, of each name the newest life. Nobody who was known to live is left out
    /// before `forget_after`: an answer names whom it lacks.
    pub(crate) fn all(&self, table: &Table, own: &Arc<Entry>, forget_after: Duration, now: Duration) -> Vec<Person> {
        let mut all: ByName<Person> = ByName::default();
        let mut add = |entry: &Arc<Entry>, state: MemberState| {
            let is_newer = |known: &Person| {
                let (before, card) = (&known.entry.card, &entry.card);
                // That a cell is silent tells nothing of who has left it, by whichever card.
                let may_have_gone = (known.state, state) == (MemberState::Unconfirmed, MemberState::Dead);
                before.age() < card.age() && !(may_have_gone && before.generation == card.generation)
            };
            // Its cell may not know yet: the seals of other cells' cards are their delegates' to judge.
            let counts = entry.name_hash != own.name_hash && !table.shuts_out(&entry.card.name);
            if counts && all.get(&entry.name_hash).is_none_or(is_newer) {
                all.insert(entry.name_hash, Person { entry: Arc::clone(entry), state, speaks: false });
            }
        };
        // The own gossip knows best. A cell that falls apart is silent for all its members, which may
        // live in others by now.
        self.mates.iter().for_each(|mate| add(&mate.entry, mate.state));
        self.former(now).for_each(|entry| add(entry, MemberState::Unconfirmed));
        table.states(now, self.a_while).for_each(|(entry, state)| add(entry, state));
        let listed = self.former.iter().filter(|former| now < former.since + forget_after);
        listed.for_each(|former| add(&former.entry, MemberState::Dead));
        let mut all: Vec<Person> = all.into_values().collect();
        all.sort_by(|a, b| a.entry.card.name.cmp(&b.entry.card.name));
        all
    }

    /// Addresses of the own cell's living by others' words that the own gossip does not know to live.
    pub(crate) fn absent(&self, table: &Table, own: &Arc<Entry>) -> Vec<SocketAddr> {
        let there = self.mates.iter().filter(|mate| mate.state == MemberState::Live).map(|mate| mate.entry.name_hash);
        let there: HashSet<u64> = there.chain([own.name_hash]).collect();
        let of_own = table.cells().filter(|(cell, _)| *cell == own.card.cell);
        let members = of_own.flat_map(|(_, members)| members.filter(|(_, lives)| *lives));
        members.filter(|(entry, _)| !there.contains(&entry.name_hash)).map(|(entry, _)| entry.card.address).collect()
    }

    /// When all who chose this node's cell with it are there.
    fn all_came_at(&self) -> Option<Duration> {
        self.came.map(|came| came + self.a_while * ALL_CAME / A_WHILE)
    }

    /// Where the living are. Of those in the cell that was left, who belongs to this cell and has not come after
    /// [`ALL_CAME`] rounds knew of more members, and went to a part of this cell at once.
    fn stands(&self, table: &Table, own: &Arc<Entry>, now: Duration) -> Vec<Stand> {
        let here = own.card.cell;
        // Who is alone has no evidence that others are anywhere.
        let is_met = !self.mates.is_empty() && self.all_came_at().is_none_or(|at| now >= at);
        let mut people: ByName<(&Entry, bool, u8)> = ByName::default();
        let mut add = |entry, lives, depth| {
            let entry: &Entry = entry;
            let known = people.entry(entry.name_hash).or_insert((entry, lives, depth));
            if known.0.card.age() < entry.card.age() {
                *known = (entry, lives, depth);
            }
        };
        let depth_of = |entry: &Entry| entry.card.cell.depth();
        add(own, true, here.depth());
        for mate in &self.mates {
            add(&mate.entry, mate.state != MemberState::Dead, here.depth());
        }
        table.states(now, self.a_while).for_each(|(entry, state)| {
            add(entry, state != MemberState::Dead, depth_of(entry));
        });
        for former in self.former(now) {
            let went_on = is_met && here.is_within(former.card.cell) && here.contains(former.place);
            add(former, true, if went_on { here.depth() + 1 } else { depth_of(former) });
        }
        let mut stands: Vec<Stand> = self
            .expected
            .iter()
            .filter(|expected| now < expected.at + self.a_while && !people.contains_key(&expected.name_hash))
            .map(|expected| expected.stand)
            .collect();
        let living = people.into_values().filter(|(_, lives, _)| *lives);
        stands.extend(living.map(|(entry, _, depth)| Stand { place: entry.place, depth }));
        stands
    }

    /// The cell that this node belongs to. Found anew when anything changed, all have come or the former
    /// count no more, else remembered for a while: of those who are listed for some time only the time runs out.
    pub(crate) fn right_cell(&mut self, table: &Table, own: &Arc<Entry>, most: usize, now: Duration) -> CellId {
        let version = table.version.wrapping_add(self.version).wrapping_add(own.card.serial);
        let turns = [self.all_came_at(), self.came.map(|came| came + self.a_while)];
        let turned_since = |at: Duration| turns.iter().flatten().any(|turn| at < *turn && *turn <= now);
        match self.right {
            Some((of, cell, at)) if of == version && now < at + self.a_while && !turned_since(at) => cell,
            _ => {
                let cell = cell_for(own.place, self.stands(table, own, now), most);
                self.right = Some((version, cell, now));
                cell
            }
        }
    }

    /// The cell for somebody new.
    pub(crate) fn cell_of_newcomer(
        &self,
        table: &Table,
        own: &Arc<Entry>,
        new: &Entry,
        most: usize,
        now: Duration,
    ) -> CellId {
        let mut stands = self.stands(table, own, now);
        stands.push(Stand { place: new.place, depth: 0 });
        cell_for(new.place, stands, most)
    }

    /// Where living members of a cell are reached.
    pub(crate) fn doors(&self, table: &Table, cell: CellId, now: Duration) -> Vec<SocketAddr> {
        let mut doors: Vec<SocketAddr> = Vec::new();
        let mates = self.mates.iter().filter(|mate| mate.state != MemberState::Dead).map(|mate| &mate.entry);
        let known = table.cells().flat_map(|(_, members)| members.filter(|(_, lives)| *lives).map(|(entry, _)| entry));
        let mut there: Vec<&Arc<Entry>> = mates.chain(known).collect();
        there.extend(self.former(now));
        // Those that are there already, and where nobody is, those that belong there.
        doors.extend(there.iter().filter(|entry| entry.card.cell == cell).map(|entry| entry.card.address));
        let expected =
            self.expected.iter().filter(|expected| expected.cell == cell && now < expected.at + self.a_while);
        doors.extend(expected.map(|expected| expected.address));
        if doors.is_empty() {
            doors.extend(there.iter().filter(|entry| cell.contains(entry.place)).map(|entry| entry.card.address));
        }
        doors
    }
}
