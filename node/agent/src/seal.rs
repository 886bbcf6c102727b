//! Seals of gossip facts by node certificates: a node's facts carry its certificate and its
//! signature, so that no other member can forge them. The crate `gossip` decides when facts are
//! sealed and read.
//!
//! A seal is two base64 texts with a point between: the certificate (DER), the signature (ECDSA
//! P-256 with SHA-256, DER).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use certs::{CertificateDer, Fingerprint, Identity, tls};
use parking_lot::Mutex;

/// Seals longer than this are refused.
const MAX_SEAL_BYTES: usize = 8 << 10;
/// Certificates remembered as good.
const MAX_JUDGED: usize = 8_192;

/// A node's certificate and its end.
type Judged = HashMap<String, (Fingerprint, SystemTime)>;

/// Seals with the identity that `identity` returns: in an agent, the present one of its mesh
/// endpoint.
pub struct NodeSeal<F> {
    identity: F,
    /// Certificates that were good, by node, and when they end, under the trust list of this
    /// number: judging a chain costs more than a signature.
    judged: Mutex<(u64, Judged)>,
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
            let judged = self.judged.lock();
            let known = judged.1.get(node).is_some_and(|(good, end)| *good == fingerprint && SystemTime::now() < *end);
            judged.0 == epoch && known
        };
        if good {
            return tls::check_signature(&certificate, statement, &signature).map_err(|error| error.to_string());
        }
        let owner = tls::check_signed(&identity, node, &certificate, statement, &signature)
            .map_err(|error| error.to_string())?;
        let mut judged = self.judged.lock();
        if judged.0 != epoch || judged.1.len() >= MAX_JUDGED {
            *judged = (epoch, HashMap::new());
        }
        judged.1.insert(node.to_owned(), (fingerprint, owner.not_after));
        Ok(())
    }

    fn epoch(&self) -> u64 {
        (self.identity)().trust_number()
    }

    fn shuts_out(&self, node: &str) -> bool {
        (self.identity)().trust().is_some_and(|list| list.shuts_out(node))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use certs::{Issuer, NODE_VALIDITY, Reissue, Role};
    use gossip::Sealer;

    use super::*;

    fn sealer(identity: Identity) -> impl Sealer {
        let identity = Arc::new(identity);
        NodeSeal::new(move || Arc::clone(&identity))
    }

    #[test]
    fn a_seal_is_its_owners_for_as_long_as_the_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let issuer = Issuer::init(dir.path(), &"m".parse().unwrap()).unwrap();
        let member = |name: &str| issuer.issue(&name.parse().unwrap(), NODE_VALIDITY, Reissue::Allow).unwrap();
        let (a, reader) = (sealer(member("a")), sealer(member("reader")));
        let seal = a.seal(b"I am a").unwrap();
        // Twice: judged anew, and remembered.
        for _ in 0..2 {
            reader.check("a", b"I am a", &seal).unwrap();
            assert!(reader.check("a", b"I am b", &seal).is_err(), "other words");
            assert!(reader.check("b", b"I am a", &seal).is_err(), "another's name");
        }
        for senseless in ["", ".", "a", "a.b", "\u{1b}.\u{1b}", &"x".repeat(MAX_SEAL_BYTES + 1), &format!("{seal}=")] {
            assert!(reader.check("a", b"I am a", senseless).is_err(), "{senseless:?}");
        }
        // A person's certificate seals nothing, and no certificate of another mesh's CA is accepted
        // here.
        let person = issuer.issue_as(&"olga".parse().unwrap(), Role::Operator, NODE_VALIDITY, Reissue::Allow).unwrap();
        let word = sealer(person).seal(b"I am a node").unwrap();
        assert!(reader.check("olga", b"I am a node", &word).unwrap_err().contains("operator"));
        let elsewhere = tempfile::tempdir().unwrap();
        let other = Issuer::init(elsewhere.path(), &"m".parse().unwrap()).unwrap();
        let double = other.issue(&"a".parse().unwrap(), NODE_VALIDITY, Reissue::Allow).unwrap();
        let word = sealer(double).seal(b"I am a").unwrap();
        assert!(reader.check("a", b"I am a", &word).unwrap_err().contains("another CA"));
        // A certificate that was good is good no longer than its validity.
        let brief = issuer.issue(&"brief".parse().unwrap(), Duration::from_secs(2), Reissue::Allow).unwrap();
        let (end, brief) = (brief.not_after(), sealer(brief));
        let word = brief.seal(b"I am brief").unwrap();
        let _known_if_there_was_time = reader.check("brief", b"I am brief", &word);
        // X.509 counts full seconds, and the last one is still valid.
        while SystemTime::now() <= end + Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(reader.check("brief", b"I am brief", &word).unwrap_err().contains("expired"));
    }
}
