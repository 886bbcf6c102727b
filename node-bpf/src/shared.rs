//! State that the threads of a running capture share: the sink, known processes and communicators,
//! and the status for callers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use record::{Record, printable};

use crate::budget::KeptBudget;
use crate::classes::{self, CLASSES, ClassStatus, ProbeClass};
use crate::clock::Clock;
use crate::config::AttachMode;
use crate::cost::Costs;
use crate::decode;
use crate::functions::Api;
use crate::groups::Groups;
use crate::late::LateComms;
use crate::loader::ProbeStatus;
use crate::maps::FileKey;
use crate::mpi::structures::MpiStructures;
use crate::process::{Process, Processes};
use crate::self_stats::RecordingCost;
use crate::tally::RowRule;
use crate::tally::registry::Registry;
use crate::wire::RawCall;

/// A library file that is being probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedFile {
    /// Its path as the process that led to it sees it.
    pub path: PathBuf,
    /// Which library it is: "nccl", "rccl", "mpi", "cuda", "cuda_driver", "hip", "verbs"; "symbol"
    /// for what the user named.
    pub library: &'static str,
    /// The symbols probed.
    pub symbols: Vec<String>,
}

/// The state of capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureStatus {
    /// How calls are probed.
    pub mode: AttachMode,
    /// The only user whose processes are recorded; none: everybody's are.
    pub only_user: Option<u32>,
    /// The library files probed.
    pub files: Vec<AttachedFile>,
    /// Every probe's hits and losses since the start, as of the last second.
    pub probes: Vec<ProbeStatus>,
    /// Processes followed now.
    pub processes: usize,
    /// From when on counted calls (CUDA, HIP) become rows of their own.
    pub rows: Vec<RowRule>,
    /// What could not be probed, and why.
    pub problems: Vec<String>,
    /// Which classes are recorded, and why others are not.
    pub classes: Vec<ClassStatus>,
    /// What it took of the processes that make calls, in the last ten seconds that are over; none
    /// before, and where it was not measured.
    pub cost: Option<RecordingCost>,
    /// How the budget was kept; none: all is recorded, whatever it takes.
    pub budget: Option<KeptBudget>,
}

/// Where records go.
pub(crate) type Sink = Box<dyn FnMut(Record) + Send>;

/// What both threads use.
pub(crate) struct Shared {
    pub(crate) sink: Mutex<Sink>,
    pub(crate) processes: Processes,
    pub(crate) clock: Clock,
    pub(crate) late: LateComms,
    pub(crate) mpi: MpiStructures,
    /// The functions whose calls are counted.
    pub(crate) counted: Arc<Registry>,
    /// Calls whose group has not ended.
    pub(crate) groups: Mutex<Groups>,
    pub(crate) status: Mutex<CaptureStatus>,
    /// Processes with an MPI library whose files are being read, and whether their MPI_Init has
    /// returned.
    pub(crate) meeting: Mutex<Vec<(Arc<Process>, bool)>>,
    /// The files probed, by what maps show.
    pub(crate) probed: Mutex<Vec<(FileKey, AttachedFile)>>,
    /// How many problems each user had.
    pub(crate) noted: Mutex<HashMap<Option<u32>, usize>>,
    /// Who makes calls, and what they cost.
    pub(crate) costs: Mutex<Costs>,
    /// Calls that came as records since it was last looked, by process; counted where there is a
    /// budget.
    pub(crate) callers: Mutex<HashMap<u32, u64>>,
    pub(crate) has_budget: bool,
    /// Records delivered so far.
    pub(crate) delivered: AtomicU64,
    /// Rows of off-CPU stretches and block requests so far.
    pub(crate) rows: AtomicU64,
    /// The probes are gone: no records come after those in the ring now.
    pub(crate) detached: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn deliver(&self, record: Record) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
        (self.sink.lock())(record);
    }

    /// Records delivered so far.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// A call of a process came as a record.
    pub(crate) fn called(&self, pid: u32) {
        self.costs.lock().made(pid, 1);
        if self.has_budget {
            *self.callers.lock().entry(pid).or_default() += 1;
        }
    }

    /// The process of a record; announced to the sink before its first record.
    pub(crate) fn process(&self, pid: u32) -> Option<Arc<Process>> {
        self.announced(self.processes.of_record(pid))
    }

    pub(crate) fn announced(&self, found: Option<(Arc<Process>, bool)>) -> Option<Arc<Process>> {
        let (process, new) = found?;
        if new {
            self.report(&process);
        }
        Some(process)
    }

    /// Adds what is not known of a call's communicator, where its process's memory tells.
    pub(crate) fn complete(&self, call: &mut RawCall) {
        match decode::communicator(call) {
            Some((Api::Nccl, handle)) => self.late.complete(call, handle),
            Some((Api::Mpi, handle)) => self.mpi.complete(call, handle),
            Some((Api::Gloo, _)) | None => {} // the programs have read all there is
        }
    }

    /// The messages that an MPI call waits for which has not returned.
    pub(crate) fn awaited(&self, call: &RawCall) -> Vec<RawCall> {
        decode::requests(call).map(|requests| self.mpi.awaited(call, requests)).unwrap_or_default()
    }

    /// A process is gone, or runs another program.
    pub(crate) fn forget_libraries(&self, pid: u32) {
        self.late.forget(pid);
        self.mpi.forget(pid);
    }

    pub(crate) fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock()
    }

    /// Delivers the calls of a process's groups that have not ended, as they were made.
    pub(crate) fn release_groups(&self, pid: u32) {
        let left = self.groups().release(pid);
        left.into_iter().for_each(|call| self.deliver(Record::Collective(call)));
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, CaptureStatus> {
        self.status.lock()
    }

    /// A process has an MPI library, or its MPI_Init has returned: the programs are told of its
    /// structures when its files are read.
    pub(crate) fn meet(&self, process: Arc<Process>, began: bool) {
        self.meeting.lock().push((process, began));
        self.meet_ready();
    }

    /// Reports again the processes whose environment has been found since.
    pub(crate) fn read_environments(&self) {
        self.processes.read_environments().iter().for_each(|process| self.report(process));
    }

    /// Reports a process, and why its rank is not known.
    pub(crate) fn report(&self, process: &Process) {
        if let Some(why) = process.no_rank_because() {
            self.problem(Some(process.user), &why);
        }
        self.deliver(Record::Process(process.seen.clone()));
    }

    /// Tells the programs of processes whose files have been read.
    pub(crate) fn meet_ready(&self) {
        let is_ready = |(process, _): &mut (Arc<Process>, bool)| {
            process.mpi().is_ready() && !self.processes.awaits_environment(process)
        };
        self.read_environments();
        let ready: Vec<_> = self.meeting.lock().extract_if(.., is_ready).collect();
        for (process, began) in ready {
            let process = self.processes.newest(process);
            let member = process.member();
            if !began {
                self.mpi.meet(member);
            } else if let Err(problem) = self.mpi.began(member) {
                self.problem(Some(process.user), &problem);
            }
        }
    }

    /// A file is probed now; the key is its device and inode, as maps show them.
    pub(crate) fn attached(&self, key: FileKey, file: AttachedFile) {
        self.probed.lock().push((key, file.clone()));
        self.status().files.push(file);
    }

    /// A file is not probed any more.
    pub(crate) fn detached_from(&self, key: &FileKey) {
        for (_, file) in self.probed.lock().extract_if(.., |(of, _)| of == key) {
            let mut status = self.status();
            if let Some(at) = status.files.iter().position(|known| *known == file) {
                status.files.remove(at);
            }
        }
    }

    /// The classes that are on.
    pub(crate) fn classes_on(&self) -> Vec<&'static ProbeClass> {
        let status = self.status();
        CLASSES.iter().filter(|class| classes::is_on(&status.classes, class.name)).collect()
    }

    /// A class could not be attached.
    pub(crate) fn class_off(&self, name: &'static str, why: String, remedy: String) {
        tracing::warn!("not recorded: {name}: {why}; {remedy}");
        classes::turn_off(&mut self.status().classes, name, why, remedy);
    }

    /// What could not be probed, of one user's files or of nobody's. Each user has a few of these;
    /// the last of hers says that more will not be listed.
    pub(crate) fn problem(&self, user: Option<u32>, problem: &str) {
        let text: String = printable(problem).chars().take(MOST_OF_A_PROBLEM).collect();
        let mut status = self.status();
        if status.problems.contains(&text) {
            return;
        }
        let mut noted = self.noted.lock();
        let all: usize = noted.values().sum();
        let of_user = noted.entry(user).or_default();
        let most = if user.is_none_or(|user| user == 0) { MOST_PROBLEMS } else { MOST_OF_A_USER };
        *of_user += 1;
        if *of_user > most || all >= MOST_PROBLEMS {
            return tracing::debug!("{text}");
        }
        let last = *of_user == most || all + 1 == MOST_PROBLEMS;
        let text = if last { format!("{text} (further ones are not listed)") } else { text };
        tracing::warn!("{text}");
        status.problems.push(text);
    }
}

/// Problems that are listed: of all, and of one user; characters of each.
const MOST_PROBLEMS: usize = 64;
const MOST_OF_A_USER: usize = 4;
const MOST_OF_A_PROBLEM: usize = 400;
