//! Coverage: what an answer saw and what it did not (contract 2).

use serde::{Deserialize, Serialize};

/// Every note about a table that is not filled on a host contains this.
pub const NOT_RECORDED: &str = "recorded here: ";

/// A node that did not answer, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Node name.
    pub node: String,
    /// Why: timeout, unreachable, refused, over budget, failed: message.
    pub reason: String,
}

/// Who was asked, who answered, and what the answering nodes know to be missing from their data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Nodes asked.
    pub asked: usize,
    /// Nodes whose complete answer is in the result.
    pub answered: usize,
    /// Every node that was asked and is not in the result.
    pub missing: Vec<Missing>,
    /// Capture loss, sampling, retention cut-offs, tables that a node lacks, share of rows seen.
    pub notes: Vec<String>,
}

impl Coverage {
    /// True when every asked node is in the answer.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Take in that of another question of the same answer: a node counts as there when it answered
    /// each time.
    pub fn also(&mut self, other: Self) {
        self.asked = self.asked.max(other.asked);
        for missing in other.missing {
            if !self.missing.iter().any(|known| known.node == missing.node) {
                self.missing.push(missing);
            }
        }
        self.answered = self.asked.saturating_sub(self.missing.len());
        for note in other.notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// The line below a table: `4 of 4 nodes answered`, or who is missing and why, then the notes.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::with_capacity(1 + self.missing.len() + self.notes.len());
        let plural = if self.asked == 1 { "node" } else { "nodes" };
        let head = if self.asked == 0 {
            "no node had to be asked".to_owned()
        } else {
            format!("{} of {} {plural} answered", self.answered, self.asked)
        };
        if self.is_complete() {
            lines.push(head);
        } else {
            lines.push(format!("PARTIAL: {head}"));
        }
        for missing in &self.missing {
            lines.push(format!("  missing {}: {}", missing.node, missing.reason));
        }
        for note in &self.notes {
            lines.push(format!("  note: {note}"));
        }
        lines
    }
}

/// `about 94 % of rows`, from gossiped row counts of the nodes asked; `None` when no node gossiped
/// a count.
///
/// `seen` and `all` are row counts over the answering and all asked nodes.
pub fn row_share(seen: u64, all: u64) -> Option<String> {
    if all == 0 || seen >= all {
        return None;
    }
    let percent = seen as f64 * 100.0 / all as f64;
    Some(if percent >= 99.5 {
        "the answering nodes hold more than 99 % of the rows".to_owned()
    } else {
        format!("the answering nodes hold about {percent:.0} % of the rows")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_answer_is_one_line() {
        let coverage = Coverage { asked: 4, answered: 4, ..Coverage::default() };
        assert_eq!(coverage.lines(), ["4 of 4 nodes answered"]);
        assert!(coverage.is_complete());
    }

    #[test]
    fn a_partial_answer_names_the_missing_and_why() {
        let coverage = Coverage {
            asked: 2,
            answered: 1,
            missing: vec![Missing { node: "n3".into(), reason: "unreachable: timed out".into() }],
            notes: vec!["n1: rows before 12:00 were dropped".into()],
        };
        assert_eq!(
            coverage.lines(),
            [
                "PARTIAL: 1 of 2 nodes answered",
                "  missing n3: unreachable: timed out",
                "  note: n1: rows before 12:00 were dropped"
            ]
        );
    }

    #[test]
    fn shares() {
        assert_eq!(row_share(0, 0), None);
        assert_eq!(row_share(10, 10), None);
        assert_eq!(row_share(94, 100).as_deref(), Some("the answering nodes hold about 94 % of the rows"));
        assert_eq!(row_share(9_999, 10_000).as_deref(), Some("the answering nodes hold more than 99 % of the rows"));
    }
}
