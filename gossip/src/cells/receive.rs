//! What a node does with a message about cells.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::card::{Card, Entry, MAX_ROLL, SealedCard};
use super::cell::{CellId, name_hash};
use super::known::{DELEGATES, Which};
use super::wire::{FILL_BYTES, Message, read};
use super::{Cells, DOORS, Output};

/// What a card takes in a message besides what it says and its seal.
const CARD_BYTES: usize = 16;

impl Cells {
    /// Takes in a message of the member of this name, as its certificate has it. `from` is where it
    /// is reached.
    pub fn receive(&mut self, now: Duration, name: &str, from: SocketAddr, payload: &[u8]) {
        let Some(message) = read(payload) else { return };
        let sender = name_hash(name);
        let delegate = self.delegates.iter().find(|(hash, _)| *hash == sender).map(|(hash, _)| *hash);
        let is_delegate = self.is_delegate();
        // Who is no delegate hears of other cells from its own delegates only.
        let voucher = if is_delegate { None } else { delegate };
        let hears = is_delegate || voucher.is_some();
        if let Some(delegate) = voucher {
            self.table.hear_delegate(delegate, now);
            self.unanswered &= self.delegates.get(self.looked).is_none_or(|(asked, _)| *asked != delegate);
        }
        match message {
            Message::Look { stamp } => {
                let same = self.table.stamp(Which::Told) == stamp;
                let answer = if same { Message::Same { stamp } } else { Message::Beats(self.table.beats()) };
                self.send(from, &answer);
            }
            Message::Same { stamp } => {
                // Since it was asked another delegate may have told more.
                let is_current = self.table.stamp(Which::WithRoll) == stamp;
                if let Some(delegate) = voucher.filter(|_| is_current) {
                    self.table.same(now, delegate);
                    let unsure = self.table.unsure(delegate, now);
                    if !unsure.is_empty() {
                        self.send(from, &Message::Differ(unsure));
                    }
                }
            }
            Message::Beats(beats) if hears => {
                let differ = self.table.hear(now, &beats, voucher);
                if !differ.is_empty() {
                    self.send(from, &Message::Differ(differ));
                }
            }
            Message::Differ(theirs) => {
                let (news, mut ask) = self.table.news_for(now, &theirs);
                if !is_delegate {
                    ask.clear();
                }
                if !news.is_empty() || !ask.is_empty() {
                    self.send(from, &Message::News { news, ask });
                }
            }
            Message::News { news, ask } if hears => {
                let before = self.table.stamp(Which::All);
                self.table.take(now, news, voucher);
                // There may be more than one message holds.
                if voucher.is_some() && self.table.stamp(Which::All) != before {
                    self.look(from);
                }
                if !ask.is_empty() {
                    let (news, _) = self.table.news_for(now, &ask);
                    self.send(from, &Message::News { news, ask: Vec::new() });
                }
                self.fetch(now);
            }
            Message::Fetch { cell, roll, have } => self.answer_fetch(from, cell, roll, &have),
            Message::Cards { cell, roll, order, cards } if hears => {
                if self.table.cards(now, cell, roll, order, cards) {
                    self.table.ask_again(cell);
                }
                self.fetch(now);
            }
            Message::Where(sealed) => {
                if sealed.card.name == name && sealed.is_good(&self.sealing) {
                    self.answer_where(now, from, sealed.card);
                }
            }
            Message::There { cell, doors, others } => {
                let before = self.asked.len();
                self.asked.retain(|asked| *asked != from);
                let is_asked = self.asked.len() < before && self.people.mates.is_empty();
                if !is_asked || !cell.is_sound() || !cell.contains(self.entry.place) {
                    return;
                }
                self.remember(others.into_iter().take(DOORS).collect());
                let doors = doors.into_iter().take(DOORS).collect();
                if cell == self.cell() {
                    self.out.push_back(Output::Move { cell, doors });
                } else {
                    self.go(cell, doors, now);
                }
            }
            Message::Beats(_) => {
                let delegates = self.delegates.iter().map(|(_, address)| *address).collect();
                self.send(from, &Message::Delegates(delegates));
            }
            Message::Delegates(delegates) => {
                let delegates: Vec<SocketAddr> = delegates.into_iter().take(DELEGATES).collect();
                // The rest of a silent cell may have chosen them.
                if is_delegate && self.found.len() < DOORS && !self.table.leaderless(self.cell(), now).is_empty() {
                    self.found.extend(&delegates);
                }
                self.remember(delegates);
            }
            Message::Apart => self.come_apart(now, from),
            Message::News { .. } | Message::Cards { .. } => {}
        }
    }

    fn answer_fetch(&mut self, to: SocketAddr, cell: CellId, roll: u128, have: &[u64]) {
        let Some(known) = self.table.roll(cell, roll).map(Arc::clone) else { return };
        let have: HashSet<u64> = have.iter().take(2 * MAX_ROLL).copied().collect();
        let (mut cards, mut bytes) = (Vec::new(), 16 * known.entries.len());
        for entry in known.entries.iter().filter(|entry| !have.contains(&entry.short())) {
            let seal = if entry.id == self.entry.id { Some(&*self.own.seal) } else { self.people.seal_of(entry) };
            let card = SealedCard { card: entry.card.clone(), seal: seal.unwrap_or_default().to_owned() };
            bytes += card.seal.len() + card.card.said().len() + CARD_BYTES;
            if bytes > FILL_BYTES {
                break;
            }
            cards.push(card);
        }
        let order = known.entries.iter().map(|entry| entry.id).collect();
        self.send(to, &Message::Cards { cell, roll, order, cards });
    }

    /// Tells somebody new where it belongs, and counts it there: many may come at once.
    fn answer_where(&mut self, now: Duration, to: SocketAddr, card: Card) {
        let entry = Entry::new(card);
        let cell = self.people.cell_of_newcomer(&self.table, &self.entry, &entry, self.cfg.most, now);
        let mut near = self.people.doors(&self.table, cell, now);
        if self.cell() == cell {
            near.push(self.cfg.address);
        }
        near.retain(|door| *door != to);
        let doors = (0..DOORS.min(near.len())).filter_map(|_| near.get(self.draw(near.len())).copied()).collect();
        self.people.expect(&entry, cell, now);
        let mut others = vec![self.cfg.address];
        let (fresh, _) = self.table.delegates(self.cell());
        others.extend((0..DOORS - 1).filter_map(|_| fresh.get(self.draw(fresh.len())).copied()));
        self.send(to, &Message::There { cell, doors, others });
    }
}
