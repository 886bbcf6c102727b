//! Times in the form used for certificates.

use std::time::SystemTime;

use time::OffsetDateTime;

/// RFC 3339, in full seconds.
pub fn utc(at: SystemTime) -> String {
    let at = OffsetDateTime::from(at);
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", at.hour(), at.minute(), at.second())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_read_as_rfc_3339() {
        assert_eq!(utc(SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_212_345)), "2026-11-20T22:05:45Z");
    }
}
