//! The agent and the command line: puts capture, store, mesh, planner and analysis together.
//!
//! Owns the binary's commands, the agent's wiring and the roles of who asks. Does not own the
//! store, the network, questions or verdicts: those are the crates `store`, `mesh`, `query` and
//! `verdicts`, each below this one; what travels is `model`'s.
//!
//! The way through: [`cli`] parses a command and sends it over the local socket to the [`agent`] of
//! this host, which has the coordinator (`query`) ask the mesh; what comes back is printed by
//! [`output`]. An event goes from capture (`node-bpf`) through the agent's recording into the
//! store.
//!
//! - [`cli`]: flags and commands; [`agent`]: the running agent; [`demo`]: the main job on one machine.
//! - [`output`]: printing results; [`exit`]: exit codes; [`privileges`]: what the process keeps of root.
//! - [`slurm`]: a Slurm job's own mesh.

pub mod agent;
mod cells;
pub mod cli;
pub mod demo;
pub mod exit;
pub mod output;
pub mod privileges;
pub mod slurm;
