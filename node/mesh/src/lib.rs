//! The mesh endpoint: one UDP port on which this node speaks QUIC with every other, dialling and
//! accepting.
//!
//! Owned here: the endpoint and its life, who is admitted, the connections and their reuse, gossip
//! messages (one unidirectional stream each) and questions (one bidirectional stream each). Not
//! here: the contents of gossip (crate `gossip`), who may have a certificate (crate `certs`), what
//! a question means (the [`Handler`] given by the agent), and how a host without a certificate gets
//! one (the [`JoinHost`] given by the agent). `docs/wire.md` describes the bytes.
//!
//! The way of a question: [`Mesh::ask`] opens a stream to a peer and writes a request; there
//! `serve` reads it and gives it to the [`Handler`], whose [`Responder`] writes answers; here a
//! [`ResponseStream`] reads them. The messages are `model`'s.
//!
//! - `endpoint`: socket and QUIC settings. `pool`: connections and dialling. `probe`: does anything
//!   listen there? `active_time`: waiting for peers.
//! - `connections`: the open connections, judged anew when trust changes and replaced when our
//!   certificate does.
//! - `idle`: which connections are kept, by their `usage`. `serve`: what happens on an open
//!   connection. `ask`: asking a peer. `error`: why it did not answer. `outbox`: outgoing gossip.
//! - `place`: where a node is reached, as people write it.
//! - [`via`]: asking an agent from a machine without one.
//! - [`join`]: how a host without a certificate gets one, both sides.
//! - `callers`: who started handshakes. `reach`: whether a peer is reached, and over what path.
//! - `clock`: how far a peer's clock is from ours. `drift`: how that changes with time.

mod active_time;
mod ask;
mod callers;
mod clock;
mod connections;
mod drift;
mod endpoint;
mod error;
mod idle;
pub mod join;
mod outbox;
mod place;
mod pool;
mod probe;
mod quota;
mod reach;
mod serve;
#[cfg(test)]
mod tests;
mod usage;
pub mod via;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use gossip::Inbound;
use model::wire::Request;
use parking_lot::RwLock;
use quinn::{Endpoint, VarInt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use ask::{Encoded, ResponseStream};
pub use clock::ClockOffset;
pub use drift::{ClockTrack, Estimate};
pub use endpoint::udp_socket;
pub use error::AskError;
pub use idle::ConnectionPolicy;
pub use place::{Place, PlaceError};
pub use serve::{Responder, SendError};

/// Gossip messages that may wait for the gossiper.
const GOSSIP_QUEUE: usize = 256;

/// How long a closing endpoint waits until its farewells are sent.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// Codes with which a connection is closed.
mod code {
    /// The node stops.
    pub(super) const SHUTDOWN: u32 = 0;
    /// The peer showed no certificate of this mesh.
    pub(super) const NOT_A_MEMBER: u32 = 1;
    /// The peer wants a protocol that is not spoken here.
    pub(super) const NO_SUCH_PROTOCOL: u32 = 2;
}

/// Serves questions of other members.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Answer `request` of `peer` through `out`; what was sent last must be a final response
    /// ([`model::wire::Response::is_last`]), else the requester gets a failure. `cancelled` fires
    /// when the requester has gone or given up: stop then, nobody reads the answer. Pings do not
    /// come here. `mesh` is the endpoint on which it came, for asking others.
    async fn handle(
        &self,
        mesh: &Mesh,
        peer: certs::tls::Peer,
        request: Request,
        out: &mut Responder,
        cancelled: CancellationToken,
    );
}

/// Serves hosts that want to become members.
#[async_trait]
pub trait JoinHost: Send + Sync + 'static {
    /// Serves one connection that negotiated `certs::tls::ALPN_JOIN`. The peer is not
    /// authenticated. The connection is closed when this returns.
    async fn serve(&self, connection: quinn::Connection);
}

/// How a mesh endpoint starts.
#[derive(Clone)]
pub struct MeshConfig {
    /// Where to listen: `127.0.0.1:PORT`, `0.0.0.0:PORT`, `[::]:PORT` (IPv4 too) …; port 0 picks
    /// one.
    pub listen: SocketAddr,
    /// Who this node is.
    pub identity: Arc<certs::Identity>,
    /// This host's own secret: with the same one, a restarted node resets the connections of its
    /// former life.
    pub host_key: certs::HostKey,
    /// Answers questions.
    pub handler: Arc<dyn Handler>,
    /// Admits hosts, when this node may.
    pub join_host: Option<Arc<dyn JoinHost>>,
    /// What sockets and timers are made of: [`quinn::TokioRuntime`], or in the lab one that loses
    /// packets.
    pub runtime: Arc<dyn quinn::Runtime>,
}

/// The mesh endpoint could not start or change its identity.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The UDP port cannot be bound.
    #[error("cannot listen on UDP {listen}: {error}; choose another address with --listen")]
    Bind {
        /// The address asked for.
        listen: SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
    /// The identity is unusable.
    #[error(transparent)]
    Identity(#[from] certs::Error),
    /// TLS and QUIC cannot be combined.
    #[error("TLS configuration: {0}")]
    Tls(String),
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeshStats {
    /// Connections dialled.
    pub dials: u64,
    /// Dials that failed.
    pub dials_failed: u64,
    /// The most dials under way at once.
    pub dials_at_once_max: u64,
    /// Connections accepted from members.
    pub accepted: u64,
    /// Connections closed because the peer is no member or spoke a strange protocol.
    pub turned_away: u64,
    /// Connections closed because the peer's certificate was revoked, or ended, or its CA is
    /// trusted no more.
    pub shut_out: u64,
    /// Connections closed because nobody used them.
    pub closed_idle: u64,
    /// Gossip messages dropped because a queue, here or towards a peer, was full or the peer was
    /// not reached.
    pub gossip_dropped: u64,
    /// Gossip messages that went out.
    pub gossip_sent: u64,
    /// Their bytes, without those of QUIC.
    pub gossip_sent_bytes: u64,
    /// Gossip messages that came in.
    pub gossip_received: u64,
    /// Their bytes, without those of QUIC.
    pub gossip_received_bytes: u64,
    /// Questions served.
    pub served: u64,
}

#[derive(Default)]
struct Counters {
    dials: AtomicU64,
    dials_failed: AtomicU64,
    dials_now: AtomicU64,
    dials_at_once_max: AtomicU64,
    accepted: AtomicU64,
    turned_away: AtomicU64,
    shut_out: AtomicU64,
    closed_idle: AtomicU64,
    gossip_dropped: AtomicU64,
    gossip_sent: AtomicU64,
    gossip_sent_bytes: AtomicU64,
    gossip_received: AtomicU64,
    gossip_received_bytes: AtomicU64,
    served: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Counts a message and its bytes.
fn count_message(messages: &AtomicU64, bytes: &AtomicU64, payload: &[u8]) {
    count(messages);
    bytes.fetch_add(payload.len() as u64, Ordering::Relaxed);
}

/// What changes with the identity.
struct Credentials {
    identity: Arc<certs::Identity>,
    client: quinn::ClientConfig,
}

/// The mesh endpoint; a clone is another handle on the same one.
#[derive(Clone)]
pub struct Mesh(Arc<Inner>);

struct Inner {
    endpoint: Endpoint,
    credentials: RwLock<Credentials>,
    handler: Arc<dyn Handler>,
    join_host: Option<Arc<dyn JoinHost>>,
    pool: pool::Pool,
    connections: connections::Connections,
    policy: RwLock<ConnectionPolicy>,
    outboxes: outbox::Outboxes,
    gossip_in: mpsc::Sender<Inbound>,
    counters: Counters,
    callers: callers::Callers,
    quotas: quota::Quotas,
    quiet: parking_lot::Mutex<gossip::Quiet>,
    closing: CancellationToken,
}

impl Mesh {
    /// Binds the port and starts accepting. Gossip messages of members come out of the receiver.
    ///
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the port is taken or the identity unusable.
    pub fn start(config: MeshConfig) -> Result<(Self, mpsc::Receiver<Inbound>), MeshError> {
        let MeshConfig { listen, identity, host_key, handler, join_host, runtime } = config;
        let client = endpoint::client_config(&identity)?;
        let server = endpoint::server_config(&identity, join_host.is_some())?;
        let endpoint = endpoint::bind(listen, &host_key, runtime)?;
        endpoint.set_server_config(Some(server));
        let (gossip_in, gossip_out) = mpsc::channel(GOSSIP_QUEUE);
        let mesh = Self(Arc::new(Inner {
            endpoint,
            credentials: RwLock::new(Credentials { identity, client }),
            handler,
            join_host,
            pool: pool::Pool::default(),
            connections: connections::Connections::default(),
            policy: RwLock::default(),
            outboxes: outbox::Outboxes::default(),
            gossip_in,
            counters: Counters::default(),
            callers: callers::Callers::default(),
            quotas: quota::Quotas::default(),
            quiet: parking_lot::Mutex::default(),
            closing: CancellationToken::new(),
        }));
        tokio::spawn(serve::accept(mesh.clone()));
        tokio::spawn(idle::sweep(mesh.clone()));
        Ok((mesh, gossip_out))
    }

    /// The address it listens on, with the port it got.
    ///
    /// # Errors
    /// When the socket is gone.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.endpoint.local_addr()
    }

    /// Who this node is.
    #[must_use]
    pub fn identity(&self) -> Arc<certs::Identity> {
        self.0.credentials.read().identity.clone()
    }

    /// Replaces the identity by another of the same node. Connections to peers that it does not
    /// accept any more (revoked, or of a CA that is trusted no more) are closed at once. If it has
    /// another certificate than before, each peer is dialled anew, and the former connections are
    /// closed after the time that the longest question may take: no question is lost.
    ///
    /// # Errors
    /// When it is unusable; the former then stays.
    pub fn set_identity(&self, identity: Arc<certs::Identity>) -> Result<(), MeshError> {
        let client = endpoint::client_config(&identity)?;
        let server = endpoint::server_config(&identity, self.0.join_host.is_some())?;
        let before = {
            let mut credentials = self.0.credentials.write();
            std::mem::replace(&mut *credentials, Credentials { identity: identity.clone(), client }).identity
        };
        self.0.endpoint.set_server_config(Some(server));
        self.judge_anew(&identity);
        if before.fingerprint() != identity.fingerprint() {
            self.redial_all(&before);
        }
        Ok(())
    }

    /// Connections that are open now, those taken out of use included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.0.connections.count()
    }

    /// Sets another policy for which connections are kept.
    pub fn set_connection_policy(&self, policy: ConnectionPolicy) {
        *self.0.policy.write() = policy;
    }

    /// Serves what comes over a connection that this node dialled.
    fn serve(&self, peer: &Arc<pool::Peer>) {
        tokio::spawn(serve::connection(self.clone(), Arc::clone(peer)));
    }

    fn connection_policy(&self) -> ConnectionPolicy {
        *self.0.policy.read()
    }

    fn client_config(&self) -> quinn::ClientConfig {
        self.0.credentials.read().client.clone()
    }

    /// Counts since the start.
    #[must_use]
    pub fn stats(&self) -> MeshStats {
        let counters = &self.0.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MeshStats {
            dials: read(&counters.dials),
            dials_failed: read(&counters.dials_failed),
            dials_at_once_max: read(&counters.dials_at_once_max),
            accepted: read(&counters.accepted),
            turned_away: read(&counters.turned_away),
            shut_out: read(&counters.shut_out),
            closed_idle: read(&counters.closed_idle),
            gossip_dropped: read(&counters.gossip_dropped),
            gossip_sent: read(&counters.gossip_sent),
            gossip_sent_bytes: read(&counters.gossip_sent_bytes),
            gossip_received: read(&counters.gossip_received),
            gossip_received_bytes: read(&counters.gossip_received_bytes),
            served: read(&counters.served),
        }
    }

    /// Goes silent as a killed process would: its port closes, and nothing, no farewell either, is
    /// sent from it any more. For the lab and for tests.
    ///
    /// # Errors
    /// No other socket can be had.
    pub fn vanish(&self) -> std::io::Result<()> {
        // Twice, as quinn listens on the last socket but one as well.
        for _ in 0..2 {
            self.0.endpoint.rebind(std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0))?)?;
        }
        self.0.closing.cancel();
        self.0.endpoint.close(VarInt::from_u32(code::SHUTDOWN), b"");
        Ok(())
    }

    /// Closes every connection with a farewell and stops listening. Questions under way fail at
    /// both ends.
    pub async fn shutdown(&self) {
        self.0.closing.cancel();
        self.0.endpoint.close(VarInt::from_u32(code::SHUTDOWN), b"the node stops");
        let _ = tokio::time::timeout(CLOSE_PATIENCE, self.0.endpoint.wait_idle()).await;
    }
}

impl gossip::Link for Mesh {
    fn send(&self, to: SocketAddr, payload: Vec<u8>) {
        outbox::send(self, to, payload);
    }
}
