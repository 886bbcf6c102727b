//! Numbers calls whose communicator's start was not seen, where they were recorded: by when they
//! ended, against what other hosts' digests say of the same communicator.
//!
//! Ranks leave a collective together. A run in another's digest says when its calls ended in the
//! mean; of this process's calls as many consecutive ones have the same mean end, and shifted by
//! one call it differs by the distance between calls. So the number is exact, however long the runs
//! are. Where ranks get their CPUs back late to leave, ends do not coincide, but the calls still
//! overlap, and that decides. Where nobody's start was seen, the process that sorts first counts its calls from 0 and the
//! others follow it. `collect` keeps the calls until they are numbered or given up; `number.rs`
//! does the same with rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use observed::{Coupling, Observation, Rules};

use super::{Digest, NodeDigests, ReferenceClock, WINDOW_NS};

/// Windows for which calls wait for their numbers.
const PATIENCE: i64 = 6;
/// Distances between a lane's calls for which there is hope that they coincide, after that.
const DISTANCES: i64 = 3;
/// Windows for which a call that only enqueues waits for the synchronise call after it, where its
/// process makes some.
const ENQUEUED: i64 = 120;
/// Windows after which it is tried again with a lane of which nothing coincided.
const AGAIN: i64 = 120;
/// Windows that a process waits for others' digests before it counts its own calls for all.
const ELECTION: i64 = 4;

/// A call of the collector, with what is known of its number.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) call: Observation,
    pub(super) number: Number,
}

/// What is known of a call's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    /// It was counted from the communicator's start.
    Given,
    /// It is not known yet.
    Missing,
    /// It was found here.
    Found,
    /// It will not be known.
    Never,
}

/// What is kept under: process, communicator, function.
pub(super) type Key = (u32, u64, Arc<str>);

/// Lanes whose calls have no numbers.
#[derive(Debug, Default)]
pub(super) struct LateLanes {
    lanes: BTreeMap<Key, LateLane>,
    /// Processes of which a synchronise call was seen.
    synchronise: BTreeSet<u32>,
    /// The last window of which records were lost.
    lost_in: Option<i64>,
}

#[derive(Debug, Clone, Copy)]
struct LateLane {
    /// The window in which hope began: its first call, or the last that coincided.
    since: i64,
    /// It counts its own calls for all: the next number.
    counts: Option<u64>,
    /// Numbers below were given already.
    next: u64,
    /// When its last call was entered, and how far apart the last three were.
    entered_ns: Option<i64>,
    distances_ns: [Option<i64>; 2],
}

/// What is known when numbers are looked for.
#[derive(Debug, Clone, Copy)]
struct Now {
    window: i64,
    /// The last window of which records were lost here.
    lost_in: Option<i64>,
    clock: ReferenceClock,
}

/// Another's lane that has numbers.
struct Reference {
    node: Arc<str>,
    pid: u32,
    bound_us: i64,
    /// In order.
    runs: Vec<Run>,
    /// The last window of which records of its host were lost.
    lost_in: Option<i64>,
}

/// Another's consecutive calls, with means over them.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Number of the first.
    start: u64,
    /// How many.
    size: u64,
    /// When they ended, microseconds of the reference clock.
    end_us: i64,
    /// How long they took, microseconds; none of calls that only enqueue.
    duration_us: Option<u64>,
}

/// Who calls a communicator's function: node, process, and how many ranks it has.
#[derive(Default)]
struct Callers {
    all: Vec<(Arc<str>, u32)>,
    nranks: Option<i32>,
    best: Option<(bool, Arc<str>, u32)>,
}

impl LateLanes {
    /// A process has ended.
    pub(super) fn forget(&mut self, pid: u32) {
        self.lanes.retain(|(of, ..), _| *of != pid);
        self.synchronise.remove(&pid);
    }

    /// A process has made a synchronise call.
    pub(super) fn synced(&mut self, pid: u32) {
        self.synchronise.insert(pid);
    }

    /// Records of a window were lost.
    pub(super) fn lost(&mut self, window: i64) {
        self.lost_in = Some(window);
    }

    /// A lane has ended.
    pub(super) fn end(&mut self, key: &Key) {
        self.lanes.remove(key);
    }

    /// Give numbers to what can be numbered, and up what has waited too long. `ends` are the
    /// synchronise calls of processes, ordered by start: process, start, end.
    pub(super) fn number(
        &mut self,
        me: &str,
        window: i64,
        clock: Option<ReferenceClock>,
        calls: &mut [Kept],
        syncs: &[(u32, i64, i64)],
        nodes: &[NodeDigests<'_>],
    ) {
        let mut missing: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
        for (i, kept) in calls.iter().enumerate().filter(|(_, kept)| kept.number == Number::Missing) {
            if let Ok(pid) = u32::try_from(kept.call.pid) {
                missing.entry((pid, kept.call.comm_hash, Arc::clone(&kept.call.func))).or_default().push(i);
            }
        }
        for ((pid, comm, func), mut places) in missing {
            places.sort_by_key(|i| calls[*i].call.entry_ns);
            let key = (pid, comm, func);
            let new = LateLane { since: window, counts: None, next: 0, entered_ns: None, distances_ns: [None; 2] };
            let lane = self.lanes.entry(key.clone()).or_insert(new);
            places.iter().for_each(|i| lane.entered(calls[*i].call.entry_ns));
            // What comes rarely had fewer chances.
            let rare = lane.rare_ns();
            let patience = PATIENCE + DISTANCES * lane.longest_ns() / WINDOW_NS;
            if window - lane.since > AGAIN.max(patience) {
                lane.since = window;
            }
            let patient = window - lane.since <= patience;
            if let Some(clock) = clock.filter(|_| patient || lane.counts.is_some()) {
                let now = Now { window, lost_in: self.lost_in, clock };
                let found = lane.find(me, &key, now, calls, &places, syncs, nodes);
                if !found.is_empty() {
                    lane.since = window;
                }
                for (i, seq) in found {
                    calls[i].call.seq = seq;
                    calls[i].number = Number::Found;
                }
            }
            // What lies before one that was found is not in the other's digests: it will not come any
            // more.
            let last = places.iter().rev().copied().find(|i| calls[*i].number == Number::Found);
            let before_ns = last.map_or(i64::MIN, |i| calls[i].call.entry_ns);
            let old_ns = (window - if patient { PATIENCE } else { 0 }).saturating_mul(WINDOW_NS);
            for &i in &places {
                let kept = &mut calls[i];
                let left_ns = match ended_us(&kept.call, pid, syncs) {
                    Some(end_us) => end_us.saturating_mul(1_000),
                    // Its wait is not over.
                    None if patient && rare.is_some() && self.synchronise.contains(&pid) => {
                        kept.call.entry_ns.saturating_add((ENQUEUED - PATIENCE) * WINDOW_NS)
                    }
                    None => kept.call.entry_ns.saturating_add(kept.call.duration_ns),
                };
                if kept.number == Number::Missing && (kept.call.entry_ns < before_ns || left_ns < old_ns) {
                    kept.number = Number::Never;
                }
            }
        }
    }
}

impl LateLane {
    /// A call was entered; those that wait for their numbers come again, in order.
    fn entered(&mut self, entry_ns: i64) {
        match self.entered_ns {
            Some(before) if entry_ns <= before => return,
            Some(before) => self.distances_ns = [Some(entry_ns - before), self.distances_ns[0]],
            None => {}
        }
        self.entered_ns = Some(entry_ns);
    }

    /// The longest distance between its last calls.
    fn longest_ns(&self) -> i64 {
        self.distances_ns.into_iter().flatten().max().unwrap_or(0)
    }

    /// The same, where no call waits for so long: there are never two of another's at hand.
    fn rare_ns(&self) -> Option<i64> {
        Some(self.longest_ns()).filter(|longest_ns| *longest_ns > PATIENCE * WINDOW_NS)
    }

    /// The numbers that can be determined now, by place in `calls`.
    #[allow(clippy::too_many_arguments, reason = "what is known, each once")]
    fn find(
        &mut self,
        me: &str,
        (pid, comm, func): &Key,
        now: Now,
        calls: &[Kept],
        places: &[usize],
        syncs: &[(u32, i64, i64)],
        nodes: &[NodeDigests<'_>],
    ) -> Vec<(usize, u64)> {
        let Now { window, clock, .. } = now;
        let callers = callers(nodes, *comm, func);
        let others = callers.best.filter(|(_, node, of)| (&**node, *of) != (me, *pid));
        if let Some((started, node, of)) = others
            && (started || self.counts.is_none() || (&*node, of) < (me, *pid))
        {
            self.counts = None;
            let Some(theirs) = reference(nodes, &node, of, (*comm, func), clock.reference) else { return Vec::new() };
            let found = self.coincide(me, *pid, now, calls, places, syncs, &theirs);
            self.next = found.last().map_or(self.next, |(_, seq)| seq + 1);
            return found;
        }
        // Nobody has numbers: who sorts first counts.
        let first = callers.all.iter().all(|(node, of)| (&**node, *of) >= (me, *pid));
        let everybody = callers.nranks.and_then(|n| usize::try_from(n).ok()).is_some_and(|n| callers.all.len() >= n);
        let listed = callers.all.iter().any(|(node, of)| (&**node, *of) == (me, *pid));
        if self.counts.is_none() && !(first && listed && (everybody || window - self.since >= ELECTION)) {
            return Vec::new();
        }
        // A call that enqueues counts once its wait is over.
        let done = places.iter().take_while(|i| ended_us(&calls[**i].call, *pid, syncs).is_some());
        let next = self.counts.unwrap_or(0);
        let found: Vec<(usize, u64)> = done.copied().zip(next..).collect();
        self.counts = Some(next + found.len() as u64);
        found
    }

    /// Runs of the other that as many calls here coincide with.
    #[allow(clippy::too_many_arguments, reason = "what is known, each once")]
    fn coincide(
        &mut self,
        me: &str,
        pid: u32,
        Now { window, lost_in, clock }: Now,
        calls: &[Kept],
        places: &[usize],
        syncs: &[(u32, i64, i64)],
        theirs: &Reference,
    ) -> Vec<(usize, u64)> {
        let own = theirs.pid == pid && *theirs.node == *me;
        let ends: Vec<i64> = places
            .iter()
            .map_while(|i| ended_us(&calls[*i].call, pid, syncs))
            .map(|end| end.saturating_sub(clock.offset_us))
            .collect();
        let (Some(&first), Some(&last), false) = (ends.first(), ends.last(), own) else { return Vec::new() };
        let shortest_us = || self.distances_ns.into_iter().flatten().min().map(|distance| distance as f64 / 1e3);
        let compute_us = || self.rare_ns().and_then(|_| shortest_us());
        let Some(period_us) = theirs.period_us().or_else(compute_us) else { return Vec::new() };
        let bound_us = if *theirs.node == *me { 0 } else { theirs.bound_us.saturating_add(clock.bound_us.into()) };
        let close = (Rules::ENDS_CLOSE * period_us).max(bound_us as f64);
        if bound_us as f64 > Rules::CLOCKS_SHARP * period_us {
            return Vec::new();
        }
        let ends = Means::of(&ends);
        let (mut from, mut inside, mut met) = (0, 0usize, 0usize);
        let mut found = Vec::new();
        for &Run { start, size, end_us, .. } in theirs.runs.iter().filter(|run| run.start >= self.next) {
            let Ok(size) = usize::try_from(size) else { continue };
            let half = (period_us * size as f64 / 2.0) as i64;
            if size > ends.len() {
                continue;
            }
            // At the edges the calls of the run may not be at hand, or not yet: that none fits means
            // nothing.
            let edge = end_us - half < first || end_us + half > last.saturating_add(half.min(1));
            let apart = |j: usize| ends.mean(j, size) - end_us as f64;
            let starts = ends.len() - size + 1;
            let low = ends.first_from(from, size, end_us as f64);
            let near = [low.checked_sub(1).filter(|j| *j >= from), Some(low).filter(|j| *j < starts)];
            let mut fits = near.into_iter().flatten().filter(|j| apart(*j).abs() <= close);
            let (Some(j), None) = (fits.next(), fits.next()) else {
                inside += usize::from(!edge);
                continue;
            };
            (inside, met) = (inside + 1, met + 1);
            found.extend((j..j + size).zip(start..).map(|(j, seq)| (places[j], seq)));
            from = j + size;
        }
        if met as f64 >= Rules::RUNS_COINCIDE * inside as f64 && met > 0 {
            return found;
        }
        let waits = places[..ends.len()].iter().all(|i| calls[*i].call.tier > 0);
        if !waits {
            return Vec::new();
        }
        if theirs.lost_in.max(lost_in).is_some_and(|lost_in| window - lost_in <= PATIENCE) {
            // There is as much hope as before, once these are past.
            self.since = window;
            return Vec::new();
        }
        let entries =
            places[..ends.len()].iter().map(|i| (calls[*i].call.entry_ns / 1_000).saturating_sub(clock.offset_us));
        let spans = Spans { entries: Means::of(&entries.collect::<Vec<_>>()), ends, bound_us };
        let runs: Vec<&Run> = theirs.runs.iter().filter(|run| run.start >= self.next).collect();
        let Some(shift) = spans.shift(&runs) else { return Vec::new() };
        let place = |run: &Run| usize::try_from(run.start.checked_add_signed(shift)?).ok();
        let met =
            runs.iter().filter_map(|run| Some((*run, place(run)?)).filter(|(run, place)| spans.overlap(run, *place)));
        met.flat_map(|(run, place)| places[place..].iter().copied().zip(run.start..run.start + run.size)).collect()
    }
}

/// Spans of a process's consecutive calls at hand, microseconds of the reference clock.
struct Spans {
    entries: Means,
    ends: Means,
    /// What the clocks may be apart.
    bound_us: i64,
}

impl Spans {
    /// Whether as many calls from a place on as a run has are at hand and overlap with it. In a call in
    /// which all meet nobody leaves before all have entered, so calls of the same collectives overlap,
    /// however late a rank gets its CPU back to leave; what holds for each holds for their means.
    fn overlap(&self, run: &Run, place: usize) -> bool {
        let Some((duration_us, size)) = run.duration_us.zip(usize::try_from(run.size).ok()) else { return false };
        let (end_us, bound_us) = (run.end_us as f64, self.bound_us as f64);
        place + size <= self.ends.len()
            && self.entries.mean(place, size) <= end_us + bound_us
            && self.ends.mean(place, size) >= end_us - duration_us as f64 - bound_us
    }

    /// The place of the call of number 0 among the calls at hand. None where some run overlaps with
    /// calls of two places or of none, where runs differ in what they say, and where too few tell: then
    /// a record may be lost, or calls are as close as the noise of leaving them.
    fn shift(&self, runs: &[&Run]) -> Option<i64> {
        let (mut shift, mut calls) = (None, 0);
        for run in runs {
            let (Some(duration_us), Ok(size)) = (run.duration_us, usize::try_from(run.size)) else { continue };
            if size > self.ends.len() {
                continue;
            }
            let from_us = run.end_us as f64 - duration_us as f64 - self.bound_us as f64;
            let place = self.ends.first_from(0, size, from_us);
            // At the edges its calls, or those beside them, may not be at hand.
            if place == 0 || place + size >= self.ends.len() {
                continue;
            }
            if !self.overlap(run, place) || self.overlap(run, place + 1) {
                return None;
            }
            let says = i64::try_from(place).ok()?.checked_sub(i64::try_from(run.start).ok()?)?;
            if shift.is_some_and(|shift| shift != says) {
                return None;
            }
            (shift, calls) = (Some(says), calls + size);
        }
        shift.filter(|_| calls >= Rules::FEW_COLLECTIVES)
    }
}

/// Means over consecutive values.
struct Means(Vec<i128>);

impl Means {
    fn of(values: &[i64]) -> Self {
        let mut sums = vec![0i128; values.len() + 1];
        for (i, value) in values.iter().enumerate() {
            sums[i + 1] = sums[i] + i128::from(*value);
        }
        Self(sums)
    }

    fn len(&self) -> usize {
        self.0.len() - 1
    }

    /// Of so many values from a place on.
    fn mean(&self, place: usize, size: usize) -> f64 {
        (self.0[place + size] - self.0[place]) as f64 / size as f64
    }

    /// The first place from one on whose mean is not below a value; means rise with the place.
    fn first_from(&self, from: usize, size: usize, value: f64) -> usize {
        let (mut low, mut high) = (from, self.len() - size + 1);
        while low < high {
            let mid = usize::midpoint(low, high);
            if self.mean(mid, size) < value { low = mid + 1 } else { high = mid }
        }
        low
    }
}

impl Reference {
    /// Distance between calls: the median over neighbouring runs.
    fn period_us(&self) -> Option<f64> {
        let pairs = self.runs.windows(2).filter(|w| w[1].start == w[0].start + w[0].size);
        let distance = |w: &[Run]| (w[1].end_us - w[0].end_us) as f64 * 2.0 / (w[0].size + w[1].size) as f64;
        let mut all: Vec<f64> = pairs.map(distance).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().filter(|period| *period > 0.0)
    }
}

/// When a call ended, on the node's own clock: one that only enqueues ends with the synchronise
/// call after it. None where that was not seen yet.
fn ended_us(call: &Observation, pid: u32, syncs: &[(u32, i64, i64)]) -> Option<i64> {
    if call.tier > 0 {
        return Some(call.entry_ns.saturating_add(call.duration_ns) / 1_000);
    }
    let after = syncs.partition_point(|(of, start, _)| (*of, *start) < (pid, call.entry_ns));
    syncs.get(after).filter(|(of, ..)| *of == pid).map(|(.., end)| end / 1_000)
}

fn lanes_of<'a>(
    digest: &'a Digest,
    comm: u64,
    func: &'a str,
) -> impl Iterator<Item = (u32, &'a super::Lane)> + use<'a> {
    let mine = digest.lanes.iter().filter(move |lane| lane.comm_hash == comm && *lane.func == *func);
    mine.filter_map(|lane| Some((digest.processes.get(lane.process)?.pid, lane)))
}

/// Whose digests hold calls of a communicator's function, and whose numbers count: of those that saw
/// its start, else of those that have numbers the one that sorts first.
fn callers(nodes: &[NodeDigests<'_>], comm: u64, func: &str) -> Callers {
    let mut callers = Callers::default();
    for one in nodes {
        let node: Arc<str> = one.node.into();
        for digest in one.digests {
            for (pid, lane) in lanes_of(digest, comm, func) {
                callers.nranks = callers.nranks.max(lane.nranks);
                if !callers.all.iter().any(|(of, p)| *p == pid && *of == node) {
                    callers.all.push((Arc::clone(&node), pid));
                }
                if !lane.blocks.is_empty() {
                    // False sorts first.
                    let candidate = (lane.last_seq.is_none(), Arc::clone(&node), pid);
                    callers.best = Some(callers.best.map_or(candidate.clone(), |best| best.min(candidate)));
                }
            }
        }
    }
    callers.best = callers.best.map(|(late, node, pid)| (!late, node, pid));
    callers
}

/// When a process's calls ended by its digests. Nothing of calls that only enqueue and of
/// which not each was waited for.
fn reference(
    nodes: &[NodeDigests<'_>],
    node: &Arc<str>,
    pid: u32,
    (comm, func): (u64, &Arc<str>),
    clock: u16,
) -> Option<Reference> {
    let mut runs = Vec::new();
    let (mut bound_us, mut lost_in) = (0, None);
    for digest in nodes.iter().filter(|one| *one.node == **node).flat_map(|one| one.digests) {
        let Some(their) = digest.clock.filter(|their| their.reference == clock) else { continue };
        bound_us = bound_us.max(i64::from(their.bound_us));
        lost_in = lost_in.max((digest.lost > 0).then_some(digest.window));
        let base_us = (digest.window.saturating_mul(WINDOW_NS) / 1_000).saturating_sub(their.offset_us);
        for (_, lane) in lanes_of(digest, comm, func).filter(|(of, _)| *of == pid) {
            let usable = lane.blocks.iter().filter(|block| match block.waited {
                Some(calls) => u64::from(calls) == block.size(),
                None => lane.tier > 0,
            });
            runs.extend(usable.map(|block| Run {
                start: block.start,
                size: block.size(),
                end_us: base_us.saturating_add(block.exit_us),
                duration_us: block.waited.is_none().then_some(block.duration_us),
            }));
        }
    }
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by_key(|run| run.start);
    (!runs.is_empty()).then(|| Reference { node: Arc::clone(node), pid, bound_us, runs, lost_in })
}

/// Only calls that make all ranks meet can be numbered so; any number will do for the others.
pub(super) fn needed(func: &str) -> bool {
    Coupling::of(func) == Coupling::All
}
