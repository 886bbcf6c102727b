//! From which duration on a call becomes a row of its own: a threshold for each function, set anew
//! each second from the counts of the last, so that the slowest calls are kept and no more rows are
//! made than the budget allows.

use std::collections::BTreeMap;

use super::wire::bucket_floor_ns;

/// Counts by bucket of one second, all processes together.
pub(crate) type Histogram = BTreeMap<u16, u64>;

/// At most a quarter lower each second, so that one quiet second does not let everything through.
const FALL: u64 = 4;
/// Below this every call becomes a row.
const NOTHING_NS: u64 = 64;

/// The thresholds for the next second. `rows` is divided evenly; the unused part of a function's
/// share goes to the others.
pub(crate) fn next<'h>(
    seconds: impl Iterator<Item = (u16, &'h Histogram, u64)>,
    rows: u64,
) -> impl Iterator<Item = (u16, u64)> {
    let mut functions: Vec<(u64, u16, &Histogram, u64)> =
        seconds.map(|(func, histogram, now_ns)| (histogram.values().sum(), func, histogram, now_ns)).collect();
    functions.sort_unstable_by_key(|(calls, func, ..)| (*calls, *func));
    let (mut left, mut waiting) = (rows, functions.len() as u64);
    functions.into_iter().map(move |(calls, func, histogram, now_ns)| {
        let share = left / waiting.max(1);
        waiting = waiting.saturating_sub(1);
        let (wanted_ns, used) = keep_slowest(histogram, calls, share);
        left -= used.min(left);
        let fallen = now_ns / FALL;
        (
            func,
            if wanted_ns >= now_ns { wanted_ns } else { wanted_ns.max(if fallen < NOTHING_NS { 0 } else { fallen }) },
        )
    })
}

/// The duration from which on at most `share` of the calls are, and how many are.
fn keep_slowest(histogram: &Histogram, calls: u64, share: u64) -> (u64, u64) {
    if calls <= share {
        return (0, calls);
    }
    let mut kept = 0;
    for (bucket, count) in histogram.iter().rev() {
        if kept + count > share {
            return (bucket_floor_ns(bucket + 1), kept);
        }
        kept += count;
    }
    (0, kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next_of(functions: &[(&Histogram, u64)], rows: u64) -> Vec<u64> {
        let seconds = functions.iter().enumerate().map(|(at, (histogram, now))| (at as u16, *histogram, *now));
        let mut next: Vec<_> = next(seconds, rows).collect();
        next.sort_unstable();
        next.into_iter().map(|(_, threshold)| threshold).collect()
    }

    #[test]
    fn a_function_called_rarely_has_every_call_kept_once_the_threshold_has_fallen() {
        let few = Histogram::from([(400, 5)]);
        let mut threshold = 1_000_000;
        for _ in 0..8 {
            threshold = next_of(&[(&few, threshold)], 100)[0];
        }
        assert_eq!(threshold, 0);
        assert_eq!(next_of(&[(&few, 1_000_000)], 100), [250_000]);
    }

    #[test]
    fn the_slowest_calls_of_a_frequent_one_are_kept() {
        let many = Histogram::from([(300, 10_000), (500, 60), (700, 30)]);
        assert_eq!(next_of(&[(&many, 0)], 100), [bucket_floor_ns(301)]);
        assert_eq!(next_of(&[(&many, 0)], 50), [bucket_floor_ns(501)]);
        assert_eq!(next_of(&[(&many, 0)], 10), [bucket_floor_ns(701)]);
    }

    #[test]
    fn what_one_does_not_use_the_others_may() {
        let (few, many) = (Histogram::from([(300, 10)]), Histogram::from([(300, 10_000), (500, 150)]));
        assert_eq!(next_of(&[(&many, 0), (&few, 0)], 200), [bucket_floor_ns(301), 0]);
    }
}
