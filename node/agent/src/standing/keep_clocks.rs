//! Keeps in the store how far the wall clocks of its jobs' reference nodes are from this host's,
//! for verdicts from the stores when no agent runs any more. Stored times are of wall clocks, so
//! steps of one matter here: a ping that contradicts those before begins anew, and is kept at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mesh::ClockTrack;
use record::unix_now_ns;
use store::{ClockOffsetSeen, Source};
use tokio_util::sync::CancellationToken;

use super::super::Shared;

/// How often is looked who the references are.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two measurements, and between two rows about a peer where nothing changes.
const MEASURED_EVERY_NS: i64 = 5_000_000_000;
const KEPT_EVERY_NS: i64 = 60_000_000_000;
/// Pings of a measurement.
const PINGS: u32 = 3;
/// A measurement that takes longer says nothing.
const PATIENCE: Duration = Duration::from_secs(2);

/// One peer's wall clock against this host's.
#[derive(Debug, Default)]
struct Peer {
    track: ClockTrack,
    measured_ns: Option<i64>,
    kept: Option<Kept>,
}

/// What was kept last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kept {
    at_ns: i64,
    offset_ns: i64,
    bound_ns: i64,
    drift_ppb: i64,
    drift_bound_ppb: i64,
}

impl Kept {
    /// How wrong it may be a while later.
    fn bound_after(&self, ns: i64) -> i64 {
        let drifted = i128::from(self.drift_bound_ppb) * i128::from(ns.max(0)) / 1_000_000_000;
        self.bound_ns.saturating_add(i64::try_from(drifted).unwrap_or(i64::MAX))
    }
}

impl Peer {
    fn is_due(&self, now_ns: i64) -> bool {
        self.measured_ns.is_none_or(|at_ns| now_ns.saturating_sub(at_ns).saturating_abs() >= MEASURED_EVERY_NS)
    }

    /// Takes a measurement in; what is to be kept: once a minute, and where a clock was stepped, or
    /// is known twice as well as what was kept says.
    fn take(&mut self, at_ns: i64, offset_ns: i64, bound_ns: i64) -> Option<Kept> {
        let back = self.measured_ns.is_some_and(|before_ns| at_ns <= before_ns);
        let expected = self.track.at(at_ns);
        let stepped = back
            || expected.is_some_and(|expected| {
                let apart = expected.offset_ns.saturating_sub(offset_ns).saturating_abs();
                apart > expected.bound_ns.saturating_add(bound_ns)
            });
        self.measured_ns = Some(at_ns);
        self.track.add(at_ns, offset_ns, bound_ns);
        let found = self.track.at(at_ns)?;
        let now = Kept {
            at_ns,
            offset_ns: found.offset_ns,
            bound_ns: found.bound_ns,
            drift_ppb: found.drift_ppb,
            drift_bound_ppb: found.drift_bound_ppb,
        };
        let due = self.kept.is_none_or(|kept| {
            let age_ns = at_ns.saturating_sub(kept.at_ns);
            stepped
                || age_ns >= KEPT_EVERY_NS
                || now.bound_after(KEPT_EVERY_NS) <= kept.bound_after(age_ns.saturating_add(KEPT_EVERY_NS)) / 2
        });
        due.then(|| *self.kept.insert(now))
    }
}

/// Measures and keeps until `stop`. An agent that serves a file keeps nothing.
pub(super) async fn keep(shared: Arc<Shared>, stop: CancellationToken) {
    let Source::Store(store) = shared.source.as_ref() else { return };
    let own = shared.identity.node().to_string();
    let mut peers: BTreeMap<String, Peer> = BTreeMap::new();
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = stop.cancelled() => return,
        }
        let references = references(&shared, &own);
        peers.retain(|peer, _| references.contains(peer));
        for reference in references {
            let peer = peers.entry(reference.clone()).or_default();
            if !peer.is_due(unix_now_ns()) {
                continue;
            }
            // Of itself the reference keeps that it is the one: so its name is known, too.
            let measured = if reference == own { Some((0, 0)) } else { measure(&shared, &reference).await };
            let at_ns = unix_now_ns();
            let kept = match measured {
                Some((offset_ns, bound_ns)) => peer.take(at_ns, offset_ns, bound_ns),
                None => {
                    peer.measured_ns = Some(at_ns);
                    None
                }
            };
            if let Some(Kept { at_ns, offset_ns, bound_ns, drift_ppb, drift_bound_ppb }) = kept {
                store.ingest().clock_offset(ClockOffsetSeen {
                    ts_ns: at_ns,
                    measured_by: own.clone(),
                    peer: reference,
                    offset_ns,
                    bound_ns,
                    drift_ppb,
                    drift_bound_ppb,
                });
            }
        }
    }
}

/// The reference nodes of this host's jobs, itself included where it is one.
fn references(shared: &Shared, own: &str) -> BTreeSet<String> {
    let standing = &shared.standing;
    let roster = standing.roster();
    let mut references = standing.clocks.references();
    if standing.boards.jobs().into_iter().any(|job| roster.reference(job) == Some(own)) {
        references.insert(own.to_owned());
    }
    references
}

/// Offset and bound of a peer's wall clock; none where it does not answer.
async fn measure(shared: &Shared, peer: &str) -> Option<(i64, i64)> {
    let members = shared.coordinator.gossip.list();
    let member = members.iter().find(|member| member.name == peer)?;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    match shared.mesh.clock_offset(&peer.parse().ok()?, member.address, PINGS, deadline).await {
        Ok(clock) => Some((clock.offset_ns, clock.bound_ns)),
        Err(error) => {
            tracing::debug!("wall clock of {peer}: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;
    const START: i64 = 1_700_000_000 * S;

    #[test]
    fn few_rows_are_kept_of_a_quiet_clock_and_one_of_each_step() {
        let mut peer = Peer::default();
        let mut kept = Vec::new();
        for i in 0..720 {
            // An hour: measured within 100 us each 5 s, 20 ppm apart, stepped by a second after
            // half.
            let step_ns = if i < 360 { 0 } else { S };
            let offset_ns = 7 * S + step_ns + i * 5 * 20_000 + if i % 2 == 0 { 60_000 } else { -60_000 };
            let at_ns = START + i * 5 * S;
            assert!(peer.is_due(at_ns));
            kept.extend(peer.take(at_ns, offset_ns, 100_000).map(|kept| (i, kept)));
        }
        assert!((60..=80).contains(&kept.len()), "{}: {kept:?}", kept.len());
        assert!(kept.iter().any(|(i, kept)| *i == 360 && (kept.offset_ns - 8 * S).abs() < S / 10), "{kept:?}");
        assert!(!peer.is_due(START + 720 * 5 * S - 4 * S - 1));
        for (i, kept) in &kept {
            let truly_ns = 7 * S + if *i < 360 { 0 } else { S } + i * 5 * 20_000;
            assert!((kept.offset_ns - truly_ns).abs() <= kept.bound_ns, "{i}: {kept:?} is {truly_ns}");
        }
    }

    #[test]
    fn what_is_soon_known_much_better_is_kept_before_the_minute_is_over() {
        let mut peer = Peer::default();
        let first = peer.take(START, 1_000, 50_000).expect("the first");
        let better = (1..12).find_map(|i| peer.take(START + i * 5 * S, 1_000, 50_000)).expect("before the minute");
        assert!(better.bound_after(30 * S) * 2 <= first.bound_after(90 * S), "{first:?} {better:?}");
    }
}
