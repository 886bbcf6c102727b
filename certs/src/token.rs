//! Join tokens: what a new host must show to be admitted, and the CA's record of them. The exchange
//! is `join`'s.
//!
//! # Text form
//!
//! One line of URL-safe base64 without padding, over: version (1 byte, 1), SHA-256 of the CA's
//! certificate (32 bytes), secret (32), expiry (8, Unix seconds, big-endian), mesh name (1 to 64),
//! check (4: the first bytes of the SHA-256 of all before, so that a line cut short or mistyped is
//! recognised without asking anybody).

use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::authority::CA_DIR;
use crate::chain::unix_s;
use crate::files::{self, DirLock, Replace};
use crate::fingerprint::{equal_in_constant_time, sha256};
use crate::{Authority, Error, Fingerprint, MeshName};

/// Version of the text form and of the file.
const VERSION: u8 = 1;
/// Bytes before the mesh name: version, pin, secret, expiry.
const HEAD_BYTES: usize = 1 + 32 + 32 + 8;
const CHECK_BYTES: usize = 4;
/// No token is longer as text.
const MAX_TEXT_BYTES: usize = 256;
/// The record of the tokens, in the CA's directory.
const TOKENS_FILE: &str = "tokens.json";
/// Tokens that ended are remembered this long, so that a late joiner learns why it is refused.
const REMEMBERED: Duration = Duration::from_secs(7 * 24 * 3600);

/// The secret of a token: 256 random bits. It is shown by [`JoinToken`]'s text form only, never by
/// `Debug`.
#[derive(Clone)]
pub struct TokenSecret([u8; 32]);

impl TokenSecret {
    fn random() -> Result<Self, Error> {
        let mut bytes = [0; 32];
        files::fill_random(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The secret as it travels in a join request.
    pub(crate) fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Reads what [`TokenSecret::to_text`] wrote.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        match URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) {
            Ok(32) => Some(Self(bytes)),
            _ => None,
        }
    }

    fn hash(&self) -> [u8; 32] {
        sha256(&self.0)
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(…)")
    }
}

/// What admits a host to a mesh: which mesh, by which CA it is recognised, and a secret that is
/// good for a time.
///
/// `Display` gives the text form (which holds the secret), `FromStr` reads it.
#[derive(Clone, Debug)]
pub struct JoinToken {
    mesh: MeshName,
    ca: Fingerprint,
    secret: TokenSecret,
    expires: SystemTime,
}

impl JoinToken {
    /// The mesh the token admits to.
    pub fn mesh(&self) -> &MeshName {
        &self.mesh
    }

    /// The fingerprint of the CA's certificate: a server that cannot show it does not learn the
    /// secret.
    pub fn ca(&self) -> Fingerprint {
        self.ca
    }

    /// The secret.
    pub fn secret(&self) -> &TokenSecret {
        &self.secret
    }

    /// When the token stops admitting anybody, by the clock of the CA's host.
    pub fn expires(&self) -> SystemTime {
        self.expires
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.mesh.as_str().len() + CHECK_BYTES);
        bytes.push(VERSION);
        bytes.extend_from_slice(self.ca.as_bytes());
        bytes.extend_from_slice(&self.secret.0);
        bytes.extend_from_slice(&unix_s(self.expires).to_be_bytes());
        bytes.extend_from_slice(self.mesh.as_str().as_bytes());
        let check = sha256(&bytes);
        bytes.extend_from_slice(&check[..CHECK_BYTES]);
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for JoinToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        if text.len() > MAX_TEXT_BYTES {
            return Err(Error::TokenText("it is too long"));
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| Error::TokenText("it is not base64"))?;
        let (body, check) = bytes.split_last_chunk::<CHECK_BYTES>().ok_or(Error::TokenText("it is cut short"))?;
        let (head, mesh) = body.split_at_checked(HEAD_BYTES).ok_or(Error::TokenText("it is cut short"))?;
        if &sha256(body)[..CHECK_BYTES] != check {
            return Err(Error::TokenText("it is incomplete or mistyped"));
        }
        let (version, rest) = head.split_at(1);
        if version != [VERSION] {
            return Err(Error::TokenText("it is of another version of rankmesh"));
        }
        let (ca, rest) = rest.split_first_chunk::<32>().ok_or(Error::TokenText("it is cut short"))?;
        let (secret, rest) = rest.split_first_chunk::<32>().ok_or(Error::TokenText("it is cut short"))?;
        let expires = rest.first_chunk::<8>().ok_or(Error::TokenText("it is cut short"))?;
        let mesh = std::str::from_utf8(mesh).map_err(|_| Error::TokenText("its mesh name is damaged"))?;
        Ok(Self {
            mesh: mesh.parse().map_err(|_| Error::TokenText("its mesh name is damaged"))?,
            ca: Fingerprint::from_bytes(*ca),
            secret: TokenSecret(*secret),
            expires: time(u64::from_be_bytes(*expires)).ok_or(Error::TokenText("its expiry is damaged"))?,
        })
    }
}

/// One token as the CA remembers it. The secret itself is not kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    /// SHA-256 of the secret. (256 random bits need no slow hash.)
    secret_sha256: Fingerprint,
    expires_unix_s: u64,
    /// `None`: any number until it expires.
    uses_left: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Records {
    version: u8,
    tokens: Vec<Record>,
}

/// The CA's record of tokens: `ca/tokens.json` of an identity directory.
///
/// Nothing is kept in memory: each operation locks the directory, reads the file, and writes it
/// anew, so that an agent and `rankmesh identity token` can work on the same CA.
#[derive(Debug, Clone)]
pub struct TokenStore {
    dir: PathBuf,
    mesh: MeshName,
    ca: Fingerprint,
}

impl TokenStore {
    /// The tokens of `authority`, kept in its identity directory `dir`.
    pub fn new(dir: &Path, authority: &Authority) -> Self {
        Self { dir: dir.join(CA_DIR), mesh: authority.mesh().clone(), ca: authority.fingerprint() }
    }

    /// Makes a token that admits `uses` hosts (`None`: any number) during `ttl`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Malformed`].
    pub fn create(&self, ttl: Duration, uses: Option<NonZeroU32>) -> Result<JoinToken, Error> {
        let now = SystemTime::now();
        let lock = DirLock::take(&self.dir)?;
        let mut records = self.read(&lock)?;
        let expires = now.checked_add(ttl).unwrap_or(UNIX_EPOCH + Duration::from_secs(u64::from(u32::MAX)));
        let expires = UNIX_EPOCH + Duration::from_secs(unix_s(expires));
        let secret = TokenSecret::random()?;
        records.tokens.push(Record {
            secret_sha256: Fingerprint::from_bytes(secret.hash()),
            expires_unix_s: unix_s(expires),
            uses_left: uses.map(NonZeroU32::get),
        });
        self.write(&lock, &mut records, now)?;
        Ok(JoinToken { mesh: self.mesh.clone(), ca: self.ca, secret, expires })
    }

    /// As [`TokenStore::check_at`], without the lock: the file is replaced in one step.
    pub(crate) fn would_take(&self, secret: &TokenSecret, now: SystemTime) -> bool {
        self.read_file().is_ok_and(|mut records| find(&mut records, secret, now).is_ok())
    }

    /// Whether the token with this secret would be taken; changes nothing.
    pub(crate) fn check_at(&self, lock: &DirLock, secret: &TokenSecret, now: SystemTime) -> Result<(), Error> {
        find(&mut self.read(lock)?, secret, now).map(drop)
    }

    /// Takes one use of the token with this secret.
    pub(crate) fn redeem_at(&self, lock: &DirLock, secret: &TokenSecret, now: SystemTime) -> Result<(), Error> {
        let mut records = self.read(lock)?;
        let record = find(&mut records, secret, now)?;
        let Some(uses_left) = &mut record.uses_left else {
            return Ok(());
        };
        *uses_left -= 1;
        self.write(lock, &mut records, now)
    }

    fn path(&self) -> PathBuf {
        self.dir.join(TOKENS_FILE)
    }

    fn read(&self, _lock: &DirLock) -> Result<Records, Error> {
        self.read_file()
    }

    fn read_file(&self) -> Result<Records, Error> {
        let path = self.path();
        let Some(contents) = files::read_if_there(&path)? else {
            return Ok(Records { version: VERSION, tokens: Vec::new() });
        };
        let records: Records = serde_json::from_slice(&contents).map_err(|error| Error::malformed(&path, error))?;
        if records.version != VERSION {
            return Err(Error::malformed(&path, format!("it is of version {}, this is {VERSION}", records.version)));
        }
        Ok(records)
    }

    fn write(&self, _lock: &DirLock, records: &mut Records, now: SystemTime) -> Result<(), Error> {
        let kept_from = unix_s(now).saturating_sub(REMEMBERED.as_secs());
        records.tokens.retain(|record| record.expires_unix_s >= kept_from);
        let path = self.path();
        let contents = serde_json::to_vec_pretty(records).map_err(|error| Error::malformed(&path, error))?;
        files::write(&path, &contents, files::SECRET, Replace::Yes)
    }
}

/// The usable record of `secret`. Every record is compared, in constant time.
fn find<'a>(records: &'a mut Records, secret: &TokenSecret, now: SystemTime) -> Result<&'a mut Record, Error> {
    let hash = secret.hash();
    let mut found = None;
    for record in &mut records.tokens {
        if equal_in_constant_time(record.secret_sha256.as_bytes(), &hash) {
            found = Some(record);
        }
    }
    let record = found.ok_or(Error::TokenUnknown)?;
    if record.uses_left == Some(0) {
        return Err(Error::TokenUsed);
    }
    if unix_s(now) >= record.expires_unix_s {
        return Err(Error::TokenExpired);
    }
    Ok(record)
}

/// A time in Unix seconds, unless the clock cannot hold it.
fn time(unix_s: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_secs(unix_s))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn store() -> (tempfile::TempDir, TokenStore) {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(&"m".parse().unwrap()).unwrap();
        authority.save(dir.path()).unwrap();
        let store = TokenStore::new(dir.path(), &authority);
        (dir, store)
    }

    fn redeem(store: &TokenStore, secret: &TokenSecret) -> Result<(), Error> {
        store.redeem_at(&DirLock::take(&store.dir)?, secret, SystemTime::now())
    }

    #[test]
    fn admits_as_often_as_it_says() {
        let (_dir, store) = store();
        let once = store.create(HOUR, NonZeroU32::new(1)).unwrap();
        let twice = store.create(HOUR, NonZeroU32::new(2)).unwrap();
        let ever = store.create(HOUR, None).unwrap();
        redeem(&store, once.secret()).unwrap();
        assert!(matches!(redeem(&store, once.secret()), Err(Error::TokenUsed)));
        redeem(&store, twice.secret()).unwrap();
        redeem(&store, twice.secret()).unwrap();
        assert!(matches!(redeem(&store, twice.secret()), Err(Error::TokenUsed)));
        for _ in 0..5 {
            redeem(&store, ever.secret()).unwrap();
        }
        let stranger = TokenSecret::random().unwrap();
        assert!(matches!(redeem(&store, &stranger), Err(Error::TokenUnknown)));
    }

    #[test]
    fn time_ends_it_and_then_it_is_forgotten() {
        let (_dir, store) = store();
        let token = store.create(HOUR, None).unwrap();
        let lock = DirLock::take(&store.dir).unwrap();
        let at = |after: Duration| store.check_at(&lock, token.secret(), token.expires() + after - HOUR);
        at(HOUR - Duration::from_secs(1)).unwrap();
        assert!(matches!(at(HOUR), Err(Error::TokenExpired)));
        drop(lock);
        // Every writing forgets what ended long ago.
        let lock = DirLock::take(&store.dir).unwrap();
        let mut records = store.read(&lock).unwrap();
        store.write(&lock, &mut records, token.expires() + REMEMBERED + HOUR).unwrap();
        assert!(matches!(store.check_at(&lock, token.secret(), SystemTime::now()), Err(Error::TokenUnknown)));
    }

    #[test]
    fn the_file_is_private_and_holds_no_secret() {
        let (dir, store) = store();
        let token = store.create(HOUR, None).unwrap();
        let path = dir.path().join("ca/tokens.json");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        let hex: String = token.secret().0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!text.contains(&token.secret().to_text()) && !text.contains(&hex));
        assert!(!format!("{token:?}").contains(&token.secret().to_text()));
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(matches!(redeem(&store, token.secret()), Err(Error::Malformed { .. })));
    }

    #[test]
    fn a_line_cut_short_or_mistyped_is_recognised() {
        let (_dir, store) = store();
        let text = store.create(HOUR, None).unwrap().to_string();
        assert!(text.starts_with('A'), "never taken for an option: {text}");
        for end in 0..text.len() {
            assert!(text[..end].parse::<JoinToken>().is_err());
        }
        assert!(format!(" {text}\n").parse::<JoinToken>().is_ok());
        for position in 0..text.len() - 1 {
            let mut bytes = text.clone().into_bytes();
            bytes[position] = if bytes[position] == b'x' { b'y' } else { b'x' };
            assert!(String::from_utf8(bytes).unwrap().parse::<JoinToken>().is_err(), "{position}");
        }
    }

    proptest! {
        #[test]
        fn the_text_form_round_trips(mesh in "[A-Za-z0-9_][A-Za-z0-9._-]{0,62}", ca: [u8; 32], secret: [u8; 32], expires in 0..u64::from(u32::MAX)) {
            let token = JoinToken { mesh: mesh.parse().unwrap(), ca: Fingerprint::from_bytes(ca), secret: TokenSecret(secret), expires: time(expires).unwrap() };
            let read: JoinToken = token.to_string().parse().unwrap();
            prop_assert_eq!((read.mesh(), read.ca(), read.secret().0, read.expires()), (token.mesh(), token.ca(), secret, token.expires()));
        }

        #[test]
        fn any_text_parses_or_errs(text in any::<String>(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(text.parse::<JoinToken>().is_err());
            prop_assert!(URL_SAFE_NO_PAD.encode(bytes).parse::<JoinToken>().is_err());
        }

        #[test]
        fn a_right_check_over_anything_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..180)) {
            if let Some(first) = bytes.first_mut() { *first = VERSION; }
            let check = sha256(&bytes);
            bytes.extend_from_slice(&check[..CHECK_BYTES]);
            let _ = URL_SAFE_NO_PAD.encode(bytes).parse::<JoinToken>();
        }
    }
}
