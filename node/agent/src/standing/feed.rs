//! From capture to digests: the collector of this host's calls, fed by the recording's sink.
//!
//! Records have times of the wall clock, which may be stepped; the collector gets those of the
//! steady one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use digest::time_use::{self, EVERY_WINDOWS, Meter, TimeUse};
use digest::{Collector, Digest, Halts, NodeDigests, ReferenceClock, end_of};
use model::wire::OpenCall;
use node_bpf::{LossCount, Record, runs};
use parking_lot::{Mutex, MutexGuard};
use record::{steady_shift_now_ns, steady_shift_ns, unix_now_ns};
use standing::{JobName, NO_JOB};
use verdicts::{Activity, Coupling, InCall, Observation, Payload};

use super::super::activity::activity;
use super::super::open_calls::in_call;

/// A call shorter than this is not reported as open: its end comes with the next digest.
const OPEN_NS: i64 = 1_000_000_000;
/// Less than this between two measurements of the wall clock is no step.
const SLEWED_NS: u64 = 1_000_000;
/// Processes whose jobs are kept before it is looked who of them is gone.
const MOST_PROCESSES: usize = 4_096;
/// Processes whose threads are looked at in a window, at most.
const MOST_LOOKED_AT: usize = 256;
/// After so long in which no call was missed, processes are in digests again: six periods of slices.
const WHOLE_AGAIN: Duration = Duration::from_secs(60);

/// What ranks are in at a moment; times are of the wall clock.
#[derive(Debug)]
pub(super) struct InCalls {
    open: Vec<OpenCall>,
    /// Who waits for its device, and since when.
    device_waits: Vec<(u32, i64)>,
    /// What to subtract from these times to get steady ones.
    shift_ns: i64,
}

impl InCalls {
    /// Now: the calls that are open, and the waits for devices, of this host.
    pub(super) fn now(open_calls: impl Fn() -> Vec<OpenCall>, device_waits: impl Fn() -> Vec<(u32, i64)>) -> Self {
        loop {
            let shift_ns = steady_shift_now_ns();
            let now = Self { open: open_calls(), device_waits: device_waits(), shift_ns };
            // Else the clock was stepped while these were read.
            if shift_ns.abs_diff(steady_shift_now_ns()) < SLEWED_NS {
                return now;
            }
        }
    }
}

/// The collector, shared by capture's threads and the task that closes windows.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    collector: Collector,
    meter: Meter,
    halts: Halts,
    /// Names, once each.
    names: HashMap<&'static str, Arc<str>>,
    /// Which ranks of which jobs processes are.
    ranks: HashMap<u32, RankOf>,
    /// What these are called.
    job_names: BTreeMap<u64, JobName>,
    /// Processes of which calls were missed between the slices of a budget: how far they are, and
    /// where their time went, is not known any more.
    missed: BTreeSet<u32>,
    /// Those of them that have ended a call since [`WHOLE_AGAIN`] after the last missed one.
    called: BTreeSet<u32>,
    /// Up to when calls were missed: Unix nanoseconds, and on this host's steady clock.
    missed_until_ns: i64,
    missed_until: Option<Instant>,
}

/// Which rank of which job a process is.
#[derive(Debug, Clone, Copy)]
struct RankOf {
    job: u64,
    rank: i32,
    nranks: i32,
    /// When the process started, Unix nanoseconds.
    start_ns: i64,
    has_ended: bool,
}

impl State {
    fn name(&mut self, name: &'static str) -> Arc<str> {
        Arc::clone(self.names.entry(name).or_insert_with(|| name.into()))
    }

    /// Of which job a process is; [`NO_JOB`] where that is not known.
    fn job_of(&self, pid: u32) -> u64 {
        self.ranks.get(&pid).map_or(NO_JOB, |of| of.job)
    }

    /// Calls of this host's processes are missed up to a time, which may be still to come: they are
    /// in digests no more.
    fn misses(&mut self, until_ns: i64) {
        self.missed_until_ns = self.missed_until_ns.max(until_ns);
        let left_ns = until_ns.saturating_sub(unix_now_ns());
        self.missed_until = Some(Instant::now() + Duration::from_nanos(u64::try_from(left_ns).unwrap_or(0)));
        self.called.clear();
        let living = self.ranks.iter().filter(|(_, of)| !of.has_ended).map(|(pid, _)| *pid);
        self.missed.extend(self.collector.pids().chain(living));
        self.collector = self.collector.without_processes();
        self.meter = self.meter.without_processes();
    }

    /// A process is a rank of a job, and from now on each of its calls is recorded.
    fn joins(&mut self, pid: u32, RankOf { job, rank, nranks, .. }: RankOf) {
        self.meter.process(pid, job, rank, nranks);
        self.collector.is_rank(pid, rank, nranks);
    }

    /// Whether no call was missed for long.
    fn is_whole(&self, now: Instant) -> bool {
        self.missed_until.is_some_and(|until| now.saturating_duration_since(until) >= WHOLE_AGAIN)
    }

    /// A process of which calls were missed has ended one.
    fn called(&mut self, pid: u32, now: Instant) {
        if self.is_whole(now) {
            self.called.insert(pid);
        }
    }

    /// Where no call was missed for long, the processes of a job are in digests again once each of
    /// them has ended a call since: until then one may be in a call that began unseen, or the others
    /// wait for it. They are treated as those that ran when recording began: their calls are numbered
    /// by those of others.
    fn records_all_again(&mut self) {
        if self.called.is_empty() {
            return;
        }
        let silent: BTreeSet<u64> = self.missed.difference(&self.called).map(|pid| self.job_of(*pid)).collect();
        let again = |pid: &u32| self.called.contains(pid) && !silent.contains(&self.job_of(*pid));
        let again: Vec<u32> = self.missed.iter().copied().filter(again).collect();
        for pid in again {
            self.missed.remove(&pid);
            self.called.remove(&pid);
            if let Some(of) = self.ranks.get(&pid).copied() {
                self.joins(pid, of);
            }
        }
    }

    /// The processes of this host that have ended since it was looked last.
    fn ended(&mut self) -> BTreeSet<u32> {
        let ended: BTreeSet<u32> =
            self.collector.pids().chain(self.missed.iter().copied()).filter(|pid| !runs(*pid)).collect();
        for pid in &ended {
            self.missed.remove(pid);
            self.called.remove(pid);
            if let Some(of) = self.ranks.get_mut(pid) {
                of.has_ended = true;
            }
        }
        ended
    }

    /// Of which process a record is that goes into digests.
    fn pid_of(record: &Record) -> Option<u32> {
        match record {
            Record::OffCpu(off) => Some(off.pid),
            Record::Collective(call) => Some(call.pid),
            Record::CudaCall(call) => Some(call.pid),
            _ => None,
        }
    }

    /// Forgets processes that are gone, where there are many.
    fn forget_jobs(&mut self) {
        if self.ranks.len() < MOST_PROCESSES {
            return;
        }
        self.ranks.retain(|pid, _| self.collector.has_gone(*pid) || runs(*pid));
        let known: BTreeSet<u64> = self.ranks.values().map(|of| of.job).collect();
        self.job_names.retain(|job, _| known.contains(job));
    }
}

impl Feed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Take in a record; what is no collective call or loss is none of a digest's business.
    pub(crate) fn record(&self, record: &Record) {
        if let Some(pid) = State::pid_of(record) {
            let mut state = self.state();
            if state.missed.contains(&pid) {
                if matches!(record, Record::Collective(call) if call.ret.is_some()) {
                    state.called(pid, Instant::now());
                }
                return;
            }
        }
        match record {
            Record::Process(seen) => {
                let mut state = self.state();
                // Its pid may have been another's.
                let before = state.ranks.remove(&seen.pid);
                let missed = state.missed.remove(&seen.pid);
                state.called.remove(&seen.pid);
                let is_back = !missed && before.is_some_and(|of| of.start_ns == seen.start_ns);
                let misses = !is_back && seen.start_ns < state.missed_until_ns;
                if misses {
                    state.missed.insert(seen.pid);
                }
                if let (Some(rank), Some(nranks @ 2..)) = (seen.rank, seen.world_size) {
                    let job = time_use::job_key(seen.uid, seen.job_id.as_deref(), seen.step_id.as_deref(), nranks);
                    let of = RankOf { job, rank, nranks, start_ns: seen.start_ns, has_ended: false };
                    state.ranks.insert(seen.pid, of);
                    if !misses {
                        state.joins(seen.pid, of);
                    }
                    let (job_id, step_id) = (seen.job_id.clone(), seen.step_id.clone());
                    state.job_names.insert(job, JobName { job_id, step_id, nranks: Some(nranks) });
                    state.forget_jobs();
                }
            }
            Record::OffCpu(off) => {
                let shift_ns = steady_shift_ns(off.ts_ns.saturating_add(off.duration_ns));
                let queued_ns = off.run_delay_ns.unwrap_or(0);
                let next_pid = Some(i64::from(off.next_pid));
                let kinds = causes::off_cpu_kinds(
                    off.voluntary,
                    off.reason,
                    off.duration_ns,
                    queued_ns,
                    next_pid,
                    &off.next_comm,
                );
                let mut at_ns = off.ts_ns.saturating_sub(shift_ns);
                let mut state = self.state();
                for (kind, ns) in kinds {
                    state.meter.off_cpu(off.pid, off.tid, at_ns, ns, kind);
                    state.halts.off_cpu((off.pid, off.tid), at_ns, ns, kind);
                    at_ns = at_ns.saturating_add(ns);
                }
            }
            // Put into a graph, not run: what runs later is not seen.
            Record::Collective(call) if call.captured == Some(true) => self.state().collector.unplaced(),
            // Its process ended in it: nothing was passed by.
            Record::Collective(call) if call.ret.is_none() => {}
            Record::Collective(call) => {
                let mut state = self.state();
                let shift_ns = steady_shift_ns(call.ts_ns.saturating_add(call.duration_ns));
                let entry_ns = call.ts_ns.saturating_sub(shift_ns);
                let thread = (call.pid, call.tid);
                // What only enqueues is waited for outside calls, and devices time what they do.
                let halted_ns = (call.tier == 1).then(|| state.halts.call(thread, entry_ns, call.duration_ns));
                if time_use::starts_or_ends(call.func) {
                    // Nothing is told of it by when ranks enter it.
                } else if call.tier > 0 {
                    let rank = call.rank.filter(|_| call.comm_hash.is_some());
                    let of = time_use::Call::new(call.func, call.tid, entry_ns, call.duration_ns, rank, call.root);
                    state.meter.call(call.pid, of);
                } else {
                    let pair = Coupling::of(call.func) == Coupling::Pair;
                    state.meter.enqueued(call.pid, pair);
                }
                let (Some(rank), Some(comm_hash)) = (call.rank, call.comm_hash) else {
                    if time_use::names_no_communicator(call.func) || time_use::starts_or_ends(call.func) {
                        return;
                    }
                    state.collector.unplaced();
                    return;
                };
                let node = state.name("");
                let (func, library) = (state.name(call.func), state.name(call.library.name()));
                let mut name = |name: Option<&'static str>| name.map(|name| state.name(name));
                let (datatype, reduce_op) = (name(call.datatype), name(call.reduce_op));
                let observed = Observation {
                    node,
                    pid: call.pid.into(),
                    rank,
                    nranks: call.nranks,
                    comm_hash,
                    func,
                    seq: call.seq.unwrap_or(0),
                    entry_ns,
                    duration_ns: call.duration_ns,
                    halted_ns: halted_ns.unwrap_or(0),
                    held_ns: halted_ns.map_or(0, |_| state.halts.held(thread)),
                    tier: call.tier,
                    library,
                    root: call.root,
                    comm_seq: call.comm_seq,
                    payload: Payload { bytes: call.bytes, datatype, reduce_op },
                };
                match call.seq {
                    Some(_) => state.collector.push(observed),
                    None => state.collector.push_unnumbered(observed),
                }
            }
            Record::CudaCall(call) if call.kind == Some("after_collective") => {
                let shift_ns = steady_shift_ns(call.ts_ns.saturating_add(call.duration_ns));
                let start_ns = call.ts_ns.saturating_sub(shift_ns);
                let mut state = self.state();
                state.collector.synced(call.pid, start_ns, call.duration_ns);
                state.meter.synced(call.pid, call.tid, start_ns, call.duration_ns);
            }
            Record::Net(net) if net.event == "tcp_retransmit_skb" => {
                if let (Ok(from), Ok(to)) = (net.saddr.parse(), net.daddr.parse()) {
                    let at_ns = net.ts_ns.saturating_sub(steady_shift_ns(net.ts_ns));
                    self.state().collector.resent(at_ns, from, to);
                }
            }
            Record::Loss(loss) if loss.reason == LossCount::BUDGET => self.state().misses(loss.ts_ns),
            Record::Loss(loss) => self.state().collector.lost(loss.lost),
            _ => {}
        }
    }

    /// Communicators and functions of which calls were recorded whose numbers are not known yet.
    pub(super) fn unnumbered(&self) -> BTreeSet<(u64, Arc<str>)> {
        self.state().collector.unnumbered()
    }

    /// Numbers such calls, by the digests of nodes; before [`close`](Self::close).
    pub(super) fn number(&self, me: &str, window: i64, clock: Option<ReferenceClock>, nodes: &[NodeDigests<'_>]) {
        self.state().collector.number(me, window, clock, nodes);
    }

    /// What processes do, of those that are or were ranks of this host; others are left out.
    pub(crate) fn activities(&self, pids: &[u32]) -> Vec<(u32, Activity)> {
        let state = self.state();
        let known: BTreeSet<u32> = state.collector.pids().chain(state.missed.iter().copied()).collect();
        let gone: BTreeSet<u32> = pids.iter().copied().filter(|pid| state.collector.has_gone(*pid)).collect();
        drop(state);
        let of = |pid: &u32| match (known.contains(pid), gone.contains(pid)) {
            (true, _) => Some((*pid, activity(*pid))),
            (false, true) => Some((*pid, Activity::Ended)),
            (false, false) => None,
        };
        pids.iter().filter_map(of).take(MOST_LOOKED_AT).collect()
    }

    /// Ends the lanes of communicators that have been idle for long up to `window`, where nobody
    /// waits in them: `waited_in` tells where, and is asked only if there are such lanes.
    pub(super) fn end_idle(&self, window: i64, waited_in: impl FnOnce() -> BTreeSet<u64>) {
        if self.state().collector.has_idle(window) {
            let waited_in = waited_in();
            self.state().collector.end_idle(window, &waited_in);
        }
    }

    /// Whether time off the CPU is recorded.
    pub(crate) fn sees_off_cpu(&self, sees: bool) {
        self.state().meter.sees_off_cpu(sees);
    }

    /// Where the time of this host's processes went that make calls in which not all ranks meet, up
    /// to the end of a window; every so many windows.
    pub(super) fn times(&self, node: &Arc<str>, window: i64) -> Vec<TimeUse> {
        if window.rem_euclid(EVERY_WINDOWS) != 0 {
            return Vec::new();
        }
        let mut state = self.state();
        state.meter.forget(|pid| !runs(pid));
        let mut times = state.meter.close(node, end_of(window));
        times.retain(|time| time.unscored_ns > 0);
        times
    }

    /// What a job is called; nothing where it is none of this host's.
    pub(super) fn job_name(&self, job: u64) -> JobName {
        self.state().job_names.get(&job).cloned().unwrap_or_default()
    }

    /// Whether calls of processes of a job were missed between the slices of a budget.
    pub(super) fn in_slices(&self, job: u64) -> bool {
        let state = self.state();
        state.missed.iter().any(|pid| state.job_of(*pid) == job)
    }

    /// The digests of a host's jobs.
    pub(super) fn by_job(&self, digest: Digest) -> BTreeMap<u64, Digest> {
        let state = self.state();
        let missed = state.missed.iter().copied();
        digest::by_job(digest, state.collector.pids().chain(missed), |pid| state.job_of(pid))
    }

    /// Whether nothing is known of any process: then no window has anything in it, unless a call is
    /// open.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state();
        state.missed.is_empty() && state.collector.is_idle() && state.meter.is_idle()
    }

    /// The digest of a window that is over; none where no rank runs here.
    pub(super) fn close(&self, window: i64, now: &InCalls) -> Option<Digest> {
        let mut state = self.state();
        state.records_all_again();
        let gone = state.ended();
        let quiet = state.collector.quiet(end_of(window).saturating_sub(OPEN_NS));
        let quiet = quiet.into_iter().filter(|pid| !gone.contains(pid)).take(MOST_LOOKED_AT);
        state.collector.activities(quiet.map(|pid| (pid, activity(pid))).collect());
        let lasts = |call: &InCall| end_of(window).saturating_sub(call.since_ns) >= OPEN_NS;
        let steady = |call: InCall| InCall { since_ns: call.since_ns.saturating_sub(now.shift_ns), ..call };
        let node = state.name("");
        let open = now.open.iter().filter_map(|call| in_call(&node, call)).map(steady).filter(lasts);
        state.collector.open(window, &open.collect::<Vec<_>>());
        let lasted_ns = |since_ns: i64| end_of(window).saturating_sub(since_ns.saturating_sub(now.shift_ns));
        let waits: Vec<(u32, u64)> = now
            .device_waits
            .iter()
            .map(|(pid, since_ns)| (*pid, lasted_ns(*since_ns)))
            .filter(|(_, lasted_ns)| *lasted_ns >= OPEN_NS)
            .map(|(pid, lasted_ns)| (pid, lasted_ns.unsigned_abs() / 1_000_000))
            .collect();
        state.collector.device_waits(&waits);
        let mut digest = state.collector.close(window);
        // Only now: their last calls are in this digest.
        state.collector.gone(gone, &mut digest);
        let known = !state.missed.is_empty() || state.collector.pids().next().is_some();
        let speaks = known || !digest.lanes.is_empty() || !digest.gone.is_empty();
        speaks.then_some(digest)
    }
}

#[cfg(test)]
mod tests {
    use node_bpf::{Collective, ProcessSeen};
    use record::steady_now_ns;

    use super::*;

    /// A process of this job that runs: this one.
    fn process(start_ns: i64) -> Record {
        let (rank, world_size) = (Some(0), Some(2));
        Record::Process(ProcessSeen { pid: std::process::id(), start_ns, rank, world_size, ..ProcessSeen::default() })
    }

    fn call() -> Record {
        Record::Collective(Collective {
            ts_ns: unix_now_ns() - 2_000_000,
            duration_ns: 1_000_000,
            pid: std::process::id(),
            rank: Some(0),
            nranks: Some(2),
            comm_hash: Some(7),
            func: "all_reduce",
            seq: Some(3),
            comm_seq: Some(3),
            tier: 1,
            ret: Some(0),
            ..Collective::default()
        })
    }

    fn lanes(feed: &Feed) -> usize {
        let window = digest::window_of(steady_now_ns()) + 1;
        let digest = feed.close(window, &InCalls::now(Vec::new, Vec::new));
        digest.map_or(0, |digest| digest.lanes.len())
    }

    #[test]
    fn a_process_of_which_calls_were_missed_is_in_digests_no_more() {
        let (feed, now_ns) = (Feed::default(), unix_now_ns());
        feed.record(&process(now_ns - 60_000_000_000));
        feed.record(&call());
        assert_eq!(lanes(&feed), 1);
        feed.record(&call());
        let missed = |ts_ns: i64| {
            let (probe, reason) = ("collectives".to_owned(), "budget".to_owned());
            Record::Loss(LossCount { ts_ns, since_ns: Some(now_ns), probe, reason, lost: 9 })
        };
        feed.record(&missed(now_ns));
        feed.record(&call());
        assert_eq!(lanes(&feed), 0, "how far it is, is not known");
        let job = feed.state().job_of(std::process::id());
        assert!(job != NO_JOB && feed.in_slices(job) && !feed.in_slices(NO_JOB));
        let digest = feed.close(digest::window_of(steady_now_ns()) + 1, &InCalls::now(Vec::new, Vec::new));
        let jobs = feed.by_job(digest.expect("a rank runs here"));
        assert!(jobs.contains_key(&job), "its judges hear of it: {jobs:?}");
        // It is seen anew, and is still one that began before.
        feed.record(&process(now_ns - 1));
        feed.record(&call());
        assert_eq!(lanes(&feed), 0);
        // For long no call was missed.
        feed.record(&missed(now_ns));
        let later = Instant::now() + WHOLE_AGAIN;
        feed.record(&call());
        feed.state().records_all_again();
        assert!(feed.in_slices(job), "the call ended too early: it may be in one that began unseen");
        feed.state().called(std::process::id(), later);
        feed.state().records_all_again();
        assert!(!feed.in_slices(job));
        feed.record(&process(now_ns - 1));
        assert!(!feed.in_slices(job), "it is told of once more");
        // A stretch that is not over yet.
        feed.record(&missed(now_ns + 100_000_000_000));
        feed.state().called(std::process::id(), later);
        feed.state().records_all_again();
        assert!(feed.in_slices(job));
        feed.state().called(std::process::id(), later + Duration::from_secs(100));
        feed.state().records_all_again();
        assert!(!feed.in_slices(job));
        feed.state().missed_until_ns = now_ns;
        feed.record(&call());
        assert_eq!(lanes(&feed), 1);
        feed.record(&missed(now_ns));
        // One that has ended.
        let child = std::process::Command::new("true").spawn().expect("it starts");
        let pid = child.id();
        let (rank, world_size) = (Some(1), Some(2));
        let seen = ProcessSeen { pid, start_ns: now_ns - 1, rank, world_size, ..ProcessSeen::default() };
        feed.record(&Record::Process(seen));
        child.wait_with_output().expect("it ends");
        for _ in 0..2 {
            let digest = feed.close(digest::window_of(steady_now_ns()) + 1, &InCalls::now(Vec::new, Vec::new));
            assert_eq!(digest.expect("it is told").gone.iter().map(|gone| gone.pid).collect::<Vec<_>>(), [pid]);
            feed.record(&missed(now_ns));
        }
        // One that began after the calls were missed.
        feed.record(&process(now_ns + 1));
        feed.record(&call());
        assert_eq!(lanes(&feed), 1);
    }
}
