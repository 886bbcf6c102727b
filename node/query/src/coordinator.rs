//! What it takes to ask many nodes: one of these in every agent, and in a command that asks files.

use std::sync::Arc;

use gossip::Gossip;
use parking_lot::Mutex;
use query_planner::{MergePool, PlanCache, View};

use crate::admission::Admission;
use crate::catalogs::Catalogs;
use crate::tree::FanoutPolicy;
use crate::way::Way;

/// Asks questions of many nodes.
pub struct Coordinator {
    /// How nodes are reached.
    pub way: Way,
    /// Membership.
    pub gossip: Gossip,
    /// What nodes offer.
    pub catalogs: Catalogs,
    /// Plans of the last questions.
    pub plans: Arc<PlanCache>,
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
    pub fn new(way: Way, gossip: Gossip, views: &'static [View]) -> Self {
        Self {
            way,
            gossip,
            catalogs: Catalogs::default(),
            plans: Arc::default(),
            merges: Arc::default(),
            admission: Admission::for_coordinator(),
            views,
            fanout: Mutex::default(),
        }
    }
}
