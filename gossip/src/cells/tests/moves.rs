//! Who is listed how while cells fall apart.

use super::*;

#[test]
fn who_was_dead_in_a_cell_that_was_left_stays_listed_as_dead() {
    let mut own = node(1);
    let place = own.entry.place;
    let mate = |n: u16, state| Mate::new(node(n).card().clone(), state, Tells::default());
    own.set_mates(vec![mate(2, MemberState::Live), mate(3, MemberState::Dead)], SECOND);
    own.go(CellId::of(place, 1), Vec::new(), SECOND);
    let states = |own: &Cells, at: Duration| -> Vec<(String, MemberState)> {
        own.people(at).iter().map(|person| (person.card().name.clone(), person.state)).collect()
    };
    let listed = |other| vec![("n2".to_owned(), other), ("n3".to_owned(), MemberState::Dead)];
    assert_eq!(states(&own, 2 * SECOND), listed(MemberState::Unconfirmed));
    assert_eq!(states(&own, 100 * SECOND), listed(MemberState::Dead));
    assert_eq!(states(&own, 4_000 * SECOND), [], "an hour later");
    assert_eq!(own.people.doors(&own.table, CellId::WHOLE, 2 * SECOND), [address(2)], "nobody goes by it");
}

/// A reader to which a cell of these, whose cards are of this depth, is known and silent.
fn reader_of_silent(depth: u8, high: &[u16]) -> Cells {
    let mut reader = settled(of_half(false).next().unwrap());
    let nodes: Vec<Cells> = high
        .iter()
        .map(|n| {
            let mut node = node(*n);
            node.go(CellId::of(1 << 63, depth), Vec::new(), Duration::ZERO);
            node
        })
        .collect();
    let roll = Roll::new(nodes.iter().map(|node| Arc::clone(&node.entry)).collect());
    let report = Report {
        cell: CellId::of(1 << 63, depth),
        seal: String::new(),
        ..report_of(high[0], 1, &roll, high.iter().map(|_| true))
    };
    tell(&mut reader, high[0], &news(report.sealed(&nodes[0].sealing)));
    let seals: HashMap<String, String> =
        nodes.iter().map(|node| (node.cfg.node.clone(), node.own.seal.clone())).collect();
    tell(&mut reader, high[0], &cards(&roll, |card| seals[&card.name].clone()));
    reader
}

#[test]
fn members_of_a_cell_that_falls_apart_are_not_dead_for_others() {
    let high: Vec<u16> = of_half(true).take(3).collect();
    let states = |reader: &Cells, at: Duration| -> Vec<MemberState> {
        let people = reader.people(at);
        let of_them = people.iter().filter(|person| high.iter().any(|n| person.card().name == format!("n{n}")));
        of_them.map(|person| person.state).collect()
    };
    let mut reader = reader_of_silent(1, &high);
    assert_eq!(states(&reader, SECOND), [MemberState::Live; 3]);
    reader.table.pass(8 * SECOND, 3_600 * SECOND);
    assert_eq!(states(&reader, 8 * SECOND), [MemberState::Unconfirmed; 3], "the whole cell is silent");
    assert_eq!(states(&reader, 18 * SECOND), [MemberState::Dead; 3]);
    // A part of it is heard: who is not there yet may be on its way.
    let mut reader = reader_of_silent(1, &high);
    let part =
        of_half(true).find(|n| !high.contains(n) && CellId::of(3 << 62, 2).contains(node(*n).entry.place)).unwrap();
    let mut there = node(part);
    there.go(CellId::of(3 << 62, 2), Vec::new(), Duration::ZERO);
    let roll = Roll::new(vec![Arc::clone(&there.entry)]);
    let report = Report { cell: there.cell(), seal: String::new(), ..report_of(part, 1, &roll, [true].into_iter()) };
    reader.receive(7 * SECOND, &format!("n{part}"), address(part), &wire::write(&news(report.sealed(&there.sealing))));
    let seal = there.own.seal.clone();
    reader.receive(7 * SECOND, &format!("n{part}"), address(part), &wire::write(&cards(&roll, |_| seal.clone())));
    reader.table.pass(8 * SECOND, 3_600 * SECOND);
    assert_eq!(states(&reader, 8 * SECOND), [MemberState::Unconfirmed; 3]);
    assert_eq!(states(&reader, 40 * SECOND), [MemberState::Dead; 3], "they did not come");
}

#[test]
fn a_former_mate_without_a_card_is_not_dead_by_the_cell_that_fell_apart() {
    let mut own = node(1);
    let place = own.entry.place;
    let mate = node(2);
    let untold = Card { serial: 0, ..mate.card().card.clone() };
    let told = Arc::new(Entry::new(mate.card().card.clone()));
    own.set_mates(
        vec![Mate::new(SealedCard { card: untold, seal: String::new() }, MemberState::Live, Tells::default())],
        SECOND,
    );
    own.go(CellId::of(place, 1), Vec::new(), SECOND);
    own.people.came = None;
    own.set_role(SECOND);
    let roll = Roll::new(vec![told, Arc::clone(&node(3).entry)]);
    let report =
        Report { cell: CellId::WHOLE, seal: String::new(), ..report_of(3, 1, &roll, [true, true].into_iter()) };
    tell(&mut own, 3, &news(report.sealed(&settled(3).sealing)));
    tell(&mut own, 3, &cards(&roll, |card| node(card.name[1..].parse().unwrap()).own.seal));
    let state =
        |own: &Cells, at| own.people(at).iter().find(|person| person.card().name == "n2").map(|person| person.state);
    assert_eq!(state(&own, 2 * SECOND), Some(MemberState::Live));
    own.table.pass(20 * SECOND, 3_600 * SECOND);
    assert_eq!(state(&own, 20 * SECOND), Some(MemberState::Unconfirmed));
}

#[test]
fn who_hears_that_mates_have_gone_to_another_cell_calls_nobody_dead_for_a_while() {
    let mut own = node(1);
    let mates = (2..5).map(|n| Mate::new(node(n).card().clone(), MemberState::Live, Tells::default())).collect();
    own.set_mates(mates, SECOND);
    own.tick(SECOND);
    assert_eq!(own.unsettled(SECOND), None);
    // It knows too few to go itself.
    tell(&mut own, 4, &Message::Apart);
    assert_eq!(own.unsettled(2 * SECOND), Some(30 * SECOND));
    own.called_from(20 * SECOND, CellId::of(1 << 63, 1), address(4));
    assert_eq!([40, 50].map(|at| own.unsettled(at * SECOND).is_some()), [true, false]);
    // Who goes on to say so excuses nobody for ever.
    for at in 21..300 {
        own.called_from(at * SECOND, CellId::of(1 << 63, 1), address(4));
        assert!(at < 61 || own.unsettled(at * SECOND).is_none(), "after {at} s");
    }
}

#[test]
fn a_part_of_a_cell_that_is_known_for_long_excuses_nobody() {
    let high: Vec<u16> = of_half(true).take(3).collect();
    let reader = reader_of_silent(1, &high);
    // The cell of the whole mesh is one that it is a part of.
    let is_new = |at: u32| reader.table.has_new_kin(CellId::WHOLE, at * SECOND, 30 * SECOND);
    assert_eq!([2, 30, 31, 100].map(is_new), [true, true, false, false]);
}

#[test]
fn a_mate_that_others_know_to_live_is_called_where_it_may() {
    let low: Vec<u16> = of_half(false).take(3).collect();
    let mut own = settled(low[0]);
    let (roll, seals) = roll_of(&low);
    tell(&mut own, low[1], &news(report_of(low[1], 1, &roll, [true; 3].into_iter())));
    tell(&mut own, low[1], &cards(&roll, |card| seals[&card.name].clone()));
    for (state, absent) in [(MemberState::Live, false), (MemberState::Unconfirmed, true), (MemberState::Dead, true)] {
        let states = [(low[1], MemberState::Live), (low[2], state)];
        own.set_mates(
            states.map(|(n, state)| Mate::new(settled(n).card().clone(), state, Tells::default())).into(),
            SECOND,
        );
        assert_eq!(own.absent_mates().contains(&address(low[2])), absent, "{state:?}");
    }
}
