//! One member of the mesh, as the rest of the agent sees it.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cells::cell::CellId;
use crate::facts::NodeFacts;

/// Whether a member runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// Its heartbeat arrives.
    Live,
    /// Known from others or from an earlier life of this node, but not yet judged: neither its
    /// heartbeat nor a long enough silence was seen. It soon comes to be live or dead.
    #[serde(rename = "heard")]
    Unconfirmed,
    /// Its heartbeat has stopped, or it sent a farewell.
    Dead,
}

/// One member of the mesh.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Where it is asked.
    pub address: SocketAddr,
    /// Its incarnation.
    pub generation: u64,
    /// What the failure detector makes of it.
    pub state: MemberState,
    /// What it last published about itself; lists share one copy until that changes.
    #[serde(with = "shared")]
    pub facts: Arc<NodeFacts>,
    /// Whether it is this node.
    pub is_self: bool,
    /// Where another life with this name and identity is alive at the same time: a copied identity
    /// (a cloned image). Only one of the two is asked.
    #[serde(default)]
    pub double: Option<SocketAddr>,
    /// Where it is in a mesh of several cells.
    #[serde(skip)]
    pub seat: Seat,
}

/// Where a member is in a mesh of several cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seat {
    /// Its cell.
    pub cell: CellId,
    /// It is a delegate of it.
    pub speaks: bool,
    /// The cell is another than this node's. Then only the facts that are told to all cells are
    /// known of it: no rows, no times of its store, no other values.
    pub elsewhere: bool,
}

/// Encodes a shared value as if it were not shared.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(shared: &Arc<T>, serializer: S) -> Result<S::Ok, S::Error> {
        T::serialize(shared, serializer)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<T>, D::Error> {
        T::deserialize(deserializer).map(Arc::new)
    }
}

impl Member {
    /// Whether it is live.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.state == MemberState::Live
    }

    /// Whether it may run: questions for all nodes go to it.
    #[must_use]
    pub fn may_live(&self) -> bool {
        self.state != MemberState::Dead
    }
}

/// A member of tests: the first one is this node itself.
#[cfg(test)]
pub(crate) fn test_member(n: u16, state: MemberState) -> Member {
    Member {
        name: format!("n{n}"),
        address: ([127, 0, 0, 1], n).into(),
        generation: 1,
        state,
        facts: Arc::default(),
        is_self: n == 1,
        double: None,
        seat: Seat::default(),
    }
}
