//! The clocks of the mesh's nodes against this one's, measured with pings.

use std::collections::BTreeMap;
use std::time::Instant;

use futures::StreamExt;
use gossip::Member;
use record::unix_now_ns;
use verdicts::ClockOffset;

use crate::coordinator::Coordinator;

/// Pings per peer; the one with the smallest round trip counts.
const PINGS: u32 = 8;
/// Peers measured at once.
const PEERS_AT_ONCE: usize = 32;

/// The clock offset of every peer that is not known to be dead towards this node; a peer that cannot be measured is left out, and the analysis
/// then uses no times of that node across nodes.
pub async fn clocks(shared: &Coordinator, deadline: Instant) -> BTreeMap<String, ClockOffset> {
    let peers = shared.gossip.members().into_iter().filter(Member::may_live);
    futures::stream::iter(peers)
        .map(|member| async move {
            if member.is_self {
                return Some((member.name, ClockOffset::default()));
            }
            let name = member.name.parse().ok()?;
            match shared.mesh.clock_offset(&name, member.address, PINGS, deadline.into()).await {
                Ok(clock) => {
                    let (offset_ns, bound_ns) = (clock.offset_ns, clock.bound_ns);
                    let drift_bound_ppb = ClockOffset::DRIFT_BOUND_PPB;
                    let at_ns = unix_now_ns();
                    Some((member.name, ClockOffset { offset_ns, bound_ns, at_ns, drift_ppb: 0, drift_bound_ppb }))
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
