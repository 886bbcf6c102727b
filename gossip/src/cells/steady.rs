//! Since when the authors of reports are heard without a gap.
//!
//! Who comes back from the other side of a partition calls those dead that were on this one. So it
//! takes authors that were heard all the time to call somebody dead; see `ALGORITHM.md`.

use std::time::Duration;

/// How this node knows cells: by itself, or by so many delegates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Delegate,
    Member,
}

/// Rounds without a word after which there was a gap: for a delegate, which hears of every author in
/// each round, and for another member, which asks each of its delegates every six, and once more
/// where one does not answer.
const MAX_GAP: u32 = 6;
const MEMBERS_MAX_GAP: u32 = 10;

/// The longest time between two words that is no gap.
pub(crate) fn max_gap(role: Role, round: Duration) -> Duration {
    let rounds = if role == Role::Delegate { MAX_GAP } else { MEMBERS_MAX_GAP };
    rounds * round
}

/// How an author is heard.
#[derive(Debug, Clone)]
pub(crate) struct Steady {
    since: Duration,
    /// Since when by what delegates of this member's say, which are heard without a gap themselves.
    claims: Vec<(u64, Duration)>,
}

impl Steady {
    pub(crate) fn since(since: Duration) -> Self {
        Self { since, claims: Vec::new() }
    }

    /// Since when it is heard without a gap.
    pub(crate) fn began(&self) -> Duration {
        self.since
    }

    /// Whether this delegate has said since when.
    pub(crate) fn is_claimed_by(&self, delegate: u64) -> bool {
        self.claims.iter().any(|(of, _)| *of == delegate)
    }

    /// A delegate of this member's says since when, with the author's last report. The longest counts
    /// of those that are heard without a gap: what such a one has heard has reached this node's side.
    pub(crate) fn claim(&mut self, delegate: u64, since: Duration, voices: &Voices) {
        self.claims.retain(|(of, _)| *of != delegate && voices.has(*of));
        self.claims.push((delegate, since));
        self.since = self.claims.iter().map(|(_, since)| *since).min().unwrap_or(since);
    }
}

/// A delegate of this member's.
#[derive(Debug)]
struct Voice {
    delegate: u64,
    heard: Duration,
    since: Duration,
}

/// The delegates of this member's that it hears without a gap.
#[derive(Debug, Default)]
pub(crate) struct Voices(Vec<Voice>);

impl Voices {
    /// One says something.
    pub(crate) fn hear(&mut self, delegate: u64, now: Duration, round: Duration) {
        self.0.retain(|voice| now <= voice.heard + max_gap(Role::Member, round));
        match self.0.iter_mut().find(|voice| voice.delegate == delegate) {
            Some(voice) => voice.heard = now,
            None => self.0.push(Voice { delegate, heard: now, since: now }),
        }
    }

    /// Since when one is heard.
    pub(crate) fn since(&self, delegate: u64) -> Option<Duration> {
        self.0.iter().find(|voice| voice.delegate == delegate).map(|voice| voice.since)
    }

    fn has(&self, delegate: u64) -> bool {
        self.since(delegate).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_claim_counts_of_the_delegates_that_are_heard() {
        let (round, second) = (Duration::from_millis(500), Duration::from_secs(1));
        let mut voices = Voices::default();
        [1, 2].into_iter().for_each(|delegate| voices.hear(delegate, second, round));
        let mut steady = Steady::since(second);
        steady.claim(1, 20 * second, &voices);
        steady.claim(2, 10 * second, &voices);
        assert_eq!(steady.began(), 10 * second);
        steady.claim(1, 30 * second, &voices);
        assert_eq!(steady.began(), 10 * second, "the second one still says so");
        // It is not heard any more.
        voices.hear(1, 5 * second, round);
        voices.hear(1, 8 * second, round);
        assert_eq!((voices.since(1), voices.since(2)), (Some(second), None));
        steady.claim(1, 40 * second, &voices);
        assert_eq!(steady.began(), 40 * second);
        voices.hear(2, 9 * second, round);
        assert_eq!(voices.since(2), Some(9 * second), "after a gap it is somebody new");
    }
}
