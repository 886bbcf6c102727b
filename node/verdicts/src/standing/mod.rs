//! The standing verdict: what an agent concludes, window after window, from the digests that all agents gossip.
//!
//! Pure: digests and the time in, verdicts out. A verdict of a window is a function of the digests up to it (and of which nodes are
//! dead), so that any two agents that heard the same give the same. [`Board`] keeps what was heard and says which window can be
//! judged; `network` looks whether segments that were sent again explain it; `settle` keeps verdicts from flapping; `change` says what is worth telling. The agent's side (gossip, clocks,
//! findings) lies in `agent/standing`.

mod board;
mod change;
mod network;
mod settle;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use board::{Board, Presence};
pub use change::{Change, Key};

use super::Report;

/// Windows that a verdict looks back on.
pub const LOOKBACK: i64 = 20;
/// Windows that it looks back on where collectives are rare.
pub const LONG_LOOKBACK: i64 = 120;
/// A window whose digests did not all come is judged after so long.
pub const GRACE_NS: i64 = 2_000_000_000;

/// The verdict of a window.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// Which window, on the reference node's clock.
    pub window: i64,
    /// The node to whose clock all times are aligned.
    pub reference: Option<String>,
    /// The verdict with its evidence.
    pub report: Arc<Report>,
    /// Nodes whose digest of the window had come.
    pub heard: usize,
    /// Nodes with ranks whose digest of the window had not come.
    pub silent: Vec<String>,
}
