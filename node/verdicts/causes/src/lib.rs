//! Why a named rank is late: evidence of its host in, cause out.
//!
//! Pure. Owns the questions that fetch evidence and the reading of their answers, the comparison
//! with a peer, and whether it is none of them but the network. Does not own who is named and who
//! is a fit peer (`verdicts`), nor whom to ask (`agent::causes`). docs/verdicts.md has the rule;
//! the thresholds are in `observed::Rules`.
//!
//! The way of the data: `rows` has the questions and makes `evidence` of the answers (`off_cpu`:
//! what stretches off the CPU were): the intervals between the collectives of the culprit, and the
//! same intervals of one peer that is not late. `timeline` lays what the host recorded of the
//! thread in them (off the CPU and why, block requests, faults, CUDA calls, throttling) over each
//! interval so that no instant counts twice. `decide` takes the difference to the peer, over the
//! difference in length, for the share that a kind explains, and names; `network` asks of segments
//! that were sent again, `words` says it to a person.

mod decide;
mod evidence;
mod network;
mod off_cpu;
mod rows;
mod timeline;
mod words;

use observed::{Kind, RankRef, Rules};

#[cfg(test)]
mod properties;

pub use decide::explain;
pub use evidence::{Collective, Gap, Recorded, Stretch, gaps};
pub use network::{Flow, Network, Retransmission, Transfer, network};
pub use off_cpu::off_cpu_kinds;
pub use rows::{ROWS, Reading, Subject, Topic, WrongRow};
pub use words::{advice, summarised};

use serde::{Deserialize, Serialize};

/// Longest stretch of an episode, or of the span where it is the network, that is looked at: its
/// end.
pub const LOOKED_AT_NS: i64 = 20_000_000_000;

/// Why a rank is late.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Cause {
    /// One sentence for a person.
    pub summary: String,
    /// The kinds that explain more than half of the excess together, dearest first; below four
    /// fifths it is "mostly" these. Empty: unattributed.
    pub named: Vec<Kind>,
    /// What the named kinds explain of the excess, 0 to 1; of the unattributed, what all candidates
    /// explain.
    pub explained: f64,
    /// By how much the culprit's late intervals are longer than the peer's, summed up.
    pub excess_ns: i64,
    /// Intervals looked at that are late.
    pub late_intervals: usize,
    /// Intervals looked at.
    pub intervals: usize,
    /// With whom it was compared.
    pub peer: Option<RankRef>,
    /// Everything that was seen in the late intervals, the largest difference to the peer first.
    pub parts: Vec<Part>,
    /// What was looked at, in words.
    pub looked_at: Vec<String>,
    /// What could not be seen, in words.
    pub not_visible: Vec<String>,
}

impl Cause {
    /// Whether the named kinds leave more than a fifth of the excess unexplained.
    #[must_use]
    pub fn is_mostly(&self) -> bool {
        self.is_attributed() && self.explained < Rules::CAUSE_EXPLAINS
    }

    /// Whether something explains the lateness, or most of it.
    #[must_use]
    pub fn is_attributed(&self) -> bool {
        !self.named.is_empty()
    }

    /// In few words, for the `cause` column of `findings`: "cpu_stolen (92 %): spin (pid 4711)",
    /// "mostly block_io (73 %): vda" or "unattributed".
    #[must_use]
    pub fn label(&self) -> String {
        words::label(self)
    }
}

/// What one kind of evidence has to do with the lateness.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Part {
    /// Kind of evidence.
    pub kind: Kind,
    /// The culprit's time of this kind in its late intervals.
    pub culprit_ns: i64,
    /// The peer's in the same intervals.
    pub peer_ns: i64,
    /// Their difference over the excess; at most 1, negative where the peer has more.
    pub share: f64,
    /// Whether it counts among the named causes.
    pub named: bool,
    /// Who or what it was (process that took the CPU, device, …), most time first.
    pub what: Vec<What>,
}

/// One thing behind a kind of evidence.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct What {
    /// Its name; from the host, so not to be printed unescaped.
    pub name: String,
    /// Its part of the culprit's time.
    pub ns: i64,
    /// Stretches.
    pub count: usize,
    /// Bytes moved, where that is known.
    pub bytes: Option<i64>,
}
