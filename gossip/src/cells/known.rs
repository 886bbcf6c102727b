//! What is known of one cell.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::card::{Entry, MAX_ROLL, Roll};
use super::cell::{CellId, mix, weight};
use super::report::Report;
use super::wire::Known;

/// Members of a cell that report on it.
pub(crate) const DELEGATES: usize = 3;
/// Rolls of one author that are asked for in vain before those of another.
const ASKS: u32 = 3;
/// A report is made anew after so many beats at the latest: what goes beyond is no beat.
pub(crate) const MAX_BEATS: u32 = 100;
/// Beats that a report may be ahead of two a round since it came: for messages that were late.
const BEATS_AHEAD: u32 = 16;

/// How this node knows cells: by itself, or by so many delegates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Delegate,
    Member,
}

/// Some of the reports that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    /// Those whose roll is here.
    WithRoll,
    /// Those whose roll is here and believed: who passes on a report says by it that it has judged
    /// who is in the cell.
    Told,
}

/// A report, and when it was last heard of.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) report: Arc<Report>,
    pub(crate) author: u64,
    pub(crate) beat: u32,
    /// When it came, and with which beat.
    pub(crate) first: (Duration, u32),
    pub(crate) moved: Duration,
    /// When this node had stood still and gave it its time anew; others are told when it moved.
    pub(crate) excused: Duration,
    /// It has gone on once since the cell was found silent.
    pub(crate) goes_on: bool,
    /// Delegates of this member's that have it.
    pub(crate) vouchers: Vec<u64>,
    /// How often a roll that its author named was asked for since one came.
    pub(crate) asks: u32,
}

impl Kept {
    /// Takes in a beat of it that somebody has heard `at` that time. Whether that is a further one, by which its
    /// author lived then. Of a cell that is silent by now it takes two: the last word may come from who heard it
    /// late.
    pub(crate) fn goes_on_by(
        &mut self,
        beat: u32,
        at: Duration,
        is_silent: bool,
        now: Duration,
        round: Duration,
    ) -> bool {
        let rounds = now.saturating_sub(self.first.0).as_millis() / round.as_millis().max(1);
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX).min(MAX_BEATS);
        let most = (self.first.1 + 2 * rounds + BEATS_AHEAD).min(2 * MAX_BEATS);
        if !(self.beat + 1..=most).contains(&beat) {
            return false;
        }
        self.beat = beat;
        if is_silent && !std::mem::replace(&mut self.goes_on, true) {
            return false;
        }
        self.goes_on = is_silent;
        self.moved = self.moved.max(at);
        true
    }
}

/// The cards of a roll as they come.
#[derive(Debug, Default)]
pub(crate) struct Fetch {
    pub(crate) roll: u128,
    pub(crate) order: Vec<u128>,
    pub(crate) cards: HashMap<u128, Arc<Entry>>,
}

#[derive(Debug, Default)]
pub(crate) struct Cell {
    /// Sorted by their authors' hashes.
    pub(crate) reports: Vec<Kept>,
    pub(crate) rolls: Vec<Arc<Roll>>,
    /// Rolls that this node believes: as a delegate all that it has, else those that enough of its
    /// delegates named.
    pub(crate) believed: Vec<u128>,
    /// One for each roll that is lacking and was asked for.
    pub(crate) fetches: Vec<Fetch>,
    pub(crate) asked: Duration,
    /// Since when it is known here.
    pub(crate) since: Duration,
    pub(crate) heard: Duration,
    pub(crate) silent: bool,
    /// Silent for half of the time for which it is listed: nobody is told of it any more, or two
    /// nodes could remind each other of it for ever.
    pub(crate) old: bool,
    /// Its members by the reports that count, and whether each lives.
    pub(crate) state: Vec<(Arc<Entry>, bool)>,
    pub(crate) counted: Option<Arc<Report>>,
    /// Its jobs with their hosts, and how many jobs more it runs.
    pub(crate) jobs: Jobs,
    pub(crate) more_jobs: u32,
}

/// Who is in a cell by these rolls, of each name the newest card, and whether the reports that have
/// this card say that it lives. As many for as against: it lives, since who is asked in vain is
/// named as missing, and who is not asked is not.
pub(crate) fn count_votes(ballots: &[(&Roll, &Report)]) -> Vec<(Arc<Entry>, bool)> {
    let mut all: Vec<(&Arc<Entry>, u32, u32)> = Vec::new();
    match ballots {
        [] => {}
        // Mostly all speak of the same roll.
        [(roll, _), ..] if ballots.iter().all(|(other, _)| other.id == roll.id) => {
            let votes = |at| ballots.iter().filter(|(_, report)| report.living.has(at)).count() as u32;
            all.extend(roll.entries.iter().enumerate().map(|(at, entry)| (entry, ballots.len() as u32, votes(at))));
        }
        _ => {
            for (roll, report) in ballots {
                let votes = roll.entries.iter().enumerate();
                all.extend(votes.map(|(at, entry)| (entry, 1, u32::from(report.living.has(at)))));
            }
            all.sort_by(|(a, ..), (b, ..)| {
                (a.card.name.as_str(), b.card.age()).cmp(&(b.card.name.as_str(), a.card.age()))
            });
            all.dedup_by(|(entry, cast, live), (newest, all_cast, all_live)| {
                let same_name = entry.card.name == newest.card.name;
                if same_name && entry.id == newest.id {
                    *all_cast += *cast;
                    *all_live += *live;
                }
                same_name
            });
        }
    }
    all.into_iter().map(|(entry, cast, live)| (Arc::clone(entry), live > 0 && 2 * live >= cast)).collect()
}

/// Jobs, sorted, each with its hosts.
pub(crate) type Jobs = Vec<(String, Vec<Arc<Entry>>)>;

/// Which hosts run which jobs, as far as at least half of these reports say so, and how many jobs more
/// there are, as the middle one says: one that lies changes nothing.
pub(crate) fn count_jobs(ballots: &[(&Roll, &Report)]) -> (Jobs, u32) {
    let mut named: BTreeMap<&str, BTreeMap<&str, (&Arc<Entry>, usize)>> = BTreeMap::new();
    for (roll, report) in ballots {
        for (job, hosts) in &report.jobs {
            let of_job = named.entry(job).or_default();
            for entry in hosts.iter().filter_map(|at| roll.entries.get(at)) {
                of_job.entry(&entry.card.name).or_insert((entry, 0)).1 += 1;
            }
        }
    }
    let of_job = |(job, hosts): (&str, BTreeMap<&str, (&Arc<Entry>, usize)>)| {
        let counts = hosts.into_values().filter(|(_, named)| 2 * named >= ballots.len());
        let hosts: Vec<Arc<Entry>> = counts.map(|(entry, _)| Arc::clone(entry)).collect();
        (!hosts.is_empty()).then(|| (job.to_owned(), hosts))
    };
    let jobs = named.into_iter().filter_map(of_job).collect();
    let mut more: Vec<u32> = ballots.iter().map(|(_, report)| report.more_jobs).collect();
    more.sort_unstable();
    (jobs, more.get(more.len() / 2).copied().unwrap_or(0))
}

impl Cell {
    /// Which of the rolls that are lacking is to be asked for. After [`ASKS`] in vain it is that of
    /// another author: one that names what nobody has would keep those of the others back. Rather
    /// that of who is known to be of the cell, and what more of them name.
    pub(crate) fn next_roll(&self, id: CellId, refused: &VecDeque<u128>) -> Option<u128> {
        let is_lacking = |roll: u128| !refused.contains(&roll) && !self.rolls.iter().any(|known| known.id == roll);
        let is_of_it = |kept: &Kept| self.state.iter().any(|(entry, _)| entry.name_hash == kept.author);
        let naming = |roll: u128| self.reports.iter().filter(|kept| kept.report.roll == roll).count();
        let rank = |kept: &&Kept| {
            let likely = (!is_of_it(kept), Reverse(naming(kept.report.roll)));
            (kept.asks / ASKS, likely, Reverse(weight(id, kept.author)))
        };
        let lacking = self.reports.iter().filter(|kept| is_lacking(kept.report.roll));
        lacking.min_by_key(rank).map(|kept| kept.report.roll)
    }

    /// This can be no roll; who named it waits for the others with its next.
    pub(crate) fn refuse(&mut self, roll: u128) {
        self.fetches.retain(|fetch| fetch.roll != roll);
        self.reports.iter_mut().filter(|kept| kept.report.roll == roll).for_each(|kept| kept.asks += ASKS);
    }

    /// A number for these of its reports.
    pub(crate) fn stamp(&self, which: Which) -> u64 {
        self.reports.iter().filter(|kept| self.is_among(which, kept)).fold(1, |stamp, kept| {
            let (generation, serial) = kept.report.age();
            mix(mix(mix(stamp ^ kept.author) ^ generation) ^ serial)
        })
    }

    pub(crate) fn is_among(&self, which: Which, kept: &Kept) -> bool {
        let has_roll = || self.rolls.iter().any(|roll| roll.id == kept.report.roll);
        match which {
            Which::All => true,
            Which::WithRoll => has_roll(),
            Which::Told => has_roll() && self.believed.contains(&kept.report.roll),
        }
    }

    /// Whether others are told of it, as far as these reports go.
    pub(crate) fn is_told(&self, which: Which) -> bool {
        !self.old && self.reports.iter().any(|kept| self.is_among(which, kept))
    }

    pub(crate) fn known(&self, cell: CellId) -> Known {
        let known = |kept: &Kept| (kept.author, kept.report.generation, kept.report.serial);
        Known { cell, reports: self.reports.iter().map(known).collect() }
    }

    /// Whether the report's roll is here and believed, and its author is of it.
    pub(crate) fn counts(&self, kept: &Kept, role: Role) -> bool {
        let roll = self.rolls.iter().find(|roll| roll.id == kept.report.roll);
        let believed = role == Role::Delegate || self.believed.contains(&kept.report.roll);
        believed && roll.is_some_and(|roll| roll.find(&kept.report.author).is_some())
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.rolls.iter().flat_map(|roll| roll.entries.iter()).chain(self.state.iter().map(|(entry, _)| entry))
    }

    pub(crate) fn have(&self, mates: &[Arc<Entry>]) -> Vec<u64> {
        let fetched = self.fetches.iter().flat_map(|fetch| fetch.cards.values());
        let mut have: Vec<u64> = self.entries().chain(mates).chain(fetched).map(|entry| entry.short()).collect();
        have.sort_unstable();
        have.dedup();
        have.truncate(2 * MAX_ROLL);
        have
    }
}
