//! This host's wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix nanoseconds; 0 before 1970.
#[must_use]
pub fn unix_now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
