//! The open connections, in use or not: each is judged anew when what this node trusts changes, and
//! all are replaced when its own certificate does. `pool` decides which of them a question goes
//! over.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use quinn::VarInt;
use tokio::time::Instant;

use super::pool::{Peer, Purpose, judge};
use super::{Mesh, code, count};

/// A connection that was replaced is closed after this: no question lasts longer.
const LINGER: Duration = Duration::from_secs(11 * 60);

/// The dials that replace connections are spread over this: a mesh whose certificates were renewed
/// together does not dial all at once.
const REDIAL_SPREAD: Duration = Duration::from_secs(5);

/// As few as this are dialled at once.
const SPREAD_ABOVE: usize = 8;

/// How long a peer may take to be dialled anew.
const REDIAL: Duration = Duration::from_secs(30);

/// Every connection to a member, by quinn's id of it.
#[derive(Default)]
pub(super) struct Connections(Mutex<HashMap<usize, Weak<Peer>>>);

impl Connections {
    fn add(&self, peer: &Arc<Peer>) {
        self.lock().insert(peer.connection.stable_id(), Arc::downgrade(peer));
    }

    pub(super) fn remove(&self, peer: &Peer) {
        self.lock().remove(&peer.connection.stable_id());
    }

    /// The number of a member's connections.
    pub(super) fn of(&self, name: &certs::NodeName) -> usize {
        self.all().iter().filter(|peer| peer.node == *name).count()
    }

    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn all(&self) -> Vec<Arc<Peer>> {
        self.lock().values().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, HashMap<usize, Weak<Peer>>> {
        self.0.lock()
    }
}

impl Mesh {
    /// Notes a connection. What this node trusts may have changed since its handshake.
    pub(super) fn connected(&self, peer: &Arc<Peer>) {
        self.0.connections.add(peer);
        if let Err(error) = judge(&peer.connection, &self.identity()) {
            self.shut_out(peer, &error.to_string());
        }
    }

    pub(super) fn shut_out(&self, peer: &Peer, reason: &str) {
        count(&self.0.counters.shut_out);
        tracing::warn!(name = %peer.node, address = %peer.address, reason, "closed a connection");
        self.0.pool.evict(peer);
        peer.connection.close(VarInt::from_u32(code::NOT_A_MEMBER), reason.as_bytes());
    }

    /// Closes the connections to peers that `identity` does not accept.
    pub(super) fn judge_anew(&self, identity: &certs::Identity) {
        for peer in self.0.connections.all() {
            if let Err(error) = judge(&peer.connection, identity) {
                self.shut_out(&peer, &error.to_string());
            }
        }
    }

    /// Replaces the connections on which our former certificate was shown. The peers see the new
    /// one when we dial them, and use that connection from then on.
    pub(super) fn redial_all(&self, before: &certs::Identity) {
        let former = self.0.connections.all();
        let left = before.not_after().duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
        let linger = LINGER.min(left / 2);
        let mut addresses = HashSet::new();
        for peer in &former {
            if peer.who.role == certs::Role::Node && addresses.insert(peer.address) {
                self.0.pool.evict(peer);
            }
        }
        let few = addresses.len() <= SPREAD_ABOVE;
        for address in addresses {
            let mesh = self.clone();
            tokio::spawn(async move {
                if !few {
                    tokio::time::sleep(REDIAL_SPREAD.mul_f64(rand::random_range(0.0..1.0))).await;
                }
                // A peer that cannot be reached now is dialled when it is needed.
                let _ = mesh.connect(address, Purpose::Gossip, Instant::now() + REDIAL).await;
            });
        }
        let closing = self.0.closing.clone();
        let mesh = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(linger) => {}
                () = closing.cancelled() => return,
            }
            for peer in former {
                mesh.0.pool.evict(&peer);
                peer.connection.close(VarInt::from_u32(code::SHUTDOWN), b"the certificate was renewed");
            }
        });
    }
}
