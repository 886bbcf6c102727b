//! Questions: whom to ask, the fan-out, coverage, and running a task on this node's own store.
//!
//! Owns both ends of a question: the coordinator, which turns SQL into one answer of the mesh, and
//! the leaf, which does a task on its own store for others. Does not own the messages (`model`),
//! how they travel (`mesh`), planning and merging (`query-planner`) nor who may connect (the
//! agent).
//!
//! The way through: [`ask::ask`] picks the members, plans, waits for a permit, and sends the
//! fragments to all of them ([`fanout`]); each runs them on its store ([`exec`]) and streams rows
//! back; they are merged, and coverage names the nodes in the answer.
//!
//! - `coordinator`: what it takes to ask. `access`: who may ask what. `catalogs`: what is
//!   cached of those.
//! - `leaf`: asking one node. `tree`: asking many through intermediate aggregators, whose own side
//!   is `aggregator`; `keepalive`: their signs of life. `inbox`: what nodes send, on its way to the
//!   merge. `time`: how a question's time is shared out between its rounds.
//! - `reader`: connections kept between tasks. `snapshots`: kept between two rounds; `release`
//!   gives them up.
//! - `admission`: permits, in a fair order. `low_priority`: threads that give way to capture.
//! - `clocks`: measures peers' clocks.

pub mod access;
pub mod admission;
pub mod aggregator;
pub mod ask;
pub mod catalogs;
pub mod clocks;
mod coordinator;
pub mod exec;
pub mod fanout;
pub mod files;
#[cfg(test)]
mod full_store_tests;
mod inbox;
mod keepalive;
pub mod leaf;
mod low_priority;
mod own_catalog;
mod reader;
pub mod release;
mod round;
mod snapshots;
mod stored_clocks;
pub mod tables;
mod time;
mod tree;
pub mod way;

pub use ask::QueryOutcome;
pub use coordinator::Coordinator;
pub use model::{Coverage, Missing, Question, SnapshotUse};
pub use tree::FanoutPolicy;
pub use way::Way;
