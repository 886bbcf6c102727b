//! The lab: clusters of agents in one process over real loopback sockets, floors to measure against, workloads.
//!
//! `cluster` starts and asks in-process agents; `floor` is bare quinn doing the same exchange; `nccl-sim/` and
//! `workloads/` beside `src/` hold the C parts. The binaries in `bin/` are the benchmarks behind `make bench…`.

pub mod cluster;
pub mod figures;
pub mod floor;
