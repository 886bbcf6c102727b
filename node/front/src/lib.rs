//! The commands with which people ask, a module each, every one a client of what [`ask`] reaches.
//!
//! Owns the questions that a command asks and the text that it prints. Does not own which agent
//! or stores are asked (`ask`), the screens (`top`), the report's page (`report`) or what figures
//! mean (`verdicts`, `explain`). Servers for browsers, programs and assistants are the crates
//! `serve` and `mcp`; they take questions from here.
//!
//! - [`query`], [`shell`], [`saved`], [`schema`]: SQL; [`stragglers`], [`explain`], [`stacks`],
//!   `recorded`: verdicts; [`cost`], [`jobs`], [`compare`]: over many verdicts;
//!   [`tail`]: requests that servers answer; [`top`],
//!   [`report`], [`perfetto`]: pictures; [`nodes`], [`doctor`], [`mark`]: the mesh; [`runbook`]:
//!   what to do.
//! - [`args`]: their flags; [`rates`], `waits`: prices and waiting, for several of them;
//!   [`output_file`]: the file into which one writes;
//!   [`slurm_command`]: calling Slurm's own commands.

pub mod args;
pub mod compare;
pub mod cost;
pub mod doctor;
pub mod explain;
pub mod jobs;
pub mod mark;
pub mod nodes;
pub mod output_file;
pub mod perfetto;
pub mod query;
pub mod question;
pub mod rates;
mod recorded;
pub mod report;
pub mod runbook;
pub mod saved;
pub mod schema;
pub mod shell;
pub mod slurm_command;
pub mod stacks;
pub mod stragglers;
pub mod tail;
pub mod top;
mod waits;
