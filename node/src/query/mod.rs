//! Questions: whom to ask, the fan-out, coverage, and running a task on this node's own store.
//!
//! `coverage` says who answered; `exec` runs a task here; `fanout` asks over the mesh (one node: `leaf`;
//! many, through inner nodes: `subtree`, whose other side is `relay`; on its way to the merge: `inbox`); `time` shares the time out;
//! `kept` holds snapshots between two rounds, `release` gives them up; `admission` gives turns, `gate` in a fair order, `polite` threads that give way to
//! capture; `ask` puts them together.
//! `file` asks one file without a mesh. Planning and merging live in the `query-planner` crate.

pub mod admission;
pub mod ask;
pub mod catalogs;
mod combining;
pub mod coverage;
pub mod exec;
pub mod fanout;
pub mod file;
#[cfg(test)]
mod full_store_tests;
mod gate;
mod inbox;
mod kept;
pub mod leaf;
mod own_catalog;
pub mod plans;
mod polite;
pub mod relay;
pub(crate) mod release;
mod subtree;
mod time;

pub use ask::{Asked, Question};
pub use coverage::{Coverage, Missing};
pub use kept::SnapshotUse;
pub use subtree::FanoutPolicy;
