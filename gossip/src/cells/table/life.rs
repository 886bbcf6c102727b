//! Who lives, as far as this node can tell: members by the reports that count, cells by whether they
//! are heard.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::*;

impl Table {
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
            if !cell.silent {
                cell.reports.iter_mut().for_each(|kept| kept.moved = now);
                if role == Role::Delegate {
                    cell.shake(now);
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
    pub(super) fn doubted_until(&self, cell: &Cell) -> Duration {
        let (dead_after, found_after) = (self.silent_after, self.silent_after * 3 / 2);
        (cell.silent_since + found_after).min(cell.heard + dead_after + found_after)
    }

    /// Whether a part of the cell is heard, or one that it is a part of: members go from one to the
    /// other.
    pub(super) fn has_kin(&self, of: CellId) -> bool {
        self.kin(of).next().is_some()
    }

    /// Whether such a one has not been known for longer than `a_while`: with an older one nobody has to
    /// wait any more.
    pub(crate) fn has_new_kin(&self, of: CellId, now: Duration, a_while: Duration) -> bool {
        self.kin(of).any(|cell| now < cell.since + a_while)
    }

    pub(super) fn kin(&self, of: CellId) -> impl Iterator<Item = &Cell> {
        let is_kin = move |id: &CellId| *id != of && (id.is_within(of) || of.is_within(*id));
        let kin = self.cells.iter().filter(move |(id, cell)| is_kin(id) && !cell.silent && !cell.state.is_empty());
        kin.map(|(_, cell)| cell)
    }

    /// Members of cells that fell silent a moment ago, and did not fall apart: the rest of one may have
    /// chosen delegates that nobody here knows.
    pub(crate) fn leaderless(&self, own: CellId, now: Duration) -> Vec<SocketAddr> {
        let doubtful = self
            .cells
            .iter()
            .filter(|(id, cell)| **id != own && cell.silent && now < self.doubted_until(cell) && !self.has_kin(**id));
        let members = doubtful.flat_map(|(_, cell)| &cell.state).filter(|(_, state)| *state != MemberState::Dead);
        members.map(|(entry, _)| entry.card.address).collect()
    }

    /// Makes the members of a cell anew from the reports that count.
    pub(super) fn judge(&mut self, id: CellId, now: Duration) {
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
        let mut state = count_votes(&ballots);
        // Who was dead by the word of steady authors stays so by that of others.
        if state.iter().any(|(_, state)| *state == MemberState::Unconfirmed) {
            let dead = cell.state.iter().filter(|(_, state)| *state == MemberState::Dead);
            let dead: HashSet<u128> = dead.map(|(entry, _)| entry.id).collect();
            let doubted = state.iter_mut().filter(|(_, state)| *state == MemberState::Unconfirmed);
            doubted.filter(|(entry, _)| dead.contains(&entry.id)).for_each(|(_, state)| *state = MemberState::Dead);
        }
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

    /// Where seals may be judged otherwise than before, who is believed no more speaks for no cell, and
    /// who is shut out is listed no more.
    pub(super) fn judge_seals(&mut self, now: Duration) {
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
                self.judge(id, now);
            }
        }
        self.version += 1;
    }

    /// How long an author has to be heard without a gap to call others dead: as long as a new delegate
    /// may take to be one, and then to find that the author is silent.
    pub(super) fn steady_after(&self) -> Duration {
        2 * self.silent_after
    }

    /// Counts anew where authors are steady no more.
    pub(super) fn judge_shaken(&mut self, now: Duration) {
        let shaken: Vec<CellId> = self.cells.iter().filter(|(_, cell)| cell.is_shaken).map(|(id, _)| *id).collect();
        shaken.into_iter().for_each(|id| self.judge(id, now));
    }

    /// Counts anew where an author has become steady, or a silent cell's members can live no more.
    pub(super) fn judge_steady(&mut self, now: Duration) {
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
}
