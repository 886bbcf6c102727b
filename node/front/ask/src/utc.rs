//! Times in the form used for certificates.

use std::time::SystemTime;

use jiff::Timestamp;

/// RFC 3339, in full seconds.
pub fn utc(at: SystemTime) -> String {
    Timestamp::try_from(at).unwrap_or(Timestamp::MAX).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
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
