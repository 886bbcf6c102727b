//! The first moments of a mesh whose nodes all start at the same time, each with the addresses of
//! the others.
//!
//! A peer counts as live once its heartbeat was seen to move twice. At the usual pace, a round
//! every half second, that takes three rounds, and more in a mesh of some dozens of nodes. So for a
//! short while calls go out every eighth of a round, until as many members are live as are
//! expected. The allowance of digest bytes ([`crate::pace`]) applies to them, too. Owned here: when
//! to call and whom. The driver calls.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::member::Member;

/// Times that calls go out in a round.
const CALLS_A_ROUND: u32 = 8;
/// Members called each time.
const AT_A_TIME: usize = 3;
/// The meeting ends after this many rounds; who is still missing is called as absent seeds always
/// are.
const ROUNDS: u32 = 8;

/// A mesh whose members are finding each other.
pub(crate) struct Meeting {
    expected: usize,
    until: Instant,
    tick: Interval,
    /// Position in the list of those that could be called; it goes round.
    next: usize,
}

impl Meeting {
    pub(crate) fn new(expected: usize, round: Duration) -> Self {
        let mut tick = tokio::time::interval((round / CALLS_A_ROUND).max(Duration::from_millis(1)));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { expected, until: Instant::now() + round * ROUNDS, tick, next: 0 }
    }

    /// The next time to call; never when there is no meeting.
    pub(crate) async fn next(meeting: &mut Option<Self>) {
        match meeting {
            Some(meeting) => {
                meeting.tick.tick().await;
            }
            None => std::future::pending().await,
        }
    }

    /// Whom to call now: seeds that are not there first, then members in turn. `None`: the meeting
    /// is over.
    pub(crate) fn whom(&mut self, members: &[Member], seeds: &[SocketAddr]) -> Option<Vec<SocketAddr>> {
        let live: Vec<&Member> = members.iter().filter(|member| member.is_live()).collect();
        if live.len() >= self.expected || Instant::now() >= self.until {
            return None;
        }
        let there: HashSet<SocketAddr> = live.iter().map(|member| member.address).collect();
        let absent: Vec<SocketAddr> = seeds.iter().filter(|seed| !there.contains(seed)).copied().collect();
        let others: Vec<SocketAddr> =
            live.iter().filter(|member| !member.is_self).map(|member| member.address).collect();
        let from = if absent.is_empty() { others } else { absent };
        let next = self.next;
        self.next = self.next.wrapping_add(AT_A_TIME);
        let called =
            (0..AT_A_TIME.min(from.len())).filter_map(|n| from.get(next.wrapping_add(n) % from.len()).copied());
        Some(called.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::{MemberState, test_member as member};

    #[tokio::test]
    async fn absent_seeds_are_called_in_turn_then_members_until_all_expected_live() {
        let mut meeting = Meeting::new(4, Duration::from_secs(500));
        let seeds: Vec<SocketAddr> = (2..=6).map(|n| ([127, 0, 0, 1], n).into()).collect();
        let mut members = vec![member(1, MemberState::Live), member(2, MemberState::Dead)];
        let called: HashSet<_> = (0..5).flat_map(|_| meeting.whom(&members, &seeds).unwrap()).collect();
        assert_eq!(called.len(), seeds.len(), "each in its turn: {called:?}");
        members.extend([member(3, MemberState::Live), member(4, MemberState::Live)]);
        let whom = meeting.whom(&members, &seeds[1..3]).unwrap();
        assert!(whom.iter().all(|to| seeds[1..3].contains(to)), "seeds are there, members are called: {whom:?}");
        members.push(member(5, MemberState::Live));
        assert!(meeting.whom(&members, &seeds).is_none(), "four live");
    }

    #[tokio::test]
    async fn a_meeting_ends_though_some_never_come() {
        let (round, before) = (Duration::from_secs(3600), Instant::now());
        let mut meeting = Some(Meeting::new(2, round));
        let lasts = meeting.as_ref().unwrap().until - ROUNDS * round;
        assert!((before..=Instant::now()).contains(&lasts), "it ends after so many rounds");
        let (alone, seeds) = ([member(1, MemberState::Live)], [([127, 0, 0, 1], 2).into()]);
        Meeting::next(&mut meeting).await;
        let meeting = meeting.as_mut().unwrap();
        for _ in 0..ROUNDS * CALLS_A_ROUND {
            assert_eq!(meeting.whom(&alone, &seeds).unwrap(), seeds);
        }
        meeting.until = Instant::now();
        assert!(meeting.whom(&alone, &seeds).is_none());
    }
}
