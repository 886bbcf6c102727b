//! Where time went, as gossip carries it: with a digest, under a name of its own, so that agents
//! that do not know of it read the digest as ever. A version byte and a bincode body, seven bits to
//! a character (docs/wire.md). Times are microseconds. Reading takes any bytes.

use std::sync::Arc;

use observed::{HELD, TimeUse};
use serde::{Deserialize, Serialize};

use crate::DecodeError;
use crate::text::{from_text, to_text};

/// Version of the layout.
const VERSION: u8 = 1;
/// Largest body, bytes.
const LARGEST: usize = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Body {
    /// Job and size, once each.
    jobs: Vec<(u64, i32)>,
    processes: Vec<Process>,
}

#[derive(Serialize, Deserialize)]
struct Process {
    pid: u32,
    job: u32,
    rank: i32,
    until_us: i64,
    span_us: u64,
    calls: u64,
    scored_us: u64,
    unscored_us: u64,
    /// The kinds of [`HELD`] with time, and this.
    held_us: Option<Vec<(u8, u64)>>,
    /// Given as parts of 255 of the time in calls.
    peers: Vec<(i32, u8)>,
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<LARGEST>()
}

/// Write what one node says of its processes; what does not fit into `limit` bytes is left out,
/// those with least time in calls first.
#[must_use]
pub fn encode(times: &[TimeUse], limit: usize) -> String {
    let mut order: Vec<&TimeUse> = times.iter().collect();
    order.sort_by_key(|time| std::cmp::Reverse(time.in_calls_ns()));
    loop {
        let text = write(&order);
        if text.len() <= limit || order.is_empty() {
            return text;
        }
        order.truncate(order.len() / 2);
    }
}

fn write(times: &[&TimeUse]) -> String {
    let us = |ns: i64| u64::try_from(ns / 1_000).unwrap_or(0);
    let mut body = Body { jobs: Vec::new(), processes: Vec::new() };
    for time in times {
        let job = (time.job, time.nranks);
        let place = body.jobs.iter().position(|known| *known == job).unwrap_or_else(|| {
            body.jobs.push(job);
            body.jobs.len() - 1
        });
        let (Ok(pid), Ok(job)) = (u32::try_from(time.pid), u32::try_from(place)) else { continue };
        let part = |ns: i64| u8::try_from(ns.saturating_mul(255) / time.in_calls_ns().max(1)).unwrap_or(u8::MAX);
        let held = |held: [i64; HELD.len()]| (0u8..).zip(held.map(us)).filter(|(_, us)| *us > 0).collect();
        body.processes.push(Process {
            pid,
            job,
            rank: time.rank,
            until_us: time.until_ns / 1_000,
            span_us: us(time.span_ns),
            calls: time.calls,
            scored_us: us(time.scored_ns),
            unscored_us: us(time.unscored_ns),
            held_us: time.held_ns.map(held),
            peers: time.peers.iter().map(|(rank, ns)| (*rank, part(*ns))).filter(|(_, part)| *part > 0).collect(),
        });
    }
    let mut bytes = vec![VERSION];
    // A body of these types has no way to fail.
    bytes.extend(bincode::serde::encode_to_vec(&body, config()).unwrap_or_default());
    to_text(&bytes)
}

/// Read it.
///
/// # Errors
/// [`DecodeError`] for whatever [`encode`] does not write.
pub fn decode(node: &str, text: &str) -> Result<Vec<TimeUse>, DecodeError> {
    let bytes = from_text(text).ok_or(DecodeError::Value("character"))?;
    let (&version, bytes) = bytes.split_first().ok_or(DecodeError::Length)?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let (body, read): (Body, usize) =
        bincode::serde::decode_from_slice(bytes, config()).map_err(|_| DecodeError::Length)?;
    if read != bytes.len() {
        return Err(DecodeError::Length);
    }
    let node: Arc<str> = node.into();
    let ns = |us: u64| i64::try_from(us).ok().and_then(|us| us.checked_mul(1_000)).ok_or(DecodeError::Value("time"));
    let read = |process: Process| {
        let (job, nranks) = *body.jobs.get(process.job as usize).ok_or(DecodeError::Value("job"))?;
        let (span_ns, scored_ns, unscored_ns) =
            (ns(process.span_us)?, ns(process.scored_us)?, ns(process.unscored_us)?);
        let in_calls_ns = scored_ns.saturating_add(unscored_ns);
        let held_ns = match process.held_us {
            Some(held) => {
                let mut held_ns = [0i64; HELD.len()];
                for (place, us) in held {
                    // A kind that a later version knows is none to this.
                    if let Some(sum) = held_ns.get_mut(usize::from(place)) {
                        *sum = ns(us)?;
                    }
                }
                Some(held_ns)
            }
            None => None,
        };
        if in_calls_ns > span_ns.saturating_add(2_000) || process.rank < 0 || nranks < 1 {
            return Err(DecodeError::Value("time in calls"));
        }
        Ok(TimeUse {
            node: Arc::clone(&node),
            pid: process.pid.into(),
            rank: process.rank,
            nranks,
            job,
            until_ns: process.until_us.checked_mul(1_000).ok_or(DecodeError::Value("time"))?,
            span_ns,
            calls: process.calls,
            scored_ns,
            unscored_ns,
            held_ns,
            peers: process.peers.iter().map(|(rank, part)| (*rank, in_calls_ns / 255 * i64::from(*part))).collect(),
        })
    };
    body.processes.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time(rank: i32) -> TimeUse {
        TimeUse {
            node: "n".into(),
            pid: 4_711 + i64::from(rank),
            rank,
            nranks: 8,
            job: 0xfeed,
            until_ns: 1_700_000_000_123_456_000,
            span_ns: 1_000_000_000,
            calls: 3_000,
            scored_ns: 5_000_000,
            unscored_ns: 250_000_000,
            held_ns: Some([0, 0, 660_000_000, 0, 0]),
            peers: vec![(1, 255_000_000 / 255 * 200), (7, 255_000_000 / 255 * 55)],
        }
    }

    #[test]
    fn what_is_written_is_read_and_takes_few_bytes() {
        let times: Vec<TimeUse> = (0..8).map(time).collect();
        let text = encode(&times, 8_000);
        assert_eq!(decode("n", &text), Ok(times.clone()));
        let each = text.len() / times.len();
        assert!(each <= 60, "{each} bytes a rank and second");
        let few = decode("n", &encode(&times, 200)).unwrap();
        assert!(!few.is_empty() && few.len() < 8, "{}", few.len());
        let unknown = TimeUse { held_ns: None, peers: Vec::new(), ..time(0) };
        assert_eq!(decode("n", &encode(std::slice::from_ref(&unknown), 8_000)), Ok(vec![unknown]));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let too_long = TimeUse { unscored_ns: 2_000_000_000, peers: Vec::new(), ..time(0) };
        assert_eq!(decode("n", &encode(&[too_long], 8_000)), Err(DecodeError::Value("time in calls")));
        assert_eq!(decode("n", &to_text(&[9, 0, 0])), Err(DecodeError::Version(9)));
        let mut longer = from_text(&encode(&[time(0)], 8_000)).unwrap();
        longer.extend([1, 1]);
        assert_eq!(decode("n", &to_text(&longer)), Err(DecodeError::Length));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode("n", &to_text(&[&[VERSION], &bytes[..]].concat()));
        }
    }
}
