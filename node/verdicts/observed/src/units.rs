//! Times and shares as people read them.

pub use record::units::duration;

/// A share as whole percent.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Time of day.
#[must_use]
pub fn clock(unix_ns: i64) -> String {
    let second = unix_ns.div_euclid(1_000_000_000).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02} UTC", second / 3_600, second / 60 % 60, second % 60)
}
