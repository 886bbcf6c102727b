//! What is known of one cell.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::card::{Entry, MAX_ROLL, Roll};
use super::cell::{CellId, mix, weight};
use super::report::Report;
use super::steady::{Role, Steady, max_gap};
use super::wire::Known;
use crate::member::MemberState;

/// Members of a cell that report on it.
pub(crate) const DELEGATES: usize = 3;
/// Rolls of one author that are asked for in vain before those of another.
const ASKS: u32 = 3;
/// A report is made anew after so many beats at the latest: what goes beyond is no beat.
pub(crate) const MAX_BEATS: u32 = 100;
/// Beats that a report may be ahead of two a round since it came: for messages that were late.
const BEATS_AHEAD: u32 = 16;

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
    /// [`Report::saying`].
    pub(crate) saying: u64,
    pub(crate) author: u64,
    pub(crate) beat: u32,
    /// When it came, and with which beat.
    pub(crate) first: (Duration, u32),
    pub(crate) moved: Duration,
    /// When this node heard of it last.
    pub(crate) arrived: Duration,
    pub(crate) steady: Steady,
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
    /// Whether nothing of it came for too long, for a delegate. Others hear from delegates of gaps.
    pub(crate) fn had_gap(&self, now: Duration, round: Duration) -> bool {
        now.saturating_sub(self.arrived) > max_gap(Role::Delegate, round)
    }

    /// Takes in a beat of it that somebody has heard `at` that time. Whether that is a further one, by which its
    /// author lived then. Of a cell that is silent by now it takes two: the last word may come from who heard it
    /// late.
    fn goes_on_by(&mut self, beat: u32, at: Duration, is_silent: bool, now: Duration, round: Duration) -> bool {
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
        self.arrived = now;
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
    /// Since when it is silent.
    pub(crate) silent_since: Duration,
    /// Its authors are heard anew, and its members were not counted since.
    pub(crate) is_shaken: bool,
    /// Silent for half of the time for which it is listed: nobody is told of it any more, or two
    /// nodes could remind each other of it for ever.
    pub(crate) old: bool,
    /// Its members by the reports that count, as if it were not silent.
    pub(crate) state: Vec<(Arc<Entry>, MemberState)>,
    pub(crate) counted: Option<Arc<Report>>,
    /// Its jobs with their hosts, and how many jobs more it runs.
    pub(crate) jobs: Jobs,
    pub(crate) more_jobs: u32,
}

/// A report that counts, and the roll it speaks of.
pub(crate) struct Ballot<'c> {
    pub(crate) roll: &'c Roll,
    pub(crate) report: &'c Report,
    /// Its author is heard for long enough to have heard all whom this node reaches.
    pub(crate) steady: bool,
}

/// What reports say of a member.
#[derive(Default, Clone, Copy)]
struct Votes {
    cast: u32,
    live: u32,
    /// Dead, say so many steady ones.
    dead: u32,
}

impl Votes {
    fn of<'b>(ballots: impl Iterator<Item = &'b Ballot<'b>>, at: usize) -> Self {
        ballots.fold(Self::default(), |votes, ballot| {
            let lives = ballot.report.living.has(at);
            votes.and(Self { cast: 1, live: lives.into(), dead: (!lives && ballot.steady).into() })
        })
    }

    fn and(self, other: Self) -> Self {
        Self { cast: self.cast + other.cast, live: self.live + other.live, dead: self.dead + other.dead }
    }

    /// As many for as against: it lives, since who is asked in vain is named as missing, and who is
    /// not asked is not. For the same reason it takes steady authors to call it dead.
    fn state(self) -> MemberState {
        match self {
            _ if self.live > 0 && 2 * self.live >= self.cast => MemberState::Live,
            _ if 2 * self.dead > self.cast => MemberState::Dead,
            _ => MemberState::Unconfirmed,
        }
    }
}

/// Who is in a cell by these rolls, of each name the newest card, and its state by the reports that
/// have this card.
pub(crate) fn count_votes(ballots: &[Ballot<'_>]) -> Vec<(Arc<Entry>, MemberState)> {
    let mut all: Vec<(&Arc<Entry>, Votes)> = Vec::new();
    match ballots {
        [] => {}
        // Mostly all speak of the same roll.
        [first, ..] if ballots.iter().all(|other| other.roll.id == first.roll.id) => {
            let entries = first.roll.entries.iter().enumerate();
            all.extend(entries.map(|(at, entry)| (entry, Votes::of(ballots.iter(), at))));
        }
        _ => {
            for ballot in ballots {
                let entries = ballot.roll.entries.iter().enumerate();
                all.extend(entries.map(|(at, entry)| (entry, Votes::of(std::iter::once(ballot), at))));
            }
            all.sort_by(|(a, _), (b, _)| {
                (a.card.name.as_str(), b.card.age()).cmp(&(b.card.name.as_str(), a.card.age()))
            });
            all.dedup_by(|(entry, votes), (newest, all_votes)| {
                let same_name = entry.card.name == newest.card.name;
                if same_name && entry.id == newest.id {
                    *all_votes = all_votes.and(*votes);
                }
                same_name
            });
        }
    }
    all.into_iter().map(|(entry, votes)| (Arc::clone(entry), votes.state())).collect()
}

/// Jobs, sorted, each with its hosts.
pub(crate) type Jobs = Vec<(String, Vec<Arc<Entry>>)>;

/// Which hosts run which jobs, as far as at least half of these reports say so, and how many jobs more
/// there are, as the middle one says: one that lies changes nothing.
pub(crate) fn count_jobs(ballots: &[Ballot<'_>]) -> (Jobs, u32) {
    let mut named: BTreeMap<&str, BTreeMap<&str, (&Arc<Entry>, usize)>> = BTreeMap::new();
    for Ballot { roll, report, .. } in ballots {
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
    let mut more: Vec<u32> = ballots.iter().map(|ballot| ballot.report.more_jobs).collect();
    more.sort_unstable();
    (jobs, more.get(more.len() / 2).copied().unwrap_or(0))
}

impl Cell {
    /// Takes in a beat of its report `which` that somebody has heard `at` that time; whether it counts.
    pub(crate) fn goes_on(
        &mut self,
        which: usize,
        beat: u32,
        at: Duration,
        now: Duration,
        role: Role,
        round: Duration,
    ) -> bool {
        let kept = &mut self.reports[which];
        let had_gap = role == Role::Delegate && kept.had_gap(now, round);
        let goes_on = kept.goes_on_by(beat, at, self.silent, now, round);
        if goes_on && had_gap {
            kept.steady = Steady::since(now);
            self.is_shaken = true;
        }
        if goes_on {
            self.hear(at, role, round);
        }
        goes_on
    }

    /// It was heard `at` that time. After a gap each of its authors is heard anew.
    pub(crate) fn hear(&mut self, at: Duration, role: Role, round: Duration) {
        if at.saturating_sub(self.heard) > max_gap(role, round) {
            self.shake(at);
        }
        self.heard = self.heard.max(at);
    }

    /// From now on it is silent, or heard; whether that is new. Whose reports are heard again was
    /// out of reach.
    pub(crate) fn set_silent(&mut self, silent: bool, now: Duration) -> bool {
        let is_new = std::mem::replace(&mut self.silent, silent) != silent;
        if is_new && silent {
            self.silent_since = now;
        } else if is_new {
            self.shake(now);
        }
        is_new
    }

    /// Its authors are heard anew.
    pub(crate) fn shake(&mut self, at: Duration) {
        self.reports.iter_mut().for_each(|kept| kept.steady = Steady::since(at));
        self.is_shaken = true;
    }

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

    /// A number for what these of its reports say.
    pub(crate) fn saying(&self, which: Which) -> u64 {
        let these = self.reports.iter().filter(|kept| self.is_among(which, kept));
        these.fold(1, |stamp, kept| mix(stamp ^ kept.saying))
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

    /// What is known of it in short.
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
