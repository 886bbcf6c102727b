//! SHA-256 of a certificate, and comparison in constant time.

use std::fmt;

use aws_lc_rs::{constant_time, digest};
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

/// SHA-256 of a DER certificate: the pin of a CA, or the mark by which a node certificate is
/// recognised.
///
/// Shown as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of `certificate`.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(sha256(certificate))
    }

    /// The 32 bytes of the hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| "a fingerprint is 64 hexadecimal digits")?;
        Ok(Self(bytes))
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::try_from(text).map_err(serde::de::Error::custom)
    }
}

/// SHA-256 of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
}

/// Whether two hashes are equal, in a time that does not depend on where they differ.
pub(crate) fn equal_in_constant_time(a: &[u8; 32], b: &[u8; 32]) -> bool {
    constant_time::verify_slices_are_equal(a, b).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha256_is_sha256() {
        // FIPS 180-2, appendix B.1: SHA-256 of "abc".
        let hash = Fingerprint(sha256(b"abc"));
        assert_eq!(hash.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Fingerprint::try_from(hash.to_string()), Ok(hash));
        assert!(equal_in_constant_time(&sha256(b"a"), &sha256(b"a")));
        assert!(!equal_in_constant_time(&sha256(b"a"), &sha256(b"b")));
    }

    #[test]
    fn refuses_other_texts() {
        for bad in ["", "ba78", &"g".repeat(64), &"é".repeat(32)] {
            assert!(Fingerprint::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
