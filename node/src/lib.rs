//! The binary: its command line, Slurm jobs and the demo; it connects the agent and the front ends.
//!
//! Owns which commands there are, how stores and the mesh are opened for those that ask, and
//! which of root's rights the process keeps. Does not own the agent (`agent`), what is asked and
//! printed (`front`, `serve`, `mcp`), nor how agents and stores are reached (`ask`).
//!
//! The way of a command: [`cli`] parses it and gives it a connector; a command that asks sends
//! its request to the agent of this host, or to stores in this process. `rankmesh up` starts the
//! agent.
//!
//! - [`cli`]: flags and commands; [`demo`]: the main job on one machine; [`slurm`]: a Slurm job's
//!   own mesh; [`privileges`]: which of root's rights the process keeps.

pub mod cli;
pub mod demo;
pub mod privileges;
pub mod slurm;
