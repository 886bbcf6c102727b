//! State that the threads of a running capture share: the sink, known processes and communicators,
//! and the status for callers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Mutex, MutexGuard};
use record::Record;

use crate::classes::{self, CLASSES, ClassStatus, ProbeClass};
use crate::clock::Clock;
use crate::config::AttachMode;
use crate::decode;
use crate::functions::Api;
use crate::groups::Groups;
use crate::late::LateComms;
use crate::loader::ProbeStatus;
use crate::mpi::structures::MpiStructures;
use crate::process::{Process, Processes};
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
        (self.sink.lock())(record);
    }

    /// The process of a record; announced to the sink before its first record.
    pub(crate) fn process(&self, pid: u32) -> Option<Arc<Process>> {
        self.announced(self.processes.of_record(pid))
    }

    pub(crate) fn announced(&self, found: Option<(Arc<Process>, bool)>) -> Option<Arc<Process>> {
        let (process, new) = found?;
        if new {
            self.deliver(Record::Process(process.seen.clone()));
        }
        Some(process)
    }

    /// Adds what is not known of a call's communicator, where its process's memory tells.
    pub(crate) fn complete(&self, call: &mut RawCall) {
        match decode::communicator(call) {
            Some((Api::Nccl, handle)) => self.late.complete(call, handle),
            Some((Api::Mpi, handle)) => self.mpi.complete(call, handle),
            None => {}
        }
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

    pub(crate) fn attached(&self, file: AttachedFile) {
        self.status().files.push(file);
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

    pub(crate) fn problem(&self, problem: String) {
        tracing::warn!("{problem}");
        self.status().problems.push(problem);
    }
}
