//! Times and shares as people read them.

pub use record::units::{duration, tenths};

/// A share as whole percent; what rounds to nothing has no sign.
#[must_use]
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    format!("{:.0} %", if percent.abs() <= 0.5 { 0.0 } else { percent })
}

/// Time of day.
#[must_use]
pub fn clock(unix_ns: i64) -> String {
    let second = unix_ns.div_euclid(1_000_000_000).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02} UTC", second / 3_600, second / 60 % 60, second % 60)
}
