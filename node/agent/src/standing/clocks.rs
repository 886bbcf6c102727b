//! This host's clock against those of its jobs' reference nodes, kept fresh by a ping a second. All
//! are the steady clocks, so that a wall clock that is stepped changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use digest::{ReferenceClock, reference_id};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::super::Shared;
use record::steady_now_ns;

use mesh::ClockTrack;

/// Time between two pings.
const EVERY: Duration = Duration::from_secs(1);
/// Pings at once when the reference is new.
const AT_FIRST: u32 = 5;
/// A ping that takes longer says nothing.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is known of the clocks of the reference nodes of this host's jobs.
#[derive(Debug, Default)]
pub(super) struct ReferenceClocks {
    /// By node.
    tracks: Mutex<BTreeMap<String, ClockTrack>>,
    /// There is another reference.
    changed: Notify,
}

impl ReferenceClocks {
    /// Say who the references are.
    pub(super) fn follow(&self, references: &BTreeSet<String>) {
        let mut tracks = self.tracks.lock();
        tracks.retain(|reference, _| references.contains(reference));
        for reference in references {
            if !tracks.contains_key(reference) {
                tracks.insert(reference.clone(), ClockTrack::default());
                self.changed.notify_one();
            }
        }
    }

    /// How far the clock of this host, `own`, is ahead of a reference's at a (steady) time, for a
    /// digest; none before it was measured.
    pub(super) fn now(&self, reference: &str, own: &str, own_ns: i64) -> Option<ReferenceClock> {
        let id = reference_id(reference);
        if reference == own {
            return Some(ReferenceClock { reference: id, offset_us: 0, bound_us: 0 });
        }
        let peer = self.tracks.lock().get(reference)?.at(own_ns)?;
        // Rounding to microseconds may lose one on each side.
        let bound_us = u32::try_from(peer.bound_ns / 1_000 + 2).ok()?;
        Some(ReferenceClock { reference: id, offset_us: -(peer.offset_ns / 1_000), bound_us })
    }

    /// Who they are.
    pub(super) fn references(&self) -> BTreeSet<String> {
        self.tracks.lock().keys().cloned().collect()
    }
}

/// Pings the reference nodes until `stop`.
pub(super) async fn keep_fresh(shared: std::sync::Arc<Shared>, stop: CancellationToken) {
    let clocks = &shared.standing.clocks;
    let own = shared.identity.node().to_string();
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut measured: BTreeSet<String> = BTreeSet::new();
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = clocks.changed.notified() => {}
            () = stop.cancelled() => return,
        }
        let references = clocks.references();
        measured.retain(|reference| references.contains(reference));
        let pings = references.iter().filter(|reference| **reference != own).map(|reference| {
            let pings = if measured.contains(reference) { 1 } else { AT_FIRST };
            ping(&shared, reference, pings)
        });
        measured.extend(futures::future::join_all(pings).await.into_iter().flatten());
    }
}

/// Pings one; its name where it answered.
async fn ping(shared: &Shared, reference: &str, pings: u32) -> Option<String> {
    let members = shared.coordinator.gossip.list();
    let member = members.iter().find(|member| member.name == reference)?;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    match shared.mesh.steady_clock_offset(&reference.parse().ok()?, member.address, pings, deadline).await {
        Ok(clock) => {
            let mut tracks = shared.standing.clocks.tracks.lock();
            tracks.get_mut(reference)?.add(steady_now_ns(), clock.offset_ns, clock.bound_ns);
            Some(reference.to_owned())
        }
        Err(error) => {
            tracing::debug!("clock of {reference}: {error}");
            None
        }
    }
}
