//! Members that an earlier life of this node knew, until gossip reports them again.
//!
//! A node that has just started knows nobody. If it were asked then, its answer would cover itself
//! alone and report nobody missing. So it starts with the members it knew before: they are listed
//! at once, called where its seeds do not answer, and dead only after the silence that makes any
//! member dead.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::member::{Member, MemberState};

/// Members called at a time.
const AT_A_TIME: usize = 8;

/// Members that are remembered and not known otherwise.
#[derive(Default)]
pub(crate) struct Remembered {
    /// Until when they may be silent without counting as dead.
    patience_ends: Option<Instant>,
    /// Of each name the member and when it is forgotten.
    members: BTreeMap<String, (Member, Instant)>,
    /// Addresses of all of them, those long forgotten included.
    addresses: Vec<SocketAddr>,
    next: usize,
}

impl Remembered {
    /// `members` and how long each had been silent at `now`; the node's own earlier life is left
    /// out.
    pub(crate) fn new(
        members: &[(Member, Duration)],
        own: &str,
        patience: Duration,
        forget_after: Duration,
        now: Instant,
    ) -> Self {
        let others = || members.iter().filter(|(member, _)| member.name != own);
        let mut addresses: Vec<SocketAddr> = others().map(|(member, _)| member.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let listed = others().filter(|(_, silent)| *silent < forget_after).map(|(member, silent)| {
            let member = Member { state: MemberState::Unconfirmed, is_self: false, ..member.clone() };
            (member.name.clone(), (member, now + (forget_after - *silent)))
        });
        Self { patience_ends: Some(now + patience), members: listed.collect(), addresses, next: 0 }
    }

    /// Updates the list and returns whether it changed; `known` tells which names gossip reports.
    /// `excused`: missing heartbeats prove nothing now. `unsettled`: for so much longer they may be
    /// silent, since cells change; not for as long as cells do.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        excused: bool,
        unsettled: Option<Duration>,
        known: impl Fn(&str) -> bool,
    ) -> bool {
        if self.members.is_empty() {
            return false;
        }
        let before = self.members.len();
        self.members.retain(|name, (_, forgotten)| now < *forgotten && !known(name));
        let mut changed = self.members.len() != before;
        let more = unsettled.unwrap_or_default();
        if self.patience_ends.is_none_or(|ends| now >= ends + more) && !excused {
            for (member, _) in self.members.values_mut() {
                changed |= std::mem::replace(&mut member.state, MemberState::Dead) != MemberState::Dead;
            }
        }
        changed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values().map(|(member, _)| member)
    }

    /// Whom to call where no other member is live: some of them, others the next time.
    pub(crate) fn whom(&mut self) -> Vec<SocketAddr> {
        let count = self.addresses.len().min(AT_A_TIME);
        let whom = (0..count).map(|n| self.addresses[(self.next + n) % self.addresses.len()]).collect();
        self.next = (self.next + count).checked_rem(self.addresses.len()).unwrap_or(0);
        whom
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Seat;

    fn member(n: u16) -> Member {
        Member {
            name: format!("n{n}"),
            address: ([127, 0, 0, 1], n).into(),
            generation: 1,
            state: MemberState::Live,
            facts: std::sync::Arc::default(),
            is_self: n == 1,
            double: None,
            seat: Seat::default(),
        }
    }

    fn states(remembered: &Remembered) -> Vec<(&str, MemberState)> {
        remembered.members().map(|member| (&*member.name, member.state)).collect()
    }

    #[test]
    fn the_silent_come_to_be_dead_and_then_forgotten_and_the_known_are_gossips() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let before = [(member(1), second), (member(2), second), (member(3), 50 * second), (member(4), 3600 * second)];
        let mut remembered = Remembered::new(&before, "n1", 5 * second, 60 * second, start);
        let unconfirmed = |name| (name, MemberState::Unconfirmed);
        let dead = |name| (name, MemberState::Dead);
        assert_eq!(states(&remembered), [unconfirmed("n2"), unconfirmed("n3")]);
        assert!(!remembered.look(start + 4 * second, false, None, |_| false));
        assert!(!remembered.look(start + 6 * second, true, None, |_| false), "this node stood still");
        assert!(remembered.look(start + 7 * second, false, None, |_| false));
        assert_eq!(states(&remembered), [dead("n2"), dead("n3")]);
        assert!(!remembered.look(start + 8 * second, false, None, |_| false));
        assert!(remembered.look(start + 11 * second, false, None, |_| false));
        assert_eq!(states(&remembered), [dead("n2")]);
        assert!(remembered.look(start + 12 * second, false, None, |name| name == "n2"));
        assert!(remembered.is_empty());
    }

    #[test]
    fn while_cells_change_they_are_dead_later_but_not_never() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut remembered = Remembered::new(&[(member(2), second)], "n1", 5 * second, 600 * second, start);
        let unsettled = Some(30 * second);
        assert!(!remembered.look(start + 34 * second, false, unsettled, |_| false));
        assert!(remembered.look(start + 36 * second, false, unsettled, |_| false));
        assert_eq!(states(&remembered), [("n2", MemberState::Dead)]);
    }

    #[test]
    fn all_addresses_are_called_in_turn() {
        let before: Vec<_> = (1..=20).map(|n| (member(n), Duration::from_secs(99_999))).collect();
        let mut remembered =
            Remembered::new(&before, "n1", Duration::from_secs(5), Duration::from_secs(60), Instant::now());
        let mut called: Vec<u16> = (0..3).flat_map(|_| remembered.whom()).map(|address| address.port()).collect();
        assert_eq!(called.len(), 24);
        called.sort_unstable();
        called.dedup();
        assert_eq!(called, (2..=20).collect::<Vec<u16>>());
        let mut none = Remembered::new(&before[..1], "n1", Duration::ZERO, Duration::ZERO, Instant::now());
        assert!(none.whom().is_empty());
    }
}
