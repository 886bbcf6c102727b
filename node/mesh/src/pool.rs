//! Connections by address, and how they come to be.
//!
//! Both ends of a connection use one UDP port for everything, so a connection that a peer dialled
//! to us has the peer's listen address as its remote address and serves as well as one we dialled.
//! Each address has one connection in use, the newest: a restarted peer's first call replaces the
//! connection to its former life. When two nodes dial each other at once both connections stay;
//! either works.
//!
//! Few dials run at a time (a burst of handshakes overflows UDP buffers and everybody retransmits),
//! one for an address, and each goes on when its caller gives up. Gossip has a limit of its own, so
//! that a round of calls to dead members never delays a question.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::{Mutex, MutexGuard};
use rustls_pki_types::CertificateDer;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::endpoint::{Window, canonical};
use super::error::AskError;
use super::quota::Quota;
use super::usage::Usage;
use super::{Mesh, active_time, count, probe};

/// Dials under way at a time for questions, and for gossip.
const QUESTION_DIALS: usize = 32;
const GOSSIP_DIALS: usize = 8;

/// When more dials than this run, the next waits up to this long: so nodes that dial the same peers
/// at once (after a restart of the mesh, say) come at different moments, and a node's own
/// handshakes are spread out.
const CALM_DIALS: u64 = 8;
const JITTER: Duration = Duration::from_millis(20);

/// How long one dial may take: QUIC repeats its first packet three times in it.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection to a member whose certificate was checked.
pub(super) struct Peer {
    pub(super) connection: quinn::Connection,
    pub(super) node: certs::NodeName,
    pub(super) address: SocketAddr,
    /// The peer by its certificate.
    pub(super) who: certs::tls::Peer,
    /// When it was used, and by how many it is used now.
    pub(super) usage: Usage,
    /// What the member may have here.
    pub(super) quota: Arc<Quota>,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Question,
    Gossip,
}

/// A connection from the pool.
pub(super) struct Lease {
    pub(super) peer: Arc<Peer>,
    /// It was open before it was asked for, so it may be dead.
    pub(super) reused: bool,
}

type Dial = Shared<BoxFuture<'static, Result<Arc<Peer>, AskError>>>;

#[derive(Default)]
struct Slot {
    peer: Option<Arc<Peer>>,
    dial: Option<Dial>,
}

pub(super) struct Pool {
    slots: Mutex<HashMap<SocketAddr, Slot>>,
    question_dials: Arc<Semaphore>,
    gossip_dials: Arc<Semaphore>,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            slots: Mutex::default(),
            question_dials: Arc::new(Semaphore::new(QUESTION_DIALS)),
            gossip_dials: Arc::new(Semaphore::new(GOSSIP_DIALS)),
        }
    }
}

impl Pool {
    fn slots(&self) -> MutexGuard<'_, HashMap<SocketAddr, Slot>> {
        self.slots.lock()
    }

    /// Puts a connection into use, in place of an older one to that address.
    pub(super) fn put(&self, peer: &Arc<Peer>) {
        let before = self.slots().entry(peer.address).or_default().peer.replace(peer.clone());
        // Nothing is asked over the former any more.
        if let Some(before) = before.filter(|before| before.connection.stable_id() != peer.connection.stable_id()) {
            Window::Member.open(&before.connection);
        }
    }

    /// Takes this connection out of use.
    pub(super) fn evict(&self, peer: &Peer) {
        let mut slots = self.slots();
        if let Some(slot) = slots.get_mut(&peer.address) {
            if slot.peer.as_ref().is_some_and(|p| p.connection.stable_id() == peer.connection.stable_id()) {
                slot.peer = None;
            }
            if slot.peer.is_none() && slot.dial.is_none() {
                slots.remove(&peer.address);
            }
        }
    }

    /// Whether this is the connection in use to its address.
    pub(super) fn uses(&self, peer: &Peer) -> bool {
        let slots = self.slots();
        let used = slots.get(&peer.address).and_then(|slot| slot.peer.as_ref());
        used.is_some_and(|used| used.connection.stable_id() == peer.connection.stable_id())
    }

    fn dial_ended(&self, address: SocketAddr) {
        let mut slots = self.slots();
        if let Some(slot) = slots.get_mut(&address) {
            slot.dial = None;
            if slot.peer.is_none() {
                slots.remove(&address);
            }
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.slots().values().filter(|slot| slot.peer.is_some()).count()
    }
}

impl Mesh {
    /// A connection to the member that listens at `address`.
    pub(super) async fn connect(
        &self,
        address: SocketAddr,
        purpose: Purpose,
        deadline: Instant,
    ) -> Result<Lease, AskError> {
        let address = canonical(address);
        let dial = {
            let mut slots = self.0.pool.slots();
            let slot = slots.entry(address).or_default();
            if let Some(peer) = slot.peer.as_ref().filter(|p| p.connection.close_reason().is_none()) {
                return Ok(Lease { peer: peer.clone(), reused: true });
            }
            slot.dial.get_or_insert_with(|| self.start_dial(address, purpose)).clone()
        };
        match tokio::time::timeout_at(deadline, dial).await {
            Ok(dialled) => dialled.map(|peer| Lease { peer, reused: false }),
            Err(_) => Err(AskError::Unreachable("no connection before the deadline".into())),
        }
    }

    fn start_dial(&self, address: SocketAddr, purpose: Purpose) -> Dial {
        let mesh = self.clone();
        let task = tokio::spawn(async move {
            let pool = &mesh.0.pool;
            let permits = if purpose == Purpose::Question { &pool.question_dials } else { &pool.gossip_dials };
            // The semaphores are never closed.
            let _permit = permits.acquire().await;
            if mesh.0.counters.dials_now.load(Ordering::Relaxed) >= CALM_DIALS {
                tokio::time::sleep(JITTER.mul_f64(rand::random_range(0.0..1.0))).await;
            }
            let dialled = mesh.dial(address).await;
            if let Ok(peer) = &dialled {
                pool.put(peer);
                mesh.serve(peer);
            }
            pool.dial_ended(address);
            dialled
        });
        let ended = task.map(|joined| match joined {
            Ok(dialled) => dialled,
            Err(error) => Err(AskError::Unreachable(format!("dialling failed: {error}"))),
        });
        ended.boxed().shared()
    }

    async fn dial(&self, address: SocketAddr) -> Result<Arc<Peer>, AskError> {
        let counters = &self.0.counters;
        count(&counters.dials);
        let now = counters.dials_now.fetch_add(1, Ordering::Relaxed) + 1;
        counters.dials_at_once_max.fetch_max(now, Ordering::Relaxed);
        let dialled = self.try_dial(address).await;
        counters.dials_now.fetch_sub(1, Ordering::Relaxed);
        if let Err(error) = &dialled {
            count(&counters.dials_failed);
            tracing::debug!(%address, %error, "dial failed");
        }
        dialled
    }

    async fn try_dial(&self, address: SocketAddr) -> Result<Arc<Peer>, AskError> {
        let connecting = self
            .0
            .endpoint
            .connect_with(self.client_config(), address, &ticket_name(address))
            .map_err(|e| AskError::Unreachable(e.to_string()))?;
        let connection = tokio::select! {
            connected = connecting => connected.map_err(|e| AskError::of_connection(&e))?,
            objection = probe::objection(address) => return Err(objection.into()),
            () = active_time::sleep(DIAL_TIMEOUT) => return Err(AskError::Unreachable("connection timed out".into())),
        };
        let who = self.member(&connection).map_err(|e| AskError::Refused(e.to_string()))?;
        Ok(self.peer(connection, address, who))
    }

    /// A connection to a member whose certificate was judged.
    pub(super) fn peer(&self, connection: quinn::Connection, address: SocketAddr, who: certs::tls::Peer) -> Arc<Peer> {
        Window::Member.open(&connection);
        let quota = self.0.quotas.of(who.name.as_str());
        Arc::new(Peer { connection, node: who.name.clone(), address, who, usage: Usage::default(), quota })
    }

    /// The member at the other end, by the certificate it showed.
    pub(super) fn member(&self, connection: &quinn::Connection) -> Result<certs::tls::Peer, certs::Error> {
        judge(connection, &self.identity())
    }
}

/// The peer at the other end, as judged by `identity`.
pub(super) fn judge(
    connection: &quinn::Connection,
    identity: &certs::Identity,
) -> Result<certs::tls::Peer, certs::Error> {
    let shown = connection.peer_identity().and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok());
    certs::tls::peer(shown.as_deref().map_or(&[], Vec::as_slice), identity)
}

/// A server name for dialling an address. The other end ignores it; TLS keeps session tickets by
/// it, so each address gets its own. (Which peer was reached is judged by the certificate: `ask`
/// compares the node's name.)
fn ticket_name(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_string().replace('.', "-"),
        IpAddr::V6(ip) => ip.to_string().replace([':', '.'], "-"),
    };
    format!("a{ip}-{}.at.rankmesh", address.port())
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::ServerName;

    use super::*;

    #[test]
    fn every_address_makes_a_server_name() {
        for address in
            ["127.0.0.1:1", "[::1]:7117", "[fe80::1]:65535", "[2001:db8:1111:2222:3333:4444:5555:6666]:65535"]
        {
            let name = ticket_name(address.parse().unwrap());
            assert!(matches!(ServerName::try_from(name.as_str()), Ok(ServerName::DnsName(_))), "{name}");
        }
    }
}
