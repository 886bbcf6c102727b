//! The records that capture makes. One Rust type per row of the trace store's raw tables.
//!
//! Times are Unix nanoseconds of this host's clock; `cgroup_id` is the cgroup v2 id of the task.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::host::HostRecord;
use crate::requests::{RequestSeen, RequestStretch, RequestSum};

/// Which library a collective call belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Library {
    /// NVIDIA NCCL (libnccl.so).
    #[default]
    Nccl,
    /// AMD RCCL (librccl.so, NCCL's names).
    Rccl,
    /// An MPI library (libmpi.so).
    Mpi,
    /// gloo (libgloo.so), also within PyTorch (libtorch_cpu.so).
    Gloo,
}

impl Library {
    /// The name in rows and messages: "nccl", "rccl", "mpi", "gloo".
    pub fn name(self) -> &'static str {
        match self {
            Self::Nccl => "nccl",
            Self::Rccl => "rccl",
            Self::Mpi => "mpi",
            Self::Gloo => "gloo",
        }
    }
}

/// One collective or point-to-point call of one rank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Collective {
    /// Entry into the call.
    pub ts_ns: i64,
    /// Time inside the call; of a call in a group (ncclGroupStart) until the group's end, which
    /// starts it, has returned. For NCCL this is the time to enqueue (tier 0). Of a call that never
    /// returned, and of one under way: so far.
    pub duration_ns: i64,
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Rank in the communicator; none when it was not seen.
    pub rank: Option<i32>,
    /// Rank on this host, from the environment.
    pub local_rank: Option<i32>,
    /// Size of the communicator.
    pub nranks: Option<i32>,
    /// NCCL: NCCL's own hash of the unique id. MPI: hash of the job's namespace and the
    /// communicator. gloo: hash of the job and of what the communicator's store calls it. None when
    /// the communicator cannot be identified.
    pub comm_hash: Option<u64>,
    /// The call in lower snake case without library prefix: "all_reduce", "broadcast", "send", …
    pub func: &'static str,
    /// Counts per (process, communicator, func) from 0; none when the communicator's start was not
    /// seen.
    pub seq: Option<u64>,
    /// Position in the communicator: counts the collectives of this process on it, over all
    /// functions, from 0; none of point-to-point calls and where the communicator's start was not
    /// seen.
    pub comm_seq: Option<u64>,
    /// Element count, per rank, as passed.
    pub count: Option<u64>,
    /// The library's datatype as a name ("float32", "double", …) when known.
    pub datatype: Option<&'static str>,
    /// Payload of this rank in bytes (count times the datatype's size).
    pub bytes: Option<u64>,
    /// Reduction ("sum", "max", …) when known.
    pub reduce_op: Option<&'static str>,
    /// Root or peer rank, where the call has one; -1 of a receive from any rank. Of a call that
    /// sends and receives, whom it receives from.
    pub root: Option<i32>,
    /// The tag of a point-to-point call of MPI, where it asks for one. It is not stored: it is there
    /// for calls that have not returned.
    #[serde(skip)]
    pub tag: Option<i32>,
    /// CUDA/HIP stream handle as passed.
    pub stream: Option<u64>,
    /// The library.
    pub library: Library,
    /// Evidence tier of the duration: 0 enqueue only, 1 call returns after synchronisation (MPI
    /// blocking calls).
    pub tier: u8,
    /// The library's return code; none when it never returned: its thread ended in it, as a rank's
    /// does that is killed.
    pub ret: Option<i32>,
    /// cgroup v2 id.
    pub cgroup_id: u64,
    /// Job id from the environment (SLURM_JOB_ID, PMIX_NAMESPACE, …).
    #[serde(with = "shared_text")]
    pub job_id: Option<Arc<str>>,
    /// True when its stream was being captured into a graph: the call did not run then, and runs,
    /// unseen, with every launch of the graph. None when that is not known (no CUDA or HIP call of
    /// the process was seen; MPI).
    pub captured: Option<bool>,
    /// Where it was made: `exchange+0x1c (halo)`, or `halo+0x11d4` where no symbol covers the
    /// place. None of a call that did not return, and where the process was gone.
    #[serde(skip)]
    pub site: Option<Arc<str>>,
}

/// A text that many records share, encoded as if it were each one's own.
mod shared_text {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &Option<Arc<str>>, serializer: S) -> Result<S::Ok, S::Error> {
        text.as_deref().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<str>>, D::Error> {
        Option::<String>::deserialize(deserializer).map(|text| text.map(Arc::from))
    }
}

/// A thread that waits for its device now, after it has enqueued collectives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceWait {
    /// Entry into the synchronise call.
    pub ts_ns: i64,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Rank of the process when known.
    pub rank: Option<i32>,
}

/// A stretch off the CPU of one thread of a tracked process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OffCpu {
    /// When the thread left the CPU.
    pub ts_ns: i64,
    /// How long it was off.
    pub duration_ns: i64,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// CPU it left.
    pub cpu: u32,
    /// True when it gave the CPU up (slept, waited), false when it was preempted while runnable.
    pub voluntary: bool,
    /// Process (thread group) id of the task that took the CPU; 0 is idle.
    pub next_pid: u32,
    /// Name of the task that took the CPU.
    pub next_comm: String,
    /// Rank of the process when known.
    pub rank: Option<i32>,
    /// cgroup v2 id.
    pub cgroup_id: u64,
    /// "preempted", "throttled" (by the CPU quota of its cgroup), "sleep", "io", "lock", "network",
    /// "fault", "stopped", "other".
    pub reason: &'static str,
    /// How much of it the thread was runnable and waited for a CPU; none when its waking was not
    /// seen.
    pub run_delay_ns: Option<i64>,
    /// The kernel function in which it waited, if the kernel reports it.
    pub wchan: Option<String>,
}

/// A TCP event ("tcp_retransmit_skb", "tcp_send_reset", …). Addresses are text, ports host order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NetEvent {
    /// When.
    pub ts_ns: i64,
    /// Tracepoint name.
    pub event: &'static str,
    /// Owning process if it can be found (socket cookie or fd table), else none: the current task
    /// is not the owner.
    pub pid: Option<u32>,
    /// Rank of the owner.
    pub rank: Option<i32>,
    /// Source address.
    pub saddr: String,
    /// Source port.
    pub sport: u16,
    /// Destination address.
    pub daddr: String,
    /// Destination port.
    pub dport: u16,
    /// TCP state number.
    pub state: Option<i32>,
    /// Segments.
    pub segs: Option<i64>,
    /// cgroup v2 id of the socket when known.
    pub cgroup_id: u64,
}

/// A process that capture follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct ProcessSeen {
    /// Process id.
    pub pid: u32,
    /// Start, Unix nanoseconds (distinguishes a reused pid).
    pub start_ns: i64,
    /// Executable path.
    pub exe: String,
    /// Task name.
    pub comm: String,
    /// Rank in the job, from the environment.
    pub rank: Option<i32>,
    /// Rank on this host.
    pub local_rank: Option<i32>,
    /// Ranks in the job.
    pub world_size: Option<i32>,
    /// Job id.
    pub job_id: Option<String>,
    /// Step id (Slurm).
    pub step_id: Option<String>,
    /// Container id when in one.
    pub container_id: Option<String>,
    /// Kubernetes: the pod's uid.
    pub pod: Option<String>,
    /// cgroup path.
    pub cgroup_path: String,
    /// Owner's user name or uid as text.
    pub user: String,
    /// Owner's user id.
    pub uid: Option<u32>,
    /// cgroup v2 id.
    pub cgroup_id: Option<u64>,
}

/// Records lost since the last count, for one probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossCount {
    /// When it was counted; up to when it happened, where `since_ns` is known.
    pub ts_ns: i64,
    /// Since when it happened, where that is known.
    pub since_ns: Option<i64>,
    /// Probe or program name.
    pub probe: String,
    /// Where: "ringbuf", "map_full", "queue", "parse", [`Self::BUDGET`].
    pub reason: String,
    /// How many.
    pub lost: u64,
}

impl LossCount {
    /// The reason of calls that were missed between the time slices of a budget.
    pub const BUDGET: &str = "budget";
}

/// One call of CUDA or HIP that is worth a row: slow for its function, or a synchronisation after a
/// collective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CudaCall {
    /// Entry into the call.
    pub ts_ns: i64,
    /// Time inside the call.
    pub duration_ns: i64,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Rank of the process when known.
    pub rank: Option<i32>,
    /// "runtime", "driver" or "hip".
    pub api: &'static str,
    /// The function, without version suffixes: "cudaMemcpyAsync".
    pub func: &'static str,
    /// Bytes copied, filled or allocated, where the arguments contain it.
    pub bytes: Option<u64>,
    /// Of a copy its direction ("host_to_device", …); "after_collective" of a synchronisation that
    /// follows a collective of its thread.
    pub kind: Option<&'static str>,
    /// Stream handle as passed.
    pub stream: Option<u64>,
    /// Return code.
    pub ret: i32,
    /// cgroup v2 id.
    pub cgroup_id: u64,
}

/// One call of a function, or one passing of a point, that the user asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SymbolCall {
    /// Entry into the call.
    pub ts_ns: i64,
    /// Time inside the call; 0 of a USDT point.
    pub duration_ns: i64,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Rank of the process when known.
    pub rank: Option<i32>,
    /// The library's file name.
    pub library: String,
    /// The function's (demangled) name, or `PROVIDER:NAME` of a point.
    pub symbol: String,
    /// What it returned, where that was asked for.
    pub ret: Option<i64>,
    /// cgroup v2 id.
    pub cgroup_id: u64,
}

/// The calls of one function by one process that returned within about a second.
#[derive(Debug, Clone, PartialEq)]
pub struct CallTally {
    /// The middle of the time counted.
    pub ts_ns: i64,
    /// "cuda", "cuda_driver", "hip" or "symbol".
    pub source: &'static str,
    /// The function; of the user's symbols `LIBRARY:SYMBOL`.
    pub func: Cow<'static, str>,
    /// Process id.
    pub pid: u32,
    /// Rank of the process when known.
    pub rank: Option<i32>,
    /// cgroup v2 id at the first of the calls.
    pub cgroup_id: u64,
    /// How many.
    pub count: u64,
    /// Their durations together.
    pub sum_ns: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Bytes copied, filled or allocated together; none where calls of this function do not contain
    /// it.
    pub bytes: Option<u64>,
    /// The durations: mean of a bucket (at most a 32nd wide) and its calls, ascending.
    pub buckets: Vec<(u64, u64)>,
}

/// Any record of capture.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A collective call.
    Collective(Collective),
    /// Off-CPU time.
    OffCpu(OffCpu),
    /// A TCP event.
    Net(NetEvent),
    /// A signal of the host, or a sample.
    Host(HostRecord),
    /// A process was found (or found again with more known about it).
    Process(ProcessSeen),
    /// A CUDA or HIP call.
    CudaCall(CudaCall),
    /// A call of a function that the user asked for.
    SymbolCall(SymbolCall),
    /// Calls that were counted.
    CallTally(CallTally),
    /// A request that a server answered.
    Request(Box<RequestSeen>),
    /// Where a part of a request's time went.
    RequestStretch(Box<RequestStretch>),
    /// The requests of a second.
    RequestSum(Box<RequestSum>),
    /// Loss.
    Loss(LossCount),
}
