//! Whether the 99th percentile of a service's durations has grown over its own past: all rules of
//! that. Windows in, changes out; when windows are made, and of what, is the agent's affair.

use std::collections::VecDeque;

/// A window has at least so many requests: of fewer the slowest hundredth is less than five.
pub const LEAST_REQUESTS: i64 = 500;
/// It is as many looks long as it takes to have them, at most so many; a service with fewer requests
/// is not judged.
pub const MOST_LOOKS: u32 = 10;
/// The past: the median of the windows of so long is what a window is held against …
pub const PAST_NS: i64 = 24 * 3_600_000_000_000;
/// … where there are so many.
const LEAST_PAST: usize = 10;
/// It has grown from so many times that median on, where that is so much more …
const GROWN_TIMES: f64 = 3.0;
const GROWN_NS: i64 = 5_000_000;
/// … and is as before below so many times, or so little more (less than for growing, so that what is
/// near the bound is one finding) …
const OVER_TIMES: f64 = 2.0;
const OVER_NS: i64 = 2_500_000;
/// … each in so many windows in a row: a moment is neither.
const IN_A_ROW: usize = 2;
/// Without a window for so long nothing is known any more.
const SILENT_NS: i64 = 3_600_000_000_000;

/// Requests of a service in a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Window {
    /// They began from then on, Unix nanoseconds,
    pub since_ns: i64,
    /// up to then.
    pub until_ns: i64,
    /// How many.
    pub requests: i64,
    /// 99 % of them took no longer.
    pub p99_ns: i64,
}

/// A 99th percentile that has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// Since when, Unix nanoseconds.
    pub since_ns: i64,
    /// What it is held against: the median of the past.
    pub past_p99_ns: i64,
}

/// What a window changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It has grown.
    Grown(Grown),
    /// It is as before again.
    Over(Grown),
    /// It has been so for the length of the past, which it is from now on.
    Usual(Grown),
    /// There were too few requests for long.
    Silent(Grown),
}

/// What is known of a service.
#[derive(Debug, Default)]
pub struct History {
    /// Windows of the past, the oldest first. None is added while it is grown.
    past: VecDeque<Window>,
    /// The last windows, where these say otherwise than what stands.
    otherwise: Vec<Window>,
    grown: Option<Grown>,
    last_ns: i64,
}

impl History {
    /// From windows that were stored, in any order.
    #[must_use]
    pub fn stored(mut windows: Vec<Window>) -> Self {
        windows.sort_by_key(|window| window.until_ns);
        let last_ns = windows.last().map_or(0, |window| window.until_ns);
        Self { past: windows.into(), last_ns, ..Self::default() }
    }

    /// That it stood as grown when the agent ended: what came then is of no past.
    pub fn stands(&mut self, grown: Grown) {
        self.past.retain(|window| window.until_ns <= grown.since_ns);
        self.last_ns = self.last_ns.max(grown.since_ns);
        self.grown = Some(grown);
    }

    /// What stands.
    #[must_use]
    pub fn grown(&self) -> Option<Grown> {
        self.grown
    }

    /// The end of the last window, Unix nanoseconds.
    #[must_use]
    pub fn last_ns(&self) -> i64 {
        self.last_ns
    }

    /// Takes in the next window, of at least [`LEAST_REQUESTS`].
    pub fn judge(&mut self, window: Window) -> Option<Change> {
        self.last_ns = window.until_ns;
        match self.grown {
            Some(grown) => self.judge_grown(grown, window),
            None => self.judge_usual(window),
        }
    }

    fn judge_usual(&mut self, window: Window) -> Option<Change> {
        let from_ns = window.until_ns.saturating_sub(PAST_NS);
        while self.past.front().is_some_and(|window| window.until_ns < from_ns) {
            self.past.pop_front();
        }
        let past_p99_ns = self.median_ns().filter(|past_ns| is_more(window.p99_ns, *past_ns, GROWN_TIMES, GROWN_NS));
        let Some(past_p99_ns) = past_p99_ns else {
            // What was high for a moment only is of the past as well.
            self.past.extend(self.otherwise.drain(..));
            self.past.push_back(window);
            return None;
        };
        self.otherwise.push(window);
        if self.otherwise.len() < IN_A_ROW {
            return None;
        }
        let grown = Grown { since_ns: self.otherwise[0].since_ns, past_p99_ns };
        self.otherwise.clear();
        self.grown = Some(grown);
        Some(Change::Grown(grown))
    }

    fn judge_grown(&mut self, grown: Grown, window: Window) -> Option<Change> {
        if window.until_ns.saturating_sub(grown.since_ns) >= PAST_NS {
            *self = Self { last_ns: self.last_ns, ..Self::default() };
            self.past.push_back(window);
            return Some(Change::Usual(grown));
        }
        if is_more(window.p99_ns, grown.past_p99_ns, OVER_TIMES, OVER_NS) {
            self.otherwise.clear();
            return None;
        }
        self.otherwise.push(window);
        if self.otherwise.len() < IN_A_ROW {
            return None;
        }
        self.past.extend(self.otherwise.drain(..));
        self.grown = None;
        Some(Change::Over(grown))
    }

    /// That there was no window up to now: nothing stands any more after some time.
    pub fn silent(&mut self, now_ns: i64) -> Option<Change> {
        let grown = self.grown.filter(|_| now_ns.saturating_sub(self.last_ns) >= SILENT_NS)?;
        self.grown = None;
        self.otherwise.clear();
        Some(Change::Silent(grown))
    }

    /// Of the past; none of too little.
    fn median_ns(&self) -> Option<i64> {
        let mut all: Vec<i64> = self.past.iter().map(|window| window.p99_ns).collect();
        let middle = all.len().saturating_sub(1) / 2;
        (all.len() >= LEAST_PAST).then(|| *all.select_nth_unstable(middle).1)
    }
}

fn is_more(ns: i64, past_ns: i64, times: f64, more_ns: i64) -> bool {
    ns as f64 >= times * past_ns as f64 && ns.saturating_sub(past_ns) >= more_ns
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: i64 = 1_000_000;
    const MINUTE: i64 = 60_000 * MS;

    fn window(at: i64, p99_ms: i64) -> Window {
        let since_ns = at * MINUTE;
        Window { since_ns, until_ns: since_ns + MINUTE, requests: LEAST_REQUESTS, p99_ns: p99_ms * MS }
    }

    /// What the windows of these p99s change, minute after minute, each with its minute.
    fn changes(history: &mut History, from: i64, p99s_ms: &[i64]) -> Vec<(i64, Change)> {
        let windows = p99s_ms.iter().zip(from..).map(|(p99_ms, at)| window(at, *p99_ms));
        windows.filter_map(|of| Some((of.since_ns / MINUTE, history.judge(of)?))).collect()
    }

    #[test]
    fn what_grows_is_found_once_and_is_over_once() {
        let mut history = History::default();
        assert_eq!(changes(&mut history, 0, &[10; 20]), []);
        assert_eq!(changes(&mut history, 20, &[90, 10, 90, 29, 29]), [], "moments, and less than three times");
        let grown = Grown { since_ns: 25 * MINUTE, past_p99_ns: 10 * MS };
        assert_eq!(changes(&mut history, 25, &[90, 90, 90, 25, 10, 25]), [(26, Change::Grown(grown))]);
        assert_eq!(history.grown(), Some(grown));
        assert_eq!(changes(&mut history, 31, &[10, 12, 10]), [(32, Change::Over(grown))]);
        assert_eq!((history.grown(), history.last_ns()), (None, 34 * MINUTE));
    }

    #[test]
    fn without_a_past_and_below_some_milliseconds_nothing_grows() {
        let mut young = History::default();
        assert_eq!(changes(&mut young, 0, &[1, 1, 1, 900, 900, 900, 900]), []);
        let mut fast = History::default();
        assert_eq!(changes(&mut fast, 0, &[[1; 20], [5; 20]].concat()), []);
    }

    #[test]
    fn what_lasts_for_a_day_is_usual() {
        let mut history = History::default();
        let day = PAST_NS / MINUTE;
        let p99s: Vec<i64> = (0..20).map(|_| 10).chain((0..2 * day).map(|_| 90)).collect();
        let grown = Grown { since_ns: 20 * MINUTE, past_p99_ns: 10 * MS };
        let found = changes(&mut history, 0, &p99s);
        assert_eq!(found, [(21, Change::Grown(grown)), (19 + day, Change::Usual(grown))]);
        assert!(history.past.len() <= 1 + usize::try_from(day).unwrap(), "{}", history.past.len());
    }

    #[test]
    fn a_service_without_requests_is_grown_no_more() {
        let mut history = History::default();
        let found = changes(&mut history, 0, &[[10; 12], [90; 12]].concat());
        let [(13, Change::Grown(grown))] = found[..] else { panic!("{found:?}") };
        assert_eq!(history.silent(70 * MINUTE), None);
        assert_eq!(history.silent(90 * MINUTE), Some(Change::Silent(grown)));
        assert_eq!(history.silent(190 * MINUTE), None);
    }

    #[test]
    fn a_restarted_agent_goes_on() {
        let stored: Vec<Window> = (0..24).map(|hour| window(60 * hour, 10)).rev().collect();
        let mut history = History::stored(stored.clone());
        assert_eq!(changes(&mut history, 23 * 60 + 5, &[90, 90]).len(), 1);
        let grown = Grown { since_ns: 20 * 60 * MINUTE, past_p99_ns: 10 * MS };
        let mut history = History::stored(stored);
        history.stands(grown);
        assert_eq!(changes(&mut history, 23 * 60 + 5, &[90, 90, 90]), [], "it was written before");
        assert_eq!(changes(&mut history, 23 * 60 + 8, &[10, 10]), [(23 * 60 + 9, Change::Over(grown))]);
    }

    proptest! {
        /// Whatever comes, changes alternate, and a service within twice its median has none.
        #[test]
        fn changes_alternate(p99s_ms in prop::collection::vec(1_i64..1_000, 0..400), quiet in 20_i64..39) {
            let mut history = History::default();
            let mut stands = false;
            for (_, change) in changes(&mut history, 0, &p99s_ms) {
                prop_assert_eq!(stands, !matches!(change, Change::Grown(_)));
                stands = matches!(change, Change::Grown(_));
            }
            let even: Vec<i64> = p99s_ms.iter().map(|ms| 20 + ms % (quiet - 19)).collect();
            prop_assert_eq!(changes(&mut History::default(), 0, &even), []);
        }
    }
}
