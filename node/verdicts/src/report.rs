//! What comes out: the verdict, the scores behind it, the evidence and the cost. Serialises as it
//! stands for `--format json`; the rendering for people lies in `text.rs`.

use std::collections::BTreeMap;

use causes::{Cause, Network};
use observed::{ClockOffset, NodeCoverage, RankRef};
use serde::{Deserialize, Serialize};

use super::hang::Hang;
use super::point_to_point::PointToPoint;
use super::tally::Waits;
use super::windows::WindowKind;

/// The answer of `rankmesh stragglers`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct Report {
    /// Who holds the others up.
    pub verdict: Verdict,
    /// What it costs.
    pub cost: Cost,
    /// What the verdict rests on, and what was not visible.
    pub evidence: Evidence,
    /// Why the named rank is late, where its host was asked; none where nobody is named.
    pub cause: Option<Cause>,
    /// The scores, one entry for each communicator of the input; those with most ranks first.
    pub per_comm: Vec<CommReport>,
    /// Where ranks spend their time, for jobs that meet in sends, receives and waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub point_to_point: Option<PointToPoint>,
    /// Who was asked and who answered.
    pub coverage: NodeCoverage,
}

impl Report {
    /// Where to look whether it is the network: the largest communicator whose calls hold their
    /// waits. None where a rank, a hang or a stage was named.
    #[must_use]
    pub fn network_comm(&self) -> Option<&CommReport> {
        if !matches!(self.verdict, Verdict::None | Verdict::Unknown { .. } | Verdict::DataImbalance { .. }) {
            return None;
        }
        self.per_comm.iter().find(|comm| matches!(comm.waits, Some(Waits::Seen | Waits::Assumed)) && comm.heard > 1)
    }

    /// Moves all times, of a clock by which a host's wall clock is ahead by `by_ns`, to that wall
    /// clock. `ahead_ns` says the same of each node: offsets of their clocks become those of their
    /// wall clocks.
    pub fn move_times(&mut self, by_ns: i64, ahead_ns: &BTreeMap<&str, i64>) {
        let moved = |at_ns: &mut i64| *at_ns = at_ns.saturating_add(by_ns);
        moved(&mut self.evidence.since_ns);
        moved(&mut self.evidence.until_ns);
        self.evidence.last_call_ns.iter_mut().for_each(moved);
        if let Some(about) = &mut self.point_to_point {
            moved(&mut about.since_ns);
            moved(&mut about.until_ns);
        }
        for (node, clock) in &mut self.evidence.clocks {
            let ahead_ns = ahead_ns.get(&**node).copied().unwrap_or(by_ns);
            clock.offset_ns = clock.offset_ns.saturating_add(ahead_ns).saturating_sub(by_ns);
        }
        match &mut self.verdict {
            Verdict::Rank { culprit, also, .. } => {
                for culprit in std::iter::once(culprit).chain(also) {
                    moved(&mut culprit.since_ns);
                    moved(&mut culprit.until_ns);
                }
            }
            Verdict::Hang(hang) => {
                let waits = hang.waiting.iter_mut().chain(&mut hang.unclear).map(|waiting| &mut waiting.since_ns);
                waits.chain([&mut hang.since_ns]).flatten().for_each(moved);
            }
            _ => {}
        }
    }
}

/// Who holds the others up.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Verdict {
    /// One rank (or several, by themselves) enters late, again and again, and the others wait for
    /// it.
    Rank {
        /// The one that costs most.
        #[serde(flatten)]
        culprit: Culprit,
        /// Other ranks that are late as well; most expensive first.
        also: Vec<Culprit>,
        /// Ranks that are late only because they are held up themselves (a slow rank's replica, its
        /// later stages).
        held_up: Vec<RankRef>,
    },
    /// Nothing moves: ranks wait in a collective that others do not enter or do not get through.
    Hang(Hang),
    /// No rank is slow: one stage has more to do than the others, on every replica alike.
    StageImbalance {
        /// The ranks of the slowest stage.
        ranks: Vec<RankRef>,
        /// Compute time of a rank of the slowest stage over that of the other stages (median).
        ratio: f64,
        /// The difference as a share of wall time.
        share: f64,
        /// All stages of the job, the slowest first.
        stages: Vec<Stage>,
    },
    /// No rank is slow: which one is last changes from collective to collective, and the others
    /// wait each time. Uneven data, or noise.
    DataImbalance {
        /// The communicator in which it was found.
        comm_hash: String,
        /// Share of wall time by which the last comes after the median.
        share: f64,
        /// Ranks that were last in at least half as many collectives as their due.
        taking_turns: usize,
    },
    /// No rank is seen to be slow: these compute while the others wait for them in sends, receives
    /// and waits, on a CPU of their own and as far as their history shows as ever.
    WorkImbalance {
        /// The ranks.
        ranks: Vec<RankRef>,
        /// Their compute time over the median of the others'.
        ratio: f64,
        /// The difference as a share of wall time.
        share: f64,
    },
    /// No rank is slow: segments are lost on the way, and collectives wait until they are sent
    /// again.
    Network(Network),
    /// Enough was seen, and nobody holds the others up.
    #[default]
    None,
    /// It cannot be determined.
    Unknown {
        /// Why not, and what would help.
        why: String,
    },
}

impl Verdict {
    /// The ranks that are late by themselves, the dearest first; none where nobody is named so
    /// (whom a hang waits for is [`Hang::missing`]).
    #[must_use]
    pub fn named(&self) -> Vec<&Culprit> {
        match self {
            Self::Rank { culprit, also, .. } => std::iter::once(culprit).chain(also).collect(),
            _ => Vec::new(),
        }
    }

    /// Their numbers.
    #[must_use]
    pub fn named_ranks(&self) -> Vec<i32> {
        self.named().iter().map(|culprit| culprit.rank).collect()
    }
}

/// A stage of a pipeline: ranks that do the same work.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct Stage {
    /// Its ranks, with the communicator by whose collectives their compute time is counted, and its
    /// share of wall time.
    pub ranks: Vec<StageRank>,
    /// The median share of its ranks.
    pub own_share: f64,
}

/// A rank of a stage.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct StageRank {
    /// Who.
    #[serde(flatten)]
    pub who: RankRef,
    /// By the collectives of this communicator.
    pub comm_hash: String,
    /// Share of wall time that goes into its own work.
    pub own_share: f64,
}

/// What shows that a rank is late.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The others wait and it does not.
    #[default]
    Waits,
    /// It enters after the others, by aligned clocks.
    Entries,
    /// It takes more time of its own than the ranks that do the same work.
    OwnTime,
    /// It computes, or is kept from it, while the others wait in sends, receives and waits. Figures
    /// are of windows of a second in place of collectives.
    PointToPoint,
}

/// A rank that holds the others up.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct Culprit {
    /// Its rank in the largest communicator that it belongs to: the rank of the job.
    pub rank: i32,
    /// Its host.
    pub node: String,
    /// Its process there.
    pub pid: i64,
    /// The communicator in which it was found.
    pub comm_hash: String,
    /// What shows it; `late_by_ns`, `last_in`, `share` and `z` are of this figure.
    pub basis: Basis,
    /// By how much it is later than the median of the others when it is the last: half of the time
    /// that is lost is lost in collectives with at most this. Where all are alike, the median.
    pub late_by_ns: i64,
    /// Collectives in which it was the last.
    pub last_in: usize,
    /// Collectives of the episode.
    pub collectives: usize,
    /// Its mean excess over the median of the others, as a share of wall time.
    pub share: f64,
    /// Robust z of the episode; none for two or three ranks.
    pub z: Option<f64>,
    /// First collective of the first flagged window, Unix nanoseconds of the coordinator's clock.
    pub since_ns: i64,
    /// Last collective of the last flagged window.
    pub until_ns: i64,
    /// It was late from the first window of the span on: it may have started earlier.
    pub since_start: bool,
    /// It was still late in the last windows of the span.
    pub ongoing: bool,
    /// Windows in which it was flagged, of those between `since_ns` and `until_ns`.
    pub flagged: usize,
    /// Windows between `since_ns` and `until_ns`.
    pub windows: usize,
}

impl Culprit {
    /// Which rank it is.
    pub(crate) fn who(&self) -> RankRef {
        RankRef { rank: self.rank, node: self.node.clone(), pid: self.pid }
    }
}

/// What the culprit costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, Serialize)]
pub struct Cost {
    /// Sum over the episode's collectives and over the waiting ranks of the time by which the
    /// culprit entered later than the last of the others. One rank is counted as one GPU.
    pub gpu_seconds_wasted: f64,
    /// The same, per second of the episode: how many GPUs' worth of time is lost.
    pub gpus_lost: f64,
    /// True where the waits for it were not seen themselves (basis other than waits): the cost is
    /// at most this.
    pub upper_bound: bool,
    /// Ranks that are charged in each collective, where that is the whole job (basis compute time);
    /// else those that were in it.
    pub charged: Option<usize>,
    /// The same for each step; none where steps cannot be determined.
    pub per_step: Option<PerStep>,
}

/// What the culprit costs each step: each turn of the cycle of collectives that its communicator
/// repeats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, Serialize)]
pub struct PerStep {
    /// Steps of the episode.
    pub steps: u64,
    /// Collectives in a step. 1: the communicator repeats one call, and a step of the job may hold
    /// many of them.
    pub collectives: usize,
    /// How long a step takes, mean.
    pub step_ns: i64,
    /// By how much the culprit makes it longer, mean.
    pub wasted_ns: i64,
    /// `gpu_seconds_wasted` of one step, mean.
    pub gpu_seconds_wasted: f64,
    /// So many times as long as without the culprit a step takes: `step_ns / (step_ns -
    /// wasted_ns)`; none where as much is charged as a step takes.
    pub slowdown: Option<f64>,
}

/// What a verdict rests on.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct Evidence {
    /// Lowest tier among the calls used.
    pub tier: u8,
    /// Windows scored, over all communicators.
    pub windows: usize,
    /// Collectives used.
    pub matched: usize,
    /// Of these, with every rank of the communicator.
    pub complete: usize,
    /// Widest clock bound between any two of the nodes involved; none when a clock is not known.
    pub clock_bound_ns: Option<i64>,
    /// Clocks used, by node.
    pub clocks: Vec<(String, ClockOffset)>,
    /// Start of the asked span.
    pub since_ns: i64,
    /// End of the asked span.
    pub until_ns: i64,
    /// When the last call ended; of digests, as far as the means of runs of calls tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_call_ns: Option<i64>,
    /// No call was made for long before the end of the span: the job had ended or stood still.
    #[serde(default)]
    pub is_silent: bool,
    /// All processes that made the calls have ended.
    #[serde(default)]
    pub ended: bool,
    /// The ranks left dumps, and nothing else is known of them: neither their hosts nor their
    /// processes, nor what the ranks do that left none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_dumps: bool,
    /// What else was seen, in words.
    pub notes: Vec<String>,
    /// What could not be seen, in words.
    pub not_visible: Vec<String>,
}

/// One communicator.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct CommReport {
    /// The communicator, 16 hexadecimal digits.
    pub comm_hash: String,
    /// "nccl", "mpi", …
    pub library: String,
    /// Its size, when seen.
    pub nranks: Option<i32>,
    /// Ranks in the data.
    pub heard: usize,
    /// Calls by name.
    pub funcs: Vec<(String, u64)>,
    /// Median distance between two collectives.
    pub period_ns: i64,
    /// How windows were cut; none when there were too few collectives.
    pub windowed: Option<WindowKind>,
    /// Windows.
    pub windows: usize,
    /// Whether durations hold the wait; none when there were too few collectives.
    pub waits: Option<Waits>,
    /// Its calls only enqueue, and durations reach to the end of the synchronise calls after them.
    pub synced: bool,
    /// Its calls only enqueue, and compute times count from when the last rank had entered, by
    /// aligned clocks.
    pub own_from_entries: bool,
    /// Collectives used.
    pub matched: usize,
    /// Collectives not used: too few ranks present.
    pub dropped: usize,
    /// Ranks in order.
    pub ranks: Vec<RankScore>,
}

/// One rank over the whole span.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct RankScore {
    /// Rank in this communicator.
    pub rank: i32,
    /// Host.
    pub node: String,
    /// Process.
    pub pid: i64,
    /// Ranks of one number do the same work, and are compared by their compute time.
    pub class: usize,
    /// Collectives it took part in.
    pub collectives: u64,
    /// Aligned entry minus the first entry.
    pub lateness: Spread,
    /// How far its lateness may be wrong; none when a clock is not known (`lateness` is then
    /// empty).
    pub lateness_bound_ns: Option<i64>,
    /// Duration minus the shortest duration among the ranks.
    pub wait: Spread,
    /// Mean of how much more time outside communication it took than the median of the others.
    pub own_excess_ns: Option<i64>,
    /// Mean excess over the median of the others, per collective.
    pub excess_ns: i64,
    /// The same as a share of wall time.
    pub share: f64,
    /// Robust z over the whole span; none for two or three ranks.
    pub z: Option<f64>,
    /// Windows in which it was flagged.
    pub flagged: usize,
    /// What it is in the verdict.
    pub role: Role,
}

/// A distribution in three figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean_ns: i64,
    /// Median.
    pub median_ns: i64,
    /// 95th percentile.
    pub p95_ns: i64,
}

/// What a rank is in the verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It holds the others up.
    Culprit,
    /// It waits for a culprit.
    Victim,
    /// It is late as well, because it is held up itself.
    HeldUp,
    /// Neither.
    #[default]
    Peer,
}
