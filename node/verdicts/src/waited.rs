//! Until when a process waited for what a call enqueued, by the synchronise call after it. Where
//! that was not seen, `meet.rs` tells it from the entries of the others.

use std::collections::HashMap;

use super::input::Input;
use super::observation::Coupling;

/// Until when a process waited for what a call enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    /// No synchronise call after it was seen, or the call does not enqueue.
    Unseen,
    /// It has the synchronise call after it in common with a later call of its communicator: that
    /// one counts.
    WithLater,
    /// The end of the synchronise call after it, on the node's own clock.
    Until(i64),
}

/// For each observation, the synchronise call that follows it in its process.
pub(crate) fn waited(input: &Input) -> Vec<Waited> {
    let mut waited = vec![Waited::Unseen; input.observations.len()];
    let mut syncs: HashMap<(&str, i64), Vec<(i64, i64)>> = HashMap::new();
    for sync in &input.syncs {
        let end = sync.start_ns.saturating_add(sync.duration_ns.max(0));
        syncs.entry((&sync.node, sync.pid)).or_default().push((sync.start_ns, end));
    }
    if syncs.is_empty() {
        return waited;
    }
    syncs.values_mut().for_each(|list| list.sort_unstable());
    // The last call of a communicator before each synchronise call.
    let mut last: HashMap<(&str, i64, u64, i64), usize> = HashMap::new();
    for (i, seen) in input.observations.iter().enumerate() {
        if seen.tier > 0 || Coupling::of(&seen.func) != Coupling::All {
            continue;
        }
        let Some(list) = syncs.get(&(&*seen.node, seen.pid)) else { continue };
        let Some(&(start, end)) = list.get(list.partition_point(|(start, _)| *start < seen.entry_ns)) else { continue };
        waited[i] = Waited::Until(end);
        if let Some(before) = last.insert((&seen.node, seen.pid, seen.comm_hash, start), i) {
            let earlier = if input.observations[before].entry_ns > seen.entry_ns { i } else { before };
            waited[earlier] = Waited::WithLater;
            if earlier == i {
                last.insert((&seen.node, seen.pid, seen.comm_hash, start), before);
            }
        }
    }
    waited
}
