//! Shedding when there is too much: a small state machine with levels, updated once a second.
//! Off-CPU stretches and block requests are left out first, the shortest of them: each level
//! multiplies the shortest recorded one by four. Rows of point-to-point calls are left out last.
//! Collectives are never left out. The programs count what is left out (loss reason "shed"), every
//! change is reported (log, `self_stats`), and each level is taken back after ten calm seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::signals::wire::Tuning;

/// How full the queue behind capture is, in thousandths. The owner of the queue sets it; all clones
/// share the value.
#[derive(Debug, Clone, Default)]
pub struct Backlog(Arc<AtomicU32>);

impl Backlog {
    /// Sets it: 0 empty, 1000 full.
    pub fn set(&self, thousandths: u32) {
        self.0.store(thousandths, Ordering::Relaxed);
    }

    pub(crate) fn thousandths(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Measurements of the last second.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Second {
    /// Records lost because the ring buffer was full.
    pub(crate) lost: u64,
    /// [`Backlog`].
    pub(crate) backlog: u32,
    /// Rows of off-CPU stretches and block requests.
    pub(crate) rows: u64,
}

/// Rows of off-CPU stretches and block requests in a second, above which the shortest are left out:
/// at 100 bytes a row some 20 GB a day, which are rarely needed.
const MOST_ROWS: u64 = 2000;
/// A backlog from which on more is left out, and below which a second is calm.
const BACKLOG: (u32, u32) = (500, 100);
/// Calm seconds before a level is taken back.
const CALM: u32 = 10;
/// The level from which on point-to-point calls are left out: the shortest stretch recorded is then
/// 64 times as long.
const POINT_TO_POINT: u32 = 4;

/// The state machine.
#[derive(Debug)]
pub(crate) struct Shedding {
    base: Tuning,
    level: u32,
    calm: u32,
}

impl Shedding {
    pub(crate) fn new(offcpu_min: Duration, block_min: Duration) -> Self {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (offcpu_min_ns, block_min_ns) = (ns(offcpu_min), ns(block_min));
        let base = Tuning { offcpu_min_ns, block_min_ns, shed_p2p: false, missed_until_ns: 0 };
        Shedding { base, level: 0, calm: 0 }
    }

    /// What is recorded now.
    pub(crate) fn tuning(&self) -> Tuning {
        let times = 1_u64 << (2 * self.level.min(POINT_TO_POINT - 1));
        // from zero, too
        let longer = |ns: u64| if self.level == 0 { ns } else { ns.max(1_000_000).saturating_mul(times) };
        Tuning {
            offcpu_min_ns: longer(self.base.offcpu_min_ns),
            block_min_ns: longer(self.base.block_min_ns),
            shed_p2p: self.level >= POINT_TO_POINT,
            missed_until_ns: 0,
        }
    }

    /// A second has passed. Returns what is to be recorded from now on, when that changes.
    pub(crate) fn after(&mut self, second: Second) -> Option<Tuning> {
        let before = self.level;
        let choking = second.lost > 0 || second.backlog >= BACKLOG.0;
        let many = second.rows > MOST_ROWS;
        if choking && self.level < POINT_TO_POINT || many && self.level < POINT_TO_POINT - 1 {
            self.level += 1;
            self.calm = 0;
        } else if second.lost == 0 && second.backlog < BACKLOG.1 && second.rows <= MOST_ROWS / 8 {
            self.calm += 1;
            if self.calm >= CALM {
                self.level = self.level.saturating_sub(1);
                self.calm = 0;
            }
        } else {
            self.calm = 0;
        }
        (self.level != before).then(|| self.tuning())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CALM_SECOND: Second = Second { lost: 0, backlog: 0, rows: 5 };

    fn machine() -> Shedding {
        Shedding::new(Duration::from_millis(1), Duration::ZERO)
    }

    #[test]
    fn short_stretches_go_first_point_to_point_last_and_all_comes_back() {
        let mut shedding = machine();
        let base = shedding.tuning();
        assert_eq!(shedding.after(CALM_SECOND), None);
        let loss = Second { lost: 1, ..CALM_SECOND };
        let levels: Vec<Tuning> = (0..4).map(|_| shedding.after(loss).unwrap()).collect();
        assert_eq!(
            levels.iter().map(|t| t.offcpu_min_ns).collect::<Vec<_>>(),
            [4, 16, 64, 64].map(|ms| ms * 1_000_000)
        );
        assert_eq!(levels.iter().map(|t| t.shed_p2p).collect::<Vec<_>>(), [false, false, false, true]);
        assert_eq!(levels[0].block_min_ns, 4_000_000, "from zero, too");
        assert_eq!(shedding.after(loss), None, "there is nothing more to leave out");
        let mut last = None;
        let seconds = (0..1000).take_while(|_| {
            last = shedding.after(CALM_SECOND).or(last);
            shedding.level > 0
        });
        assert_eq!(seconds.count(), 39);
        assert_eq!(last, Some(base));
    }

    #[test]
    fn many_rows_alone_never_cost_point_to_point_calls() {
        let mut shedding = machine();
        for _ in 0..100 {
            shedding.after(Second { rows: 1_000_000, ..CALM_SECOND });
        }
        assert!(!shedding.tuning().shed_p2p && shedding.tuning().offcpu_min_ns == 64_000_000);
        let backlog = Backlog::default();
        backlog.clone().set(900);
        shedding.after(Second { backlog: backlog.thousandths(), ..CALM_SECOND });
        assert!(shedding.tuning().shed_p2p);
    }

    proptest! {
        #[test]
        fn whatever_comes_thresholds_stay_between_the_configured_one_and_64_times_it(
            seconds in prop::collection::vec((0u64..3, 0u32..1001, 0u64..5000), 0..200)
        ) {
            let mut shedding = machine();
            for (lost, backlog, rows) in seconds {
                shedding.after(Second { lost, backlog, rows });
                let ms = shedding.tuning().offcpu_min_ns / 1_000_000;
                prop_assert!([1, 4, 16, 64].contains(&ms));
            }
        }
    }
}
