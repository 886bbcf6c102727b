//! PostgreSQL's dates, timestamps and intervals as what times are here: integers of nanoseconds.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SpanRelativeTo, Timestamp};

/// Seconds from 1970 to 2000, where PostgreSQL's binary times begin
/// (<https://www.postgresql.org/docs/current/datatype-datetime.html>).
const EPOCH_S: i64 = 946_684_800;

/// The nanoseconds since 1970 of a timestamp or a date in ISO form; UTC where it has no zone.
pub(in super::super) fn moment(text: &str) -> Option<i64> {
    let text = text.trim();
    if !text.get(..4)?.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let utc = |time: DateTime| Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp());
    let at = text
        .parse::<Timestamp>()
        // PostgreSQL writes `+00` and `+02:30` behind a space or behind the time
        .or_else(|_| with_minutes(text).parse())
        .ok()
        .or_else(|| utc(text.parse().ok()?))
        .or_else(|| utc(text.parse::<Date>().ok()?.to_datetime(jiff::civil::Time::midnight())))?;
    i64::try_from(at.as_nanosecond()).ok()
}

/// A zone of two digits with its minutes.
fn with_minutes(text: &str) -> String {
    let bytes = text.as_bytes();
    let sign = bytes.len().wrapping_sub(3);
    let has_hours_only = matches!(bytes.get(sign), Some(b'+' | b'-')) && text.contains(':');
    if has_hours_only { format!("{text}:00") } else { text.to_owned() }
}

/// The nanoseconds of `5 minutes`, `1h 30m`, `00:05:00`.
///
/// # Errors
/// It is none, or has months or years: they have no fixed length.
pub(in super::super) fn interval(text: &str) -> Result<i64, String> {
    let wrong = || format!("interval '{}' is not understood: '5 minutes', '1 day'", record::printable(text));
    if let Some(clock) = clock(text.trim()) {
        return Ok(clock);
    }
    let span: jiff::Span = text.trim().to_ascii_lowercase().parse().map_err(|_| wrong())?;
    if span.get_months() != 0 || span.get_years() != 0 {
        return Err(format!("interval '{}': a month and a year have no fixed length: days", record::printable(text)));
    }
    let total = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    i64::try_from(total.as_nanos()).map_err(|_| wrong())
}

/// `HH:MM:SS`, with a fraction.
fn clock(text: &str) -> Option<i64> {
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let mut parts = text.split(':');
    let (hours, minutes) = (parts.next()?.parse::<i64>().ok()?, parts.next()?.parse::<i64>().ok()?);
    let seconds = parts.next().unwrap_or("0").parse::<f64>().ok()?;
    let is_clock = parts.next().is_none() && (0..60).contains(&minutes) && (0.0..60.0).contains(&seconds) && hours >= 0;
    let whole = hours.checked_mul(3_600)?.checked_add(minutes * 60)?.checked_mul(1_000_000_000)?;
    is_clock.then(|| whole.checked_add((seconds * 1e9).round() as i64).map(|ns| sign * ns)).flatten()
}

/// The nanoseconds since 1970 of a binary timestamp: microseconds since 2000.
pub(in super::super) fn of_microseconds(since_2000: i64) -> Option<i64> {
    since_2000.checked_add(EPOCH_S * 1_000_000)?.checked_mul(1_000)
}

/// The nanoseconds since 1970 of a binary date: days since 2000.
pub(in super::super) fn of_days(since_2000: i32) -> Option<i64> {
    of_microseconds(i64::from(since_2000) * 86_400_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: i64 = 1_704_110_400_000_000_000; // 2024-01-01T12:00:00Z

    #[test]
    fn what_clients_write_is_read() {
        for text in [
            "2024-01-01T12:00:00Z",
            "2024-01-01 12:00:00",
            "2024-01-01 12:00:00+00",
            "2024-01-01T14:30:00.000+02:30",
            "2024-01-01 14:00:00+02",
        ] {
            assert_eq!(moment(text), Some(NOON), "{text}");
        }
        assert_eq!(moment("2024-01-01T12:00:00.000000001Z"), Some(NOON + 1));
        assert_eq!(moment("2024-01-01"), Some(NOON - 43_200_000_000_000));
        for text in ["", "x", "12", "2024", "20240101120000", "2024-13-01", "9999-01-01", "é024-01-01", "all_reduce"] {
            assert_eq!(moment(text), None, "{text}");
        }
        assert_eq!(of_microseconds(757_425_600_000_000), Some(NOON));
        assert_eq!(of_days(8_766), Some(NOON - 43_200_000_000_000));
        assert_eq!(of_microseconds(i64::MAX), None);
    }

    #[test]
    fn intervals_have_a_fixed_length() {
        for (text, seconds) in
            [("5 minutes", 300), ("1 hour 30 mins", 5_400), ("1 day", 86_400), ("2 weeks", 1_209_600)]
        {
            assert_eq!(interval(text), Ok(seconds * 1_000_000_000), "{text}");
        }
        assert_eq!(interval("00:05:00"), Ok(300_000_000_000));
        assert_eq!(interval("-00:00:01.5"), Ok(-1_500_000_000));
        assert_eq!(interval("250 milliseconds"), Ok(250_000_000));
        assert!(interval("1 month").unwrap_err().contains("no fixed length"));
        assert!(interval("soon").unwrap_err().contains("not understood"));
    }
}
