//! Patience with others, counted in time in which this process could have received their packets. A
//! host that is paused or starved stands still while its clock goes on: a limit by the clock would
//! be over when it wakes, and the peer blamed, whose answer may lie in the socket.

use std::time::Duration;

/// A limit is waited for in so many steps.
const STEPS: u32 = 8;

/// Waits for `time`. However long this process stands still in one of its steps, the others are yet
/// to come.
pub(super) async fn sleep(time: Duration) {
    for _ in 0..STEPS {
        tokio::time::sleep(time / STEPS).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn who_stands_still_has_time_left() {
        let (limit, began) = (Duration::from_millis(400), Instant::now());
        let waiting = tokio::spawn(sleep(limit));
        tokio::task::yield_now().await;
        std::thread::sleep(2 * limit);
        assert!(began.elapsed() >= 2 * limit && !waiting.is_finished());
        waiting.await.expect("no panic");
        assert!(began.elapsed() >= 2 * limit + limit * (STEPS - 1) / STEPS);
    }
}
