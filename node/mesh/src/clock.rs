//! How far a peer's clock is from ours, measured by pings.

use std::net::SocketAddr;

use model::wire::{Request, Response};
use tokio::time::Instant;

use super::Mesh;
use super::error::AskError;
use record::unix_now_ns;

/// A peer's clock against ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOffset {
    /// Peer's clock minus ours, nanoseconds: subtract it from a peer's timestamp to get our time.
    pub offset_ns: i64,
    /// The true offset lies within this of `offset_ns`, however asymmetric the way was.
    pub bound_ns: i64,
    /// Round trip of the sample used, without the peer's own processing, nanoseconds.
    pub rtt_ns: i64,
    /// Pings that were answered.
    pub samples: u32,
}

/// One ping: sent at `sent`, received by the peer at `peer_received`, answered at `peer_sent`, back
/// at `received`; each by the clock of where it happened, Unix nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Sample {
    sent: i64,
    peer_received: i64,
    peer_sent: i64,
    received: i64,
}

impl Sample {
    /// Offset and delay after RFC 5905, section 8: offset = ((T2 - T1) + (T3 - T4)) / 2, delay =
    /// (T4 - T1) - (T3 - T2). With both ways at least zero long, the true offset is within delay /
    /// 2 of the offset.
    fn offset(self) -> ClockOffset {
        let wide = i128::from;
        let there = wide(self.peer_received) - wide(self.sent);
        let back = wide(self.peer_sent) - wide(self.received);
        let delay = (wide(self.received) - wide(self.sent)) - (wide(self.peer_sent) - wide(self.peer_received));
        // A peer whose clock was stepped between its two readings can make the delay negative.
        let delay = delay.max(0);
        let narrow = |value: i128| i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX });
        ClockOffset {
            offset_ns: narrow((there + back) / 2),
            // Rounded up; halving the offset may lose half a nanosecond too.
            bound_ns: narrow(delay / 2 + 1),
            rtt_ns: narrow(delay),
            samples: 1,
        }
    }
}

impl Mesh {
    /// Measures the wall clock of `peer` with up to `samples` pings, one after the other, and keeps
    /// the one with the shortest round trip: it was delayed least on the way, so its bound is the
    /// narrowest.
    ///
    /// # Errors
    /// When not one ping is answered before `deadline`.
    pub async fn clock_offset(
        &self,
        peer: &certs::NodeName,
        address: SocketAddr,
        samples: u32,
        deadline: Instant,
    ) -> Result<ClockOffset, AskError> {
        self.measure(peer, address, (&Request::Ping, unix_now_ns), samples, deadline).await
    }

    /// The same for those clocks of both hosts that are never stepped. An agent without such a
    /// clock is asked for its wall clock.
    ///
    /// # Errors
    /// As [`Self::clock_offset`].
    pub async fn steady_clock_offset(
        &self,
        peer: &certs::NodeName,
        address: SocketAddr,
        samples: u32,
        deadline: Instant,
    ) -> Result<ClockOffset, AskError> {
        let now_ns = record::steady_now_ns;
        match self.measure(peer, address, (&Request::SteadyPing, now_ns), samples, deadline).await {
            Err(AskError::Refused(_)) => self.measure(peer, address, (&Request::Ping, now_ns), samples, deadline).await,
            measured => measured,
        }
    }

    async fn measure(
        &self,
        peer: &certs::NodeName,
        address: SocketAddr,
        clock: (&Request, fn() -> i64),
        samples: u32,
        deadline: Instant,
    ) -> Result<ClockOffset, AskError> {
        let mut best: Option<ClockOffset> = None;
        let mut answered = 0;
        for _ in 0..samples.max(1) {
            match self.ping(peer, address, clock, deadline).await {
                Ok(sample) => {
                    answered += 1;
                    let offset = sample.offset();
                    if best.is_none_or(|b| offset.rtt_ns < b.rtt_ns) {
                        best = Some(offset);
                    }
                }
                Err(error) if best.is_none() => return Err(error),
                Err(_) => break,
            }
        }
        best.map(|best| ClockOffset { samples: answered, ..best })
            .ok_or_else(|| AskError::Protocol("no ping was sent".into()))
    }

    async fn ping(
        &self,
        peer: &certs::NodeName,
        address: SocketAddr,
        (request, now_ns): (&Request, fn() -> i64),
        deadline: Instant,
    ) -> Result<Sample, AskError> {
        let (sent, started) = (now_ns(), Instant::now());
        let mut answer = self.ask(peer, address, request.clone(), deadline).await?;
        match answer.next().await? {
            Some(Response::Pong { recv_unix_ns, sent_unix_ns }) => {
                // By the monotonic clock, so that a step of ours meanwhile does not count.
                let took = i64::try_from(started.elapsed().as_nanos()).unwrap_or(i64::MAX);
                Ok(Sample {
                    sent,
                    peer_received: recv_unix_ns,
                    peer_sent: sent_unix_ns,
                    received: sent.saturating_add(took),
                })
            }
            Some(Response::Unsupported(why)) => Err(AskError::Refused(why)),
            other => Err(AskError::Protocol(format!("a ping was answered by {other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_true_offset_is_within_the_bound(
            start in 0i64..4_000_000_000_000_000_000,
            offset in -1_000_000_000_000i64..1_000_000_000_000,
            there in 0i64..1_000_000_000,
            work in 0i64..1_000_000_000,
            back in 0i64..1_000_000_000,
        ) {
            let arrived = start + there;
            let sample = Sample {
                sent: start,
                peer_received: arrived + offset,
                peer_sent: arrived + work + offset,
                received: arrived + work + back,
            };
            let measured = sample.offset();
            prop_assert_eq!(measured.rtt_ns, there + back);
            prop_assert!((measured.offset_ns - offset).abs() <= measured.bound_ns, "{:?}", measured);
        }

        #[test]
        fn absurd_clocks_do_not_overflow(a in any::<i64>(), b in any::<i64>(), c in any::<i64>(), d in any::<i64>()) {
            let measured = Sample { sent: a, peer_received: b, peer_sent: c, received: d }.offset();
            prop_assert!(measured.bound_ns >= 0 && measured.rtt_ns >= 0);
        }
    }
}
