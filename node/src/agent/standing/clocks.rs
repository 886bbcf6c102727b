//! This host's clock against the reference node's, kept fresh by a ping a second. Both are the
//! steady clocks, so that a wall clock that is stepped changes nothing.

use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::super::Shared;
use record::steady_now_ns;

use mesh::ClockTrack;
use verdicts::digest::{ReferenceClock, reference_id};

/// Time between two pings.
const EVERY: Duration = Duration::from_secs(1);
/// Pings at once when the reference is new.
const AT_FIRST: u32 = 5;
/// A ping that takes longer says nothing.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is known of the reference node's clock.
#[derive(Debug, Default)]
pub(super) struct ReferenceClocks {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The node that is the reference now; none where nobody speaks.
    reference: Option<String>,
    is_self: bool,
    track: ClockTrack,
}

impl ReferenceClocks {
    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Say who the reference is.
    pub(super) fn follow(&self, reference: Option<&str>, own: &str) {
        let mut state = self.state();
        if state.reference.as_deref() != reference {
            *state = State {
                reference: reference.map(str::to_owned),
                is_self: reference == Some(own),
                track: ClockTrack::default(),
            };
        }
    }

    /// How far this host's clock is ahead of the reference's at a (steady) time, for a digest; none
    /// before it was measured.
    pub(super) fn now(&self, own_ns: i64) -> Option<ReferenceClock> {
        let state = self.state();
        let reference = reference_id(state.reference.as_ref()?);
        if state.is_self {
            return Some(ReferenceClock { reference, offset_us: 0, bound_us: 0 });
        }
        let peer = state.track.at(own_ns)?;
        // Rounding to microseconds may lose one on each side.
        let bound_us = u32::try_from(peer.bound_ns / 1_000 + 2).ok()?;
        Some(ReferenceClock { reference, offset_us: -(peer.offset_ns / 1_000), bound_us })
    }
}

/// Pings the reference node until `stop`.
pub(super) async fn keep_fresh(shared: std::sync::Arc<Shared>, stop: CancellationToken) {
    let clocks = &shared.standing.clocks;
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut measured: Option<String> = None;
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = shared.standing.new_reference.notified() => {}
            () = stop.cancelled() => return,
        }
        let reference = {
            let state = clocks.state();
            state.reference.clone().filter(|_| !state.is_self)
        };
        let Some(reference) = reference else { continue };
        let members = shared.coordinator.gossip.list();
        let Some(member) = members.iter().find(|member| member.name == reference) else { continue };
        let Ok(name) = reference.parse() else { continue };
        let pings = if measured.as_ref() == Some(&reference) { 1 } else { AT_FIRST };
        let deadline = tokio::time::Instant::now() + PATIENCE;
        match shared.mesh.steady_clock_offset(&name, member.address, pings, deadline).await {
            Ok(clock) => {
                let mut state = clocks.state();
                if state.reference.as_ref() == Some(&reference) {
                    state.track.add(steady_now_ns(), clock.offset_ns, clock.bound_ns);
                }
                measured = Some(reference);
            }
            Err(error) => tracing::debug!("clock of {reference}: {error}"),
        }
    }
}
