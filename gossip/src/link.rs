//! The link to the network, and the adapter that lets chitchat speak over it.
//!
//! chitchat drives its socket from one task: that task awaits every `send`, and drops and
//! re-creates the `recv` future on each tick. So `send` must return at once, `recv` must lose
//! nothing when dropped, and an error from `recv` would end gossip for good. Hence: sends are
//! handed to the link, receives come from a channel, bad payloads are skipped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;
use tracing::debug;

use crate::GossipConfig;
use crate::pace::Pace;

/// Largest gossip message, bytes: chitchat fills messages up to 65,507 bytes, and its digests (of
/// all nodes, about 60 bytes each) come on top in a SYN.
pub const MAX_PAYLOAD_BYTES: usize = 128 * 1024;

/// Largest digest that a SYN-ACK has room for, with some left for keys.
const MAX_DIGEST_BYTES: usize = 64_000;

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
    /// The bytes its link was given.
    pub payload: Vec<u8>,
}

/// Opens sockets over one link. Sockets share the incoming channel, so that a restarted protocol
/// task takes over.
pub(crate) struct LinkTransport {
    link: Arc<dyn Link>,
    inbound: Arc<Mutex<mpsc::Receiver<Inbound>>>,
    digest_bytes_per_s: u32,
    round: Duration,
    urgent: Arc<AtomicUsize>,
    completed: Arc<AtomicUsize>,
}

impl LinkTransport {
    pub(crate) fn new(link: Arc<dyn Link>, inbound: mpsc::Receiver<Inbound>, cfg: &GossipConfig) -> Self {
        Self {
            link,
            inbound: Arc::new(Mutex::new(inbound)),
            digest_bytes_per_s: cfg.digest_bytes_per_s,
            round: cfg.interval,
            urgent: Arc::default(),
            completed: Arc::default(),
        }
    }

    /// Lets this many more exchanges begin without regard to the allowance.
    pub(crate) fn hurry(&self, exchanges: usize) {
        self.urgent.fetch_add(exchanges, Ordering::Relaxed);
    }

    /// Exchanges started here whose third message, with what the peer lacked, has been handed to
    /// the link.
    pub(crate) fn completed(&self) -> usize {
        self.completed.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Transport for LinkTransport {
    async fn open(&self, _listen_addr: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        Ok(Box::new(LinkSocket {
            link: self.link.clone(),
            inbound: self.inbound.clone(),
            pace: Pace::new(self.digest_bytes_per_s, self.round),
            urgent: self.urgent.clone(),
            completed: self.completed.clone(),
        }))
    }
}

struct LinkSocket {
    link: Arc<dyn Link>,
    inbound: Arc<Mutex<mpsc::Receiver<Inbound>>>,
    pace: Pace,
    urgent: Arc<AtomicUsize>,
    completed: Arc<AtomicUsize>,
}

impl LinkSocket {
    fn may_begin(&mut self) -> bool {
        let urgent = self.urgent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        self.pace.may_begin(Instant::now()) || urgent
    }
}

#[async_trait]
impl Socket for LinkSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let begins = matches!(message, ChitchatMessage::Syn { .. });
        let completes = matches!(message, ChitchatMessage::Ack { .. });
        if begins && !self.may_begin() {
            return Ok(());
        }
        let payload = message.serialize_to_vec();
        if begins {
            self.pace.exchange_started(payload.len());
        }
        if payload.len() > MAX_PAYLOAD_BYTES {
            // Happens from about 2,000 nodes on; see ALGORITHM.md.
            tracing::warn!(bytes = payload.len(), "a gossip message outgrew its limit and was not sent");
            return Ok(());
        }
        self.link.send(to, payload);
        if completes {
            self.completed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            // Cancel-safe: a lock not yet taken and a message not yet received are both still there
            // next time.
            let Some(Inbound { from, payload }) = self.inbound.lock().await.recv().await else {
                // The network is gone (shutdown). An error would be reported as a fault; there is
                // nothing to wait for.
                return std::future::pending().await;
            };
            match parse(&payload) {
                // The protocol cannot answer with a digest that leaves no room for keys: its
                // arithmetic would overflow.
                Ok(ChitchatMessage::Syn { .. }) if self.pace.digest_bytes() > MAX_DIGEST_BYTES => {
                    tracing::error!(
                        digest_bytes = self.pace.digest_bytes(),
                        "the mesh is larger than gossip can tell in one message: new facts no longer spread from here"
                    );
                }
                Ok(message) => return Ok((from, message)),
                Err(error) => {
                    debug!(%from, %error, bytes = payload.len(), "ignored a gossip message")
                }
            }
        }
    }
}

pub(crate) fn parse(payload: &[u8]) -> anyhow::Result<ChitchatMessage> {
    anyhow::ensure!(payload.len() <= MAX_PAYLOAD_BYTES, "too long");
    ChitchatMessage::deserialize(&mut &payload[..])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    struct Nowhere;
    impl Link for Nowhere {
        fn send(&self, _to: SocketAddr, _payload: Vec<u8>) {}
    }

    #[tokio::test]
    async fn recv_skips_garbage_and_survives_being_dropped() {
        let (tx, rx) = mpsc::channel(8);
        let from: SocketAddr = ([127, 0, 0, 1], 1).into();
        let cfg = GossipConfig::new("m", "n", 1, from);
        let transport = LinkTransport::new(Arc::new(Nowhere), rx, &cfg);
        let mut socket = transport.open(from).await.unwrap();
        // A receive that is given up, as chitchat's select does on each tick.
        assert!(tokio::time::timeout(Duration::from_millis(5), socket.recv()).await.is_err());
        for payload in [b"junk".to_vec(), Vec::new(), ChitchatMessage::BadCluster.serialize_to_vec()] {
            tx.send(Inbound { from, payload }).await.unwrap();
        }
        let (_, message) = tokio::time::timeout(Duration::from_secs(120), socket.recv()).await.unwrap().unwrap();
        assert_eq!(message, ChitchatMessage::BadCluster);
    }

    struct Count(AtomicUsize);
    impl Link for Count {
        fn send(&self, _to: SocketAddr, payload: Vec<u8>) {
            self.0.fetch_add(payload.len(), Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn exchanges_beyond_the_allowance_wait_and_answers_and_farewells_do_not() {
        let from: SocketAddr = ([127, 0, 0, 1], 1).into();
        // Nothing refills it, however long this takes.
        let cfg = GossipConfig { digest_bytes_per_s: 0, ..GossipConfig::new("m", "n", 1, from) };
        let (link, (_tx, rx)) = (Arc::new(Count(AtomicUsize::new(0))), mpsc::channel(1));
        let transport = LinkTransport::new(link.clone(), rx, &cfg);
        let mut socket = transport.open(from).await.unwrap();
        // An empty digest of the mesh "m": magic, version, kind, no nodes, name.
        let syn = || parse(&[0x53, 0xB0, 0, 0, 0, 0, 1, 0, b'm']).unwrap();
        let mut sent = Vec::new();
        for message in [syn(), syn(), ChitchatMessage::BadCluster] {
            socket.send(from, message).await.unwrap();
            sent.push(link.0.load(Ordering::Relaxed));
        }
        assert!(sent[0] > 0, "the first exchange begins at once");
        assert_eq!(sent[1], sent[0], "the second is beyond the allowance");
        assert!(sent[2] > sent[1], "an answer is never limited");
        transport.hurry(1);
        socket.send(from, syn()).await.unwrap();
        assert!(link.0.load(Ordering::Relaxed) > sent[2], "a farewell is never limited");
    }

    proptest! {
        #[test]
        fn no_payload_breaks_the_parser(tail in proptest::collection::vec(any::<u8>(), 0..400), kind in 0u8..5) {
            // Magic, protocol version and a message kind, so that the parser gets past its first
            // checks.
            let mut payload = vec![0x53, 0xB0, 0, kind];
            payload.extend(tail);
            let _ = parse(&payload);
        }
    }
}
