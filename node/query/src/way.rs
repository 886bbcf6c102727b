//! How the nodes of a question are reached: over the mesh, or, where each node is a file, in this
//! process.

use std::collections::BTreeMap;
use std::sync::Arc;

use certs::NodeName;
use mesh::Mesh;

use crate::exec::Executor;

/// The way to the nodes.
#[derive(Clone)]
pub enum Way {
    /// Over the mesh; this node itself by its executor.
    Mesh {
        /// QUIC endpoint.
        mesh: Mesh,
        /// Runs tasks on this node's source.
        own: Arc<Executor>,
    },
    /// In this process.
    Files(Arc<Files>),
}

/// Nodes that are files.
#[derive(Debug, Default)]
pub struct Files {
    /// What runs tasks on each of those that can be read.
    pub executors: BTreeMap<NodeName, Arc<Executor>>,
    /// Why the others cannot.
    pub unreadable: BTreeMap<NodeName, String>,
}

impl Way {
    /// What runs a node's tasks in this process; none where it is reached over the mesh.
    #[must_use]
    pub fn executor_of(&self, node: &NodeName) -> Option<&Arc<Executor>> {
        match self {
            Self::Mesh { mesh, own } => (mesh.identity().node() == node).then_some(own),
            Self::Files(files) => files.executors.get(node),
        }
    }

    /// Why a node of this process cannot be asked at all.
    #[must_use]
    pub fn unreadable(&self, node: &str) -> Option<&str> {
        match self {
            Self::Mesh { .. } => None,
            Self::Files(files) => {
                files.unreadable.iter().find(|(name, _)| name.as_str() == node).map(|(_, why)| why.as_str())
            }
        }
    }

    /// The mesh, where there is one.
    #[must_use]
    pub fn mesh(&self) -> Option<&Mesh> {
        match self {
            Self::Mesh { mesh, .. } => Some(mesh),
            Self::Files(_) => None,
        }
    }

    /// Gives up the snapshots that nodes of this process keep for a question.
    pub(crate) fn release(&self, question: u128) {
        match self {
            Self::Mesh { own, .. } => own.release(question),
            Self::Files(files) => files.executors.values().for_each(|executor| executor.release(question)),
        }
    }
}
