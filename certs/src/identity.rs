//! A node's identity: the mesh's CA certificates, the node's chain and its private key, in memory
//! and on disk. `authority` makes one, `join` receives one, `tls` uses it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::files::{self, Replace};
use crate::provider::provider;
use crate::trust::TrustList;
use crate::{Error, Fingerprint, MeshName, NodeName, Role, chain, pem};

/// Certificates of the mesh's CA.
const CA_FILE: &str = "ca.pem";
/// Private key and chain; that it is there makes the directory an identity.
const NODE_FILE: &str = "node.pem";

/// Who this node is: it can prove its name to the mesh, and knows by which CA to judge others.
///
/// A value of this type is consistent: the key belongs to the leaf, and the leaf was signed by the
/// CA for `rankmesh://MESH/NODE`. Whether it is still valid is a matter of time: see
/// [`Identity::check_valid`].
pub struct Identity {
    authorities: Vec<CertificateDer<'static>>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivatePkcs8KeyDer<'static>,
    leaf: chain::Leaf,
    trust: Option<Arc<TrustList>>,
}

impl Identity {
    /// Puts an identity together, and checks that its parts belong together.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Untrusted`] where they do not.
    pub(crate) fn new(
        authorities: Vec<CertificateDer<'static>>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivatePkcs8KeyDer<'static>,
    ) -> Result<Self, Error> {
        let first = chain.first().ok_or_else(|| Error::invalid("identity", "it has no certificate"))?;
        let leaf = chain::leaf(first)?;
        // Judged at the end of its own time: an expired identity can still be looked at.
        chain::verify(&chain, &chain::roots(&authorities)?, &leaf.mesh, chain::unix_time(leaf.not_after))?;
        let identity = Self { authorities, chain, key, leaf, trust: None };
        identity.certified_key(&[])?;
        Ok(identity)
    }

    /// Reads the identity in `dir`.
    ///
    /// # Errors
    /// [`Error::Missing`] where there is none, [`Error::Malformed`] where a file is damaged or the
    /// files do not belong together, [`Error::KeyExposed`] where others can read the key,
    /// [`Error::Io`].
    pub fn load(dir: &Path) -> Result<Self, Error> {
        let hint =
            "make one with `rankmesh identity issue`, or join a mesh with `rankmesh up --join HOST:PORT --token TOKEN`";
        let missing = || Error::Missing { what: "identity", dir: dir.to_owned(), hint };
        let (node_file, ca_file) = (dir.join(NODE_FILE), dir.join(CA_FILE));
        let node = files::read_secret_if_there(&node_file)?.ok_or_else(missing)?;
        let authorities = files::read_if_there(&ca_file)?
            .ok_or_else(|| Error::malformed(&ca_file, "it is missing beside node.pem; copy it from another node"))?;
        let authorities = pem::certificates(&ca_file, &authorities)?;
        chain::roots(&authorities).map_err(|error| Error::malformed(&ca_file, error))?;
        let (key, chain) = (pem::key(&node_file, &node)?, pem::certificates(&node_file, &node)?);
        let mesh = chain::leaf(&chain[0]).map_err(|error| Error::malformed(&node_file, error))?.mesh;
        // The list counts, whether or not ca.pem was written after it.
        let trust = TrustList::load(dir, &mesh, &authorities)?;
        let authorities = trust.as_ref().map_or(authorities, |list| list.roots().to_vec());
        let identity = Self::new(authorities, chain, key).map_err(|error| Error::malformed(&node_file, error))?;
        Ok(Self { trust: trust.map(Arc::new), ..identity })
    }

    /// The same node with another certificate, for another key.
    pub(crate) fn renewed(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivatePkcs8KeyDer<'static>,
    ) -> Result<Self, Error> {
        let identity = Self::new(self.authorities.clone(), chain, key)?;
        Ok(Self { trust: self.trust.clone(), ..identity })
    }

    /// The same node with the trust of `list`, which must be newer than the present one. Check the
    /// list against [`Identity::authorities`] first ([`TrustList::verify`]).
    ///
    /// # Errors
    /// [`Error::Untrusted`] where this node's own certificate is of a CA that is trusted no more:
    /// it then stays as it is.
    pub fn with_trust(&self, list: Arc<TrustList>) -> Result<Self, Error> {
        let identity = Self::new(list.roots().to_vec(), self.chain.clone(), self.key.clone_key())?;
        Ok(Self { trust: Some(list), ..identity })
    }

    /// The trust list that this node goes by, if the mesh ever had one.
    pub fn trust(&self) -> Option<&Arc<TrustList>> {
        self.trust.as_ref()
    }

    /// The number of the trust list; 0 without one.
    pub fn trust_number(&self) -> u64 {
        self.trust.as_ref().map_or(0, |list| list.number())
    }

    /// Whether the certificate with this serial number is revoked.
    pub(crate) fn revokes(&self, serial: &str) -> bool {
        self.trust.as_ref().is_some_and(|list| list.revokes(serial))
    }

    /// Whether this node's own certificate is revoked.
    pub fn is_revoked(&self) -> bool {
        self.revokes(&self.leaf.serial)
    }

    /// Writes the identity to `dir`, which is made (mode 0700) where it is missing. An identity
    /// that is there is replaced: at every moment the old one or the new one can be loaded, as long
    /// as both are of one CA.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        files::create_dir(dir)?;
        self.save_trust(dir)?;
        let mut text = String::new();
        pem::push_key(&mut text, &self.key);
        pem::push_certificates(&mut text, &self.chain);
        files::write(&dir.join(NODE_FILE), text.as_bytes(), files::SECRET, Replace::Yes)
    }

    /// Writes what this node trusts to `dir`, where its identity lies: the CAs, and the trust list
    /// if there is one.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save_trust(&self, dir: &Path) -> Result<(), Error> {
        // The list first: it is signed by CAs of the old ca.pem, and by one of the new.
        if let Some(list) = &self.trust {
            list.save(dir)?;
        }
        let mut text = String::new();
        pem::push_certificates(&mut text, &self.authorities);
        files::write(&dir.join(CA_FILE), text.as_bytes(), files::PUBLIC, Replace::Yes)
    }

    /// Whether `dir` holds an identity (which may still turn out to be damaged).
    pub fn exists(dir: &Path) -> bool {
        dir.join(NODE_FILE).exists()
    }

    /// The mesh this node is a member of.
    pub fn mesh(&self) -> &MeshName {
        &self.leaf.mesh
    }

    /// This node's name.
    pub fn node(&self) -> &NodeName {
        &self.leaf.node
    }

    /// The last moment at which others accept this identity.
    pub fn not_after(&self) -> SystemTime {
        self.leaf.not_after
    }

    /// The role in its certificate.
    pub fn role(&self) -> Role {
        self.leaf.role
    }

    /// The first moment at which others accept this identity.
    pub fn not_before(&self) -> SystemTime {
        self.leaf.not_before
    }

    /// How long its certificate is valid in all.
    pub fn validity(&self) -> Duration {
        self.leaf.not_after.duration_since(self.leaf.not_before).unwrap_or(Duration::ZERO)
    }

    /// When it is time to renew: a third of the certificate's time has passed.
    pub fn renew_at(&self) -> SystemTime {
        let issued = self.leaf.not_before + chain::BACKDATED;
        let validity = self.leaf.not_after.duration_since(issued).unwrap_or(Duration::ZERO);
        self.leaf.not_after - validity * 2 / 3
    }

    /// The serial number of its certificate, in hexadecimal.
    pub fn serial(&self) -> &str {
        &self.leaf.serial
    }

    /// Whether its certificate is of the CA that issues now, not of one that is being replaced.
    pub fn is_of_first_authority(&self) -> bool {
        let Some(first) = self.authorities.get(..1) else { return false };
        chain::roots(first).is_ok_and(|roots| {
            chain::verify(&self.chain, &roots, &self.leaf.mesh, chain::unix_time(self.leaf.not_after)).is_ok()
        })
    }

    /// Signs `message` with the node's key: ECDSA P-256 with SHA-256, DER. The message has to name
    /// its own purpose.
    ///
    /// # Errors
    /// [`Error::Sign`].
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let failed = |reason: String| Error::Sign { what: "signature", reason };
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, self.key.secret_pkcs8_der())
            .map_err(|error| failed(error.to_string()))?;
        let signature = key.sign(&SystemRandom::new(), message).map_err(|error| failed(error.to_string()))?;
        Ok(signature.as_ref().to_vec())
    }

    /// Checks that the identity is valid at `now`.
    ///
    /// # Errors
    /// [`Error::Untrusted`], saying whether it has expired or is not valid yet.
    pub fn check_valid(&self, now: SystemTime) -> Result<(), Error> {
        let roots = chain::roots(&self.authorities)?;
        chain::verify(&self.chain, &roots, &self.leaf.mesh, chain::unix_time(now)).map(drop)
    }

    /// The certificates of the mesh's CA: one, or two while a new CA takes over.
    pub fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.authorities
    }

    /// This node's certificate, followed by intermediate ones if any.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The fingerprint of this node's certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        // `new` saw to it that there is a first certificate.
        Fingerprint::of(&self.chain[0])
    }

    /// The fingerprint of the (first) CA certificate: what a join token pins.
    pub fn ca_fingerprint(&self) -> Fingerprint {
        // A chain was verified against the authorities, so there is one.
        Fingerprint::of(&self.authorities[0])
    }

    /// Key and chain as rustls wants them, with `extra` certificates after the chain.
    pub(crate) fn certified_key(&self, extra: &[CertificateDer<'static>]) -> Result<CertifiedKey, Error> {
        let chain = self.chain.iter().chain(extra).cloned().collect();
        CertifiedKey::from_der(chain, PrivateKeyDer::Pkcs8(self.key.clone_key()), provider())
            .map_err(|error| Error::invalid("key for this certificate", error))
    }
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self {
            authorities: self.authorities.clone(),
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            leaf: self.leaf.clone(),
            trust: self.trust.clone(),
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("mesh", &self.leaf.mesh)
            .field("node", &self.leaf.node)
            .field("fingerprint", &self.fingerprint())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{Authority, NODE_VALIDITY};

    fn identity(mesh: &str, node: &str) -> Identity {
        let ca = Authority::create(&mesh.parse().unwrap()).unwrap();
        ca.issue(&node.parse().unwrap(), NODE_VALIDITY).unwrap()
    }

    #[test]
    fn survives_the_disk_with_private_modes() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("identity");
        assert!(!Identity::exists(&dir));
        assert!(matches!(Identity::load(&dir), Err(Error::Missing { .. })));
        let saved = identity("m", "n");
        saved.save(&dir).unwrap();
        assert!(Identity::exists(&dir));
        let loaded = Identity::load(&dir).unwrap();
        assert_eq!((loaded.mesh().as_str(), loaded.node().as_str()), ("m", "n"));
        assert_eq!((loaded.fingerprint(), loaded.ca_fingerprint()), (saved.fingerprint(), saved.ca_fingerprint()));
        assert_eq!(loaded.not_after(), saved.not_after());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join(NODE_FILE))), (0o700, 0o600));
        let ca = fs::read_to_string(dir.join(CA_FILE)).unwrap();
        assert!(!ca.contains("PRIVATE"));
    }

    #[test]
    fn a_damaged_directory_says_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        identity("m", "n").save(dir).unwrap();
        let full = fs::read(dir.join(NODE_FILE)).unwrap();
        let (ca, half) = (fs::read(dir.join(CA_FILE)).unwrap(), &full[..full.len() / 2]);
        let fails = |file: &str, contents: &[u8], expected: &str| {
            let before = fs::read(dir.join(file)).unwrap();
            fs::write(dir.join(file), contents).unwrap();
            let error = Identity::load(dir).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains(file), "{file}: {error}");
            fs::write(dir.join(file), before).unwrap();
        };
        fails(NODE_FILE, half, "certificate");
        fails(NODE_FILE, b"", "no private key");
        fails(NODE_FILE, &[0xff; 100], "no private key");
        fails(NODE_FILE, &ca, "no private key");
        fails(CA_FILE, b"", "no certificate");
        fails(CA_FILE, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "ca.pem");
        Identity::load(dir).unwrap();
        fs::remove_file(dir.join(CA_FILE)).unwrap();
        assert!(matches!(Identity::load(dir), Err(Error::Malformed { .. })));
    }

    #[test]
    fn parts_of_two_identities_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (identity("m", "n"), identity("m", "n"));
        one.save(dir.path()).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        other.save(elsewhere.path()).unwrap();
        fs::copy(elsewhere.path().join(CA_FILE), dir.path().join(CA_FILE)).unwrap();
        let error = Identity::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("another CA"), "{error}");
        assert!(Identity::new(one.authorities.clone(), one.chain.clone(), other.key.clone_key()).is_err());
    }

    #[test]
    fn an_exposed_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        identity("m", "n").save(dir.path()).unwrap();
        fs::set_permissions(dir.path().join(NODE_FILE), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Identity::load(dir.path()), Err(Error::KeyExposed { mode: 0o640, .. })));
    }
}
