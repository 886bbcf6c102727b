//! Whether a rank's compute time departs from its own earlier windows.
//!
//! Compute time for each call is compared before and in an episode. A rank that became slow needs
//! more for the same calls, and the others need what they needed. Where the others' changes as
//! well, the program does something else now, and nothing follows.

use std::ops::Range;

use stats::median;

use super::series::{Series, Sum};

/// Windows before the episode that are needed, and at most looked at.
const BEFORE: Range<usize> = 5..30;
/// Windows of the episode that are needed.
const LASTS: usize = 5;
/// Least ratio of compute time for each call, in the episode over before, of the rank.
const SLOWER: f64 = 1.25;
/// Within this ratio, either way, the others' must stay.
const SAME: f64 = 1.15;
/// By so much of the time it may have computed longer than the others before.
const EVEN: f64 = 0.08;

/// Compute time for each call.
fn each(sum: &Sum) -> Option<f64> {
    (sum.calls >= 1.0 && sum.span > 0.0).then(|| sum.compute() * sum.span / sum.calls)
}

/// Whether a rank was even with the others before these windows, and what changed is its compute
/// time for each call.
pub(super) fn departs(series: &Series, rank: usize, windows: &Range<usize>) -> bool {
    if windows.start < BEFORE.start || windows.len() < LASTS {
        return false;
    }
    // The first windows of the episode may hold both.
    let before = series.sums(windows.start.saturating_sub(BEFORE.end)..windows.start - 1);
    let now = series.sums(windows.start + 1..windows.end);
    let others = |sums: &[Sum]| {
        let rest = sums.iter().enumerate().filter(|(at, _)| *at != rank);
        median(rest.map(|(_, sum)| sum.compute()))
    };
    let even = others(&before).is_some_and(|others| (before[rank].compute() - others).abs() <= EVEN);
    let ratio = |at: usize| Some(each(&now[at])? / each(&before[at])?.max(1.0));
    let slower = ratio(rank).is_some_and(|ratio| ratio >= SLOWER);
    let same = |at: usize| ratio(at).is_some_and(|ratio| (1.0 / SAME..=SAME).contains(&ratio));
    let alike = (0..before.len()).filter(|at| *at != rank).filter(|at| same(*at)).count();
    even && slower && 10 * alike >= 9 * (before.len() - 1)
}
