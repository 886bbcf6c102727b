//! What a node does in each round: whom it calls, and what it says of its cell.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::*;

impl Cells {
    /// When [`Cells::tick`] has something to do.
    #[must_use]
    pub fn due(&self) -> Duration {
        self.next_round
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Duration) {
        if now < self.next_round {
            return;
        }
        // A host that stood still does not make up for it, and heard nobody meanwhile.
        if now - self.next_round >= self.cfg.silent_after / 2 {
            self.table.excuse(now);
        }
        self.next_round = (self.next_round + self.cfg.round).max(now);
        self.rounds += 1;
        self.choose_cell(now);
        self.set_role(now);
        if !self.is_one_of_many() {
            return;
        }
        let doors = self.table.pass(now, self.cfg.forget_after);
        self.remember(doors);
        if self.is_delegate() {
            self.report(now);
            self.table.beat(now, self.cell(), self.entry.name_hash);
            let beats = Message::Beats(self.table.beats());
            for to in self.whom(now) {
                self.send(to, &beats);
            }
            // In the mesh's one cell nobody looks, as long as it is the only one.
            let mates: Vec<SocketAddr> = match self.cell() {
                CellId::WHOLE => self.people.mates.iter().map(|mate| mate.entry.card.address).collect(),
                _ => Vec::new(),
            };
            for _ in 0..DOORS.min(mates.len()) {
                let to = mates[self.draw(mates.len())];
                self.send(to, &beats);
            }
        } else if self.rounds.is_multiple_of(2) || self.table.doubts() || now < self.unsettled_until {
            self.looked = (self.looked + 1) % self.delegates.len();
            let to = self.delegates[self.looked].1;
            self.unanswered = true;
            self.look(to);
        } else if self.unanswered
            && let Some((_, to)) = self.delegates.get(self.looked)
        {
            self.look(*to);
        }
        if self.rounds.is_multiple_of(20) {
            let newest = People::newest(&self.table, &self.people.mates, &self.entry);
            let is_elsewhere =
                |cell: CellId, entry: &Entry| newest.get(&entry.name_hash).is_some_and(|newest| *newest != cell);
            self.table.drop_left(is_elsewhere);
        }
        self.fetch(now);
    }

    pub(super) fn look(&mut self, to: SocketAddr) {
        let stamp = self.table.stamp(Which::WithRoll);
        self.send(to, &Message::Look { stamp });
    }

    /// Whom a delegate calls in this round.
    pub(super) fn whom(&mut self, now: Duration) -> Vec<SocketAddr> {
        let (fresh, silent) = self.table.delegates(self.cell());
        // Where nobody elsewhere is heard yet, whoever may be there.
        let known: Vec<SocketAddr> = self.cfg.seeds.iter().chain(&self.contacts).copied().collect();
        let elsewhere = if fresh.is_empty() { &known } else { &fresh };
        let mut whom = Vec::new();
        for _ in 0..2 {
            whom.extend(elsewhere.get(self.draw(elsewhere.len())));
        }
        let others: Vec<SocketAddr> =
            self.delegates.iter().map(|(_, address)| *address).filter(|address| *address != self.cfg.address).collect();
        let leaderless = self.table.leaderless(self.cell(), now);
        whom.append(&mut self.found);
        for _ in 0..DOORS.min(leaderless.len()) {
            whom.extend(leaderless.get(self.draw(leaderless.len())));
        }
        match self.rounds % 4 {
            0 => whom.extend(silent.get(self.draw(silent.len()))),
            1 => whom.extend(others.get(self.draw(others.len()))),
            2 => whom.extend(known.get(self.draw(known.len()))),
            _ => {}
        }
        whom.sort_unstable();
        whom.dedup();
        whom.retain(|to| *to != self.cfg.address);
        whom
    }

    pub(super) fn remember(&mut self, addresses: Vec<SocketAddr>) {
        for address in addresses {
            if address == self.cfg.address || self.contacts.contains(&address) {
                continue;
            }
            if self.contacts.len() >= MAX_CONTACTS {
                let at = self.draw(MAX_CONTACTS);
                self.contacts[at] = address;
            } else {
                self.contacts.push(address);
            }
        }
    }

    /// Says what is new of the own cell, once a second at most; all of it after
    /// [`MAX_BEATS`] rounds.
    pub(super) fn report(&mut self, now: Duration) {
        let since = self.reported.map(|reported| now.saturating_sub(reported));
        let is_old = since.is_none_or(|since| since >= MAX_BEATS * self.cfg.round);
        if !(self.report_due || is_old) || since.is_some_and(|since| since < 2 * self.cfg.round) {
            return;
        }
        let told = self.people.mates.iter().filter(|mate| mate.is_told()).map(|mate| Arc::clone(&mate.entry));
        let roll = Arc::new(Roll::new(told.chain([Arc::clone(&self.entry)]).collect()));
        let own = Mate {
            entry: Arc::clone(&self.entry),
            seal: "".into(),
            state: MemberState::Live,
            tells: Arc::new(self.tells.clone()),
        };
        let others = self.table.jobs().filter(|(cell, ..)| *cell != self.cell());
        let elsewhere: HashSet<&str> = others.flat_map(|(_, jobs, _)| jobs.iter().map(|(job, _)| &**job)).collect();
        let summary = people::sum_up(&roll, self.people.mates.iter().chain([&own]), MAX_JOBS, &elsewhere);
        let report = Report {
            cell: self.cell(),
            author: self.cfg.node.clone(),
            generation: self.own.card.generation,
            serial: self.report_serial + 1,
            address: self.cfg.address,
            roll: roll.id,
            living: Bits::of(roll.entries.iter().map(|entry| summary.living.contains(&entry.name_hash))),
            sums: summary.sums,
            jobs: summary.jobs,
            more_jobs: summary.more_jobs,
            later: Vec::new(),
            seal: String::new(),
        };
        let before = self.table.own_report(self.cell(), self.entry.name_hash);
        let says_more = before.is_none_or(|before| before.saying != report.saying());
        if says_more || is_old {
            self.report_serial += 1;
            self.reported = Some(now);
            self.report_due = false;
            let report = report.sealed(&self.sealing);
            self.table.say(now, report, roll);
        }
    }

    pub(super) fn fetch(&mut self, now: Duration) {
        let delegates = self.delegates.clone();
        for lacking in self.table.lacking(now, 2 * self.cfg.round, FETCHES) {
            // Only in the own cell are seals kept: a delegate asks those who speak for the other.
            let from: Vec<SocketAddr> = match self.is_delegate() {
                true => lacking.authors,
                false => delegates.iter().map(|(_, address)| *address).collect(),
            };
            let Some(to) = from.get(self.draw(from.len())).copied() else { continue };
            self.send(to, &Message::Fetch { cell: lacking.cell, roll: lacking.roll, have: lacking.have });
        }
    }
}
