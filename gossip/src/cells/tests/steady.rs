//! Whom authors of reports can call dead.

use super::*;
use crate::cells::known::{Ballot, Which, count_votes};
use crate::cells::wire::{Heard, News};

#[test]
fn it_takes_two_steady_authors_of_three_to_call_a_member_dead() {
    let high: Vec<u16> = of_half(true).take(3).collect();
    let (roll, _) = roll_of(&high);
    // Whether each author is steady, and says that the first member lives.
    let state = |says: [(bool, bool); 3]| {
        let report =
            |(author, (_, lives)): (&u16, (bool, bool))| report_of(*author, 1, &roll, [lives, true, true].into_iter());
        let reports: Vec<Report> = high.iter().zip(says).map(report).collect();
        let ballot = |(report, (steady, _))| Ballot { roll: &roll, report, steady };
        let ballots: Vec<Ballot<'_>> = reports.iter().zip(says).map(ballot).collect();
        count_votes(&ballots)[0].1
    };
    assert_eq!(state([(true, false), (true, false), (false, true)]), MemberState::Dead);
    assert_eq!(state([(true, false), (false, false), (false, false)]), MemberState::Unconfirmed);
    assert_eq!(state([(false, false), (false, false), (true, true)]), MemberState::Unconfirmed);
    assert_eq!(state([(true, false), (false, true), (false, true)]), MemberState::Live);
}

/// A message of this delegate's at a time.
fn say(to: &mut Cells, now: Duration, from: u16, message: &Message) {
    to.receive(now, &format!("n{from}"), address(from), &wire::write(message));
}

#[test]
fn a_member_asks_a_delegate_that_it_hears_for_long_whether_an_author_had_a_gap() {
    let low: Vec<u16> = of_half(false).take(6).collect();
    let mut net = Net::of(low.iter().copied());
    net.acquaint();
    let is_member = |n: &&u16| !net.0[&address(**n)].is_delegate();
    let n = *low.iter().find(is_member).unwrap();
    let mut member = net.0.remove(&address(n)).unwrap();
    let delegates: Vec<u16> = member.delegates.iter().map(|(_, address)| address.port()).collect();
    let high: Vec<u16> = of_half(true).take(3).collect();
    let (roll, _) = roll_of(&high);
    let cell = settled(high[0]).cell();
    // Two of them say that all live, and go on saying so.
    let report = |serial, lives| report_of(high[0], serial, &roll, [true, true, lives].into_iter());
    say(&mut member, SECOND, delegates[0], &news(report(1, true)));
    say(&mut member, SECOND, delegates[0], &cards(&roll, |_| String::new()));
    for second in (1..=20).step_by(3) {
        let stamp = member.table.stamp(Which::WithRoll);
        for delegate in &delegates[..2] {
            say(&mut member, second * SECOND, *delegate, &Message::Same { stamp });
        }
    }
    let now = 20 * SECOND;
    let state = |member: &Cells| {
        let name = format!("n{}", high[2]);
        member.people(now).into_iter().find(|person| person.card().name == name).map(|person| person.state)
    };
    assert_eq!(state(&member), Some(MemberState::Live));
    // One says that a member is dead by an author that had a gap.
    let told = |steady_ms, reports: Vec<Report>| {
        let heard = Heard { steady_ms, ..heard(&report(2, false)) };
        Message::News { news: vec![News { cell, silent: false, heard: vec![heard], reports }], ask: Vec::new() }
    };
    say(&mut member, now, delegates[0], &told(500, vec![report(2, false)]));
    assert_eq!(state(&member), Some(MemberState::Unconfirmed));
    // The other one has nothing new, and is asked, once.
    member.out.clear();
    let stamp = member.table.stamp(Which::WithRoll);
    let asks = |member: &mut Cells| {
        say(member, now, delegates[1], &Message::Same { stamp });
        let sent = std::iter::from_fn(|| member.poll());
        let is_differ = |output: &Output| match output {
            Output::Send { payload, .. } => matches!(wire::read(payload), Some(Message::Differ(_))),
            Output::Move { .. } => false,
        };
        sent.filter(is_differ).count()
    };
    assert_eq!(asks(&mut member), 1);
    let version = member.version();
    say(&mut member, now, delegates[1], &told(60_000, Vec::new()));
    assert_eq!((state(&member), asks(&mut member)), (Some(MemberState::Dead), 0));
    assert!(member.version() > version);
    // It stays dead where the word of its authors counts for less.
    say(&mut member, now, delegates[0], &told(0, Vec::new()));
    member.set_role(now);
    assert_eq!(state(&member), Some(MemberState::Dead));
}
