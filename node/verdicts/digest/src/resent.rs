//! The TCP segments of a window that were sent again, by the addresses they went between.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Resent, WINDOW_NS, end_of};

/// Pairs of addresses whose segments that were sent again are in one digest, at most, and of how many
/// segments the times are.
const MOST_PAIRS: usize = 16;
const MOST_TIMES: usize = 12;

/// Segments sent again before the end of a window, by where from and to.
pub(super) fn before(resent: &mut Vec<(i64, IpAddr, IpAddr)>, window: i64) -> Vec<Resent> {
    let start_ns = end_of(window).saturating_sub(WINDOW_NS);
    let mut pairs: BTreeMap<(IpAddr, IpAddr), Vec<u16>> = BTreeMap::new();
    for (at_ns, from, to) in resent.extract_if(.., |(at_ns, ..)| *at_ns < end_of(window)) {
        let at_ms = u16::try_from(at_ns.saturating_sub(start_ns) / 1_000_000).unwrap_or(0);
        pairs.entry((from, to)).or_default().push(at_ms);
    }
    let mut all: Vec<Resent> = pairs
        .into_iter()
        .map(|((from, to), mut at_ms)| {
            at_ms.sort_unstable();
            let segments = at_ms.len() as u64;
            // Spread over the window, not its beginning alone.
            let step = at_ms.len().div_ceil(MOST_TIMES).max(1);
            Resent { from, to, segments, at_ms: at_ms.into_iter().step_by(step).collect() }
        })
        .collect();
    all.sort_by_key(|resent| std::cmp::Reverse(resent.segments));
    all.truncate(MOST_PAIRS);
    all
}
