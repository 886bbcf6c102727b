//! The thread that owns the BPF object: it discovers libraries, counts losses, measures what
//! capture costs, and leaves out more where there is too much.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;

use super::slices::Pacer;
use super::{Wake, loss};
use crate::attach;
use crate::clock;
use crate::cost::Programs;
use crate::discovery::Discovery;
use crate::loader::{self, ProbeStatus};
use crate::open_calls::OpenCalls;
use crate::procfs::runs;
use crate::self_stats::SelfStats;
use crate::shared::Shared;
use crate::shedding::{Backlog, Second, Shedding};
use crate::signals::fault_times::FaultTimes;
use crate::signals::wire::Tuning;
use crate::tally::Tallies;
use record::HostRecord;
use record::Record;

/// The thread that owns the probes.
pub(super) struct Watcher {
    pub(super) discovery: Discovery,
    pub(super) open_calls: Arc<OpenCalls>,
    pub(super) stats: MapHandle,
    pub(super) host_stats: MapHandle,
    pub(super) programs: MapHandle,
    pub(super) tallies: Tallies,
    /// The counters as of the last count.
    pub(super) counted: Vec<ProbeStatus>,
    /// The map of thresholds, the rule that changes them, and its inputs.
    pub(super) tuning: MapHandle,
    pub(super) shedding: Shedding,
    pub(super) backlog: Backlog,
    /// [`Shared::rows`] as of the last count, and when that was.
    pub(super) rows: u64,
    pub(super) shed_at: Instant,
    pub(super) self_stats: SelfStats,
    pub(super) fault_times: FaultTimes,
    pub(super) pacer: Option<Pacer>,
    pub(super) shared: Arc<Shared>,
}

const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two reports of capture's own cost.
const SELF_INTERVAL: Duration = Duration::from_secs(10);
/// Between two wake-ups by what others report, where programs begin and end all the time.
const LEAST_REST: Duration = Duration::from_millis(10);
/// Most processes that are taken out of the maps together.
const MOST_AT_ONCE: usize = 1024;
/// Time between two searches for processes whose end was not reported.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

impl Watcher {
    pub(super) fn run(mut self, woken: &Receiver<Wake>, rescan: Duration) {
        let (mut next_rescan, mut next_count) = (Instant::now() + rescan, Instant::now());
        let mut next_self = Instant::now();
        let mut next_sweep = Instant::now() + SWEEP_INTERVAL;
        // When a report woke this thread last, which then went on to work.
        let mut reported: Option<Instant> = None;
        loop {
            let due = self.discovery.next_due().into_iter().chain([next_rescan, next_count]).min();
            let wait = due.map_or(rescan, |due| due.saturating_duration_since(Instant::now()));
            let wait = self.pacer.as_ref().map_or(wait, |pacer| pacer.due_in(&self.shared).min(wait));
            let mut next = match woken.try_recv() {
                Ok(wake) => Ok(wake),
                Err(TryRecvError::Disconnected) => Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {
                    let rest = reported.take().map_or(Duration::ZERO, |at| LEAST_REST.saturating_sub(at.elapsed()));
                    thread::sleep(rest.min(wait));
                    let next = woken.recv_timeout(wait.saturating_sub(rest));
                    reported = next.is_ok().then(Instant::now);
                    next
                }
            };
            if let Ok(Wake::Exit(pid)) = next {
                next = self.end(pid, woken);
            }
            match next {
                Ok(Wake::Answers) => self.discovery.take_answers(),
                Ok(Wake::Exec(pid)) => self.discovery.on_exec(pid),
                Ok(Wake::Exit(pid)) => self.discovery.on_exit(&HashSet::from([pid])),
                Ok(Wake::Serves(pid)) => self.discovery.follow_server(pid),
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.keep_budget();
            self.discovery.look_at_new();
            let now = Instant::now();
            if now >= next_rescan {
                self.discovery.rescan();
                next_rescan = now + rescan;
            }
            if now >= next_sweep {
                self.sweep();
                next_sweep = Instant::now() + SWEEP_INTERVAL;
            }
            if now >= next_count {
                self.count();
                self.shared.clock.refresh();
                // from here on, not from before: counting takes a while under load
                next_count = Instant::now() + self.until_next_second();
                if now >= next_self {
                    let cost = self.shared.costs.lock().tell(Programs::read(&self.programs));
                    self.shared.status().cost = cost;
                    let budget = self.shared.status().budget;
                    let kept = self.pacer.as_mut().zip(budget).map(|(pacer, of)| pacer.tell(of.budget));
                    self.shared.status().budget = kept;
                    self.observe_self();
                    next_self = now + SELF_INTERVAL;
                }
            }
        }
        self.fault_times.end();
        self.discovery.detach();
        self.count();
        self.observe_self();
        let open = self.open_calls.read(clock::kernel_now_ns());
        let in_flight = open.iter().filter(|open| !open.group_end).count() as u64;
        if in_flight > 0 {
            self.shared.deliver(loss(self.shared.clock.now_unix_ns(), "calls", "in_flight", in_flight));
        }
        self.shared.detached.store(true, Ordering::Release);
    }

    /// Takes processes that have ended out of the programs' maps, with those whose end is reported
    /// already: looking through the maps takes as long for one as for many. Returns what comes next.
    fn end(&mut self, pid: u32, woken: &Receiver<Wake>) -> Result<Wake, RecvTimeoutError> {
        let mut ended = HashSet::from([pid]);
        let next = loop {
            match woken.try_recv() {
                Ok(Wake::Exit(pid)) if ended.len() < MOST_AT_ONCE => drop(ended.insert(pid)),
                Ok(Wake::Exec(pid)) if !ended.contains(&pid) => self.discovery.on_exec(pid),
                Ok(other) => break Ok(other),
                Err(_) => break Err(RecvTimeoutError::Timeout),
            }
        };
        self.discovery.on_exit(&ended);
        next
    }

    /// Removes processes whose end was not reported.
    fn sweep(&mut self) {
        for pid in self.discovery.sweep() {
            self.shared.processes.forget(pid);
            self.shared.forget_libraries(pid);
            self.shared.release_groups(pid);
        }
    }

    /// Counting begins with the seconds of the clock, as the rollups do; at least half a second
    /// apart.
    fn until_next_second(&self) -> Duration {
        let into_ns = self.shared.clock.now_unix_ns().rem_euclid(1_000_000_000).unsigned_abs();
        let left = COUNT_INTERVAL.saturating_sub(Duration::from_nanos(into_ns));
        if left < COUNT_INTERVAL / 2 { left + COUNT_INTERVAL } else { left }
    }

    /// Delivers records of capture's own cost.
    fn observe_self(&mut self) {
        let ts_ns = self.shared.clock.now_unix_ns();
        let processes = self.shared.processes.pids().len();
        let tuning = self.shedding.tuning();
        let rules = self.shared.status().rows.clone();
        let costs = {
            let status = self.shared.status();
            (processes, status.cost, status.budget)
        };
        for stat in self.self_stats.look(ts_ns, &self.programs, &self.counted, &rules, tuning, costs) {
            self.shared.deliver(Record::Host(HostRecord::SelfStat(stat)));
        }
    }

    /// Takes probes away, or puts them back, as the budget asks for it.
    fn keep_budget(&mut self) {
        let Some(pacer) = &mut self.pacer else { return };
        if pacer.due_in(&self.shared) > Duration::ZERO {
            return;
        }
        let (tuning, map) = (self.shedding.tuning(), &self.tuning);
        pacer.look(&self.programs, &mut self.discovery, &self.shared, |missed_until_ns| {
            if let Err(error) = (Tuning { missed_until_ns, ..tuning }).apply(map) {
                tracing::warn!(%error, "cannot change what is recorded");
            }
        });
    }

    /// Leaves out more when there is too much, and less again.
    fn shed(&mut self, lost: u64) {
        let rows = self.shared.rows.load(Ordering::Relaxed);
        // a thread that waited for its CPU is late: events since then are of more than one second
        let since = self.shed_at.elapsed().max(COUNT_INTERVAL / 2);
        let per_second = rows.saturating_sub(self.rows) as f64 / since.as_secs_f64();
        let second = Second { lost, backlog: self.backlog.thousandths(), rows: per_second as u64 };
        self.rows = rows;
        self.shed_at = Instant::now();
        let Some(tuning) = self.shedding.after(second) else { return };
        let missed_until_ns = self.pacer.as_ref().map_or(0, |pacer| pacer.missed_until_ns);
        match (Tuning { missed_until_ns, ..tuning }).apply(&self.tuning) {
            Ok(()) => tracing::warn!(
                offcpu_min_ms = tuning.offcpu_min_ns / 1_000_000,
                block_min_ms = tuning.block_min_ns / 1_000_000,
                point_to_point = !tuning.shed_p2p,
                ?second,
                "what is recorded changes with the load"
            ),
            Err(error) => tracing::warn!(%error, "cannot change what is recorded"),
        }
        self.observe_self();
    }

    /// Attaches to the beginnings of page faults, or detaches.
    fn time_faults(&mut self) {
        const CLASS: &str = "fault-times";
        if self.shared.detached.load(Ordering::Acquire) || !self.shared.classes_on().iter().any(|c| c.name == CLASS) {
            return;
        }
        let hits = self.counted.iter().find(|probe| probe.probe == "major_fault").map_or(0, |probe| probe.hits);
        let looked = self.fault_times.after_second(hits, || self.discovery.attach_fault_begins());
        if let Err(error) = looked {
            let (why, remedy) = attach::refusal(&error);
            self.shared.class_off(CLASS, why, remedy);
        }
    }

    /// Delivers counts and losses since the last time, per probe and reason.
    fn count(&mut self) {
        let mut lost_ring = 0;
        let mut now = loader::read_stats(&self.stats, &self.host_stats);
        let ts_ns = self.shared.clock.now_unix_ns();
        let shared = &self.shared;
        // it may see a new process before the ring's reader does
        let process = |pid| shared.processes.recent(pid).or_else(|| runs(pid).then(|| shared.process(pid)).flatten());
        let records = self.tallies.read(ts_ns, |pid| process(pid).and_then(|process| process.seen.rank));
        self.discovery.tallies_left(self.tallies.idle());
        for record in records {
            if let Record::CallTally(tally) = &record {
                self.shared.costs.lock().made(tally.pid, tally.count);
            }
            self.shared.deliver(record);
        }
        let (counted, rows) = self.tallies.status();
        now.extend(counted);
        self.shared.status().rows = rows;
        for probe in &now {
            let before = self.counted.iter().find(|b| b.probe == probe.probe);
            let since = |field: fn(&ProbeStatus) -> u64| field(probe).saturating_sub(before.map_or(0, field));
            lost_ring += since(|p| p.lost_ring);
            let lost = [
                ("ringbuf", since(|p| p.lost_ring)),
                ("map_full", since(|p| p.lost_map)),
                ("unmatched", since(|p| p.unmatched)),
                ("shed", since(|p| p.shed)),
            ];
            for (reason, lost) in lost.into_iter().filter(|(_, lost)| *lost > 0) {
                self.shared.deliver(loss(ts_ns, &probe.probe, reason, lost));
            }
        }
        self.discovery.brake();
        self.shared.status().probes.clone_from(&now);
        self.counted = now;
        self.time_faults();
        self.shed(lost_ring);
    }
}
