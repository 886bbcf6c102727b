//! Makes the input of an analysis of digests of many nodes and windows.
//!
//! Runs of different lengths are brought to common ones: where a tenth of the ranks or more gave a
//! longer run, the others' shorter ones inside it are added up. Pure, and the same for everybody
//! who has the same digests, in whatever order they came.

use std::collections::BTreeMap;
use std::sync::Arc;

use observed::{
    ClockOffset, Coupling, Doing, Input, LaneTotal, Progress, Rules, Run, Sampled, Stepped, Totals, complete_together,
    parallel, places::Places,
};

use super::blocks::Sum;
use super::step_times::StepTimes;
use super::{Block, Digest, Lane, Open, ReferenceClock, WINDOW_NS, end_of};

/// The digests of one node.
#[derive(Debug, Clone, Copy)]
pub struct NodeDigests<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its digests, by window, ascending.
    pub digests: &'a [&'a Digest],
}

/// A lane over all windows: as it was reported first, with the calls of all and its runs.
struct Track<'a> {
    node: &'a Arc<str>,
    pid: u32,
    lane: &'a Lane,
    nranks: Option<i32>,
    calls: u64,
    /// All ranks meet in its calls.
    meets: bool,
    /// With where their exits count from, on the node's clock as of its last digest.
    blocks: Vec<(Block, i64)>,
}

impl Track<'_> {
    fn total(&self) -> LaneTotal {
        LaneTotal {
            comm_hash: self.lane.comm_hash,
            nranks: self.nranks,
            rank: self.lane.rank,
            func: Arc::clone(&self.lane.func),
            calls: self.calls,
            tier: self.lane.tier,
            library: Arc::clone(&self.lane.library),
        }
    }
}

/// The lanes of one node.
#[derive(Default)]
struct Tracks<'a> {
    all: Vec<Track<'a>>,
    /// By process, communicator and function.
    places: Places<(u32, u64, &'a str)>,
}

impl<'a> Tracks<'a> {
    fn add(&mut self, node: &'a Arc<str>, pid: u32, lane: &'a Lane, base_us: i64) {
        let place = self.places.of((pid, lane.comm_hash, &lane.func));
        if place == self.all.len() {
            let meets = Coupling::of(&lane.func) == Coupling::All;
            self.all.push(Track { node, pid, lane, nranks: None, calls: 0, meets, blocks: Vec::new() });
        }
        let track = &mut self.all[place];
        track.calls = track.calls.saturating_add(lane.calls);
        track.nranks = track.nranks.max(lane.nranks);
        if track.meets {
            track.blocks.extend(lane.blocks.iter().map(|block| (*block, base_us)));
        }
    }
}

/// The input made of digests. Times are those of the node whose id is `reference`; `all`
/// and the span are left to the caller.
#[must_use]
pub fn to_input(all: &[NodeDigests<'_>], reference: u16) -> Input {
    let mut input = without_progress(all, reference);
    input.progress = all.iter().flat_map(progress_of).collect();
    complete_together(&mut input.progress);
    input
}

/// The same, where it is known otherwise how far processes got.
#[must_use]
pub fn without_progress(all: &[NodeDigests<'_>], reference: u16) -> Input {
    let mut input = Input::default();
    for node in all {
        let clocks = || node.digests.iter().rev().filter_map(|digest| clock_of(digest, Some(reference)));
        if let Some(clock) = clocks().next() {
            let offset_ns = clock.offset_us.saturating_mul(1_000);
            // Of all windows the widest: an older one may have been known less well.
            let widest_us = clocks().map(|clock| clock.bound_us).max().unwrap_or(clock.bound_us);
            let bound_ns = i64::from(widest_us).saturating_mul(1_000);
            input.clocks.insert(node.node.to_owned(), ClockOffset::steady(offset_ns, bound_ns));
        }
        for unplaced in node.digests.iter().map(|digest| digest.unplaced).filter(|unplaced| *unplaced > 0) {
            *input.unplaced.entry("rank, communicator or number not known".to_owned()).or_default() += unplaced;
        }
        // Only what was reported last still holds.
        let doing = node.digests.last().into_iter().flat_map(|digest| &digest.processes);
        let doing = doing.filter_map(|process| Some((process.pid, process.activity?)));
        let of = |(pid, activity): (u32, _)| Doing { node: node.node.into(), pid: pid.into(), activity };
        input.doing.extend(doing.map(of));
    }
    let figures = figures(all, Some(reference), &input.clocks);
    (input.sampled, input.stepped, input.totals) = (figures.sampled, figures.stepped, figures.totals);
    input
}

/// A digest's clock against the reference node's.
fn clock_of(digest: &Digest, reference: Option<u16>) -> Option<ReferenceClock> {
    digest.clock.filter(|clock| Some(clock.reference) == reference)
}

/// What digests hold of their processes' calls.
pub(super) struct Figures {
    /// Runs of calls.
    pub(super) sampled: Vec<Sampled>,
    /// Single steps, where hosts run ahead.
    pub(super) stepped: Vec<Stepped>,
    /// What each process called.
    pub(super) totals: Vec<Totals>,
}

/// What digests hold of their processes' calls; `clocks` are those of their hosts.
pub(super) fn figures(
    all: &[NodeDigests<'_>],
    reference: Option<u16>,
    clocks: &BTreeMap<String, ClockOffset>,
) -> Figures {
    let names: Vec<Arc<str>> = all.iter().map(|node| node.node.into()).collect();
    let mut lanes: BTreeMap<(u64, &str), Vec<Track<'_>>> = BTreeMap::new();
    let mut step_times = StepTimes::default();
    let mut all_totals = Vec::new();
    for (node, name) in all.iter().zip(&names) {
        let latest = node.digests.iter().rev().find_map(|digest| clock_of(digest, reference));
        let mut opens: BTreeMap<u32, Option<Arc<str>>> = BTreeMap::new();
        let mut tracks = Tracks::default();
        for digest in node.digests {
            // The clocks of one node and window agree within the drift between two digests; older
            // windows are moved to the last.
            let moved = match (latest, clock_of(digest, reference)) {
                (Some(last), Some(then)) => last.offset_us.saturating_sub(then.offset_us),
                _ => 0,
            };
            let base_us = (digest.window.saturating_mul(WINDOW_NS) / 1_000).saturating_add(moved);
            step_times.add(name, digest, base_us);
            for process in &digest.processes {
                let known = opens.entry(process.pid).or_default();
                *known = process.opens.clone().or(known.take());
            }
            tracks.places.restart();
            for lane in &digest.lanes {
                let Some(process) = digest.processes.get(lane.process) else { continue };
                tracks.add(name, process.pid, lane, base_us);
            }
        }
        let mut totals: BTreeMap<u32, Vec<LaneTotal>> = BTreeMap::new();
        tracks.all.iter().for_each(|track| totals.entry(track.pid).or_default().push(track.total()));
        all_totals.extend(totals.into_iter().map(|(pid, lanes)| {
            let opens = opens.remove(&pid).flatten();
            Totals { node: Arc::clone(name), pid: pid.into(), opens, lanes }
        }));
        for track in tracks.all.into_iter().filter(|track| track.meets) {
            lanes.entry((track.lane.comm_hash, &track.lane.func)).or_default().push(track);
        }
    }
    // Where compute times come from steps, the calls that end them are the collectives.
    let mut computed = step_times.compute_times(clocks);
    let stepped = std::mem::take(&mut computed.stepped);
    lanes.retain(|key, _| !computed.ends.contains(key));
    let blocks: usize = lanes.values().flatten().map(|track| track.blocks.len()).sum();
    let of_each = parallel::map(lanes.into_values().collect(), blocks >= Input::MANY_CALLS, |mut lanes: Vec<_>| {
        lanes.sort_by_key(|track| (track.node, track.pid));
        sampled(&lanes)
    });
    let mut sampled = of_each.into_iter().flatten().collect();
    computed.spread(&mut sampled);
    Figures { sampled, stepped, totals: all_totals }
}

/// How far the processes of a node got: the last digest that has a lane counts.
fn progress_of(from: &NodeDigests<'_>) -> Vec<Progress> {
    let node: Arc<str> = from.node.into();
    let mut known: BTreeMap<(u32, u64, &str), Progress> = BTreeMap::new();
    for (digest, lane) in from.digests.iter().flat_map(|of| of.lanes.iter().map(move |lane| (of, lane))) {
        let Some(pid) = digest.processes.get(lane.process).map(|process| process.pid) else { continue };
        if let Some(progress) = progress(&node, pid, lane, digest.window) {
            known.insert((pid, lane.comm_hash, &lane.func), progress);
        }
    }
    known.into_values().collect()
}

/// How far a process got by a lane of a digest; none where the lane has no numbers.
#[must_use]
pub fn progress(node: &Arc<str>, pid: u32, lane: &Lane, window: i64) -> Option<Progress> {
    let reached = lane.open.map(|open| open.seq).or(lane.last_seq)?;
    let lasted_ns = |open: Open| i64::try_from(open.for_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    let since_ns = lane.open.map(|open| end_of(window).saturating_sub(lasted_ns(open)));
    let enqueued = lane.open.is_some_and(|open| lane.last_seq == Some(open.seq));
    Some(Progress {
        node: Arc::clone(node),
        pid: pid.into(),
        rank: lane.rank,
        nranks: lane.nranks,
        comm_hash: lane.comm_hash,
        func: Arc::clone(&lane.func),
        entered: Some(reached),
        completed: if lane.open.is_some() { reached.checked_sub(1) } else { Some(reached) },
        since_ns,
        syncing_since_ns: since_ns.filter(|_| enqueued),
        ..Progress::default()
    })
}

/// The runs of one communicator and function that all have in common.
fn sampled(lanes: &[Track<'_>]) -> Vec<Sampled> {
    // Where nearly all were waited for, these alone count: what was shipped before, or of others,
    // is not comparable. Where few were, those of them are left out that stand for several calls,
    // and of the others the entry counts.
    let waiting = lanes.iter().filter(|track| track.blocks.iter().any(|(block, _)| block.waited.is_some())).count();
    let waited = waiting > 0 && waiting as f64 >= Rules::RUNS_WAITED * lanes.len() as f64;
    let usable = |block: &Block| match block.waited {
        Some(calls) => waited || u64::from(calls) == block.size(),
        None => !waited,
    };
    // How many lanes gave a run, by level and start: the longest first.
    let mut given: BTreeMap<(std::cmp::Reverse<u8>, u64), usize> = BTreeMap::new();
    for (block, _) in lanes.iter().flat_map(|track| &track.blocks).filter(|(block, _)| usable(block)) {
        *given.entry((std::cmp::Reverse(block.level), block.start)).or_default() += 1;
    }
    let few = (lanes.len() as f64 * Rules::RUN_OUTLIERS) as usize;
    // By start: the level of each common run. They do not overlap.
    let mut common: BTreeMap<u64, u8> = BTreeMap::new();
    for ((std::cmp::Reverse(level), start), count) in given {
        if count > few && covering(&common, start).is_none() {
            common.insert(start, level);
        }
    }
    let sums: Vec<Vec<(u64, u8, Sum)>> = lanes
        .iter()
        .map(|track| {
            let mut own: Vec<(u64, u8, Sum)> = Vec::new();
            for (block, base_us) in track.blocks.iter().filter(|(block, _)| usable(block)) {
                let Some((start, level)) = covering(&common, block.start).filter(|(_, level)| block.level <= *level)
                else {
                    continue;
                };
                // Digests mostly come in order: it is the last one, or a new one at the end.
                let place = own.partition_point(|(other, ..)| *other < start);
                if own.get(place).is_none_or(|(other, ..)| *other != start) {
                    own.insert(place, (start, level, Sum::default()));
                }
                own[place].2.add(block, *base_us, waited);
            }
            own
        })
        .collect();
    // How many calls were waited for in a run: the number that most ranks have.
    let mut lengths: BTreeMap<u64, BTreeMap<u64, usize>> = BTreeMap::new();
    if waited {
        for (start, _, sum) in sums.iter().flatten() {
            *lengths.entry(*start).or_default().entry(sum.calls).or_default() += 1;
        }
    }
    let most = |start: u64| lengths.get(&start).and_then(|calls| calls.iter().max_by_key(|(calls, n)| (**n, **calls)));
    let run = |(start, level, sum): (u64, u8, Sum)| {
        // A run that came twice, or only a part of it, is left out.
        let calls_in_all = if waited { most(start).map_or(0, |(calls, _)| *calls) } else { 1 << level };
        let (entry_ns, duration_ns, compute_ns) = sum.means().filter(|_| sum.calls == calls_in_all)?;
        let weight = u32::try_from(calls_in_all).unwrap_or(u32::MAX);
        Some(Run { seq: start, entry_ns, duration_ns, compute_ns, unsure: None, weight, waited })
    };
    let of_lane = |(track, own): (&Track<'_>, Vec<(u64, u8, Sum)>)| Sampled {
        node: Arc::clone(track.node),
        pid: track.pid.into(),
        rank: track.lane.rank,
        comm_hash: track.lane.comm_hash,
        func: Arc::clone(&track.lane.func),
        tier: track.lane.tier,
        library: Arc::clone(&track.lane.library),
        runs: own.into_iter().filter_map(run).collect(),
    };
    lanes.iter().zip(sums).map(of_lane).filter(|lane| !lane.runs.is_empty()).collect()
}

/// The common run in which a number lies.
fn covering(runs: &BTreeMap<u64, u8>, seq: u64) -> Option<(u64, u8)> {
    let (&start, &level) = runs.range(..=seq).next_back()?;
    (seq - start < 1 << level).then_some((start, level))
}
