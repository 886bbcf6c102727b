//! The host's signals about ranks beside their calls: block requests, memory, beginnings and ends
//! of processes, and why a thread was off the CPU: the bytes their records are made of, and what
//! the kernel's functions mean. The programs are in `bpf/{host,block,bursts,memory,sched}.bpf.h`; samples
//! of the host as a whole are in `sampling`.

pub(crate) mod bursts;
pub(crate) mod decode;
pub(crate) mod fault_times;
pub(crate) mod faults;
pub(crate) mod kernel_names;
pub(crate) mod waits;
pub(crate) mod wire;
