//! How the time of a question is shared out: its nodes have less than all of it, so that what they
//! answered can still be merged when one of them stays silent to the end.

use std::time::{Duration, Instant};

use query_planner::Round;

/// Time kept back for the merge: a tenth of the question's, at most this much.
const MERGE_RESERVE_MAX: Duration = Duration::from_millis(250);

/// What a round has at least, where so much is left: the way to a node and back, a stale
/// connection's replacement included.
pub(super) const SHORTEST_ROUND: Duration = Duration::from_millis(50);

/// The time of one question.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundTime {
    /// When its nodes must be done, in the last round.
    until: Instant,
}

impl RoundTime {
    /// The time of a question that began at `started`.
    pub(super) fn of(started: Instant, deadline: Instant) -> Self {
        let reserve = (deadline.saturating_duration_since(started) / 10).min(MERGE_RESERVE_MAX);
        Self { until: deadline.checked_sub(reserve).unwrap_or(deadline) }
    }

    /// Until when the nodes of a round that begins at `now` may answer. Of two rounds each gets
    /// half of what is left, but not less than a node needs: the first must leave time for the
    /// second, and that for beginning again without a node that it lost. Where nobody will begin
    /// again, the second has all that is left.
    pub(super) fn round_ends(&self, now: Instant, round: Round, last_run: bool) -> Instant {
        let left = self.until.saturating_duration_since(now);
        match round {
            Round::Only | Round::Flowing => self.until,
            Round::Second if last_run => self.until.max(now),
            Round::First | Round::Second => now + (left / 2).max(SHORTEST_ROUND.min(left)),
        }
    }

    /// Whether time is left at `now` to begin again. However little it is, the nodes that answer in
    /// it make an answer.
    pub(super) fn may_restart(&self, now: Instant) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_leaves_time_for_what_comes_after() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let time = RoundTime::of(start, at(1_000));
        assert_eq!(time.until, at(900));
        assert_eq!(time.round_ends(at(100), Round::Only, false), at(900));
        assert_eq!(time.round_ends(start, Round::First, false), at(450));
        assert_eq!(time.round_ends(at(450), Round::Second, false), at(675));
        assert_eq!(time.round_ends(at(450), Round::Second, true), at(900));
        assert_eq!(time.round_ends(at(1_000), Round::Second, false), at(1_000));
    }

    #[test]
    fn no_round_is_too_short_to_answer_in() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let time = RoundTime::of(start, at(1_000));
        assert_eq!(time.round_ends(at(840), Round::First, false), at(890));
        assert_eq!(time.round_ends(at(880), Round::First, false), at(900));
        assert!(time.may_restart(at(899)) && !time.may_restart(at(900)));
    }
}
