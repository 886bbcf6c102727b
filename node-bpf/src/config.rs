//! What to capture and how: the values a capture is started with.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::budget::Budget;
use crate::shedding::Backlog;
use crate::symbol_probes::ProbeSpec;

/// How calls are probed; the best that the kernel supports is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachMode {
    /// One session program for entry and return (Linux 6.13).
    Session,
    /// One link for all entries of a file, one for all returns (Linux 6.6).
    Multi,
    /// An entry and a return probe per symbol (Linux 5.15).
    Single,
    /// The same, with a small program for each that identifies it, and without task storage (Linux
    /// 5.8).
    Stub,
}

/// What is to be done when the ring buffer was read and all that was in it is delivered: rows that
/// came together are best committed together.
#[derive(Clone, Default)]
pub struct AfterRead(Option<Arc<dyn Fn() + Send + Sync>>);

impl AfterRead {
    /// To do this; it should return soon.
    pub fn new(what: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(what)))
    }

    pub(crate) fn call(&self) {
        self.0.iter().for_each(|what| what());
    }
}

impl std::fmt::Debug for AfterRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AfterRead")
    }
}

/// What to capture, and how.
#[derive(Debug, Clone)]
pub struct CaptureConfig {
    /// Capture only the tasks of this cgroup v2 directory and its descendants.
    pub cgroup: Option<PathBuf>,
    /// Libraries to probe before any process has them mapped, so that not even the first call of
    /// the first process is missed. All others are found while they run.
    pub libraries: Vec<PathBuf>,
    /// Probe those in the dynamic loader's cache ahead, too.
    pub system_libraries: bool,
    /// Size of the ring buffer between kernel and reader; rounded up to a power of two.
    pub ring_bytes: u32,
    /// Record off-CPU stretches of followed processes.
    pub offcpu: bool,
    /// Shorter stretches are not recorded (nor summed).
    pub offcpu_min: Duration,
    /// Record TCP retransmits and resets.
    pub tcp: bool,
    /// Record block requests of followed processes.
    pub block: bool,
    /// Shorter requests, queueing included, are not recorded (nor summed).
    pub block_min: Duration,
    /// Record major faults, reclaim and kills for want of memory of followed processes.
    pub memory: bool,
    /// Count CUDA and HIP calls.
    pub cuda: bool,
    /// Record asynchronous events of InfiniBand and RoCE devices.
    pub fabric_events: bool,
    /// Functions and USDT points to probe in addition.
    pub probes: Vec<ProbeSpec>,
    /// How often running processes are checked for newly loaded libraries.
    pub rescan: Duration,
    /// How full the queue behind the sink is: when it fills up, less is recorded.
    pub backlog: Backlog,
    /// Called after each read of the ring buffer by the clock.
    pub after_read: AfterRead,
    /// Record only this user's processes. Without root's rights that is always so, for the user
    /// that runs this process: see [`privileges::only_user`](crate::privileges::only_user).
    pub only_user: Option<u32>,
    /// What recording calls may take of ranks and of this process's own core; none: each is
    /// recorded, whatever that takes.
    pub budget: Option<Budget>,
    /// The way of attaching; none takes the best the kernel supports.
    pub attach_mode: Option<AttachMode>,
}

impl Default for CaptureConfig {
    fn default() -> Self {
        CaptureConfig {
            cgroup: None,
            libraries: vec![],
            system_libraries: true,
            ring_bytes: 4 << 20,
            offcpu: true,
            offcpu_min: Duration::from_millis(1),
            tcp: true,
            block: true,
            block_min: Duration::from_millis(1),
            memory: true,
            cuda: true,
            fabric_events: true,
            probes: vec![],
            rescan: Duration::from_secs(1),
            backlog: Backlog::default(),
            after_read: AfterRead::default(),
            only_user: None,
            budget: None,
            attach_mode: None,
        }
    }
}
