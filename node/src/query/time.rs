//! How the time of a question is shared out: its nodes have less than all of it, so that what they answered can still be
//! merged when one of them stays silent to the end.

use std::time::{Duration, Instant};

use query_planner::Plan;

/// Time kept back for the merge: a tenth of the question's, at most this much.
const MERGE_RESERVE_MAX: Duration = Duration::from_millis(250);

/// The time of one question.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundTime {
    /// When its nodes must be done, in the last round.
    until: Instant,
    /// Whether it may ask its nodes twice.
    two_rounds: bool,
}

impl RoundTime {
    /// The time of a question that began at `started`.
    pub(super) fn of(plan: &Plan, started: Instant, deadline: Instant) -> Self {
        let reserve = (deadline.saturating_duration_since(started) / 10).min(MERGE_RESERVE_MAX);
        Self { until: deadline.checked_sub(reserve).unwrap_or(deadline), two_rounds: !plan.reductions.is_empty() }
    }

    /// Until when the nodes of a round that begins at `now` may answer. Of two rounds each gets half of what is left:
    /// the first must leave time for the second, and that for beginning again without a node that it lost.
    pub(super) fn round_ends(&self, now: Instant) -> Instant {
        if self.two_rounds { now + self.until.saturating_duration_since(now) / 2 } else { self.until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_leaves_time_for_what_comes_after() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let one = RoundTime { until: at(900), two_rounds: false };
        assert_eq!(one.round_ends(at(100)), at(900));
        let two = RoundTime { two_rounds: true, ..one };
        assert_eq!(two.round_ends(start), at(450));
        assert_eq!(two.round_ends(at(450)), at(675));
        assert_eq!(two.round_ends(at(1_000)), at(1_000));
    }
}
