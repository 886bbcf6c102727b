//! What digests would say of recorded or simulated rows: for tests and benchmarks of the way
//! that standing verdicts take.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::Arc;
use std::vec::IntoIter;

use digest::{
    Collector, Digest, NodeDigests, ReferenceClock, decode, encode, encode_within, end_of, reference_id, to_input,
    window_of,
};
use standing::{Board, Judge, Presence, Standing};
use verdicts::{ClockOffset, Gone, InCall, Input, Observation, SyncCall};

use super::clocks::AgentClocks;
use super::draw::Drawn;

/// Digests of a node that others still hear when they close a window: as many as are gossiped under
/// names in turn.
const HEARD: usize = 8;

/// An agent says of a call or a wait for the device that it lasts when it has for so long.
const OPEN_NS: i64 = 1_000_000_000;

/// How long a digest takes to be heard.
const GOSSIP_NS: i64 = 200_000_000;

/// Bytes of a digest, at most.
const LARGEST: usize = 8_000;

/// Windows of a job that hangs, at most.
const LONGEST_HANG_NS: i64 = 60_000_000_000;

/// What one host records, in the order in which it ends.
struct Host<'a> {
    node: Arc<str>,
    /// With whether it has a number.
    calls: Peekable<IntoIter<(&'a Observation, bool)>>,
    syncs: Peekable<IntoIter<&'a SyncCall>>,
    /// Calls that do not end.
    open: Vec<InCall>,
    /// Synchronise calls that do not end: process and start.
    waits: Vec<(u32, i64)>,
    /// Processes that end, and when.
    gone: Vec<(u32, i64)>,
    collector: Collector,
    digests: Vec<Digest>,
}

/// [`replay_by`] with clocks as they are in the input: measured once for all windows.
///
/// # Panics
/// As [`replay_by`].
#[must_use]
pub fn replay(rows: &Input) -> (Input, usize) {
    let reference = reference_of(rows);
    replay_by(rows, &mut |node, window| rows.clocks.get(node).map(|clock| at(clock, window, reference)))
}

/// What the clocks of digests that are made of these rows are to be against.
#[must_use]
pub fn reference_of(rows: &Input) -> u16 {
    let first = rows.observations.iter().chain(&rows.unnumbered).map(|seen| &seen.node).min();
    first.map_or(0, |node| reference_id(node))
}

/// Runs the rows of an input through each host's digests, as text and back: the input that an agent
/// would make of them, and the bytes of the digests. `clock_of` says a node's clock as its digest
/// of a window has it; windows ascend. Clocks are against the node of [`reference_of`]. Hosts hear
/// each other's digests one window later. What processes do is not taken over. Bytes are those of
/// the windows up to the end of the span, and of later ones those that ship what was held back: a
/// job that goes on has no others.
///
/// # Panics
/// Where a digest does not survive its encoding: a fault of this module.
#[must_use]
pub fn replay_by(rows: &Input, clock_of: &mut dyn FnMut(&str, i64) -> Option<ReferenceClock>) -> (Input, usize) {
    let (published, bytes) = digests_by(rows, clock_of);
    let refs: Vec<Vec<&Digest>> = published.iter().map(|(_, digests)| digests.iter().collect()).collect();
    let heard: Vec<NodeDigests<'_>> =
        published.iter().zip(&refs).map(|((node, _), digests)| NodeDigests { node, digests }).collect();
    let mut input = to_input(&heard, reference_of(rows));
    for (node, last) in published.iter().filter_map(|(node, digests)| Some((node, digests.last()?))) {
        input.gone.extend(last.gone.iter().map(|gone| Gone {
            node: Arc::clone(node),
            pid: gone.pid.into(),
            at_ns: end_of(gone.window),
            how: String::new(),
        }));
    }
    input.coverage = rows.coverage.clone();
    (input.since_ns, input.until_ns) = (rows.since_ns, rows.until_ns);
    (input, bytes)
}

/// The standing verdicts of a drawn job of which `rows` were recorded, each host with the clock
/// that its agent has measured.
#[must_use]
pub fn standing_of(drawn: &Drawn, rows: &Input) -> Vec<Standing> {
    let mut clocks = AgentClocks::new(drawn.clocks(), rows.since_ns, reference_of(rows));
    standing_by(rows, &mut |node, window| clocks.at(node, window))
}

/// The standing verdicts of an agent that hears those digests as they are gossiped, window after
/// window: cut to what a digest may take, kept on a board, judged and settled.
///
/// # Panics
/// As [`replay_by`].
fn standing_by(rows: &Input, clock_of: &mut dyn FnMut(&str, i64) -> Option<ReferenceClock>) -> Vec<Standing> {
    let (mut published, _) = digests_by(rows, clock_of);
    // What comes after the end of the span is not judged: the job goes on.
    for (node, digests) in &mut published {
        let ahead_ns = rows.clocks.get(&**node).map_or(0, |clock| clock.offset_ns);
        digests.retain(|digest| digest.window <= window_of(rows.until_ns.saturating_add(ahead_ns)));
    }
    let live = published.iter().map(|(node, _)| (node.to_string(), Presence::Live)).collect();
    let mut coming: Vec<(i64, &Arc<str>, &Digest)> = Vec::new();
    for (node, digest) in published.iter().flat_map(|(node, digests)| digests.iter().map(move |digest| (node, digest)))
    {
        let ahead_ns = digest.clock.map_or(0, |clock| clock.offset_us.saturating_mul(1_000));
        coming.push((end_of(digest.window) - ahead_ns + GOSSIP_NS, node, digest));
    }
    coming.sort_by_key(|(at_ns, node, digest)| (*at_ns, *node, digest.window));
    let (mut board, mut judge) = (Board::default(), Judge::default());
    let mut verdicts = Vec::new();
    for (at_ns, node, digest) in coming {
        let text = encode_within(digest.clone(), LARGEST);
        board.receive(node, decode(&text).expect("a digest is read as it was written"), at_ns);
        board.presence(&live);
        verdicts.extend(judge.judge(&board, at_ns));
    }
    verdicts
}

/// Digests by the name of their host.
type Published = Vec<(Arc<str>, Vec<Digest>)>;

/// What each host gossips, by name, and the bytes of it; see [`replay_by`].
fn digests_by(rows: &Input, clock_of: &mut dyn FnMut(&str, i64) -> Option<ReferenceClock>) -> (Published, usize) {
    let mut hosts = hosts(rows);
    let ends = rows.observations.iter().chain(&rows.unnumbered).map(ended).chain(rows.syncs.iter().map(synced));
    let span =
        ends.fold(None::<(i64, i64)>, |span, at| span.map_or(Some((at, at)), |(a, b)| Some((a.min(at), b.max(at)))));
    let hangs = !rows.syncing.is_empty() || !rows.in_calls.is_empty();
    // Who hangs goes on to say so.
    let hangs_until = |last: i64| rows.until_ns.min(last.saturating_add(LONGEST_HANG_NS)).max(last);
    let span = span.map(|(first, last)| (first, if hangs { hangs_until(last) } else { last }));
    let mut bytes = 0;
    // Windows more: what waits for a run to fill, or for its number, is shipped.
    let last = span.map_or(0, |(_, last)| window_of(last));
    for window in span.map_or(0..0, |(first, _)| window_of(first)..last + 9) {
        let recent: Vec<(Arc<str>, Vec<Digest>)> = hosts
            .iter()
            .filter(|_| !rows.unnumbered.is_empty())
            .map(|host| {
                let from = host.digests.len().saturating_sub(HEARD);
                (Arc::clone(&host.node), host.digests[from..].to_vec())
            })
            .collect();
        let refs: Vec<Vec<&Digest>> = recent.iter().map(|(_, digests)| digests.iter().collect()).collect();
        let heard: Vec<NodeDigests<'_>> =
            recent.iter().zip(&refs).map(|((node, _), digests)| NodeDigests { node, digests }).collect();
        for host in &mut hosts {
            let clock = clock_of(&host.node, window);
            let digest = host.close(window, clock, &heard);
            let text = encode(&digest);
            let held_back = !digest.steps.is_empty() || digest.lanes.iter().any(|lane| !lane.blocks.is_empty());
            bytes += if window <= last || held_back { text.len() } else { 0 };
            assert_eq!(decode(&text).as_ref(), Ok(&digest), "a digest is read as it was written");
            host.digests.push(digest);
        }
    }
    (hosts.into_iter().map(|host| (host.node, host.digests)).collect(), bytes)
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
            let here = |of: &str| *of == **node;
            let open = rows.in_calls.iter().filter(|call| here(&call.node)).cloned();
            let waits = rows.syncing.iter().filter(|sync| here(&sync.node));
            let gone = rows.gone.iter().filter(|gone| here(&gone.node));
            Host {
                open: open.collect(),
                waits: waits.filter_map(|sync| Some((u32::try_from(sync.pid).ok()?, sync.start_ns))).collect(),
                gone: gone.filter_map(|gone| Some((u32::try_from(gone.pid).ok()?, gone.at_ns))).collect(),
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
    fn close(&mut self, window: i64, clock: Option<ReferenceClock>, heard: &[NodeDigests<'_>]) -> Digest {
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
        let lasted = |since_ns: i64| end_of(window).saturating_sub(since_ns);
        let open = self.open.iter().filter(|call| lasted(call.since_ns) >= OPEN_NS).cloned();
        self.collector.open(window, &open.collect::<Vec<_>>());
        let waits = self.waits.iter().map(|(pid, since_ns)| (*pid, lasted(*since_ns)));
        let waits = waits.filter(|(_, lasted_ns)| *lasted_ns >= OPEN_NS);
        self.collector.device_waits(&waits.map(|(pid, ns)| (pid, ns.unsigned_abs() / 1_000_000)).collect::<Vec<_>>());
        let mut digest = self.collector.close(window);
        // Only now, as agents do: their last calls are in this digest.
        let gone: Vec<u32> =
            self.gone.extract_if(.., |(_, at_ns)| *at_ns < end_of(window)).map(|(pid, _)| pid).collect();
        self.collector.gone(gone, &mut digest);
        Digest { clock, ..digest }
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
