//! PEM files of ours: at most one private key, then certificates. Reading is rustls-pki-types';
//! writing follows RFC 7468 (64 characters a line).

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::Error;

/// Appends a private key in PKCS #8 form.
pub(crate) fn push_key(text: &mut String, key: &PrivatePkcs8KeyDer<'_>) {
    push(text, "PRIVATE KEY", key.secret_pkcs8_der());
}

/// Appends certificates in their order.
pub(crate) fn push_certificates(text: &mut String, certificates: &[CertificateDer<'_>]) {
    for certificate in certificates {
        push(text, "CERTIFICATE", certificate);
    }
}

fn push(text: &mut String, label: &str, der: &[u8]) {
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    // 48 bytes make a line of 64 characters.
    for line in der.chunks(48) {
        STANDARD.encode_string(line, text);
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
}

/// The private key in the file `path` with these contents.
pub(crate) fn key(path: &Path, contents: &[u8]) -> Result<PrivatePkcs8KeyDer<'static>, Error> {
    match PrivateKeyDer::from_pem_slice(contents) {
        Ok(PrivateKeyDer::Pkcs8(key)) => Ok(key),
        Ok(_) => Err(Error::malformed(path, "its private key is not in PKCS #8 form (BEGIN PRIVATE KEY)")),
        Err(error) => Err(Error::malformed(path, format!("no private key could be read: {error}"))),
    }
}

/// The certificates in the file `path` with these contents; at least one.
pub(crate) fn certificates(path: &Path, contents: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates = CertificateDer::pem_slice_iter(contents)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Error::malformed(path, format!("a certificate could not be read: {error}")))?;
    if certificates.is_empty() {
        return Err(Error::malformed(path, "there is no certificate in it"));
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(key_der in prop::collection::vec(any::<u8>(), 1..200), first in prop::collection::vec(any::<u8>(), 1..200), second in prop::collection::vec(any::<u8>(), 1..200)) {
            let path = Path::new("x");
            let chain = [CertificateDer::from(first), CertificateDer::from(second)];
            let mut text = String::new();
            push_key(&mut text, &PrivatePkcs8KeyDer::from(key_der.clone()));
            push_certificates(&mut text, &chain);
            prop_assert!(text.lines().all(|line| line.len() <= 64));
            prop_assert_eq!(key(path, text.as_bytes()).unwrap().secret_pkcs8_der().to_vec(), key_der);
            prop_assert_eq!(certificates(path, text.as_bytes()).unwrap(), chain.to_vec());
        }

        #[test]
        fn garbage_is_an_error(contents in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(key(Path::new("x"), &contents).is_err());
            prop_assert!(certificates(Path::new("x"), &contents).is_err());
        }
    }
}
