//! What one key, one name or one cell can take of what all share.

use super::*;
use crate::cells::known::Which;
use crate::cells::wire::{Known, News};

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
    member.look(delegates[1]);
    tell(&mut member, delegates[0].port(), &news(report_of(high[0], 1, &roll, [true; 3].into_iter())));
    tell(&mut member, delegates[0].port(), &cards(&roll, |_| String::new()));
    tell(&mut member, delegates[1].port(), &Message::Same);
    assert_eq!(member.people(SECOND).len(), 5);
    // Nor does one that told of another report of the same author.
    let other = report_of(high[1], 2, &Roll::default(), [].into_iter());
    let authors = vec![(name_hash(&format!("n{}", high[0])), 0, 0), (other.author_hash(), 0, 0)];
    let told = News { cell: other.cell, silent: false, authors, reports: vec![other] };
    tell(&mut member, delegates[1].port(), &Message::News { news: vec![told], ask: Vec::new() });
    assert_eq!(member.people(SECOND).len(), 5);
    member.look(delegates[2]);
    tell(&mut member, delegates[2].port(), &Message::Same);
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
    assert!(!news[0].reports.is_empty() && news[0].authors.len() == 5);
    assert!(encoded(&news).len() < crate::MAX_PAYLOAD_BYTES);
}
