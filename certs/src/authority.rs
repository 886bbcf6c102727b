//! The certificate authority of a mesh: its key, its certificate, and signing. It signs every
//! request it is given; `issuer` decides who may have which name.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
    SerialNumber, SigningKey,
};
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;

use crate::chain::BACKDATED;
use crate::files::{self, DirLock, Replace};
use crate::name::{mesh_uri, node_uri};
use crate::trust::Signer;
use crate::{Error, Fingerprint, Identity, MeshName, NodeName, Role, chain, pem};

/// How long a CA certificate is valid.
pub const CA_VALIDITY: Duration = days(3650);
/// How long a node certificate is valid unless asked otherwise: it is renewed by itself long
/// before, and a mesh whose CA is away for a long weekend loses nobody.
pub const NODE_VALIDITY: Duration = days(7);

/// The directory of the CA inside an identity directory.
pub(crate) const CA_DIR: &str = "ca";
/// Private key and certificate of the CA.
const AUTHORITY_FILE: &str = "authority.pem";
/// The same of the CA before, while a new one takes over.
const PREVIOUS_FILE: &str = "previous.pem";
/// An uncompressed point of P-256: 0x04 and two coordinates (SEC 1, 2.3.3).
const P256_POINT_BYTES: usize = 65;

const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 3600)
}

/// The key and certificate that make a mesh. Whoever has them decides who is a member.
pub struct Authority {
    mesh: MeshName,
    not_after: SystemTime,
    certificate: CertificateDer<'static>,
    issuer: rcgen::Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a new CA (ECDSA P-256) for a new mesh. Nothing is written yet: see
    /// [`Authority::save`].
    ///
    /// # Errors
    /// [`Error::Sign`].
    pub fn create(mesh: &MeshName) -> Result<Self, Error> {
        let key = new_key()?;
        let now = SystemTime::now();
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(format!("{mesh} CA"));
        params.subject_alt_names = vec![uri(mesh_uri(mesh))?];
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = OffsetDateTime::from(now - BACKDATED);
        params.not_after = OffsetDateTime::from(now + CA_VALIDITY);
        params.serial_number = Some(new_serial()?);
        let certificate = params.self_signed(&key).map_err(Error::sign("CA certificate"))?;
        Self::new(certificate.der().clone(), key)
    }

    fn new(certificate: CertificateDer<'static>, key: KeyPair) -> Result<Self, Error> {
        let (mesh, not_after) = chain::authority(&certificate)?;
        if chain::public_key(&certificate)? != key.subject_public_key_info() {
            return Err(Error::invalid("CA", "its key does not belong to its certificate"));
        }
        let issuer = rcgen::Issuer::from_ca_cert_der(&certificate, key)
            .map_err(|error| Error::invalid("CA certificate", error))?;
        Ok(Self { mesh, not_after, certificate, issuer })
    }

    /// Reads the CA kept in the identity directory `dir` (in `dir/ca/`).
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Malformed`], [`Error::KeyExposed`], [`Error::Io`].
    pub fn load(dir: &Path) -> Result<Self, Error> {
        Self::read(&dir.join(CA_DIR).join(AUTHORITY_FILE))?.ok_or_else(|| Error::Missing {
            what: "certificate authority",
            dir: dir.to_owned(),
            hint: "name the directory of the host that founded the mesh, or make one with `rankmesh identity init`",
        })
    }

    /// Reads the CA that was before, while a new one takes over.
    pub(crate) fn load_previous(dir: &Path) -> Result<Option<Self>, Error> {
        Self::read(&dir.join(CA_DIR).join(PREVIOUS_FILE))
    }

    fn read(path: &Path) -> Result<Option<Self>, Error> {
        let Some(contents) = files::read_secret_if_there(path)? else { return Ok(None) };
        let key = pem::key(path, &contents)?;
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256)
            .map_err(|error| Error::malformed(path, format!("its key is not an ECDSA P-256 key: {error}")))?;
        let certificate = pem::certificates(path, &contents)?.swap_remove(0);
        Self::new(certificate, key).map(Some).map_err(|error| Error::malformed(path, error))
    }

    /// Writes the CA into the identity directory `dir` (to `dir/ca/`, mode 0700). A CA is never
    /// overwritten.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::Io`].
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        let dir = dir.join(CA_DIR);
        files::create_dir(&dir)?;
        let _lock = DirLock::take(&dir)?;
        files::write(&dir.join(AUTHORITY_FILE), self.text().as_bytes(), files::SECRET, Replace::No)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        pem::push_key(&mut text, &PrivatePkcs8KeyDer::from(self.issuer.key().serialized_der()));
        pem::push_certificates(&mut text, std::slice::from_ref(&self.certificate));
        text
    }

    /// Puts this CA in the place of `before`, which is kept in the same directory until
    /// [`Authority::forget_previous`].
    pub(crate) fn succeed(&self, dir: &Path, before: &Self, _lock: &DirLock) -> Result<(), Error> {
        let dir = dir.join(CA_DIR);
        files::write(&dir.join(PREVIOUS_FILE), before.text().as_bytes(), files::SECRET, Replace::No)?;
        files::write(&dir.join(AUTHORITY_FILE), self.text().as_bytes(), files::SECRET, Replace::Yes)
    }

    /// Removes the CA that was before.
    pub(crate) fn forget_previous(dir: &Path, _lock: &DirLock) -> Result<(), Error> {
        let path = dir.join(CA_DIR).join(PREVIOUS_FILE);
        std::fs::remove_file(&path).map_err(Error::io("remove", &path))
    }

    /// When the CA in `dir` last changed: the time of its file.
    pub(crate) fn changed(dir: &Path) -> Option<SystemTime> {
        std::fs::metadata(dir.join(CA_DIR).join(AUTHORITY_FILE)).and_then(|metadata| metadata.modified()).ok()
    }

    /// Whether the identity directory `dir` holds a CA (which may still turn out to be damaged).
    pub fn exists(dir: &Path) -> bool {
        dir.join(CA_DIR).join(AUTHORITY_FILE).exists()
    }

    /// The mesh this is the CA of.
    pub fn mesh(&self) -> &MeshName {
        &self.mesh
    }

    /// The CA's own certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The fingerprint of the CA's certificate: what a join token pins.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// The last moment at which certificates of this CA are accepted.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Makes a key and signs a certificate for `node`, valid from now for `validity` (but never
    /// longer than the CA).
    ///
    /// Nothing is recorded: use [`crate::Issuer::issue`] where a name must not be given out twice.
    ///
    /// # Errors
    /// [`Error::Sign`].
    pub fn issue(&self, node: &NodeName, validity: Duration) -> Result<Identity, Error> {
        self.issue_as(node, Role::Node, validity)
    }

    /// As [`Authority::issue`], for any role.
    ///
    /// # Errors
    /// [`Error::Sign`].
    pub fn issue_as(&self, node: &NodeName, role: Role, validity: Duration) -> Result<Identity, Error> {
        self.make(&self.mesh, node, role, SystemTime::now(), validity)
    }

    /// As [`Authority::issue`], for any mesh name: tests make certificates that must be refused.
    #[cfg(test)]
    pub(crate) fn issue_in(&self, mesh: &MeshName, node: &NodeName, validity: Duration) -> Result<Identity, Error> {
        self.make(mesh, node, Role::Node, SystemTime::now(), validity)
    }

    /// As [`Authority::issue`], valid from `from` (an hour earlier, as always): for tests of
    /// certificates that have expired or are not valid yet.
    #[cfg(test)]
    pub(crate) fn issue_from(&self, node: &NodeName, from: SystemTime, validity: Duration) -> Result<Identity, Error> {
        self.make(&self.mesh, node, Role::Node, from, validity)
    }

    fn make(
        &self,
        mesh: &MeshName,
        node: &NodeName,
        role: Role,
        from: SystemTime,
        validity: Duration,
    ) -> Result<Identity, Error> {
        let key = new_key()?;
        let certificate = self.sign(mesh, node, role, &key, from, validity)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Identity::new(vec![self.certificate.clone()], vec![certificate], key)
    }

    /// Signs a certificate for `node` with the key of a certificate signing request (PKCS #10,
    /// DER). Only the key is taken from the request, after its signature has proven that the
    /// requester has it. Answers the chain, leaf first.
    ///
    /// Nothing is recorded: use [`crate::Issuer`] where a name must not be given out twice.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the request is damaged or its key is not ECDSA P-256;
    /// [`Error::Sign`].
    pub fn sign_csr(
        &self,
        csr_der: &[u8],
        node: &NodeName,
        role: Role,
        validity: Duration,
    ) -> Result<Vec<CertificateDer<'static>>, Error> {
        let key = csr_key(csr_der)?;
        Ok(vec![self.sign(&self.mesh, node, role, &key, SystemTime::now(), validity)?])
    }

    fn sign(
        &self,
        mesh: &MeshName,
        node: &NodeName,
        role: Role,
        key: &impl PublicKeyData,
        from: SystemTime,
        validity: Duration,
    ) -> Result<CertificateDer<'static>, Error> {
        let end = from.checked_add(validity).map_or(self.not_after, |end| end.min(self.not_after));
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(node.to_string());
        params.subject_alt_names = vec![uri(node_uri(mesh, node, role))?];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        params.not_before = OffsetDateTime::from(from - BACKDATED);
        params.not_after = OffsetDateTime::from(end);
        params.serial_number = Some(new_serial()?);
        let certificate = params.signed_by(key, &self.issuer).map_err(Error::sign("node certificate"))?;
        Ok(certificate.der().clone())
    }
}

impl Signer for Authority {
    fn mesh(&self) -> &MeshName {
        &self.mesh
    }

    fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    fn sign_message(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.issuer.key().sign(message).map_err(Error::sign("signature"))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("mesh", &self.mesh)
            .field("fingerprint", &self.fingerprint())
            .finish_non_exhaustive()
    }
}

/// A new ECDSA P-256 key.
pub(crate) fn new_key() -> Result<KeyPair, Error> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(Error::sign("key"))
}

/// A request for a certificate with `key`. It contains no name: the name is asked for in a field of
/// its own, and the CA decides.
pub(crate) fn new_csr(key: &KeyPair) -> Result<Vec<u8>, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let csr = params.serialize_request(key).map_err(Error::sign("certificate request"))?;
    Ok(csr.der().to_vec())
}

/// The key of a certificate signing request whose signature holds.
pub(crate) fn csr_key(csr_der: &[u8]) -> Result<rcgen::PublicKey, Error> {
    let invalid = |reason: &str| Error::invalid("certificate request", reason);
    let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(csr_der))
        .map_err(|error| invalid(&error.to_string()))?;
    // The signature's algorithm does not tell the curve: a P-384 key may sign with SHA-256 too.
    let key = request.public_key;
    let right_curve = key.algorithm() == &PKCS_ECDSA_P256_SHA256 && key.der_bytes().len() == P256_POINT_BYTES;
    if right_curve { Ok(key) } else { Err(invalid("its key is not an ECDSA P-256 key")) }
}

fn common_name(name: String) -> DistinguishedName {
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::CommonName, name);
    distinguished_name
}

fn uri(uri: String) -> Result<SanType, Error> {
    Ok(SanType::URI(uri.try_into().map_err(Error::sign("URI name"))?))
}

/// A random serial number of 16 bytes, positive and without leading zeros (RFC 5280, 4.1.2.2).
fn new_serial() -> Result<SerialNumber, Error> {
    let mut bytes = [0; 16];
    files::fill_random(&mut bytes)?;
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    fn authority() -> Authority {
        Authority::create(&"m".parse().unwrap()).unwrap()
    }

    #[test]
    fn survives_the_disk_and_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(!Authority::exists(dir));
        assert!(matches!(Authority::load(dir), Err(Error::Missing { .. })));
        let saved = authority();
        saved.save(dir).unwrap();
        let loaded = Authority::load(dir).unwrap();
        assert_eq!((loaded.fingerprint(), loaded.mesh()), (saved.fingerprint(), saved.mesh()));
        assert!(matches!(authority().save(dir), Err(Error::Exists { .. })));
        assert_eq!(Authority::load(dir).unwrap().fingerprint(), saved.fingerprint());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir.join("ca")), mode(&dir.join("ca/authority.pem"))), (0o700, 0o600));
        // What it signs after a reload is good under the certificate it had before.
        let identity = loaded.issue(&"n".parse().unwrap(), NODE_VALIDITY).unwrap();
        assert_eq!(identity.ca_fingerprint(), saved.fingerprint());
        identity.check_valid(SystemTime::now()).unwrap();
    }

    #[test]
    fn a_damaged_ca_says_so() {
        let dir = tempfile::tempdir().unwrap();
        authority().save(dir.path()).unwrap();
        let path = dir.path().join("ca/authority.pem");
        let full = fs::read_to_string(&path).unwrap();
        let other = tempfile::tempdir().unwrap();
        authority().save(other.path()).unwrap();
        let other = fs::read_to_string(other.path().join("ca/authority.pem")).unwrap();
        let split = |text: &str| text.find("-----BEGIN CERTIFICATE").unwrap();
        let mixed = format!("{}{}", &full[..split(&full)], &other[split(&other)..]);
        for contents in [&full[..full.len() / 2], "", "garbage", &full[..split(&full)], &mixed] {
            fs::write(&path, contents).unwrap();
            let error = Authority::load(dir.path()).unwrap_err();
            assert!(matches!(error, Error::Malformed { .. }), "{error}");
        }
    }

    #[test]
    fn validity_is_what_was_asked_but_never_longer_than_the_ca() {
        let ca = authority();
        let node = "n".parse().unwrap();
        let short = ca.issue(&node, Duration::from_secs(7200)).unwrap();
        let now = SystemTime::now();
        short.check_valid(now).unwrap();
        short.check_valid(now - Duration::from_secs(1800)).unwrap();
        for then in [now + Duration::from_secs(7300), now - Duration::from_secs(7200)] {
            assert!(matches!(short.check_valid(then), Err(Error::Untrusted(_))));
        }
        for validity in [CA_VALIDITY * 2, Duration::MAX] {
            assert_eq!(ca.issue(&node, validity).unwrap().not_after(), ca.not_after());
        }
    }

    #[test]
    fn only_the_key_of_a_request_counts() {
        let ca = authority();
        let key = new_key().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![uri("rankmesh://m/root".into()).unwrap()];
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = common_name("root".into());
        let csr = params.serialize_request(&key).unwrap();
        let chain = ca.sign_csr(csr.der(), &"n".parse().unwrap(), Role::Node, NODE_VALIDITY).unwrap();
        let leaf = chain::leaf(&chain[0]).unwrap();
        assert_eq!(leaf.node.as_str(), "n");
        assert_eq!(leaf.public_key, key.subject_public_key_info());
        assert!(chain::authority(&chain[0]).is_err());
    }

    #[test]
    fn other_kinds_of_keys_are_refused() {
        let ca = authority();
        for algorithm in [&rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
            let csr = new_csr(&KeyPair::generate_for(algorithm).unwrap()).unwrap();
            assert!(matches!(
                ca.sign_csr(&csr, &"n".parse().unwrap(), Role::Node, NODE_VALIDITY),
                Err(Error::Invalid { .. })
            ));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn damaged_requests_never_yield_another_key(
            flip in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<prop::sample::Index>(),
        ) {
            let csr = new_csr(&new_key().unwrap()).unwrap();
            let mut flipped = csr.clone();
            let position = flip.index(csr.len());
            flipped[position] ^= 1 << bit;
            // What the signature does not cover (the name of its own algorithm) may be read
            // leniently.
            if let Ok(key) = csr_key(&flipped) {
                prop_assert_eq!(key, csr_key(&csr).unwrap());
            }
            prop_assert!(csr_key(&csr[..cut.index(csr.len())]).is_err());
        }

        #[test]
        fn garbage_requests_are_errors(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(csr_key(&bytes).is_err());
        }
    }
}
