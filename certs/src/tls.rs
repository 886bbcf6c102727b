//! TLS configurations of the mesh: who may speak to whom. TLS 1.3 with aws-lc-rs and nothing else;
//! no early data.
//!
//! One port serves two protocols, distinguished by ALPN:
//!
//! - [`ALPN_MESH`]: both ends show a certificate of the mesh's CA.
//! - [`ALPN_JOIN`]: the joiner has none yet; it recognises the server by the CA that its token
//!   pins.
//!
//! TLS asks for a client certificate before it is known which of the two the client wants, so a
//! server that accepts joiners ([`server_config`] with `accept_join`) verifies a client certificate
//! that is shown but does not insist on one. **After every handshake with [`ALPN_MESH`] call
//! [`peer_node`]**, and close the connection if it errs. It judges the certificate anew, so it also
//! holds for resumed sessions, where TLS itself does not look at certificates again.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::fingerprint::sha256;
use crate::provider::provider;
use crate::trust::TrustList;
use crate::{Error, Fingerprint, Identity, JoinToken, MeshName, NodeName, Role, chain};

/// Protocol of members.
pub const ALPN_MESH: &[u8] = b"rankmesh/1";
/// Protocol of those who want to become one.
pub const ALPN_JOIN: &[u8] = b"rankmesh-join/1";
/// The server name to dial with when it is not known which node will answer. (No certificate bears
/// it: names are in the URI. TLS wants some name to call a server by.)
pub const SERVER_NAME: &str = "any.rankmesh";
/// Ends the server names made by [`server_name`].
const NODE_SUFFIX: &str = ".node.rankmesh";
/// Sessions kept for resumption, at each end.
const RESUMABLE_SESSIONS: usize = 1024;

/// The server name to dial `node` with: the handshake fails where another node answers, and session
/// tickets of different nodes are kept apart. It is a hash, as a node's name need not be a DNS
/// name.
pub fn server_name(node: &NodeName) -> String {
    let hash = sha256(node.as_str().as_bytes());
    let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    hex + NODE_SUFFIX
}

/// Configuration of a node's listening side.
///
/// With `accept_join` it also speaks [`ALPN_JOIN`], sends the CA certificate along (a joiner knows
/// only its hash), and lets clients without certificate through the handshake: see [`peer_node`].
/// Without, it speaks [`ALPN_MESH`] only and a client without certificate does not get through.
///
/// # Errors
/// [`Error::Tls`], [`Error::Invalid`].
pub fn server_config(id: &Identity, accept_join: bool) -> Result<ServerConfig, Error> {
    let verifier = ClientVerifier::new(id, accept_join)?;
    let extra = if accept_join { id.authorities() } else { &[] };
    let mut config = ServerConfig::builder_with_provider(provider().clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(Error::Tls)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(id.certified_key(extra)?)));
    config.alpn_protocols = vec![ALPN_MESH.to_vec()];
    if accept_join {
        config.alpn_protocols.push(ALPN_JOIN.to_vec());
    }
    config.session_storage = ServerSessionMemoryCache::new(RESUMABLE_SESSIONS);
    Ok(config)
}

/// Configuration of a node's dialling side, for [`ALPN_MESH`]. The server must be a member of our
/// mesh; dialled by [`server_name`], it must be that member.
///
/// # Errors
/// [`Error::Tls`], [`Error::Invalid`].
pub fn client_config(id: &Identity) -> Result<ClientConfig, Error> {
    let trust = Trust::Roots(chain::roots(id.authorities())?);
    let verifier = ServerVerifier { mesh: id.mesh().clone(), trust, revoked: id.trust().cloned() };
    let mut config = ClientConfig::builder_with_provider(provider().clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(Error::Tls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(id.certified_key(&[])?)));
    config.alpn_protocols = vec![ALPN_MESH.to_vec()];
    config.resumption = Resumption::in_memory_sessions(RESUMABLE_SESSIONS);
    Ok(config)
}

/// Configuration of a joiner, for [`ALPN_JOIN`]: shows no certificate. The server must show the CA
/// certificate that the token pins, and its own of that CA for that mesh.
///
/// # Errors
/// [`Error::Tls`].
pub fn join_client_config(token: &JoinToken) -> Result<ClientConfig, Error> {
    let verifier = ServerVerifier { mesh: token.mesh().clone(), trust: Trust::Pinned(token.ca()), revoked: None };
    let mut config = ClientConfig::builder_with_provider(provider().clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(Error::Tls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_JOIN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The peer of a connection, by its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: NodeName,
    /// What it may do.
    pub role: Role,
    /// The serial number of its certificate, in hexadecimal.
    pub serial: String,
    /// The end of its certificate.
    pub not_after: SystemTime,
}

/// Who of our mesh showed these certificates (leaf first; empty where the peer showed none): the
/// chain holds, its time is now, and it is not revoked.
///
/// # Errors
/// [`Error::NoCertificate`], [`Error::Untrusted`], [`Error::OtherMesh`], [`Error::Revoked`]: close
/// the connection.
pub fn peer(certs: &[CertificateDer<'_>], id: &Identity) -> Result<Peer, Error> {
    peer_at(certs, id, SystemTime::now())
}

fn peer_at(certs: &[CertificateDer<'_>], id: &Identity, now: SystemTime) -> Result<Peer, Error> {
    let leaf = chain::verify(certs, &chain::roots(id.authorities())?, id.mesh(), chain::unix_time(now))?;
    check_revoked(id.trust().map(Arc::as_ref), &leaf.serial)?;
    Ok(Peer { name: leaf.node, role: leaf.role, serial: leaf.serial, not_after: leaf.not_after })
}

fn check_revoked(list: Option<&TrustList>, serial: &str) -> Result<(), Error> {
    match list {
        Some(list) if list.revokes(serial) => Err(Error::Revoked { serial: serial.to_owned() }),
        _ => Ok(()),
    }
}

/// Whether `signature` over `message` was made by the member `node` of our mesh, whose certificate
/// is `certificate`; returns that certificate's contents.
///
/// # Errors
/// As [`peer`]; [`Error::OtherNode`] where the certificate is another's, [`Error::WrongRole`] where
/// it is no node's, [`Error::Untrusted`] where the signature does not hold.
pub fn check_signed(
    id: &Identity,
    node: &str,
    certificate: &CertificateDer<'_>,
    message: &[u8],
    signature: &[u8],
) -> Result<Peer, Error> {
    let peer = peer(std::slice::from_ref(certificate), id)?;
    if peer.name.as_str() != node {
        return Err(Error::OtherNode { found: peer.name });
    }
    if peer.role != Role::Node {
        return Err(Error::WrongRole { found: peer.role, needed: "a node's" });
    }
    check_signature(certificate, message, signature)?;
    Ok(peer)
}

/// Only the signature: for a certificate that was judged before.
///
/// # Errors
/// [`Error::Untrusted`].
pub fn check_signature(certificate: &CertificateDer<'_>, message: &[u8], signature: &[u8]) -> Result<(), Error> {
    if chain::signed_by(certificate, message, signature) {
        Ok(())
    } else {
        Err(Error::Untrusted("it did not make the signature".into()))
    }
}

/// Which member of our mesh showed these certificates (leaf first; empty where the peer showed
/// none).
///
/// # Errors
/// [`Error::NoCertificate`], [`Error::Untrusted`], [`Error::OtherMesh`]: close the connection.
pub fn peer_node(certs: &[CertificateDer<'_>], id: &Identity) -> Result<NodeName, Error> {
    peer_node_at(certs, id, SystemTime::now())
}

fn peer_node_at(certs: &[CertificateDer<'_>], id: &Identity, now: SystemTime) -> Result<NodeName, Error> {
    let peer = peer_at(certs, id, now)?;
    if peer.role == Role::Node { Ok(peer.name) } else { Err(Error::WrongRole { found: peer.role, needed: "a node's" }) }
}

/// rustls shows the `Debug` form of errors that are not its own, and that is what reaches people
/// through QUIC.
struct Reason(Error);

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for Reason {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

fn refusal(error: Error) -> rustls::Error {
    rustls::CertificateError::Other(rustls::OtherError(Arc::new(Reason(error)))).into()
}

/// The reason of ours in the text of a TLS fault, without what rustls puts around it; any other
/// text as it is.
///
/// For faults that come as text only, as QUIC's do.
pub fn plain_reason(fault: &str) -> &str {
    fault.strip_prefix(WRAPPING.0).and_then(|rest| rest.strip_suffix(WRAPPING.1)).unwrap_or(fault)
}

/// How rustls shows a certificate error of ours.
const WRAPPING: (&str, &str) = ("invalid peer certificate: Other(OtherError(", "))");

/// What a client trusts a server by.
#[derive(Debug)]
enum Trust {
    /// The CA certificates it has.
    Roots(RootCertStore),
    /// The CA certificate with this hash, which the server must send along.
    Pinned(Fingerprint),
}

/// A client's judgement of a server.
#[derive(Debug)]
struct ServerVerifier {
    mesh: MeshName,
    trust: Trust,
    revoked: Option<Arc<TrustList>>,
}

impl ServerVerifier {
    fn verify(&self, certs: &[CertificateDer<'_>], name: &ServerName<'_>, now: UnixTime) -> Result<(), Error> {
        let leaf = match &self.trust {
            Trust::Roots(roots) => chain::verify(certs, roots, &self.mesh, now)?,
            Trust::Pinned(pin) => {
                let pinned = certs.iter().skip(1).find(|cert| &Fingerprint::of(cert) == pin).ok_or(Error::NotPinned)?;
                chain::verify(certs, &chain::roots(&[pinned.clone().into_owned()])?, &self.mesh, now)?
            }
        };
        check_revoked(self.revoked.as_deref(), &leaf.serial)?;
        if leaf.role != Role::Node {
            return Err(Error::WrongRole { found: leaf.role, needed: "a node's" });
        }
        match name {
            ServerName::DnsName(name)
                if name.as_ref().ends_with(NODE_SUFFIX) && name.as_ref() != server_name(&leaf.node) =>
            {
                Err(Error::OtherNode { found: leaf.node })
            }
            _ => Ok(()),
        }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certs: Vec<_> = std::iter::once(end_entity).chain(intermediates).cloned().collect();
        self.verify(&certs, server_name, now).map_err(refusal)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A server's judgement of a client: webpki's (chain, time, client use), and the mesh in the name.
#[derive(Debug)]
struct ClientVerifier {
    webpki: Arc<dyn ClientCertVerifier>,
    mesh: MeshName,
    revoked: Option<Arc<TrustList>>,
}

impl ClientVerifier {
    fn new(id: &Identity, optional: bool) -> Result<Self, Error> {
        let roots = Arc::new(chain::roots(id.authorities())?);
        let builder = WebPkiClientVerifier::builder_with_provider(roots, provider().clone());
        let builder = if optional { builder.allow_unauthenticated() } else { builder };
        let webpki = builder.build().map_err(|error| Error::invalid("CA certificate", error))?;
        Ok(Self { webpki, mesh: id.mesh().clone(), revoked: id.trust().cloned() })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.webpki.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.webpki.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.webpki.verify_client_cert(end_entity, intermediates, now)?;
        let judged = chain::leaf(end_entity).and_then(|leaf| {
            chain::check_mesh(&leaf, &self.mesh)?;
            check_revoked(self.revoked.as_deref(), &leaf.serial)
        });
        judged.map_err(refusal)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests;
