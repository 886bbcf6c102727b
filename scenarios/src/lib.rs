//! The lab: clusters of agents in one process over real loopback sockets, floors to measure
//! against, workloads, and SQLite's test corpus asked of a mesh.
//!
//! `adhoc` has the questions that people ask once; `cluster` starts and asks in-process agents,
//! `light` a thousand light ones; `floor` is bare quinn doing the same exchange, `peers` other
//! tools asking the same; `jobs` starts jobs; `lab` puts questions under faults and judges every
//! answer; `fuzz` changes inputs at random; `simulate` makes jobs of known truth; `slt` runs
//! sqllogictest files; `stragglers` draws jobs and judges verdicts on them; `trust` times
//! revocation, renewal and seals; `nccl-sim/` and `workloads/` beside `src/` hold the C parts. The
//! program in `bin/bench/` has the benchmarks behind `make bench` and the sqllogictest harness.

pub mod adhoc;
pub mod agents;
pub mod cluster;
pub mod day;
pub mod figures;
pub mod floor;
pub mod fuzz;
pub mod hangs;
pub mod jobs;
pub mod lab;
pub mod light;
pub mod peers;
pub mod plain;
pub mod simulate;
pub mod slt;
pub mod store_bench;
pub mod stragglers;
pub mod trust;
