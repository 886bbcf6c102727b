//! What is in a certificate and whether a chain holds: names, validity, signature by the mesh's CA.
//! The TLS handshake (`tls`), the join exchange (`join`) and loading from disk (`identity`) all
//! judge through here.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::server::ParsedCertificate;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::name::{parse_mesh_uri, parse_node_uri};
use crate::provider::provider;
use crate::{Error, MeshName, NodeName, Role};

/// Certificates are valid from this long before they are made, for hosts whose clock is behind.
pub(crate) const BACKDATED: Duration = Duration::from_secs(3600);

/// What a node certificate states. None of it is proven until [`verify`] has succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) mesh: MeshName,
    pub(crate) node: NodeName,
    pub(crate) role: Role,
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
    /// The serial number in hexadecimal.
    pub(crate) serial: String,
    /// The SubjectPublicKeyInfo, DER.
    pub(crate) public_key: Vec<u8>,
}

/// Reads a node certificate.
pub(crate) fn leaf(certificate: &CertificateDer<'_>) -> Result<Leaf, Error> {
    let parsed = parse(certificate)?;
    let (mesh, node, role) = parse_node_uri(only_uri(&parsed)?).ok_or_else(|| {
        Error::invalid("node certificate", "its URI name is neither rankmesh://MESH/NODE nor rankmesh://MESH/ROLE/NAME")
    })?;
    Ok(Leaf {
        mesh,
        node,
        role,
        not_before: time(parsed.validity().not_before.timestamp()),
        not_after: not_after(&parsed),
        serial: parsed.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
        public_key: parsed.public_key().raw.to_vec(),
    })
}

/// Reads a CA certificate: the mesh it is for, and its end.
pub(crate) fn authority(certificate: &CertificateDer<'_>) -> Result<(MeshName, SystemTime), Error> {
    let parsed = parse(certificate)?;
    if !parsed.is_ca() {
        return Err(Error::invalid("CA certificate", "it is a node's, not a CA's"));
    }
    let mesh = parse_mesh_uri(only_uri(&parsed)?)
        .ok_or_else(|| Error::invalid("CA certificate", "its URI name is not rankmesh://MESH"))?;
    Ok((mesh, not_after(&parsed)))
}

/// The SubjectPublicKeyInfo of a certificate, DER.
pub(crate) fn public_key(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, Error> {
    Ok(parse(certificate)?.public_key().raw.to_vec())
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Error> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        Ok(_) => Err(Error::invalid("certificate", "bytes follow its end")),
        Err(error) => Err(Error::invalid("certificate", error)),
    }
}

/// The one URI name of a certificate; two would leave open which one counts.
fn only_uri<'a>(certificate: &'a X509Certificate<'_>) -> Result<&'a str, Error> {
    let names = certificate
        .subject_alternative_name()
        .map_err(|error| Error::invalid("certificate", error))?
        .ok_or_else(|| Error::invalid("certificate", "it has no subject alternative name"))?;
    let mut uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    match (uris.next(), uris.next()) {
        (Some(uri), None) => Ok(uri),
        (None, _) => Err(Error::invalid("certificate", "it has no URI name")),
        (Some(_), Some(_)) => Err(Error::invalid("certificate", "it has more than one URI name")),
    }
}

fn not_after(certificate: &X509Certificate<'_>) -> SystemTime {
    time(certificate.validity().not_after.timestamp())
}

fn time(unix_s: i64) -> SystemTime {
    // A time before 1970 has passed all the same.
    UNIX_EPOCH + Duration::from_secs(u64::try_from(unix_s).unwrap_or(0))
}

/// Whether `signature` (ECDSA P-256 with SHA-256, DER) over `message` was made with the key of
/// `certificate`.
pub(crate) fn signed_by(certificate: &CertificateDer<'_>, message: &[u8], signature: &[u8]) -> bool {
    let Ok(parsed) = parse(certificate) else { return false };
    let key = &parsed.public_key().subject_public_key.data;
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key.as_ref()).verify(message, signature).is_ok()
}

/// Trust in `authorities` and nothing else.
pub(crate) fn roots(authorities: &[CertificateDer<'static>]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).map_err(|error| Error::invalid("CA certificate", error))?;
    }
    Ok(roots)
}

/// Checks that `chain` (leaf first) leads to `roots` at `now`, may be used by a server, and that
/// the leaf is for `mesh`. Node certificates are issued for both ends of a connection; that a
/// client's is for clients is checked where a client shows it.
pub(crate) fn verify(
    chain: &[CertificateDer<'_>],
    roots: &RootCertStore,
    mesh: &MeshName,
    now: UnixTime,
) -> Result<Leaf, Error> {
    let (first, intermediates) = chain.split_first().ok_or(Error::NoCertificate)?;
    let parsed = ParsedCertificate::try_from(first).map_err(untrusted)?;
    let algorithms = provider().signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms).map_err(untrusted)?;
    let leaf = leaf(first)?;
    check_mesh(&leaf, mesh)?;
    Ok(leaf)
}

/// Checks that the leaf is for `mesh`.
pub(crate) fn check_mesh(leaf: &Leaf, mesh: &MeshName) -> Result<(), Error> {
    if &leaf.mesh != mesh {
        return Err(Error::OtherMesh { expected: mesh.clone(), found: leaf.mesh.clone() });
    }
    Ok(())
}

fn untrusted(error: rustls::Error) -> Error {
    use rustls::{CertificateError, Error as Tls};
    Error::Untrusted(match &error {
        Tls::InvalidCertificate(CertificateError::UnknownIssuer) => "it was issued by another CA".into(),
        Tls::InvalidCertificate(CertificateError::BadSignature) => {
            "it was issued by another CA of that name, or is damaged".into()
        }
        Tls::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            format!("it has expired, or a clock is wrong ({error})")
        }
        Tls::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            format!("it is not valid yet: is a clock wrong? ({error})")
        }
        _ => error.to_string(),
    })
}

/// Whole seconds since 1970; a time before counts as 1970.
pub(crate) fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The time as webpki wants it; a time before 1970 counts as 1970.
pub(crate) fn unix_time(time: SystemTime) -> UnixTime {
    UnixTime::since_unix_epoch(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Authority, NODE_VALIDITY};

    #[test]
    fn reads_what_the_authority_wrote() {
        let mesh: MeshName = "m".parse().unwrap();
        let ca = Authority::create(&mesh).unwrap();
        let identity = ca.issue(&"n".parse().unwrap(), NODE_VALIDITY).unwrap();
        let leaf = leaf(&identity.chain()[0]).unwrap();
        assert_eq!((leaf.mesh.as_str(), leaf.node.as_str()), ("m", "n"));
        let left = leaf.not_after.duration_since(SystemTime::now()).unwrap();
        assert!(NODE_VALIDITY - left < Duration::from_secs(60));
        assert_eq!(authority(ca.certificate()).unwrap().0, mesh);
        // Neither passes for the other.
        assert!(authority(&identity.chain()[0]).is_err());
        assert!(super::leaf(ca.certificate()).is_err());
    }

    proptest! {
        #[test]
        fn garbage_is_an_error(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let certificate = CertificateDer::from(bytes);
            prop_assert!(leaf(&certificate).is_err());
            prop_assert!(authority(&certificate).is_err());
        }

        #[test]
        fn a_flipped_bit_never_passes(position in any::<prop::sample::Index>(), bit in 0u8..8) {
            let (ca, identity) = sample();
            let mut bytes = identity.chain()[0].to_vec();
            let position = position.index(bytes.len());
            bytes[position] ^= 1 << bit;
            let roots = roots(std::slice::from_ref(ca.certificate())).unwrap();
            let now = unix_time(SystemTime::now());
            prop_assert!(verify(&[CertificateDer::from(bytes)], &roots, ca.mesh(), now).is_err());
        }
    }

    fn sample() -> &'static (Authority, crate::Identity) {
        static SAMPLE: std::sync::OnceLock<(Authority, crate::Identity)> = std::sync::OnceLock::new();
        SAMPLE.get_or_init(|| {
            let ca = Authority::create(&"m".parse().unwrap()).unwrap();
            let identity = ca.issue(&"n".parse().unwrap(), NODE_VALIDITY).unwrap();
            (ca, identity)
        })
    }
}
