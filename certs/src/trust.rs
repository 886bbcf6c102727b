//! The trust list of a mesh: which CAs are trusted and which certificates are revoked, signed by
//! the CA. It goes from node to node like gossip, so whoever hands it on need not be believed: the
//! signature counts, and the number.
//!
//! # Form
//!
//! ```text
//! {"statement": "TEXT", "signatures": [{"ca": "SHA-256 of a CA certificate", "signature": "base64 of DER"}, …]}
//! TEXT = {"version":1, "mesh":"NAME", "number":N, "issued_unix_s":S, "roots":["base64 of DER", …],
//!         "revoked":[{"serial":"hex", "until_unix_s":S, "shuts_out":"NODE"}, …]}
//! ```
//!
//! The signatures are ECDSA P-256 with SHA-256 over `rankmesh trust list 1\n` and the bytes of
//! TEXT. A list counts for who trusts one of the CAs that signed it, and replaces every list with a
//! lower number. `roots` are the CAs trusted from then on, the one that issues first: two while a
//! new CA takes over. A revoked certificate stays on the list until it has ended by itself. It names
//! its node where that has no other certificate: who knows a node by hearsay, without its seal, lists it
//! no more.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use crate::chain::{self, unix_s};
use crate::files::{self, Replace};
use crate::{Error, Fingerprint, MeshName, NodeName};

/// No trust list is longer; read no more than this from a peer.
pub const MAX_TRUST_BYTES: usize = 2 << 20;
/// The list, in the identity directory.
const TRUST_FILE: &str = "trust.json";
const VERSION: u8 = 1;
/// What is signed begins with this, so that no other signature of a CA is taken for one.
const CONTEXT: &[u8] = b"rankmesh trust list 1\n";
/// CAs trusted at a time, and signatures looked at.
const MAX_ROOTS: usize = 4;

#[derive(Serialize, Deserialize)]
struct Signed {
    statement: String,
    signatures: Vec<Signature>,
}

#[derive(Serialize, Deserialize)]
struct Signature {
    ca: Fingerprint,
    signature: String,
}

#[derive(Serialize, Deserialize)]
struct Statement {
    version: u8,
    mesh: MeshName,
    number: u64,
    issued_unix_s: u64,
    roots: Vec<String>,
    revoked: Vec<Revoked>,
}

/// A revoked certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// Its serial number in hexadecimal.
    pub serial: String,
    /// Its end; it need not be listed after.
    pub until_unix_s: u64,
    /// Its node, where that has no certificate which is not revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shuts_out: Option<NodeName>,
}

/// Who signs trust lists: a CA of the mesh.
pub(crate) trait Signer {
    /// The mesh whose CA it is.
    fn mesh(&self) -> &MeshName;
    /// Its CA certificate.
    fn certificate(&self) -> &CertificateDer<'static>;
    /// Signs `message`: ECDSA P-256 with SHA-256, DER.
    fn sign_message(&self, message: &[u8]) -> Result<Vec<u8>, Error>;
}

/// A trust list whose signature was checked.
pub struct TrustList {
    number: u64,
    roots: Vec<CertificateDer<'static>>,
    revoked: HashMap<String, Revoked>,
    shut_out: HashSet<String>,
    bytes: Vec<u8>,
}

impl TrustList {
    /// Reads a list and checks that it is for `mesh` and that one of `trusted` signed it.
    ///
    /// # Errors
    /// [`Error::Invalid`] where it is damaged or signed by nobody trusted, [`Error::OtherMesh`].
    pub fn verify(bytes: &[u8], mesh: &MeshName, trusted: &[CertificateDer<'static>]) -> Result<Self, Error> {
        let invalid = |reason: &str| Error::invalid("trust list", reason);
        if bytes.len() > MAX_TRUST_BYTES {
            return Err(invalid("it is too long"));
        }
        let signed: Signed = serde_json::from_slice(bytes).map_err(|error| Error::invalid("trust list", error))?;
        let message = message(&signed.statement);
        let vouched = signed.signatures.iter().take(MAX_ROOTS).any(|signature| {
            let by = trusted.iter().find(|ca| Fingerprint::of(ca) == signature.ca);
            let Some((ca, der)) = by.zip(STANDARD.decode(&signature.signature).ok()) else { return false };
            chain::signed_by(ca, &message, &der)
        });
        if !vouched {
            return Err(invalid("no CA that this node trusts has signed it"));
        }
        let statement: Statement =
            serde_json::from_str(&signed.statement).map_err(|error| Error::invalid("trust list", error))?;
        if statement.version != VERSION {
            return Err(invalid("it is of another version of rankmesh"));
        }
        if statement.mesh != *mesh {
            return Err(Error::OtherMesh { expected: mesh.clone(), found: statement.mesh });
        }
        if !(1..=MAX_ROOTS).contains(&statement.roots.len()) {
            return Err(invalid("it names no CA, or too many"));
        }
        let mut roots = Vec::new();
        for root in &statement.roots {
            let der = STANDARD.decode(root).map_err(|_| invalid("a CA certificate in it is not base64"))?;
            let root = CertificateDer::from(der);
            let (of, _) = chain::authority(&root)?;
            if of != *mesh {
                return Err(Error::OtherMesh { expected: mesh.clone(), found: of });
            }
            roots.push(root);
        }
        chain::roots(&roots)?;
        let shut_out = statement.revoked.iter().filter_map(|entry| entry.shuts_out.as_ref().map(NodeName::to_string));
        let shut_out = shut_out.collect();
        let revoked = statement.revoked.into_iter().map(|entry| (entry.serial.clone(), entry)).collect();
        Ok(Self { number: statement.number, roots, revoked, shut_out, bytes: bytes.to_vec() })
    }

    /// Makes and signs a list; what ended before `now` is left off it.
    pub(crate) fn sign(
        number: u64,
        signers: &[&impl Signer],
        revoked: impl IntoIterator<Item = Revoked>,
        now: SystemTime,
    ) -> Result<Self, Error> {
        let first = signers.first().ok_or_else(|| Error::invalid("trust list", "nobody signs it"))?;
        let now_s = unix_s(now);
        let mut revoked: Vec<Revoked> = revoked.into_iter().filter(|entry| entry.until_unix_s >= now_s).collect();
        revoked.sort_by(|a, b| a.serial.cmp(&b.serial));
        revoked.dedup_by(|a, b| a.serial == b.serial);
        let roots: Vec<_> = signers.iter().map(|ca| ca.certificate().clone()).collect();
        let statement = Statement {
            version: VERSION,
            mesh: first.mesh().clone(),
            number,
            issued_unix_s: now_s,
            roots: roots.iter().map(|root| STANDARD.encode(root)).collect(),
            revoked,
        };
        let statement = serde_json::to_string(&statement).map_err(|error| Error::invalid("trust list", error))?;
        let message = message(&statement);
        let mut signatures = Vec::new();
        for ca in signers {
            let signature = STANDARD.encode(ca.sign_message(&message)?);
            signatures.push(Signature { ca: Fingerprint::of(ca.certificate()), signature });
        }
        let bytes = serde_json::to_vec(&Signed { statement, signatures })
            .map_err(|error| Error::invalid("trust list", error))?;
        Self::verify(&bytes, first.mesh(), &roots)
    }

    /// As [`TrustList::sign`], with a second signature by `also`, a CA that the list no longer
    /// trusts.
    pub(crate) fn cosign(self, also: &impl Signer) -> Result<Self, Error> {
        let invalid = |error: serde_json::Error| Error::invalid("trust list", error);
        let mut signed: Signed = serde_json::from_slice(&self.bytes).map_err(invalid)?;
        let signature = STANDARD.encode(also.sign_message(&message(&signed.statement))?);
        signed.signatures.push(Signature { ca: Fingerprint::of(also.certificate()), signature });
        Ok(Self { bytes: serde_json::to_vec(&signed).map_err(invalid)?, ..self })
    }

    /// Reads the list kept in the identity directory `dir`, if there is one.
    pub(crate) fn load(
        dir: &Path,
        mesh: &MeshName,
        trusted: &[CertificateDer<'static>],
    ) -> Result<Option<Self>, Error> {
        let path = dir.join(TRUST_FILE);
        let Some(bytes) = files::read_if_there(&path)? else { return Ok(None) };
        Self::verify(&bytes, mesh, trusted).map(Some).map_err(|error| Error::malformed(&path, error))
    }

    /// Writes the list into the identity directory `dir`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        files::write(&dir.join(TRUST_FILE), &self.bytes, files::PUBLIC, Replace::Yes)
    }

    /// Where the list lies in the identity directory `dir`.
    #[must_use]
    pub fn path(dir: &Path) -> std::path::PathBuf {
        dir.join(TRUST_FILE)
    }

    /// When the list in `dir` last changed: the time of its file; `None` where there is none.
    #[must_use]
    pub fn changed(dir: &Path) -> Option<SystemTime> {
        std::fs::metadata(dir.join(TRUST_FILE)).and_then(|metadata| metadata.modified()).ok()
    }

    /// Its number: of two lists the one with the higher number counts.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The CAs that are trusted, the one that issues first.
    #[must_use]
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// Whether the certificate with this serial number (hexadecimal) is revoked.
    #[must_use]
    pub fn revokes(&self, serial: &str) -> bool {
        self.revoked.contains_key(serial)
    }

    /// The revoked certificates.
    pub fn revoked(&self) -> impl Iterator<Item = Revoked> {
        self.revoked.values().cloned()
    }

    /// Whether all certificates of this node are revoked.
    #[must_use]
    pub fn shuts_out(&self, node: &str) -> bool {
        self.shut_out.contains(node)
    }

    /// The list as it travels.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for TrustList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustList")
            .field("number", &self.number)
            .field("roots", &self.roots.len())
            .field("revoked", &self.revoked.len())
            .finish_non_exhaustive()
    }
}

fn message(statement: &str) -> Vec<u8> {
    [CONTEXT, statement.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Authority;

    fn authority(mesh: &str) -> Authority {
        Authority::create(&mesh.parse().unwrap()).unwrap()
    }

    fn revoked(serial: &str) -> Revoked {
        Revoked { serial: serial.to_owned(), until_unix_s: u64::from(u32::MAX), shuts_out: None }
    }

    #[test]
    fn a_list_counts_for_who_trusts_a_signer() {
        let (old, new, other) = (authority("m"), authority("m"), authority("m"));
        let list = TrustList::sign(3, &[&new, &old], [revoked("ab")], SystemTime::now()).unwrap();
        for trusted in [&old, &new] {
            let read = TrustList::verify(list.bytes(), old.mesh(), &[trusted.certificate().clone()]).unwrap();
            assert_eq!((read.number(), read.roots().len()), (3, 2));
            assert!(read.revokes("ab") && !read.revokes("ac"));
        }
        let error = TrustList::verify(list.bytes(), old.mesh(), &[other.certificate().clone()]).unwrap_err();
        assert!(error.to_string().contains("has signed it"), "{error}");
        let error = TrustList::verify(list.bytes(), &"x".parse().unwrap(), list.roots()).unwrap_err();
        assert!(matches!(error, Error::OtherMesh { .. }), "{error}");
    }

    #[test]
    fn what_has_ended_is_left_off() {
        let ca = authority("m");
        let ended = Revoked { serial: "aa".into(), until_unix_s: 5, shuts_out: None };
        let list = TrustList::sign(1, &[&ca], [ended, revoked("bb"), revoked("bb")], SystemTime::now()).unwrap();
        assert_eq!(list.revoked().collect::<Vec<_>>(), [revoked("bb")]);
    }

    #[test]
    fn a_cosigned_list_counts_for_who_trusts_the_former_ca_only() {
        let (old, new) = (authority("m"), authority("m"));
        let list = TrustList::sign(2, &[&new], [], SystemTime::now()).unwrap().cosign(&old).unwrap();
        let read = TrustList::verify(list.bytes(), old.mesh(), &[old.certificate().clone()]).unwrap();
        assert_eq!(read.roots(), [new.certificate().clone()]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn a_changed_list_says_the_same_or_nothing(flip in any::<prop::sample::Index>(), bit in 0u8..8) {
            static LIST: std::sync::OnceLock<(TrustList, MeshName)> = std::sync::OnceLock::new();
            let (list, mesh) = LIST.get_or_init(|| {
                let ca = authority("m");
                (TrustList::sign(7, &[&ca], [revoked("ab")], SystemTime::now()).unwrap(), ca.mesh().clone())
            });
            let mut bytes = list.bytes().to_vec();
            let position = flip.index(bytes.len());
            bytes[position] ^= 1 << bit;
            if let Ok(read) = TrustList::verify(&bytes, mesh, list.roots()) {
                prop_assert_eq!((read.number(), read.roots()), (list.number(), list.roots()));
                prop_assert!(read.revokes("ab"));
            }
        }

        #[test]
        fn garbage_is_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(TrustList::verify(&bytes, &"m".parse().unwrap(), &[]).is_err());
        }
    }
}
