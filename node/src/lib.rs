//! The agent and the command line: puts capture, store, mesh, planner and analysis together.
//!
//! - [`cli`]: flags and commands; [`agent`]: the running agent; [`demo`]: the main job on one machine.
//! - [`mesh`]: the QUIC endpoint, questions and answers; [`store`]: the trace store and served files.
//! - [`exchange`]: export of a store into other forms, import of recorded traces.
//! - [`query`]: a question from SQL to answer over the mesh; [`output`]: printing results.
//! - [`slurm`]: a Slurm job's own mesh.
//! - [`stragglers`]: which rank holds the others up, a pure core.

pub mod agent;
pub mod cli;
pub mod demo;
pub mod output;
pub mod privileges;
pub mod slurm;
