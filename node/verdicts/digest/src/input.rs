//! Makes the input of an analysis of digests of many nodes and windows.
//!
//! Runs of different lengths are brought to common ones: where a tenth of the ranks or more gave a
//! longer run, the others' shorter ones inside it are added up. Pure, and the same for everybody
//! who has the same digests, in whatever order they came.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use observed::{
    ClockOffset, Coupling, Doing, InCall, Input, JobRank, LaneTotal, Progress, Rules, Run, Sampled, Stepped, SyncCall,
    Totals, is_counted, parallel, places::Places,
};

use super::blocks::{Means, Sum};
use super::step_times::StepTimes;
use super::{Block, Digest, Lane, ReferenceClock, WINDOW_NS, end_of};

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
    /// By digest, with where their exits count from, on the node's clock as of its last digest.
    runs: Vec<(&'a [Block], i64)>,
}

impl<'a> Track<'a> {
    /// Its runs that can be compared with others'.
    fn usable(&self, waited: bool) -> impl Iterator<Item = (&'a Block, i64)> {
        // Of those that stand for several calls, these alone where nearly all were waited for.
        let usable = move |block: &&Block| match block.waited {
            Some(calls) => waited || u64::from(calls) == block.size(),
            None => !waited,
        };
        self.runs.iter().flat_map(move |(blocks, base_us)| blocks.iter().filter(usable).map(|block| (block, *base_us)))
    }

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
    /// Adds a lane of one of so many digests.
    fn add(&mut self, node: &'a Arc<str>, pid: u32, lane: &'a Lane, (base_us, digests): (i64, usize)) {
        let place = self.places.of((pid, lane.comm_hash, &lane.func));
        if place == self.all.len() {
            let meets = Coupling::of(&lane.func) == Coupling::All;
            let runs = Vec::with_capacity(if meets { digests } else { 0 });
            self.all.push(Track { node, pid, lane, nranks: None, calls: 0, meets, runs });
        }
        let track = &mut self.all[place];
        track.calls = track.calls.saturating_add(lane.calls);
        track.nranks = track.nranks.max(lane.nranks);
        if track.meets {
            track.runs.push((&lane.blocks, base_us));
        }
    }
}

/// The input made of digests. Times are those of the node whose id is `reference`; `all`
/// and the span are left to the caller.
#[must_use]
pub fn to_input(all: &[NodeDigests<'_>], reference: u16) -> Input {
    let mut input = without_progress(all, reference);
    for node in all {
        let name: Arc<str> = node.node.into();
        let mut lanes = Reached::default();
        node.digests.iter().for_each(|digest| lanes.add(digest));
        input.progress.extend(lanes.progress(&name, node.digests));
    }
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
        still(node, &mut input);
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
                tracks.add(name, process.pid, lane, (base_us, node.digests.len()));
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
    let blocks: usize = lanes.values().flatten().flat_map(|track| &track.runs).map(|(blocks, _)| blocks.len()).sum();
    let of_each = parallel::map(lanes.into_values().collect(), blocks >= Input::MANY_CALLS, |mut lanes: Vec<_>| {
        lanes.sort_by_key(|track| (track.node, track.pid));
        sampled(&lanes)
    });
    let mut sampled = of_each.into_iter().flatten().collect();
    computed.spread(&mut sampled);
    Figures { sampled, stepped, totals: all_totals }
}

/// Windows in which a process that gets on is spoken of at least once, with all that belongs to it.
const SAID: usize = 12;
/// Windows in which a process that moves has left a call.
const MOVES: i64 = 4;

/// The calls that the processes of a node are in, their waits for devices, their ranks in the job,
/// and who moves: by its last digests.
fn still(node: &NodeDigests<'_>, input: &mut Input) {
    let name: Arc<str> = node.node.into();
    let Some(last) = node.digests.last() else { return };
    let ago_ns = |ms: u64| {
        let lasted_ns = i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        end_of(last.window).saturating_sub(lasted_ns)
    };
    for call in &last.long_calls {
        let Some(process) = last.processes.get(call.process) else { continue };
        input.in_calls.push(InCall {
            node: Arc::clone(&name),
            pid: process.pid.into(),
            func: Arc::clone(&call.func),
            comm_hash: call.comm.map(|of| of.comm_hash),
            rank: call.comm.map(|of| of.rank),
            nranks: call.comm.and_then(|of| of.nranks),
            comm_seq: call.comm_seq,
            root: call.root,
            tag: call.tag,
            payload: call.payload.clone(),
            since_ns: ago_ns(call.for_ms),
        });
    }
    for process in &last.processes {
        let Some(ms) = process.device_ms else { continue };
        let (node, pid) = (Arc::clone(&name), process.pid.into());
        input.syncing.push(SyncCall { node, pid, start_ns: ago_ns(ms), duration_ns: 0 });
    }
    let (mut ranks, mut moving) = (BTreeMap::new(), BTreeSet::new());
    for digest in node.digests.iter().rev().take(SAID) {
        for process in &digest.processes {
            if let Some(of_job) = process.of_job {
                ranks.entry(process.pid).or_insert(of_job);
            }
        }
        let moved = digest.lanes.iter().filter(|lane| lane.calls > 0 && digest.window > last.window - MOVES);
        moving.extend(moved.filter_map(|lane| Some(digest.processes.get(lane.process)?.pid)));
    }
    let gone: BTreeSet<u32> = last.gone.iter().map(|gone| gone.pid).collect();
    let rank = |(pid, (rank, nranks)): (u32, (i32, i32))| {
        let node = Arc::clone(&name);
        JobRank { node, pid: pid.into(), job: 0, rank, nranks }
    };
    input.ranks.extend(ranks.into_iter().filter(|(pid, _)| !gone.contains(pid)).map(rank));
    input.moving.extend(moving.into_iter().map(|pid| (Arc::clone(&name), pid.into())));
}

/// How far the processes of a node got: of each lane what was said last.
#[derive(Debug, Clone, Default)]
pub struct Reached(BTreeMap<(u32, u64, Arc<str>), LaneReached>);

/// How far a process got with one function of a communicator.
#[derive(Debug, Clone, Copy, Default)]
pub struct LaneReached {
    /// The window of the digest that says it.
    pub window: i64,
    rank: i32,
    nranks: Option<i32>,
    place: Option<u64>,
    /// It has numbers that were counted from the communicator's start.
    pub is_numbered: bool,
}

impl Reached {
    /// Takes in what a digest says of its lanes.
    pub fn add(&mut self, digest: &Digest) {
        for lane in &digest.lanes {
            let Some(pid) = digest.processes.get(lane.process).map(|process| process.pid) else { continue };
            let known = self.0.entry((pid, lane.comm_hash, Arc::clone(&lane.func)));
            let known = known.or_insert(LaneReached { window: i64::MIN, ..LaneReached::default() });
            if digest.window >= known.window {
                *known = LaneReached {
                    window: digest.window,
                    rank: lane.rank,
                    nranks: lane.nranks,
                    place: lane.place,
                    is_numbered: lane.last_seq.is_some(),
                };
            }
        }
    }

    /// The lanes: process, communicator, function.
    pub fn lanes(&self) -> impl Iterator<Item = (&(u32, u64, Arc<str>), &LaneReached)> {
        self.0.iter()
    }

    /// What was known was of before a window.
    pub fn renumber(&mut self, window: i64) {
        self.0.values_mut().for_each(|of| of.window = window);
    }

    /// Keeps some of the lanes.
    pub fn retain(&mut self, mut keeps: impl FnMut(&LaneReached) -> bool) {
        self.0.retain(|_, of| keeps(of));
    }

    /// How far each process got on its communicators, over all functions, with its last calls by the
    /// node's last `digests`.
    #[must_use]
    pub fn progress(&self, node: &Arc<str>, digests: &[&Digest]) -> Vec<Progress> {
        let mut all: BTreeMap<(u32, u64), Progress> = BTreeMap::new();
        for ((pid, comm_hash, func), lane) in &self.0 {
            let progress = all.entry((*pid, *comm_hash)).or_insert_with(|| Progress {
                node: Arc::clone(node),
                pid: (*pid).into(),
                rank: lane.rank,
                comm_hash: *comm_hash,
                ..Progress::default()
            });
            progress.nranks = progress.nranks.max(lane.nranks);
            progress.entered = progress.entered.max(lane.place);
            progress.uncounted |= lane.place.is_none() && is_counted(func);
        }
        let mut said: BTreeSet<(u32, u64)> = BTreeSet::new();
        for digest in digests.iter().rev().take(SAID) {
            for recent in &digest.recent {
                let Some(pid) = digest.processes.get(recent.process).map(|process| process.pid) else { continue };
                let key = (pid, recent.comm_hash);
                if let Some(progress) = all.get_mut(&key).filter(|_| said.insert(key)) {
                    recent.made.iter().for_each(|made| progress.made(made.clone()));
                    progress.pairs.clone_from(&recent.pairs);
                }
            }
        }
        for call in digests.last().into_iter().flat_map(|digest| &digest.long_calls) {
            let pid = digests.last().and_then(|digest| digest.processes.get(call.process)).map(|process| process.pid);
            let (Some(pid), Some(of)) = (pid, call.comm) else { continue };
            let progress = all.entry((pid, of.comm_hash)).or_insert_with(|| Progress {
                node: Arc::clone(node),
                pid: pid.into(),
                rank: of.rank,
                comm_hash: of.comm_hash,
                ..Progress::default()
            });
            progress.nranks = progress.nranks.max(of.nranks);
            progress.entered = progress.entered.max(call.comm_seq);
            progress.uncounted |= call.comm_seq.is_none() && is_counted(&call.func);
        }
        all.into_values().collect()
    }
}

/// The runs of one communicator and function that all have in common.
fn sampled(lanes: &[Track<'_>]) -> Vec<Sampled> {
    // Where nearly all were waited for, these alone count: what was shipped before, or of others,
    // is not comparable. Where few were, those of them are left out that stand for several calls,
    // and of the others the entry counts.
    let waits = |track: &&Track<'_>| track.runs.iter().any(|(blocks, _)| blocks.iter().any(|b| b.waited.is_some()));
    let waiting = lanes.iter().filter(waits).count();
    let waited = waiting > 0 && waiting as f64 >= Rules::RUNS_WAITED * lanes.len() as f64;
    let common = common(lanes, waited);
    // How many calls were waited for in a common run: the number that most ranks have.
    let mut most = vec![0; common.len()];
    let mut sums: Vec<Sum> = Vec::new();
    if waited {
        let mut lengths: Vec<BTreeMap<u64, usize>> = vec![BTreeMap::new(); common.len()];
        for track in lanes {
            add_up(track, &common, waited, &mut sums);
            let given = lengths.iter_mut().zip(&sums).filter(|(_, sum)| sum.calls > 0);
            given.for_each(|(lengths, sum)| *lengths.entry(sum.calls).or_default() += 1);
        }
        for (most, lengths) in most.iter_mut().zip(lengths) {
            let longest = lengths.into_iter().max_by_key(|(calls, ranks)| (*ranks, *calls));
            *most = longest.map_or(0, |(calls, _)| calls);
        }
    }
    let run = |((start, level), sum, most): ((u64, u8), &Sum, u64)| {
        // A run that came twice, or only a part of it, is left out.
        let calls_in_all = if waited { most } else { 1 << level };
        let means = if sum.calls > 0 && sum.calls == calls_in_all { sum.means()? } else { return None };
        let Means { entry_ns, duration_ns, halted_ns, held_ns, compute_ns } = means;
        let weight = u32::try_from(calls_in_all).unwrap_or(u32::MAX);
        Some(Run { seq: start, entry_ns, duration_ns, halted_ns, held_ns, compute_ns, unsure: None, weight, waited })
    };
    let of_lane = |track: &Track<'_>| {
        add_up(track, &common, waited, &mut sums);
        let mut runs = Vec::with_capacity(common.len());
        runs.extend(common.iter().zip(&sums).zip(&most).filter_map(|((of, sum), most)| run((*of, sum, *most))));
        Sampled {
            node: Arc::clone(track.node),
            pid: track.pid.into(),
            rank: track.lane.rank,
            comm_hash: track.lane.comm_hash,
            func: Arc::clone(&track.lane.func),
            tier: track.lane.tier,
            library: Arc::clone(&track.lane.library),
            runs,
        }
    };
    lanes.iter().map(of_lane).filter(|lane| !lane.runs.is_empty()).collect()
}

/// The runs that are compared, by start and level: of those that enough lanes gave, or a part of, the
/// longest. They do not overlap; in order.
fn common(lanes: &[Track<'_>], waited: bool) -> Vec<(u64, u8)> {
    // How many lanes gave a run: mostly all in the same order.
    let mut given: Places<(u64, u8)> = Places::default();
    let mut counts: Vec<usize> = Vec::new();
    for track in lanes {
        given.restart();
        for (block, _) in track.usable(waited) {
            let place = given.of((block.start, block.level));
            if place == counts.len() {
                counts.push(0);
            }
            counts[place] += 1;
        }
    }
    let few = (lanes.len() as f64 * Rules::RUN_OUTLIERS) as usize;
    let enough = given.into_keys().into_iter().zip(counts).filter(|(_, count)| *count > few);
    let mut longest_first: Vec<(u64, u8)> = enough.map(|(run, _)| run).collect();
    longest_first.sort_unstable_by_key(|(start, level)| (std::cmp::Reverse(*level), *start));
    let mut common: Vec<(u64, u8)> = Vec::with_capacity(longest_first.len());
    for run in longest_first {
        if covering(&common, run.0).is_none() {
            common.insert(common.partition_point(|other| *other < run), run);
        }
    }
    common
}

/// Sums of a lane's runs, one for each common run: no calls where it gave none.
fn add_up(track: &Track<'_>, common: &[(u64, u8)], waited: bool, sums: &mut Vec<Sum>) {
    sums.clear();
    sums.resize(common.len(), Sum::default());
    let mut last = 0;
    for (block, base_us) in track.usable(waited) {
        // Digests mostly come in order: it is the last one, or the next.
        let near = (last..common.len().min(last + 2)).find(|place| covers(common[*place], block.start));
        let Some(place) = near.or_else(|| covering(common, block.start)) else { continue };
        last = place;
        if block.level <= common[place].1 {
            sums[place].add(block, base_us, waited);
        }
    }
}

/// The place of the common run in which a number lies.
fn covering(runs: &[(u64, u8)], seq: u64) -> Option<usize> {
    let before = runs.partition_point(|(start, _)| *start <= seq).checked_sub(1)?;
    covers(runs[before], seq).then_some(before)
}

fn covers((start, level): (u64, u8), seq: u64) -> bool {
    seq >= start && seq - start < 1 << level
}
