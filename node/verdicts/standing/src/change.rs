//! Which changes of the standing verdict are worth telling.

use verdicts::Verdict;

/// What makes two verdicts the same news.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Nothing is wrong, or it cannot be determined.
    #[default]
    Quiet,
    /// These processes hold the others up: node and pid.
    Ranks(Vec<(String, i64)>),
    /// A hang, and who is missing: node and pid.
    Hang(Vec<(String, i64)>),
    /// A stage has more to do.
    Stage,
    /// Data are uneven.
    Data,
    /// Work is dealt unevenly: whose is more, node and pid.
    Work(Vec<(String, i64)>),
    /// Segments are lost: at one end of this host, where one stands out.
    Network(Option<String>),
}

impl Key {
    /// Of a verdict.
    #[must_use]
    pub fn of(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Rank { culprit, .. } => Self::Ranks(vec![(culprit.node.clone(), culprit.pid)]),
            Verdict::Hang(hang) => {
                let mut missing: Vec<_> = hang.missing.iter().map(|m| (m.who.node.clone(), m.who.pid)).collect();
                missing.sort();
                Self::Hang(missing)
            }
            Verdict::StageImbalance { .. } => Self::Stage,
            Verdict::DataImbalance { .. } => Self::Data,
            Verdict::WorkImbalance { ranks, .. } => {
                Self::Work(ranks.iter().map(|who| (who.node.clone(), who.pid)).collect())
            }
            Verdict::Network(found) => Self::Network(found.node.clone()),
            Verdict::None | Verdict::Unknown { .. } => Self::Quiet,
        }
    }

    /// The verdict's name in findings and to commands.
    #[must_use]
    pub fn name(verdict: &Verdict) -> &'static str {
        match verdict {
            Verdict::Rank { .. } => "rank",
            Verdict::Hang(_) => "hang",
            Verdict::StageImbalance { .. } => "stage-imbalance",
            Verdict::DataImbalance { .. } => "data-imbalance",
            Verdict::WorkImbalance { .. } => "work-imbalance",
            Verdict::Network(_) => "network",
            Verdict::None => "none",
            Verdict::Unknown { .. } => "unknown",
        }
    }
}

/// Follows the verdict from window to window.
#[derive(Debug, Default)]
pub struct Change {
    last: Key,
}

impl Change {
    /// Whether this verdict is news: another one than the last that was published. That nothing is
    /// wrong is news only after something was.
    pub fn is_news(&mut self, verdict: &Verdict) -> bool {
        let key = Key::of(verdict);
        // An unknown verdict does not end the last one.
        if key == self.last || matches!(verdict, Verdict::Unknown { .. }) {
            return false;
        }
        self.last = key;
        true
    }
}
