//! Capture: the actions of the host's ranks, recorded with eBPF, without a change to the workload.
//!
//! [`Capture::start`] loads the BPF programs (`src/bpf/`), finds the communication libraries that
//! processes have mapped, attaches to them and passes [`Record`]s to a sink. The crate `store`
//! stores them.
//!
//! Records are the types of the crate `record`, which needs no libbpf.
//!
//! From the kernel to the sink: `bpf/wire.h` fixes the bytes, `wire` parses them, `decode` makes
//! records with what `process` and `mpi` know (`procfs` reads `/proc/PID`); `classes` lists the
//! kinds of records and their requirements; `discovery`, `symbols` and `attach` decide where the
//! probes are.

mod attach;
mod budget;
mod bytes;
mod capture;
mod cgroup;
mod changes;
mod classes;
mod clock;
mod config;
mod container;
mod content;
mod cost;
mod cuda;
mod decode;
mod discovery;
mod environment;
mod error;
mod functions;
mod gloo;
mod groups;
mod hits;
mod host;
mod late;
mod libraries;
mod loader;
mod lookup;
mod maps;
pub mod measure;
mod memory;
mod mounts;
mod mpi;
mod nccl_hash;
mod open_calls;
pub mod privileges;
mod process;
mod procfs;
mod python_walks;
mod ring;
pub mod rings;
mod rooms;
mod sampling;
mod self_stats;
mod serving;
mod shared;
mod shedding;
mod signals;
mod sites;
mod sockets;
#[cfg(test)]
mod stack_depth;
mod stubs;
mod survey;
mod symbol_probes;
mod symbols;
pub mod system_calls;
mod tally;
mod unprobed;
mod verbs;
mod wire;

pub use budget::{Budget, KeptBudget, SLICES_BEGIN_EVERY_NS};
pub use capture::{Capture, prepare, supported};
pub use cgroup::mount_point as cgroup_mount_point;
pub use classes::{CLASSES, ClassState, ClassStatus, Need, ProbeClass};
pub use config::{AfterRead, AttachMode, CaptureConfig};
pub use error::Error;
pub use functions::call_name;
pub use host::Host;
pub use loader::{ProbeStatus, kernel_objects};
pub use nccl_hash::{HashStyle, comm_hash, split_hash, split_hash_text};
pub use procfs::runs;
pub use python_walks::PythonWalks;
pub use record::{
    BlockIo, CallTally, Collective, CudaCall, DeviceWait, FabricCounter, GpuSample, HostRecord, HostSample, Library,
    LossCount, MemoryEvent, NetEvent, OffCpu, ProcessEvent, ProcessSeen, Record, RequestOf, RequestSeen,
    RequestStretch, RequestSum, SelfStat, SymbolCall,
};
pub use sampling::{ProcessUse, Sampler, SamplerConfig, Watch};
pub use self_stats::RecordingCost;
pub use serving::{
    OnServer, RequestError, RequestSpec, ServeError, ServeRule, Served, Serving, ServingConfig, ServingStatus,
};
pub use shared::{AttachedFile, CaptureStatus};
pub use shedding::Backlog;
pub use survey::{LibraryInUse, Survey, survey};
pub use symbol_probes::{ProbeSpec, SpecError};
pub use tally::RowRule;

/// Whether `bytes` are a valid record of the ring buffer. For fuzzing: it returns nothing of the
/// record.
#[must_use]
pub fn reads_as_record(bytes: &[u8]) -> bool {
    wire::parse(bytes).is_some()
}
