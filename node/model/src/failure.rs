//! Failures as they travel: of what kind one is, by which programs decide, and its text for people.

use query_planner::NodeError;
use serde::{Deserialize, Serialize};

/// Characters of another's message that are kept: it goes to terminals and files.
const MAX_SHOWN_CHARS: usize = 1_000;

/// What kind of failure; what nothing decides on is [`FailureKind::Other`]. Travels by its name: who
/// does not know one takes it for that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "&'static str")]
pub enum FailureKind {
    /// The node was not reached, or the connection broke: another way to it may succeed.
    Unreachable,
    /// As that, and its host says that nothing listens there.
    NothingListens,
    /// Time was over.
    Timeout,
    /// The node, or this one, does not accept the other's certificate, or not the request.
    Refused,
    /// Too much is asked there at the moment.
    Busy,
    /// Another node answers at its address.
    WrongNode,
    /// The node is of a release that does not know the request.
    OtherRelease,
    /// Gossip has not brought the node.
    NotKnown,
    /// More than a question may cost.
    OverBudget,
    /// The SQL itself fails, as it would on the union.
    Sql,
    /// Not for this caller.
    Forbidden,
    /// Anything else.
    #[default]
    Other,
}

use FailureKind as Kind;

const NAMES: [(Kind, &str); 12] = [
    (Kind::Unreachable, "unreachable"),
    (Kind::NothingListens, "nothing_listens"),
    (Kind::Timeout, "timeout"),
    (Kind::Refused, "refused"),
    (Kind::Busy, "busy"),
    (Kind::WrongNode, "wrong_node"),
    (Kind::OtherRelease, "other_release"),
    (Kind::NotKnown, "not_known"),
    (Kind::OverBudget, "over_budget"),
    (Kind::Sql, "sql"),
    (Kind::Forbidden, "forbidden"),
    (Kind::Other, "other"),
];

impl From<Kind> for &'static str {
    fn from(kind: Kind) -> Self {
        NAMES[kind as usize].1
    }
}

impl From<String> for Kind {
    fn from(name: String) -> Self {
        NAMES.iter().find(|(_, known)| *known == name).map_or(Self::Other, |(kind, _)| *kind)
    }
}

/// Why something failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For programs.
    pub kind: FailureKind,
    /// For people; the kind need not be put before it.
    pub message: String,
}

impl Failure {
    /// A failure of a kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Whether another way to the node may succeed.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self.kind, Kind::Unreachable | Kind::NothingListens)
    }

    /// Another node's failure made fit to be shown.
    #[must_use]
    pub fn shown(self) -> Self {
        Self { message: shown(&self.message), ..self }
    }
}

/// Another node's text made fit to be shown: one line, of a thousand characters at most.
#[must_use]
pub fn shown(text: &str) -> String {
    let mut chars = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut shown: String = chars.by_ref().take(MAX_SHOWN_CHARS).collect();
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { kind: Kind::Other, message }
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        let kind = match &error {
            NodeError::OverBudget(_) => Kind::OverBudget,
            NodeError::Timeout(_) => Kind::Timeout,
            NodeError::Sql(_) => Kind::Sql,
            NodeError::Busy(_) => Kind::Busy,
            NodeError::Stopped(_) | NodeError::Failed(_) => Kind::Other,
        };
        Self::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;

    #[test]
    fn each_kind_travels_by_its_name_and_an_unknown_one_is_another() {
        for (at, (kind, name)) in NAMES.into_iter().enumerate() {
            assert_eq!((kind as usize, <&str>::from(kind), Kind::from(name.to_owned())), (at, name, kind));
            let failure = Failure::new(kind, "text");
            let frame = frame::encode(&failure).unwrap();
            assert_eq!(frame::decode_frame::<Failure>(&frame).unwrap(), failure);
        }
        let later = frame::encode(&("of_tomorrow", "text")).unwrap();
        assert_eq!(frame::decode_frame::<Failure>(&later).unwrap(), Failure::from("text"));
    }

    #[test]
    fn what_another_node_says_is_one_short_line() {
        let failure = Failure::from("x\n".repeat(1 << 20)).shown();
        assert_eq!(failure.message.chars().count(), MAX_SHOWN_CHARS + 1);
        assert!(!failure.message.contains('\n'));
    }
}
