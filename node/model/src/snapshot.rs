//! What a task of a question in two rounds wants of a node's snapshot.

use serde::{Deserialize, Serialize};

/// How a task stands to the other round of its question. Travels by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotUse {
    /// The question, by a number that nobody can guess.
    pub question: u128,
    /// Whether this node has answered a round of this question: then only that round's snapshot
    /// will do.
    pub of_earlier: bool,
    /// How long to keep the snapshot for another round, milliseconds; 0: not.
    pub keep_ms: u32,
}
