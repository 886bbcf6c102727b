//! Tokens for `rankmesh serve`: a file of hashes with names, roles and expiry. `rankmesh identity
//! token --for serve` writes it; a running server notices changes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use front::output_file::OutputFile;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::sessions::{Hash, hash, secret};

/// Prefix of every token, by which leaked ones can be recognised.
const PREFIX: &str = "rankmesh_";
/// Time between two checks of the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most tokens of one file.
const MOST: usize = 1_000;

/// One token.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Kept {
    name: String,
    role: Role,
    /// SHA-256 of it, base64.
    sha256: String,
    /// Unix seconds.
    expires: u64,
}

/// The role of a token's holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Asks as a reader, whoever runs the server.
    Reader,
}

/// The tokens of a file.
pub(super) struct Tokens {
    path: PathBuf,
    read: Mutex<Read>,
}

struct Read {
    at: Instant,
    stamp: Stamp,
    kept: Vec<(Hash, Kept)>,
}

impl Tokens {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, others can write it, or it is no list of tokens.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let (stamp, kept) = read(path)?;
        Ok(Self { path: path.to_owned(), read: Mutex::new(Read { at: Instant::now(), stamp, kept }) })
    }

    /// The holder of a token; none if it is not known or has expired.
    pub(super) fn client(&self, token: &str) -> Option<(String, Role)> {
        let mut read = self.read.lock();
        if read.at.elapsed() >= LOOK_EVERY {
            read.at = Instant::now();
            match fs::metadata(&self.path).map(|found| stamp(&found)) {
                Ok(found) if found == read.stamp => {}
                _ => match self::read(&self.path) {
                    Ok((stamp, kept)) => (read.stamp, read.kept) = (stamp, kept),
                    // A token that was removed from the file is to be worthless.
                    Err(error) => {
                        tracing::warn!("no token is good until {} can be read: {error:#}", self.path.display());
                        read.kept.clear();
                        read.stamp = Default::default();
                    }
                },
            }
        }
        let (wanted, now) = (hash(token), unix_s());
        let (_, kept) = read.kept.iter().find(|(hash, kept)| *hash == wanted && kept.expires > now)?;
        Some((kept.name.clone(), kept.role))
    }
}

/// Inode, time of change in seconds and nanoseconds, length: differs whenever the file does.
type Stamp = (u64, i64, i64, u64);

fn stamp(found: &fs::Metadata) -> Stamp {
    (found.ino(), found.mtime(), found.mtime_nsec(), found.size())
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn read(path: &Path) -> anyhow::Result<(Stamp, Vec<(Hash, Kept)>)> {
    let shown = path.display();
    let file = fs::File::open(path).with_context(|| format!("reading tokens from {shown}"))?;
    let found = file.metadata()?;
    ensure!(found.mode() & 0o022 == 0, "others can write {shown}: chmod 600 it");
    ensure!(found.size() <= 1 << 20, "{shown} is too large for a list of tokens");
    let kept: Vec<Kept> = serde_json::from_reader(file).with_context(|| format!("reading tokens from {shown}"))?;
    let hashed = kept.into_iter().map(|kept| {
        let bytes = STANDARD.decode(&kept.sha256).ok().and_then(|bytes| Hash::try_from(bytes).ok());
        Ok((bytes.with_context(|| format!("{shown}: the hash of {} is none", kept.name))?, kept))
    });
    Ok((stamp(&found), hashed.collect::<anyhow::Result<_>>()?))
}

/// Makes a token, valid for `ttl`, and adds it to the file: the only time that it is seen. Expired
/// ones are removed.
///
/// # Errors
/// The name is not valid or taken, there are too many, or the file cannot be written.
pub fn create(path: &Path, name: &str, role: Role, ttl: Duration) -> anyhow::Result<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    ensure!(
        (1..=48).contains(&name.len()) && name.bytes().all(plain),
        "a token's name is 1 to 48 letters, digits and '-'"
    );
    let now = unix_s();
    let mut kept: Vec<Kept> = match path.exists() {
        true => read(path)?.1.into_iter().map(|(_, kept)| kept).filter(|kept| kept.expires > now).collect(),
        false => Vec::new(),
    };
    ensure!(
        kept.iter().all(|kept| kept.name != name),
        "there is a token {name} already: give another name, or take it out of {}",
        path.display()
    );
    ensure!(kept.len() < MOST, "{} holds {MOST} tokens: take some out", path.display());
    let token = format!("{PREFIX}{}", secret());
    kept.push(Kept {
        name: name.to_owned(),
        role,
        sha256: STANDARD.encode(hash(&token)),
        expires: now.saturating_add(ttl.as_secs()),
    });
    let mut file = OutputFile::open(path)?;
    serde_json::to_writer_pretty(&mut file, &kept)?;
    file.finish()?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_kept_as_its_hash_and_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        let hour = Duration::from_secs(3600);
        let token = create(&path, "grafana", Role::Reader, hour).unwrap();
        let short = create(&path, "short", Role::Reader, Duration::ZERO).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&token) && text.contains("grafana"), "{text}");
        let tokens = Tokens::open(&path).unwrap();
        assert_eq!(tokens.client(&token), Some(("grafana".to_owned(), Role::Reader)));
        assert_eq!(tokens.client(&short), None, "it has ended");
        assert_eq!(tokens.client("grafana"), None);
        assert!(create(&path, "grafana", Role::Reader, hour).is_err(), "the name is taken");
        assert!(create(&path, "../x", Role::Reader, hour).is_err());
        // A removed one is worthless within a second.
        fs::write(&path, "[]").unwrap();
        tokens.read.lock().at = Instant::now().checked_sub(LOOK_EVERY).unwrap();
        assert_eq!(tokens.client(&token), None);
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(Tokens::open(&path).is_err(), "others can write it");
    }
}
