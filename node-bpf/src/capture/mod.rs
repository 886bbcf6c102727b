//! Starting, watching and stopping capture. Two threads: one reads the ring buffer and makes
//! records of its bytes, the other owns the BPF object, discovers libraries and counts losses. Both
//! deliver to one sink.

mod reader;
mod slices;
mod watcher;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use files::Files;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use parking_lot::Mutex;

use reader::RingReader;
use slices::Pacer;

use crate::budget::{KeptBudget, Slices};
use crate::cgroup::Cgroup;
use crate::changes;
use crate::clock::{self, Clock};
use crate::config::CaptureConfig;
use crate::cost::{self, Costs};
use crate::decode;
use crate::discovery::Discovery;
use crate::error::Error;
use crate::host;
use crate::late::LateComms;
use crate::loader::{self, Loaded};
use crate::lookup;
use crate::mpi::structures::MpiStructures;
use crate::open_calls::OpenCalls;
use crate::process::Processes;
use crate::self_stats::SelfStats;
use crate::shared::{CaptureStatus, Shared, Sink};
use crate::shedding::Shedding;
use crate::signals::bursts::Bursts;
use crate::signals::fault_times::FaultTimes;
use crate::signals::faults;
use crate::signals::kernel_names;
use crate::tally::Tallies;
use crate::wire::{self, RawInFlight};
use record::{Collective, DeviceWait, LossCount, Record};

/// Running capture. Stops, and takes every probe away, when dropped.
#[derive(Debug)]
pub struct Capture {
    shared: Arc<Shared>,
    wake: Sender<Wake>,
    threads: Vec<JoinHandle<()>>,
    open_calls: Arc<OpenCalls>,
    waiting: MapHandle,
    ring: Arc<Mutex<RingReader>>,
}

/// Whether this host and this process can capture; the error says what is missing and what to do.
pub fn supported() -> Result<(), Error> {
    loader::check_host()
}

/// Opens what only privileges can: the names of kernel functions, on some kernels the events of
/// major faults and a higher limit on locked memory. To be called before a process drops its
/// privileges; what is refused is left out.
pub fn prepare() {
    host::raise_locked_memory();
    kernel_names::open_ahead();
    faults::open_ahead();
    let _ = changes::open_ahead(); // refused, it is tried again, and said
}

#[derive(Debug)]
enum Wake {
    /// A file was read.
    Answers,
    Exec(u32),
    Exit(u32),
    /// A server was found.
    Serves(u32),
    Stop,
}

impl Capture {
    /// Starts capturing. When it returns, the configured libraries and those of all running
    /// processes are probed.
    /// `sink` gets every record, from two threads, one at a time; it should pass the record on and
    /// return.
    ///
    /// # Errors
    /// What the host lacks, or what is wrong with the configured cgroup or libraries.
    pub fn start(config: CaptureConfig, sink: Sink) -> Result<Capture, Error> {
        let cgroup = config.cgroup.as_deref().map(Cgroup::open).transpose()?;
        let Loaded { object, mode, classes, only_user } = loader::load(&config, cgroup.as_ref())?;
        let failed = |error: libbpf_rs::Error| Error::Load { reason: error.to_string() };
        let events = lookup::map(&object, "events").map_err(failed)?;
        let stats = lookup::map(&object, "stats").map_err(failed)?;
        let host_stats = lookup::map(&object, "host_stats").map_err(failed)?;
        let host_counts = lookup::map(&object, "host_stats").map_err(failed)?;
        let bursts = Bursts::new(lookup::map(&object, "bursts").map_err(failed)?, host_counts);
        let tuning = lookup::map(&object, ".data.tuning").map_err(failed)?;
        let programs = lookup::map(&object, "program_times").map_err(failed)?;
        let open_calls = Arc::new(OpenCalls::attach(&object).map_err(failed)?);
        let waiting = lookup::map(&object, "waiting").map_err(failed)?;
        let mpi = MpiStructures::new(
            lookup::map(&object, "mpi_processes").map_err(failed)?,
            lookup::map(&object, "comms").map_err(failed)?,
        );
        let trap_ns = cost::trap_ns(mode);
        let (wake, woken) = mpsc::channel();
        let files = Files::new({
            let wake = wake.clone();
            move || drop(wake.send(Wake::Answers)) // the other side ends only with capture
        });
        let map = |name| lookup::map(&object, name).map_err(failed);
        let late = LateComms::new(map("comms")?, map("learnt")?, files.clone());
        let shared = Arc::new(Shared {
            sink: Mutex::new(sink),
            processes: Processes::new(files.clone()),
            clock: Clock::measure(),
            late,
            mpi,
            counted: Arc::default(),
            groups: Mutex::default(),
            status: Mutex::new(CaptureStatus {
                mode,
                only_user,
                files: vec![],
                probes: vec![],
                rows: vec![],
                processes: 0,
                problems: vec![],
                classes,
                cost: None,
                budget: config.budget.map(|budget| KeptBudget { budget, own_ppm: 0, recorded_ppm: 1_000_000 }),
            }),
            meeting: Mutex::default(),
            probed: Mutex::default(),
            noted: Mutex::default(),
            costs: Mutex::new(Costs::new(trap_ns)),
            callers: Mutex::default(),
            has_budget: config.budget.is_some(),
            delivered: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            detached: AtomicBool::new(false),
        });
        let tallies = Tallies::new(&object, Arc::clone(&shared.counted), shared.clock.now_unix_ns()).map_err(failed)?;
        let mut discovery = Discovery::new(
            object,
            mode,
            Arc::clone(&shared),
            (cgroup, only_user),
            config.probes,
            files.clone(),
            config.budget.is_some(),
        )?;
        for path in &config.libraries {
            discovery.attach_ahead(path)?;
        }
        if config.system_libraries {
            discovery.attach_system_libraries();
        }
        discovery.attach_probes_ahead()?;
        discovery.rescan();
        discovery.settle();
        discovery.check_probes()?;

        let of_ring = |source| Error::Os { doing: "mapping the ring buffer", source };
        let ring = RingReader::open(&events, bursts, Arc::clone(&shared), wake.clone(), files).map_err(of_ring)?;
        let signal = ring.signal().map_err(of_ring)?;
        let ring = Arc::new(Mutex::new(ring));
        let mut capture = Capture { shared, wake, threads: vec![], open_calls, waiting, ring: Arc::clone(&ring) };
        capture.spawn("capture-ring", {
            let shared = Arc::clone(&capture.shared);
            move || reader::read_ring(&ring, &signal, &shared, &config.after_read)
        })?;
        capture.spawn(slices::FINDS_LIBRARIES, {
            let (shared, open_calls) = (Arc::clone(&capture.shared), Arc::clone(&capture.open_calls));
            let slices = config.budget.map(|budget| Slices::new(budget, shared.clock.now_unix_ns()));
            let pacer = slices.map(|slices| Pacer::new(slices, trap_ns));
            move || {
                watcher::Watcher {
                    open_calls,
                    discovery,
                    stats,
                    host_stats,
                    programs,
                    tallies,
                    counted: vec![],
                    tuning,
                    shedding: Shedding::new(config.offcpu_min, config.block_min),
                    backlog: config.backlog,
                    rows: 0,
                    shed_at: Instant::now(),
                    self_stats: SelfStats::default(),
                    fault_times: FaultTimes::default(),
                    pacer,
                    shared,
                }
                .run(&woken, config.rescan)
            }
        })?;
        Ok(capture)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
        self.threads.push(spawned.map_err(|source| Error::Os { doing: "starting a capture thread", source })?);
        Ok(())
    }

    /// Makes capture follow a server that it finds nothing to probe in, as it follows ranks: its time
    /// off the CPU, requests to disks, faults. What is returned may outlive capture.
    pub fn follower(&self) -> impl Fn(u32) + Send + use<> {
        let wake = self.wake.clone();
        move |pid| drop(wake.send(Wake::Serves(pid))) // the other side ends only with capture
    }

    /// Delivers what is in the ring buffer now, from the caller's thread.
    pub fn read_now(&self) {
        self.ring.lock().read();
    }

    /// What is probed and what was lost.
    pub fn status(&self) -> CaptureStatus {
        let mut status = self.shared.status().clone();
        status.processes = self.shared.processes.pids().len();
        status
    }

    /// What could not be probed, and why, without the first `seen` entries.
    pub fn problems_after(&self, known: usize) -> Vec<String> {
        self.shared.status().problems.get(known..).unwrap_or_default().to_vec()
    }

    /// The calls that were entered and have not returned, each with its duration so far and `ret`
    /// 0: what ranks wait in now. Of waits for requests that have lasted, also the messages that
    /// these are for, where the library's memory tells (`irecv`, `isend`).
    pub fn in_flight(&self) -> Vec<Collective> {
        let now_ns = clock::kernel_now_ns();
        let mut calls = vec![];
        for RawInFlight { group_end, mut call, .. } in self.open_calls.read(now_ns) {
            if group_end {
                calls.extend(self.shared.groups().of((call.pid, call.tid), self.shared.clock.unix_ns(now_ns)));
                continue;
            }
            let process = self.shared.processes.known(call.pid);
            self.shared.complete(&mut call);
            let awaited = self.shared.awaited(&call);
            let all = std::iter::once(call).chain(awaited);
            calls.extend(all.filter_map(|call| decode::call(&call, &self.shared.clock, process.as_ref())));
        }
        calls
    }

    /// The threads that wait for their device after a collective, in any of the synchronise calls:
    /// work enqueued before need not be finished.
    pub fn device_waits(&self) -> Vec<DeviceWait> {
        let waits = self.waiting.keys().filter_map(|key| {
            let value = self.waiting.lookup(&key, MapFlags::ANY).ok()??; // one that ends meanwhile is not among them
            wire::waiting(&key, &value)
        });
        // each once: the kernel's walk starts over when the entry at its position is removed
        let waits: BTreeMap<u64, u64> = waits.collect();
        let found = waits.into_iter().map(|(thread, since_ns)| {
            let (pid, tid) = ((thread >> 32) as u32, thread as u32);
            let rank = self.shared.processes.known(pid).and_then(|process| process.seen.rank);
            DeviceWait { ts_ns: self.shared.clock.unix_ns(since_ns), pid, tid, rank }
        });
        found.collect()
    }

    /// Takes the probes away, delivers what is still in the ring buffer and the last losses, and
    /// ends the threads.
    pub fn stop(self) {}
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.wake.send(Wake::Stop).is_err() {
            self.shared.detached.store(true, Ordering::Release); // its thread has died, and the probes with it
        }
        for thread in self.threads.drain(..).rev() {
            let _ = thread.join(); // a panic in it was reported when it happened
        }
    }
}

fn loss(ts_ns: i64, probe: &str, reason: &str, lost: u64) -> Record {
    Record::Loss(LossCount { ts_ns, since_ns: None, probe: probe.to_owned(), reason: reason.to_owned(), lost })
}
