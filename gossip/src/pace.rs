//! How often a node may begin an exchange: as often as its allowance of digest bytes lets it.
//!
//! A round's exchanges carry the digest of all nodes, so at the same pace a node's traffic would
//! grow with the mesh. The pace is therefore measured in bytes: in a small mesh every exchange that
//! the protocol begins goes out, in a large one only as many as fit the allowance. Answers are not
//! limited; on average a node answers as many exchanges as it begins.

use std::time::Duration;

use tokio::time::Instant;

/// An allowance that refills steadily and can be saved up for a short while.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_per_s: f64,
    /// Bytes saved up; at most [`Pace::most`].
    saved_bytes: f64,
    refilled: Instant,
    /// Size of the last digest that went out.
    digest_bytes: usize,
    round: Duration,
}

impl Pace {
    /// An allowance of `bytes_per_s`, for a protocol that begins exchanges every `round`.
    pub(crate) fn new(bytes_per_s: u32, round: Duration) -> Self {
        let bytes_per_s = f64::from(bytes_per_s);
        // Full at first: a node that joins sends at once.
        Self { bytes_per_s, saved_bytes: bytes_per_s, refilled: Instant::now(), digest_bytes: 0, round }
    }

    /// Whether an exchange may begin now: whether a digest like the last fits.
    pub(crate) fn may_begin(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.refilled);
        self.refilled = now;
        self.saved_bytes = (self.saved_bytes + passed.as_secs_f64() * self.bytes_per_s).min(self.most());
        self.saved_bytes >= self.digest_bytes as f64
    }

    /// An exchange began with a digest of so many bytes.
    pub(crate) fn exchange_started(&mut self, bytes: usize) {
        self.digest_bytes = bytes;
        self.saved_bytes -= bytes as f64;
    }

    /// The allowance of one round, plus that of one more round or one digest, whichever is larger:
    /// so nothing is lost between two digests.
    fn most(&self) -> f64 {
        let of_round = self.round.as_secs_f64() * self.bytes_per_s;
        of_round + of_round.max(self.digest_bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exchanges that begin in a minute of rounds of three, with digests of so many bytes.
    fn exchanges_in_a_minute(digest_bytes: usize) -> usize {
        let round = Duration::from_millis(500);
        let mut pace = Pace::new(40_000, round);
        let (mut started, mut now) = (0, pace.refilled);
        for _ in 0..120 {
            now += round;
            for _ in 0..3 {
                if pace.may_begin(now) {
                    pace.exchange_started(digest_bytes);
                    started += 1;
                }
            }
        }
        started
    }

    #[test]
    fn a_small_mesh_is_not_limited_and_a_large_one_keeps_to_its_allowance() {
        assert_eq!(exchanges_in_a_minute(500), 360);
        assert_eq!(exchanges_in_a_minute(6_000), 360);
        let large = exchanges_in_a_minute(50_000);
        assert!((46..=50).contains(&large), "{large} digests of 50 KB in a minute at 40 KB/s");
    }
}
