//! Makes the input of an analysis of digests of many nodes and windows.
//!
//! Runs of different lengths are brought to common ones: where a tenth of the ranks or more gave a
//! longer run, the others' shorter ones inside it are added up. Pure, and the same for everybody
//! who has the same digests, in whatever order they came.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::blocks::Sum;
use super::step_times::StepTimes;
use super::{Block, Digest, ReferenceClock, WINDOW_NS, end_of};
use crate::activity::Doing;
use crate::hang::{Progress, complete_together};
use crate::input::Input;
use crate::observation::{ClockOffset, Coupling, Observation};
use crate::parallel;
use crate::rules::Rules;
use crate::sampled::{LaneTotal, Sampled, Totals};

/// The digests of one node.
#[derive(Debug, Clone, Copy)]
pub struct Heard<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its digests, by window, ascending.
    pub digests: &'a [&'a Digest],
}

/// A lane's blocks over all windows: with where their exits count from, on the node's clock as of
/// its last digest.
struct Track<'a> {
    node: &'a Arc<str>,
    pid: i64,
    lane: &'a super::Lane,
    blocks: Vec<(Block, i64)>,
}

/// By communicator and function.
type Tracks<'a> = BTreeMap<(u64, &'a str), Vec<Track<'a>>>;

/// The input over what was heard. Times are those of the node that `reference` stands for; `heard`
/// and the span are left to the caller.
#[must_use]
pub fn to_input(all: &[Heard<'_>], reference: u16) -> Input {
    let mut input = Input::default();
    for heard in all {
        let name: Arc<str> = heard.node.into();
        let clocks = || heard.digests.iter().rev().filter_map(|digest| clock_of(digest, Some(reference)));
        if let Some(clock) = clocks().next() {
            let offset_ns = clock.offset_us.saturating_mul(1_000);
            // Of all windows the widest: an older one may have been told less well.
            let widest_us = clocks().map(|clock| clock.bound_us).max().unwrap_or(clock.bound_us);
            let bound_ns = i64::from(widest_us).saturating_mul(1_000);
            input.clocks.insert(heard.node.to_owned(), ClockOffset::steady(offset_ns, bound_ns));
        }
        let mut progress: BTreeMap<(u32, u64, &str), Progress> = BTreeMap::new();
        for digest in heard.digests {
            if digest.unplaced > 0 {
                *input.unplaced.entry("rank, communicator or number not known".to_owned()).or_default() +=
                    digest.unplaced;
            }
            // Otherwise it is not known how far it got.
            for lane in digest.lanes.iter().filter(|lane| lane.last_seq.is_some() || lane.open.is_some()) {
                if let Some(process) = digest.processes.get(lane.process) {
                    advance(&mut progress, &name, process.pid, lane, end_of(digest.window));
                }
            }
        }
        // Only what was said last still holds.
        for process in heard.digests.last().into_iter().flat_map(|digest| &digest.processes) {
            if let Some(activity) = process.activity {
                input.doing.push(Doing { node: Arc::clone(&name), pid: process.pid.into(), activity });
            }
        }
        input.progress.extend(progress.into_values());
    }
    complete_together(&mut input.progress);
    (input.sampled, input.totals) = figures(all, Some(reference), &input.clocks);
    input
}

/// A digest's clock against the reference node's.
fn clock_of(digest: &Digest, reference: Option<u16>) -> Option<ReferenceClock> {
    digest.clock.filter(|clock| Some(clock.reference) == reference)
}

/// The cells of what was heard, and what each process called.
pub(super) fn figures(
    all: &[Heard<'_>],
    reference: Option<u16>,
    clocks: &BTreeMap<String, ClockOffset>,
) -> (Vec<Sampled>, Vec<Totals>) {
    let names: Vec<Arc<str>> = all.iter().map(|heard| heard.node.into()).collect();
    let mut tracks: Tracks<'_> = BTreeMap::new();
    let mut told = StepTimes::default();
    let mut all_totals = Vec::new();
    for (heard, name) in all.iter().zip(&names) {
        let latest = heard.digests.iter().rev().find_map(|digest| clock_of(digest, reference));
        let mut totals: BTreeMap<u32, Totals> = BTreeMap::new();
        let mut counted: HashMap<(u32, u64, &str), usize> = HashMap::new();
        let mut own: BTreeMap<(u64, &str, u32), Track<'_>> = BTreeMap::new();
        for digest in heard.digests {
            // The clocks of one node and window agree within the drift between two digests; older
            // windows are moved to the last.
            let moved = match (latest, clock_of(digest, reference)) {
                (Some(last), Some(then)) => last.offset_us.saturating_sub(then.offset_us),
                _ => 0,
            };
            let base_us = (digest.window.saturating_mul(WINDOW_NS) / 1_000).saturating_add(moved);
            told.add(name, digest, base_us);
            for process in &digest.processes {
                let known = totals.entry(process.pid).or_insert_with(|| Totals {
                    node: Arc::clone(name),
                    pid: process.pid.into(),
                    opens: None,
                    lanes: Vec::new(),
                });
                known.opens = process.opens.clone().or(known.opens.take());
            }
            for lane in &digest.lanes {
                let Some(pid) = digest.processes.get(lane.process).map(|p| p.pid) else { continue };
                if let Some(of) = totals.get_mut(&pid) {
                    let known = counted.entry((pid, lane.comm_hash, &lane.func));
                    count(of, known, lane);
                }
                if Coupling::of(&lane.func) == Coupling::All {
                    let track = own.entry((lane.comm_hash, &lane.func, pid)).or_insert_with(|| Track {
                        node: name,
                        pid: pid.into(),
                        lane,
                        blocks: Vec::new(),
                    });
                    track.blocks.extend(lane.blocks.iter().map(|block| (*block, base_us)));
                }
            }
        }
        all_totals.extend(totals.into_values().filter(|of| !of.lanes.is_empty()));
        for ((comm, func, _), track) in own {
            tracks.entry((comm, func)).or_default().push(track);
        }
    }
    // Where steps tell compute times, their ends are the collectives.
    let told = told.tell(clocks);
    tracks.retain(|key, _| !told.ends.contains(key));
    let blocks: usize = tracks.values().flatten().map(|track| track.blocks.len()).sum();
    let of_each = parallel::map(tracks.into_values().collect(), blocks >= Input::MANY_CALLS, |mut lanes: Vec<_>| {
        lanes.sort_by_key(|track| (track.node, track.pid));
        let mut sampled = Vec::new();
        cells(&lanes, &mut sampled);
        sampled
    });
    let mut sampled = of_each.concat();
    told.spread(&mut sampled);
    (sampled, all_totals)
}

/// How far the processes of one digest got.
pub(crate) fn progress_in(node: &Arc<str>, digest: &Digest) -> Vec<Progress> {
    let mut progress: BTreeMap<(u32, u64, &str), Progress> = BTreeMap::new();
    for lane in &digest.lanes {
        if let Some(process) = digest.processes.get(lane.process) {
            advance(&mut progress, node, process.pid, lane, end_of(digest.window));
        }
    }
    let mut all: Vec<Progress> = progress.into_values().collect();
    complete_together(&mut all);
    all
}

/// Adds a lane to its process's totals; `known` has its place there.
fn count(totals: &mut Totals, known: Entry<'_, (u32, u64, &str), usize>, lane: &super::Lane) {
    match known {
        Entry::Occupied(place) => {
            let Some(total) = totals.lanes.get_mut(*place.get()) else { return };
            total.count(lane.calls, lane.nranks);
        }
        Entry::Vacant(place) => {
            place.insert(totals.lanes.len());
            totals.lanes.push(LaneTotal {
                comm_hash: lane.comm_hash,
                nranks: lane.nranks,
                rank: lane.rank,
                func: Arc::clone(&lane.func),
                calls: lane.calls,
                tier: lane.tier,
                library: Arc::clone(&lane.library),
            });
        }
    }
}

/// How far a process got, as of a digest; later ones come later.
fn advance<'a>(
    progress: &mut BTreeMap<(u32, u64, &'a str), Progress>,
    node: &Arc<str>,
    pid: u32,
    lane: &'a super::Lane,
    end_ns: i64,
) {
    if lane.last_seq.is_none() && lane.open.is_none() {
        // It is not known how far it got.
        return;
    }
    let p = progress.entry((pid, lane.comm_hash, &lane.func)).or_insert_with(|| Progress {
        node: Arc::clone(node),
        pid: pid.into(),
        rank: lane.rank,
        nranks: lane.nranks,
        comm_hash: lane.comm_hash,
        func: Arc::clone(&lane.func),
        ..Progress::default()
    });
    p.completed = lane.last_seq.or(p.completed);
    p.entered = p.completed;
    (p.since_ns, p.syncing_since_ns) = (None, None);
    if let Some(open) = lane.open {
        p.completed = open.seq.checked_sub(1);
        p.entered = Some(open.seq);
        let lasted_ns = i64::try_from(open.for_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        p.since_ns = Some(end_ns.saturating_sub(lasted_ns));
        p.syncing_since_ns = p.since_ns.filter(|_| lane.last_seq == Some(open.seq));
    }
}

/// The cells of one communicator and function.
fn cells(lanes: &[Track<'_>], sampled: &mut Vec<Sampled>) {
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
    let mut runs: BTreeMap<u64, u8> = BTreeMap::new();
    for ((std::cmp::Reverse(level), start), count) in given {
        if count > few && covering(&runs, start).is_none() {
            runs.insert(start, level);
        }
    }
    let mut sums: Vec<BTreeMap<u64, Sum>> = Vec::with_capacity(lanes.len());
    for track in lanes {
        let mut own: BTreeMap<u64, Sum> = BTreeMap::new();
        for (block, base_us) in track.blocks.iter().filter(|(block, _)| usable(block)) {
            if let Some((start, level)) = covering(&runs, block.start)
                && block.level <= level
            {
                own.entry(start).or_default().add(block, *base_us, waited);
            }
        }
        sums.push(own);
    }
    // How many calls were waited for in a run: as most ranks say.
    let mut said: BTreeMap<u64, BTreeMap<u64, usize>> = BTreeMap::new();
    if waited {
        for (start, sum) in sums.iter().flatten() {
            *said.entry(*start).or_default().entry(sum.calls).or_default() += 1;
        }
    }
    let most = |start: u64| said.get(&start).and_then(|calls| calls.iter().max_by_key(|(calls, n)| (**n, **calls)));
    for (track, own) in lanes.iter().zip(sums) {
        for (start, sum) in own {
            let Some(level) = runs.get(&start) else { continue };
            // Twice the same run, or not the whole of it.
            let whole = if waited { most(start).map_or(0, |(calls, _)| *calls) } else { 1 << level };
            if sum.calls != whole {
                continue;
            }
            let Some((entry_ns, duration_ns, compute_ns)) = sum.means() else { continue };
            sampled.push(Sampled {
                seen: Observation {
                    node: Arc::clone(track.node),
                    pid: track.pid,
                    rank: track.lane.rank,
                    nranks: track.lane.nranks,
                    comm_hash: track.lane.comm_hash,
                    func: Arc::clone(&track.lane.func),
                    seq: start,
                    entry_ns,
                    duration_ns,
                    tier: track.lane.tier,
                    library: Arc::clone(&track.lane.library),
                    root: None,
                },
                compute_ns,
                unsure: None,
                weight: u32::try_from(whole).unwrap_or(u32::MAX),
                waited,
            });
        }
    }
}

/// The common run in which a number lies.
fn covering(runs: &BTreeMap<u64, u8>, seq: u64) -> Option<(u64, u8)> {
    let (&start, &level) = runs.range(..=seq).next_back()?;
    (seq - start < 1 << level).then_some((start, level))
}
