//! Owns the time by which rows are judged to be old: the wall clock's, which takes a step only once
//! it has stayed there. A clock that is set forward for a moment makes no row old. Does not own what
//! follows from age (`retention`), nor the clocks themselves.

/// What a clock may be set by at once without being doubted, nanoseconds.
const SLACK_NS: i64 = 5_000_000_000;
/// How long the wall clock must stay where it has stepped to, nanoseconds.
const STAY_NS: i64 = 3_600_000_000_000;

/// A clock that follows the wall clock, and its steps with patience.
#[derive(Debug, Clone)]
pub(crate) struct AgeClock {
    /// This clock's time less that of the clock that is never stepped.
    offset_ns: i64,
    /// Another offset that the wall clock has now, and since when by the clock that is never
    /// stepped.
    stepped: Option<(i64, i64)>,
}

impl AgeClock {
    /// At the wall clock's time, or at the last time at which somebody recorded into the store by
    /// this clock: where that was long ago, the wall clock has stepped.
    pub(crate) fn begin(last_ns: Option<i64>, wall_ns: i64, steady_ns: i64) -> Self {
        let begin_ns = last_ns.map_or(wall_ns, |last| last.min(wall_ns));
        let mut clock = Self { offset_ns: begin_ns.saturating_sub(steady_ns), stepped: None };
        clock.now(wall_ns, steady_ns);
        clock
    }

    /// This clock's time, Unix nanoseconds. `steady_ns` is of a clock that is never stepped.
    pub(crate) fn now(&mut self, wall_ns: i64, steady_ns: i64) -> i64 {
        let seen_ns = wall_ns.saturating_sub(steady_ns);
        let is_near = |offset_ns: i64| seen_ns.saturating_sub(offset_ns).saturating_abs() <= SLACK_NS;
        self.stepped = match self.stepped {
            _ if is_near(self.offset_ns) => {
                self.offset_ns = seen_ns;
                None
            }
            Some((offset_ns, since_ns)) if is_near(offset_ns) => {
                if steady_ns.saturating_sub(since_ns) >= STAY_NS {
                    self.offset_ns = seen_ns;
                    None
                } else {
                    Some((seen_ns, since_ns))
                }
            }
            _ => Some((seen_ns, steady_ns)),
        };
        steady_ns.saturating_add(self.offset_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;
    const DAY: i64 = 86_400 * S;
    const START: i64 = 20_000 * DAY;

    #[test]
    fn a_clock_set_forward_for_a_moment_makes_nothing_old() {
        let mut clock = AgeClock::begin(None, START, 0);
        let ahead = |at: i64| if (100..118).contains(&at) { 400 * DAY } else { 0 };
        for at in 0..300 {
            assert_eq!(clock.now(START + at * S + ahead(at), at * S), START + at * S, "after {at} s");
        }
    }

    #[test]
    fn a_step_that_stays_is_taken_after_an_hour_either_way() {
        for step in [400 * DAY, -400 * DAY, 60 * S] {
            let mut clock = AgeClock::begin(None, START, 0);
            let now = |clock: &mut AgeClock, at: i64| clock.now(START + at * S + step, at * S) - START - at * S;
            assert_eq!((now(&mut clock, 1), now(&mut clock, 3_600), now(&mut clock, 3_601)), (0, 0, step));
        }
    }

    #[test]
    fn slow_corrections_are_followed_at_once() {
        let mut clock = AgeClock::begin(None, START, 0);
        for at in 1..1_000 {
            assert_eq!(clock.now(START + at * 2 * S, at * S), START + at * 2 * S);
        }
    }

    /// The clock is ahead while the agent starts; it was not when the agent before wrote.
    #[test]
    fn a_start_while_the_clock_is_ahead_makes_nothing_old() {
        let mut clock = AgeClock::begin(Some(START - 10 * S), START + 400 * DAY, 0);
        assert_eq!(clock.now(START + 400 * DAY + S, S), START - 9 * S);
        assert_eq!(clock.now(START + 18 * S, 18 * S), START + 8 * S);
        // A last time of the future is no reason to be ahead.
        assert_eq!(AgeClock::begin(Some(START + DAY), START, 0).now(START + S, S), START + S);
    }
}
