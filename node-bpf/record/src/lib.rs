//! What is seen on a host: one Rust type per row of the trace store's raw tables, and nothing that
//! needs libbpf.
//!
//! Owns the records that capture (`node-bpf`) makes, what a process that does not get on is doing
//! ([`Activity`]), the clock that all times are of ([`unix_now_ns`]) and one that is never stepped
//! ([`steady_now_ns`]), which tables a probe's loss leaves gaps in ([`tables`]), and how text that
//! programs chose is shown ([`printable`]). Does not own how records come to be (`node-bpf`), how
//! they are stored (`store`) nor how they travel (`model`).
//!
//! The way through: capture makes a [`Record`] from what a ring holds, hands it to a sink, and the
//! store's queue takes it.
//!
//! - `calls`: calls of libraries, threads off the CPU, processes, losses, and [`Record`], which is any of them.
//! - `host`: signals and samples of the host.

mod activity;
mod calls;
mod host;
mod now;
mod printable;
mod steady;
pub mod tables;

pub use activity::Activity;
pub use calls::{
    CallTally, Collective, CudaCall, DeviceWait, Library, LossCount, NetEvent, OffCpu, ProcessSeen, Record, SymbolCall,
};
pub use host::{BlockIo, FabricCounter, GpuSample, HostRecord, HostSample, MemoryEvent, ProcessEvent, SelfStat};
pub use now::unix_now_ns;
pub use printable::{printable, printable_lines, steers};
pub use steady::{measured_offset_ns, steady_now_ns, steady_shift_now_ns, steady_shift_ns, wall_ahead_ns};
pub use tables::tables_of_probe;
