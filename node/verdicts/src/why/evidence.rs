//! What goes into a cause: the intervals of a process between its collectives, and what its host
//! recorded in them.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ranks::RankRef;

/// What stands between the name of a task and the number of its process.
pub(super) const PID: &str = " (pid ";

/// Kinds of evidence. The order is that of precedence: where two cover the same instant, the first
/// one counts, because it says more (a thread that sleeps inside a CUDA call waits for the device).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// In another communication call: no compute time, and left out of the interval's length.
    Communication,
    /// Stopped by a signal or a debugger.
    Stopped,
    /// The cgroup's CPU quota was used up.
    CpuThrottled,
    /// Runnable, but another task had the CPU.
    CpuStolen,
    /// It had to free memory before it got some, or memory pressure held it.
    Reclaim,
    /// A page had to be read from a disk.
    PageFault,
    /// It waited for a block device.
    BlockIo,
    /// The GPU ran with a lowered clock (heat, power).
    GpuThrottled,
    /// In a CUDA call that waits for the device.
    CudaSync,
    /// In a CUDA call that copies or allocates.
    CudaCopy,
    /// In a CUDA call that launches work.
    CudaLaunch,
    /// It waited for a lock or for another thread.
    Lock,
    /// It waited for a socket.
    NetworkWait,
    /// It waited for a pipe, a local socket, a file descriptor or a child process.
    FileWait,
    /// It slept by itself.
    Sleep,
    /// It gave up the CPU; for what is not recorded.
    Wait,
}

impl Kind {
    /// Every kind, in the order of precedence.
    pub const ALL: [Self; Self::Wait as usize + 1] = [
        Self::Communication,
        Self::Stopped,
        Self::CpuThrottled,
        Self::CpuStolen,
        Self::Reclaim,
        Self::PageFault,
        Self::BlockIo,
        Self::GpuThrottled,
        Self::CudaSync,
        Self::CudaCopy,
        Self::CudaLaunch,
        Self::Lock,
        Self::NetworkWait,
        Self::FileWait,
        Self::Sleep,
        Self::Wait,
    ];
}

/// One interval between two collectives of a communicator, on the clock of the process's host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The collectives before and after it, the same on every rank: none where calls have no
    /// number.
    pub key: Option<[Collective; 2]>,
    /// Thread that enters the collective at its end.
    pub tid: i64,
    /// Return from the collective before.
    pub start_ns: i64,
    /// Entry into the next.
    pub end_ns: i64,
}

/// A collective within its communicator.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Collective {
    /// The call.
    pub func: Arc<str>,
    /// Its number.
    pub seq: u64,
}

/// A stretch of time of which the host knows something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// What it was.
    pub kind: Kind,
    /// Thread; none when it holds for the whole process or host.
    pub tid: Option<i64>,
    /// Start, clock of the host.
    pub start_ns: i64,
    /// End, exclusive.
    pub end_ns: i64,
    /// Who or what it was.
    pub what: Arc<str>,
    /// Bytes moved, where that is known.
    pub bytes: Option<i64>,
}

/// All that was recorded of one process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recorded {
    /// The process.
    pub who: Option<RankRef>,
    /// Its intervals, in order, without overlap.
    pub gaps: Vec<Gap>,
    /// What was recorded, in any order, overlapping as it may.
    pub stretches: Vec<Stretch>,
}

/// One call of a process, as far as intervals need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// Whether it is of the communicator that the verdict is about.
    pub(crate) anchor: bool,
    pub(crate) func: Arc<str>,
    pub(crate) seq: Option<u64>,
    pub(crate) tid: i64,
    pub(crate) entry_ns: i64,
    pub(crate) end_ns: i64,
}

/// The intervals between the calls of the verdict's communicator, and the process's other calls as
/// stretches of communication in them.
#[must_use]
pub(crate) fn of_calls(calls: &[Call]) -> (Vec<Gap>, Vec<Stretch>) {
    let mut anchors: Vec<&Call> = calls.iter().filter(|call| call.anchor).collect();
    anchors.sort_by_key(|call| (call.entry_ns, call.end_ns));
    let collective = |call: &Call| Some(Collective { func: Arc::clone(&call.func), seq: call.seq? });
    let found = gaps(
        anchors
            .iter()
            .map(|call| (collective(call), call.tid, call.entry_ns, call.end_ns))
            .collect::<Vec<_>>()
            .as_slice(),
    );
    let others = calls
        .iter()
        .filter(|call| !call.anchor)
        .map(|call| Stretch {
            kind: Kind::Communication,
            tid: None,
            start_ns: call.entry_ns,
            end_ns: call.end_ns,
            what: Arc::clone(&call.func),
            bytes: None,
        })
        .collect();
    (found, others)
}

/// Intervals between calls sorted by entry: (collective, thread, entry, end). Calls that overlap
/// (of several threads) leave no interval between them.
#[must_use]
pub fn gaps(calls: &[(Option<Collective>, i64, i64, i64)]) -> Vec<Gap> {
    let mut found = Vec::new();
    let mut seen: BTreeSet<[Collective; 2]> = BTreeSet::new();
    let mut before: Option<&(Option<Collective>, i64, i64, i64)> = None;
    for call in calls {
        if let Some((name, _, _, left_ns)) = before
            && call.2 > *left_ns
        {
            let key = name.clone().zip(call.0.clone()).map(|(a, b)| [a, b]).filter(|key| seen.insert(key.clone()));
            found.push(Gap { key, tid: call.1, start_ns: *left_ns, end_ns: call.2 });
        }
        // The one that ends last closes the interval.
        if before.is_none_or(|b| call.3 >= b.3) {
            before = Some(call);
        }
    }
    found
}
