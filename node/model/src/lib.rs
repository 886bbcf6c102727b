//! The types that travel: between nodes, and between an agent and its clients.
//!
//! Owns requests and answers, what an answer covers and what it lacks ([`Coverage`]), and how all
//! of these become bytes and back (`frame`), with the rules of their versions. Does not own sockets
//! and connections (`mesh`), what a request means (`query`, and the agent), nor the text of a
//! verdict (`verdicts`).
//!
//! The way of a question: a [`LocalRequest`] comes to an agent, which makes
//! [`Request`](wire::Request)s to the nodes of it; their [`Response`](wire::Response)s are merged,
//! and go back as [`LocalResponse`]s.
//!
//! - [`frame`]: length, version and body of a message; the only user of bincode here. [`wire`]:
//!   what nodes ask each other.
//! - [`board`]: what ranks did, window by window; [`watch`]: the current state; [`explanation`]: a
//!   verdict explained; `local`: what people ask an agent; `coverage`: who is in an answer;
//!   [`failure`]: why there is none; `snapshot`: the rounds of a question.
//! - [`cells`]: reading rows; [`local_socket`]: the file of the local socket; [`limit`]: how many
//!   may ask at once.

pub mod board;
pub mod cells;
mod coverage;
pub mod explanation;
pub mod failure;
pub mod frame;
pub mod health;
pub mod limit;
pub mod lobby;
mod local;
pub mod local_socket;
mod snapshot;
pub mod watch;
pub mod wire;

pub use coverage::{Coverage, Missing, NOT_RECORDED, row_share};
pub use failure::{Failure, FailureKind};
pub use local::{
    AskedSpan, ExplainQuestion, ExplainWhat, LocalRequest, LocalResponse, Mark, OnBehalf, Question, StacksQuestion,
    StacksWanted, StragglersQuestion, TableSeen, WatchQuestion,
};
pub use snapshot::SnapshotUse;
