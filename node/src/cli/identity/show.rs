//! `rankmesh identity show`: whose identity a directory holds, and what its CA issued.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use ask::args::ReportFormat;
use ask::utc::utc;
use certs::{Identity, Issuer};
use serde_json::json;

/// Prints the identity in `dir`, and what the CA there issued.
pub(super) fn show(dir: &Path, format: ReportFormat, out: &mut impl Write) -> anyhow::Result<()> {
    let issuer = if Issuer::exists(dir) { Some(Issuer::open(dir)?) } else { None };
    // A directory fresh from `init` has a CA and no node yet.
    let identity = if issuer.is_some() && !Identity::exists(dir) { None } else { Some(Identity::load(dir)?) };
    let (mesh, ca) = match (&identity, &issuer) {
        (Some(identity), _) => (identity.mesh().clone(), identity.ca_fingerprint()),
        (None, Some(issuer)) => (issuer.authority().mesh().clone(), issuer.authority().fingerprint()),
        (None, None) => bail!("no identity in {}", dir.display()),
    };
    let issued = issuer.as_ref().map(Issuer::issued).transpose().context("reading what the CA issued")?;
    let expired = |at: SystemTime| at < SystemTime::now();
    match format {
        ReportFormat::Json => {
            let value = json!({
                "mesh": mesh,
                "node": identity.as_ref().map(Identity::node),
                "role": identity.as_ref().map(Identity::role),
                "serial": identity.as_ref().map(Identity::serial),
                "revoked": identity.as_ref().map(Identity::is_revoked),
                "trust_list": identity.as_ref().map(Identity::trust_number),
                "not_after": identity.as_ref().map(|identity| utc(identity.not_after())),
                "expired": identity.as_ref().map(|identity| expired(identity.not_after())),
                "fingerprint": identity.as_ref().map(Identity::fingerprint),
                "ca_fingerprint": ca,
                "ca_not_after": issuer.as_ref().map(|issuer| utc(issuer.authority().not_after())),
                "issued": issued,
            });
            writeln!(out, "{value}")?;
        }
        ReportFormat::Table => {
            writeln!(out, "mesh            {mesh}")?;
            if let Some(identity) = &identity {
                let end = identity.not_after();
                let state = match (identity.is_revoked(), expired(end)) {
                    (true, _) => " (revoked)",
                    (false, true) => " (expired)",
                    (false, false) => "",
                };
                writeln!(out, "{:<15} {}", identity.role().as_str(), identity.node())?;
                writeln!(out, "valid until     {}{state}", utc(end))?;
                writeln!(out, "serial          {}", identity.serial())?;
                writeln!(out, "fingerprint     {}", identity.fingerprint())?;
            }
            writeln!(out, "CA fingerprint  {ca}")?;
            if let (Some(issuer), Some(issued)) = (&issuer, &issued) {
                writeln!(out, "CA              here, valid until {}", utc(issuer.authority().not_after()))?;
                let list = issuer.trust()?;
                for certificate in issued {
                    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(certificate.not_after_unix_s);
                    let revoked = list.as_ref().is_some_and(|list| list.revokes(&certificate.serial));
                    let state = match (revoked, certificate.ca == Some(ca_of(issuer))) {
                        (true, _) => ", revoked",
                        (false, true) => "",
                        (false, false) => ", by the CA before",
                    };
                    let (name, role, serial) = (&certificate.name, certificate.role, &certificate.serial);
                    writeln!(out, "issued          {name} until {} ({role}, serial {serial}{state})", utc(end))?;
                }
            }
        }
    }
    Ok(())
}

fn ca_of(issuer: &Issuer) -> certs::Fingerprint {
    issuer.authority().fingerprint()
}
