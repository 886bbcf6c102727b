//! The calls of a lane that were not shipped yet; where they only enqueue, with the synchronise
//! calls after them.
//!
//! Of several calls of a communicator before one synchronise
//! call the last counts, from its entry to the end of that; what the process did on its own before
//! the others is its compute time as well. Such calls are held back until their synchronise call
//! has ended. A process of which none was seen for long ships its calls as they are.

use super::blocks::{Point, cut, level_for, level_for_waited};
use super::{Block, MAX_LEVEL, WINDOW_NS, end_of};

/// Calls held back in one lane, at most.
const MOST_KEPT: usize = 32_768;
/// Windows for which calls are held back for their synchronise call.
const HOLD: i64 = 120;

/// Calls that were not shipped yet, by number; exits are absolute.
#[derive(Debug, Default)]
pub(super) struct Pending {
    points: Vec<Point>,
    /// So many of the first were waited for.
    settled: usize,
    /// The window of the last synchronise call after a call of this lane; none where there was
    /// none, or long ago.
    waited: Option<i64>,
    /// Entry of the last call that was shipped before anybody was seen to wait for it.
    unwaited_us: Option<i64>,
}

impl Pending {
    /// Take the next call.
    pub(super) fn push(&mut self, point: Point) {
        self.points.push(point);
    }

    /// A number came twice: what is beyond was another communicator's.
    pub(super) fn restart(&mut self, seq: u64) {
        self.points.retain(|point| point.seq < seq);
        self.settled = self.settled.min(self.points.len());
    }

    /// A record of the process may be missing since then: compute times that end later are not
    /// known.
    pub(super) fn gap(&mut self, since_us: i64) {
        let later = self.points.iter_mut().rev().take_while(|point| entry_us(point) > since_us);
        later.for_each(|point| point.compute_us = None);
    }

    /// Synchronise calls after its calls were seen.
    pub(super) fn waits(&self) -> bool {
        self.waited.is_some()
    }

    /// Calls that none has waited for yet.
    fn open(&self) -> &[Point] {
        self.points.get(self.settled..).unwrap_or_default()
    }

    /// Number of calls entered up to `start_us` that nobody waited for yet, and the entry of the
    /// last.
    fn before(&self, start_us: i64) -> (usize, Option<i64>) {
        let count = self.open().iter().take_while(|point| entry_us(point) <= start_us).count();
        (count, count.checked_sub(1).and_then(|last| self.open().get(last)).map(entry_us))
    }

    /// Cuts what can be shipped into `most` runs or fewer, mostly; without it each call is one by
    /// itself, and nothing comes after it. Calls after the last whole run wait for the next window,
    /// unless they are old.
    pub(super) fn ship(&mut self, window: i64, most: Option<usize>) -> Vec<Block> {
        let old = self.waited.is_some_and(|at| window - at > HOLD) || self.points.len() > MOST_KEPT;
        if most.is_some() && old {
            (self.waited, self.settled) = (None, 0);
        }
        let waited = self.waited.is_some();
        let ready = if waited { self.settled } else { self.points.len() };
        let points = self.points.get(..ready).unwrap_or_default();
        let level = match (most, waited) {
            (None, _) => 0,
            (Some(most), true) => level_for_waited(points, most),
            (Some(most), false) => level_for(ready, most),
        };
        let mut cut_at = ready;
        if level > 0
            && level <= MAX_LEVEL
            && let Some(last) = points.last()
        {
            let end = last.seq.saturating_add(1) >> level << level;
            let tail = points.partition_point(|point| point.seq < end);
            let young_us = (end_of(window) - WINDOW_NS / 2) / 1_000;
            if points.get(tail).is_some_and(|point| point.exit_us >= young_us) {
                cut_at = tail;
            }
        }
        let base_us = window.saturating_mul(WINDOW_NS) / 1_000;
        let mut shipped: Vec<Point> = self.points.drain(..cut_at).collect();
        self.settled -= cut_at.min(self.settled);
        if let Some(last) = shipped.last().filter(|_| !waited) {
            self.unwaited_us = Some(entry_us(last));
        }
        shipped.iter_mut().for_each(|point| point.exit_us -= base_us);
        cut(&shipped, level, waited)
    }
}

fn entry_us(point: &Point) -> i64 {
    point.exit_us.saturating_sub_unsigned(point.duration_us)
}

/// A synchronise call of a process, from `start_us` to `end_us`: it waited for the calls before it
/// in each of the lanes of one communicator. Whether there were any.
pub(super) fn wait<'a>(
    lanes: impl Iterator<Item = &'a mut Pending>,
    window: i64,
    (start_us, end_us): (i64, i64),
) -> bool {
    let mut lanes: Vec<(&mut Pending, usize, i64)> = lanes
        .filter_map(|lane| {
            let (count, last) = lane.before(start_us);
            // Where waits are longer than windows the first call was shipped before its synchronise
            // call ended: the next are held back.
            if lane.unwaited_us.take_if(|at| *at <= start_us).is_some() {
                lane.waited = Some(window);
            }
            last.map(|last| (lane, count, last))
        })
        .collect();
    let Some(last) = lanes.iter().map(|(.., last)| *last).max() else { return false };
    // Compute time before all of them.
    let compute_us: Option<u64> =
        lanes.iter().flat_map(|(lane, count, _)| lane.open().iter().take(*count)).map(|point| point.compute_us).sum();
    let mut found = false;
    for (lane, count, entered) in &mut lanes {
        let from = lane.settled;
        lane.settled += *count;
        lane.waited = Some(window);
        for point in lane.points.get_mut(from..lane.settled).unwrap_or_default() {
            point.counts = false;
        }
        if *entered == last
            && !std::mem::replace(&mut found, true)
            && let Some(point) = lane.points.get_mut(from..lane.settled).and_then(<[Point]>::last_mut)
        {
            point.counts = true;
            point.exit_us = end_us.max(point.exit_us);
            point.duration_us = u64::try_from(point.exit_us.saturating_sub(*entered)).unwrap_or(0);
            point.compute_us = compute_us;
        }
    }
    true
}
