//! Whether the 99th percentile of a service's durations has grown over its own past: all rules of
//! that. Windows in, changes out; when windows are made, and of what, is the agent's affair. Times are
//! of a steady clock.

use std::collections::VecDeque;

use super::Durations;

/// A window has at least so many answered requests: of fewer the slowest hundredth is less than five.
pub const LEAST_REQUESTS: u64 = 500;
/// The past: what was in so long …
pub const PAST_NS: i64 = 24 * 3_600_000_000_000;
/// … put together by slots of so long, each of which has the same weight, …
const SLOT_NS: i64 = 1_800_000_000_000;
/// … where there are so many windows.
const LEAST_PAST: usize = 10;
/// The percentile, and the share of requests beyond it.
const P99: f64 = 0.99;
const SLOWEST: f64 = 0.01;
/// A window is high where its 99th percentile is so many times that of the past, and so much more …
const GROWN_TIMES: f64 = 3.0;
const GROWN_NS: i64 = 5_000_000;
/// … and so slow requests are so many times as frequent as in the past …
const GROWN_OFTEN: f64 = 2.0;
/// … and it has grown where so many windows in a row are high (a moment is none) …
const GROWN_ROW: usize = 2;
/// … of which all together have a chance below one in a million, were requests as in the past …
const LEAST_EVIDENCE: f64 = 13.8;
/// … and it was not found over so shortly before.
const HOLD_OFF_NS: i64 = 1_800_000_000_000;
/// A window is as before below this (less than for growing, so that what is near the bound is one
/// finding) …
const OVER_TIMES: f64 = 2.0;
const OVER_NS: i64 = 2_500_000;
const OVER_OFTEN: f64 = 1.5;
/// … and it is over after so many in a row, in which those that were so slow would have ended, too.
const OVER_ROW: usize = 3;
const OVER_LONGEST: i64 = 2;
/// A window does not say that it is as before where so many times as many requests fail as in the past:
/// what fails is soon done.
const FAILED_OFTEN: f64 = 2.0;
/// Windows with so long between them are not in a row.
const GAP_NS: i64 = 900_000_000_000;
/// Without a window for so long nothing is known any more.
const SILENT_NS: i64 = 3_600_000_000_000;

/// Requests of a service that ended in a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Window {
    /// From then on, nanoseconds,
    pub since_ns: i64,
    /// up to then.
    pub until_ns: i64,
    /// Of those that were answered.
    pub durations: Durations,
    /// All, also those that were not answered.
    pub requests: u64,
    /// Of these failed: status from 500 on, gRPC's not 0, reset, or not answered.
    pub failed: u64,
}

impl Window {
    /// 99 % of the answered ones took no longer.
    #[must_use]
    pub fn p99_ns(&self) -> i64 {
        self.durations.quantile(P99)
    }
}

/// A 99th percentile that has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// Since when, nanoseconds.
    pub since_ns: i64,
    /// What it is held against: the median of the past.
    pub past_p99_ns: i64,
    /// How long that past is, nanoseconds.
    pub past_ns: i64,
}

impl Grown {
    /// The same on a clock that is so far ahead.
    #[must_use]
    pub fn after_ns(self, ahead_ns: i64) -> Self {
        Self { since_ns: self.since_ns.saturating_add(ahead_ns), ..self }
    }
}

/// What a window changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It has grown.
    Grown(Grown),
    /// It is as before again.
    Over(Grown),
    /// It has been so for the length of the past; the past begins anew.
    Usual(Grown),
    /// There were too few requests for long.
    Silent(Grown),
}

/// What was in a part of the past.
#[derive(Debug)]
struct Slot {
    since_ns: i64,
    p99s_ns: Vec<i64>,
    durations: Durations,
    requests: u64,
    failed: u64,
}

/// What is known of a service.
#[derive(Debug, Default)]
pub struct History {
    /// The past, the oldest first. Nothing is added while it is grown.
    past: VecDeque<Slot>,
    /// The last windows in a row, where these say otherwise than what stands.
    otherwise: Vec<Window>,
    grown: Option<Grown>,
    /// While it is grown, the highest 99th percentile.
    highest_ns: i64,
    /// When it was over last.
    over_ns: Option<i64>,
    last_ns: i64,
}

impl History {
    /// Takes in windows that were stored, in any order, before what is known already.
    pub fn add_stored(&mut self, mut windows: Vec<Window>) {
        let first_ns = self.past.front().map_or(i64::MAX, |slot| slot.since_ns);
        let up_to_ns = self.grown.map_or(first_ns, |grown| grown.since_ns.min(first_ns));
        windows.retain(|window| window.until_ns <= up_to_ns);
        windows.sort_by_key(|window| window.until_ns);
        let later = std::mem::take(&mut self.past);
        windows.iter().for_each(|window| self.remember(window));
        self.past.extend(later);
    }

    /// That it stood as grown, with such a 99th percentile, when the agent ended. `now_ns`: from now on
    /// there may be windows.
    pub fn stands(&mut self, grown: Grown, p99_ns: i64, now_ns: i64) {
        (self.grown, self.highest_ns, self.last_ns) = (Some(grown), p99_ns, now_ns);
    }

    /// What stands.
    #[must_use]
    pub fn grown(&self) -> Option<Grown> {
        self.grown
    }

    /// The end of the last window, nanoseconds.
    #[must_use]
    pub fn last_ns(&self) -> i64 {
        self.last_ns
    }

    /// Takes in the next window, of at least [`LEAST_REQUESTS`].
    pub fn judge(&mut self, window: Window) -> Option<Change> {
        if window.since_ns.saturating_sub(self.last_ns) >= GAP_NS {
            self.otherwise.clear();
        }
        self.last_ns = window.until_ns;
        match self.grown {
            Some(grown) => self.judge_grown(grown, window),
            None => self.judge_usual(window),
        }
    }

    fn judge_usual(&mut self, window: Window) -> Option<Change> {
        let from_ns = window.until_ns.saturating_sub(PAST_NS);
        while self.past.front().is_some_and(|slot| slot.since_ns.saturating_add(SLOT_NS) < from_ns) {
            self.past.pop_front();
        }
        let past_p99_ns = self.median_ns();
        let evidence = |of: &Window| self.evidence(of, past_p99_ns?);
        if evidence(&window).is_none() {
            // What was high for a moment only is of the past as well.
            for window in std::mem::take(&mut self.otherwise).iter().chain([&window]) {
                self.remember(window);
            }
            return None;
        }
        let (first_ns, until_ns) = (self.otherwise.first().map_or(window.since_ns, |of| of.since_ns), window.until_ns);
        self.otherwise.push(Window { durations: window.durations.coarse(), ..window });
        let is_held_off = self.over_ns.is_some_and(|over_ns| until_ns.saturating_sub(over_ns) < HOLD_OFF_NS);
        if self.otherwise.len() < GROWN_ROW || is_held_off {
            return None;
        }
        let all: f64 = self.otherwise.iter().filter_map(|of| self.evidence(of, past_p99_ns?)).sum();
        if all < LEAST_EVIDENCE {
            return None;
        }
        let begun_ns = self.past.front().map_or(first_ns, |slot| slot.since_ns);
        let past_ns = first_ns.saturating_sub(begun_ns).clamp(0, PAST_NS);
        let grown = Grown { since_ns: first_ns, past_p99_ns: past_p99_ns?, past_ns };
        self.highest_ns = self.otherwise.iter().map(Window::p99_ns).max().unwrap_or(0);
        self.otherwise.clear();
        self.grown = Some(grown);
        Some(Change::Grown(grown))
    }

    fn judge_grown(&mut self, grown: Grown, window: Window) -> Option<Change> {
        if !self.is_as_before(&window, grown.past_p99_ns) {
            self.otherwise.clear();
            self.highest_ns = self.highest_ns.max(window.p99_ns());
            if window.until_ns.saturating_sub(grown.since_ns) < PAST_NS {
                return None;
            }
            *self = Self { last_ns: self.last_ns, ..Self::default() };
            self.remember(&window);
            return Some(Change::Usual(grown));
        }
        let until_ns = window.until_ns;
        self.otherwise.push(Window { durations: window.durations.coarse(), ..window });
        let long_ns = until_ns.saturating_sub(self.otherwise[0].since_ns);
        if self.otherwise.len() < OVER_ROW || long_ns < self.highest_ns.saturating_mul(OVER_LONGEST) {
            return None;
        }
        for window in std::mem::take(&mut self.otherwise) {
            self.remember(&window);
        }
        (self.grown, self.over_ns) = (None, Some(until_ns));
        Some(Change::Over(grown))
    }

    /// That there was no window up to now: nothing stands any more after some time.
    pub fn silent(&mut self, now_ns: i64) -> Option<Change> {
        let grown = self.grown.filter(|_| now_ns.saturating_sub(self.last_ns) >= SILENT_NS)?;
        self.grown = None;
        self.otherwise.clear();
        Some(Change::Silent(grown))
    }

    /// Adds a window to the past.
    fn remember(&mut self, window: &Window) {
        let is_in = |slot: &&mut Slot| window.until_ns.saturating_sub(slot.since_ns) <= SLOT_NS;
        let p99_ns = window.p99_ns();
        let coarse = window.durations.coarse();
        match self.past.back_mut().filter(is_in) {
            Some(slot) => {
                slot.p99s_ns.push(p99_ns);
                slot.durations.merge(&coarse);
                (slot.requests, slot.failed) = (slot.requests + window.requests, slot.failed + window.failed);
            }
            None => self.past.push_back(Slot {
                since_ns: window.since_ns,
                p99s_ns: vec![p99_ns],
                durations: coarse,
                requests: window.requests,
                failed: window.failed,
            }),
        }
    }

    /// The 99th percentile of the past: the median of its slots, each of which has that of its windows;
    /// none of too little.
    fn median_ns(&self) -> Option<i64> {
        let windows: usize = self.past.iter().map(|slot| slot.p99s_ns.len()).sum();
        (windows >= LEAST_PAST).then(|| median(self.past.iter().map(|slot| median(slot.p99s_ns.iter().copied()))))
    }

    /// Against that a window is as in the past, where it is high: minus the logarithm of an upper bound
    /// of the chance to have as many requests that are so slow (Chernoff's). None where it is not high.
    fn evidence(&self, window: &Window, past_p99_ns: i64) -> Option<f64> {
        let from_ns = bound_ns(past_p99_ns, GROWN_TIMES, GROWN_NS);
        let (count, slow) = (window.durations.count() as f64, window.durations.from(from_ns) as f64);
        let (of_past, slow_of_past) = self.past_from(from_ns);
        // It may be more than was seen, where the past is short.
        let past = ((slow_of_past + 3.0 * slow_of_past.sqrt() + 3.0) / of_past).min(0.5);
        if slow < count * SLOWEST.max(GROWN_OFTEN * past) {
            return None;
        }
        let share = slow / count;
        let rest = if share < 1.0 { (1.0 - share) * ((1.0 - share) / (1.0 - past)).ln() } else { 0.0 };
        Some(count * (share * (share / past).ln() + rest))
    }

    fn is_as_before(&self, window: &Window, past_p99_ns: i64) -> bool {
        let from_ns = bound_ns(past_p99_ns, OVER_TIMES, OVER_NS);
        let slow = window.durations.from(from_ns) as f64;
        let (requests, failed) =
            self.past.iter().fold((0, 0), |(of, failed), slot| (of + slot.requests, failed + slot.failed));
        let as_ever = (failed as f64 / (requests as f64).max(1.0)).max(SLOWEST);
        let fails = window.failed as f64 >= FAILED_OFTEN * as_ever * window.requests as f64;
        let (of_past, slow_of_past) = self.past_from(from_ns);
        slow < window.durations.count() as f64 * SLOWEST.max(OVER_OFTEN * slow_of_past / of_past) && !fails
    }

    /// The past's requests, one at least, and those that took as long or longer.
    fn past_from(&self, from_ns: i64) -> (f64, f64) {
        let of = |slot: &Slot| (slot.durations.count(), slot.durations.from(from_ns));
        let (all, slow) = self.past.iter().map(of).fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        (all.max(1) as f64, slow as f64)
    }
}

/// From which duration on it is so much more.
fn bound_ns(past_ns: i64, times: f64, more_ns: i64) -> i64 {
    ((past_ns as f64 * times) as i64).max(past_ns.saturating_add(more_ns))
}

/// Of some.
fn median(of: impl Iterator<Item = i64>) -> i64 {
    let mut all: Vec<i64> = of.collect();
    let middle = all.len().saturating_sub(1) / 2;
    if all.is_empty() { 0 } else { *all.select_nth_unstable(middle).1 }
}

#[cfg(test)]
mod tests;
