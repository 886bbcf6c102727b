//! The CA at work: which name goes to whom. Joins an [`Authority`], its tokens and its list of certificates, all kept
//! in one identity directory; the messages of a join are `join`'s.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::authority::{CA_DIR, csr_key};
use crate::files::DirLock;
use crate::issued::IssuedList;
use crate::token::{TokenSecret, TokenStore};
use crate::{Authority, CertificateDer, Error, Identity, IssuedCertificate, MeshName, NodeName, Reissue};

/// The CA of an identity directory, with its record of tokens and certificates.
///
/// Operations touch files and wait for the directory's lock: call them where blocking is allowed. They may run in
/// several threads and processes at once.
#[derive(Debug)]
pub struct Issuer {
    dir: PathBuf,
    authority: Authority,
    tokens: TokenStore,
    issued: IssuedList,
}

impl Issuer {
    /// Makes a new CA for `mesh` in the identity directory `dir`.
    ///
    /// # Errors
    /// [`Error::Exists`] where there is one; [`Error::Sign`], [`Error::Io`].
    pub fn init(dir: &Path, mesh: &MeshName) -> Result<Self, Error> {
        let authority = Authority::create(mesh)?;
        authority.save(dir)?;
        Ok(Self::new(dir, authority))
    }

    /// Opens the CA of the identity directory `dir`.
    ///
    /// # Errors
    /// Those of [`Authority::load`].
    pub fn open(dir: &Path) -> Result<Self, Error> {
        Ok(Self::new(dir, Authority::load(dir)?))
    }

    /// Whether the identity directory `dir` holds a CA.
    pub fn exists(dir: &Path) -> bool {
        Authority::exists(dir)
    }

    fn new(dir: &Path, authority: Authority) -> Self {
        let (tokens, issued) = (TokenStore::new(dir, &authority), IssuedList::new(dir));
        Self { dir: dir.join(CA_DIR), authority, tokens, issued }
    }

    /// The CA itself.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The CA's tokens.
    pub fn tokens(&self) -> &TokenStore {
        &self.tokens
    }

    /// The certificates issued that have not ended (and some that have).
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Malformed`].
    pub fn issued(&self) -> Result<Vec<IssuedCertificate>, Error> {
        self.issued.read(&DirLock::take(&self.dir)?)
    }

    /// Makes an identity for `node` and records it.
    ///
    /// # Errors
    /// [`Error::NameTaken`] unless `reissue` allows it; [`Error::Sign`], [`Error::Io`], [`Error::Malformed`].
    pub fn issue(&self, node: &NodeName, validity: Duration, reissue: Reissue) -> Result<Identity, Error> {
        let now = SystemTime::now();
        let lock = DirLock::take(&self.dir)?;
        if reissue == Reissue::Refuse {
            self.issued.check_free(&lock, node, now)?;
        }
        let identity = self.authority.issue(node, validity)?;
        self.issued.record(&lock, &identity.chain()[0], now)?;
        Ok(identity)
    }

    /// Admits a joiner: checks token, request and name before a use of the token is spent. Answers its chain.
    pub(crate) fn admit(
        &self,
        secret: &TokenSecret,
        node: &NodeName,
        csr_der: &[u8],
        validity: Duration,
        now: SystemTime,
    ) -> Result<Vec<CertificateDer<'static>>, Error> {
        let lock = DirLock::take(&self.dir)?;
        // The token first: who has none learns nothing, not even which names are taken.
        self.tokens.check_at(&lock, secret, now)?;
        csr_key(csr_der)?;
        self.issued.check_free(&lock, node, now)?;
        let chain = self.authority.sign_csr(csr_der, node, validity)?;
        // On record before it leaves: a certificate that nobody knows of could not be revoked.
        self.tokens.redeem_at(&lock, secret, now)?;
        if let Some(leaf) = chain.first() {
            self.issued.record(&lock, leaf, now)?;
        }
        Ok(chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NODE_VALIDITY;

    #[test]
    fn a_name_goes_out_once_unless_the_owner_says_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let issuer = Issuer::init(dir.path(), &"m".parse().unwrap()).unwrap();
        let (a, b): (NodeName, NodeName) = ("a".parse().unwrap(), "b".parse().unwrap());
        let first = issuer.issue(&a, NODE_VALIDITY, Reissue::Refuse).unwrap();
        issuer.issue(&b, NODE_VALIDITY, Reissue::Refuse).unwrap();
        // Another process sees the same list.
        let issuer = Issuer::open(dir.path()).unwrap();
        let error = issuer.issue(&a, NODE_VALIDITY, Reissue::Refuse).unwrap_err();
        assert!(matches!(&error, Error::NameTaken { .. }) && error.to_string().contains("--name"), "{error}");
        let second = issuer.issue(&a, NODE_VALIDITY, Reissue::Allow).unwrap();
        let issued = issuer.issued().unwrap();
        let of_a: Vec<_> = issued.iter().filter(|issued| issued.name == a).map(|issued| issued.fingerprint).collect();
        assert_eq!(of_a, [first.fingerprint(), second.fingerprint()]);
        assert_ne!(issued[0].serial, issued[2].serial);
    }

    #[test]
    fn a_name_is_free_again_when_its_certificate_ended() {
        let dir = tempfile::tempdir().unwrap();
        let issuer = Issuer::init(dir.path(), &"m".parse().unwrap()).unwrap();
        let name: NodeName = "a".parse().unwrap();
        let identity = issuer.issue(&name, Duration::from_secs(60), Reissue::Refuse).unwrap();
        let lock = DirLock::take(&issuer.dir).unwrap();
        assert!(issuer.issued.check_free(&lock, &name, identity.not_after()).is_err());
        issuer.issued.check_free(&lock, &name, identity.not_after() + Duration::from_secs(1)).unwrap();
    }

    #[test]
    fn many_at_once_get_a_name_once() {
        let dir = tempfile::tempdir().unwrap();
        let issuer = Issuer::init(dir.path(), &"m".parse().unwrap()).unwrap();
        let name: NodeName = "a".parse().unwrap();
        let won = std::thread::scope(|scope| {
            let one = || issuer.issue(&name, NODE_VALIDITY, Reissue::Refuse).is_ok();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| u32::from(thread.join().unwrap())).sum::<u32>()
        });
        assert_eq!(won, 1);
        assert_eq!(issuer.issued().unwrap().len(), 1);
    }
}
