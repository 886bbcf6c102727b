//! Cuts a lane's calls into aligned runs, and merges runs into longer ones.
//!
//! Pure arithmetic. A run of level k covers sequence numbers [i 2^k, (i+1) 2^k): every rank cuts at
//! the same places, and two neighbouring runs of one level are a run of the next.

use super::{BLOCKS, Block, MAX_LEVEL};

/// Share of a run's calls that may be missing: their figures are then taken to be like their
/// neighbours'.
const MISSING: u64 = 8;

/// Runs that all ranks of a communicator together ship in a window, about, and
const RUNS_OF_ALL: usize = 1_280;
/// the fewest that one of them aims at all the same.
const FEWEST_RUNS: usize = 2;

/// One call of a lane: times in microseconds, the exit counted from the start of the window in
/// which it is shipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) seq: u64,
    pub(super) exit_us: i64,
    pub(super) duration_us: u64,
    pub(super) compute_us: Option<u64>,
    pub(super) halted_us: u64,
    pub(super) held_us: u64,
    /// Its figures count: not where it only enqueued, and a later call of its communicator was
    /// waited for with it.
    pub(super) counts: bool,
}

/// Runs of one lane and window that are aimed at, at most, in a communicator of so many ranks: what
/// all of them ship together is bounded from [`RUNS_OF_ALL`] on.
pub(super) fn most_runs(nranks: Option<i32>) -> usize {
    let nranks = nranks.and_then(|nranks| usize::try_from(nranks).ok()).unwrap_or(0);
    (RUNS_OF_ALL / nranks.max(1)).clamp(FEWEST_RUNS, BLOCKS)
}

/// The smallest level at which calls that were waited for make no more than `most` runs.
pub(super) fn level_for_waited(points: &[Point], most: usize) -> u8 {
    let runs = |level: u8| {
        let mut starts: Vec<u64> = points.iter().filter(|p| p.counts).map(|p| p.seq >> level).collect();
        starts.dedup();
        starts.len()
    };
    (0..MAX_LEVEL).find(|level| runs(*level) <= most).unwrap_or(MAX_LEVEL)
}

/// The smallest level at which `calls` consecutive calls make no more than `most` runs.
pub(super) fn level_for(calls: usize, most: usize) -> u8 {
    let mut level = 0;
    while level < MAX_LEVEL && calls.div_ceil(1 << level) > most {
        level += 1;
    }
    level
}

/// Cut calls (ascending by seq, each once) into runs of at most `level`. Everything is used; what
/// is missing in a run beyond what may be filled in makes it fall into shorter ones. `waited`:
/// calls only enqueue, and figures are of those that a synchronise call waited for.
pub(super) fn cut(points: &[Point], level: u8, waited: bool) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return blocks };
    let Some(end) = last.seq.checked_add(1) else { return blocks };
    let mut at = first.seq;
    let mut rest = points;
    while at < end {
        let aligned = u8::try_from(at.trailing_zeros()).unwrap_or(MAX_LEVEL);
        let fits = u8::try_from((end - at).ilog2()).unwrap_or(0);
        let here = level.min(aligned).min(fits);
        let stop = at + (1 << here);
        let inside = rest.partition_point(|p| p.seq < stop);
        run(&rest[..inside], at, here, waited, &mut blocks);
        rest = &rest[inside..];
        // A gap holds nothing: go on at the next call, on a boundary of this level.
        at = match rest.first() {
            Some(next) if next.seq >= stop => stop.max(next.seq >> here << here),
            _ => stop,
        };
    }
    blocks
}

fn run(points: &[Point], start: u64, level: u8, waited: bool, blocks: &mut Vec<Block>) {
    let size = 1u64 << level;
    let missing = size - points.len() as u64;
    if points.is_empty() {
        return;
    }
    if missing * MISSING > size {
        if level > 0 {
            let middle = start + size / 2;
            let split = points.partition_point(|p| p.seq < middle);
            run(&points[..split], start, level - 1, waited, blocks);
            run(&points[split..], middle, level - 1, waited, blocks);
        }
        return;
    }
    if waited {
        blocks.extend(of_waited(points, start, level));
        return;
    }
    let present = points.len() as u64;
    let mut exits_us: i64 = points.iter().map(|p| p.exit_us).sum();
    let durations_us: u64 = points.iter().map(|p| p.duration_us).sum();
    if missing > 0 {
        exits_us += missing_exits(points, start, size);
    }
    let known = points.iter().filter(|p| p.compute_us.is_some()).count() as u64;
    let own: u64 = points.iter().filter_map(|p| p.compute_us).sum();
    // After a lost record two stretches are not known; let as many be missing twice.
    let enough = known > 0 && (size - known) * MISSING <= size * 2;
    let compute_us = enough.then(|| own / known.max(1));
    let (exit_us, duration_us) = (exits_us >> level, durations_us / present);
    let halted_us = points.iter().map(|p| p.halted_us).sum::<u64>() / present;
    let held_us = points.iter().map(|p| p.held_us).sum::<u64>() / present;
    blocks.push(Block { start, level, exit_us, duration_us, compute_us, waited: None, halted_us, held_us });
}

/// Means over the calls of a run that were waited for; none where there is none.
fn of_waited(points: &[Point], start: u64, level: u8) -> Option<Block> {
    let counted = || points.iter().filter(|p| p.counts);
    let count = i64::try_from(counted().count()).ok().filter(|count| *count > 0)?;
    let exit_us = counted().map(|p| p.exit_us).sum::<i64>().div_euclid(count);
    let duration_us = counted().map(|p| p.duration_us).sum::<u64>() / count.unsigned_abs();
    let own: Option<u64> = counted().map(|p| p.compute_us).sum();
    let compute_us = own.map(|own| own / count.unsigned_abs());
    let waited = u32::try_from(count).ok();
    Some(Block { start, level, exit_us, duration_us, compute_us, waited, halted_us: 0, held_us: 0 })
}

/// Exits of the missing calls: on the line between their neighbours, or through the nearest two.
fn missing_exits(points: &[Point], start: u64, size: u64) -> i64 {
    let mut sum = 0;
    let mut next = 0;
    for seq in start..start + size {
        if points.get(next).is_some_and(|p| p.seq == seq) {
            next += 1;
            continue;
        }
        let (a, b) = match (next.checked_sub(1), points.get(next)) {
            (Some(before), Some(after)) => (points[before], *after),
            (Some(before), None) => (points[before.saturating_sub(1)], points[before]),
            (None, _) => (points[0], points[1.min(points.len() - 1)]),
        };
        let apart = i128::from(b.seq.abs_diff(a.seq)).max(1);
        let from_a = i128::from(seq) - i128::from(a.seq);
        let step = i128::from(b.exit_us) - i128::from(a.exit_us);
        sum += i64::try_from(i128::from(a.exit_us) + step * from_a / apart).unwrap_or(a.exit_us);
    }
    sum
}

/// Sums over runs, with absolute times: what merges. The order in which they are added does not
/// matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) calls: u64,
    exits_us: i128,
    durations_us: u128,
    halted_us: u128,
    held_us: u128,
    compute_us: u128,
    compute_unknown: bool,
}

impl Sum {
    /// Take in a block whose exits are counted from `base_us`. Where it was waited for and that is
    /// not wanted, it counts as calls that took no time.
    pub(super) fn add(&mut self, block: &Block, base_us: i64, waited: bool) {
        let size = block.calls();
        self.calls += size;
        let (mut exit_us, mut duration_us) = (i128::from(block.exit_us), block.duration_us);
        if block.waited.is_some() && !waited {
            exit_us -= i128::from(std::mem::take(&mut duration_us));
        }
        self.exits_us += (exit_us + i128::from(base_us)) * i128::from(size);
        self.durations_us += u128::from(duration_us) * u128::from(size);
        self.halted_us += u128::from(block.halted_us.min(duration_us)) * u128::from(size);
        self.held_us += u128::from(block.held_us) * u128::from(size);
        match block.compute_us {
            Some(own) => self.compute_us += u128::from(own) * u128::from(size),
            None => self.compute_unknown = true,
        }
    }

    /// The means; none where a time does not fit.
    pub(super) fn means(&self) -> Option<Means> {
        let calls = i128::from(self.calls.max(1));
        let mean = |sum: i128| {
            let sum_ns = sum.checked_mul(1_000)?;
            // Division of 128 bits takes many times as long, and is hardly ever needed.
            Some(match (i64::try_from(sum_ns), i64::try_from(calls)) {
                (Ok(sum_ns), Ok(calls)) => i128::from(sum_ns / calls),
                _ => sum_ns / calls,
            })
        };
        let length = |sum: u128| mean(i128::try_from(sum).ok()?);
        let nanoseconds = |ns: i128| i64::try_from(ns).ok();
        let duration = length(self.durations_us)?;
        let own = length(self.compute_us)?;
        Some(Means {
            entry_ns: nanoseconds(mean(self.exits_us)? - duration)?,
            duration_ns: nanoseconds(duration)?,
            halted_ns: nanoseconds(length(self.halted_us)?)?,
            held_ns: nanoseconds(length(self.held_us)?)?,
            compute_ns: if self.compute_unknown { None } else { Some(nanoseconds(own)?) },
        })
    }
}

/// Means over the calls of runs, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Means {
    pub(super) entry_ns: i64,
    pub(super) duration_ns: i64,
    pub(super) halted_ns: i64,
    pub(super) held_ns: i64,
    pub(super) compute_ns: Option<i64>,
}
