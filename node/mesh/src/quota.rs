//! What one member may have here, over all its connections: memory of frames that arrive, and
//! gossip.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use query_planner::memory::Account;
use tokio::sync::Semaphore;

/// Bytes of frames of a member that have not come whole, requests and answers together: four of the
/// largest.
const FRAME_BYTES: u64 = 32 << 20;
/// Gossip messages of a member that are read at a time.
const GOSSIP_AT_A_TIME: usize = 16;
/// Gossip messages and bytes of a member a second, and what may come at once. At rest a member
/// sends some three a second, and while many meet some fifty.
const MESSAGES_PER_S: f64 = 100.0;
const MESSAGES_AT_ONCE: f64 = 400.0;
const BYTES_PER_S: f64 = (2 << 20) as f64;
const BYTES_AT_ONCE: f64 = (8 << 20) as f64;

/// What one member may have.
#[derive(Debug)]
pub(super) struct Quota {
    /// Memory of frames that arrive.
    pub(super) frames: Arc<Account>,
    /// Gossip messages that are being read.
    pub(super) gossip_now: Semaphore,
    pace: Mutex<Pace>,
}

#[derive(Debug)]
struct Pace {
    messages: f64,
    bytes: f64,
    refilled: Instant,
}

impl Default for Quota {
    fn default() -> Self {
        let pace = Pace { messages: MESSAGES_AT_ONCE, bytes: BYTES_AT_ONCE, refilled: Instant::now() };
        Self { frames: Account::new(FRAME_BYTES), gossip_now: Semaphore::new(GOSSIP_AT_A_TIME), pace: Mutex::new(pace) }
    }
}

impl Quota {
    /// Whether a gossip message of so many bytes may come in now.
    pub(super) fn may_gossip(&self, bytes: usize, now: Instant) -> bool {
        let mut pace = self.pace.lock();
        let passed = now.saturating_duration_since(pace.refilled).as_secs_f64();
        pace.refilled = now;
        pace.messages = (pace.messages + passed * MESSAGES_PER_S).min(MESSAGES_AT_ONCE);
        pace.bytes = (pace.bytes + passed * BYTES_PER_S).min(BYTES_AT_ONCE);
        let bytes = bytes as f64;
        let may = pace.messages >= 1.0 && pace.bytes >= bytes;
        if may {
            pace.messages -= 1.0;
            pace.bytes -= bytes;
        }
        may
    }
}

/// The quotas of those who have connections.
#[derive(Debug, Default)]
pub(super) struct Quotas(Mutex<HashMap<String, Weak<Quota>>>);

impl Quotas {
    /// The quota of a member, the same for all its connections.
    pub(super) fn of(&self, name: &str) -> Arc<Quota> {
        let mut quotas = self.0.lock();
        if let Some(quota) = quotas.get(name).and_then(Weak::upgrade) {
            return quota;
        }
        quotas.retain(|_, quota| quota.strong_count() > 0);
        let quota = Arc::new(Quota::default());
        quotas.insert(name.to_owned(), Arc::downgrade(&quota));
        quota
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_member_gossips_at_a_bounded_pace_over_all_its_connections() {
        let quotas = Quotas::default();
        let (one, other) = (quotas.of("a"), quotas.of("a"));
        assert!(Arc::ptr_eq(&one, &other) && !Arc::ptr_eq(&one, &quotas.of("b")));
        let now = Instant::now();
        let sent = |at: Instant, bytes: usize| (0..1_000).filter(|_| one.may_gossip(bytes, at)).count();
        assert_eq!(sent(now, 100), 400);
        assert_eq!(sent(now + Duration::from_secs(1), 100), 100);
        // Large ones run out of bytes first: 8 MiB saved up.
        let later = now + Duration::from_secs(60);
        assert_eq!(sent(later, 128 << 10), 64);
        drop((one, other));
        quotas.of("c");
        assert_eq!(quotas.0.lock().len(), 1, "nobody without a connection is kept");
    }
}
