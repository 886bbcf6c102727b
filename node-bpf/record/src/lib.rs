//! The records of a host: one Rust type per row of the trace store's raw tables, and nothing that
//! needs libbpf.
//!
//! Owns the records that capture (`node-bpf`) makes, the activity of a process that makes no
//! progress ([`Activity`]), the clock of all times ([`unix_now_ns`]) and one that is never stepped
//! ([`steady_now_ns`]), which tables a probe's loss leaves gaps in ([`tables`]), how figures are shown ([`units`])
//! and how text that programs chose is ([`printable`]). Does not own how records are made (`node-bpf`), how
//! they are stored (`store`) nor how they travel (`model`).
//!
//! The way of a record: capture makes a [`Record`] of the bytes in a ring and passes it to a
//! sink, and the store's queue takes it.
//!
//! - `calls`: calls of libraries, threads off the CPU, processes, losses, and [`Record`], which is
//!   any of them.
//! - `host`: signals and samples of the host.
//! - `requests`: requests that servers answer, and sums of them.
//! - `tenant`: whose a process is.
//! - `walks`: requests to threads for their stacks, and the answers.

mod activity;
mod calls;
mod host;
mod layout;
mod now;
mod printable;
mod requests;
mod steady;
pub mod tables;
mod tenant;
pub mod units;
mod walks;

pub use activity::Activity;
pub use calls::{
    CallTally, Collective, CudaCall, DeviceWait, Library, LossCount, NetEvent, OffCpu, ProcessSeen, Record, SymbolCall,
};
pub use host::{BlockIo, FabricCounter, GpuSample, HostRecord, HostSample, MemoryEvent, ProcessEvent, SelfStat};
pub use layout::{COLUMNS, add_line, short_name, wrapped};
pub use now::unix_now_ns;
pub use printable::{for_shell, printable, printable_lines, shortened, steers, text};
pub use requests::{RequestOf, RequestSeen, RequestStretch, RequestSum};
pub use steady::{
    measured_offset_ns, read_clock_ns, steady_now_ns, steady_shift_now_ns, steady_shift_ns, wall_ahead_ns,
    wall_offset_ns,
};
pub use tables::tables_of_probe;
pub use tenant::KERNEL;
pub use walks::{StackCopy, ThreadWalk, WalkRequest, WalkedFrame};
