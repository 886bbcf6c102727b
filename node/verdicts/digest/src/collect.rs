//! Makes a host's digests of its calls as they end.
//!
//! Holds the state of each process's compute time and, per lane, the calls that were not shipped
//! yet. Memory is bounded: calls beyond [`MOST_CALLS`] in a window count as lost.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use observed::{Activity, Coupling, InCall, Observation, Rules, SyncCall};

use super::blocks::Point;
use super::follow::{Follower, Since};
use super::late::{Kept, Key, LateLanes, Number, needed};
use super::resent;
use super::steps::Stepping;
use super::track::Track;
use super::waits::{Pending, wait};
use super::{
    Digest, Gone, Lane, LongCall, Membership, NodeDigests, Process, Recent, ReferenceClock, WINDOW_NS, end_of,
    window_of,
};

/// Calls kept for one window.
const MOST_CALLS: usize = 131_072;
/// Windows for which the end of a process is reported.
const REPORT_GONE: i64 = 240;
/// Processes whose end is reported, at most: the latest.
const MOST_GONE: usize = 256;
/// Calls that one process is in, at most.
const MOST_LONG_CALLS: usize = 4;
/// Every so many windows what was said of a process is said again, for those who come later.
const REMIND: i64 = 4;

/// A synchronise call after a call that only enqueued.
#[derive(Debug, Clone, Copy)]
struct Sync {
    pid: u32,
    start_ns: i64,
    end_ns: i64,
}

/// What is followed of a process.
#[derive(Debug, Default)]
struct Followed {
    own: Follower,
    steps: Stepping,
    /// Its rank in the job and the job's ranks.
    of_job: Option<(i32, i32)>,
    /// It did not get on when the last window was closed.
    is_still: bool,
}

/// Who does not get on at the end of a window.
#[derive(Debug, Default)]
struct Still {
    calls: BTreeMap<u32, Vec<LongCall>>,
    device_ms: BTreeMap<u32, u64>,
}

/// Makes digests.
#[derive(Debug, Default)]
pub struct Collector {
    calls: Vec<Kept>,
    late: LateLanes,
    syncs: Vec<Sync>,
    resent: Vec<(i64, IpAddr, IpAddr)>,
    lost: u64,
    unplaced: u64,
    processes: HashMap<u32, Followed>,
    tracks: BTreeMap<Key, Track>,
    gone: Vec<Gone>,
    /// By process: when its last call ended.
    left_ns: HashMap<u32, i64>,
    activities: BTreeMap<u32, Activity>,
    still: Still,
    /// One digest holds all: every call and every step by itself, whatever that takes.
    every_call: bool,
}

impl Collector {
    /// What one host recorded, as one digest that holds every call and every step by itself.
    /// `calls` come with whether they have a number; `syncs` are its synchronise calls.
    pub(super) fn of_every_call<'a>(
        calls: impl Iterator<Item = (&'a Observation, bool)>,
        syncs: impl Iterator<Item = &'a SyncCall>,
    ) -> Digest {
        let mut all = Self { every_call: true, ..Self::default() };
        for (call, numbered) in calls {
            let number = if numbered { Number::Given } else { Number::Never };
            all.keep(Kept { call: call.clone(), number });
        }
        for sync in syncs {
            if let Ok(pid) = u32::try_from(sync.pid) {
                all.synced(pid, sync.start_ns, sync.duration_ns);
            }
        }
        let ends = all.calls.iter().map(|kept| kept.call.entry_ns.saturating_add(kept.call.duration_ns));
        let last_ns = ends.chain(all.syncs.iter().map(|sync| sync.end_ns)).max();
        all.close(last_ns.map_or(0, window_of))
    }

    /// The same, of which no process is known; those that have ended are.
    #[must_use]
    pub fn without_processes(&mut self) -> Self {
        let (gone, resent) = (std::mem::take(&mut self.gone), std::mem::take(&mut self.resent));
        Self { gone, resent, lost: self.lost, every_call: self.every_call, ..Self::default() }
    }

    /// Take in a call that has ended.
    pub fn push(&mut self, call: Observation) {
        self.keep(Kept { call, number: Number::Given });
    }

    /// Take in a call that has ended and whose number is not known, because the start of its
    /// communicator was not seen.
    pub fn push_unnumbered(&mut self, mut call: Observation) {
        let Ok(pid) = u32::try_from(call.pid) else { return };
        self.processes.entry(pid).or_default();
        // Said at once, so that others learn who else has none.
        let key = (pid, call.comm_hash, Arc::clone(&call.func));
        let track = self.tracks.entry(key).or_insert_with(|| Track::new(&call));
        track.late = true;
        track.made(&call);
        let number = if needed(&call.func) { Number::Missing } else { Number::Found };
        if number == Number::Found {
            call.seq = track.counted;
            track.counted += 1;
        }
        self.keep(Kept { call, number });
    }

    /// Communicators and functions of which there are calls whose numbers are not known yet.
    #[must_use]
    pub fn unnumbered(&self) -> BTreeSet<(u64, Arc<str>)> {
        let missing = self.calls.iter().filter(|kept| kept.number == Number::Missing);
        missing.map(|kept| (kept.call.comm_hash, Arc::clone(&kept.call.func))).collect()
    }

    fn keep(&mut self, kept: Kept) {
        if self.every_call || self.calls.len() < MOST_CALLS {
            self.calls.push(kept);
        } else {
            self.lost += 1;
        }
    }

    /// Number calls whose communicator's start was not seen, by the digests of others (and of
    /// this node `me` itself) up to the window before: before [`close`](Self::close), with the
    /// clock that the digest will have.
    pub fn number(&mut self, me: &str, window: i64, clock: Option<ReferenceClock>, nodes: &[NodeDigests<'_>]) {
        if self.calls.iter().all(|kept| kept.number != Number::Missing) {
            return;
        }
        let mut syncs: Vec<(u32, i64, i64)> = self.syncs.iter().map(|s| (s.pid, s.start_ns, s.end_ns)).collect();
        syncs.sort_unstable();
        if self.lost > 0 {
            self.late.lost(window);
        }
        self.late.number(me, window, clock, &mut self.calls, &syncs, nodes);
    }

    /// Take in a synchronise call that has ended, the first of its thread after a call that only
    /// enqueued.
    pub fn synced(&mut self, pid: u32, start_ns: i64, duration_ns: i64) {
        self.late.synced(pid);
        if self.every_call || self.syncs.len() < MOST_CALLS {
            self.syncs.push(Sync { pid, start_ns, end_ns: start_ns.saturating_add(duration_ns.max(0)) });
        } else {
            self.lost += 1;
        }
    }

    /// A TCP segment was sent again to another host.
    pub fn resent(&mut self, at_ns: i64, from: IpAddr, to: IpAddr) {
        if from != to && !to.is_loopback() && self.resent.len() < MOST_CALLS {
            self.resent.push((at_ns, from, to));
        }
    }

    /// Count records that capture lost.
    pub fn lost(&mut self, records: u64) {
        self.lost = self.lost.saturating_add(records);
    }

    /// Count a call that cannot be compared: its rank, communicator or number is not known.
    pub fn unplaced(&mut self) {
        self.unplaced += 1;
    }

    /// Processes that have left no call since `since_ns`: those in one for long, and those in none.
    #[must_use]
    pub fn quiet(&self, since_ns: i64) -> Vec<u32> {
        let mut left: HashMap<u32, i64> = HashMap::new();
        for Kept { call, .. } in &self.calls {
            if let Ok(pid) = u32::try_from(call.pid) {
                let end = left.entry(pid).or_insert(i64::MIN);
                *end = call.entry_ns.saturating_add(call.duration_ns).max(*end);
            }
        }
        let last = |pid: &u32| left.get(pid).max(self.left_ns.get(pid)).copied();
        let mut quiet: Vec<u32> = self.pids().filter(|pid| last(pid).is_none_or(|at| at < since_ns)).collect();
        quiet.sort_unstable();
        quiet
    }

    /// What processes do, of which it matters: see [`Self::quiet`]. Said in the next digest.
    pub fn activities(&mut self, activities: BTreeMap<u32, Activity>) {
        self.activities = activities;
    }

    /// Whether a process is among those that have ended, as far back as is remembered.
    #[must_use]
    pub fn has_gone(&self, pid: u32) -> bool {
        self.gone.iter().any(|gone| gone.pid == pid)
    }

    /// Whether no process is known, and none that has ended is still told of.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let nothing_to_tell = self.gone.is_empty() && self.calls.is_empty() && self.resent.is_empty();
        self.processes.is_empty() && nothing_to_tell && self.lost == 0
    }

    /// Processes that have lanes.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.processes.keys().copied()
    }

    /// Processes have ended, noticed in `window`, whose digest is the last with calls of theirs,
    /// and reports it already; as do those of some minutes after it. Each is told of once.
    pub fn gone(&mut self, pids: impl IntoIterator<Item = u32>, digest: &mut Digest) {
        for pid in pids {
            if self.processes.remove(&pid).is_some() {
                self.tracks.retain(|(of, ..), _| *of != pid);
                self.left_ns.remove(&pid);
                self.late.forget(pid);
            }
            self.gone.push(Gone { pid, window: digest.window });
        }
        self.gone.drain(..self.gone.len().saturating_sub(MOST_GONE));
        digest.gone.clone_from(&self.gone);
    }

    /// Whether lanes have had no call for long up to `window`: then [`Self::end_idle`] ends those
    /// whose communicators nobody waits in.
    #[must_use]
    pub fn has_idle(&self, window: i64) -> bool {
        self.tracks.values().any(|track| track.is_idle(window))
    }

    /// Ends the lanes that have had no call for long up to `window`, but for those of communicators
    /// that some rank, of any node, waits in: there it matters how far this one got.
    pub fn end_idle(&mut self, window: i64, waited_in: &BTreeSet<u64>) {
        let mut ended: Vec<Key> = Vec::new();
        self.tracks.retain(|key, track| {
            let ends = track.is_idle(window) && !waited_in.contains(&key.1);
            if ends {
                ended.push(key.clone());
            }
            !ends
        });
        for key in ended {
            self.late.end(&key);
            let (pid, comm, _) = key;
            let goes_on = self.tracks.range((pid, comm, "".into())..).next();
            if goes_on.is_none_or(|((of, other, _), _)| (*of, *other) != (pid, comm))
                && let Some(process) = self.processes.get_mut(&pid)
            {
                process.own.ended(comm);
            }
        }
    }

    /// Calls that were open when `window` ended and had been for long.
    pub fn open(&mut self, window: i64, calls: &[InCall]) {
        let lasted_ms = |since_ns: i64| u64::try_from(end_of(window).saturating_sub(since_ns) / 1_000_000).unwrap_or(0);
        self.still.calls.clear();
        for call in calls {
            let Ok(pid) = u32::try_from(call.pid) else { continue };
            self.processes.entry(pid).or_default();
            let comm = call.comm_hash.zip(call.rank);
            let call = LongCall {
                process: 0,
                func: Arc::clone(&call.func),
                comm: comm.map(|(comm_hash, rank)| Membership { comm_hash, nranks: call.nranks, rank }),
                comm_seq: call.comm_seq,
                root: call.root,
                tag: call.tag,
                payload: call.payload.clone(),
                for_ms: lasted_ms(call.since_ns),
            };
            let known = self.still.calls.entry(pid).or_default();
            if known.len() < MOST_LONG_CALLS {
                known.push(call);
            }
        }
    }

    /// Processes that waited for their device when the window ended and had for long, and how long,
    /// milliseconds.
    pub fn device_waits(&mut self, waits: &[(u32, u64)]) {
        self.still.device_ms = waits.iter().copied().filter(|(pid, _)| self.processes.contains_key(pid)).collect();
    }

    /// A process is a rank of a job of so many, by its environment: it is spoken of, whatever it
    /// calls.
    pub fn is_rank(&mut self, pid: u32, rank: i32, nranks: i32) {
        self.processes.entry(pid).or_default().of_job = Some((rank, nranks));
    }

    /// The digest of `window`: of all calls that ended before its end and were not shipped yet.
    pub fn close(&mut self, window: i64) -> Digest {
        let end_ns = end_of(window);
        // A process's calls are looked at in their order: up to the first whose number may still be
        // found.
        let mut up_to: HashMap<i64, i64> = HashMap::new();
        for Kept { call, .. } in self.calls.iter().filter(|kept| kept.number == Number::Missing) {
            let first = up_to.entry(call.pid).or_insert(i64::MAX);
            *first = call.entry_ns.min(*first);
        }
        let in_order = |pid: i64, start_ns: i64| up_to.get(&pid).is_none_or(|first| start_ns < *first);
        let ended = |call: &Observation| {
            call.entry_ns.saturating_add(call.duration_ns) < end_ns && in_order(call.pid, call.entry_ns)
        };
        let mut calls: Vec<Kept> = Vec::with_capacity(self.calls.len());
        let mut later = Vec::new();
        for kept in self.calls.drain(..) {
            if ended(&kept.call) { &mut calls } else { &mut later }.push(kept);
        }
        self.calls = later;
        calls.sort_by_key(|kept| kept.call.entry_ns);
        let over = |sync: &mut Sync| sync.end_ns < end_ns && in_order(sync.pid.into(), sync.start_ns);
        let mut syncs: Vec<Sync> = self.syncs.extract_if(.., over).collect();
        syncs.sort_by_key(|sync| sync.start_ns);
        let mut syncs = syncs.into_iter().peekable();
        for Kept { call, number } in calls {
            while let Some(sync) = syncs.next_if(|sync| sync.start_ns < call.entry_ns) {
                self.wait(sync, window);
            }
            match number {
                Number::Given | Number::Found => self.take(&call),
                Number::Missing | Number::Never => self.pass(&call),
            }
        }
        syncs.for_each(|sync| self.wait(sync, window));
        self.gone.retain(|gone| window - gone.window < REPORT_GONE);
        let mut digest = Digest {
            window,
            lost: std::mem::take(&mut self.lost),
            unplaced: std::mem::take(&mut self.unplaced),
            gone: self.gone.clone(),
            resent: resent::before(&mut self.resent, window),
            ..Digest::default()
        };
        let mut places: BTreeMap<u32, usize> = BTreeMap::new();
        let mut activities = std::mem::take(&mut self.activities);
        let stepping = self.stepping();
        for ((pid, comm_hash, func), track) in &mut self.tracks {
            let wanted = self.every_call || stepping.get(pid) == Some(&true);
            let Some(mut lane) = track.lane(*comm_hash, func, window, (wanted, self.every_call)) else {
                continue;
            };
            lane.process = *places.entry(*pid).or_insert_with(|| {
                let opens = self.processes.get_mut(pid).and_then(|process| process.own.opens());
                let activity = activities.remove(pid);
                digest.processes.push(Process { pid: *pid, opens, activity, ..Process::default() });
                digest.processes.len() - 1
            });
            digest.lanes.push(lane);
        }
        for (place, process) in digest.processes.iter().enumerate() {
            let Some(own) = self.processes.get_mut(&process.pid) else { continue };
            let lanes = digest.lanes.iter().enumerate().filter(|(_, lane)| lane.process == place);
            let lanes: Vec<(usize, &Lane)> = lanes.collect();
            let steps = own.steps.ship(place, &lanes, window.saturating_mul(WINDOW_NS) / 1_000);
            digest.steps.extend(steps.into_iter().filter(|_| stepping.contains_key(&process.pid)));
        }
        // Those without anything else in the digest.
        activities.retain(|pid, _| self.processes.contains_key(pid));
        let still = self.still.calls.keys().chain(self.still.device_ms.keys()).map(|pid| (*pid, None));
        let others: BTreeMap<u32, Option<Activity>> =
            still.chain(activities.into_iter().map(|(pid, activity)| (pid, Some(activity)))).collect();
        for (pid, activity) in others {
            if !places.contains_key(&pid) {
                digest.processes.push(Process { pid, activity, ..Process::default() });
            }
        }
        self.say_still(&mut digest);
        digest
    }

    /// What is said of processes that do not get on.
    fn say_still(&mut self, digest: &mut Digest) {
        let window = digest.window;
        for place in 0..digest.processes.len() {
            let process = &mut digest.processes[place];
            let pid = process.pid;
            let Some(followed) = self.processes.get_mut(&pid) else { continue };
            process.device_ms = self.still.device_ms.get(&pid).copied();
            let calls = self.still.calls.get(&pid).into_iter().flatten();
            digest.long_calls.extend(calls.map(|call| LongCall { process: place, ..call.clone() }));
            let is_still =
                process.activity.is_some() || process.device_ms.is_some() || self.still.calls.contains_key(&pid);
            let remind = window.rem_euclid(REMIND) == 0;
            if is_still || remind {
                process.of_job = followed.of_job;
            }
            let anew = is_still && !std::mem::replace(&mut followed.is_still, is_still);
            if !is_still || !(anew || remind) {
                continue;
            }
            let mut recent: BTreeMap<u64, Recent> = BTreeMap::new();
            let tracks = self.tracks.range((pid, 0, "".into())..).take_while(|((of, ..), _)| *of == pid);
            for ((_, comm_hash, func), track) in tracks {
                let new = || Recent { process: place, comm_hash: *comm_hash, ..Recent::default() };
                let of = recent.entry(*comm_hash).or_insert_with(new);
                of.made.extend(track.recent.iter().cloned());
                of.count(func, track.peers.as_ref().filter(|_| track.tier == 0));
            }
            digest.recent.extend(recent.into_values().filter_map(Recent::latest));
        }
    }

    /// Processes whose calls only enqueue and whose waits are not seen: their steps are shipped, so
    /// that they can be compared with others'. With whether there are any to be shipped.
    fn stepping(&self) -> BTreeMap<u32, bool> {
        let mut unseen: BTreeMap<u32, bool> = BTreeMap::new();
        for ((pid, ..), track) in &self.tracks {
            *unseen.entry(*pid).or_insert(true) &= track.tier == 0 && !track.late && !track.pending.waits();
        }
        unseen.retain(|_, unseen| *unseen);
        for (pid, ready) in &mut unseen {
            *ready = self.processes.get(pid).is_some_and(|own| own.steps.ready());
        }
        unseen
    }

    fn wait(&mut self, sync: Sync, window: i64) {
        let Some(process) = self.processes.get_mut(&sync.pid) else { return };
        let mut lanes = self.tracks.range((sync.pid, 0, "".into())..).take_while(|((pid, ..), _)| *pid == sync.pid);
        if !self.every_call && lanes.any(|(_, track)| track.tier >= Rules::OF_DEVICE) {
            return; // as `Input::drop_waits_of_devices`
        }
        process.own.synced(sync.start_ns, sync.end_ns);
        let span_us = (sync.start_ns / 1_000, sync.end_ns / 1_000);
        let mut rest: Vec<(u64, &mut Pending)> = self
            .tracks
            .range_mut((sync.pid, 0, "".into())..)
            .take_while(|((pid, ..), _)| *pid == sync.pid)
            .filter(|(_, track)| track.tier == 0)
            .map(|((_, comm, _), track)| (*comm, &mut track.pending))
            .collect();
        // Lanes of one communicator follow each other.
        for lanes in rest.chunk_by_mut(|a, b| a.0 == b.0) {
            wait(lanes.iter_mut().map(|(_, lane)| &mut **lane), window, span_us);
        }
    }

    /// A call that cannot be compared: it counts, and none of its time is the process's own.
    fn pass(&mut self, call: &Observation) {
        let Ok(pid) = u32::try_from(call.pid) else { return };
        let left_ns = call.entry_ns.saturating_add(call.duration_ns);
        self.unplaced += 1;
        let process = self.processes.entry(pid).or_default();
        process.own.busy(call.entry_ns, left_ns);
        process.own.held(call.held_ns);
        process.steps.interrupt();
        let left = self.left_ns.entry(pid).or_insert(i64::MIN);
        *left = left_ns.max(*left);
        if let Some(track) = self.tracks.get_mut(&(pid, call.comm_hash, Arc::clone(&call.func))) {
            track.calls += 1;
        }
    }

    fn take(&mut self, call: &Observation) {
        let Ok(pid) = u32::try_from(call.pid) else { return };
        let left_ns = call.entry_ns.saturating_add(call.duration_ns);
        let process = self.processes.entry(pid).or_default();
        let Since { compute_ns, held_ns, gap_since_ns } = process.own.next(call);
        process.steps.take(call, process.own.outside_ns(), self.every_call);
        let left = self.left_ns.entry(pid).or_insert(i64::MIN);
        *left = left_ns.max(*left);
        // Windows are shipped as they end: what was shipped before a gap shows stays as it is.
        if let Some(since_ns) = gap_since_ns.filter(|_| self.every_call) {
            let of_process = self.tracks.range_mut((pid, 0, "".into())..).take_while(|((of, ..), _)| *of == pid);
            of_process.for_each(|(_, track)| track.pending.gap(since_ns / 1_000));
        }
        let track =
            self.tracks.entry((pid, call.comm_hash, Arc::clone(&call.func))).or_insert_with(|| Track::new(call));
        track.take(call);
        if track.last_seq.is_some_and(|last| call.seq <= last) {
            // A number twice: the process was replaced under its pid, or the communicator was made
            // anew.
            track.pending.restart(call.seq);
        }
        if call.tier > track.tier {
            // From here on the device times these calls: what was only enqueued before has no
            // wait that could be compared with theirs.
            (track.tier, track.pending) = (call.tier, Pending::default());
        }
        track.last_seq = Some(call.seq);
        if Coupling::of(&call.func) == Coupling::All {
            let micros = |ns: i64| u64::try_from(ns / 1_000).unwrap_or(0);
            track.pending.push(Point {
                seq: call.seq,
                exit_us: call.entry_ns.saturating_add(call.duration_ns) / 1_000,
                duration_us: micros(call.duration_ns),
                compute_us: compute_ns.map(micros),
                halted_us: micros(call.halted_ns.min(call.duration_ns)),
                held_us: micros(held_ns),
                counts: true,
            });
        }
    }
}
