//! The binary: its command line, Slurm jobs and the demo; it puts the agent and the front ends
//! together.
//!
//! Owns which commands there are, how stores and the mesh are opened for those that ask, and what
//! the process keeps of root's rights. Does not own the agent (`agent`), what is asked and printed
//! (`front`, `serve`, `mcp`), nor how whoever is asked is reached (`ask`).
//!
//! The way through: [`cli`] parses a command and gives it a connector; a command that asks sends its
//! request to the agent of this host, or to stores in this process. `rankmesh up` starts the agent.
//!
//! - [`cli`]: flags and commands; [`demo`]: the main job on one machine; [`slurm`]: a Slurm job's own
//!   mesh; [`privileges`]: what the process keeps of root.

pub mod cli;
pub mod demo;
pub mod privileges;
pub mod slurm;
