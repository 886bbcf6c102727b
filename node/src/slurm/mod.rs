//! Slurm: a job gets its own mesh, from its batch script or from outside.
//!
//! - [`hostlist`]: the syntax of node lists. [`job`]: the description of a job. `agent::scope`
//!   decides which records are the job's.
//! - [`run_dir`]: the files of a job's mesh, on the shared directory and on each node.
//! - [`up`]: `rankmesh slurm up` and `attach`: makes identities, starts the keeper, waits for the
//!   mesh.
//! - `keeper`: the process that runs the job step (one srun) and sends the agents each other's
//!   addresses.
//! - `agent`: the process on each node; `report`: the report when the job ends. `commands`: calls
//!   of srun and scontrol. [`ask`]: questions about a job from anywhere.
//!
//! The agent itself, capture and the mesh do not depend on Slurm: they get names, addresses and a
//! scope.

pub mod agent;
pub mod ask;
mod commands;
pub mod hostlist;
pub mod job;
pub mod keeper;
mod lines;
mod report;
pub mod run_dir;
pub mod up;

pub use job::{Job, JobError};
