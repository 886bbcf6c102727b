//! The CA's list of the certificates it issued: which names are taken, and (for revocation) which
//! serials exist.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use crate::authority::CA_DIR;
use crate::chain::{self, unix_s};
use crate::files::{self, DirLock, Replace};
use crate::{Error, Fingerprint, NodeName, Role};

/// The list, in the CA's directory.
const ISSUED_FILE: &str = "issued.json";
const VERSION: u8 = 2;
/// Certificates that one name may get in a third of their validity, which is when a node renews:
/// some, since an answer may be lost on its way.
const RENEWALS: usize = 8;

/// A certificate that the CA issued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedCertificate {
    /// The name in it.
    pub name: NodeName,
    /// Its role.
    pub role: Role,
    /// Its serial number in hexadecimal.
    pub serial: String,
    /// SHA-256 of its DER form.
    pub fingerprint: Fingerprint,
    /// The last second of its validity, Unix time.
    pub not_after_unix_s: u64,
    /// When it was issued, Unix time.
    pub issued_unix_s: u64,
    /// The CA certificate that it was issued under.
    pub ca: Option<Fingerprint>,
    /// Whether a person's certificate is renewed, and until when; a node's always is, and has
    /// nothing here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewable: Option<Renewable>,
}

/// How a person's certificate is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewable {
    /// No renewed certificate lasts longer than this, Unix time.
    pub until_unix_s: u64,
    /// How long each lasts, seconds.
    pub each_s: u64,
}

/// Whether a name may be given out while another certificate of that name is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reissue {
    /// No: two hosts under one name would pass for each other.
    Refuse,
    /// Yes: the owner of the CA says that the old certificate is out of use. (It stays valid until
    /// it ends or is revoked.)
    Allow,
}

#[derive(Debug, Serialize, Deserialize)]
struct List {
    version: u8,
    certificates: Vec<IssuedCertificate>,
}

/// `ca/issued.json` of an identity directory; read and written under the directory's lock.
#[derive(Debug)]
pub(crate) struct IssuedList {
    path: PathBuf,
}

impl IssuedList {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { path: dir.join(CA_DIR).join(ISSUED_FILE) }
    }

    pub(crate) fn read(&self, _lock: &DirLock) -> Result<Vec<IssuedCertificate>, Error> {
        let Some(contents) = files::read_if_there(&self.path)? else {
            return Ok(Vec::new());
        };
        let list: List = serde_json::from_slice(&contents).map_err(|error| Error::malformed(&self.path, error))?;
        if list.version != VERSION {
            return Err(Error::malformed(&self.path, format!("it is of version {}, this is {VERSION}", list.version)));
        }
        Ok(list.certificates)
    }

    /// Checks that no certificate of that name is valid at `now`; those that are `revoked` are not.
    pub(crate) fn check_free(
        &self,
        lock: &DirLock,
        name: &NodeName,
        revoked: &dyn Fn(&str) -> bool,
        now: SystemTime,
    ) -> Result<(), Error> {
        let now_s = unix_s(now);
        let issued = self.read(lock)?;
        let of_name = issued.iter().filter(|issued| &issued.name == name && !revoked(&issued.serial));
        let ends = of_name.map(|issued| issued.not_after_unix_s).max();
        match ends.and_then(|end| end.checked_sub(now_s)) {
            Some(valid_for_s) => Err(Error::NameTaken { name: name.clone(), valid_for_s }),
            None => Ok(()),
        }
    }

    /// Checks that the name got few certificates of late, each valid for `validity_s`: a list that
    /// anybody can make long would end what can be issued and revoked.
    pub(crate) fn check_pace(
        &self,
        lock: &DirLock,
        name: &NodeName,
        validity_s: u64,
        now: SystemTime,
    ) -> Result<(), Error> {
        let span_s = validity_s / 3;
        let since_s = unix_s(now).saturating_sub(span_s);
        let issued = self.read(lock)?;
        let mut of_late: Vec<u64> = issued
            .iter()
            .filter(|issued| &issued.name == name && issued.issued_unix_s > since_s)
            .map(|issued| issued.issued_unix_s)
            .collect();
        if of_late.len() < RENEWALS {
            return Ok(());
        }
        of_late.sort_unstable();
        let again_s = of_late[of_late.len() - RENEWALS].saturating_sub(since_s).max(1);
        Err(Error::TooOften { name: name.clone(), again_s })
    }

    /// Adds a certificate, and drops those that ended before `now`.
    pub(crate) fn record(
        &self,
        lock: &DirLock,
        certificate: &CertificateDer<'_>,
        ca: Fingerprint,
        renewable: Option<Renewable>,
        now: SystemTime,
    ) -> Result<(), Error> {
        let now_s = unix_s(now);
        let mut certificates = self.read(lock)?;
        certificates.retain(|issued| issued.not_after_unix_s >= now_s);
        let leaf = chain::leaf(certificate)?;
        certificates.push(IssuedCertificate {
            name: leaf.node,
            role: leaf.role,
            ca: Some(ca),
            renewable,
            serial: leaf.serial,
            fingerprint: Fingerprint::of(certificate),
            issued_unix_s: now_s,
            not_after_unix_s: unix_s(leaf.not_after),
        });
        let list = List { version: VERSION, certificates };
        let contents = serde_json::to_vec_pretty(&list).map_err(|error| Error::malformed(&self.path, error))?;
        files::write(&self.path, &contents, files::SECRET, Replace::Yes)
    }
}
