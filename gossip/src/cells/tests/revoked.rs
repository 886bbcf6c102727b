//! Who is revoked, in other cells than its own.

use std::sync::Mutex;

use super::*;
use crate::cells::known::Which;

/// Seals of whom a trust list may revoke.
struct Revoking(Named, Arc<Mutex<Vec<String>>>);

impl Sealer for Revoking {
    fn seal(&self, statement: &[u8]) -> Result<String, String> {
        self.0.seal(statement)
    }

    fn check(&self, node: &str, statement: &[u8], seal: &str) -> Result<(), String> {
        let revoked = self.1.lock().unwrap();
        if revoked.iter().any(|name| name == node) {
            Err("revoked".into())
        } else {
            self.0.check(node, statement, seal)
        }
    }

    fn epoch(&self) -> u64 {
        self.1.lock().unwrap().len() as u64
    }

    fn shuts_out(&self, node: &str) -> bool {
        self.1.lock().unwrap().iter().any(|name| name == node)
    }
}

/// A node in its half of the line that judges by this list.
fn settled_with(n: u16, revoked: &Arc<Mutex<Vec<String>>>) -> Cells {
    let sealer = Revoking(Named(format!("n{n}")), Arc::clone(revoked));
    let mut reader = Cells::new(node(n).cfg, Some(Arc::new(sealer)), Arc::default(), Duration::ZERO);
    reader.go(CellId::of(reader.entry.place, 1), Vec::new(), Duration::ZERO);
    reader.people.came = None;
    reader.set_role(Duration::ZERO);
    reader
}

#[test]
fn a_delegate_that_is_revoked_does_not_keep_itself_in_other_cells() {
    let (n, high): (u16, Vec<u16>) = (of_half(false).next().unwrap(), of_half(true).take(3).collect());
    let revoked: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut reader = settled_with(n, &revoked);
    let (roll, seals) = roll_of(&high);
    for author in &high {
        tell(&mut reader, *author, &news(report_of(*author, 1, &roll, [true; 3].into_iter())));
    }
    tell(&mut reader, high[0], &cards(&roll, |card| seals[&card.name].clone()));
    assert_eq!(names(&reader).len(), 3);
    // Its mates list it no more, at once; it itself goes on to say that it is there.
    revoked.lock().unwrap().push(format!("n{}", high[2]));
    let (rest, _) = roll_of(&high[..2]);
    for author in &high[..2] {
        tell(&mut reader, *author, &news(report_of(*author, 2, &rest, [true; 2].into_iter())));
    }
    tell(&mut reader, high[0], &cards(&rest, |card| seals[&card.name].clone()));
    reader.tick(2 * SECOND);
    assert_eq!(names(&reader).len(), 2);
    tell(&mut reader, high[2], &news(report_of(high[2], 9, &roll, [true; 3].into_iter())));
    assert_eq!(names(&reader).len(), 2, "nor does it come back");
}

#[test]
fn a_cell_whose_reporters_are_all_revoked_does_not_live_on_for_ordinary_members() {
    let low: Vec<u16> = of_half(false).take(6).collect();
    let mut net = Net::of(low.iter().copied());
    net.acquaint();
    let n = *low.iter().find(|n| !net.node(**n).is_delegate()).unwrap();
    let revoked: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut member = settled_with(n, &revoked);
    member.set_mates(net.node(n).people.mates.clone(), SECOND);
    assert!(!member.is_delegate());
    let delegates: Vec<u16> = member.delegates.iter().map(|(_, address)| address.port()).collect();
    let high: Vec<u16> = of_half(true).take(3).collect();
    let (roll, _) = roll_of(&high);
    tell(&mut member, delegates[0], &news(report_of(high[0], 1, &roll, [true; 3].into_iter())));
    tell(&mut member, delegates[0], &cards(&roll, |_| String::new()));
    let stamp = member.table.stamp(Which::WithRoll);
    tell(&mut member, delegates[1], &Message::Same { stamp });
    let states = |member: &Cells, at: Duration| -> Vec<MemberState> {
        let people = member.people(at);
        let of_them = people.iter().filter(|person| high.iter().any(|n| person.card().name == format!("n{n}")));
        of_them.map(|person| person.state).collect()
    };
    assert_eq!(states(&member, SECOND), [MemberState::Live; 3]);
    revoked.lock().unwrap().push(format!("n{}", high[0]));
    let version = member.version();
    member.tick(2 * SECOND);
    assert!(member.version() > version && member.table.beats().is_empty());
    let stamp = member.table.stamp(Which::WithRoll);
    tell(&mut member, delegates[1], &Message::Same { stamp });
    assert_eq!(states(&member, 2 * SECOND), [MemberState::Unconfirmed; 2], "others may speak for it");
    assert_eq!(states(&member, 12 * SECOND), [MemberState::Dead; 2]);
}

#[test]
fn whom_a_cell_has_not_heard_to_be_revoked_is_listed_by_nobody_who_has() {
    let revoked: Arc<Mutex<Vec<String>>> = Arc::default();
    let (n, high): (u16, Vec<u16>) = (of_half(false).next().unwrap(), of_half(true).take(3).collect());
    let mut reader = settled_with(n, &revoked);
    let (roll, seals) = roll_of(&high);
    let all = |serial| news_of(high[..2].iter().map(|n| report_of(*n, serial, &roll, [true; 3].into_iter())).collect());
    tell(&mut reader, high[0], &all(1));
    tell(&mut reader, high[0], &cards(&roll, |card| seals[&card.name].clone()));
    assert_eq!(names(&reader).len(), 3);
    let (version, outcast) = (reader.version(), format!("n{}", high[2]));
    revoked.lock().unwrap().push(outcast.clone());
    // Its cell goes on to say that it lives, in reports of those who are good.
    tell(&mut reader, high[0], &all(2));
    reader.tick(2 * SECOND);
    assert!(reader.version() > version, "the list is made anew");
    assert!(names(&reader).len() == 2 && !names(&reader).contains(&outcast), "{:?}", names(&reader));
    // It has a certificate again.
    revoked.lock().unwrap().clear();
    reader.tick(3 * SECOND);
    assert_eq!(names(&reader).len(), 3);
}
