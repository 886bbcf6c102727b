//! Log lines about what others do, which they could do all the time.

use std::time::{Duration, Instant};

/// Time between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// Lets a line through now and then.
#[derive(Debug, Default)]
pub struct Quiet {
    last: Option<Instant>,
    kept_back: u64,
}

impl Quiet {
    /// Whether a line may be written now: how many were kept back since the last.
    pub fn may_say(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) < PAUSE) {
            self.kept_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.kept_back))
    }
}
