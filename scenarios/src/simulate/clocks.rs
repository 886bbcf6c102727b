//! What the hosts of a simulated job measure of each other's clocks while it runs, as agents do
//! each second.

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::{Job, Machine, START_NS, within};

/// The clocks of a job's hosts.
#[derive(Debug, Clone)]
pub struct Clocks {
    /// By node: how far ahead of the first one's it is at the start, how fast it gets further ahead
    /// (parts in a billion), and how far every ping of it is wrong. The way there and the way back
    /// take differently long, each time alike: many pings know no more than one.
    nodes: Vec<(i64, i64, i64)>,
    bound_ns: i64,
}

impl Clocks {
    /// Those of the job that this seed gives.
    #[must_use]
    pub fn of(job: &Job, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(!seed);
        let clocks = Machine::new(job, seed).clocks;
        let wrong = |node: usize, rng: &mut StdRng| if node == 0 { 0 } else { within(rng, job.offset_error_ns()) };
        let nodes = clocks.iter().enumerate().map(|(node, (ahead, drift))| (*ahead, *drift, wrong(node, &mut rng)));
        Self { nodes: nodes.collect(), bound_ns: job.clock_bound_ns }
    }

    /// What a ping at this time of the first node's clock says of a node: how far its clock is
    /// ahead of that, nanoseconds, and how far this may be wrong. None of a node that there is not.
    #[must_use]
    pub fn ping(&self, node: &str, at_ns: i64) -> Option<(i64, i64)> {
        let place: usize = node.strip_prefix('n')?.parse().ok()?;
        let (ahead, drift_ppb, wrong) = *self.nodes.get(place)?;
        let bound_ns = if place == 0 { 0 } else { self.bound_ns };
        Some((ahead + super::machine::drifted(drift_ppb, at_ns - START_NS) + wrong, bound_ns))
    }
}
