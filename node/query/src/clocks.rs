//! The clocks of the nodes: of a mesh against this one's, measured with pings; of files against one
//! of them, as their agents measured them (`stored_clocks`).

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use certs::NodeName;
use futures::StreamExt;
use gossip::Member;
use query_planner::{Clocks, NodeClock};
use record::unix_now_ns;

use crate::coordinator::Coordinator;
use crate::exec::Executor;
use crate::stored_clocks::{self, Measured};
use crate::way::{Files, Way};

/// Pings per peer; the one with the smallest round trip counts.
const PINGS: u32 = 8;
/// Peers measured at once.
const PEERS_AT_ONCE: usize = 32;
/// What is assumed of a clock whose drift was not measured, parts in a billion: quartz oscillators
/// of servers stay within 50 parts in a million.
const DRIFT_BOUND_PPB: i64 = 50_000;

/// The clock offset of every peer that is not known to be dead towards this node; a peer that
/// cannot be measured is left out, and the analysis then uses no times of that node across nodes.
///
/// Nodes that are files cannot be measured: theirs are those that their agents kept, within `span`
/// (Unix nanoseconds; all that the files hold), towards one of them.
pub async fn clocks(shared: &Coordinator, span: Option<(i64, i64)>, deadline: Instant) -> Clocks {
    let mesh = match &shared.way {
        Way::Mesh { mesh, .. } => mesh,
        Way::Files(files) => {
            let (files, span) = (Arc::clone(files), span.or_else(|| crate::files::span_ns(shared)));
            let kept = tokio::task::spawn_blocking(move || kept(&files, span.unwrap_or_default()));
            return tokio::time::timeout_at(deadline.into(), kept).await.ok().and_then(Result::ok).unwrap_or_default();
        }
    };
    let peers = shared.gossip.members().into_iter().filter(Member::may_live);
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

/// The clocks of files, from what their agents measured of each other.
fn kept(files: &Files, (since_ns, until_ns): (i64, i64)) -> Clocks {
    let read = |range: &dyn Fn(&str) -> Option<Range<i64>>| -> Measured {
        let of = |(name, executor): (&NodeName, &Arc<Executor>)| {
            let name = name.to_string();
            let rows = executor.clock_offsets(range(&name).as_ref()).unwrap_or_else(|error| {
                tracing::debug!("clocks that {name} measured: {error}");
                Vec::new()
            });
            (name, rows)
        };
        files.executors.iter().map(of).collect()
    };
    let ranges = stored_clocks::ranges(&read(&|_| None), since_ns, until_ns);
    stored_clocks::clocks(
        &read(&|name| Some(ranges.get(name).cloned().unwrap_or(since_ns..until_ns))),
        since_ns,
        until_ns,
    )
}
