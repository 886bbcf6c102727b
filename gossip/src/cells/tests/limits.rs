//! What one key, one name or one cell can take of what all share.

use super::*;
use crate::cells::known::Which;
use crate::cells::wire::{Heard, Known, News};

fn told(by: &Cells) -> Vec<CellId> {
    by.table.beats().into_iter().map(|beat| beat.cell).collect()
}

#[test]
fn a_report_is_passed_on_with_its_roll_only() {
    let high: Vec<u16> = of_half(true).take(3).collect();
    let (mut reader, (roll, seals)) = (settled(of_half(false).next().unwrap()), roll_of(&high));
    let cell = settled(high[0]).cell();
    let asked = || vec![Known { cell, reports: Vec::new() }];
    tell(&mut reader, high[0], &news(report_of(high[0], 1, &roll, [true; 3].into_iter())));
    // Cards that their owners did not seal: there is no such roll.
    tell(&mut reader, high[0], &cards(&roll, |_| "forged".to_owned()));
    assert_eq!(told(&reader), []);
    assert!(reader.table.news_for(SECOND, &asked()).0.is_empty(), "else two honest delegates would vouch for it");
    tell(&mut reader, high[0], &cards(&roll, |card| seals[&card.name].clone()));
    assert_eq!(told(&reader), [cell]);
    assert_eq!(reader.table.news_for(SECOND, &asked()).0[0].reports.len(), 1);
}

#[test]
fn a_delegate_vouches_for_what_it_was_asked_about() {
    let low: Vec<u16> = of_half(false).take(6).collect();
    let mut net = Net::of(low.iter().copied());
    net.acquaint();
    let mut member =
        low.iter().find(|n| !net.node(**n).is_delegate()).map(|n| net.0.remove(&address(*n)).unwrap()).unwrap();
    let delegates: Vec<SocketAddr> = member.delegates.iter().map(|(_, address)| *address).collect();
    let high: Vec<u16> = of_half(true).take(3).collect();
    let (roll, _) = roll_of(&high);
    // The second was asked before the first told of this cell: it did not say that it knows it.
    let before = member.table.stamp(Which::WithRoll);
    tell(&mut member, delegates[0].port(), &news(report_of(high[0], 1, &roll, [true; 3].into_iter())));
    tell(&mut member, delegates[0].port(), &cards(&roll, |_| String::new()));
    tell(&mut member, delegates[1].port(), &Message::Same { stamp: before });
    assert_eq!(member.people(SECOND).len(), 5);
    // Nor does one that told of another report of the same author.
    let other = report_of(high[1], 2, &Roll::default(), [].into_iter());
    let of_first = Heard { author: name_hash(&format!("n{}", high[0])), ..heard(&other) };
    let told = News { cell: other.cell, silent: false, heard: vec![of_first, heard(&other)], reports: vec![other] };
    tell(&mut member, delegates[1].port(), &Message::News { news: vec![told], ask: Vec::new() });
    assert_eq!(member.people(SECOND).len(), 5);
    let stamp = member.table.stamp(Which::WithRoll);
    tell(&mut member, delegates[2].port(), &Message::Same { stamp });
    assert_eq!(member.people(SECOND).len(), 8);
}

#[test]
fn a_name_reports_for_the_cells_that_it_was_in_last() {
    let mut reader = settled(of_half(false).next().unwrap());
    let author = settled(of_half(true).next().unwrap());
    let n = author.cfg.address.port();
    let mut say = |depth: u8, generation: u64| {
        let cell = CellId::of(author.entry.place, depth);
        let report =
            Report { cell, generation, seal: String::new(), ..report_of(n, 1, &Roll::default(), [].into_iter()) };
        tell(&mut reader, n, &news(report.sealed(&author.sealing)));
        let kept = reader.table.cells().map(|(cell, _)| cell);
        let kept = kept.filter(|cell| reader.table.own_report(*cell, author.entry.name_hash).is_some());
        (kept.map(CellId::depth).collect::<Vec<_>>(), reader.refused())
    };
    assert_eq!(say(1, 10), (vec![1], 0));
    assert_eq!(say(2, 10), (vec![1], 1), "in one life it is in one cell");
    assert_eq!(say(2, 20).0, [1, 2]);
    assert_eq!(say(3, 30).0, [1, 2, 3]);
    assert_eq!(say(5, 5), (vec![1, 2, 3], 2), "one of long ago");
    assert_eq!(say(4, 40).0, [2, 3, 4], "the oldest goes");
}

#[test]
fn a_roll_has_one_card_of_each_name() {
    let (mut reader, high) = (settled(of_half(false).next().unwrap()), of_half(true).next().unwrap());
    let mut author = settled(high);
    let first = author.own.clone();
    author.reseal();
    let roll = Roll::new([&first, &author.own].map(|sealed| Arc::new(Entry::new(sealed.card.clone()))).into());
    tell(&mut reader, high, &news(report_of(high, 1, &roll, [true; 2].into_iter())));
    let seals = HashMap::from([(first.card.serial, first.seal), (author.own.card.serial, author.own.seal.clone())]);
    tell(&mut reader, high, &cards(&roll, |card| seals[&card.serial].clone()));
    assert_eq!((names(&reader).len(), reader.refused()), (0, 1));
    assert_eq!(reader.table.stamp(Which::WithRoll), 0);
}

#[test]
fn a_cell_of_long_reports_does_not_keep_back_those_of_others() {
    let (low, high): (Vec<u16>, Vec<u16>) = (of_half(false).take(6).collect(), of_half(true).take(5).collect());
    let (roll, seals) = roll_of(&high);
    let mut reader = settled(low[5]);
    let long = |author: u16| {
        let jobs = (0..MAX_JOBS).map(|n| (format!("{n:064}"), Hosts::of((0..1_000).map(|_| true)))).collect();
        let report = Report { jobs, seal: String::new(), ..report_of(author, 1, &roll, [true; 5].into_iter()) };
        report.sealed(&settled(author).sealing)
    };
    for author in &high {
        tell(&mut reader, *author, &news(long(*author)));
    }
    tell(&mut reader, high[0], &cards(&roll, |card| seals[&card.name].clone()));
    let (own_roll, own_seals) = roll_of(&low[..5]);
    tell(&mut reader, low[0], &news(report_of(low[0], 1, &own_roll, [true; 5].into_iter())));
    tell(&mut reader, low[0], &cards(&own_roll, |card| own_seals[&card.name].clone()));
    let [first, last] = [settled(high[0]).cell(), settled(low[0]).cell()];
    let ask = [first, last].map(|cell| Known { cell, reports: Vec::new() });
    let (news, _) = reader.table.news_for(SECOND, &ask);
    assert_eq!(news.iter().map(|news| news.cell).collect::<Vec<_>>(), [first, last]);
    assert!(!news[0].reports.is_empty() && news[0].heard.len() == 5);
    assert!(encoded(&news).len() < crate::MAX_PAYLOAD_BYTES);
}

#[test]
fn what_a_later_version_says_besides_is_passed_on_under_its_seal() {
    let high: Vec<u16> = of_half(true).take(2).collect();
    let later = |n: u16| {
        let of = settled(n);
        SealedCard::new(Card { later: vec![7, 8, 9], ..of.own.card.clone() }, &of.sealing)
    };
    let sealed: Vec<SealedCard> = high.iter().map(|n| later(*n)).collect();
    let text = serde_json::to_string(&sealed[0]).unwrap();
    assert_eq!(serde_json::from_str::<SealedCard>(&text).unwrap(), sealed[0]);
    let roll = Roll::new(sealed.iter().map(|sealed| Arc::new(Entry::new(sealed.card.clone()))).collect());
    let said = report_of(high[0], 1, &roll, [true; 2].into_iter());
    let said = Report { later: vec![1], seal: String::new(), ..said }.sealed(&settled(high[0]).sealing);
    let mut reader = settled(of_half(false).next().unwrap());
    tell(&mut reader, high[0], &news(said.clone()));
    let seals: HashMap<&str, &str> = sealed.iter().map(|of| (of.card.name.as_str(), of.seal.as_str())).collect();
    // The message, too, may have more at its end.
    let message = cards(&roll, |card| seals[card.name.as_str()].to_owned());
    let longer = [wire::write(&message), vec![5; 40]].concat();
    reader.receive(SECOND, "n2", address(2), &longer);
    assert_eq!((names(&reader).len(), reader.refused()), (2, 0));
    let asked = vec![Known { cell: said.cell, reports: Vec::new() }];
    assert_eq!(reader.table.news_for(SECOND, &asked).0[0].reports, [said]);
    let kept = reader.table.roll(settled(high[0]).cell(), roll.id).expect("it is here");
    assert!(kept.entries.iter().all(|entry| entry.card.later == [7, 8, 9]));
    // Nobody else changes it.
    let forged = SealedCard { card: Card { later: vec![7], ..sealed[0].card.clone() }, seal: sealed[0].seal.clone() };
    assert!(!forged.is_good(&settled(high[0]).sealing));
}

#[test]
fn a_delegate_that_has_no_report_of_a_cell_does_not_keep_it_alive() {
    let low: Vec<u16> = of_half(false).take(6).collect();
    let mut net = Net::of(low.iter().copied());
    net.acquaint();
    let mut member =
        low.iter().find(|n| !net.node(**n).is_delegate()).map(|n| net.0.remove(&address(*n)).unwrap()).unwrap();
    let delegates: Vec<u16> = member.delegates.iter().map(|(_, address)| address.port()).collect();
    let high: Vec<u16> = of_half(true).take(3).collect();
    let (roll, _) = roll_of(&high);
    tell(&mut member, delegates[0], &news(report_of(high[0], 1, &roll, [true; 3].into_iter())));
    // The roll does not come: nobody vouches for the report.
    for second in 2..20 {
        let stamp = member.table.stamp(Which::WithRoll);
        let same = wire::write(&Message::Same { stamp });
        member.receive(second * SECOND, &format!("n{}", delegates[1]), address(delegates[1]), &same);
        member.tick(second * SECOND);
    }
    assert_eq!(member.table.cells().count(), 0, "it is silent and nobody is known of it");
}

/// Whom a node asks for which rolls.
fn asks(of: &mut Cells) -> Vec<(u16, u128)> {
    let asked = |output| match output {
        Output::Send { to, payload } => match wire::read(&payload) {
            Some(Message::Fetch { roll, .. }) => Some((to.port(), roll)),
            _ => None,
        },
        Output::Move { .. } => None,
    };
    std::iter::from_fn(|| of.poll()).filter_map(asked).collect()
}

#[test]
fn a_reporter_that_names_rolls_that_nobody_has_does_not_keep_back_those_of_others() {
    let mut high: Vec<u16> = of_half(true).take(3).collect();
    let cell = settled(high[0]).cell();
    high.sort_by_key(|n| std::cmp::Reverse(weight(cell, name_hash(&format!("n{n}")))));
    let (mut reader, (roll, seals)) = (settled(of_half(false).next().unwrap()), roll_of(&high));
    tell(&mut reader, high[1], &news(report_of(high[1], 1, &roll, [true; 3].into_iter())));
    tell(&mut reader, high[1], &cards(&roll, |card| seals[&card.name].clone()));
    assert_eq!((names(&reader).len(), asks(&mut reader).len()), (3, 1));
    // A member comes. Who weighs most names a further roll each time.
    let (roll, seals) = roll_of(&[&high[..], &[of_half(true).nth(3).unwrap()]].concat());
    let mut asked = Vec::new();
    for second in 2..12 {
        let none = Roll { entries: Vec::new(), id: second.into() };
        for (author, roll) in [(high[0], &none), (high[1], &roll)] {
            let said = news(report_of(author, second.into(), roll, [true; 4].into_iter()));
            reader.receive(second * SECOND, "n0", address(author), &wire::write(&said));
        }
        reader.tick(second * SECOND);
        asked.extend(asks(&mut reader));
    }
    assert!(asked.iter().take(5).any(|(_, of)| *of == roll.id), "{asked:?}");
    tell(&mut reader, high[1], &cards(&roll, |card| seals[&card.name].clone()));
    assert_eq!(names(&reader).len(), 4);
}

#[test]
fn what_more_reports_name_is_asked_for_first() {
    let mut high: Vec<u16> = of_half(true).take(3).collect();
    let cell = settled(high[0]).cell();
    high.sort_by_key(|n| std::cmp::Reverse(weight(cell, name_hash(&format!("n{n}")))));
    let (mut reader, (roll, _)) = (settled(of_half(false).next().unwrap()), roll_of(&high));
    let none = Roll { entries: Vec::new(), id: 7 };
    let reports = [(high[0], &none), (high[1], &roll), (high[2], &roll)]
        .map(|(author, roll)| report_of(author, 1, roll, [true; 3].into_iter()));
    let heard = reports.iter().map(heard).collect();
    let all = News { cell, silent: false, heard, reports: reports.into() };
    tell(&mut reader, high[0], &Message::News { news: vec![all], ask: Vec::new() });
    assert_eq!(asks(&mut reader).into_iter().map(|(_, of)| of).collect::<Vec<_>>(), [roll.id]);
}

#[test]
fn what_can_be_no_roll_is_asked_for_once() {
    let high: Vec<u16> = of_half(true).take(2).collect();
    let (mut reader, (roll, seals)) = (settled(of_half(false).next().unwrap()), roll_of(&high));
    // Its cards are there, but in another order.
    let mut entries = roll.entries.clone();
    entries.reverse();
    let id = Roll::id_of(entries.iter().map(|entry| entry.id));
    let turned = Roll { entries, id };
    for serial in 1..4 {
        tell(&mut reader, high[0], &news(report_of(high[0], serial.into(), &turned, [true; 2].into_iter())));
        tell(&mut reader, high[0], &cards(&turned, |card| seals[&card.name].clone()));
        reader.tick((1 + serial) * SECOND);
    }
    assert_eq!(asks(&mut reader), [(high[0], id)]);
    assert_eq!((names(&reader).len(), reader.refused()), (0, 1));
}

#[test]
fn cards_of_a_later_version_fit_into_a_message() {
    let n = of_half(true).next().unwrap();
    let mut own = settled(n);
    let (cell, mut outputs) = (own.cell(), Vec::new());
    let card = |n: u16| {
        let name = format!("n{n}");
        let later = vec![1; 1 << 10];
        Arc::new(Entry::new(Card { name, later, facts: "x".repeat(MAX_FACTS_BYTES), ..own.own.card.clone() }))
    };
    let roll = Roll::new(of_half(true).take(200).map(card).collect());
    let id = roll.id;
    own.table.say(SECOND, report_of(n, 1, &roll, [true; 200].into_iter()), Arc::new(roll));
    own.out.clear();
    tell(&mut own, 9_999, &Message::Fetch { cell, roll: id, have: Vec::new() });
    while let Some(output) = own.poll() {
        outputs.push(output);
    }
    let [Output::Send { payload, .. }] = &outputs[..] else { panic!("one answer") };
    assert!(payload.len() <= wire::FILL_BYTES + 64 && payload.len() > wire::FILL_BYTES / 2, "{}", payload.len());
}

#[test]
fn who_stood_still_tells_others_how_old_is_what_it_heard() {
    let high: Vec<u16> = of_half(true).take(3).collect();
    let (mut reader, (roll, seals)) = (settled(of_half(false).next().unwrap()), roll_of(&high));
    tell(&mut reader, high[0], &news(report_of(high[0], 1, &roll, [true; 3].into_iter())));
    tell(&mut reader, high[0], &cards(&roll, |card| seals[&card.name].clone()));
    reader.tick(2 * SECOND);
    reader.tick(20 * SECOND);
    let ask = [Known { cell: settled(high[0]).cell(), reports: Vec::new() }];
    let (told, _) = reader.table.news_for(20 * SECOND, &ask);
    assert_eq!((told[0].silent, told[0].heard[0].idle_ms), (false, 19_000));
    reader.table.pass(27 * SECOND, 3_600 * SECOND);
    assert!(reader.table.news_for(27 * SECOND, &ask).0[0].silent);
}

#[test]
fn a_report_that_nobody_else_has_does_not_keep_the_others_from_being_heard() {
    let high: Vec<u16> = of_half(true).take(2).collect();
    let (mut reader, (roll, seals)) = (settled(of_half(false).next().unwrap()), roll_of(&high));
    let reports = [high[0], high[1]].map(|of| report_of(of, 1, &roll, [true; 2].into_iter()));
    for report in &reports {
        tell(&mut reader, high[0], &news(report.clone()));
    }
    tell(&mut reader, high[0], &cards(&roll, |card| seals[&card.name].clone()));
    let cell = reports[0].cell;
    let now_of = |second: u32| heard_at(&reports[0], 2 * second);
    let hear = |reader: &mut Cells, second: u32, heard: Heard, silent: bool| {
        let known = News { cell, silent, heard: vec![heard], reports: Vec::new() };
        reader.table.take(second * SECOND, vec![known], None);
        reader.table.pass(second * SECOND, 3_600 * SECOND);
    };
    let known = |reader: &Cells, second: u32| {
        let (told, _) = reader.table.news_for(second * SECOND, &[Known { cell, reports: Vec::new() }]);
        (told[0].silent, told[0].heard.len())
    };
    // The first goes on, and is all that others know of the cell.
    (2..30).for_each(|second| hear(&mut reader, second, now_of(second), false));
    assert_eq!(known(&reader, 30), (false, 1));
    // What was heard of a report of another number says nothing of this one, nor what was heard long ago, or of a
    // cell that is silent there.
    (30..40).for_each(|second| hear(&mut reader, second, Heard { age: (0, 7), ..now_of(second) }, false));
    assert_eq!(known(&reader, 40), (true, 1));
    (40..44).for_each(|second| hear(&mut reader, second, Heard { idle_ms: 7_000, ..now_of(second) }, false));
    (44..48).for_each(|second| hear(&mut reader, second, now_of(second), true));
    assert_eq!(known(&reader, 48), (true, 1));
    // It is back after two.
    (48..50).for_each(|second| hear(&mut reader, second, now_of(second), false));
    assert_eq!(known(&reader, 50), (false, 1));
}

fn heard_at(report: &Report, beat: u32) -> Heard {
    Heard { beat, ..heard(report) }
}
