//! Owns an hour of the calendar (UTC), by which an archive is divided.

use std::ops::Range;

use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

/// Nanoseconds of an hour.
pub const HOUR_NS: i64 = 3_600_000_000_000;

/// An hour: its number since the beginning of 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hour(i64);

impl Hour {
    /// The hour of a time, Unix nanoseconds.
    #[must_use]
    pub fn of_ns(ns: i64) -> Self {
        Self(ns.div_euclid(HOUR_NS))
    }

    /// Its span, Unix nanoseconds.
    #[must_use]
    pub fn range_ns(self) -> Range<i64> {
        let start = self.0.saturating_mul(HOUR_NS);
        start..start.saturating_add(HOUR_NS)
    }

    /// Its number since the beginning of 1970.
    pub(crate) fn number(self) -> i64 {
        self.0
    }

    /// The one after some others.
    #[must_use]
    pub(crate) fn plus(self, hours: i64) -> Self {
        Self(self.0.saturating_add(hours))
    }

    /// The one after it.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// `2026-11-22` and `03`.
    #[must_use]
    pub fn date_and_hour(self) -> (String, String) {
        match Timestamp::from_second(self.0.saturating_mul(3600)) {
            Ok(at) => (at.strftime("%Y-%m-%d").to_string(), at.strftime("%H").to_string()),
            // Beyond the calendar's years: no host's clock gets there.
            Err(_) => (format!("hour{}", self.0), "00".to_owned()),
        }
    }

    /// Parses the output of [`Hour::date_and_hour`].
    #[must_use]
    pub fn read(date: &str, hour: &str) -> Option<Self> {
        let at = Date::strptime("%Y-%m-%d", date).ok()?.to_datetime(Time::new(hour.parse().ok()?, 0, 0, 0).ok()?);
        Some(Self(at.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second().div_euclid(3600)))
    }

    /// For people: `2026-11-22T03:00Z`.
    #[must_use]
    pub fn text(self) -> String {
        let (date, hour) = self.date_and_hour();
        format!("{date}T{hour}:00Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_named_and_read_again() {
        let hour = Hour::of_ns(1_767_225_600_000_000_000 + 3 * HOUR_NS + 5);
        assert_eq!(hour.date_and_hour(), ("2026-01-01".to_owned(), "03".to_owned()));
        assert_eq!(Hour::read("2026-01-01", "03"), Some(hour));
        assert_eq!(hour.range_ns().end, hour.next().range_ns().start);
        for wrong in [("2026-13-01", "03"), ("2026-02-30", "03"), ("2026-01-01", "24"), ("x", "1"), ("2026-01", "1")] {
            assert_eq!(Hour::read(wrong.0, wrong.1), None, "{wrong:?}");
        }
        assert_eq!(Hour::of_ns(-1), Hour(-1));
    }

    proptest::proptest! {
        #[test]
        fn every_time_lies_in_its_hour(ns in 0..4_000_000_000_000_000_000_i64) {
            let hour = Hour::of_ns(ns);
            proptest::prop_assert!(hour.range_ns().contains(&ns));
            let (date, of_day) = hour.date_and_hour();
            proptest::prop_assert_eq!(Hour::read(&date, &of_day), Some(hour));
        }
    }
}
