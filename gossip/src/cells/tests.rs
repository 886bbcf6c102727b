//! What members with other intentions can and cannot do, message by message.

mod jobs;
mod limits;
mod moves;
mod revoked;
mod steady;

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::bytes::encoded;
use super::card::MAX_SEAL_BYTES;
use super::cell::name_hash;
use super::report::Hosts;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Seals that name who made them and what they are of.
struct Named(String);

impl Sealer for Named {
    fn seal(&self, statement: &[u8]) -> Result<String, String> {
        Ok(format!("{}:{:x}", self.0, cell::hash_of(&[statement])))
    }

    fn check(&self, node: &str, statement: &[u8], seal: &str) -> Result<(), String> {
        if *seal == format!("{node}:{:x}", cell::hash_of(&[statement])) { Ok(()) } else { Err("not its own".into()) }
    }

    fn epoch(&self) -> u64 {
        0
    }
}

fn address(n: u16) -> SocketAddr {
    ([127, 0, 0, 1], n).into()
}

fn node(n: u16) -> Cells {
    // Small enough that a dozen nodes are two cells.
    let cfg = CellsConfig { most: 8, ..CellsConfig::new(format!("n{n}"), "", 1, address(n)) };
    Cells::new(cfg, Some(Arc::new(Named(format!("n{n}")))), Arc::default(), Duration::ZERO)
}

/// A node in the half of the line in which it belongs.
fn settled(n: u16) -> Cells {
    let mut node = node(n);
    node.go(CellId::of(node.entry.place, 1), Vec::new(), Duration::ZERO);
    node.people.came = None;
    node.set_role(Duration::ZERO);
    node.out.clear();
    node
}

fn is_high(n: u16) -> bool {
    CellId::of(1 << 63, 1).contains(place_of(&format!("n{n}"), ""))
}

/// The numbers of nodes of one half.
fn of_half(high: bool) -> impl Iterator<Item = u16> {
    (1..).filter(move |n| is_high(*n) == high)
}

fn tell(to: &mut Cells, from: u16, message: &Message) {
    to.receive(SECOND, &format!("n{from}"), address(from), &wire::write(message));
}

/// Some nodes whose messages arrive at once.
struct Net(HashMap<SocketAddr, Cells>, Duration);

impl Net {
    fn of(nodes: impl Iterator<Item = u16>) -> Self {
        Self(nodes.map(|n| (address(n), settled(n))).collect(), Duration::ZERO)
    }

    /// Everybody knows its cell's members, as from the cell's gossip.
    fn acquaint(&mut self) {
        let cards: Vec<SealedCard> = self.0.values().map(|node| node.card().clone()).collect();
        for node in self.0.values_mut() {
            let others = cards.iter().filter(|card| card.card.name != node.cfg.node).cloned();
            let mates = others.filter_map(|card| node.mate(card, MemberState::Live, Tells::default())).collect();
            node.set_mates(mates, self.1);
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.1 + time;
        while self.1 < until {
            self.1 += Duration::from_millis(100);
            self.0.values_mut().for_each(|node| node.tick(self.1));
            loop {
                let mut sent = Vec::new();
                for (from, node) in &mut self.0 {
                    while let Some(output) = node.poll() {
                        if let Output::Send { to, payload } = output {
                            sent.push((*from, to, payload));
                        }
                    }
                }
                if sent.is_empty() {
                    break;
                }
                for (from, to, payload) in sent {
                    if let Some(node) = self.0.get_mut(&to) {
                        node.receive(self.1, &format!("n{}", from.port()), from, &payload);
                    }
                }
            }
        }
    }

    fn node(&mut self, n: u16) -> &mut Cells {
        self.0.get_mut(&address(n)).expect("it was put in")
    }
}

fn names(node: &Cells) -> Vec<String> {
    node.people(100 * SECOND).iter().map(|person| person.card().name.clone()).collect()
}

fn report_of(author: u16, serial: u64, roll: &Roll, living: impl Iterator<Item = bool>) -> Report {
    let of = settled(author);
    Report {
        cell: of.cell(),
        author: format!("n{author}"),
        generation: 1,
        serial,
        address: address(author),
        roll: roll.id,
        living: Bits::of(living),
        sums: Sums::default(),
        jobs: Vec::new(),
        more_jobs: 0,
        later: Vec::new(),
        seal: String::new(),
    }
    .sealed(&of.sealing)
}

/// As its author has just made it, who is heard for long.
fn heard(report: &Report) -> wire::Heard {
    wire::Heard { author: report.author_hash(), age: report.age(), beat: 0, idle_ms: 0, steady_ms: 60_000 }
}

fn news(report: Report) -> Message {
    news_of(vec![report])
}

/// Of one cell.
fn news_of(reports: Vec<Report>) -> Message {
    let heard = reports.iter().map(heard).collect();
    let news = wire::News { cell: reports[0].cell, silent: false, heard, reports };
    Message::News { news: vec![news], ask: Vec::new() }
}

fn cards(roll: &Roll, seal: impl Fn(&Card) -> String) -> Message {
    let sealed = |entry: &Arc<Entry>| SealedCard { card: entry.card.clone(), seal: seal(&entry.card) };
    Message::Cards {
        cell: roll.entries[0].card.cell,
        roll: roll.id,
        order: roll.entries.iter().map(|entry| entry.id).collect(),
        cards: roll.entries.iter().map(sealed).collect(),
    }
}

/// The roll of these nodes, and their own seals of their cards.
fn roll_of(numbers: &[u16]) -> (Roll, HashMap<String, String>) {
    let nodes: Vec<Cells> = numbers.iter().map(|n| settled(*n)).collect();
    let seals = nodes.iter().map(|node| (node.cfg.node.clone(), node.own.seal.clone())).collect();
    (Roll::new(nodes.iter().map(|node| Arc::clone(&node.entry)).collect()), seals)
}

#[test]
fn two_cells_come_to_know_each_other_from_one_address() {
    let (low, high): (Vec<u16>, Vec<u16>) = (of_half(false).take(6).collect(), of_half(true).take(6).collect());
    let mut net = Net::of(low.iter().chain(&high).copied());
    net.acquaint();
    let delegate = *low.iter().find(|n| net.node(**n).is_delegate()).unwrap();
    net.node(delegate).remember(vec![address(high[0])]);
    net.run(30 * SECOND);
    for n in low.iter().chain(&high) {
        assert_eq!(names(net.node(*n)).len(), 11, "n{n} knows {:?}", names(net.node(*n)));
    }
    // What a whole cell's silence means, and that the other cell is not concerned.
    high.iter().for_each(|n| drop(net.0.remove(&address(*n))));
    net.run(20 * SECOND);
    let now = net.1;
    for n in &low {
        let people = net.node(*n).people(now);
        let dead = people.iter().filter(|person| person.state == MemberState::Dead).count();
        assert_eq!(dead, 6, "n{n}");
    }
}

#[test]
fn nobody_is_listed_without_its_own_seal() {
    let (mut reader, ours) = (settled(of_half(false).next().unwrap()), of_half(true).take(3).collect::<Vec<_>>());
    let (roll, seals) = roll_of(&ours);
    tell(&mut reader, ours[0], &news(report_of(ours[0], 1, &roll, [true; 3].into_iter())));
    assert!(names(&reader).is_empty(), "the roll is not here yet");
    tell(&mut reader, ours[0], &cards(&roll, |_| format!("n{}:0", ours[0])));
    assert!(names(&reader).is_empty() && reader.refused() >= 3, "cards that their owners did not seal");
    tell(&mut reader, ours[0], &cards(&roll, |card| seals[&card.name].clone()));
    assert_eq!(names(&reader).len(), 3);
}

#[test]
fn a_cell_is_spoken_for_by_its_own_members_under_their_seals() {
    let high: Vec<u16> = of_half(true).take(3).collect();
    let (mut reader, (roll, seals)) = (settled(of_half(false).next().unwrap()), roll_of(&high));
    tell(&mut reader, high[0], &news(report_of(high[0], 1, &roll, [true; 3].into_iter())));
    tell(&mut reader, high[0], &cards(&roll, |card| seals[&card.name].clone()));
    let alive =
        |reader: &Cells| reader.people(SECOND).iter().filter(|person| person.state == MemberState::Live).count();
    assert_eq!(alive(&reader), 3);
    // In another's name.
    let forged = Report { author: format!("n{}", high[1]), ..report_of(high[0], 9, &roll, [false; 3].into_iter()) };
    tell(&mut reader, high[0], &news(forged));
    assert_eq!(alive(&reader), 3);
    // Of a cell that the author is not in.
    let stranger = of_half(false).nth(1).unwrap();
    let cell = CellId::of(1 << 63, 1);
    let of = settled(stranger);
    let alien = Report { cell, seal: String::new(), ..report_of(stranger, 9, &roll, [false; 3].into_iter()) };
    tell(&mut reader, stranger, &news(alien.sealed(&of.sealing)));
    assert_eq!(alive(&reader), 3);
    // One of two says that all are dead: as many for as against. Two of three count.
    tell(&mut reader, high[1], &news(report_of(high[1], 9, &roll, [false; 3].into_iter())));
    assert_eq!(alive(&reader), 3);
    tell(&mut reader, high[2], &news(report_of(high[2], 9, &roll, [false; 3].into_iter())));
    assert_eq!(alive(&reader), 0);
}

#[test]
fn who_is_no_delegate_believes_a_roll_that_two_of_its_delegates_name() {
    let low: Vec<u16> = of_half(false).take(6).collect();
    let mut net = Net::of(low.iter().copied());
    net.acquaint();
    let mut member =
        low.iter().find(|n| !net.node(**n).is_delegate()).map(|n| net.0.remove(&address(*n)).unwrap()).unwrap();
    let delegates: Vec<u16> = member.delegates.iter().map(|(_, address)| address.port()).collect();
    let high: Vec<u16> = of_half(true).take(3).collect();
    let (roll, _) = roll_of(&high);
    let said = news(report_of(high[0], 1, &roll, [true; 3].into_iter()));
    let known = |member: &Cells| member.people(SECOND).len();
    // From a stranger: nothing at all.
    tell(&mut member, high[0], &said);
    tell(&mut member, delegates[0], &cards(&roll, |_| String::new()));
    assert_eq!(known(&member), 5);
    tell(&mut member, delegates[0], &said);
    tell(&mut member, delegates[0], &cards(&roll, |_| String::new()));
    assert_eq!(known(&member), 5, "one delegate alone is not believed");
    tell(&mut member, delegates[0], &said);
    assert_eq!(known(&member), 5, "nor twice");
    let stamp = member.table.stamp(Which::WithRoll);
    tell(&mut member, delegates[1], &Message::Same { stamp });
    assert_eq!(known(&member), 8);
}

#[test]
fn nobody_sends_apart_those_that_know_each_other() {
    let moves =
        |of: &mut Cells| std::iter::from_fn(|| of.poll()).filter(|out| matches!(out, Output::Move { .. })).count();
    let (mut own, mate) = (node(1), node(2));
    let cell = CellId::of(own.entry.place, 20);
    let there = || Message::There { cell, doors: vec![address(9)], others: Vec::new() };
    tell(&mut own, 9, &there());
    assert_eq!(moves(&mut own), 0, "it has not asked");
    // Whom it called is of another cell and says so; it asks, and another answers, then that one.
    tell(&mut own, 9, &Message::Apart);
    tell(&mut own, 8, &there());
    assert_eq!((moves(&mut own), own.cell()), (0, CellId::WHOLE));
    let mates = vec![own.mate(mate.card().clone(), MemberState::Live, Tells::default()).unwrap()];
    own.set_mates(mates, SECOND);
    tell(&mut own, 9, &there());
    tell(&mut own, 9, &Message::Apart);
    tell(&mut own, 9, &there());
    assert_eq!((moves(&mut own), own.cell()), (0, CellId::WHOLE), "it is not alone any more");
    own.set_mates(Vec::new(), SECOND);
    tell(&mut own, 9, &Message::Apart);
    let before = own.card().card.generation;
    tell(&mut own, 9, &there());
    assert_eq!((moves(&mut own), own.cell()), (1, cell));
    assert!(own.card().card.generation > before, "the cell's gossip begins anew");
}

#[test]
fn gossip_of_a_cell_bears_its_name_and_that_of_the_whole_mesh_is_as_it_was() {
    let cell = CellId::of(0b101 << 61, 3);
    let (plain, within) = (wire::wrap(CellId::WHOLE, b"x".to_vec()), wire::wrap(cell, b"x".to_vec()));
    assert_eq!((&plain[..], within.len()), (&b"x"[..], wire::HEAD_BYTES + 1));
    assert_eq!(wire::unwrap(&plain), Some((CellId::WHOLE, &b"x"[..])));
    assert_eq!(wire::unwrap(&within), Some((cell, &b"x"[..])));
    assert_eq!(wire::unwrap(&within[..8]), None);
    // The whole mesh's has no second form.
    assert_eq!(wire::unwrap(&[&b"RMC2"[..], &[0; 9], b"x"].concat()), None);
}

#[test]
fn more_cells_than_are_kept_are_refused_and_counted() {
    let mut reader = settled(1);
    for n in 0..MAX_CELLS as u16 + 5 {
        let report = Report {
            cell: CellId::of(cell::mix(n.into()), 40),
            seal: String::new(),
            ..report_of(2 + n, 1, &Roll::default(), [].into_iter())
        };
        let author = settled(2 + n);
        tell(&mut reader, 2 + n, &news(report.sealed(&author.sealing)));
    }
    assert_eq!(reader.table.cells().count(), MAX_CELLS);
    assert!(reader.refused() >= 5);
}

#[test]
fn what_is_too_large_is_refused() {
    let mut own = node(1);
    assert!(!own.say(&"x".repeat(MAX_FACTS_BYTES + 1), Tells::default()));
    assert!(own.say(&"x".repeat(MAX_FACTS_BYTES), Tells::default()));
    let card = Card { facts: "x".repeat(MAX_FACTS_BYTES + 1), ..own.own.card.clone() };
    assert!(!SealedCard::new(card, &own.sealing).is_good(&own.sealing));
    let other = Card { cell: CellId::of(!own.entry.place, 1), ..own.own.card.clone() };
    assert!(!SealedCard::new(other, &own.sealing).is_good(&own.sealing), "a cell that it cannot be in");
    let long = SealedCard { seal: "x".repeat(MAX_SEAL_BYTES + 1), ..own.own.clone() };
    assert!(!long.is_good(&Sealing::default()), "whatever the seal");
}

#[test]
fn beats_that_come_faster_than_time_do_not_count() {
    let high: Vec<u16> = of_half(true).take(3).collect();
    let (mut reader, (roll, seals)) = (settled(of_half(false).next().unwrap()), roll_of(&high));
    tell(&mut reader, high[0], &news(report_of(high[0], 1, &roll, [true; 3].into_iter())));
    tell(&mut reader, high[0], &cards(&roll, |card| seals[&card.name].clone()));
    let beats = |reader: &Cells, beat: u32| {
        let mut beats = reader.table.beats();
        beats
            .iter_mut()
            .filter(|known| known.cell == CellId::of(1 << 63, 1))
            .for_each(|known| known.beats = vec![beat]);
        Message::Beats(beats)
    };
    let beat = |reader: &Cells| {
        reader.table.beats().iter().find(|known| known.cell == CellId::of(1 << 63, 1)).unwrap().beats[0]
    };
    let ahead = beats(&reader, u32::MAX);
    tell(&mut reader, 99, &ahead);
    assert_eq!(beat(&reader), 0);
    let one = beats(&reader, 1);
    tell(&mut reader, 99, &one);
    assert_eq!(beat(&reader), 1);
}

#[test]
fn jobs_are_found_by_host_and_what_is_not_named_is_said() {
    let jobs = |n: usize| Tells {
        jobs: (0..n).map(|n| format!("j{n:03}")).chain(["of both".to_owned()]).collect(),
        ..Tells::default()
    };
    let mates: Vec<Mate> = [2, MAX_JOBS]
        .into_iter()
        .zip(of_half(true))
        .map(|(count, n)| Mate::new(settled(n).card().clone(), MemberState::Live, jobs(count)))
        .collect();
    let roll = Roll::new(mates.iter().map(|mate| Arc::clone(&mate.entry)).collect());
    let summary = people::sum_up(&roll, mates.iter(), MAX_JOBS, &HashSet::new());
    assert_eq!((summary.jobs.len(), summary.more_jobs), (MAX_JOBS, 1));
    let hosts = |job: usize| summary.jobs[job].1.iter().count();
    // Left out is one of one host, not the last by name.
    assert_eq!([hosts(0), hosts(1), hosts(2), hosts(MAX_JOBS - 1)], [2, 2, 1, 2]);
    assert!(summary.jobs.is_sorted_by_key(|(job, _)| job) && summary.jobs[MAX_JOBS - 1].0 == "of both");
    for count in [0, 1, 8, 9, 100] {
        let hosts = Hosts::of((0..200).map(|at| at % 2 == 1 && at < 2 * count));
        assert_eq!(hosts.iter().collect::<Vec<_>>(), (0..count).map(|n| 2 * n + 1).collect::<Vec<_>>());
    }
    assert_eq!(summary.living.len(), 2);
    assert!(summary.living.contains(&name_hash(&mates[0].entry.card.name)));
}

#[test]
fn who_lived_in_cells_that_were_left_is_not_left_out() {
    let mut own = node(1);
    let place = own.entry.place;
    let mate = |of: &Cells| Mate::new(of.card().clone(), MemberState::Live, Tells::default());
    own.set_mates((2..10).map(|n| mate(&node(n))).collect(), Duration::ZERO);
    own.go(CellId::of(place, 1), Vec::new(), SECOND);
    let near: Vec<u16> = of_half(is_high(1)).filter(|n| *n >= 10).take(2).collect();
    own.set_mates(near.iter().map(|n| mate(&settled(*n))).collect(), SECOND);
    own.go(CellId::of(place, 2), Vec::new(), 5 * SECOND);
    let mut all: Vec<String> = (2..10).chain(near).map(|n| format!("n{n}")).collect();
    all.sort();
    for (seconds, state) in [(10, MemberState::Unconfirmed), (100, MemberState::Dead)] {
        let people = own.people(seconds * SECOND);
        assert!(people.iter().all(|person| person.state == state), "{people:?}");
        assert_eq!(people.iter().map(|person| person.card().name.clone()).collect::<Vec<_>>(), all);
    }
    assert!(own.people(4_000 * SECOND).is_empty(), "an hour later");
}

proptest! {
    #[test]
    fn no_payload_breaks_a_node(kind in 0u8..13, tail in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut reader = settled(1);
        let payload = [&b"RMC1"[..], &[kind], &tail].concat();
        reader.receive(SECOND, "n2", address(2), &payload);
        reader.tick(2 * SECOND);
        prop_assert!(encoded(&reader.table.beats()).len() < 100_000);
    }
}
