//! When a connection was last used, and by how many it is used now.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// When a connection was last used, and by how many it is now.
#[derive(Debug)]
pub(super) struct Usage {
    since: Instant,
    last_ms: AtomicU64,
    now: AtomicUsize,
    /// Members asked, when its window was last set for an answer.
    asked: AtomicUsize,
}

impl Default for Usage {
    fn default() -> Self {
        Self { since: Instant::now(), last_ms: AtomicU64::new(0), now: AtomicUsize::new(0), asked: AtomicUsize::new(0) }
    }
}

impl Usage {
    /// One more user.
    pub(super) fn begin(&self) {
        self.now.fetch_add(1, Ordering::Relaxed);
    }

    /// One user less.
    pub(super) fn end(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }

    /// The peer is one of so many that are asked; whether they were another number the last time.
    pub(super) fn asked_of(&self, members: usize) -> bool {
        self.asked.load(Ordering::Relaxed) != members && self.asked.swap(members, Ordering::Relaxed) != members
    }

    /// Data went over it.
    pub(super) fn touch(&self) {
        let now_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    /// For how long nothing has gone over it; `None` while it is in use.
    pub(super) fn idle(&self) -> Option<Duration> {
        if self.now.load(Ordering::Relaxed) > 0 {
            return None;
        }
        Some(self.since.elapsed().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed))))
    }
}
