//! What digests would have told of recorded or simulated rows: for tests and benchmarks of the way that standing verdicts take.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::Arc;
use std::vec::IntoIter;

use super::{Collector, Digest, Heard, ReferenceClock, decode, encode, end_of, reference_id, to_input, window_of};
use crate::stragglers::{ClockOffset, Input, Observation, SyncCall};

/// Digests of a node that others still hear when they close a window: as many as are gossiped under names in turn.
const HEARD: usize = 8;

/// What one host records, in the order in which it ends.
struct Host<'a> {
    node: Arc<str>,
    /// With whether it has a number.
    calls: Peekable<IntoIter<(&'a Observation, bool)>>,
    syncs: Peekable<IntoIter<&'a SyncCall>>,
    collector: Collector,
    digests: Vec<Digest>,
}

/// Runs the rows of an input through each host's digests, as text and back: the input that an agent would make of
/// them, and the bytes of all digests. Clocks are taken to be measured against the node that sorts first. Hosts hear each other's digests
/// one window later. Work and progress are not taken over.
///
/// # Panics
/// Where a digest does not survive its encoding: a fault of this module.
#[must_use]
pub fn replay(rows: &Input) -> (Input, usize) {
    let mut hosts = hosts(rows);
    let reference = hosts.first().map_or(0, |host| reference_id(&host.node));
    let ends = rows.observations.iter().chain(&rows.unnumbered).map(ended).chain(rows.syncs.iter().map(synced));
    let span =
        ends.fold(None::<(i64, i64)>, |span, at| span.map_or(Some((at, at)), |(a, b)| Some((a.min(at), b.max(at)))));
    let mut bytes = 0;
    // Windows more: what waits for a run to fill, or for its number, is shipped.
    for window in span.map_or(0..0, |(first, last)| window_of(first)..window_of(last) + 9) {
        let said: Vec<(Arc<str>, Vec<Digest>)> = hosts
            .iter()
            .filter(|_| !rows.unnumbered.is_empty())
            .map(|host| {
                let from = host.digests.len().saturating_sub(HEARD);
                (Arc::clone(&host.node), host.digests[from..].to_vec())
            })
            .collect();
        let refs: Vec<Vec<&Digest>> = said.iter().map(|(_, digests)| digests.iter().collect()).collect();
        let heard: Vec<Heard<'_>> =
            said.iter().zip(&refs).map(|((node, _), digests)| Heard { node, digests }).collect();
        for host in &mut hosts {
            let clock = rows.clocks.get(&*host.node).map(|clock| at(clock, window, reference));
            let digest = host.close(window, clock, &heard);
            let text = encode(&digest);
            bytes += text.len();
            assert_eq!(decode(&text).as_ref(), Ok(&digest), "a digest is read as it was written");
            host.digests.push(digest);
        }
    }
    let refs: Vec<Vec<&Digest>> = hosts.iter().map(|host| host.digests.iter().collect()).collect();
    let heard: Vec<Heard<'_>> =
        hosts.iter().zip(&refs).map(|(host, digests)| Heard { node: &host.node, digests }).collect();
    let mut input = to_input(&heard, reference);
    input.heard = rows.heard.clone();
    (input.since_ns, input.until_ns) = (rows.since_ns, rows.until_ns);
    (input, bytes)
}

fn ended(seen: &Observation) -> i64 {
    seen.entry_ns.saturating_add(seen.duration_ns)
}

fn synced(sync: &SyncCall) -> i64 {
    sync.start_ns.saturating_add(sync.duration_ns)
}

/// All hosts of which there are calls, by name.
fn hosts(rows: &Input) -> Vec<Host<'_>> {
    let mut calls: BTreeMap<&Arc<str>, Vec<(&Observation, bool)>> = BTreeMap::new();
    let numbered = rows.observations.iter().map(|seen| (seen, true));
    for (seen, numbered) in numbered.chain(rows.unnumbered.iter().map(|seen| (seen, false))) {
        calls.entry(&seen.node).or_default().push((seen, numbered));
    }
    let mut syncs: BTreeMap<&str, Vec<&SyncCall>> = BTreeMap::new();
    for sync in &rows.syncs {
        syncs.entry(&sync.node).or_default().push(sync);
    }
    calls
        .into_iter()
        .map(|(node, mut calls)| {
            calls.sort_by_key(|(seen, _)| ended(seen));
            let mut syncs = syncs.remove(&**node).unwrap_or_default();
            syncs.sort_by_key(|sync| synced(sync));
            Host {
                node: Arc::clone(node),
                calls: calls.into_iter().peekable(),
                syncs: syncs.into_iter().peekable(),
                collector: Collector::default(),
                digests: Vec::new(),
            }
        })
        .collect()
}

impl Host<'_> {
    fn close(&mut self, window: i64, clock: Option<ReferenceClock>, heard: &[Heard<'_>]) -> Digest {
        while let Some((seen, numbered)) = self.calls.next_if(|(seen, _)| ended(seen) < end_of(window)) {
            if numbered {
                self.collector.push(seen.clone());
            } else {
                self.collector.push_unnumbered(seen.clone());
            }
        }
        while let Some(sync) = self.syncs.next_if(|sync| synced(sync) < end_of(window)) {
            if let Ok(pid) = u32::try_from(sync.pid) {
                self.collector.synced(pid, sync.start_ns, sync.duration_ns);
            }
        }
        self.collector.number(&self.node, window, clock, heard);
        Digest { clock, ..self.collector.close(window) }
    }
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
