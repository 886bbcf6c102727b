//! Figures as text, with their units, in few columns; and text of others with control characters
//! removed.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use record::printable;

pub(crate) use record::units::{short_duration as duration, tenths};

/// A length of time; `-` where it is not known.
pub(crate) fn maybe(ns: Option<i64>) -> String {
    ns.map_or_else(|| "-".to_owned(), duration)
}

/// A share as per cent.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent.abs() >= 9.95 { format!("{percent:.0}%") } else { format!("{}%", tenths(percent)) }
}

/// A count in at most five columns: `950`, `12.3k`, `4.0M`.
pub(crate) fn count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => format!("{:.1}k", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", n as f64 / 1e6),
        _ => format!("{:.1}G", n as f64 / 1e9),
    }
}

/// The time of day of Unix nanoseconds.
pub(crate) fn clock(ns: i64, zone: &TimeZone) -> String {
    stamp(ns, zone, "%H:%M:%S")
}

/// The same with the day and, for times that may be days ago, without seconds.
pub(crate) fn day(ns: i64, zone: &TimeZone) -> String {
    stamp(ns, zone, "%m-%d %H:%M:%S")
}

fn stamp(ns: i64, zone: &TimeZone, format: &str) -> String {
    let at = Timestamp::from_nanosecond(ns.into());
    at.map_or_else(|_| "-".to_owned(), |at| at.to_zoned(zone.clone()).strftime(format).to_string())
}

/// Ranges of numbers: `0-3,7`.
pub(crate) fn ranges(numbers: &[u32]) -> String {
    let mut text = String::new();
    let mut rest = numbers;
    while let Some((&first, _)) = rest.split_first() {
        let run = rest.iter().zip(first..).take_while(|(number, expected)| *number == expected).count().max(1);
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&first.to_string());
        if run > 1 {
            text.push('-');
            text.push_str(&rest[run - 1].to_string());
        }
        rest = &rest[run..];
    }
    text
}

/// Text of others in at most this many characters, without anything that a terminal would
/// interpret; `~` ends a text that was cut.
pub(crate) fn harmless(text: &str, most: usize) -> String {
    let text = printable(text);
    if text.chars().count() <= most {
        return text.to_string();
    }
    let mut cut: String = text.chars().take(most.saturating_sub(1)).collect();
    cut.push('~');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_fit_their_columns() {
        assert_eq!([percent(0.034), percent(0.42), percent(-0.2), percent(-0.0004)], ["3.4%", "42%", "-20%", "0.0%"]);
        assert_eq!([count(950), count(12_345), count(4_000_000)], ["950", "12.3k", "4.0M"]);
        assert_eq!(ranges(&[0, 1, 2, 3, 7, 9, 10]), "0-3,7,9-10");
        assert_eq!(ranges(&[]), "");
        assert_eq!(clock(1_700_000_000_000_000_000, &TimeZone::UTC), "22:13:20");
    }

    #[test]
    fn text_of_others_is_harmless() {
        let text = harmless("n1\u{1b}[2J\u{7}\u{9b}31m", 80);
        assert!(text.chars().all(|c| !c.is_control()), "{text:?}");
        assert_eq!(harmless("abcdefgh", 4), "abc~");
    }
}
