//! Points in time as people type them: a length of time back from now, a time of day, a date; in
//! this host's zone unless another is given.

use std::str::FromStr;
use std::time::Duration;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::values::parse_duration;

/// A point in time as it was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// This long ago.
    Ago(Duration),
    /// This instant.
    At(Timestamp),
    /// A time of day: the last two times that the clock showed it.
    OfDay {
        /// The last one.
        last: Timestamp,
        /// The one of the day before.
        before: Timestamp,
    },
}

impl When {
    /// Fails if it is not before `now_ns`, Unix nanoseconds: nothing is recorded of it.
    ///
    /// # Errors
    /// It is still to come.
    pub(crate) fn check_past(self, now_ns: i64) -> Result<(), String> {
        match self {
            Self::At(at) | Self::OfDay { last: at, .. } if at.as_nanosecond() >= i128::from(now_ns) => {
                Err(format!("{} is still to come: give a time of the past", Self::shown(at)))
            }
            _ => Ok(()),
        }
    }

    /// With its zone, if the text left it to this host; none of a length of time.
    pub fn with_zone(self) -> Option<String> {
        match self {
            Self::Ago(_) => None,
            Self::At(at) | Self::OfDay { last: at, .. } => Some(Self::shown(at)),
        }
    }

    /// As what begins a span that ends at `until`, Unix nanoseconds: at 14:05, the span from 14:00
    /// to 14:10 is yesterday's, and so is one from 23:50 to 00:10.
    pub(crate) fn beginning(self, until_ns: i64) -> Self {
        match self {
            Self::OfDay { last, before } if last.as_nanosecond() > i128::from(until_ns) => Self::At(before),
            _ => self,
        }
    }

    fn shown(at: Timestamp) -> String {
        at.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
    }

    fn parsed(text: &str, now: &Zoned) -> Result<Self, String> {
        let text = text.trim();
        if let Some(at) = since_1970(text) {
            return at.map(Self::At);
        }
        if let Ok(duration) = parse_duration(text) {
            return Ok(Self::Ago(duration));
        }
        // With an offset or Z it is the same instant in every zone.
        if let Ok(at) = Timestamp::from_str(text) {
            return Ok(Self::At(at));
        }
        let wrong = || {
            format!(
                "'{text}' is not a time; write 10m (ago), 14:05, 2026-11-22T03:00 (this host's zone), 2026-11-22T03:00:00Z \
                 or what has passed since 1970 (s, ms, us or ns)"
            )
        };
        let zone = now.time_zone();
        let in_zone = |at: DateTime| at.to_zoned(zone.clone()).map_err(|_| wrong());
        if let (Ok(time), false) = (Time::from_str(text), text.contains('-')) {
            let on = |date: Date| in_zone(date.to_datetime(time)).map(|at| at.timestamp());
            let before = |date: Date| date.yesterday().map_err(|_| wrong());
            let (today, yesterday) = (now.date(), before(now.date())?);
            return Ok(if on(today)? <= now.timestamp() {
                Self::OfDay { last: on(today)?, before: on(yesterday)? }
            } else {
                Self::OfDay { last: on(yesterday)?, before: on(before(yesterday)?)? }
            });
        }
        let at = match DateTime::from_str(text) {
            Ok(at) => at,
            Err(_) => Date::from_str(text).map_err(|_| wrong())?.at(0, 0, 0, 0),
        };
        Ok(Self::At(in_zone(at)?.timestamp()))
    }
}

/// A bare number that is no length of time: what has passed since 1970, in seconds (10 digits, also
/// with a fraction), milliseconds (13), microseconds (16) or nanoseconds (19).
///
/// # Errors
/// It has another number of digits.
fn since_1970(text: &str) -> Option<Result<Timestamp, String>> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = [whole, fraction].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    let whole = whole.trim_start_matches('0');
    if !is_number || whole.len() < 10 {
        return None;
    }
    let digits: String = whole.chars().chain(fraction.chars().take(9)).chain("000000000".chars()).take(19).collect();
    let ns = digits.parse().ok().filter(|_| match whole.len() {
        10 => true,
        13 | 16 | 19 => !text.contains('.'),
        _ => false,
    });
    let wrong = || {
        format!(
            "'{text}' is not a time: since 1970 have passed seconds of 10 digits, milliseconds of 13, microseconds of 16 or nanoseconds of 19"
        )
    };
    Some(ns.and_then(|ns| Timestamp::from_nanosecond(ns).ok()).ok_or_else(wrong))
}

/// `10m` (ago; a bare number is seconds), a time of day, a date with or without one, or what has
/// passed since 1970.
///
/// # Errors
/// It is none of these; the message says what to write.
pub fn parse_when(text: &str) -> Result<When, String> {
    When::parsed(text, &Zoned::now())
}

/// As [`parse_when`]; also `now`.
///
/// # Errors
/// As there.
pub fn parse_when_or_now(text: &str) -> Result<When, String> {
    if text == "now" { Ok(When::Ago(Duration::ZERO)) } else { parse_when(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10:30 in central Europe, an hour ahead of UTC in winter and two in summer.
    fn now() -> Zoned {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone");
        "2026-11-23T09:30:00Z".parse::<Timestamp>().expect("a time").to_zoned(zone)
    }

    fn at(text: &str) -> String {
        match When::parsed(text, &now()) {
            Ok(When::At(at) | When::OfDay { last: at, .. }) => at.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn times_are_read_in_the_zone_of_the_host_unless_they_say_theirs() {
        let read = [
            ("10:05", "2026-11-23T09:05:00Z"),
            ("10:05:30", "2026-11-23T09:05:30Z"),
            // That time of day is still to come today.
            ("14:05", "2026-11-22T13:05:00Z"),
            ("2026-11-22T03:00", "2026-11-22T02:00:00Z"),
            ("2026-11-22 03:00:01", "2026-11-22T02:00:01Z"),
            ("2026-07-01", "2026-06-30T22:00:00Z"),
            ("2026-11-22T03:00:00Z", "2026-11-22T03:00:00Z"),
            ("2026-11-22T03:00:00-05:00", "2026-11-22T08:00:00Z"),
        ];
        for (text, expected) in read {
            assert_eq!(at(text), expected, "{text}");
        }
        assert_eq!(When::parsed("10m", &now()), Ok(When::Ago(Duration::from_secs(600))));
    }

    #[test]
    fn a_time_of_day_begins_a_span_before_it_ends() {
        let read = [
            // At 10:30, and the day before from 10:25 to 10:40.
            ("10:25", "2026-11-22T09:40:00Z", "2026-11-22T09:25:00Z"),
            ("23:50", "2026-11-22T23:10:00Z", "2026-11-22T22:50:00Z"),
            ("09:00", "2026-11-23T09:00:00Z", "2026-11-23T08:00:00Z"),
            // No time of day: it is as it was written.
            ("2026-11-23T09:00", "2026-11-22T09:40:00Z", "2026-11-23T08:00:00Z"),
        ];
        for (text, until, expected) in read {
            let until: Timestamp = until.parse().expect("a time");
            let until_ns = i64::try_from(until.as_nanosecond()).expect("in this century");
            let begins = When::parsed(text, &now()).expect("a time").beginning(until_ns);
            let (When::At(at) | When::OfDay { last: at, .. }) = begins else { panic!("{begins:?}") };
            assert_eq!(at.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_time_or_still_to_come_is_refused() {
        for text in ["", "soon", "25:00", "2026-13-01", "14", "10:05pm", "2026-11-22T03:00:00+99:00"] {
            let read = When::parsed(text, &now());
            // A bare number is seconds, as everywhere.
            assert_eq!(read.is_err(), text != "14", "{text}: {read:?}");
        }
        let tomorrow = When::parsed("2026-11-24", &now()).expect("a time");
        let now_ns = i64::try_from(now().timestamp().as_nanosecond()).expect("in this century");
        let refused = tomorrow.check_past(now_ns).expect_err("it is to come");
        assert!(refused.contains("is still to come"), "{refused}");
        for past in ["10:00", "10m", "2026-11-22"] {
            assert_eq!(When::parsed(past, &now()).expect("a time").check_past(now_ns), Ok(()), "{past}");
        }
    }

    #[test]
    fn a_long_number_is_what_has_passed_since_1970() {
        let read = [
            ("1796014570", "2026-11-30T04:56:10Z"),
            ("1796014570.5", "2026-11-30T04:56:10.5Z"),
            ("1796014570123", "2026-11-30T04:56:10.123Z"),
            ("1796014570123456", "2026-11-30T04:56:10.123456Z"),
            ("1796014570123456789", "2026-11-30T04:56:10.123456789Z"),
        ];
        for (text, expected) in read {
            assert_eq!(at(text), expected, "{text}");
        }
        for wrong in ["17960145701", "179601457012345", "1796014570123.5", "17960145701234567890"] {
            let refused = When::parsed(wrong, &now()).expect_err(wrong);
            assert!(refused.contains("since 1970"), "{refused}");
        }
        assert_eq!(When::parsed("999999999", &now()), Ok(When::Ago(Duration::from_secs(999_999_999))));
    }
}
