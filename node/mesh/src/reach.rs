//! Whether a peer is reached, and what the path to it is like.

use std::collections::HashSet;
use std::net::SocketAddr;

use model::health::{CallerSeen, PathSeen};
use tokio::time::Instant;

use super::Mesh;
use super::error::AskError;
use super::pool::Purpose;

/// Pings for one measurement of a path: enough for path MTU discovery to have a first result.
const PINGS: u32 = 8;

impl Mesh {
    /// Pings `peer` and reads what QUIC measured of the path to it.
    ///
    /// # Errors
    /// Not one ping is answered before `deadline`.
    pub async fn reach(
        &self,
        peer: &certs::NodeName,
        address: SocketAddr,
        deadline: Instant,
    ) -> Result<PathSeen, AskError> {
        let clock = self.clock_offset(peer, address, PINGS, deadline).await?;
        let connection = self.connect(address, Purpose::Question, deadline).await?.peer.connection.clone();
        let path = connection.stats().path;
        Ok(PathSeen {
            offset_ns: clock.offset_ns,
            bound_ns: clock.bound_ns,
            rtt_ns: clock.rtt_ns,
            mtu: path.current_mtu,
            sent: path.sent_packets,
            lost: path.lost_packets,
            black_holes: path.black_holes_detected,
        })
    }

    /// Addresses from which handshakes were started, the last first. The age of one whose
    /// connection is open is zero.
    #[must_use]
    pub fn callers(&self) -> Vec<CallerSeen> {
        let connected: HashSet<SocketAddr> = self.0.connections.all().iter().map(|peer| peer.address).collect();
        let mut callers = self.0.callers.list();
        for caller in callers.iter_mut().filter(|caller| caller.completed > 0 && connected.contains(&caller.address)) {
            caller.last_ago_ms = 0;
        }
        callers.sort_by_key(|caller| caller.last_ago_ms);
        callers
    }
}
