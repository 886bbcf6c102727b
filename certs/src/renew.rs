//! Renewing a certificate: the node makes a new key and a request, the CA signs for the name and
//! role that the node proved by its connection, and the node puts its new identity together.
//! Carrying the bytes is the agent's.

use rcgen::{KeyPair, PublicKeyData};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::authority::{new_csr, new_key};
use crate::{Error, Identity, chain};

/// A renewal under way: the new private key.
pub struct PendingRenewal {
    key: KeyPair,
}

impl std::fmt::Debug for PendingRenewal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingRenewal").finish_non_exhaustive()
    }
}

/// Makes a key, and the request for it (PKCS #10, DER).
///
/// # Errors
/// [`Error::Sign`].
pub fn request() -> Result<(Vec<u8>, PendingRenewal), Error> {
    let key = new_key()?;
    let csr = new_csr(&key)?;
    Ok((csr, PendingRenewal { key }))
}

impl PendingRenewal {
    /// Puts the new identity of `before` together from the chain that the CA answered (DER, leaf
    /// first).
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Untrusted`], [`Error::OtherNode`] where it is not a certificate
    /// for this key, this name and this mesh by a CA that the node trusts.
    pub fn complete(self, chain: Vec<Vec<u8>>, before: &Identity) -> Result<Identity, Error> {
        let chain: Vec<_> = chain.into_iter().map(CertificateDer::from).collect();
        let now = chain::unix_time(std::time::SystemTime::now());
        let leaf = chain::verify(&chain, &chain::roots(before.authorities())?, before.mesh(), now)?;
        if leaf.node != *before.node() {
            return Err(Error::OtherNode { found: leaf.node });
        }
        if leaf.role != before.role() {
            return Err(Error::WrongRole { found: leaf.role, needed: "the role that it had before" });
        }
        if leaf.public_key != self.key.subject_public_key_info() {
            return Err(Error::invalid("renewed certificate", "it is for another key"));
        }
        before.renewed(chain, PrivatePkcs8KeyDer::from(self.key.serialize_der()))
    }
}
