//! Capture: what the host's ranks do, recorded with eBPF, no change to the workload.

mod record;

pub use record::{Collective, Library, LossCount, NetEvent, OffCpu, ProcessSeen, Record};
