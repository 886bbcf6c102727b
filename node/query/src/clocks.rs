//! The clocks of the mesh's nodes against this one's, measured with pings.

use std::time::Instant;

use futures::StreamExt;
use gossip::Member;
use query_planner::{Clocks, NodeClock};
use record::unix_now_ns;

use crate::coordinator::Coordinator;

/// Pings per peer; the one with the smallest round trip counts.
const PINGS: u32 = 8;
/// Peers measured at once.
const PEERS_AT_ONCE: usize = 32;
/// What is assumed of a clock whose drift was not measured, parts in a billion: quartz oscillators
/// of servers stay within 50 parts in a million.
const DRIFT_BOUND_PPB: i64 = 50_000;

/// The clock offset of every peer that is not known to be dead towards this node; a peer that
/// cannot be measured is left out, and the analysis then uses no times of that node across nodes.
pub async fn clocks(shared: &Coordinator, deadline: Instant) -> Clocks {
    let peers = shared.gossip.members().into_iter().filter(Member::may_live);
    let Some(mesh) = shared.way.mesh() else {
        // Nobody can be measured; one of them is the clock that times are on.
        return peers.take(1).map(|member| (member.name, NodeClock::default())).collect();
    };
    futures::stream::iter(peers)
        .map(|member| async move {
            if member.is_self {
                return Some((member.name, NodeClock::default()));
            }
            let name = member.name.parse().ok()?;
            match mesh.clock_offset(&name, member.address, PINGS, deadline.into()).await {
                Ok(clock) => {
                    let (offset_ns, bound_ns) = (clock.offset_ns, clock.bound_ns);
                    let at_ns = unix_now_ns();
                    Some((
                        member.name,
                        NodeClock { offset_ns, bound_ns, at_ns, drift_ppb: 0, drift_bound_ppb: DRIFT_BOUND_PPB },
                    ))
                }
                Err(error) => {
                    tracing::debug!("clock of {}: {error}", member.name);
                    None
                }
            }
        })
        .buffer_unordered(PEERS_AT_ONCE)
        .filter_map(|measured| async move { measured })
        .collect()
        .await
}
