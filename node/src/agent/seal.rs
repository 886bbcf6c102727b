//! Seals of gossip facts by node certificates: what a node says of itself carries its certificate and its signature, so that no
//! other member can say it. When facts are sealed and read is the crate `gossip`'s.
//!
//! A seal is two base64 texts with a point between: the certificate (DER), the signature (ECDSA P-256 with SHA-256, DER).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use certs::{CertificateDer, Fingerprint, Identity, tls};

use crate::lock::lock;

/// No seal is longer.
const MAX_SEAL_BYTES: usize = 8 << 10;
/// Certificates remembered as good.
const MAX_JUDGED: usize = 8_192;

/// Seals with the identity that `identity` answers: in an agent, that of its mesh endpoint now.
pub struct NodeSeal<F> {
    identity: F,
    /// Certificates that were good, by node, under the trust list of this number: judging a chain costs more than a signature.
    judged: Mutex<(u64, HashMap<String, Fingerprint>)>,
}

impl<F: Fn() -> Arc<Identity>> NodeSeal<F> {
    /// Nobody's seal has been judged yet.
    pub fn new(identity: F) -> Self {
        Self { identity, judged: Mutex::default() }
    }
}

impl<F: Fn() -> Arc<Identity> + Send + Sync + 'static> gossip::Sealer for NodeSeal<F> {
    fn seal(&self, statement: &[u8]) -> Result<String, String> {
        let identity = (self.identity)();
        let signature = identity.sign(statement).map_err(|error| error.to_string())?;
        let certificate = identity.chain().first().ok_or("this node has no certificate")?;
        Ok(format!("{}.{}", STANDARD_NO_PAD.encode(certificate), STANDARD_NO_PAD.encode(signature)))
    }

    fn check(&self, node: &str, statement: &[u8], seal: &str) -> Result<(), String> {
        if seal.len() > MAX_SEAL_BYTES {
            return Err("its seal is too long".to_owned());
        }
        let (certificate, signature) = seal.split_once('.').ok_or("its seal cannot be read")?;
        let decode = |text: &str| STANDARD_NO_PAD.decode(text).map_err(|_| "its seal is not base64".to_owned());
        let (certificate, signature) = (CertificateDer::from(decode(certificate)?), decode(signature)?);
        let identity = (self.identity)();
        let (fingerprint, epoch) = (Fingerprint::of(&certificate), identity.trust_number());
        let good = {
            let judged = lock(&self.judged);
            judged.0 == epoch && judged.1.get(node) == Some(&fingerprint)
        };
        if good {
            return tls::check_signature(&certificate, statement, &signature).map_err(|error| error.to_string());
        }
        tls::check_signed(&identity, node, &certificate, statement, &signature).map_err(|error| error.to_string())?;
        let mut judged = lock(&self.judged);
        if judged.0 != epoch || judged.1.len() >= MAX_JUDGED {
            *judged = (epoch, HashMap::new());
        }
        judged.1.insert(node.to_owned(), fingerprint);
        Ok(())
    }

    fn epoch(&self) -> u64 {
        (self.identity)().trust_number()
    }
}
