//! Signs of life between the coordinator and an inner node: how often they are sent, and after what silence the node is lost.

use std::time::Duration;

use super::leaf::LeafAsk;

/// Silence after which a sign of life is sent, at the latest.
const PULSE: Duration = Duration::from_millis(500);
/// An inner node that says nothing for this long, or for this share of the question's time, is lost: its leaves can then still be
/// asked directly. It gives a sign of life several times as often.
const SILENCE: Duration = Duration::from_secs(3);
const SILENCE_SHARE: u32 = 4;
const PULSE_SHARE: u32 = 20;
const _: () = assert!(SILENCE.as_millis() > 4 * PULSE.as_millis() && PULSE_SHARE > 4 * SILENCE_SHARE);

/// How long an inner node may be silent that is asked now.
pub(super) fn silence(ask: &LeafAsk) -> Duration {
    SILENCE.min(Duration::from_millis(ask.left_ms().into()) / SILENCE_SHARE)
}

/// How often an inner node gives a sign of life that was asked now.
pub(super) fn pulse(ask: &LeafAsk) -> Duration {
    PULSE.min(Duration::from_millis(ask.left_ms().into()) / PULSE_SHARE)
}
