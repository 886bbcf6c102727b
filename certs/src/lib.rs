//! Identity of a mesh: its certificate authority, the certificates of its nodes, join tokens and
//! TLS configurations.
//!
//! This crate owns names ([`MeshName`], [`NodeName`]), keys and certificates on disk ([`Identity`],
//! [`Authority`], [`Issuer`]), the tokens that admit a host ([`JoinToken`], [`TokenStore`]), the
//! messages by which it is admitted ([`join`]) and what TLS asks of a peer ([`tls`]). It opens no
//! socket and knows no runtime: the agent carries the bytes.
//!
//! # Who is who
//!
//! A mesh is one certificate authority (CA). A node is a certificate of that CA whose only URI
//! subject alternative name is `rankmesh://MESH/NODE`; people and programs that are no nodes have
//! `rankmesh://MESH/ROLE/NAME` ([`Role`]). Both ends of every connection check the chain and that
//! name; DNS names and addresses mean nothing here.
//!
//! # On disk
//!
//! | File                 | Mode | What                                                              |
//! |----------------------|------|-------------------------------------------------------------------|
//! | `D/ca.pem`           | 0644 | certificates of the mesh's CA                                     |
//! | `D/node.pem`         | 0600 | the node's private key and its chain, one file so that they match |
//! | `D/trust.json`       | 0644 | the trust list: CAs trusted, certificates revoked, signed by the CA |
//! | `D/host.key`         | 0600 | a secret of the host alone ([`HostKey`]), made when it is missing  |
//! | `D/ca/authority.pem` | 0600 | only where the CA lives: its private key and certificate          |
//! | `D/ca/previous.pem`  | 0600 | the same of the CA before, while a new one takes over             |
//! | `D/ca/tokens.json`   | 0600 | hashes of the join tokens given out                               |
//! | `D/ca/issued.json`   | 0600 | names, serials and expiry of the certificates issued              |
//!
//! Every function that takes a `dir` takes the identity directory `D`, also those about the CA.
//! Every file is written under a temporary name in the same directory, synced and renamed, so a
//! reader sees the old or the new one.

mod authority;
mod chain;
mod error;
mod files;
mod fingerprint;
mod host_key;
mod identity;
mod issued;
mod issuer;
pub mod join;
mod name;
mod pem;
mod provider;
pub mod renew;
pub mod tls;
mod token;
mod trust;

pub use authority::{Authority, CA_VALIDITY, NODE_VALIDITY};
pub use error::Error;
pub use files::{read_if_there, replace_private_file};
pub use fingerprint::Fingerprint;
pub use host_key::HostKey;
pub use identity::Identity;
pub use issued::{IssuedCertificate, Reissue, Renewable};
pub use issuer::Issuer;
pub use name::{MeshName, NameError, NodeName, Role};
pub use provider::provider;
pub use rustls_pki_types::CertificateDer;
pub use token::{JoinToken, TokenSecret, TokenStore};
pub use trust::{MAX_TRUST_BYTES, Revoked, TrustList};
