//! Explains why a rank is where it is: for now, the call stacks of processes, read from outside.
//!
//! This crate knows neither the mesh nor the trace store nor libbpf: it reads `/proc` and the
//! memory of other processes, and it turns what it read into small values that other crates carry
//! and print.
#![forbid(unsafe_code)]

pub mod stacks;
