//! One member of the mesh, as the rest of the agent sees it.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::facts::NodeFacts;

/// Whether a member is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// Its heartbeat arrives.
    Live,
    /// Others told of it, or an earlier life of this node knew it; whether it is there is not known
    /// yet. Not for long: it comes to be live or dead.
    Heard,
    /// Its heartbeat has stopped, or it said good-bye.
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
    /// Live or dead.
    pub state: MemberState,
    /// What it last said about itself; shared by all lists until it says something else.
    #[serde(with = "shared")]
    pub facts: Arc<NodeFacts>,
    /// Whether it is this node.
    pub is_self: bool,
}

/// Encodes what is shared as if it were not.
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

    /// Whether it may be there: who wants an answer of all asks it.
    #[must_use]
    pub fn may_live(&self) -> bool {
        self.state != MemberState::Dead
    }
}
