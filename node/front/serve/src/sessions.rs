//! Clients that signed in with a link: a secret that can be used once gives a session, whose token
//! the page keeps and sends with each request. Kept in memory only, and only the hashes of secrets
//! and tokens, so that the time of a lookup reveals nothing about them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use rand::RngExt;

/// A session ends when no request came for this long.
const IDLE: Duration = Duration::from_secs(12 * 3600);
/// Most sessions at a time; beyond, the one that is idle longest is dropped.
const MOST: usize = 64;

/// SHA-256 of a secret.
pub(super) type Hash = [u8; 32];

/// 256 bits that nobody can guess, as text for a URL.
pub(super) fn secret() -> String {
    URL_SAFE_NO_PAD.encode(rand::rng().random::<[u8; 32]>())
}

pub(super) fn hash(secret: &str) -> Hash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
    hash
}

/// Sessions, and the link for the next one.
pub(super) struct Sessions {
    /// A link without its secret; none if nobody signs in with links.
    link: Option<String>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    next: Option<Hash>,
    sessions: HashMap<Hash, (u64, Instant)>,
    made: u64,
}

impl Sessions {
    /// With the link `link` and a secret, printed for the user who started this.
    pub(super) fn new(link: Option<String>) -> Self {
        let this = Self { link, inner: Mutex::default() };
        this.print();
        this
    }

    fn print(&self) {
        if let Some(link) = &self.link {
            let secret = secret();
            self.inner.lock().next = Some(hash(&secret));
            // If standard error goes to a log, others may read it.
            eprintln!("open {link}{secret}\n(good once; another is printed when it was used)");
        }
    }

    /// Makes a session for a link's secret; returns its token.
    pub(super) fn sign_in(&self, secret: &str) -> Option<String> {
        let now = Instant::now();
        let token = {
            let mut inner = self.inner.lock();
            if inner.next.is_none() || inner.next != Some(hash(secret)) {
                return None;
            }
            inner.next = None;
            inner.sessions.retain(|_, (_, used)| now.saturating_duration_since(*used) < IDLE);
            if inner.sessions.len() >= MOST
                && let Some(oldest) = inner.sessions.iter().min_by_key(|(_, (_, used))| *used).map(|(hash, _)| *hash)
            {
                inner.sessions.remove(&oldest);
            }
            inner.made += 1;
            let (token, number) = (self::secret(), inner.made);
            inner.sessions.insert(hash(&token), (number, now));
            token
        };
        self.print();
        Some(token)
    }

    /// The client's name that belongs to a token.
    pub(super) fn client(&self, token: &str) -> Option<String> {
        let now = Instant::now();
        let mut inner = self.inner.lock();
        let (number, used) = inner.sessions.get_mut(&hash(token))?;
        if now.saturating_duration_since(*used) >= IDLE {
            return None;
        }
        *used = now;
        Some(format!("page-{number}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_good_once_and_a_token_for_its_session() {
        let sessions = Sessions::new(None);
        assert_eq!(sessions.sign_in(""), None, "there is no link");
        let put = |secret: &str| sessions.inner.lock().next = Some(hash(secret));
        put("one");
        assert_eq!(sessions.sign_in("two"), None);
        let token = sessions.sign_in("one").unwrap();
        assert_eq!(sessions.sign_in("one"), None);
        assert_eq!(sessions.client(&token).as_deref(), Some("page-1"));
        assert_eq!(sessions.client("one"), None);
        for _ in 0..MOST {
            put("x");
            sessions.sign_in("x").unwrap();
        }
        assert_eq!(sessions.inner.lock().sessions.len(), MOST);
        assert_eq!(sessions.client(&token), None, "the one that was idle longest went");
    }
}
