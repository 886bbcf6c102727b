//! The standing verdict: what an agent concludes, window after window, from the digests that all
//! hosts of a job send.
//!
//! Pure: digests and the time in, verdicts out. Owns what is kept of digests, which window is
//! judged when, what keeps verdicts from flapping, who judges a job, and how a verdict is
//! published. Does not own how a window is analysed (`verdicts`), nor gossip, clocks and findings
//! (`agent::standing`). A verdict of a window is a function of the digests up to it (and of which
//! nodes are dead), so that any two agents that received the same digests have the same verdict.
//!
//! The way of the data: [`Board`] keeps the digests (`page`: of one node); a copy of it is cheap,
//! and [`Judge`] works on one while the board takes in more. `ended` leaves out jobs that are over,
//! `network` checks whether segments that were sent again explain the lateness; `settle` keeps
//! verdicts from flapping, `by_slices` those of calls that are recorded in time slices; `job` chooses who judges a job, `brief` is the form in which a verdict is
//! published, `change` finds which verdicts are news.
//!
//! Windows are counted by clocks that are never stepped. Which nodes are active follows
//! from when their digests came, on this host's clock, and so does the time of the reference's
//! clock: no two hosts need agree on the time of day.

mod agree;
mod board;
mod brief;
mod by_slices;
mod change;
mod ended;
mod job;
mod judge;
mod network;
mod page;
mod settle;

use std::sync::Arc;

use digest::end_of;
use serde::{Deserialize, Serialize};
use verdicts::Report;

pub use agree::{Held, Said, chosen, disagrees};
pub use board::{Board, DeadHosts, Presence};
pub use brief::JobVerdict;
pub use by_slices::BySlices;
pub use change::{Change, Key};
pub use ended::has_ended;
pub use job::{JUDGES, JobName, NO_JOB, in_order, judges};
pub use judge::Judge;

/// Windows that a verdict looks back on.
pub const LOOKBACK: i64 = 20;
/// Windows that it looks back on where collectives are rare,
pub const LONG_LOOKBACK: i64 = 120;
/// and where they are rarer still.
const RARE_LOOKBACK: i64 = 1_200;
/// Windows of a node that are gossiped at a time, each under a name of its own.
pub const NODE_WINDOWS: i64 = 8;
/// A window whose digests did not all come is judged after so long.
pub const GRACE_NS: i64 = 2_000_000_000;

/// The verdict of a window.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Standing {
    /// Which window, on the reference node's clock.
    pub window: i64,
    /// The node to whose clock all times are aligned.
    pub reference: Option<String>,
    /// The verdict with its evidence.
    #[serde(with = "shared")]
    pub report: Arc<Report>,
    /// Nodes whose digest of the window had come.
    pub heard: usize,
    /// Nodes with ranks whose digest of the window had not come.
    pub silent: Vec<String>,
    /// How far the reference node's wall clock is ahead of the one by which windows are counted.
    /// The report's times are of the wall clock.
    pub wall_ahead_ns: i64,
    /// Time since the window's end when it was judged, nanoseconds.
    pub age_ns: i64,
}

impl Standing {
    /// When the window ended, Unix nanoseconds of the reference node's wall clock.
    #[must_use]
    pub fn end_ns(&self) -> i64 {
        end_of(self.window).saturating_add(self.wall_ahead_ns)
    }

    /// Counts dead hosts of the job as missing that nobody asked.
    pub fn miss(&mut self, dead: &DeadHosts) {
        for host in dead.of_job.iter() {
            if !self.report.coverage.is_missing(host) {
                let coverage = &mut Arc::make_mut(&mut self.report).coverage;
                coverage.asked += 1;
                coverage.missing.push((host.clone(), "dead".to_owned()));
            }
        }
    }
}

/// A report is written as itself, whoever shares it.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use verdicts::Report;

    pub(super) fn serialize<S: Serializer>(report: &Arc<Report>, to: S) -> Result<S::Ok, S::Error> {
        Report::serialize(report, to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Report>, D::Error> {
        Report::deserialize(from).map(Arc::new)
    }
}
