//! What a process that is waited for was seen to do, and where. What there is to see is
//! [`record::Activity`].

use std::sync::Arc;

pub use record::Activity;

/// What a process was seen to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doing {
    /// The node that says so.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// What.
    pub activity: Activity,
}
