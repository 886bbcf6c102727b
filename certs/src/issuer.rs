//! The CA at work: which name goes to whom. Joins an [`Authority`], its tokens and its list of
//! certificates, all kept in one identity directory; the messages of a join are `join`'s.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::authority::{CA_DIR, csr_key};
use crate::chain::unix_s;
use crate::files::DirLock;
use crate::issued::{IssuedList, Renewable};
use crate::token::{TokenSecret, TokenStore};
use crate::trust::{Revoked, TrustList};
use crate::{
    Authority, CertificateDer, Error, Identity, IssuedCertificate, MeshName, NODE_VALIDITY, NodeName, Reissue, Role,
};

/// The CA of an identity directory, with its record of tokens and certificates.
///
/// Operations touch files and wait for the directory's lock: call them where blocking is allowed.
/// They may run in several threads and processes at once.
#[derive(Debug)]
pub struct Issuer {
    identity_dir: PathBuf,
    dir: PathBuf,
    validity: Duration,
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
        let (identity_dir, validity) = (dir.to_owned(), NODE_VALIDITY);
        Self { identity_dir, dir: dir.join(CA_DIR), validity, authority, tokens, issued }
    }

    /// With this validity for the certificates of those who join or renew, instead of
    /// [`NODE_VALIDITY`].
    #[must_use]
    pub fn with_validity(self, validity: Duration) -> Self {
        Self { validity, ..self }
    }

    /// How long the certificates are valid of those who join or renew.
    pub fn validity(&self) -> Duration {
        self.validity
    }

    /// When the CA of the identity directory `dir` last changed: open it anew then.
    pub fn changed(dir: &Path) -> Option<SystemTime> {
        Authority::changed(dir)
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
    /// [`Error::NameTaken`] unless `reissue` allows it; [`Error::Sign`], [`Error::Io`],
    /// [`Error::Malformed`].
    pub fn issue(&self, node: &NodeName, validity: Duration, reissue: Reissue) -> Result<Identity, Error> {
        self.issue_as(node, Role::Node, validity, reissue)
    }

    /// As [`Issuer::issue`], for any role. A person's certificate ends when it ends: see
    /// [`Issuer::issue_renewable`].
    ///
    /// # Errors
    /// As [`Issuer::issue`].
    pub fn issue_as(
        &self,
        node: &NodeName,
        role: Role,
        validity: Duration,
        reissue: Reissue,
    ) -> Result<Identity, Error> {
        self.make(node, role, validity, None, reissue)
    }

    /// As [`Issuer::issue_as`], for a person whose certificate is renewed, each time for
    /// `validity`, until `renew_for` from now.
    ///
    /// # Errors
    /// As [`Issuer::issue`].
    pub fn issue_renewable(
        &self,
        person: &NodeName,
        role: Role,
        validity: Duration,
        renew_for: Duration,
        reissue: Reissue,
    ) -> Result<Identity, Error> {
        let now_s = unix_s(SystemTime::now());
        let until_unix_s = now_s.saturating_add(renew_for.as_secs());
        self.make(person, role, validity, Some(Renewable { until_unix_s, each_s: validity.as_secs() }), reissue)
    }

    fn make(
        &self,
        node: &NodeName,
        role: Role,
        validity: Duration,
        renewable: Option<Renewable>,
        reissue: Reissue,
    ) -> Result<Identity, Error> {
        let now = SystemTime::now();
        let lock = DirLock::take(&self.dir)?;
        let list = self.trust_locked(&lock)?;
        if reissue == Reissue::Refuse {
            self.check_free(&lock, list.as_ref(), node, now)?;
        }
        let identity = self.authority.issue_as(node, role, validity)?;
        self.issued.record(&lock, &identity.chain()[0], self.authority.fingerprint(), renewable, now)?;
        match self.let_in(&lock, list, node, now)? {
            Some(list) => identity.with_trust(std::sync::Arc::new(list)),
            None => Ok(identity),
        }
    }

    fn check_free(
        &self,
        lock: &DirLock,
        list: Option<&TrustList>,
        node: &NodeName,
        now: SystemTime,
    ) -> Result<(), Error> {
        self.issued.check_free(lock, node, &|serial| list.is_some_and(|list| list.revokes(serial)), now)
    }

    /// Renews the certificate of `node`, which has proven that it is that: a new one for the key of
    /// the request. Answers its chain. A person's is renewed only where it was issued so, and only
    /// until the end that was given then.
    ///
    /// # Errors
    /// [`Error::NotRenewable`]; [`Error::TooOften`]; [`Error::Invalid`] where the request is damaged; [`Error::Revoked`]
    /// where the certificate that the node showed (`serial`) is; [`Error::Sign`], [`Error::Io`],
    /// [`Error::Malformed`].
    pub fn renew(
        &self,
        node: &NodeName,
        role: Role,
        serial: &str,
        csr_der: &[u8],
    ) -> Result<Vec<CertificateDer<'static>>, Error> {
        let now = SystemTime::now();
        let lock = DirLock::take(&self.dir)?;
        if self.trust_locked(&lock)?.is_some_and(|list| list.revokes(serial)) {
            return Err(Error::Revoked { serial: serial.to_owned() });
        }
        let (validity, renewable) = match role {
            Role::Node => (self.validity, None),
            Role::Operator | Role::Reader => {
                let now_s = unix_s(now);
                let shown = self.issued.read(&lock)?.into_iter().find(|issued| issued.serial == serial);
                let renewable =
                    shown.and_then(|shown| shown.renewable).filter(|renewable| renewable.until_unix_s > now_s);
                let renewable = renewable.ok_or_else(|| Error::NotRenewable { name: node.clone(), role })?;
                (Duration::from_secs(renewable.each_s.min(renewable.until_unix_s - now_s)), Some(renewable))
            }
        };
        self.issued.check_pace(&lock, node, validity.as_secs(), now)?;
        let chain = self.authority.sign_csr(csr_der, node, role, validity)?;
        if let Some(leaf) = chain.first() {
            self.issued.record(&lock, leaf, self.authority.fingerprint(), renewable, now)?;
        }
        Ok(chain)
    }

    /// The trust list of the mesh as the CA last signed it; `None` as long as nothing was revoked
    /// and no CA replaced.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Malformed`].
    pub fn trust(&self) -> Result<Option<TrustList>, Error> {
        self.trust_locked(&DirLock::take(&self.dir)?)
    }

    fn trust_locked(&self, _lock: &DirLock) -> Result<Option<TrustList>, Error> {
        let previous = Authority::load_previous(&self.identity_dir)?;
        let mut trusted = vec![self.authority.certificate().clone()];
        trusted.extend(previous.map(|ca| ca.certificate().clone()));
        TrustList::load(&self.identity_dir, self.authority.mesh(), &trusted)
    }

    /// Revokes every certificate whose name or serial number is `which`, for as long as it would be
    /// valid, and writes the new trust list. Answers what is revoked now and was not before.
    ///
    /// # Errors
    /// [`Error::NotIssued`] where there is none such; [`Error::Sign`], [`Error::Io`],
    /// [`Error::Malformed`].
    pub fn revoke(&self, which: &str) -> Result<Vec<IssuedCertificate>, Error> {
        let now = SystemTime::now();
        let now_s = unix_s(now);
        let lock = DirLock::take(&self.dir)?;
        let serial = which.to_ascii_lowercase();
        let named = |issued: &IssuedCertificate| issued.name.as_str() == which || issued.serial == serial;
        let mut found = self.issued.read(&lock)?;
        found.retain(|issued| named(issued) && issued.not_after_unix_s >= now_s);
        if found.is_empty() {
            return Err(Error::NotIssued);
        }
        let list = self.trust_locked(&lock)?;
        let more = found.iter().map(|c| Revoked {
            serial: c.serial.clone(),
            until_unix_s: c.not_after_unix_s,
            shuts_out: None,
        });
        let all: Vec<_> = list.iter().flat_map(TrustList::revoked).chain(more).collect();
        self.publish(&lock, list.as_ref(), all, now)?;
        found.retain(|issued| !list.as_ref().is_some_and(|list| list.revokes(&issued.serial)));
        Ok(found)
    }

    /// This node has a new certificate: a list that shuts it out is followed by one that does not.
    fn let_in(
        &self,
        lock: &DirLock,
        list: Option<TrustList>,
        node: &NodeName,
        now: SystemTime,
    ) -> Result<Option<TrustList>, Error> {
        let Some(before) = list.as_ref().filter(|list| list.shuts_out(node.as_str())) else { return Ok(list) };
        self.publish(lock, Some(before), before.revoked().collect(), now)?;
        self.trust_locked(lock)
    }

    /// Writes the next trust list, with these revoked.
    fn publish(
        &self,
        lock: &DirLock,
        before: Option<&TrustList>,
        mut revoked: Vec<Revoked>,
        now: SystemTime,
    ) -> Result<(), Error> {
        let now_s = unix_s(now);
        let issued = self.issued.read(lock)?;
        let serials: HashSet<String> = revoked.iter().map(|entry| entry.serial.clone()).collect();
        let is_good = |of: &&IssuedCertificate| of.not_after_unix_s >= now_s && !serials.contains(&of.serial);
        let let_in: HashSet<&NodeName> = issued.iter().filter(is_good).map(|of| &of.name).collect();
        let names: HashMap<&str, &NodeName> = issued.iter().map(|of| (of.serial.as_str(), &of.name)).collect();
        for entry in &mut revoked {
            let named = names.get(entry.serial.as_str()).copied().cloned().or(entry.shuts_out.take());
            entry.shuts_out = named.filter(|name| !let_in.contains(name));
        }
        let previous = Authority::load_previous(&self.identity_dir)?;
        let authorities: Vec<&Authority> = std::iter::once(&self.authority).chain(&previous).collect();
        let number = before.map_or(0, TrustList::number) + 1;
        TrustList::sign(number, &authorities, revoked, now)?.save(&self.identity_dir)
    }

    /// Begins to replace the CA: a new one issues from now on, both are trusted. Nodes renew under
    /// it by themselves.
    ///
    /// # Errors
    /// [`Error::Rotation`] where that is under way already; [`Error::Sign`], [`Error::Io`],
    /// [`Error::Malformed`].
    pub fn rotate(self) -> Result<Self, Error> {
        let lock = DirLock::take(&self.dir)?;
        if Authority::load_previous(&self.identity_dir)?.is_some() {
            return Err(Error::Rotation(
                "a new CA is taking over already: end that first with `rankmesh identity rotate --finish`".into(),
            ));
        }
        let list = self.trust_locked(&lock)?;
        let next = Authority::create(self.authority.mesh())?;
        // The list before the key: were the host to crash between, the old CA would go on and the
        // new one never be used.
        let number = list.as_ref().map_or(0, TrustList::number) + 1;
        let revoked: Vec<_> = list.iter().flat_map(TrustList::revoked).collect();
        TrustList::sign(number, &[&next, &self.authority], revoked, SystemTime::now())?.save(&self.identity_dir)?;
        next.succeed(&self.identity_dir, &self.authority, &lock)?;
        drop(lock);
        let validity = self.validity;
        Ok(Self::open(&self.identity_dir)?.with_validity(validity))
    }

    /// Ends the replacement of the CA: the one before is trusted no more. Certificates of it that
    /// are still valid are named in the error, unless `force` says that they do not matter.
    ///
    /// # Errors
    /// [`Error::Rotation`] where none is under way, or nodes still have certificates of the CA
    /// before; [`Error::Sign`], [`Error::Io`], [`Error::Malformed`].
    pub fn finish_rotation(&self, force: bool) -> Result<(), Error> {
        let now = SystemTime::now();
        let now_s = unix_s(now);
        let lock = DirLock::take(&self.dir)?;
        let previous = Authority::load_previous(&self.identity_dir)?
            .ok_or_else(|| Error::Rotation("no new CA is taking over: begin with `rankmesh identity rotate`".into()))?;
        let list = self.trust_locked(&lock)?;
        let revoked = |serial: &str| list.as_ref().is_some_and(|list| list.revokes(serial));
        let issued = self.issued.read(&lock)?;
        let ours = self.authority.fingerprint();
        let valid = |c: &&IssuedCertificate| c.not_after_unix_s >= now_s && !revoked(&c.serial);
        let renewed = |name: &NodeName| issued.iter().filter(valid).any(|c| &c.name == name && c.ca == Some(ours));
        let mut left: Vec<&str> = issued
            .iter()
            .filter(valid)
            .filter(|c| c.ca != Some(ours) && !renewed(&c.name))
            .map(|c| c.name.as_str())
            .collect();
        left.sort_unstable();
        left.dedup();
        if !left.is_empty() && !force {
            return Err(Error::Rotation(format!(
                "{} of the CA before still have no certificate of the new one: {}; wait until they have renewed, issue \
                 theirs anew, or shut them out with --force",
                left.len(),
                left.join(", ")
            )));
        }
        let number = list.as_ref().map_or(0, TrustList::number) + 1;
        let all: Vec<_> = list.iter().flat_map(TrustList::revoked).collect();
        // Signed by both, so that who trusts only the one before learns of it too.
        TrustList::sign(number, &[&self.authority], all, now)?.cosign(&previous)?.save(&self.identity_dir)?;
        Authority::forget_previous(&self.identity_dir, &lock)
    }

    /// Admits a joiner: checks token, request and name before a use of the token is spent. Answers
    /// its chain.
    pub(crate) fn admit(
        &self,
        secret: &TokenSecret,
        node: &NodeName,
        csr_der: &[u8],
        now: SystemTime,
    ) -> Result<Vec<CertificateDer<'static>>, Error> {
        let lock = DirLock::take(&self.dir)?;
        // The token first: who has none learns nothing, not even which names are taken.
        self.tokens.check_at(&lock, secret, now)?;
        csr_key(csr_der)?;
        let list = self.trust_locked(&lock)?;
        self.check_free(&lock, list.as_ref(), node, now)?;
        let chain = self.authority.sign_csr(csr_der, node, Role::Node, self.validity)?;
        // Recorded before it is sent out: a certificate missing from the records could not be
        // revoked.
        self.tokens.redeem_at(&lock, secret, now)?;
        if let Some(leaf) = chain.first() {
            self.issued.record(&lock, leaf, self.authority.fingerprint(), None, now)?;
        }
        self.let_in(&lock, list, node, now)?;
        Ok(chain)
    }
}

#[cfg(test)]
mod tests;
