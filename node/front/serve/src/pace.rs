//! Rate limit of clients: a bucket of tokens each (<https://en.wikipedia.org/wiki/Token_bucket>).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Clients that are remembered; beyond, those whose buckets are full are dropped, and if none are,
/// no new client is admitted.
const MOST: usize = 4_096;

/// Buckets by client.
pub(super) struct Pace {
    /// Requests a second, in the long run.
    rate: f64,
    /// Requests in a burst.
    burst: f64,
    buckets: Mutex<HashMap<String, (f64, Instant)>>,
}

impl Pace {
    pub(super) fn new(rate: f64, burst: f64) -> Self {
        Self { rate, burst, buckets: Mutex::default() }
    }

    /// Takes one from the bucket of `client`, or returns how long until there is one.
    ///
    /// # Errors
    /// The bucket is empty.
    pub(super) fn take(&self, client: &str) -> Result<(), Duration> {
        self.take_at(client, Instant::now())
    }

    fn filled(&self, (left, at): (f64, Instant), now: Instant) -> f64 {
        (left + now.saturating_duration_since(at).as_secs_f64() * self.rate).min(self.burst)
    }

    fn take_at(&self, client: &str, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock();
        if buckets.len() >= MOST && !buckets.contains_key(client) {
            buckets.retain(|_, bucket| self.filled(*bucket, now) < self.burst);
            if buckets.len() >= MOST {
                return Err(Duration::from_secs(1));
            }
        }
        let bucket = buckets.entry(client.to_owned()).or_insert((self.burst, now));
        let left = self.filled(*bucket, now);
        *bucket = (left, now);
        if left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - left) / self.rate));
        }
        bucket.0 -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_empties_and_fills_again_and_is_one_clients() {
        let (pace, now) = (Pace::new(2.0, 3.0), Instant::now());
        for _ in 0..3 {
            pace.take_at("a", now).unwrap();
        }
        let wait = pace.take_at("a", now).unwrap_err();
        assert!((wait.as_secs_f64() - 0.5).abs() < 0.01, "{wait:?}");
        pace.take_at("b", now).unwrap();
        pace.take_at("a", now + wait).unwrap();
        pace.take_at("a", now + wait).unwrap_err();
    }

    #[test]
    fn no_more_clients_than_there_is_room_for() {
        let (pace, now) = (Pace::new(1.0, 2.0), Instant::now());
        for client in 0..MOST {
            pace.take_at(&client.to_string(), now).unwrap();
        }
        pace.take_at("one more", now).unwrap_err();
        pace.take_at("one more", now + Duration::from_secs(5)).unwrap();
        assert_eq!(pace.buckets.lock().len(), 1, "those that were full again are forgotten");
    }
}
