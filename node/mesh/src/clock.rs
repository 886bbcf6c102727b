//! How far a peer's clock is from ours, measured by pings.

use std::net::SocketAddr;
use std::time::Duration;

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

/// Longest that pings are sent in addition.
const MOST_OF_PINGS: Duration = Duration::from_millis(200);
/// How fast two hosts' clocks drift apart, parts in a million: 50 for each.
const DRIFT_PPM: u128 = 100;

/// Whether only one ping was fast.
fn is_disturbed(offsets: &[ClockOffset]) -> bool {
    let mut fastest: Vec<i64> = offsets.iter().map(|offset| offset.rtt_ns).collect();
    fastest.sort_unstable();
    matches!(fastest[..], [first, second, ..] if second > first.saturating_mul(3) / 2)
}

/// What pings of so long a time say together; of the fastest alone where they contradict each other,
/// since a clock was stepped meanwhile. None without a ping.
fn together(offsets: &[ClockOffset], took: Duration) -> Option<ClockOffset> {
    let fastest = offsets.iter().min_by_key(|offset| offset.rtt_ns)?;
    let samples = u32::try_from(offsets.len()).unwrap_or(u32::MAX);
    let low = offsets.iter().map(|offset| offset.offset_ns.saturating_sub(offset.bound_ns)).max()?;
    let high = offsets.iter().map(|offset| offset.offset_ns.saturating_add(offset.bound_ns)).min()?;
    if low > high {
        return Some(ClockOffset { samples, ..*fastest });
    }
    let width = high.saturating_sub(low);
    let drifted = i64::try_from(took.as_nanos() * DRIFT_PPM / 1_000_000).unwrap_or(i64::MAX);
    let bound_ns = (width / 2 + 1).saturating_add(drifted).min(fastest.bound_ns);
    let offset_ns = if bound_ns < fastest.bound_ns { low + width / 2 } else { fastest.offset_ns };
    Some(ClockOffset { offset_ns, bound_ns, rtt_ns: fastest.rtt_ns, samples })
}

impl Mesh {
    /// Measures the wall clock of `peer` with `samples` pings, one after the other. Each says
    /// between what the offset lies, so all together say it best. Where the two fastest are far
    /// apart (a busy host delays most of them) some more are sent, for a fifth of a second.
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
        let began = Instant::now();
        let mut offsets: Vec<ClockOffset> = Vec::new();
        let more = |offsets: &[ClockOffset]| is_disturbed(offsets) && began.elapsed() < MOST_OF_PINGS;
        while offsets.len() < samples.max(1) as usize || more(&offsets) {
            match self.ping(peer, address, clock, deadline).await {
                Ok(sample) => offsets.push(sample.offset()),
                Err(error) if offsets.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        together(&offsets, began.elapsed()).ok_or_else(|| AskError::Protocol("no ping was sent".into()))
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

    /// Pings of a busy host: each way takes its own time.
    fn pings() -> impl Strategy<Value = (i64, Vec<ClockOffset>)> {
        let way = || prop_oneof![3 => 20_000_i64..60_000, 2 => 20_000_i64..5_000_000];
        (-1_000_000_000_i64..1_000_000_000, prop::collection::vec((way(), way()), 1..30)).prop_map(|(offset, ways)| {
            let ping = |(there, back): (i64, i64)| {
                let (sent, peer) = (7_000_000_000, 7_000_000_000 + there + offset);
                let sample =
                    Sample { sent, peer_received: peer, peer_sent: peer + 900, received: sent + there + 900 + back };
                sample.offset()
            };
            (offset, ways.into_iter().map(ping).collect())
        })
    }

    proptest! {
        /// The true offset lies within the bound, which is no wider than that of the fastest ping.
        #[test]
        fn pings_together_bound_the_offset((offset, pings) in pings()) {
            let found = together(&pings, Duration::ZERO).unwrap();
            prop_assert!((found.offset_ns - offset).abs() <= found.bound_ns, "{found:?}");
            prop_assert!(pings.iter().all(|ping| found.bound_ns <= ping.bound_ns));
        }
    }

    #[test]
    fn two_fast_pings_are_enough_and_a_step_between_them_leaves_the_fastest() {
        let ping = |offset_ns, rtt_ns| ClockOffset { offset_ns, bound_ns: rtt_ns / 2 + 1, rtt_ns, samples: 1 };
        assert!(is_disturbed(&[ping(0, 100), ping(0, 4_000), ping(0, 151)]));
        assert!(!is_disturbed(&[ping(0, 100), ping(0, 4_000), ping(0, 150)]));
        assert!(!is_disturbed(&[ping(0, 100)]));
        let stepped = together(&[ping(0, 100), ping(1_000_000, 90)], Duration::ZERO).unwrap();
        assert_eq!((stepped.offset_ns, stepped.bound_ns, stepped.samples), (1_000_000, 46, 2));
        // One was delayed on its way there, one on its way back.
        let both = together(&[ping(900, 2_000), ping(-900, 2_000)], Duration::ZERO).unwrap();
        assert_eq!((both.offset_ns, both.bound_ns), (0, 102));
        assert_eq!(together(&[], Duration::ZERO), None);
    }

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
