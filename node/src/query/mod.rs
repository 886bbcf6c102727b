//! Questions: whom to ask, the fan-out, coverage, and running a task on this node's own store.
//!
//! `coverage` says who answered; `exec` runs a task here; `fanout` asks over the mesh (one node: `leaf`;
//! many, through inner nodes: `subtree`, whose other side is `relay`); `time` shares the time out;
//! `kept` holds snapshots between two rounds; `admission` gives turns, `polite` threads that give way to capture;
//! `ask` puts them together.
//! `file` asks one file without a mesh. Planning and merging live in the `query-planner` crate.

pub mod admission;
pub mod ask;
pub mod catalogs;
mod combining;
pub mod coverage;
pub mod exec;
pub mod fanout;
pub mod file;
mod kept;
pub mod leaf;
pub mod plans;
mod polite;
pub mod relay;
mod subtree;
mod time;

pub use ask::{Asked, Question};
pub use coverage::{Coverage, Missing};
pub use kept::SnapshotUse;
pub use subtree::FanoutPolicy;
