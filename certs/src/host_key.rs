//! A secret that a host keeps for itself through restarts and renewed certificates. It proves
//! nothing to anybody; QUIC makes from it the tokens by which a restarted node tells its peers that
//! their old connections are gone.

use std::fmt;
use std::path::Path;

use crate::Error;
use crate::files::{self, Replace};

/// Holds the secret, 32 bytes.
const FILE: &str = "host.key";

/// The secret.
#[derive(Clone, PartialEq, Eq)]
pub struct HostKey([u8; 32]);

impl HostKey {
    /// The one in `dir` (an identity directory that is there), made where it is missing.
    ///
    /// # Errors
    /// [`Error::KeyExposed`] where others can read it, [`Error::Malformed`], [`Error::Io`].
    pub fn of(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(FILE);
        if let Some(bytes) = files::read_secret_if_there(&path)? {
            let bytes = bytes.try_into().map_err(|_| Error::malformed(&path, "it has not 32 bytes; remove it"))?;
            return Ok(Self(bytes));
        }
        let key = Self::random()?;
        match files::write(&path, &key.0, files::SECRET, Replace::No) {
            // Another process made one meanwhile.
            Err(Error::Exists { .. }) => Self::of(dir),
            written => written.map(|()| key),
        }
    }

    /// One that lasts as long as the process.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn random() -> Result<Self, Error> {
        let mut bytes = [0; 32];
        files::fill_random(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The secret.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let key = HostKey::of(dir.path()).unwrap();
        assert_eq!(HostKey::of(dir.path()).unwrap(), key);
        assert_ne!(HostKey::random().unwrap(), key);
        assert_eq!(format!("{key:?}"), "HostKey(…)");
        std::fs::write(dir.path().join(FILE), b"short").unwrap();
        assert!(matches!(HostKey::of(dir.path()), Err(Error::Malformed { .. })));
    }
}
