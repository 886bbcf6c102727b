//! A bound on what recording calls takes: a small state machine. Frequent functions are probed from
//! the beginning of each period until the period's allowance is spent, and then not until the next
//! one. So slices begin at the same instants on all hosts, shorter ones lie within longer ones, and
//! where calls are few there is no slice: all is recorded. What was spent beyond an allowance is
//! owed by the next ones.
//!
//! Does no I/O: `capture::slices` measures and attaches.

use std::time::Duration;

/// Slices begin at multiples of it, Unix time in nanoseconds.
pub const SLICES_BEGIN_EVERY_NS: i64 = 10_000_000_000;
const PERIOD_NS: i64 = SLICES_BEGIN_EVERY_NS;
/// Time between two looks at what was spent: as long as what is left lasts at the last rate, within
/// these bounds.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));
/// The first look of a slice comes as soon as this, by the rate of the slice before.
const FIRST_LOOK: Duration = Duration::from_millis(10);
/// No slice begins with less left than this part of an allowance.
const LEAST: f64 = 0.2;
/// Where switching probes off and on takes more than this part of a period's allowance, slices
/// begin only each second period, or fourth, …, and may spend as many allowances: else they
/// would record next to nothing.
const MOST_SWITCHING: f64 = 0.5;
/// Most periods from one slice to the next (a power of two, so that hosts' slices meet).
const RAREST: i64 = 64;
/// Of a program that was seen late (it began to call between two looks, or we waited for a CPU) at
/// most so many allowances are owed: it is not left without a record for minutes …
const MOST_OWED: f64 = 3.0;
/// … but that is done once in so many periods.
const FORGIVEN_EVERY: i64 = 60;

/// What recording may take, in millionths of a core: in the rank that makes most calls, and in the
/// threads that record, together. Where ranks fill all cores, those threads run instead of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    ppm: u32,
}

impl Budget {
    /// A share in percent, above 0 and up to 100; none for another.
    #[must_use]
    pub fn percent(percent: f64) -> Option<Self> {
        let ppm = percent * 1e4;
        (1.0..=1e6).contains(&ppm).then_some(Self { ppm: ppm as u32 })
    }

    /// Millionths.
    #[must_use]
    pub fn ppm(self) -> u32 {
        self.ppm
    }

    fn allowance_ns(self) -> f64 {
        PERIOD_NS as f64 * f64::from(self.ppm) / 1e6
    }
}

/// How a budget was kept in the last ten seconds that are over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptBudget {
    /// What recording may take.
    pub budget: Budget,
    /// What the threads that record took of a core, in millionths.
    pub own_ppm: u64,
    /// For how much of the time frequent calls were recorded, in millionths.
    pub recorded_ppm: u64,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Take the probes at frequent functions away; they come back at this time (Unix nanoseconds).
    Off { until_ns: i64 },
    /// Put them back.
    On,
}

/// Calls over which what one takes is averaged.
const AVERAGED_OVER: f64 = 20_000.0;

/// What a call takes, on average. A host that was suspended in one of them, or a log of the store
/// that was written back among them, makes a call a little dearer for many slices. (Charged to the
/// slice that it fell into, it would leave a minute without a record.)
#[derive(Debug)]
pub(crate) struct PerCall {
    took_ns: f64,
    calls: f64,
}

impl Default for PerCall {
    /// Some calls that took nothing are known, so that the first ones do not stand for all.
    fn default() -> Self {
        Self { took_ns: 0.0, calls: AVERAGED_OVER / 20.0 }
    }
}

impl PerCall {
    /// So many more calls took so much: what they take on average, together.
    pub(crate) fn charged(&mut self, took_ns: f64, calls: u64) -> f64 {
        let calls = calls as f64;
        (self.took_ns, self.calls) = (self.took_ns + took_ns, self.calls + calls);
        let charged = self.took_ns / self.calls * calls;
        let kept = (AVERAGED_OVER / self.calls).min(1.0);
        (self.took_ns, self.calls) = (self.took_ns * kept, self.calls * kept);
        charged
    }
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Slices {
    budget: Budget,
    period: i64,
    /// Of the allowance, nanoseconds; below 0 it is owed.
    left_ns: f64,
    off_until_ns: Option<i64>,
    looked_ns: i64,
    /// What was spent a second of recording, as of the last look in a slice, in seconds.
    rate: f64,
    /// Whether the present slice was not looked at yet.
    has_begun: bool,
    /// The period in which something that was owed was forgiven last.
    forgiven: Option<i64>,
    /// What switching off and on took the last time, nanoseconds.
    switching_ns: [f64; 2],
}

impl Slices {
    pub(crate) fn new(budget: Budget, now_ns: i64) -> Self {
        let (left_ns, period) = (budget.allowance_ns(), now_ns.div_euclid(PERIOD_NS));
        Self {
            budget,
            period,
            left_ns,
            off_until_ns: None,
            looked_ns: now_ns,
            rate: 0.0,
            has_begun: false,
            forgiven: None,
            switching_ns: [0.0; 2],
        }
    }

    /// Periods from one slice to the next.
    fn every(&self) -> i64 {
        let switching = self.switching_ns.iter().sum::<f64>();
        let enough = |every: &i64| *every as f64 * self.budget.allowance_ns() * MOST_SWITCHING >= switching;
        std::iter::successors(Some(1), |every| Some(every * 2))
            .take_while(|every| *every < RAREST)
            .find(enough)
            .unwrap_or(RAREST)
    }

    /// What was asked for last was done, and took so much.
    pub(crate) fn switched(&mut self, took_ns: f64) {
        self.switching_ns[usize::from(self.off_until_ns.is_none())] = took_ns;
        self.left_ns -= took_ns;
    }

    /// When it is to be asked again.
    pub(crate) fn next_look_ns(&self) -> i64 {
        let lasts_ns = if self.rate > 0.0 { self.left_ns.max(0.0) / self.rate } else { PERIOD_NS as f64 };
        let least = if self.has_begun { FIRST_LOOK } else { LOOK.0 };
        let look = Duration::from_nanos((lasts_ns / 2.0) as u64).clamp(least, LOOK.1);
        let look_ns = i64::try_from(look.as_nanos()).unwrap_or(PERIOD_NS);
        self.off_until_ns.unwrap_or_else(|| self.looked_ns.saturating_add(look_ns))
    }

    /// So much was spent since the last look.
    pub(crate) fn after(&mut self, now_ns: i64, spent_ns: f64) -> Option<Change> {
        let period = now_ns.div_euclid(PERIOD_NS);
        // A clock that was set back begins anew.
        let periods = if period < self.period { 1 } else { period - self.period };
        let since_ns = now_ns.saturating_sub(self.looked_ns);
        (self.period, self.looked_ns) = (period, now_ns);
        let (all, every) = (self.budget.allowance_ns(), self.every());
        self.left_ns = (self.left_ns - spent_ns + all * periods as f64).min(all * every as f64);
        if self.left_ns < -MOST_OWED * all && self.forgiven.is_none_or(|last| period - last >= FORGIVEN_EVERY) {
            (self.left_ns, self.forgiven) = (-MOST_OWED * all, Some(period));
        }
        let left = self.left_ns;
        self.has_begun = false;
        if self.off_until_ns.is_none() {
            self.rate = spent_ns / since_ns.max(1) as f64;
        }
        match self.off_until_ns {
            None if left <= 0.0 => {
                let least = LEAST * all + self.switching_ns.iter().sum::<f64>();
                let periods = ((least.min(all * every as f64) - left) / all).ceil().max(1.0) as i64;
                let next = period.saturating_add(periods);
                let until_ns = next.saturating_add((-next).rem_euclid(every)).saturating_mul(PERIOD_NS);
                self.off_until_ns = Some(until_ns);
                Some(Change::Off { until_ns })
            }
            // (Or the clock was set back.)
            Some(until_ns) if now_ns >= until_ns || until_ns - now_ns > 100 * PERIOD_NS => {
                (self.off_until_ns, self.has_begun) = (None, true);
                Some(Change::On)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: i64 = 1_000_000;
    const PERCENT: f64 = 1.0;

    /// Recording that takes `share(t)` of a core while it is on. Returns when slices
    /// began and ended, and what was taken in each.
    fn run(until_ns: i64, percent: f64, share: impl Fn(i64) -> f64) -> Vec<(i64, i64, f64)> {
        run_switching(until_ns, percent, 0.0, share)
    }

    /// The same where probes are put back and taken away in `switching_ns` each.
    fn run_switching(
        until_ns: i64,
        percent: f64,
        switching_ns: f64,
        share: impl Fn(i64) -> f64,
    ) -> Vec<(i64, i64, f64)> {
        let mut slices = Slices::new(Budget::percent(percent).unwrap(), 0);
        let (mut now, mut on, mut all) = (0, true, vec![(0, 0, 0.0)]);
        while now < until_ns {
            let next = slices.next_look_ns().max(now + MS);
            let spent_ns = if on { (next - now) as f64 * share(now) } else { 0.0 };
            now = next;
            let of = all.last_mut().unwrap();
            if on {
                (of.1, of.2) = (now, of.2 + spent_ns);
            }
            match slices.after(now, spent_ns) {
                Some(Change::Off { until_ns }) => {
                    assert!(until_ns > now && until_ns % PERIOD_NS == 0);
                    on = false;
                    all.last_mut().unwrap().2 += switching_ns;
                    slices.switched(switching_ns);
                }
                Some(Change::On) => {
                    on = true;
                    all.push((now, now, switching_ns));
                    slices.switched(switching_ns);
                }
                None => {}
            }
        }
        all
    }

    #[test]
    fn what_is_under_the_budget_is_recorded_throughout() {
        let all = run(100 * PERIOD_NS, PERCENT, |_| 0.0099);
        assert_eq!(all.len(), 1, "{all:?}");
    }

    #[test]
    fn slices_begin_with_periods_and_shorter_ones_lie_within_longer_ones() {
        let (busy, busier) = (run(30 * PERIOD_NS, PERCENT, |_| 0.1), run(30 * PERIOD_NS, PERCENT, |_| 0.3));
        assert!(busy[1..].iter().chain(&busier[1..]).all(|slice| slice.0 % PERIOD_NS == 0));
        let length = |of: &[(i64, i64, f64)]| of[1..].iter().map(|slice| slice.1 - slice.0).sum::<i64>();
        assert!(length(&busy) > 25 * PERIOD_NS / 10 && length(&busier) < length(&busy), "{busy:?}");
        assert!(busier.len() > 25, "a slice in nearly every period: {}", busier.len());
    }

    #[test]
    fn slices_are_rarer_and_longer_where_switching_takes_an_allowance() {
        let (often, rarely) =
            (run(128 * PERIOD_NS, PERCENT, |_| 0.1), run_switching(128 * PERIOD_NS, PERCENT, 5e7, |_| 0.1));
        let recorded = |of: &[(i64, i64, f64)]| of[2..].iter().map(|slice| slice.1 - slice.0).sum::<i64>();
        assert!(recorded(&rarely) > recorded(&often) / 3, "{rarely:?}");
        assert!(
            rarely[2..].iter().all(|slice| slice.0 % (2 * PERIOD_NS) == 0),
            "they meet those of other hosts: {rarely:?}"
        );
        let taken: f64 = rarely.iter().map(|slice| slice.2).sum();
        assert!(taken <= 1.1 * 128.0 * PERIOD_NS as f64 * PERCENT / 100.0, "{taken}");
    }

    #[test]
    fn a_hundredfold_rate_is_bounded_at_once_and_the_old_one_recorded_again() {
        let at = |now: i64| if (200..400).contains(&(now / 1_000 / MS)) { 0.5 } else { 0.005 };
        let all = run(600_000 * MS, PERCENT, at);
        let taken = |from: i64, to: i64| {
            all.iter().filter(|slice| (from..to).contains(&(slice.0 / 1_000 / MS))).map(|slice| slice.2).sum::<f64>()
        };
        let first = all[0].1;
        assert!(first < 201_000 * MS, "off within a second: {first}");
        assert!(taken(210, 400) < 0.012 * 190e9, "{}", taken(210, 400));
        let last = all.last().unwrap();
        assert!(last.0 <= 420_000 * MS && last.1 >= 600_000 * MS, "{last:?}");
    }

    #[test]
    fn who_was_seen_late_is_recorded_again_after_three_periods() {
        let mut slices = Slices::new(Budget::percent(PERCENT).unwrap(), 0);
        let all = slices.budget.allowance_ns();
        let off = slices.after(1_000 * MS, 100.0 * all);
        assert_eq!(off, Some(Change::Off { until_ns: 4 * PERIOD_NS }), "three are owed, and the fourth is whole");
        assert_eq!(slices.after(4 * PERIOD_NS, 0.0), Some(Change::On));
        assert_eq!(slices.next_look_ns(), 4 * PERIOD_NS + 10 * MS, "it is known how fast it spends");
        let off = slices.after(4 * PERIOD_NS + 10 * MS, 20.0 * all);
        assert_eq!(off, Some(Change::Off { until_ns: 24 * PERIOD_NS }), "not twice in ten minutes");
    }

    #[test]
    fn a_clock_that_is_set_back_ends_no_recording_for_good() {
        let mut slices = Slices::new(Budget::percent(PERCENT).unwrap(), 5_000 * PERIOD_NS);
        assert!(matches!(slices.after(5_000 * PERIOD_NS + MS, 2e8), Some(Change::Off { .. })));
        assert_eq!(slices.after(MS, 0.0), Some(Change::On));
    }

    #[test]
    fn what_disturbs_one_call_is_charged_to_thousands() {
        let mut per_call = PerCall::default();
        let usual: f64 = (0..100).map(|_| per_call.charged(500.0 * 2e3, 500)).sum();
        assert!((0.9..=1.0).contains(&(usual / (50_000.0 * 2e3))), "{usual}");
        let disturbed = per_call.charged(500.0 * 2e3 + 1e8, 500);
        assert!(disturbed < 5.0 * 500.0 * 2e3, "{disturbed}");
        let later: f64 = (0..400).map(|_| per_call.charged(500.0 * 2e3, 500)).sum::<f64>() - 200_000.0 * 2e3;
        assert!((0.9..1.1).contains(&((disturbed + later) / 1e8)), "all of it: {disturbed} and {later}");
        assert_eq!(per_call.charged(0.0, 0), 0.0);
    }

    #[test]
    fn a_budget_is_a_share() {
        assert_eq!(Budget::percent(1.0).map(Budget::ppm), Some(10_000));
        for none in [0.0, -1.0, 101.0, f64::NAN] {
            assert_eq!(Budget::percent(none), None);
        }
    }

    proptest! {
        /// Whatever the rate does, what is taken stays within the budget and what one look may
        /// overspend.
        #[test]
        fn the_budget_holds(
            shares in prop::collection::vec(prop_oneof![0.0f64..1.0, Just(0.001), 1.0f64..5.0], 40),
            percent in 0.5f64..20.0,
            switching_ns in prop_oneof![Just(0.0), 0.0f64..2e8],
        ) {
            let at = |now: i64| shares[(now / (5 * PERIOD_NS)) as usize % shares.len()];
            let until = 200 * PERIOD_NS;
            let slices = run_switching(until, percent, switching_ns, at);
            let taken: f64 = slices.iter().map(|slice| slice.2).sum();
            let allowed = (until + PERIOD_NS) as f64 * percent / 100.0;
            // What one look may overspend at the end, what is forgiven, and what switching takes until it
            // is known.
            let overspent = 4.0 * switching_ns + 5.0 * LOOK.1.as_nanos() as f64 * (2 + until / PERIOD_NS / FORGIVEN_EVERY) as f64;
            let bound = allowed + overspent;
            prop_assert!(taken <= bound, "{taken} of {bound}");
        }
    }
}
