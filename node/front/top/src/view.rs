//! The views, by name and by number.

use clap::ValueEnum;

/// A view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum View {
    /// The verdict in full.
    Verdict,
    /// Ranks, worst first.
    Ranks,
    /// Rank by window.
    Heat,
    /// The nodes of the mesh.
    Nodes,
    /// Jobs.
    Jobs,
    /// One rank, the worst unless another is chosen.
    #[value(help = "The worst rank")]
    Rank,
    /// Findings.
    Findings,
    /// Services: how long requests take on each host.
    #[value(help = "Services: how long requests take")]
    Services,
}

impl View {
    /// All of them, in the order of their keys.
    pub const ALL: [Self; 8] =
        [Self::Verdict, Self::Ranks, Self::Heat, Self::Nodes, Self::Jobs, Self::Rank, Self::Findings, Self::Services];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Verdict => "verdict",
            Self::Ranks => "ranks",
            Self::Heat => "heat map",
            Self::Nodes => "nodes",
            Self::Jobs => "jobs",
            Self::Rank => "rank",
            Self::Findings => "findings",
            Self::Services => "services",
        }
    }

    pub(crate) fn index(self) -> usize {
        Self::ALL.iter().position(|view| *view == self).unwrap_or(0)
    }
}
