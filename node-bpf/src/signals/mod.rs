//! The host's signals about ranks besides their calls: block requests, memory, beginnings and ends
//! of processes, and why a thread was off the CPU: the bytes of their records, and the meaning of
//! the kernel's functions. The programs are in `bpf/{host,block,bursts,memory,sched}.bpf.h`;
//! `sampling` samples the host.

pub(crate) mod bursts;
pub(crate) mod decode;
pub(crate) mod fault_times;
pub(crate) mod faults;
pub(crate) mod kernel_names;
pub(crate) mod waits;
pub(crate) mod wire;
