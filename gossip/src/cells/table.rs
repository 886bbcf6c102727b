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
use super::known::{Ballot, Cell, DELEGATES, Fetch, Jobs, Kept, Which, count_jobs, count_votes};
use super::pool::Pool;
use super::report::Report;
use super::steady::{Role, Steady, Voices};
use super::wire::{Beat, FILL_BYTES, Known, News};
use crate::member::MemberState;
use crate::seal::Sealing;

mod exchange;
mod life;

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

    /// Whether a node is shut out of the mesh, whatever its cell says of it.
    pub(crate) fn shuts_out(&self, node: &str) -> bool {
        self.sealing.shuts_out(node)
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
