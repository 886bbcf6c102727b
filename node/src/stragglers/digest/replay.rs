//! What digests would have told of recorded or simulated rows: for tests and benchmarks of the way that standing verdicts take.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Collector, Digest, Heard, ReferenceClock, decode, encode, end_of, reference_id, to_input, window_of};
use crate::stragglers::{ClockOffset, Input, Observation, SyncCall};

/// Runs the numbered rows of an input through each host's digests, as text and back: the input that an agent would make of
/// them, and the bytes of all digests. Clocks are taken to be measured against the node that sorts first. Work and progress are not
/// taken over, calls without a number are counted as unplaced.
///
/// # Panics
/// Where a digest does not survive its encoding: a fault of this module.
#[must_use]
pub fn replay(rows: &Input) -> (Input, usize) {
    let mut by_node: BTreeMap<Arc<str>, Vec<&Observation>> = BTreeMap::new();
    for seen in &rows.observations {
        by_node.entry(Arc::clone(&seen.node)).or_default().push(seen);
    }
    let mut syncs: BTreeMap<&str, Vec<&SyncCall>> = BTreeMap::new();
    for sync in &rows.syncs {
        syncs.entry(&sync.node).or_default().push(sync);
    }
    let reference = by_node.keys().next().map_or(0, |name| reference_id(name));
    let mut bytes = 0;
    let all: Vec<(Arc<str>, Vec<Digest>)> = by_node
        .into_iter()
        .map(|(node, calls)| {
            let clock = rows.clocks.get(&*node);
            let syncs = syncs.remove(&*node).unwrap_or_default();
            let digests = of_node(calls, syncs, |window| clock.map(|clock| at(clock, window, reference)));
            for digest in &digests {
                let text = encode(digest);
                bytes += text.len();
                assert_eq!(decode(&text).as_ref(), Ok(digest), "a digest is read as it was written");
            }
            (node, digests)
        })
        .collect();
    let refs: Vec<Vec<&Digest>> = all.iter().map(|(_, digests)| digests.iter().collect()).collect();
    let heard: Vec<Heard<'_>> = all.iter().zip(&refs).map(|((node, _), digests)| Heard { node, digests }).collect();
    let mut input = to_input(&heard, reference);
    input.heard = rows.heard.clone();
    (input.since_ns, input.until_ns) = (rows.since_ns, rows.until_ns);
    if !rows.unnumbered.is_empty() {
        *input.unplaced.entry("communicator's start not seen".to_owned()).or_default() += rows.unnumbered.len() as u64;
    }
    (input, bytes)
}

/// A clock as it was at the end of a window.
fn at(clock: &ClockOffset, window: i64, reference: u16) -> ReferenceClock {
    let aligned = clock.align(end_of(window));
    ReferenceClock {
        reference,
        offset_us: (end_of(window) - aligned) / 1_000,
        bound_us: u32::try_from(clock.bound_within(aligned, aligned) / 1_000 + 1).unwrap_or(u32::MAX),
    }
}

fn of_node(
    mut calls: Vec<&Observation>,
    mut syncs: Vec<&SyncCall>,
    clock: impl Fn(i64) -> Option<ReferenceClock>,
) -> Vec<Digest> {
    let exit = |seen: &Observation| seen.entry_ns.saturating_add(seen.duration_ns);
    calls.sort_by_key(|seen| exit(seen));
    let synced = |sync: &SyncCall| sync.start_ns.saturating_add(sync.duration_ns);
    syncs.sort_by_key(|sync| synced(sync));
    let (Some(first), Some(last)) = (calls.first(), calls.last()) else { return Vec::new() };
    let (first, last) =
        (window_of(exit(first)), window_of(exit(last).max(syncs.last().map_or(0, |sync| synced(sync)))));
    let mut collector = Collector::default();
    let mut rest = calls.into_iter().peekable();
    let mut waits = syncs.into_iter().peekable();
    // Two windows more: what waits for a run to fill is shipped.
    (first..=last + 2)
        .map(|window| {
            while let Some(seen) = rest.next_if(|seen| exit(seen) < end_of(window)) {
                collector.push(seen.clone());
            }
            while let Some(sync) = waits.next_if(|sync| synced(sync) < end_of(window)) {
                if let Ok(pid) = u32::try_from(sync.pid) {
                    collector.synced(pid, sync.start_ns, sync.duration_ns);
                }
            }
            Digest { clock: clock(window), ..collector.close(window) }
        })
        .collect()
}
