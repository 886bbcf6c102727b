//! Questions: whom to ask, the fan-out, coverage, and running a task on this node's own store.
//!
//! Owns both ends of a question: the coordinator, which turns SQL into one answer of the mesh, and the leaf, which does a
//! task on its own store for others. Does not own the messages (`model`), how they travel (`mesh`), planning and merging
//! (`query-planner`) nor who may connect (the agent).
//!
//! The way through: [`ask::ask`] picks the members, plans, waits for a permit, and sends the nodes' part to all of them
//! ([`fanout`]); each runs it on its store ([`exec`]) and streams rows back; they are merged, and coverage says who is in the
//! answer.
//!
//! `coordinator` is what it takes to ask; `access` says who may ask what. One node is asked by `leaf`; many, through inner nodes,
//! by `subtree`, whose other side is `relay` (`pulse`: their signs of life); on its way to the merge: `inbox`; `time` shares the time out;
//! `kept` holds snapshots between two rounds, `release` gives them up; `admission` gives turns, `gate` in a fair order, `polite`
//! threads that give way to capture; `clocks` measures peers' clocks.

pub mod access;
pub mod admission;
pub mod ask;
pub mod catalogs;
pub mod clocks;
mod coordinator;
pub mod exec;
pub mod fanout;
#[cfg(test)]
mod full_store_tests;
mod gate;
mod inbox;
mod kept;
pub mod leaf;
pub mod lock;
mod own_catalog;
pub mod plans;
mod polite;
mod pulse;
pub mod relay;
pub mod release;
mod subtree;
mod time;

pub use ask::Asked;
pub use coordinator::Coordinator;
pub use model::{Coverage, Missing, Question, SnapshotUse};
pub use subtree::FanoutPolicy;
