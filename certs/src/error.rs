//! The one error type of the crate. Messages say what happened and, where there is something to do,
//! what.

use std::io;
use std::path::{Path, PathBuf};

use crate::name::{MeshName, NameError, NodeName, Role};

/// What can go wrong with an identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text is not a name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Another user can have put a file or directory there, or can change it.
    #[error(transparent)]
    Changeable(#[from] trusted::Refused),
    /// There is no identity, or no CA, where one was expected.
    #[error("no {what} in {}: {hint}", dir.display())]
    Missing {
        /// `identity` or `certificate authority`.
        what: &'static str,
        /// The directory looked into.
        dir: PathBuf,
        /// What to do.
        hint: &'static str,
    },
    /// There is a CA already, and it would be lost.
    #[error("{} exists already; it is never overwritten: use it, or choose another directory", path.display())]
    Exists {
        /// The file that is there.
        path: PathBuf,
    },
    /// A file is there but is not what it should be.
    #[error("{} is damaged or not ours: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Others can read a private key.
    #[error("{} holds a private key but has mode {mode:04o}: others may have read it; run `chmod 600 {}` if you trust it, or issue it anew", path.display(), path.display())]
    KeyExposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Bytes are not a certificate, key or request as expected.
    #[error("not a usable {what}: {reason}")]
    Invalid {
        /// What the bytes should have been.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Making a key or signing a certificate failed.
    #[error("cannot make the {what}: {reason}")]
    Sign {
        /// What was being made.
        what: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// The peer showed no certificate.
    #[error("the peer shows no certificate; only members of the mesh are served here")]
    NoCertificate,
    /// A certificate is not from our CA, is out of its time, or is not for this use.
    #[error("the certificate is not accepted: {0}")]
    Untrusted(String),
    /// A server does not show the CA certificate that the joiner's token pins.
    #[error("it does not show the CA that the token pins: it is a node of another mesh, or another service")]
    NotPinned,
    /// A certificate names another mesh.
    #[error("the certificate is for mesh {found}, ours is {expected}")]
    OtherMesh {
        /// Our mesh.
        expected: MeshName,
        /// The mesh in the certificate.
        found: MeshName,
    },
    /// The peer is a member, but not the one that was called.
    #[error("the node that answered is {found}, not the one that was called")]
    OtherNode {
        /// The node in the certificate.
        found: NodeName,
    },
    /// rustls refused a configuration.
    #[error("cannot set up TLS: {0}")]
    Tls(#[source] rustls::Error),
    /// A text is not a join token.
    #[error("not a join token: {0}; copy the whole line that the founder or `rankmesh identity token` printed")]
    TokenText(&'static str),
    /// The token is not one this CA gave out (or it was forgotten long after its end).
    #[error("the token is not known here; ask for a new one: `rankmesh identity token`")]
    TokenUnknown,
    /// The token has admitted as many hosts as it may.
    #[error("the token is used up; ask for a new one: `rankmesh identity token`")]
    TokenUsed,
    /// The token's time is over.
    #[error("the token has expired; ask for a new one: `rankmesh identity token`")]
    TokenExpired,
    /// Another certificate of that name is still valid.
    #[error("node name {name} is taken: its certificate is valid for another {}; choose another --name, or let the owner of the CA replace it (`rankmesh identity issue --reissue`)", span(*valid_for_s))]
    NameTaken {
        /// The name asked for.
        name: NodeName,
        /// How long the certificate that has it stays valid, seconds.
        valid_for_s: u64,
    },
    /// The certificate was taken back by the owner of the CA.
    #[error("the certificate is revoked (serial {serial}); its owner needs a new one: `rankmesh identity token`")]
    Revoked {
        /// Its serial number.
        serial: String,
    },
    /// A person's certificate that is not, or not any more, to be renewed.
    #[error(
        "the certificate of {role} {name} is not renewed: it was issued until its end; the owner of the CA makes another: `rankmesh identity issue --role {role} --name {name} --reissue --out DIR` (with --renew-for to have it renew by itself)"
    )]
    NotRenewable {
        /// Whose.
        name: NodeName,
        /// In which role.
        role: Role,
    },
    /// It was renewed again and again.
    #[error("the certificate of {name} was renewed too often of late; it is again in {again_s} s")]
    TooOften {
        /// Whose.
        name: NodeName,
        /// When it can be renewed again, seconds.
        again_s: u64,
    },
    /// A certificate of another role than is needed here.
    #[error("the certificate is {found}'s: {needed} is needed here")]
    WrongRole {
        /// The role it has.
        found: Role,
        /// What it would have to be.
        needed: &'static str,
    },
    /// Nothing that could be revoked.
    #[error("no certificate of that name or serial number is on record here: `rankmesh identity show` lists them")]
    NotIssued,
    /// A new CA is taking over already, or is not.
    #[error("{0}")]
    Rotation(String),
    /// The CA refused to admit us; its own words.
    #[error("the mesh refused to admit this node: {0}")]
    Refused(String),
}

/// A time span for people: the largest unit that fits at least twice, rounded down.
fn span(seconds: u64) -> String {
    match seconds {
        0..7_200 => format!("{} minutes", seconds / 60),
        7_200..172_800 => format!("{} hours", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

impl Error {
    /// For `map_err` on file operations.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    /// A file whose contents are wrong.
    pub(crate) fn malformed(path: &Path, reason: impl ToString) -> Self {
        Self::Malformed { path: path.to_owned(), reason: reason.to_string() }
    }

    /// Bytes that are not what they should be.
    pub(crate) fn invalid(what: &'static str, reason: impl ToString) -> Self {
        Self::Invalid { what, reason: reason.to_string() }
    }

    /// For `map_err` on rcgen calls.
    pub(crate) fn sign(what: &'static str) -> impl FnOnce(rcgen::Error) -> Self {
        move |source| Self::Sign { what, reason: source.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::span;

    #[test]
    fn spans_read_well() {
        let texts = [59, 7_199, 7_200, 172_799, 172_800, 31_535_999].map(span);
        assert_eq!(texts, ["0 minutes", "119 minutes", "2 hours", "47 hours", "2 days", "364 days"]);
    }
}
