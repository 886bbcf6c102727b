//! Explains a verdict: where ranks are ([`stacks`], read from outside), what to do about a cause
//! ([`runbook`]), what waiting costs ([`cost`]), which hosts are named again and again
//! ([`repeat`]), what NCCL says of its own state ([`ras`]), and the values that front ends show
//! ([`watched`]).
//!
//! This crate knows neither the mesh nor the trace store nor libbpf: it reads `/proc` and the
//! memory of other processes, it takes verdicts with their evidence as values ([`chain`]), and it
//! makes small values that other crates carry and print ([`page`]).
#![forbid(unsafe_code)]

pub mod chain;
pub mod compare;
pub mod cost;
pub mod difference;
pub mod page;
pub mod ras;
pub mod repeat;
pub mod runbook;
pub mod stacks;
pub mod tail;
pub mod watched;
