//! What it takes to ask the mesh: one of these in every agent.

use std::sync::Arc;

use gossip::Gossip;
use mesh::Mesh;
use parking_lot::Mutex;
use query_planner::{MergePool, View};

use crate::admission::Admission;
use crate::catalogs::Catalogs;
use crate::exec::Executor;
use crate::plans::Plans;
use crate::tree::FanoutPolicy;

/// Asks questions of the mesh, as one of its nodes.
pub struct Coordinator {
    /// QUIC endpoint.
    pub mesh: Mesh,
    /// Membership.
    pub gossip: Gossip,
    /// Runs tasks on this node's source.
    pub executor: Arc<Executor>,
    /// What nodes offer.
    pub catalogs: Catalogs,
    /// Plans of the last questions.
    pub plans: Arc<Plans>,
    /// Merge databases between questions.
    pub merges: Arc<MergePool>,
    /// Permits of the questions that are asked here.
    pub admission: Arc<Admission>,
    /// Views that are offered in addition to the tables of the stores.
    pub views: &'static [View],
    /// How many nodes are asked directly.
    pub fanout: Mutex<FanoutPolicy>,
}

impl Coordinator {
    /// One that has asked nothing yet.
    #[must_use]
    pub fn new(mesh: Mesh, gossip: Gossip, executor: Arc<Executor>, views: &'static [View]) -> Self {
        Self {
            mesh,
            gossip,
            executor,
            catalogs: Catalogs::default(),
            plans: Arc::default(),
            merges: Arc::default(),
            admission: Admission::for_coordinator(),
            views,
            fanout: Mutex::default(),
        }
    }
}
