//! What a call moves: by it, equal calls are distinguished from those that only have one name.

use std::sync::Arc;

/// What a call moves.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Payload {
    /// Payload of this rank in bytes, where that is known.
    pub bytes: Option<u64>,
    /// Datatype by name, where that is known.
    pub datatype: Option<Arc<str>>,
    /// Reduction, where the call has one that is known.
    pub reduce_op: Option<Arc<str>>,
}
