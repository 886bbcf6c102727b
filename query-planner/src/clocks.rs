//! What is known of the nodes' clocks.

use std::collections::BTreeMap;

/// A node's clock against the coordinator's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeClock {
    /// How far it is ahead: `coordinator = node - offset_ns`.
    pub offset_ns: i64,
    /// The true offset is within this.
    pub bound_ns: i64,
    /// The time of that offset, Unix nanoseconds of the coordinator's clock.
    pub at_ns: i64,
    /// How fast the offset grows, parts in a billion.
    pub drift_ppb: i64,
    /// The true drift is within `drift_ppb` plus or minus this.
    pub drift_bound_ppb: i64,
}

/// The clocks of the nodes that are known, by name.
pub type Clocks = BTreeMap<String, NodeClock>;
