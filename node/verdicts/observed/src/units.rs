//! Times and shares as people read them.

/// Nanoseconds with three digits in the unit that suits: "290 ms", "1.20 s", "85.0 µs".
#[must_use]
pub fn duration(ns: i64) -> String {
    let size = ns.unsigned_abs() as f64;
    let (scale, unit) = match size {
        s if s >= 1e9 => (1e9, "s"),
        s if s >= 1e6 => (1e6, "ms"),
        s if s >= 1e3 => (1e3, "µs"),
        _ => return format!("{ns} ns"),
    };
    let value = ns as f64 / scale;
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0} {unit}"),
        v if v >= 9.995 => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_three_digits() {
        let all: Vec<String> = [0, 999, 1_500, 85_040, 290_400_000, 1_200_000_000, -12_345_678].map(duration).into();
        assert_eq!(all, ["0 ns", "999 ns", "1.50 µs", "85.0 µs", "290 ms", "1.20 s", "-12.3 ms"]);
    }
}
