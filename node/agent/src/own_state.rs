//! State of this agent, for `rankmesh top` and the like: what it uses, what it gossips, what it has
//! lost.

use model::watch::AgentNow;
use node_bpf::ProcessUse;
use query_planner::memory;
use store::Source;

use super::Shared;

/// The state now; counts are since the agent's start.
pub(super) fn own_state(shared: &Shared) -> AgentNow {
    let used = ProcessUse::of_self();
    let (mesh, cost) = (shared.mesh.stats(), shared.recording.cost());
    let store = match shared.source.as_ref() {
        Source::Store(store) => Some(store.ingest()),
        Source::Served(_) | Source::External(_) => None,
    };
    let health = store.as_ref().map(store::Ingest::health);
    let rounded = |value: Option<f64>| value.map(|value| value as u64);
    AgentNow {
        cpu_ns: rounded(used.cpu_ns),
        memory_bytes: rounded(used.rss_bytes),
        threads: rounded(used.threads),
        gossip_sent: mesh.gossip_sent,
        gossip_sent_bytes: mesh.gossip_sent_bytes,
        gossip_received: mesh.gossip_received,
        gossip_received_bytes: mesh.gossip_received_bytes,
        gossip_dropped: mesh.gossip_dropped,
        question_memory_bytes: memory::taken_by_all(),
        question_memory_most_bytes: memory::bound_of_all(),
        served: mesh.served,
        stored: health.as_ref().map(|health| health.stored),
        store_lost: health.as_ref().map(|health| health.lost),
        store_queued: health.as_ref().map(|health| health.queued as u64),
        store_bytes: store.map(|store| store.file_bytes()).map(|(file, log)| file + log),
        capture_lost: shared.recording.lost_by_probes(),
        recording_ppm: cost.map(|cost| cost.share_ppm),
        recorded_call_ns: cost.map(|cost| cost.call_ns),
        services: shared.recording.served(),
        grown_is_known: shared.recording.requests_served().is_grown_known(),
    }
}
