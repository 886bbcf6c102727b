//! The chaos lab: agents in one process that are killed, stopped, cut off from each other and
//! restarted while questions are asked, and a judge who knows each node's rows.
//!
//! Every host runs its agent on a runtime of its own, so that a kill is like a real one (tasks
//! are dropped, sockets close, nothing is sent) and a stop as well (the only worker is blocked).
//! All datagrams go through a [`relay`] on loopback that cuts, loses and delays them by pairs of
//! hosts.
//!
//! - [`relay`]: the network between hosts; [`host`]: one host and its agent; [`fleet`]: all of
//!   them, and operations on them;
//! - [`timeline`]: the states over time; [`script`]: operations from a seed;
//! - [`questions`]: questions from a seed; [`oracle`]: SQLite's answers; [`judge`]: whether an
//!   answer is right;
//! - [`ranks`]: a job on some of the hosts, whose verdict stands;
//! - [`leaks`]: tasks, file handles, memory; [`chaos`]: a full run and its report.

pub mod chaos;
pub mod fleet;
pub mod host;
pub mod judge;
pub mod leaks;
pub mod oracle;
pub mod questions;
pub mod ranks;
pub mod relay;
pub mod script;
pub mod timeline;
