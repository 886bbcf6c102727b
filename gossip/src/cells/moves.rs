//! Which cell a node belongs to, and how it comes there.

use std::net::SocketAddr;
use std::time::Duration;

use super::*;

impl Cells {
    /// Where members of this node's cell are that others speak of and its own gossip does not know
    /// to live: halves of a cell that were apart, or a cell that this node has just come to.
    #[must_use]
    pub fn absent_mates(&mut self) -> Vec<SocketAddr> {
        let absent = self.people.absent(&self.table, &self.entry);
        (0..DOORS.min(absent.len())).filter_map(|_| absent.get(self.draw(absent.len())).copied()).collect()
    }

    /// A member that gossips within the cell `theirs` has called this node as one of that cell.
    pub fn called_from(&mut self, now: Duration, theirs: CellId, from: SocketAddr) {
        if self.cell() == CellId::WHOLE {
            self.come_apart(now, from);
        } else if theirs == CellId::WHOLE {
            self.send(from, &Message::Apart);
        }
    }

    /// There are other cells, and a member of one is there. A node that is alone asks it where it
    /// belongs. One that is not finds that itself, by what delegates under their seals tell it: else
    /// one member could send the nodes of a small mesh apart.
    pub(super) fn come_apart(&mut self, now: Duration, from: SocketAddr) {
        if self.cell() != CellId::WHOLE {
            return;
        }
        let (a_while, first) = (self.people.a_while, self.apart);
        if first.is_none_or(|first| now >= first + APART_AGAIN * a_while) {
            self.apart = Some(now);
        }
        if self.apart.is_some_and(|first| now < first + a_while) {
            self.unsettled_until = self.unsettled_until.max(now + a_while);
        }
        if self.people.mates.is_empty() {
            self.seek(from);
        } else if self.is_delegate() {
            self.remember(vec![from]);
        } else {
            let at = self.draw(self.delegates.len());
            self.send(self.delegates[at].1, &Message::Delegates(vec![from]));
        }
    }

    /// Asks a member in which cell this node belongs: for one that knows nobody.
    pub(super) fn seek(&mut self, to: SocketAddr) {
        self.asked.retain(|asked| *asked != to);
        self.asked.push(to);
        if self.asked.len() > DOORS {
            self.asked.remove(0);
        }
        let message = Message::Where(Box::new(self.own.clone()));
        self.send(to, &message);
    }

    /// For how long who is silent in this node's cell may have gone to another, or not have come yet;
    /// none where nobody has to.
    #[must_use]
    pub fn unsettled(&self, now: Duration) -> Option<Duration> {
        (now < self.unsettled_until).then_some(self.people.a_while)
    }

    /// Goes to another cell where, for a while, that was the right one.
    pub(super) fn choose_cell(&mut self, now: Duration) {
        if !self.rounds.is_multiple_of(2) {
            return;
        }
        let right = self.people.right_cell(&self.table, &self.entry, self.cfg.most, now);
        if right != self.cell() || self.table.has_new_kin(self.cell(), now, self.people.a_while) {
            self.unsettled_until = now + self.people.a_while;
        }
        if right == self.cell() {
            self.wanted = None;
            return;
        }
        match self.wanted {
            Some((wanted, since)) if wanted == right => {
                let joins = right.depth() < self.cell().depth();
                if now.saturating_sub(since) >= self.cfg.round * if joins { JOINS_AFTER } else { 2 } {
                    self.go(right, Vec::new(), now);
                }
            }
            _ => self.wanted = Some((right, now)),
        }
    }

    pub(super) fn go(&mut self, cell: CellId, mut doors: Vec<SocketAddr>, now: Duration) {
        self.wanted = None;
        self.unsettled_until = now + self.people.a_while;
        let near = self.people.doors(&self.table, cell, now);
        for _ in 0..DOORS.min(near.len()) {
            doors.extend(near.get(self.draw(near.len())));
        }
        let mates: Vec<SocketAddr> = self.people.mates.iter().map(|mate| mate.entry.card.address).collect();
        let some = (0..DOORS.min(mates.len())).filter_map(|_| mates.get(self.draw(mates.len())).copied()).collect();
        self.remember(some);
        self.people.leave_cell(now, self.cfg.forget_after);
        self.table.mates = (cell, Vec::new());
        // The cell's gossip begins anew with it.
        self.set_card(|card| (card.cell, card.generation) = (cell, card.generation.saturating_add(1)));
        self.reported = None;
        self.delegates = vec![(self.entry.name_hash, self.cfg.address)];
        self.set_role(now);
        self.out.push_back(Output::Move { cell, doors });
    }
}
