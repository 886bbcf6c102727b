//! One peer's clock over time: offset and drift within bounds, from pings taken now and then.
//!
//! Pure. Each ping shows that the offset at its time lay within an interval (by RFC 5905, see
//! `clock.rs`). Two pings bound the drift between them; all pings together, moved to one instant
//! with the drift's bounds, bound the offset there. Nothing is averaged: the result is what every
//! ping allows. Pings that contradict each other mean that a clock was stepped: the older ones are
//! forgotten.

use std::collections::VecDeque;

/// Pings kept.
const REMEMBERED: usize = 32;

/// How fast two clocks may drift apart before it was measured: 100 parts in a million, 50 for each.
const DRIFT_PPB: i64 = 100_000;

/// One ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    at_ns: i64,
    low_ns: i64,
    high_ns: i64,
}

/// The offset of a peer's clock at some instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// Peer's clock minus ours.
    pub offset_ns: i64,
    /// The true offset lies within this of it.
    pub bound_ns: i64,
    /// How fast it grows, parts in a billion.
    pub drift_ppb: i64,
    /// The true drift lies within this of it.
    pub drift_bound_ppb: i64,
}

/// Follows one peer's clock.
#[derive(Debug, Clone, Default)]
pub struct ClockTrack {
    seen: VecDeque<Seen>,
}

impl ClockTrack {
    /// Takes in a ping: at `at_ns` of our clock the peer's was ahead by `offset_ns`, give or take
    /// `bound_ns`.
    pub fn add(&mut self, at_ns: i64, offset_ns: i64, bound_ns: i64) {
        let ping =
            Seen { at_ns, low_ns: offset_ns.saturating_sub(bound_ns), high_ns: offset_ns.saturating_add(bound_ns) };
        if self.seen.back().is_some_and(|last| at_ns <= last.at_ns) {
            // Our own clock was set back.
            self.seen.clear();
        }
        self.seen.push_back(ping);
        if self.seen.len() > REMEMBERED {
            // Of the older half the one with the widest interval.
            let widest = (0..REMEMBERED / 2).max_by_key(|i| self.seen[*i].high_ns.saturating_sub(self.seen[*i].low_ns));
            self.seen.remove(widest.unwrap_or(0));
        }
        while self.seen.len() > 1 && self.at(at_ns).is_none() {
            self.seen.pop_front();
        }
    }

    /// The offset at an instant of our clock; none before the first ping.
    #[must_use]
    pub fn at(&self, now_ns: i64) -> Option<Estimate> {
        let (slowest, fastest) = self.drift()?;
        let (mut low, mut high) = (i128::MIN, i128::MAX);
        for ping in &self.seen {
            let later = i128::from(now_ns) - i128::from(ping.at_ns);
            let moved = [i128::from(slowest) * later / 1_000_000_000, i128::from(fastest) * later / 1_000_000_000];
            low = low.max(i128::from(ping.low_ns) + moved[0].min(moved[1]) - 1);
            high = high.min(i128::from(ping.high_ns) + moved[0].max(moved[1]) + 1);
        }
        if low > high {
            return None;
        }
        let narrow = |value: i128| i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX });
        Some(Estimate {
            offset_ns: narrow(low.midpoint(high)),
            bound_ns: narrow((high - low + 1) / 2),
            drift_ppb: slowest.midpoint(fastest),
            drift_bound_ppb: (fastest - slowest + 1) / 2,
        })
    }

    /// The slowest and the fastest drift that all pings allow, parts in a billion; none where they
    /// contradict each other (or there is none).
    fn drift(&self) -> Option<(i64, i64)> {
        if self.seen.is_empty() {
            return None;
        }
        let (mut slowest, mut fastest) = (i128::from(-DRIFT_PPB), i128::from(DRIFT_PPB));
        for (i, early) in self.seen.iter().enumerate() {
            for late in self.seen.range(i + 1..) {
                let apart = (i128::from(late.at_ns) - i128::from(early.at_ns)).max(1);
                let ppb = |rise: i128| rise * 1_000_000_000 / apart;
                slowest = slowest.max(ppb(i128::from(late.low_ns) - i128::from(early.high_ns)) - 1);
                fastest = fastest.min(ppb(i128::from(late.high_ns) - i128::from(early.low_ns)) + 1);
            }
        }
        (slowest <= fastest)
            .then(|| (i64::try_from(slowest).unwrap_or(-DRIFT_PPB), i64::try_from(fastest).unwrap_or(DRIFT_PPB)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: i64 = 1_000_000_000;

    proptest! {
        #[test]
        fn the_true_offset_and_drift_are_within_the_bounds(
            offset in -1_000_000_000_000i64..1_000_000_000_000,
            drift_ppb in -100_000i64..100_000,
            pings in proptest::collection::vec((1i64..5 * S, 0i64..10_000_000, -100i64..=100), 1..80),
            ahead in 0i64..5 * S,
        ) {
            let mut track = ClockTrack::default();
            let mut at = 1_700_000_000 * S;
            let start = at;
            let truth = |at: i64| offset + ((at - start) as i128 * drift_ppb as i128 / 1_000_000_000) as i64;
            for (pause, bound, wrong) in pings {
                at += pause;
                track.add(at, truth(at) + bound * wrong / 100, bound + 2);
            }
            let now = at + ahead;
            let found = track.at(now).expect("an estimate");
            prop_assert!((found.offset_ns - truth(now)).abs() <= found.bound_ns + 2, "{found:?} {}", truth(now));
            prop_assert!((found.drift_ppb - drift_ppb).abs() <= found.drift_bound_ppb + 2, "{found:?}");
        }

        #[test]
        fn absurd_pings_do_not_overflow(pings in proptest::collection::vec((any::<i64>(), any::<i64>(), 0i64..), 0..50), now in any::<i64>()) {
            let mut track = ClockTrack::default();
            for (at, offset, bound) in pings {
                track.add(at, offset, bound);
            }
            prop_assert!(track.at(now).is_none_or(|found| found.bound_ns >= 0));
        }
    }

    #[test]
    fn many_pings_know_more_than_the_best_one_alone() {
        let mut track = ClockTrack::default();
        for i in 0..30 {
            // 200 us of round trip, 20 ppm of drift.
            track.add(i * S, 5_000_000 + i * 20_000 + if i % 2 == 0 { 40_000 } else { -40_000 }, 100_000);
        }
        let found = track.at(30 * S).unwrap();
        assert!(found.bound_ns < 100_000, "{found:?}");
        assert!((found.offset_ns - 5_600_000).abs() <= found.bound_ns, "{found:?}");
        assert!(
            (found.drift_ppb - 20_000).abs() <= found.drift_bound_ppb && found.drift_bound_ppb < 5_000,
            "{found:?}"
        );
    }

    #[test]
    fn a_stepped_clock_is_followed_at_once() {
        let mut track = ClockTrack::default();
        for i in 0..20 {
            track.add(i * S, 1_000, 100_000);
        }
        track.add(20 * S, 70 * S, 100_000);
        let found = track.at(20 * S).unwrap();
        assert!((found.offset_ns - 70 * S).abs() <= 100_000, "{found:?}");
        // Our clock was set back.
        track.add(5 * S, -3, 50);
        assert!(track.at(5 * S).unwrap().offset_ns.abs() < 60);
    }
}
