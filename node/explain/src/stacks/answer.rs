//! The answer to a question for stacks, as an agent gives it and front ends read it.

use model::Coverage;
use serde::{Deserialize, Serialize};

use super::merge::Merged;

/// A process whose stacks could not be read.
#[derive(Debug, Serialize, Deserialize)]
pub struct Unread {
    /// Its host.
    pub node: String,
    /// Its rank; none for a child process.
    pub rank: Option<u32>,
    /// Process id on that host.
    pub pid: u32,
    /// Why, and what to do.
    pub reason: String,
}

/// The stacks of the mesh's ranks.
#[derive(Debug, Serialize, Deserialize)]
pub struct StacksAnswer {
    /// In classes and as a tree.
    pub merged: Merged,
    /// Processes without any stack.
    pub unread: Vec<Unread>,
    /// Coverage.
    pub coverage: Coverage,
    /// From question to answer, milliseconds.
    pub elapsed_ms: f64,
}
