//! Recording: capture that feeds the store, or the reason why there is none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use explain::stacks::Identity;
use model::NOT_RECORDED;
use model::watch::ServiceNow;
use model::wire::OpenCall;
use node_bpf::rings::Rings;
use node_bpf::{
    AfterRead, Backlog, CLASSES, Capture, CaptureConfig, ClassState, ClassStatus, ProcessSeen, Record, RecordingCost,
    Sampler, SamplerConfig, SelfStat, Serving, ServingConfig, ServingStatus, Watch,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use store::{Ingest, Source};

use super::config::{AgentConfig, CaptureChoice};
use super::device_times::DeviceTimes;
use super::scope::Scope;
use super::served::Served;
use super::standing::Feed;

/// A process on this host that is a rank of a job.
#[derive(Debug, Clone)]
pub(super) struct RankProcess {
    pub(super) pid: u32,
    pub(super) rank: u32,
    pub(super) job_id: Option<String>,
    /// When it started, in clock ticks since boot; none where it had ended before that was read.
    pub(super) start_ticks: Option<u64>,
}

impl RankProcess {
    fn of(seen: &ProcessSeen) -> Option<Self> {
        let rank = u32::try_from(seen.rank?).ok()?;
        let start_ticks = Identity::of(seen.pid).ok().map(|identity| identity.start_ticks);
        Some(Self { pid: seen.pid, rank, job_id: seen.job_id.clone(), start_ticks })
    }

    /// Whether it still runs, and no other process has its pid.
    fn runs(&self) -> bool {
        Identity::of(self.pid).is_ok_and(|now| Some(now.start_ticks) == self.start_ticks)
    }
}

/// How this host is recorded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RecordingState {
    /// By eBPF.
    On,
    /// Not, and it was not asked for.
    Off,
    /// By the MPI shim and the NCCL plugin only, since eBPF failed for this reason.
    Shim(String),
    /// Not, for this reason.
    Failed(String),
}

impl std::fmt::Display for RecordingState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::On => f.write_str("on"),
            Self::Off => f.write_str("off"),
            Self::Shim(why) => write!(f, "MPI shim and NCCL plugin only: {why}"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// The state of recording on this host.
#[derive(Debug)]
pub struct Recording {
    running: Mutex<Option<Capture>>,
    /// Samples of the host, also where capture cannot be had.
    sampler: Mutex<Option<Sampler>>,
    /// How it is recorded.
    pub state: RecordingState,
    /// The ranks' processes that were seen, by pid.
    ranks: Arc<Mutex<BTreeMap<u32, RankProcess>>>,
    /// The calls on their way into digests.
    feed: Arc<Feed>,
    /// The processes that are recorded, if not all.
    scope: Option<Arc<Mutex<Scope>>>,
    /// Calls of ranks with the MPI shim or the NCCL plugin, where there is no eBPF.
    rings: Mutex<Option<Rings>>,
    /// Which calls are stored with the device's own times in place of eBPF's.
    devices: Arc<DeviceTimes>,
    /// Receives what turns out not to be recorded, and how many of these were reported.
    reported: Mutex<Option<(Ingest, usize)>>,
    /// Whether NCCL's RAS of its ranks is asked in a hang.
    asks_nccl: bool,
    /// Requests that servers answer, and how many of its problems were reported.
    serving: Mutex<Option<(Serving, usize)>>,
    /// What they have answered.
    served: Arc<Served>,
}

impl Recording {
    /// None, and none wanted.
    pub(super) fn off() -> Self {
        Self {
            running: Mutex::default(),
            sampler: Mutex::default(),
            state: RecordingState::Off,
            ranks: Arc::default(),
            feed: Arc::default(),
            scope: None,
            rings: Mutex::default(),
            devices: Arc::default(),
            reported: Mutex::default(),
            asks_nccl: false,
            serving: Mutex::default(),
            served: Arc::default(),
        }
    }

    /// Starts capture into the store when it is wanted and possible; `unwritable` says why the
    /// store takes no rows.
    ///
    /// # Errors
    /// A cgroup was named that does not exist (recording everything instead would be wrong), or a
    /// function or point that cannot be probed.
    pub fn start(config: &AgentConfig, source: &Arc<Source>, unwritable: Option<String>) -> anyhow::Result<Self> {
        let not = |state| Self { state, asks_nccl: config.asks_nccl, ..Self::off() };
        let CaptureChoice::Auto { cgroup, probes, job, rings, budget, serving } = &config.capture else {
            return Ok(not(RecordingState::Off));
        };
        if let Some(why) = unwritable {
            return Ok(not(RecordingState::Failed(why)));
        }
        let Source::Store(store) = source.as_ref() else { return Ok(not(RecordingState::Off)) };
        if let Some(path) = cgroup {
            anyhow::ensure!(path.is_dir(), "--cgroup {}: there is no such cgroup", path.display());
        }
        let ingest = store.ingest();
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let feed = Arc::new(Feed::default());
        let scope = job.clone().map(|job| Arc::new(Mutex::new(Scope::new(job))));
        let backlog = Backlog::default();
        let sampler = sample(ingest.clone(), backlog.clone())
            .inspect_err(|error| tracing::warn!("the host is not sampled: {error}"))
            .ok();
        let serving = serving.as_deref().cloned().map(|serving| ServingConfig { cgroup: cgroup.clone(), ..serving });
        let (cgroup, probes, budget) = (cgroup.clone(), probes.clone(), *budget);
        let committing = ingest.clone();
        let after_read = AfterRead::new(move || committing.batch_is_over());
        let capture_config = CaptureConfig { cgroup, probes, backlog, after_read, budget, ..CaptureConfig::default() };
        let reported = Mutex::new(Some((ingest.clone(), 0)));
        let devices = Arc::new(DeviceTimes::default());
        let served = Arc::new(Served::default());
        let mut store_it = sink(ingest.clone(), &seen, &feed, scope.as_ref(), &served);
        let of_devices = Arc::clone(&devices);
        let of_ebpf = move |record| {
            if of_devices.admits_of_ebpf(&record) {
                store_it(record);
            }
        };
        let started = Capture::start(capture_config, Box::new(of_ebpf));
        let (rings_at, node) = (rings.as_deref(), job.as_ref().map(|job| job.node.as_str()));
        let rings = match (&started, rings_at) {
            (Err(error), Some(directory)) if !matches!(error, node_bpf::Error::Probe { .. }) => {
                rings_in(directory, node, sink(ingest.clone(), &seen, &feed, scope.as_ref(), &served))
            }
            _ => None,
        };
        store.not_recorded(gaps(&started, rings.is_some()));
        let serving = match (&started, serving) {
            (Ok(capture), Some(serving)) => {
                let requests = sink(ingest.clone(), &seen, &feed, scope.as_ref(), &served);
                serves(serving, requests, capture, &ingest)
            }
            _ => None,
        };
        if started.is_ok() || rings.is_some() {
            store.recording_began(record::unix_now_ns());
        }
        let rings = match (&started, rings_at) {
            (Ok(_), Some(directory)) => {
                let store_it = sink(ingest.clone(), &seen, &feed, scope.as_ref(), &served);
                rings_in(directory, node, with_ebpf(Arc::clone(&devices), ingest, store_it))
            }
            _ => rings,
        };
        let recording = match started {
            Ok(capture) => {
                let off = |class: &ClassStatus| matches!(class.state, ClassState::Off { .. });
                let named = |class: &ClassStatus| class.name == "offcpu";
                feed.sees_off_cpu(!capture.status().classes.iter().any(|class| named(class) && off(class)));
                let rings = Mutex::new(rings);
                let running = Mutex::new(Some(capture));
                let serving = Mutex::new(serving.map(|serving| (serving, 0)));
                Self {
                    running,
                    rings,
                    ranks: seen,
                    feed,
                    scope,
                    devices,
                    reported,
                    serving,
                    served,
                    ..not(RecordingState::On)
                }
            }
            // what was asked for by name is not left out silently
            Err(error @ node_bpf::Error::Probe { .. }) => return Err(error.into()),
            Err(error) if rings.is_some() => {
                tracing::warn!("recording only MPI and NCCL calls of ranks started under `rankmesh env`: {error}");
                let state = RecordingState::Shim(error.to_string());
                Self { rings: Mutex::new(rings), ranks: seen, feed, scope, ..not(state) }
            }
            Err(error) => {
                tracing::warn!("not recording: {error}");
                not(RecordingState::Failed(error.to_string()))
            }
        };
        *recording.sampler.lock() = sampler;
        Ok(recording)
    }

    /// Gives the store what could not be probed since the last time, for the coverage of answers.
    pub(super) fn tell_problems(&self) {
        let (running, mut reported) = (self.running.lock(), self.reported.lock());
        let Some((capture, (ingest, count))) = running.as_ref().zip(reported.as_mut()) else { return };
        for problem in capture.problems_after(*count) {
            ingest.also_not_recorded(vec!["collectives", "call_rollups"], problem);
            *count += 1;
        }
        let mut serving = self.serving.lock();
        let Some((serving, count)) = serving.as_mut() else { return };
        for problem in serving.status().problems.into_iter().skip(*count) {
            ingest.also_not_recorded(record::tables::REQUESTS.to_vec(), problem);
            *count += 1;
        }
    }

    /// Whose requests are recorded here; none where it was not asked for or cannot be.
    pub fn serving(&self) -> Option<ServingStatus> {
        self.serving.lock().as_ref().map(|(serving, _)| serving.status())
    }

    /// Requests that were answered here since the start, by service.
    pub(super) fn served(&self) -> Vec<ServiceNow> {
        self.served.now()
    }

    /// The same, as they are counted.
    pub(super) fn requests_served(&self) -> &Arc<Served> {
        &self.served
    }

    /// What eBPF records here, and how; none where it does not.
    pub fn status(&self) -> Option<node_bpf::CaptureStatus> {
        self.running.lock().as_ref().map(Capture::status)
    }

    /// The state as it is shown: with the budget, and the share of the time in which calls are
    /// recorded where that is not all of it.
    pub(super) fn shown(&self) -> String {
        let Some(kept) = self.status().and_then(|status| status.budget) else { return self.state.to_string() };
        let budget = f64::from(kept.budget.ppm()) / 1e4;
        if kept.recorded_ppm == 1_000_000 {
            return format!("{} (budget {budget} %)", self.state);
        }
        format!("{}, in slices: {:.1} % of the time (budget {budget} %)", self.state, kept.recorded_ppm as f64 / 1e4)
    }

    /// Whether capture runs.
    pub(super) fn records(&self) -> bool {
        self.running.lock().is_some() || self.rings.lock().is_some()
    }

    /// Events that probes could not hand over, since the start; none where no probe runs.
    pub(super) fn lost_by_probes(&self) -> Option<u64> {
        let running = self.running.lock();
        let probes = running.as_ref()?.status().probes;
        Some(probes.iter().map(|probe| probe.lost_ring + probe.lost_map).sum())
    }

    /// What recording takes of those who make calls; none where it is not measured.
    pub(super) fn cost(&self) -> Option<RecordingCost> {
        self.running.lock().as_ref()?.status().cost
    }

    /// Takes in what was recorded up to now and is on its way.
    pub(super) fn read_now(&self) {
        self.running.lock().iter().for_each(Capture::read_now);
    }

    /// The calls on their way into digests.
    pub(super) fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Ranks whose processes run on this host now, ascending.
    pub fn ranks(&self) -> Vec<u32> {
        self.rank_processes(None).iter().map(|process| process.rank).collect::<BTreeSet<u32>>().into_iter().collect()
    }

    /// Whether NCCL's RAS may be asked in this process.
    pub(super) fn may_ask_nccl(&self, pid: u32) -> bool {
        self.asks_nccl && self.rank_processes(None).iter().any(|process| process.pid == pid)
    }

    /// The processes of ranks that run on this host now, of one user or of all.
    pub(super) fn rank_processes(&self, viewer: Option<u32>) -> Vec<RankProcess> {
        let mut ranks = self.ranks.lock();
        ranks.retain(|_, process| process.runs());
        ranks.values().filter(|process| is_of(viewer, process.pid)).cloned().collect()
    }

    /// The collective calls that ranks on this host are in right now, and their waits for devices
    /// after such calls.
    pub fn open_calls(&self) -> Vec<OpenCall> {
        let running = self.running.lock();
        let (calls, waits) = match running.as_ref() {
            Some(capture) => {
                let mut calls = capture.in_flight();
                calls.retain(|call| !self.devices.are_of_device(call));
                let of_ranks = self.rings.lock().as_ref().map(Rings::in_flight).unwrap_or_default();
                calls.extend(of_ranks.into_iter().filter(|call| self.devices.are_of_device(call)));
                (calls, capture.device_waits())
            }
            None => (self.rings.lock().as_ref().map(Rings::in_flight).unwrap_or_default(), vec![]),
        };
        drop(running);
        calls
            .into_iter()
            .filter(|call| self.is_recorded(call.pid))
            .map(|call| OpenCall {
                pid: call.pid,
                rank: call.rank,
                nranks: call.nranks,
                comm_hash: call.comm_hash,
                func: call.func.to_owned(),
                seq: call.seq,
                entry_ns: call.ts_ns,
                tier: call.tier,
                library: call.library.name().to_owned(),
                root: call.root,
                tag: call.tag,
                job_id: call.job_id.as_deref().map(str::to_owned),
                comm_seq: call.comm_seq,
                bytes: call.bytes,
                datatype: call.datatype.map(str::to_owned),
                reduce_op: call.reduce_op.map(str::to_owned),
            })
            .chain(waits.iter().filter(|wait| self.is_recorded(wait.pid)).map(super::device::open_call))
            .collect()
    }

    /// Those of one user's processes, or of all.
    pub fn open_calls_of(&self, viewer: Option<u32>) -> Vec<OpenCall> {
        let mut calls = self.open_calls();
        calls.retain(|call| is_of(viewer, call.pid));
        calls
    }

    fn is_recorded(&self, pid: u32) -> bool {
        self.scope.as_ref().is_none_or(|scope| scope.lock().is_of(pid))
    }

    /// Processes that wait for their device now, after they have enqueued collectives, and since
    /// when (Unix nanoseconds).
    pub(super) fn device_waits(&self) -> Vec<(u32, i64)> {
        let waits = self.running.lock().as_ref().map(Capture::device_waits).unwrap_or_default();
        waits.into_iter().filter(|wait| self.is_recorded(wait.pid)).map(|wait| (wait.pid, wait.ts_ns)).collect()
    }

    /// Detaches every probe. What was recorded stays.
    pub fn stop(&self) {
        drop(self.serving.lock().take());
        drop(self.sampler.lock().take());
        drop(self.rings.lock().take());
        if let Some(capture) = self.running.lock().take() {
            capture.stop();
        }
    }
}

/// Records requests; none, and what is said of it in answers, where that cannot be.
fn serves(
    config: ServingConfig,
    sink: Box<dyn FnMut(Record) + Send>,
    capture: &Capture,
    ingest: &Ingest,
) -> Option<Serving> {
    let started = Serving::start(config, sink, Box::new(capture.follower()));
    started
        .inspect_err(|error| {
            tracing::warn!("requests are not recorded: {error}");
            ingest.also_not_recorded(record::tables::REQUESTS.to_vec(), format!("no request is {NOT_RECORDED}{error}"));
        })
        .ok()
}

/// Whether `viewer` may see this process; without a viewer, every process.
fn is_of(viewer: Option<u32>, pid: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    // The owner of a process's directory in /proc is the user who may trace it: root, where it runs
    // with other rights than that user's alone.
    let owner = || std::fs::metadata(format!("/proc/{pid}")).map(|found| found.uid()).ok();
    viewer.is_none_or(|uid| owner() == Some(uid))
}

/// Reads the rings of ranks with the MPI shim or the NCCL plugin; none, and a warning, where that
/// cannot be.
fn rings_in(directory: &Path, node: Option<&str>, sink: Box<dyn FnMut(Record) + Send>) -> Option<Rings> {
    Rings::start(directory, node, sink)
        .inspect_err(|error| tracing::warn!("what ranks with the MPI shim or the NCCL plugin do is not read: {error}"))
        .ok()
}

/// Where eBPF records, most records in rings are the same calls again. The times of the device are
/// stored in place of eBPF's records. Records that are not stored are read all the same, so that
/// rings lose their names and nothing stays in memory, and coverage reports where times of the
/// device were left out.
fn with_ebpf(
    devices: Arc<DeviceTimes>,
    ingest: Ingest,
    mut store_it: Box<dyn FnMut(Record) + Send>,
) -> Box<dyn FnMut(Record) + Send> {
    let mut noted = false;
    Box::new(move |record| {
        if devices.admits_of_rank(&record) {
            store_it(record);
        } else if !noted && devices.leaves_out(&record) {
            noted = true;
            let note = "the times of the device (tier 3) that the NCCL plugin has of some calls are left out: recording began after their \
                        communicators did, so which call is which cannot be told";
            ingest.also_not_recorded(vec!["collectives"], note.to_owned());
        }
    })
}

/// Passes records to the store, to digests and to the counts for metrics.
fn sink(
    ingest: Ingest,
    ranks: &Arc<Mutex<BTreeMap<u32, RankProcess>>>,
    feed: &Arc<Feed>,
    scope: Option<&Arc<Mutex<Scope>>>,
    served: &Arc<Served>,
) -> Box<dyn FnMut(Record) + Send> {
    let (ranks, feed, scope, served) = (Arc::clone(ranks), Arc::clone(feed), scope.cloned(), Arc::clone(served));
    Box::new(move |record| {
        if scope.as_ref().is_some_and(|scope| !scope.lock().admits(&record)) {
            return;
        }
        if let Record::Process(seen) = &record
            && let Some(process) = RankProcess::of(seen)
        {
            ranks.lock().insert(process.pid, process);
        }
        feed.record(&record);
        served.record(&record);
        ingest.record(record);
    })
}

/// What is not recorded though it was to be: for the coverage of answers.
fn gaps(started: &Result<Capture, node_bpf::Error>, rings: bool) -> Vec<(Vec<&'static str>, String)> {
    let short = |text: &str| -> String { text.lines().next().unwrap_or_default().chars().take(160).collect() };
    match started {
        Err(error) => {
            // Tables without eBPF programs are sampled all the same.
            let by_ebpf = CLASSES.iter().filter(|class| !class.programs.is_empty());
            let all: BTreeSet<_> = by_ebpf.flat_map(|class| class.tables).copied().collect();
            let why = short(&error.to_string());
            let of_rings: &[(&[&str], &str)] = &[
                (
                    &["collectives", "processes"],
                    "only MPI and NCCL calls of ranks that were started under `rankmesh env` are",
                ),
                (
                    &["call_rollups"],
                    "only calls of ranks that were started under `rankmesh env` and, sampled from /proc once a second, what \
                     the scheduler did with them (source 'proc') are",
                ),
                (
                    &["offcpu"],
                    "only samples of what the scheduler did with ranks (call_rollups, source 'proc'), and no row of this \
                     table, are",
                ),
            ];
            let mut gaps: Vec<(Vec<&'static str>, String)> = vec![];
            let mut rest = all;
            for (tables, what) in of_rings.iter().filter(|_| rings) {
                let tables: Vec<&'static str> = tables.iter().filter_map(|table| rest.take(table)).collect();
                gaps.push((tables, format!("{what} {NOT_RECORDED}{why}")));
            }
            gaps.push((rest.into_iter().collect(), format!("nothing is {NOT_RECORDED}{why}")));
            gaps
        }
        Ok(capture) => {
            let off = |class: ClassStatus| {
                let ClassState::Off { why, .. } = class.state else { return None };
                let of = CLASSES.iter().find(|c| c.name == class.name)?;
                Some((of.tables.to_vec(), format!("not {NOT_RECORDED}{}: {}", of.records, short(&why))))
            };
            let status = capture.status();
            let everywhere: Vec<_> = CLASSES
                .iter()
                .filter(|class| !class.programs.is_empty())
                .flat_map(|class| class.tables)
                .copied()
                .collect();
            let whose = |user| (everywhere, format!("only processes of user {user} are recorded here"));
            status.only_user.map(whose).into_iter().chain(status.classes.into_iter().filter_map(off)).collect()
        }
    }
}

/// Samples the host into the store, and reports to capture how full the store's queue is.
fn sample(ingest: Ingest, backlog: Backlog) -> Result<Sampler, node_bpf::Error> {
    let store = ingest.clone();
    let watch: Watch = Box::new(move |ts_ns, rarely| {
        backlog.set(store.fullness());
        if rarely { of_store(&store, ts_ns) } else { vec![] }
    });
    Sampler::start(SamplerConfig::default(), watch, Box::new(move |record| ingest.record(record)))
}

/// The store's own statistics.
fn of_store(store: &Ingest, ts_ns: i64) -> Vec<SelfStat> {
    let health = store.health();
    let (file_bytes, wal_bytes) = store.file_bytes();
    let all = [
        ("store.queued", health.queued as f64, "count"),
        ("store.stored", health.stored as f64, "count"),
        ("store.lost", health.lost as f64, "count"),
        ("store.commits", health.commits as f64, "count"),
        ("store.failed_commits", health.failed_commits as f64, "count"),
        ("store.longest_commit", health.longest_commit.as_nanos() as f64, "ns"),
        ("store.file", file_bytes as f64, "bytes"),
        ("store.wal", wal_bytes as f64, "bytes"),
    ];
    all.map(|(name, value, unit)| SelfStat { ts_ns, name: name.to_owned(), value, unit }).into()
}
