//! Figures as people read them: rounded to three digits everywhere, in the unit that suits.

/// Units of time, the largest first.
const TIMES: [(f64, &str); 3] = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
/// Units of sizes.
const SIZES: [(f64, &str); 4] = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];

/// Nanoseconds: "290 ms", "1.20 s", "85.0 µs".
#[must_use]
pub fn duration(ns: i64) -> String {
    match in_unit(ns as f64, &TIMES) {
        Some((figure, unit)) => format!("{figure} {unit}"),
        None => format!("{ns} ns"),
    }
}

/// The same in at most seven columns of ASCII, for tables: `340us`, `12.3ms`, `1.20s`, `3m05s`,
/// `2h10m`.
#[must_use]
pub fn short_duration(ns: i64) -> String {
    const MINUTES: u64 = 100_000_000_000;
    const HOURS: u64 = 6_000_000_000_000;
    let sign = if ns < 0 { "-" } else { "" };
    // (In whole seconds and minutes, by which these are shown.)
    let seconds = ns.unsigned_abs().saturating_add(500_000_000) / 1_000_000_000;
    match ns.unsigned_abs() {
        0..MINUTES => match in_unit(ns as f64, &TIMES) {
            Some((figure, "µs")) => format!("{figure}us"),
            Some((figure, unit)) => format!("{figure}{unit}"),
            None if ns == 0 => "0us".to_owned(),
            None => format!("{ns}ns"),
        },
        MINUTES..HOURS => format!("{sign}{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{sign}{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
    }
}

/// A figure with one decimal; what rounds to nothing has no sign.
#[must_use]
pub fn tenths(figure: f64) -> String {
    let figure = if figure.abs() < 0.05 { 0.0 } else { figure };
    format!("{figure:.1}")
}

/// Time of day of Unix nanoseconds, UTC: "22:13:20.250".
#[must_use]
pub fn clock(unix_ns: i64) -> String {
    let ms = unix_ns.div_euclid(1_000_000).rem_euclid(86_400_000);
    let second = ms / 1_000;
    format!("{:02}:{:02}:{:02}.{:03}", second / 3_600, second / 60 % 60, second % 60, ms % 1_000)
}

/// Bytes: "4.10 kB", "1.50 GB".
#[must_use]
pub fn bytes(bytes: i64) -> String {
    match in_unit(bytes as f64, &SIZES) {
        Some((figure, unit)) => format!("{figure} {unit}"),
        None => format!("{bytes} B"),
    }
}

/// In the largest unit of which it is one or more as it is rounded: 999.7 ms are 1.00 s. None below
/// the smallest.
fn in_unit<'a>(value: f64, units: &[(f64, &'a str)]) -> Option<(String, &'a str)> {
    let (scale, unit) = units.iter().find(|(scale, _)| value.abs() >= 0.9995 * scale)?;
    Some((three_digits(value / scale), unit))
}

fn three_digits(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits_and_never_four() {
        let all =
            [0, 999, 1_500, 85_040, 999_600, 290_400_000, 999_700_000, 1_200_000_000, 185_000_000_000, -12_345_678];
        let texts =
            ["0 ns", "999 ns", "1.50 µs", "85.0 µs", "1.00 ms", "290 ms", "1.00 s", "1.20 s", "185 s", "-12.3 ms"];
        assert_eq!(all.map(duration), texts);
        assert_eq!([17, 999_999, 4_096].map(bytes), ["17 B", "1.00 MB", "4.10 kB"]);
    }

    #[test]
    fn in_tables_they_are_rounded_alike() {
        let all = [0, 340_000, 999_999, 1_234_000, 56_780_000, 999_999_999, 59_900_000_000, -1_500_000];
        assert_eq!(
            all.map(short_duration),
            ["0us", "340us", "1.00ms", "1.23ms", "56.8ms", "1.00s", "59.9s", "-1.50ms"]
        );
        assert_eq!([185_000_000_000, 7_800_000_000_000].map(short_duration), ["3m05s", "2h10m"]);
        assert_eq!([-0.049, 0.05, -0.05, -1.26].map(tenths), ["0.0", "0.1", "-0.1", "-1.3"]);
        assert!([i64::MIN, i64::MAX, -99_999_999_999].map(short_duration).iter().all(|text| !text.is_empty()));
    }
}
