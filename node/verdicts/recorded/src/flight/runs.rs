//! Dumps of an earlier run of the job: a job that starts again leaves those of ranks that do not
//! come again, or have not dumped yet, where they are.

use std::collections::{BTreeMap, BTreeSet};

use observed::units::clock;

use super::dump::Dump;
use super::groups;
use super::lanes;

/// How far the clocks of hosts may be apart.
const CLOCKS_NS: i64 = 10_000_000_000;
/// Timeout of calls where the dump has none: PyTorch's default.
const TIMEOUT_NS: i64 = 600_000_000_000;

/// Takes the dumps of earlier runs out; returns why, by rank.
pub(super) fn take_earlier(dumps: &mut BTreeMap<i32, Dump>) -> BTreeMap<i32, String> {
    let mut earlier = before_a_gap(dumps);
    earlier.extend(before_a_start(dumps));
    let mut why = BTreeMap::new();
    for rank in earlier {
        if let Some((_, last_ns)) = dumps.remove(&rank).and_then(|dump| dump.span_ns()) {
            why.insert(
                rank,
                format!("the one there is of an earlier run, whose last call was made at {}", clock(last_ns)),
            );
        }
    }
    why
}

/// Those whose last calls were made longer than their timeout before the first of all that follow:
/// nobody waits for so long.
fn before_a_gap(dumps: &BTreeMap<i32, Dump>) -> BTreeSet<i32> {
    let mut spans: Vec<(i64, i64, i32)> = Vec::new();
    for (rank, dump) in dumps {
        let Some((first_ns, last_ns)) = dump.span_ns() else { continue };
        let timeout_ns = dump.entries.iter().map(|entry| entry.timeout_ns()).max().filter(|ns| *ns > 0);
        spans.push((first_ns, last_ns.saturating_add(timeout_ns.unwrap_or(TIMEOUT_NS)), *rank));
    }
    spans.sort_unstable();
    let (mut earlier, mut run): (BTreeSet<i32>, Vec<i32>) = Default::default();
    let mut until_ns = i64::MIN;
    for (first_ns, last_ns, rank) in spans {
        if first_ns > until_ns.saturating_add(CLOCKS_NS) {
            earlier.extend(run.drain(..));
        }
        until_ns = until_ns.max(last_ns);
        run.push(rank);
    }
    earlier
}

/// Those that made their last call before another rank's process made its first one, although calls
/// were over for which that rank was needed.
fn before_a_start(dumps: &BTreeMap<i32, Dump>) -> BTreeSet<i32> {
    let starts = dumps.iter().filter(|(_, dump)| dump.entries.first().is_some_and(|first| first.record_id == Some(0)));
    let starts: Vec<(i32, i64)> = starts.filter_map(|(rank, dump)| Some((*rank, dump.span_ns()?.0))).collect();
    let is_before = |dump: &Dump| {
        let Some((_, last_ns)) = dump.span_ns() else { return false };
        let mut later = starts.iter().filter(|(_, start)| *start > last_ns.saturating_add(CLOCKS_NS)).peekable();
        later.peek().is_some() && later.any(|(rank, _)| has_met(dump, *rank))
    };
    dumps.iter().filter(|(_, dump)| is_before(dump)).map(|(rank, _)| *rank).collect()
}

/// Whether a call was over, by a rank's dump, in which it met another rank.
fn has_met(dump: &Dump, other: i32) -> bool {
    lanes::of(dump).iter().any(|(name, lane)| {
        let config = groups::configured(dump).find(|group| group.name == *name);
        let is_member = match config {
            Some(group) => group.ranks.contains(&other),
            None => groups::is_default(name, &lane.desc),
        };
        is_member
            && lane.calls.iter().any(|(position, call)| call.meets() && lane.over.is_some_and(|over| *position <= over))
    })
}
