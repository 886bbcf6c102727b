//! Messages between members about cells.

use serde::{Deserialize, Serialize};

use super::bytes::{decoded, encoded};
use super::card::SealedCard;
use super::cell::CellId;
use super::report::Report;
use crate::MAX_PAYLOAD_BYTES;

/// Begins every message about cells; the protocol within a cell begins otherwise.
const PREFIX: [u8; 4] = *b"RMC1";

/// Bytes of one message that cards and reports may fill.
pub(crate) const FILL_BYTES: usize = 96 << 10;

/// What is known of a cell, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beat {
    pub(crate) cell: CellId,
    /// Of the reports that are known: who made them, and their numbers.
    pub(crate) stamp: u64,
    /// Of what these say: a member does not need a report that its author has only made anew.
    pub(crate) saying: u64,
    /// Of each of these reports how often its author has said since that it stands; in the order of
    /// the authors' hashes.
    pub(crate) beats: Vec<u32>,
    /// Nobody has heard of the cell for long.
    pub(crate) silent: bool,
}

/// Which reports of a cell are known: of which author, of which incarnation, the how manieth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) cell: CellId,
    pub(crate) reports: Vec<(u64, u64, u64)>,
}

/// How a report was heard last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heard {
    /// Its author's hash.
    pub(crate) author: u64,
    /// Its author's incarnation, and the how manieth it is.
    pub(crate) age: (u64, u64),
    pub(crate) beat: u32,
    /// For so many milliseconds no further beat has come.
    pub(crate) idle_ms: u32,
    /// For so many milliseconds its author is heard without a gap.
    pub(crate) steady_ms: u32,
}

/// The reports of a cell that the receiver lacks, and how all that are known were heard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct News {
    pub(crate) cell: CellId,
    pub(crate) silent: bool,
    pub(crate) heard: Vec<Heard>,
    #[serde(with = "super::report::as_sealed")]
    pub(crate) reports: Vec<Report>,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// A member asks its delegate whether anything is new to who has the table of this stamp.
    Look { stamp: u64 },
    /// Nothing is, to who has that stamp.
    Same { stamp: u64 },
    /// All cells in short: between delegates at each round, and the answer to a look.
    Beats(Vec<Beat>),
    /// Answers who is no delegate: these are, in its cell.
    Delegates(Vec<std::net::SocketAddr>),
    /// Answers with the cells that the sender knows otherwise.
    Differ(Vec<Known>),
    /// Answers that with what the receiver lacks; `ask` are cells of which the sender lacks reports.
    News { news: Vec<News>, ask: Vec<Known> },
    /// Asks for the cards of a roll, of which these are there already.
    Fetch { cell: CellId, roll: u128, have: Vec<u64> },
    /// Hashes of all cards of the roll, in order, and the cards that are lacking, or some of them.
    Cards { cell: CellId, roll: u128, order: Vec<u128>, cards: Vec<SealedCard> },
    /// Somebody new asks in which cell it belongs.
    Where(Box<SealedCard>),
    /// The cell, some who live in it, and some who live elsewhere.
    There { cell: CellId, doors: Vec<std::net::SocketAddr>, others: Vec<std::net::SocketAddr> },
    /// Answers who called as in the cell of the whole mesh: this mesh has several.
    Apart,
}

/// Begins every message of the gossip within a cell that is not the whole mesh; the cell follows,
/// then the message as it is in a mesh of one cell.
const WITHIN: [u8; 4] = *b"RMC2";
/// Bytes of that and the cell.
pub(crate) const HEAD_BYTES: usize = 13;

/// A message of the gossip within a cell, as it is sent.
pub(crate) fn wrap(cell: CellId, message: Vec<u8>) -> Vec<u8> {
    if cell == CellId::WHOLE { message } else { [&WITHIN[..], &cell.to_bytes(), &message].concat() }
}

/// The cell within which a message was sent, and the message; `None` where its head is cut short.
pub(crate) fn unwrap(payload: &[u8]) -> Option<(CellId, &[u8])> {
    match payload.strip_prefix(&WITHIN[..]) {
        None => Some((CellId::WHOLE, payload)),
        Some(rest) => {
            let (cell, message) = rest.split_first_chunk()?;
            Some((CellId::from_bytes(cell)?, message))
        }
    }
}

pub(crate) fn write(message: &Message) -> Vec<u8> {
    [&PREFIX[..], &encoded(message)].concat()
}

/// Whether a payload is a message about cells.
#[must_use]
pub fn is_about_cells(payload: &[u8]) -> bool {
    payload.starts_with(&PREFIX)
}

/// Reads a message; what it can make us allocate is bounded by a payload's size.
pub(crate) fn read(payload: &[u8]) -> Option<Message> {
    let bytes = payload.strip_prefix(&PREFIX[..]).filter(|bytes| bytes.len() <= MAX_PAYLOAD_BYTES)?;
    decoded(bytes).map(|(message, _)| message)
}
