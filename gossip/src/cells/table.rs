//! What a node knows of cells: the reports of their delegates, and who is in them.
//!
//! A delegate judges for itself: cards by their owners' seals, whether a cell can still be heard by
//! the beats of its reports. Any other member keeps what its delegates have: reports it judges by
//! their seals, but cards it believes where two of its delegates name the same roll.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::card::{Entry, MAX_ROLL, Roll, SealedCard};
use super::cell::{CellId, mix, weight};
use super::known::{Ballot, Cell, DELEGATES, Fetch, Jobs, Kept, Role, Which, count_jobs, count_votes};
use super::pool::Pool;
use super::report::Report;
use super::steady::{Steady, Voices};
use super::wire::{Beat, FILL_BYTES, Known, News};
use crate::member::MemberState;
use crate::seal::Sealing;

mod exchange;

/// Reports of a cell that are kept: those of its delegates, and of who was one or will be.
const MAX_KEPT: usize = 2 * DELEGATES;
/// Cells that are known at a time.
pub const MAX_CELLS: usize = 1_024;
/// Cells for which one name may report: that in which it is, and those that it was in a moment ago.
const AUTHORED: usize = 3;
/// Delegates of its own that must have named a roll before a member believes it.
const VOUCHERS: usize = 2;
/// Rolls that were refused and are remembered.
const MAX_NO_ROLLS: usize = 64;
/// A roll that is lacking, and who has it.
pub(crate) struct Lacking {
    pub(crate) cell: CellId,
    pub(crate) roll: u128,
    pub(crate) have: Vec<u64>,
    pub(crate) authors: Vec<SocketAddr>,
}

pub(crate) struct Table {
    cells: BTreeMap<CellId, Cell>,
    sealing: Sealing,
    pool: Arc<Pool>,
    round: Duration,
    silent_after: Duration,
    voices: Voices,
    /// When time was passed last.
    passed: Duration,
    /// The sealer's, when the reports were judged last.
    epoch: u64,
    pub(crate) role: Role,
    /// The own cell and the cards of its members, from its own gossip: nobody is asked for them.
    pub(crate) mates: (CellId, Vec<Arc<Entry>>),
    /// Counts what changed of who lives where.
    pub(crate) version: u64,
    /// What was named as a roll and can be none: it is not asked for again.
    no_rolls: VecDeque<u128>,
    /// Reports, cards and cells that were refused for want of room.
    pub(crate) refused: u64,
}

impl Table {
    pub(crate) fn new(sealing: Sealing, pool: Arc<Pool>, round: Duration, silent_after: Duration) -> Self {
        Self {
            cells: BTreeMap::new(),
            epoch: sealing.epoch(),
            sealing,
            pool,
            round,
            silent_after,
            voices: Voices::default(),
            passed: Duration::ZERO,
            role: Role::Delegate,
            mates: (CellId::WHOLE, Vec::new()),
            version: 0,
            no_rolls: VecDeque::new(),
            refused: 0,
        }
    }

    /// From now on this node judges for itself, or no more. What it believed its delegates it goes
    /// on believing, where two of them said it.
    pub(crate) fn set_role(&mut self, role: Role, now: Duration) {
        if self.role == role {
            return;
        }
        let ids: Vec<CellId> = self.cells.keys().copied().collect();
        for id in ids {
            let Some(cell) = self.cells.get_mut(&id) else { continue };
            if role == Role::Delegate {
                let believed = std::mem::take(&mut cell.believed);
                cell.rolls.retain(|roll| believed.contains(&roll.id));
                cell.fetches.clear();
            }
            cell.believed = cell.rolls.iter().map(|roll| roll.id).collect();
            // Beats are the delegates' alone: what is not silent gets its time anew, and it is not known
            // who was heard without a gap.
            for kept in cell.reports.iter_mut().filter(|_| !cell.silent) {
                kept.moved = now;
                if role == Role::Delegate {
                    kept.steady = Steady::since(now);
                }
            }
        }
        self.role = role;
    }

    /// This node stood still: what was heard until then gets its time anew.
    pub(crate) fn excuse(&mut self, now: Duration) {
        for cell in self.cells.values_mut().filter(|cell| !cell.silent) {
            cell.heard = now;
            cell.reports.iter_mut().for_each(|kept| kept.excused = now);
        }
    }

    /// Whether any other cell is known.
    pub(crate) fn knows_others(&self, own: CellId) -> bool {
        self.cells.keys().any(|cell| *cell != own)
    }

    /// The cells with their members and whether each lives; of a silent cell nobody does.
    pub(crate) fn cells(&self) -> impl Iterator<Item = (CellId, impl Iterator<Item = (&Arc<Entry>, bool)>)> {
        self.cells.iter().map(|(id, cell)| {
            (*id, cell.state.iter().map(|(entry, state)| (entry, *state == MemberState::Live && !cell.silent)))
        })
    }

    /// All members, and what is known of each. A cell that falls silent may have members left that
    /// have to choose delegates first. Its members may also have gone to others one by one: for
    /// `a_while` they may live there, if such others are heard.
    pub(crate) fn states(&self, now: Duration, a_while: Duration) -> impl Iterator<Item = (&Arc<Entry>, MemberState)> {
        self.cells.iter().flat_map(move |(id, cell)| {
            let may_live =
                now < self.doubted_until(cell) || (now.saturating_sub(cell.heard) < a_while && self.has_kin(*id));
            let state_of = move |state: MemberState| match state {
                MemberState::Live if cell.silent && may_live => MemberState::Unconfirmed,
                MemberState::Live | MemberState::Unconfirmed if cell.silent && !may_live => MemberState::Dead,
                state => state,
            };
            cell.state.iter().map(move |(entry, state)| (entry, state_of(*state)))
        })
    }

    /// Until when members of a silent cell may live: they have to find their delegates dead, and to be
    /// found then by others that have just come to be delegates.
    fn doubted_until(&self, cell: &Cell) -> Duration {
        let (dead_after, found_after) = (self.silent_after, self.silent_after * 3 / 2);
        (cell.silent_since + found_after).min(cell.heard + dead_after + found_after)
    }

    /// Whether a part of the cell is heard, or one that it is a part of: members go from one to the
    /// other.
    fn has_kin(&self, of: CellId) -> bool {
        self.kin(of).next().is_some()
    }

    /// Whether such a one has not been known for longer than `a_while`: with an older one nobody has to
    /// wait any more.
    pub(crate) fn has_new_kin(&self, of: CellId, now: Duration, a_while: Duration) -> bool {
        self.kin(of).any(|cell| now < cell.since + a_while)
    }

    fn kin(&self, of: CellId) -> impl Iterator<Item = &Cell> {
        let is_kin = move |id: &CellId| *id != of && (id.is_within(of) || of.is_within(*id));
        let kin = self.cells.iter().filter(move |(id, cell)| is_kin(id) && !cell.silent && !cell.state.is_empty());
        kin.map(|(_, cell)| cell)
    }

    /// The report that counts most of each cell, with the roll it speaks of.
    pub(crate) fn reports(&self) -> impl Iterator<Item = (&Report, &Roll)> {
        self.cells.values().filter_map(|cell| {
            let report = cell.counted.as_deref()?;
            Some((report, &**cell.rolls.iter().find(|roll| roll.id == report.roll)?))
        })
    }

    /// The jobs of each cell with their hosts, and how many jobs more run there.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = (CellId, &Jobs, u32)> {
        self.cells.iter().map(|(id, cell)| (*id, &cell.jobs, cell.more_jobs))
    }

    /// Delegates that can be called, of other cells than `own`: of those that are heard, and of the
    /// silent ones.
    pub(crate) fn delegates(&self, own: CellId) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        let of = |silent: bool| {
            let cells = self.cells.iter().filter(move |(id, cell)| **id != own && cell.silent == silent);
            cells.flat_map(|(_, cell)| cell.reports.iter().map(|kept| kept.report.address)).collect()
        };
        (of(false), of(true))
    }

    /// Members of cells that fell silent a moment ago: the rest of one may have chosen delegates that
    /// nobody here knows.
    pub(crate) fn leaderless(&self, own: CellId, now: Duration) -> Vec<SocketAddr> {
        let doubtful =
            self.cells.iter().filter(|(id, cell)| **id != own && cell.silent && now < self.doubted_until(cell));
        let members = doubtful.flat_map(|(_, cell)| &cell.state).filter(|(_, state)| *state != MemberState::Dead);
        members.map(|(entry, _)| entry.card.address).collect()
    }

    /// Who speaks for the cells that are heard.
    pub(crate) fn authors(&self) -> impl Iterator<Item = u64> {
        let heard = self.cells.values().filter(|cell| !cell.silent);
        heard.flat_map(|cell| cell.reports.iter().map(|kept| kept.author))
    }

    /// Bytes that it takes, about, where nothing is shared with other nodes of the process.
    pub(crate) fn bytes(&self) -> usize {
        let of_cell = |cell: &Cell| {
            let reports = |kept: &Kept| size_of::<Kept>() + size_of::<Report>() + 1_200 + kept.report.jobs.len() * 96;
            let fetch: usize = cell.fetches.iter().map(|fetch| fetch.cards.len() * 256).sum();
            let rolls: usize = cell.rolls.iter().map(|roll| roll.bytes()).sum();
            let jobs: usize = cell.jobs.iter().map(|(job, hosts)| 48 + job.len() + 8 * hosts.len()).sum();
            let rolls = rolls + jobs;
            size_of::<Cell>() + cell.reports.iter().map(reports).sum::<usize>() + rolls + fetch + cell.state.len() * 16
        };
        self.cells.values().map(of_cell).sum()
    }

    /// Makes the members of a cell anew from the reports that count.
    fn judge(&mut self, id: CellId, now: Duration) {
        let steady_after = self.steady_after();
        let Some(cell) = self.cells.get_mut(&id) else { return };
        // Nobody speaks for it any more: who was in it stays listed, but not as living.
        if cell.reports.is_empty() && cell.set_silent(true, now) {
            self.version += 1;
        }
        cell.is_shaken = false;
        cell.rolls.retain(|roll| cell.reports.iter().any(|kept| kept.report.roll == roll.id));
        cell.believed.retain(|roll| cell.reports.iter().any(|kept| kept.report.roll == *roll));
        let mut counting: Vec<&Kept> = cell.reports.iter().filter(|kept| cell.counts(kept, self.role)).collect();
        counting.sort_by_key(|kept| std::cmp::Reverse(weight(id, kept.author)));
        counting.truncate(DELEGATES);
        let Some(first) = counting.first() else { return };
        let ballot = |kept| {
            let kept: &Kept = kept;
            let roll = cell.rolls.iter().find(|roll| roll.id == kept.report.roll)?;
            Some(Ballot { roll, report: &kept.report, steady: now >= kept.steady.began() + steady_after })
        };
        let ballots: Vec<Ballot<'_>> = counting.iter().copied().filter_map(ballot).collect();
        let state = count_votes(&ballots);
        let counted = Some(Arc::clone(&first.report));
        let ids = |state: &[(Arc<Entry>, MemberState)]| -> Vec<(u128, MemberState)> {
            state.iter().map(|(entry, state)| (entry.id, *state)).collect()
        };
        let (jobs, more_jobs) = count_jobs(&ballots);
        let names = |jobs: &Jobs| -> Vec<(String, Vec<u128>)> {
            jobs.iter().map(|(job, hosts)| (job.clone(), hosts.iter().map(|host| host.id).collect())).collect()
        };
        if more_jobs != cell.more_jobs || names(&jobs) != names(&cell.jobs) {
            (cell.jobs, cell.more_jobs) = (jobs, more_jobs);
            self.version += 1;
        }
        if state.len() != cell.state.len() || ids(&state) != ids(&cell.state) {
            cell.state = state;
            self.version += 1;
        }
        cell.counted = counted;
    }

    /// Where seals may be judged otherwise than before, who is believed no more speaks for no cell.
    fn judge_seals(&mut self, now: Duration) {
        let epoch = self.sealing.epoch();
        if std::mem::replace(&mut self.epoch, epoch) == epoch {
            return;
        }
        let ids: Vec<CellId> = self.cells.keys().copied().collect();
        for id in ids {
            let Some(cell) = self.cells.get_mut(&id) else { continue };
            let before = cell.reports.len();
            cell.reports.retain(|kept| kept.report.is_good(&self.sealing));
            if cell.reports.len() != before {
                self.version += 1;
                self.judge(id, now);
            }
        }
    }

    /// How long an author has to be heard without a gap to call others dead: as long as a new delegate
    /// may take to be one, and then to find that the author is silent.
    fn steady_after(&self) -> Duration {
        2 * self.silent_after
    }

    /// Counts anew where authors are steady no more.
    fn judge_shaken(&mut self, now: Duration) {
        let shaken: Vec<CellId> = self.cells.iter().filter(|(_, cell)| cell.is_shaken).map(|(id, _)| *id).collect();
        shaken.into_iter().for_each(|id| self.judge(id, now));
    }

    /// Counts anew where an author has become steady, or a silent cell's members can live no more.
    fn judge_steady(&mut self, now: Duration) {
        let (before, steady_after) = (self.passed, self.steady_after());
        self.passed = now;
        let is_reached = |time: Duration| before < time && time <= now;
        let ids: Vec<CellId> = self.cells.keys().copied().collect();
        for id in ids {
            let Some(cell) = self.cells.get(&id) else { continue };
            self.version += u64::from(cell.silent && is_reached(self.doubted_until(cell)));
            if cell.reports.iter().any(|kept| is_reached(kept.steady.began() + steady_after)) {
                self.judge(id, now);
            }
        }
    }

    /// Passes time: a delegate finds who is not heard any more. Returns addresses of cells that are
    /// forgotten.
    pub(crate) fn pass(&mut self, now: Duration, forget_after: Duration) -> Vec<SocketAddr> {
        self.judge_seals(now);
        self.judge_steady(now);
        let silent_after = self.silent_after;
        if self.role == Role::Delegate {
            let ids: Vec<CellId> = self.cells.keys().copied().collect();
            for id in ids {
                let Some(cell) = self.cells.get_mut(&id) else { continue };
                let is_fresh = |kept: &Kept| now.saturating_sub(kept.moved.max(kept.excused)) < silent_after;
                let is_of_it = |kept: &Kept| {
                    cell.counts(kept, Role::Delegate)
                        || cell.state.iter().any(|(entry, _)| entry.name_hash == kept.author)
                };
                let fresh = cell.reports.iter().any(|kept| is_fresh(kept) && is_of_it(kept));
                let counts = cell.reports.iter().any(|kept| is_fresh(kept) && cell.counts(kept, Role::Delegate));
                let (silent, before) = (!fresh, cell.reports.len());
                cell.old = silent && now.saturating_sub(cell.heard) >= forget_after / 2;
                let reports = std::mem::take(&mut cell.reports);
                // Of a silent cell those stay that say who was in it.
                let stays = |kept: &Kept| is_fresh(kept) || (!counts && cell.counts(kept, Role::Delegate));
                cell.reports = reports.into_iter().filter(stays).collect();
                if cell.set_silent(silent, now) || before != cell.reports.len() {
                    self.version += 1;
                    self.judge(id, now);
                }
            }
        }
        if self.role == Role::Member {
            // None of its delegates has said for long that the cell is heard.
            for cell in self.cells.values_mut() {
                let silent = cell.silent || now.saturating_sub(cell.heard) >= 2 * silent_after;
                self.version += u64::from(cell.set_silent(silent, now));
            }
        }
        let mut doors = Vec::new();
        self.cells.retain(|_, cell| {
            let kept = !cell.silent || (!cell.state.is_empty() && now.saturating_sub(cell.heard) < forget_after);
            if !kept {
                doors.extend(cell.reports.iter().map(|kept| kept.report.address));
            }
            kept
        });
        doors
    }

    /// Takes out silent cells whose members are all known to be elsewhere.
    pub(crate) fn drop_left(&mut self, is_elsewhere: impl Fn(CellId, &Entry) -> bool) {
        let before = self.cells.len();
        self.cells.retain(|id, cell| {
            !cell.silent || cell.state.is_empty() || !cell.state.iter().all(|(entry, _)| is_elsewhere(*id, entry))
        });
        self.version += u64::from(before != self.cells.len());
    }

    /// Whether it is still to be heard from another delegate that some rolls are as one said.
    pub(crate) fn doubts(&self) -> bool {
        let doubts = |cell: &Cell| cell.reports.iter().any(|kept| !cell.believed.contains(&kept.report.roll));
        self.role == Role::Member && self.cells.values().filter(|cell| !cell.silent).any(doubts)
    }

    /// Rolls that reports speak of and that are not here, each asked for once in `pause`.
    pub(crate) fn lacking(&mut self, now: Duration, pause: Duration, most: usize) -> Vec<Lacking> {
        let mut lacking = Vec::new();
        for (id, cell) in &mut self.cells {
            if lacking.len() >= most {
                break;
            }
            let is_here = |roll: u128| cell.rolls.iter().any(|known| known.id == roll);
            let named = |roll: u128| cell.reports.iter().any(|kept| kept.report.roll == roll);
            let goes_on = |fetch: &Fetch| named(fetch.roll) && !is_here(fetch.roll);
            let (going, outdated): (Vec<Fetch>, Vec<Fetch>) =
                std::mem::take(&mut cell.fetches).into_iter().partition(goes_on);
            cell.fetches = going;
            let Some(roll) = cell.next_roll(*id, &self.no_rolls) else {
                cell.fetches.clear();
                continue;
            };
            // What was fetched for a roll that nobody names any more is of use.
            let cards = outdated.into_iter().flat_map(|fetch| fetch.cards);
            if let Some(fetch) = cell.fetches.iter_mut().find(|fetch| fetch.roll == roll) {
                fetch.cards.extend(cards.take(MAX_ROLL.saturating_sub(fetch.cards.len())));
                if now.saturating_sub(cell.asked) < pause {
                    continue;
                }
            } else {
                cell.fetches.push(Fetch { roll, order: Vec::new(), cards: cards.take(MAX_ROLL).collect() });
            }
            cell.asked = now;
            let naming = cell.reports.iter_mut().filter(|kept| kept.report.roll == roll);
            let asked = |kept: &mut Kept| {
                kept.asks += 1;
                kept.report.address
            };
            let authors = naming.map(asked).collect();
            let mates = if *id == self.mates.0 { &self.mates.1[..] } else { &[] };
            lacking.push(Lacking { cell: *id, roll, have: cell.have(mates), authors });
        }
        lacking
    }

    /// The roll of a cell, if it is here.
    pub(crate) fn roll(&self, cell: CellId, roll: u128) -> Option<&Arc<Roll>> {
        self.cells.get(&cell)?.rolls.iter().find(|known| known.id == roll)
    }

    /// Takes in cards of a roll that was asked for. Whether it has to be asked again at once.
    pub(crate) fn cards(
        &mut self,
        now: Duration,
        id: CellId,
        roll: u128,
        order: Vec<u128>,
        cards: Vec<SealedCard>,
    ) -> bool {
        let judges = self.role == Role::Delegate;
        let Some(cell) = self.cells.get_mut(&id) else { return false };
        let mates = if id == self.mates.0 { &self.mates.1[..] } else { &[] };
        let Some(at) = cell.fetches.iter().position(|fetch| fetch.roll == roll) else { return false };
        let others = cell.fetches.iter().filter(|fetch| fetch.roll != roll).flat_map(|fetch| fetch.cards.values());
        let known: HashMap<u128, Arc<Entry>> =
            cell.entries().chain(mates).chain(others).map(|entry| (entry.id, Arc::clone(entry))).collect();
        let fetch = &mut cell.fetches[at];
        if order.len() > MAX_ROLL || Roll::id_of(order.iter().copied()) != roll {
            self.refused += u64::from(order.len() > MAX_ROLL);
            return false;
        }
        fetch.cards.retain(|id, _| order.contains(id));
        fetch.order = order;
        let mut came = false;
        for sealed in cards.into_iter().take(MAX_ROLL).filter(|sealed| sealed.card.cell == id && sealed.card.is_sound())
        {
            let entry = Entry::new(sealed.card.clone());
            if fetch.order.contains(&entry.id)
                && !known.contains_key(&entry.id)
                && (!judges || sealed.is_good(&self.sealing))
            {
                came |= fetch.cards.insert(entry.id, Arc::new(entry)).is_none();
            }
        }
        let find = |card: &u128| known.get(card).or_else(|| fetch.cards.get(card)).cloned();
        let all: Option<Vec<Arc<Entry>>> = fetch.order.iter().map(find).collect();
        let Some(entries) = all else { return came };
        let (id_of_order, roll) = (roll, Roll::new(entries));
        if !roll.names_each_once() || roll.id != id_of_order {
            self.refused += 1;
            cell.refuse(id_of_order);
            if self.no_rolls.len() >= MAX_NO_ROLLS {
                self.no_rolls.pop_front();
            }
            self.no_rolls.push_back(id_of_order);
            return false;
        }
        if judges {
            cell.believed.push(roll.id);
        }
        cell.fetches.remove(at);
        cell.reports.iter_mut().filter(|kept| kept.report.roll == roll.id).for_each(|kept| kept.asks = 0);
        cell.rolls.push(self.pool.roll(roll));
        self.judge(id, now);
        false
    }
}
