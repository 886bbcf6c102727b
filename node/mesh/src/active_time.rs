//! Waiting for peers, counted in time in which this process could have received their packets. A
//! host that is suspended or starved does not run while its clock goes on: a limit by the clock
//! would be over when it resumes, and the peer would be blamed although its answer may be in the
//! socket.

use std::time::Duration;

/// Steps into which a wait is divided.
const STEPS: u32 = 8;

/// Waits for `time`, in steps. However long this process is suspended during one of them, the
/// others still have to pass.
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
