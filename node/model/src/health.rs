//! State of a node, and which others it reaches: what `rankmesh doctor` asks every member.
//!
//! Travels as JSON inside its frame, so that fields can be added: a reader takes the fields it
//! knows, and those that an older node does not send stay empty.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::failure::FailureKind;

/// One node, as it sees itself and the others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Its name.
    pub node: String,
    /// Release of its agent.
    pub version: String,
    /// Version of its frames ([`crate::frame::VERSION`]).
    pub wire: u32,
    /// Schema of its trace store.
    pub schema: i64,
    /// Kernel release of its host.
    pub kernel: String,
    /// State of its capture: "on", "off" or why it failed.
    pub capture: String,
    /// What recording took of the process that makes most calls, in millionths of its time, in the
    /// last ten seconds; none where it is not measured.
    pub recording_ppm: Option<u64>,
    /// What a recorded call costs there, nanoseconds,
    pub recorded_call_ns: Option<u64>,
    /// and how many a second there are.
    pub recorded_calls_per_second: Option<u64>,
    /// When its certificate ends, Unix nanoseconds.
    pub certificate_ends_ns: i64,
    /// When it should have been renewed, Unix nanoseconds.
    pub certificate_renews_ns: i64,
    /// Its own time when it answered, Unix nanoseconds.
    pub now_ns: i64,
    /// Whom it tried to reach for this answer.
    pub reached: Vec<Reached>,
    /// Addresses that called it recently.
    #[serde(rename = "heard")]
    pub callers: Vec<CallerSeen>,
}

/// What came of reaching another node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reached {
    /// Which.
    pub node: String,
    /// Where it was tried.
    pub address: Option<SocketAddr>,
    /// The way to it; none where it was not reached.
    pub way: Option<PathSeen>,
    /// Why it was not reached,
    pub error: Option<String>,
    /// and of what kind that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<FailureKind>,
}

/// The way to another node, by a few pings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathSeen {
    /// Its clock minus the requester's, nanoseconds.
    pub offset_ns: i64,
    /// The true offset lies within this.
    pub bound_ns: i64,
    /// Shortest round trip, nanoseconds.
    pub rtt_ns: i64,
    /// Largest UDP payload that passed so far, bytes.
    pub mtu: u16,
    /// Packets sent on this connection since it stands, and those of them that were lost.
    pub sent: u64,
    /// See `sent`.
    pub lost: u64,
    /// How often packets of the size that had passed were suddenly all lost.
    pub black_holes: u64,
}

/// An address from which handshakes were started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallerSeen {
    /// Where from.
    pub address: SocketAddr,
    /// Who it was, where a handshake was completed.
    pub node: Option<String>,
    /// Handshakes started.
    #[serde(rename = "begun")]
    pub started: u64,
    /// Handshakes completed.
    pub completed: u64,
    /// Handshakes started since the last that was completed.
    #[serde(default)]
    pub unfinished: u64,
    /// Time since the last was started, milliseconds; 0 while a connection from there is open.
    pub last_ago_ms: u64,
}
