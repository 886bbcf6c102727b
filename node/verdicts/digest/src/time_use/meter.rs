//! Adds up where the time of processes went, from their calls and their time off the CPU as these
//! are recorded.
//!
//! A process's time is reported up to the end of its last call: before that everything is known, since
//! a thread that has left a call has also come back to its CPU. So a long call, or a long time
//! without calls, is reported when it is over, in one piece.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use observed::{HELD, Kind, TimeUse};

use super::super::halts::is_halt;
use super::call::Call;
use super::enqueued::Enqueued;

/// Calls and stretches kept of all processes, at most. Beyond, those of a process are dropped, and
/// its time is reported anew from its next call on.
const MOST: usize = 262_144;
/// Peers reported of one process, at most: those that it spends most time with.
const MOST_PEERS: usize = 4;
/// Threads of one process that are known to make calls, at most.
const MOST_THREADS: usize = 64;

/// A short name of a job: FNV-1a over its user, its id, its step and its size. Processes of one job
/// have the same on every host. Id, step and size are what processes say of themselves: the user,
/// where known, keeps another's process out of the job.
#[must_use]
pub fn job_key(user: Option<u32>, job_id: Option<&str>, step_id: Option<&str>, nranks: i32) -> u64 {
    let user = user.map(|user| user.to_string()).unwrap_or_default();
    let text = format!("{}\0{}\0{nranks}\0{user}", job_id.unwrap_or_default(), step_id.unwrap_or_default());
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A stretch of time.
type Stretch = (i64, i64);

/// What is kept of one process.
#[derive(Debug, Default)]
struct Track {
    /// Job, rank, ranks of the job.
    who: Option<(u64, i32, i32)>,
    /// Up to here its time was reported; none before its first call.
    reported_until_ns: Option<i64>,
    enqueued: Enqueued,
    calls: Vec<Call>,
    /// Time off the CPU with its place in [`HELD`].
    held: Vec<(u32, Stretch, usize)>,
    threads: BTreeSet<u32>,
}

/// Adds up.
#[derive(Debug, Default)]
pub struct Meter {
    processes: BTreeMap<u32, Track>,
    kept: usize,
    /// Time off the CPU is recorded at all.
    sees_off_cpu: bool,
}

impl Meter {
    /// Say whether time off the CPU is recorded.
    pub fn sees_off_cpu(&mut self, sees: bool) {
        self.sees_off_cpu = sees;
    }

    /// One that knows of no process.
    #[must_use]
    pub fn without_processes(&self) -> Self {
        Self { sees_off_cpu: self.sees_off_cpu, ..Self::default() }
    }

    /// Whether no process is known.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.processes.is_empty()
    }

    /// Say which rank of which job a process is.
    pub fn process(&mut self, pid: u32, job: u64, rank: i32, nranks: i32) {
        self.processes.entry(pid).or_default().who = Some((job, rank, nranks));
    }

    /// Take in a call that has ended.
    pub fn call(&mut self, pid: u32, call: Call) {
        let track = self.processes.entry(pid).or_default();
        if track.threads.len() < MOST_THREADS {
            track.threads.insert(call.tid);
        }
        track.calls.push(call);
        self.kept += 1;
        self.bound(pid);
    }

    /// Take in a call that only enqueues; `pair`: it is a send or a receive.
    pub fn enqueued(&mut self, pid: u32, pair: bool) {
        self.processes.entry(pid).or_default().enqueued.call(pair);
    }

    /// Take in a synchronise call that has ended: a wait for the calls that were enqueued before.
    pub fn synced(&mut self, pid: u32, tid: u32, start_ns: i64, duration_ns: i64) {
        let track = self.processes.get_mut(&pid);
        if let Some(waited) = track.and_then(|track| track.enqueued.wait(tid, start_ns, duration_ns)) {
            self.call(pid, waited);
        }
    }

    /// Take in a stretch in which a thread was off its CPU. Those that are the program's own doing
    /// are left out.
    pub fn off_cpu(&mut self, pid: u32, tid: u32, start_ns: i64, duration_ns: i64, kind: Kind) {
        let Some(place) = HELD.iter().position(|held| *held == kind) else { return };
        let Some(track) = self.processes.get_mut(&pid) else { return };
        track.held.push((tid, (start_ns, start_ns.saturating_add(duration_ns.max(0))), place));
        self.kept += 1;
        self.bound(pid);
    }

    /// Processes are no more.
    pub fn forget(&mut self, gone: impl Fn(u32) -> bool) {
        self.processes.retain(|pid, track| {
            let keep = !gone(*pid);
            if !keep {
                self.kept -= track.calls.len() + track.held.len();
            }
            keep
        });
    }

    fn bound(&mut self, pid: u32) {
        if self.kept > MOST
            && let Some(track) = self.processes.get_mut(&pid)
        {
            self.kept -= track.calls.len() + track.held.len();
            (track.reported_until_ns, track.calls, track.held) = (None, Vec::new(), Vec::new());
        }
    }

    /// Where the time went up to the last call of each process that ended before `until_ns`; of
    /// processes with none nothing, nor of those whose rank is not known.
    #[must_use]
    pub fn close(&mut self, node: &Arc<str>, until_ns: i64) -> Vec<TimeUse> {
        let mut times = Vec::new();
        for (pid, track) in &mut self.processes {
            let before = track.calls.len() + track.held.len();
            let closed = track.close(until_ns);
            self.kept -= before - (track.calls.len() + track.held.len());
            if let Some((mut time, (job, rank, nranks))) = closed.zip(track.who) {
                (time.node, time.pid) = (Arc::clone(node), i64::from(*pid));
                (time.job, time.rank, time.nranks) = (job, rank, nranks);
                time.held_ns = time.held_ns.filter(|_| self.sees_off_cpu);
                times.push(time);
            }
        }
        times
    }
}

impl Track {
    fn close(&mut self, until_ns: i64) -> Option<TimeUse> {
        let mut calls: Vec<Call> = self.calls.extract_if(.., |call| call.end_ns < until_ns).collect();
        calls.sort_by_key(|call| (call.start_ns, call.end_ns));
        let (first, last) = (calls.first()?.start_ns, calls.iter().map(|call| call.end_ns).max()?);
        let from = self.reported_until_ns.unwrap_or(first);
        let to = last.max(from);
        self.reported_until_ns = Some(to);
        let threads = &self.threads;
        let mut held: Vec<(Stretch, usize)> = self
            .held
            .extract_if(.., |(_, (start, _), _)| *start < to)
            .filter(|(tid, ..)| threads.contains(tid))
            .map(|(_, (start, end), place)| ((start.max(from), end.min(to)), place))
            .filter(|((start, end), _)| start < end)
            .collect();
        held.sort_unstable();
        // What halts the process halts it in calls, too, where it then holds up who waits for it.
        let halts = |place: usize| HELD.get(place).copied().is_some_and(is_halt);
        let halted = union(held.iter().filter(|(_, place)| halts(*place)).map(|(stretch, _)| *stretch));
        let mut time = TimeUse {
            node: "".into(),
            pid: 0,
            rank: 0,
            nranks: 0,
            job: 0,
            until_ns: to,
            span_ns: to - from,
            calls: calls.len() as u64,
            scored_ns: 0,
            unscored_ns: 0,
            held_ns: Some([0; HELD.len()]),
            peers: Vec::new(),
        };
        let mut peers: BTreeMap<i32, i64> = BTreeMap::new();
        let mut covered = from;
        for call in &calls {
            let (start, end) = (call.start_ns.max(covered), call.end_ns);
            if start >= end {
                continue;
            }
            let waited = end - start - overlap(&halted, (start, end));
            *(if call.scored { &mut time.scored_ns } else { &mut time.unscored_ns }) += waited;
            if let Some(peer) = call.peer {
                *peers.entry(peer).or_default() += waited;
            }
            covered = end;
        }
        let in_calls = union(calls.iter().map(|call| (call.start_ns.max(from), call.end_ns)));
        let mut of_kind = [0; HELD.len()];
        // An instant counts once, however many threads were held in it: for the first kind of them.
        let mut counted: Vec<Stretch> = Vec::new();
        for (place, sum) in of_kind.iter_mut().enumerate() {
            let mut all = counted.clone();
            all.extend(held.iter().filter(|(_, of)| *of == place).map(|(stretch, _)| *stretch));
            let all = union(all.into_iter());
            let measure = |stretches: &[Stretch], in_calls_too: bool| -> i64 {
                stretches.iter().map(|s| s.1 - s.0 - if in_calls_too { 0 } else { overlap(&in_calls, *s) }).sum()
            };
            let in_calls_too = halts(place);
            *sum = measure(&all, in_calls_too) - measure(&counted, in_calls_too);
            counted = all;
        }
        time.held_ns = Some(of_kind);
        time.peers = peers.into_iter().filter(|(_, ns)| *ns > 0).collect();
        time.peers.sort_by_key(|(rank, ns)| (std::cmp::Reverse(*ns), *rank));
        time.peers.truncate(MOST_PEERS);
        (time.span_ns > 0).then_some(time)
    }
}

/// Stretches in order, without overlap.
fn union(stretches: impl Iterator<Item = Stretch>) -> Vec<Stretch> {
    let mut sorted: Vec<Stretch> = stretches.filter(|(start, end)| start < end).collect();
    sorted.sort_unstable();
    let mut all: Vec<Stretch> = Vec::with_capacity(sorted.len());
    for (start, end) in sorted {
        match all.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => all.push((start, end)),
        }
    }
    all
}

/// How much of a stretch lies in others, which are in order and do not overlap.
fn overlap(others: &[Stretch], (start, end): Stretch) -> i64 {
    let first = others.partition_point(|other| other.1 <= start);
    others[first..].iter().take_while(|other| other.0 < end).map(|other| other.1.min(end) - other.0.max(start)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: i64 = 1_000_000;

    fn call(start_ms: i64, end_ms: i64) -> Call {
        Call { tid: 1, start_ns: start_ms * MS, end_ns: end_ms * MS, scored: false, peer: Some(1) }
    }

    #[test]
    fn a_job_is_its_users() {
        let of = |user| job_key(user, Some("812"), Some("0"), 4);
        assert!(of(Some(1_000)) == of(Some(1_000)) && of(Some(1_000)) != of(Some(65_534)) && of(None) != of(Some(0)));
        assert_ne!(of(Some(7)), job_key(Some(7), Some("812"), Some("0"), 47), "size and user are told apart");
    }

    fn meter() -> Meter {
        let mut meter = Meter::default();
        meter.sees_off_cpu(true);
        meter.process(7, 1, 0, 2);
        meter
    }

    #[test]
    fn time_is_reported_up_to_the_last_call_and_goes_on_from_there() {
        let (mut meter, node) = (meter(), Arc::from("n"));
        meter.call(7, call(100, 110));
        meter.call(7, call(150, 200));
        let first = meter.close(&node, 500 * MS);
        assert_eq!((first[0].span_ns, first[0].unscored_ns, first[0].calls), (100 * MS, 60 * MS, 2));
        assert_eq!(first[0].peers, [(1, 60 * MS)]);
        assert!(meter.close(&node, 1_000 * MS).is_empty(), "it has made no call since");
        meter.call(7, call(900, 1_100));
        let second = meter.close(&node, 1_500 * MS);
        assert_eq!((second[0].span_ns, second[0].unscored_ns), (900 * MS, 200 * MS));
    }

    #[test]
    fn held_is_what_lies_outside_calls_and_what_halts_anywhere() {
        let (mut meter, node) = (meter(), Arc::from("n"));
        meter.call(7, call(0, 10));
        meter.call(7, call(100, 200));
        // Pushed off while computing and while waiting; only the first keeps others waiting.
        meter.off_cpu(7, 1, 50 * MS, 20 * MS, Kind::CpuStolen);
        meter.off_cpu(7, 1, 120 * MS, 20 * MS, Kind::CpuStolen);
        meter.off_cpu(7, 1, 160 * MS, 30 * MS, Kind::Stopped);
        meter.off_cpu(7, 1, 20 * MS, 5 * MS, Kind::Sleep);
        // A helper thread.
        meter.off_cpu(7, 9, 20 * MS, 5 * MS, Kind::BlockIo);
        let time = meter.close(&node, 500 * MS).remove(0);
        assert_eq!(time.held_ns, Some([30 * MS, 0, 20 * MS, 0, 0]));
        assert_eq!(time.unscored_ns, (10 + 100 - 30) * MS);
    }

    #[test]
    fn too_much_is_dropped_and_reported_anew() {
        let (mut meter, node) = (meter(), Arc::from("n"));
        for at in 0..=MOST as i64 {
            meter.call(7, Call { start_ns: at * 10, end_ns: at * 10 + 5, ..call(0, 0) });
        }
        assert!(meter.close(&node, i64::MAX).is_empty());
        meter.call(7, call(10_000, 10_010));
        assert_eq!(meter.close(&node, i64::MAX)[0].span_ns, 10 * MS);
        meter.forget(|pid| pid == 7);
        assert_eq!(meter.kept, 0);
    }

    proptest! {
        /// Whatever overlaps, no instant counts twice, and closing in between changes no sum.
        #[test]
        fn time_adds_up(
            calls in prop::collection::vec((0i64..1_000, 0i64..50), 1..40),
            held in prop::collection::vec((0i64..1_000, 0i64..50, 0usize..HELD.len()), 0..40),
        ) {
            let node = Arc::from("n");
            let mut meter = meter();
            for (start, length) in &calls {
                meter.call(7, call(*start, start + length));
            }
            for (start, length, kind) in &held {
                meter.off_cpu(7, 1, start * MS, length * MS, HELD[*kind]);
            }
            for time in meter.close(&node, i64::MAX) {
                let held: i64 = time.held_ns.unwrap().iter().sum();
                prop_assert!(time.unscored_ns >= 0 && time.held_ns.unwrap().iter().all(|ns| *ns >= 0));
                prop_assert!(time.in_calls_ns() + held <= time.span_ns, "{time:?}");
            }
            prop_assert_eq!(meter.kept, meter.processes[&7].held.len());
        }
    }
}
