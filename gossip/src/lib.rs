//! Membership: who is in the mesh, where, alive or not, and a few facts about each node.
//!
//! The protocol is Scuttlebutt reconciliation with heartbeat failure detection, from the `chitchat`
//! crate (`ALGORITHM.md` in this crate's directory explains it). This crate owns the shape of a
//! node's facts, how they are encoded, which incarnation of a restarted node counts, and how a mesh
//! finds itself again after a split. It knows no sockets: messages leave through a [`Link`] and
//! come in over a channel of [`Inbound`], which `mesh` ties to its QUIC endpoint and the tests to
//! an in-memory network.
//!
//! It does not decide who may send. A link must hand in messages of authenticated members only.

pub mod cells;
mod config;
mod driver;
mod error;
mod facts;
mod farewell;
pub mod hostile;
mod intake;
mod link;
mod meeting;
mod member;
mod members;
mod network;
mod pace;
mod part;
mod quiet;
mod remembered;
mod seal;
mod wire;

pub use config::{CellsUse, GossipConfig, next_generation};
pub use driver::{Gossip, MemberList};
pub use error::Error;
pub use facts::{CUT, JOBS_CUT, MAX_RANKS, NodeFacts};
pub use intake::MAX_LIVES;
pub use member::{Member, MemberState, Seat};
pub use network::{Inbound, Link, MAX_PAYLOAD_BYTES};
pub use quiet::Quiet;
pub use seal::Sealer;

/// A node's facts from gossip keys and their values, as they are read from other nodes.
#[must_use]
pub fn read_facts<'a>(keys: impl Iterator<Item = (&'a str, &'a str)>) -> NodeFacts {
    NodeFacts::decode(keys)
}
