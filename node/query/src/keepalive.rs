//! Signs of life between the coordinator and an intermediate aggregator: how often they are sent,
//! and after what silence the node is lost.

use std::time::Duration;

use super::leaf::LeafRequest;

/// Silence after which a sign of life is sent, at the latest.
const INTERVAL: Duration = Duration::from_millis(500);
/// An intermediate aggregator that sends nothing for this long, or for this share of the question's
/// time, is lost: its leaves can then still be asked directly. It gives a sign of life several
/// times as often.
const SILENCE: Duration = Duration::from_secs(3);
const SILENCE_SHARE: u32 = 4;
const INTERVAL_SHARE: u32 = 20;
const _: () = assert!(SILENCE.as_millis() > 4 * INTERVAL.as_millis() && INTERVAL_SHARE > 4 * SILENCE_SHARE);

/// How long an intermediate aggregator may be silent that is asked now.
pub(super) fn silence_limit(ask: &LeafRequest) -> Duration {
    SILENCE.min(Duration::from_millis(ask.left_ms().into()) / SILENCE_SHARE)
}

/// How often an intermediate aggregator gives a sign of life that was asked now.
pub(super) fn keepalive_interval(ask: &LeafRequest) -> Duration {
    INTERVAL.min(Duration::from_millis(ask.left_ms().into()) / INTERVAL_SHARE)
}
