//! Owns the return of free memory from the allocator to the system, after dropping cached segments
//! that no question has read recently: loading programs, reading libraries and every larger
//! question leave pages that nobody uses. Does not own limits of memory (the store's queue, the
//! merge databases and the questions have their own).

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// First after the agent has settled, then at this pace. Looking through some megabytes of free
/// lists takes a few hundred microseconds.
const PACE: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(60));

/// Gives free memory back until `stop`.
pub(super) async fn keep_small(stop: CancellationToken) {
    let mut wait = PACE.0;
    while tokio::time::timeout(wait, stop.cancelled()).await.is_err() {
        wait = PACE.1;
        // a panic in it would be reported by the runtime; nothing depends on it
        let _ = tokio::task::spawn_blocking(give_back).await;
    }
}

fn give_back() {
    store::let_go_of_segments(PACE.1);
    #[cfg(target_env = "gnu")]
    // SAFETY: has no preconditions, and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
