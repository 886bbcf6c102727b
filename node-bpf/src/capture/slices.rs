//! Keeps a budget: measures what calls take, and has the probes at frequent functions taken away
//! and put back when [`Slices`] says so. What is missed meanwhile is reported as a loss with the
//! time that it was lost in.

use std::fs;
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;
use record::{LossCount, Record};

use crate::budget::{Budget, Change, KeptBudget, PerCall, Slices};
use crate::clock;
use crate::cost::Programs;
use crate::discovery::Discovery;
use crate::shared::Shared;

/// What is missed between slices is reported as lost by this.
const TABLE: &str = "collectives";
/// What a call takes of a program that works between calls, in times of what its traps and our
/// programs take by themselves: their marks in caches and branch predictors are paid for later. Two
/// ranks of OpenFOAM lost 6.3 us a call where traps and programs took 1.4 to 1.7
/// (`scripts/bench-cost.py`, with the agent stopped).
const BESIDE_WORK: f64 = 4.0;
/// The same of the threads that record, where ranks fill all cores: a thread that took 9.5 % of a core
/// made these ranks 18 % slower.
const THREADS_BESIDE_WORK: f64 = 2.0;
/// Taken for the two traps of a call where that could not be measured.
const UNMEASURED_TRAP_NS: u64 = 3_000;
/// The name of the thread that owns the probes and finds libraries.
pub(super) const FINDS_LIBRARIES: &str = "capture-find";
/// How often it is looked which threads record.
const LOOK_FOR_THREADS: Duration = Duration::from_secs(10);

/// While calls are being missed, all that is known of communicators' counts is void.
const BEING_MISSED: u64 = u64::MAX;

/// Of the time since it was told last how the budget is kept.
#[derive(Debug, Clone, Copy)]
struct Told {
    since: Instant,
    own_ns: u64,
    /// Calls were recorded for so long before the present slice, and that one counts from here on.
    recorded: Duration,
    from: Instant,
}

impl Told {
    fn new() -> Self {
        Self { since: Instant::now(), own_ns: 0, recorded: Duration::ZERO, from: Instant::now() }
    }
}

/// Measures, and does what the state machine says.
#[derive(Debug)]
pub(super) struct Pacer {
    slices: Slices,
    trap_ns: u64,
    programs: Programs,
    programs_per_entry: PerCall,
    own_per_call: PerCall,
    threads: RecordingThreads,
    delivered: u64,
    /// The part of all calls that the process makes which makes most of them, as last seen.
    busiest: f64,
    /// Of the present slice: since when, and calls.
    since: Instant,
    calls: u64,
    /// Calls a second in the last slice.
    rate: f64,
    off_until_ns: Option<i64>,
    told: Told,
    /// See `Tuning`.
    pub(super) missed_until_ns: u64,
}

impl Pacer {
    pub(super) fn new(slices: Slices, trap_ns: Option<u64>) -> Self {
        Self {
            slices,
            trap_ns: trap_ns.unwrap_or(UNMEASURED_TRAP_NS),
            programs: Programs::default(),
            programs_per_entry: PerCall::default(),
            own_per_call: PerCall::default(),
            threads: RecordingThreads::default(),
            delivered: 0,
            busiest: 1.0,
            since: Instant::now(),
            calls: 0,
            rate: 0.0,
            off_until_ns: None,
            told: Told::new(),
            missed_until_ns: 0,
        }
    }

    /// Time until it is to look again.
    pub(super) fn due_in(&self, shared: &Shared) -> Duration {
        let ns = self.slices.next_look_ns().saturating_sub(shared.clock.now_unix_ns());
        Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
    }

    /// Looks at what was spent, and does what follows. `apply` tells the programs up to when calls
    /// were missed: before probes go, and after they came.
    pub(super) fn look(
        &mut self,
        programs: &MapHandle,
        discovery: &mut Discovery,
        shared: &Shared,
        apply: impl Fn(u64),
    ) {
        let spent = self.spent(programs, shared);
        let began = thread_time();
        match self.slices.after(shared.clock.now_unix_ns(), spent) {
            None => return,
            Some(Change::Off { until_ns }) => {
                let since_ns = shared.clock.now_unix_ns();
                self.missed_until_ns = BEING_MISSED;
                apply(self.missed_until_ns);
                discovery.take_frequent_away();
                let seconds = self.since.elapsed().as_secs_f64();
                self.rate = if seconds > 0.0 { self.calls as f64 / seconds } else { 0.0 };
                self.off_until_ns = Some(until_ns);
                self.told.recorded += self.told.from.elapsed();
                self.missed(shared, since_ns, until_ns);
            }
            Some(Change::On) => {
                discovery.put_frequent_back();
                self.missed_until_ns = clock::kernel_now_ns();
                apply(self.missed_until_ns);
                let now_ns = shared.clock.now_unix_ns();
                if let Some(until_ns) = self.off_until_ns.take().filter(|until_ns| *until_ns < now_ns) {
                    self.missed(shared, until_ns, now_ns);
                }
                (self.since, self.calls) = (Instant::now(), 0);
                self.told.from = self.since;
            }
        }
        // Meanwhile ranks waited for their memory maps.
        let took = thread_time().saturating_sub(began);
        self.slices.switched(took.as_nanos() as f64 * THREADS_BESIDE_WORK);
        tracing::debug!(took_us = took.as_micros(), on = self.off_until_ns.is_none(), "slice");
    }

    /// How the budget was kept since the last time.
    pub(super) fn tell(&mut self, budget: Budget) -> KeptBudget {
        let Told { since, own_ns, mut recorded, from } = std::mem::replace(&mut self.told, Told::new());
        if self.off_until_ns.is_none() {
            recorded += from.elapsed();
        }
        let ppm = |ns: f64| (ns * 1e6 / since.elapsed().as_nanos().max(1) as f64) as u64;
        let recorded_ppm = ppm(recorded.as_nanos() as f64).min(1_000_000);
        KeptBudget { budget, own_ppm: ppm(own_ns as f64), recorded_ppm }
    }

    /// Reports a stretch of time in which frequent calls were not recorded, and about how many.
    fn missed(&self, shared: &Shared, since_ns: i64, until_ns: i64) {
        let lost = ((until_ns - since_ns) as f64 / 1e9 * self.rate) as u64;
        let (probe, reason) = (TABLE.to_owned(), LossCount::BUDGET.to_owned());
        shared.deliver(Record::Loss(LossCount {
            ts_ns: until_ns,
            since_ns: Some(since_ns),
            probe,
            reason,
            lost: lost.max(1),
        }));
    }

    /// What calls took since the last time, nanoseconds.
    fn spent(&mut self, programs: &MapHandle, shared: &Shared) -> f64 {
        let now = Programs::of_calls(programs);
        let since = now.since(std::mem::replace(&mut self.programs, now));
        self.calls += since.entries();
        let callers = std::mem::take(&mut *shared.callers.lock());
        let calls: u64 = callers.values().sum();
        if let Some(most) = callers.values().max().filter(|_| calls > 0) {
            self.busiest = *most as f64 / calls as f64;
        }
        let all = shared.delivered();
        let delivered = all - std::mem::replace(&mut self.delivered, all);
        let own = self.threads.cpu_ns();
        self.told.own_ns += own.all_ns;
        let part = if delivered > 0 { (calls as f64 / delivered as f64).min(1.0) } else { 0.0 };
        let programs_ns = self.programs_per_entry.charged(since.cpu_ns(), since.entries());
        let traps_ns = since.entries() as f64 * self.trap_ns as f64;
        let ranks_ns = (traps_ns + programs_ns) * self.busiest * BESIDE_WORK;
        let own_ns = self.own_per_call.charged(own.by_record_ns as f64 * part, calls) * THREADS_BESIDE_WORK;
        tracing::debug!(calls, ranks_us = ranks_ns as u64 / 1_000, own_us = own_ns as u64 / 1_000, part, "spent");
        ranks_ns + own_ns
    }
}

/// The threads of this process that record: capture's and the store's.
#[derive(Debug, Default)]
struct RecordingThreads {
    looked: Option<Instant>,
    threads: Vec<RecordingThread>,
}

#[derive(Debug)]
struct RecordingThread {
    /// Its file with the time on a CPU, and what this last said.
    path: String,
    before_ns: u64,
    /// Not the one that finds libraries: it works for each program, and not for each call.
    by_record: bool,
}

/// Time of the threads that record on a CPU, nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct OwnTime {
    all_ns: u64,
    /// Of those whose work grows with what is recorded.
    by_record_ns: u64,
}

impl RecordingThreads {
    /// Since the last time.
    fn cpu_ns(&mut self) -> OwnTime {
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_FOR_THREADS) {
            self.looked = Some(Instant::now());
            self.look();
        }
        let mut sum = OwnTime::default();
        for RecordingThread { path, before_ns, by_record } in &mut self.threads {
            let now_ns = on_cpu_ns(path).unwrap_or(*before_ns);
            let since_ns = now_ns.saturating_sub(std::mem::replace(before_ns, now_ns));
            sum.all_ns += since_ns;
            sum.by_record_ns += if *by_record { since_ns } else { 0 };
        }
        sum
    }

    fn look(&mut self) {
        let known = std::mem::take(&mut self.threads);
        for entry in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let at = entry.path();
            let name = fs::read_to_string(at.join("comm")).unwrap_or_default();
            if name.starts_with("capture-") || name.starts_with("store") {
                let path = at.join("schedstat").to_string_lossy().into_owned();
                let before_ns = known.iter().find(|of| of.path == path).map(|of| of.before_ns);
                let before_ns = before_ns.or_else(|| on_cpu_ns(&path)).unwrap_or(0);
                let by_record = name.trim_end() != FINDS_LIBRARIES;
                self.threads.push(RecordingThread { path, before_ns, by_record });
            }
        }
    }
}

/// Time of this thread on a CPU.
fn thread_time() -> Duration {
    Duration::from_nanos(u64::try_from(record::read_clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)).unwrap_or(0))
}

/// The first number of a thread's schedstat.
fn on_cpu_ns(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.split(' ').next()?.parse().ok()
}
