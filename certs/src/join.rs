//! The join exchange: one request, one response, over a connection set up with
//! [`crate::tls::join_client_config`]. This module owns the messages and what both sides check;
//! carrying them (one bidirectional stream, the request ended by the stream's end, then the
//! response likewise) is the agent's.
//!
//! # Wire form
//!
//! JSON objects, at most [`MAX_MESSAGE_BYTES`] long. DER is standard base64, the secret is URL-safe
//! base64 unpadded.
//!
//! ```text
//! request   {"version":1, "secret":"…", "node":"NAME", "csr":"DER of a PKCS #10 request"}
//! accepted  {"version":1, "accepted":{"chain":["DER of the leaf", …], "authorities":["DER of the CA", …]}}
//! refused   {"version":1, "refused":{"reason":"text for people"}}
//! ```
//!
//! A CA answers a request of a version that it does not know with a refusal of version 1, so that
//! every joiner can show the reason. Unknown fields are ignored.

use std::fmt;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{KeyPair, PublicKeyData};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};

use crate::authority::{new_csr, new_key};
use crate::token::TokenSecret;
use crate::{Error, Fingerprint, Identity, Issuer, JoinToken, MeshName, NodeName, chain};

/// No message of the exchange is longer; read no more than this from a stream.
pub const MAX_MESSAGE_BYTES: usize = 16 << 10;
/// The version of the exchange.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Request {
    version: u32,
    secret: String,
    node: String,
    csr: String,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Response {
    version: u32,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Accepted { chain: Vec<String>, authorities: Vec<String> },
    Refused { reason: String },
}

/// The joiner's half of an exchange that is not over: its new private key, and what the answer has
/// to match.
pub struct PendingKey {
    key: KeyPair,
    mesh: MeshName,
    ca: Fingerprint,
    node: NodeName,
}

impl fmt::Debug for PendingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingKey").field("mesh", &self.mesh).field("node", &self.node).finish_non_exhaustive()
    }
}

/// The joiner's side, first step: makes a key and the request to send.
///
/// # Errors
/// [`Error::Sign`].
pub fn request(token: &JoinToken, node: &NodeName) -> Result<(Vec<u8>, PendingKey), Error> {
    let key = new_key()?;
    let request = Request {
        version: VERSION,
        secret: token.secret().to_text(),
        node: node.to_string(),
        csr: STANDARD.encode(new_csr(&key)?),
    };
    let bytes = serde_json::to_vec(&request).map_err(|error| Error::invalid("join request", error))?;
    let pending = PendingKey { key, mesh: token.mesh().clone(), ca: token.ca(), node: node.clone() };
    Ok((bytes, pending))
}

impl PendingKey {
    /// The joiner's side, second step: reads the response and puts the identity together.
    ///
    /// # Errors
    /// [`Error::Refused`] with the CA's reason; [`Error::Invalid`], [`Error::Untrusted`],
    /// [`Error::OtherMesh`], [`Error::OtherNode`] where what came is not a certificate for this
    /// key, name and mesh, by the pinned CA.
    pub fn complete(self, response: &[u8]) -> Result<Identity, Error> {
        let invalid = |reason: &str| Error::invalid("join response", reason);
        if response.len() > MAX_MESSAGE_BYTES {
            return Err(invalid("it is too long"));
        }
        let response: Response =
            serde_json::from_slice(response).map_err(|error| Error::invalid("join response", error))?;
        let (chain, authorities) = match response.outcome {
            Outcome::Refused { reason } => return Err(Error::Refused(printable(&reason))),
            Outcome::Accepted { .. } if response.version != VERSION => {
                return Err(invalid("it is of another version of rankmesh"));
            }
            Outcome::Accepted { chain, authorities } => (certificates(&chain)?, certificates(&authorities)?),
        };
        // Others than the pinned one are not ours to trust.
        let authorities: Vec<_> = authorities.into_iter().filter(|ca| Fingerprint::of(ca) == self.ca).collect();
        if authorities.is_empty() {
            return Err(invalid("it does not hold the CA certificate that the token pins"));
        }
        let leaf =
            chain::verify(&chain, &chain::roots(&authorities)?, &self.mesh, chain::unix_time(SystemTime::now()))?;
        if leaf.node != self.node {
            return Err(Error::OtherNode { found: leaf.node });
        }
        if leaf.public_key != self.key.subject_public_key_info() {
            return Err(invalid("its certificate is for another key"));
        }
        Identity::new(authorities, chain, PrivatePkcs8KeyDer::from(self.key.serialize_der()))
    }
}

/// The CA's side: judges a request and answers it. Every outcome is an answer: errors of the
/// request are refusals with their reason, errors of the CA itself are refusals without it and go
/// to the log.
///
/// Touches files and may wait for their lock: call it where blocking is allowed.
pub fn answer(request: &[u8], issuer: &Issuer) -> Answer {
    answer_at(request, issuer, SystemTime::now())
}

/// What the CA answers a joiner.
#[derive(Debug)]
pub struct Answer {
    /// The response to send.
    pub bytes: Vec<u8>,
    /// Whether it admits the joiner.
    pub admitted: bool,
}

/// A refusal without a look at the request.
#[must_use]
pub fn refuse(reason: &str) -> Vec<u8> {
    response(Outcome::Refused { reason: reason.to_owned() })
}

fn response(outcome: Outcome) -> Vec<u8> {
    // Serialising strings into memory does not fail; if it did, the joiner would get an empty
    // answer and report that.
    serde_json::to_vec(&Response { version: VERSION, outcome }).unwrap_or_default()
}

fn answer_at(request: &[u8], issuer: &Issuer, now: SystemTime) -> Answer {
    let outcome = match admit(request, issuer, now) {
        Ok((node, chain)) => {
            tracing::info!(%node, mesh = %issuer.authority().mesh(), "admitted a node");
            Outcome::Accepted {
                chain: chain.iter().map(|der| STANDARD.encode(der)).collect(),
                authorities: vec![STANDARD.encode(issuer.authority().certificate())],
            }
        }
        Err(error @ (Error::Io { .. } | Error::Malformed { .. } | Error::Sign { .. })) => {
            tracing::error!(%error, "the CA cannot answer a join request");
            Outcome::Refused { reason: "the CA has a problem of its own; its log says which".into() }
        }
        Err(error) => {
            tracing::warn!(%error, "refused a join request");
            Outcome::Refused { reason: error.to_string() }
        }
    };
    let admitted = matches!(outcome, Outcome::Accepted { .. });
    Answer { bytes: response(outcome), admitted }
}

/// Whether a request shows a token that `issuer` would take now. Nothing is written or waited for,
/// so that this can be looked at before anything else.
pub fn shows_right_token(request: &[u8], issuer: &Issuer) -> bool {
    let request = (request.len() <= MAX_MESSAGE_BYTES).then(|| serde_json::from_slice::<Request>(request).ok());
    let secret = request.flatten().and_then(|request| TokenSecret::from_text(&request.secret));
    secret.is_some_and(|secret| issuer.tokens().would_take(&secret, SystemTime::now()))
}

type Admitted = (NodeName, Vec<CertificateDer<'static>>);

fn admit(request: &[u8], issuer: &Issuer, now: SystemTime) -> Result<Admitted, Error> {
    let invalid = |reason: &str| Error::invalid("join request", reason);
    if request.len() > MAX_MESSAGE_BYTES {
        return Err(invalid("it is too long"));
    }
    let Versioned { version } =
        serde_json::from_slice(request).map_err(|error| Error::invalid("join request", error))?;
    if version != VERSION {
        return Err(invalid(&format!("it is of version {version}, this CA knows {VERSION}: use the same rankmesh")));
    }
    let request: Request = serde_json::from_slice(request).map_err(|error| Error::invalid("join request", error))?;
    let secret = TokenSecret::from_text(&request.secret).ok_or_else(|| invalid("its secret is damaged"))?;
    let node: NodeName = request.node.parse()?;
    let csr = STANDARD.decode(&request.csr).map_err(|_| invalid("its certificate request is not base64"))?;
    let chain = issuer.admit(&secret, &node, &csr, now)?;
    Ok((node, chain))
}

fn certificates(texts: &[String]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let decode = |text: &String| STANDARD.decode(text).map(CertificateDer::from);
    texts.iter().map(decode).collect::<Result<_, _>>().map_err(|error| Error::invalid("join response", error))
}

/// A reason from outside, made fit for a terminal: one line, no control characters, not endless.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(500).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::{NODE_VALIDITY, Role};

    const HOUR: Duration = Duration::from_secs(3600);

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    fn issuer(mesh: &str) -> (tempfile::TempDir, Issuer) {
        let dir = tempfile::tempdir().unwrap();
        let issuer = Issuer::init(dir.path(), &mesh.parse().unwrap()).unwrap();
        (dir, issuer)
    }

    fn token(issuer: &Issuer, uses: u32) -> JoinToken {
        issuer.tokens().create(HOUR, std::num::NonZeroU32::new(uses)).unwrap()
    }

    fn join(issuer: &Issuer, token: &JoinToken, node: &str) -> Result<Identity, Error> {
        let (request, pending) = request(token, &name(node))?;
        assert!(request.len() <= MAX_MESSAGE_BYTES);
        let response = answer(&request, issuer).bytes;
        assert!(response.len() <= MAX_MESSAGE_BYTES);
        pending.complete(&response)
    }

    fn refusal(result: Result<Identity, Error>) -> String {
        match result {
            Err(Error::Refused(reason)) => reason,
            other => panic!("not a refusal: {other:?}"),
        }
    }

    #[test]
    fn a_joiner_becomes_a_member() {
        let (_dir, issuer) = issuer("m");
        let identity = join(&issuer, &token(&issuer, 1), "n").unwrap();
        assert_eq!((identity.mesh().as_str(), identity.node().as_str()), ("m", "n"));
        assert_eq!(identity.ca_fingerprint(), issuer.authority().fingerprint());
        identity.check_valid(SystemTime::now()).unwrap();
        let issued = issuer.issued().unwrap();
        assert_eq!((issued.len(), issued[0].fingerprint), (1, identity.fingerprint()));
    }

    #[test]
    fn a_replayed_request_is_refused() {
        let (_dir, issuer) = issuer("m");
        let token = token(&issuer, 1);
        let (request, pending) = request(&token, &name("n")).unwrap();
        let first = answer(&request, &issuer).bytes;
        let again = answer(&request, &issuer).bytes;
        pending.complete(&first).unwrap();
        assert!(refusal(join(&issuer, &token, "other")).contains("used up"));
        assert!(String::from_utf8(again).unwrap().contains("used up"));
        assert_eq!(issuer.issued().unwrap().len(), 1);
    }

    #[test]
    fn an_expired_token_is_refused() {
        let (_dir, issuer) = issuer("m");
        let token = token(&issuer, 1);
        let (request, pending) = request(&token, &name("n")).unwrap();
        let response = answer_at(&request, &issuer, SystemTime::now() + HOUR).bytes;
        assert!(refusal(pending.complete(&response)).contains("expired"));
        join(&issuer, &token, "n").unwrap();
    }

    #[test]
    fn a_taken_name_is_refused_and_costs_no_use() {
        let (_dir, issuer) = issuer("m");
        let (first, second) = (token(&issuer, 1), token(&issuer, 1));
        join(&issuer, &first, "n").unwrap();
        assert!(refusal(join(&issuer, &second, "n")).contains("--name"));
        join(&issuer, &second, "n2").unwrap();
        // Without a good token no answer gives away which names exist.
        assert!(refusal(join(&issuer, &first, "n")).contains("used up"));
    }

    #[test]
    fn a_token_of_another_ca_is_refused_by_both_sides() {
        let ((_a, ours), (_b, theirs)) = (issuer("m"), issuer("m"));
        let token = token(&ours, 1);
        assert!(refusal(join(&theirs, &token, "n")).contains("not known"));
        // A CA that answers all the same is not the pinned one.
        let (request, pending) = request(&token, &name("n")).unwrap();
        let request: Value = serde_json::from_slice(&request).unwrap();
        let csr = STANDARD.decode(request["csr"].as_str().unwrap()).unwrap();
        let chain = theirs.authority().sign_csr(&csr, &name("n"), Role::Node, NODE_VALIDITY).unwrap();
        let error = pending.complete(&accepted(&chain, theirs.authority().certificate())).unwrap_err();
        assert!(error.to_string().contains("pins"), "{error}");
    }

    fn accepted(chain: &[CertificateDer<'_>], authority: &CertificateDer<'_>) -> Vec<u8> {
        let chain: Vec<_> = chain.iter().map(|der| STANDARD.encode(der)).collect();
        let authorities = [STANDARD.encode(authority)];
        json!({"version": 1, "accepted": {"chain": chain, "authorities": authorities}}).to_string().into_bytes()
    }

    #[test]
    fn a_certificate_that_was_not_asked_for_is_refused() {
        let (_dir, issuer) = issuer("m");
        let ca = issuer.authority();
        let pending = || request(&token(&issuer, 1), &name("n")).unwrap().1;
        let other_key = ca.issue(&name("n"), NODE_VALIDITY).unwrap();
        let error = pending().complete(&accepted(other_key.chain(), ca.certificate())).unwrap_err();
        assert!(error.to_string().contains("another key"), "{error}");
        let other_node = ca.issue(&name("o"), NODE_VALIDITY).unwrap();
        let error = pending().complete(&accepted(other_node.chain(), ca.certificate())).unwrap_err();
        assert!(matches!(error, Error::OtherNode { .. }), "{error}");
        let other_mesh = ca.issue_in(&"x".parse().unwrap(), &name("n"), NODE_VALIDITY).unwrap();
        let error = pending().complete(&accepted(other_mesh.chain(), ca.certificate())).unwrap_err();
        assert!(matches!(error, Error::OtherMesh { .. }), "{error}");
        assert!(pending().complete(&accepted(&[], ca.certificate())).is_err());
    }

    #[test]
    fn changed_requests_are_refused_and_cost_no_use() {
        let (_dir, issuer) = issuer("m");
        let token = token(&issuer, 1);
        let (bytes, pending) = request(&token, &name("n")).unwrap();
        let original: Value = serde_json::from_slice(&bytes).unwrap();
        let mut flipped = STANDARD.decode(original["csr"].as_str().unwrap()).unwrap();
        let last = flipped.len() - 1;
        flipped[last] ^= 1;
        let changes = [
            ("csr", json!(STANDARD.encode(flipped)), "certificate request"),
            ("csr", json!("AAAA"), "certificate request"),
            ("csr", json!("*"), "base64"),
            ("node", json!("../n"), "node name"),
            ("secret", json!("AAAA"), "secret"),
            ("version", json!(2), "version 2"),
            ("version", json!("x"), "join request"),
            ("node", json!(7), "join request"),
        ];
        for (field, value, expected) in changes {
            let mut changed = original.clone();
            changed[field] = value;
            let response: Value =
                serde_json::from_slice(&answer(changed.to_string().as_bytes(), &issuer).bytes).unwrap();
            let reason = response["refused"]["reason"].as_str().unwrap();
            assert!(reason.contains(expected), "{field}: {reason}");
        }
        let long = [bytes.as_slice(), &vec![b' '; MAX_MESSAGE_BYTES]].concat();
        assert!(String::from_utf8(answer(&long, &issuer).bytes).unwrap().contains("too long"));
        assert!(issuer.issued().unwrap().is_empty());
        pending.complete(&answer(&bytes, &issuer).bytes).unwrap();
    }

    #[test]
    fn reasons_are_one_printable_line() {
        let (_dir, issuer) = issuer("m");
        let (_, pending) = request(&token(&issuer, 1), &name("n")).unwrap();
        let response = json!({"version": 9, "refused": {"reason": "no\u{1b}[2J\nreally"}}).to_string();
        assert_eq!(refusal(pending.complete(response.as_bytes())), "no[2Jreally");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let (_dir, issuer, token) = shared();
            let response: Value = serde_json::from_slice(&answer(&bytes, issuer).bytes).unwrap();
            prop_assert!(response["refused"]["reason"].is_string());
            let (_, pending) = request(token, &name("n")).unwrap();
            prop_assert!(pending.complete(&bytes).is_err());
        }
    }

    type Shared = (tempfile::TempDir, Issuer, JoinToken);

    fn shared() -> &'static Shared {
        static SHARED: std::sync::OnceLock<Shared> = std::sync::OnceLock::new();
        SHARED.get_or_init(|| {
            let (dir, issuer) = issuer("m");
            let token = token(&issuer, 1);
            (dir, issuer, token)
        })
    }
}
