//! The classes of jobs that are hard to judge.

use clap::ValueEnum;

/// What is hard about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Class {
    /// Calls enqueue, and hosts wait for their devices at the end of a step or of several: that is
    /// not seen.
    RunsAhead,
    /// The same, and the work is the devices': a slow one does not show in what its host calls.
    DeviceWork,
    /// Two ranks are slow, by different times, for reasons of their own.
    TwoCulprits,
    /// Gradients are reduced part by part while the next part is computed.
    Overlap,
    /// One micro-batch forward and one back in turns.
    OneForwardOneBack,
    /// The same with two parts of the model on each stage.
    Interleaved,
    /// Experts with uneven load, in tensor, data and pipeline parallel groups.
    Experts,
    /// Two jobs on the same hosts.
    TwoJobs,
    /// A rank that is slow for some seconds, and then not, in turns.
    ComesAndGoes,
    /// First one rank is slow, then another.
    Moves,
    /// From some time on all ranks take longer.
    AllSlower,
    /// Clocks drift faster than is assumed of any.
    Drift,
    /// Clocks are off by more than is said of them.
    FalseBounds,
}

impl Class {
    /// As the table names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RunsAhead => "runs ahead, no synchronise seen",
            Self::DeviceWork => "the same, work on the device",
            Self::TwoCulprits => "two culprits",
            Self::Overlap => "compute and communication overlap",
            Self::OneForwardOneBack => "pipeline 1F1B",
            Self::Interleaved => "pipeline interleaved",
            Self::Experts => "experts, uneven load",
            Self::TwoJobs => "two jobs on the same hosts",
            Self::ComesAndGoes => "comes and goes",
            Self::Moves => "another rank from the middle on",
            Self::AllSlower => "all ranks slower from a time on",
            Self::Drift => "clocks drift beyond what is assumed",
            Self::FalseBounds => "clock bounds that lie",
        }
    }

    /// Whether it can be shown on so many ranks in a tensor group, replicas and stages.
    pub(super) fn fits(self, (_, data, pipeline): (usize, usize, usize)) -> bool {
        match self {
            Self::OneForwardOneBack => pipeline > 1,
            Self::Interleaved => pipeline > 2,
            Self::Experts => data > 1,
            Self::Overlap => data > 1 && pipeline == 1,
            _ => true,
        }
    }
}
