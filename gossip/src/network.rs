//! The network as gossip sees it: a way out, and messages that come in.

use std::net::SocketAddr;

/// Largest gossip message, bytes: chitchat fills messages up to 65,507 bytes, and its digests (of
/// all nodes, about 60 bytes each) come on top in a SYN.
pub const MAX_PAYLOAD_BYTES: usize = 128 * 1024;

/// The way out to other members.
pub trait Link: Send + Sync + 'static {
    /// Send `payload` to the member at `to`, as well as can be done. Must not block and must not
    /// wait for a connection: enqueue, dial in the background, and drop (and count) when the queue
    /// is full. Gossip repeats itself, so a lost message costs a round.
    fn send(&self, to: SocketAddr, payload: Vec<u8>);
}

/// A message that came in.
#[derive(Debug, Clone)]
pub struct Inbound {
    /// Where the sender is reached: replies go there.
    pub from: SocketAddr,
    /// The sender's name, as its certificate has it.
    pub node: String,
    /// The bytes its link was given.
    pub payload: Vec<u8>,
}
