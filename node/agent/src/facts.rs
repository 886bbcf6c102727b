//! What this agent gossips about itself, updated while it runs; and the `nodes` listing made from
//! the others' facts.

use std::sync::Arc;
use std::time::Duration;

use gossip::{CellsUse, MemberState, NodeFacts};
use query::Coordinator;
use query::exec::Executor;
use serde_json::{Value, json};
use store::Source;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::config::AgentConfig;
use super::recording::Recording;
use super::{standing, trust};

/// Time between two checks of the facts.
const REFRESH: Duration = Duration::from_secs(1);

/// The facts of this node now.
///
/// # Errors
/// The catalogue cannot be read: a node that cannot answer must not claim tables.
pub(super) fn of(
    config: &AgentConfig,
    executor: &Executor,
    source: &Source,
    recording: &Recording,
) -> anyhow::Result<NodeFacts> {
    let store = source.facts();
    Ok(NodeFacts {
        address: None,
        labels: config.labels.iter().cloned().collect(),
        ranks: recording.ranks(),
        store_span_ns: store.span(),
        store_rows: store.tables.iter().map(|table| table.rows).sum(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        schema_hash: executor.catalog()?.hash(),
        capture: recording.shown(),
        ..NodeFacts::default()
    })
}

/// What members tell beyond their cells, where these are of at most so many nodes.
pub(super) fn in_cells(most: usize) -> CellsUse {
    CellsUse { most, told: &[trust::LIST, trust::ISSUER], jobs: standing::JOBS, trust: trust::LIST }
}

/// Checks the facts every second and gossips what changed; gives the store the list of what could
/// not be probed.
pub(super) async fn keep_true(shared: Arc<Shared>, config: AgentConfig, stop: CancellationToken) {
    let mut tick = tokio::time::interval(REFRESH);
    let mut last = None;
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = stop.cancelled() => return,
        }
        shared.recording.tell_problems();
        match of(&config, &shared.executor, &shared.source, &shared.recording) {
            Ok(facts) if last.as_ref() != Some(&facts) => {
                shared.coordinator.gossip.set_facts(facts.clone()).await;
                last = Some(facts);
            }
            Ok(_) => {}
            Err(error) => tracing::warn!("this node's facts: {error:#}"),
        }
    }
}

/// The list behind `rankmesh nodes --format json`: `{"name","address","state","labels",…}`, this
/// node included. A file that cannot be read is dead, and `capture` says why.
pub fn node_list(coordinator: &Coordinator) -> Vec<Value> {
    coordinator
        .gossip
        .members()
        .into_iter()
        .map(|member| {
            let unreadable = coordinator.way.unreadable(&member.name);
            json!({
                "name": member.name,
                "address": member.address.to_string(),
                "state": if unreadable.is_some() { MemberState::Dead } else { member.state },
                "labels": member.facts.labels,
                "ranks": member.facts.ranks,
                "version": member.facts.version,
                "capture": unreadable.map_or(member.facts.capture.as_str(), |why| why),
                // What changes often is not told to other cells.
                "store_rows": (!member.seat.elsewhere).then_some(member.facts.store_rows),
                "store_span_ns": member.facts.store_span_ns,
                "issuer": member.facts.extra.contains_key(trust::ISSUER),
                "self": member.is_self,
            })
        })
        .collect()
}
