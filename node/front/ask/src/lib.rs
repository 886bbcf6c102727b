//! How a front end asks, and how it prints the answer.
//!
//! Every command and every server for people asks through a [`Target`]: the agent of this host
//! over its local socket, another host's over the mesh, or stores without any agent. The latter two
//! need the mesh and the stores, on which this crate does not depend: the binary gives a
//! [`Connector`] that opens them, each as a [`Backend`].
//!
//! - [`args`]: the flags by which commands choose the target; [`values`], [`times`]: what such
//!   flags may be; [`paths`]: where sockets and state are by default.
//! - [`rows`]: questions whose complete answer is wanted; [`output`]: rows in the form asked for.
//! - [`Exit`], [`UsageError`], [`UnknownJob`]: how a command ends.
#![forbid(unsafe_code)]

pub mod args;
mod backend;
mod exit;
mod jobs;
pub mod output;
pub mod paths;
pub mod rows;
mod socket;
mod target;
pub mod times;
pub mod utc;
pub mod values;
mod wait;

pub use backend::{Backend, Connector, NoAnswer, Piece, Reply, Stopped, Take};
pub use exit::{Exit, Forbidden, RanOnNode, UsageError, is_broken_pipe, is_forbidden, is_usage, wrong};
pub use jobs::{Chosen, JobSeen, UnknownJob};
pub use socket::{NoAgent, SocketBackend, WentAway};
pub use target::Target;
pub use wait::{Deadline, deliver, run_until_stopped};
