//! Decides which open connections are kept. One that nobody uses is closed after a while, so that a
//! node in a large mesh does not keep a connection to each member that it, or a round of gossip,
//! ever called. One that was taken out of use (`pool`) is closed as soon as what runs over it has
//! ended.
//!
//! Either end may close an idle connection, also just when the other begins to use it. A request
//! over a connection that was open before is then sent again on a fresh one (`ask`), and a lost
//! gossip message costs a round.

use std::sync::Arc;
use std::time::Duration;

use quinn::VarInt;

use super::pool::Peer;
use super::{Mesh, code, count};

/// What the connections of a node are allowed.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionPolicy {
    /// More than this are not kept in addition to those in use and those just used.
    pub kept: usize,
    /// Beyond `kept`, a connection unused for this long may be closed, those unused for longest
    /// first.
    pub idle_many: Duration,
    /// A connection unused for this long is closed in any case.
    pub idle: Duration,
    /// Time between two checks.
    pub every: Duration,
}

impl Default for ConnectionPolicy {
    fn default() -> Self {
        Self {
            kept: 128,
            idle_many: Duration::from_secs(15),
            idle: Duration::from_secs(600),
            every: Duration::from_secs(5),
        }
    }
}

/// A use of a connection, for as long as it lasts.
pub(super) struct ConnectionUse(Arc<Peer>);

impl ConnectionUse {
    pub(super) fn of(peer: &Arc<Peer>) -> Self {
        peer.usage.begin();
        Self(Arc::clone(peer))
    }

    pub(super) fn peer(&self) -> &Arc<Peer> {
        &self.0
    }
}

impl Drop for ConnectionUse {
    fn drop(&mut self) {
        self.0.usage.touch();
        self.0.usage.end();
    }
}

/// Closes idle connections until the endpoint closes.
pub(super) async fn sweep(mesh: Mesh) {
    loop {
        let every = mesh.connection_policy().every;
        tokio::select! {
            () = tokio::time::sleep(every) => mesh.close_idle(),
            () = mesh.0.closing.cancelled() => return,
        }
    }
}

impl Mesh {
    pub(super) fn close_idle(&self) {
        let policy = self.connection_policy();
        let open = self.0.connections.all();
        let mut idle: Vec<(Duration, Arc<Peer>)> =
            open.iter().filter_map(|peer| Some((peer.usage.idle()?, Arc::clone(peer)))).collect();
        idle.sort_by_key(|(idle, _)| std::cmp::Reverse(*idle));
        let mut left = open.len();
        for (unused, peer) in idle {
            let out_of_use = !self.0.pool.uses(&peer);
            let too_many = left > policy.kept;
            if unused < policy.idle && !((out_of_use || too_many) && unused >= policy.idle_many) {
                continue;
            }
            left -= 1;
            self.close_unused(&peer);
        }
    }

    /// Closes that connection of a member which was used least recently and is not in use, to make
    /// room for another; false when all are in use.
    pub(super) fn make_room(&self, name: &certs::NodeName) -> bool {
        let open = self.0.connections.all();
        let idle = open.iter().filter(|peer| peer.node == *name).filter_map(|peer| Some((peer.usage.idle()?, peer)));
        let Some((_, peer)) = idle.max_by_key(|(idle, peer)| (!self.0.pool.uses(peer), *idle)) else { return false };
        self.close_unused(peer);
        true
    }

    fn close_unused(&self, peer: &Peer) {
        count(&self.0.counters.closed_idle);
        self.0.pool.evict(peer);
        self.0.connections.remove(peer);
        peer.connection.close(VarInt::from_u32(code::SHUTDOWN), b"nothing went over this connection");
    }
}
