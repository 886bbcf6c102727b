//! `rankmesh identity`: the mesh's CA, certificates made offline, join tokens, and showing
//! identities.
//!
//! Standard output carries data only (a token, the output of `show`); messages go to standard
//! error. Keys, files and rules are the `certs` crate's; joining over the network is
//! `mesh::join`'s.

mod args;
mod show;

use std::io::Write;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use ask::UsageError;
use ask::utc::utc;
use certs::{Identity, Issuer, NodeName, Reissue, Role, TrustList};
use rand::RngExt;

use args::Command;
pub use args::IdentityArgs;
#[cfg(feature = "serve")]
use args::{Purpose, ServeRole};

/// Runs `rankmesh identity`.
///
/// # Errors
/// With what to do about it; nothing was changed then.
pub fn run(args: IdentityArgs) -> anyhow::Result<()> {
    execute(args.command, &mut std::io::stdout().lock(), &mut std::io::stderr().lock())
}

/// `out` takes data, `note` messages for people.
fn execute(command: Command, out: &mut impl Write, note: &mut impl Write) -> anyhow::Result<()> {
    match command {
        Command::Init { dir, mesh } => {
            let dir = dir.resolve()?;
            let mesh = match mesh {
                Some(mesh) => mesh,
                None => format!("mesh-{:08x}", rand::rng().random::<u32>()).parse()?,
            };
            let issuer = Issuer::init(&dir, &mesh)?;
            let (dir, ca) = (dir.display(), issuer.authority().fingerprint());
            writeln!(note, "Made the CA of mesh {mesh} in {dir} (fingerprint {ca}).")?;
            writeln!(note, "Next: rankmesh identity issue --dir {dir} --name NODE --out DIR")?;
        }
        Command::Issue { dir, name, out: target, role, validity, renew_for, reissue } => {
            let wanted = Wanted { name, role, validity, renew_for, reissue };
            issue(&dir.resolve()?, &wanted, &target, note)?;
        }
        Command::Renew { dir, via } => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let renewed = runtime.block_on(async {
                let addresses = super::via::addresses(&via).await?;
                super::person::renew(&dir, &addresses).await
            })?;
            let (role, name, until) = (renewed.role(), renewed.node(), utc(renewed.not_after()));
            writeln!(note, "Renewed the certificate of {role} {name}, valid until {until}.")?;
        }
        #[cfg(feature = "serve")]
        Command::Token {
            ttl,
            purpose: Some(Purpose::Serve),
            tokens: Some(file),
            role: ServeRole::Reader,
            name,
            ..
        } => {
            use serve::tokens::{Role, create};
            let token = create(&file, &name, Role::Reader, ttl)?;
            writeln!(out, "{token}")?;
            writeln!(
                note,
                "Good until {} for rankmesh serve --tokens {}",
                utc(SystemTime::now().checked_add(ttl).context("that is too long")?),
                file.display()
            )?;
        }
        Command::Token { dir, ttl, uses, .. } => {
            let issuer = Issuer::open(&dir.resolve()?)?;
            let token = issuer.tokens().create(ttl, uses.0)?;
            writeln!(out, "{token}")?;
            let admits = match uses.0.map(NonZeroU32::get) {
                None => "any number of hosts".to_owned(),
                Some(1) => "one host".to_owned(),
                Some(n) => format!("{n} hosts"),
            };
            let (mesh, until) = (token.mesh(), utc(token.expires()));
            writeln!(note, "Admits {admits} to mesh {mesh} until {until}: rankmesh up --join HOST --token-file FILE")?;
        }
        Command::Revoke { dir, which, name } => {
            let dir = dir.resolve()?;
            let which = which.or(name).context("give a name or a serial number")?;
            let issuer = Issuer::open(&dir)?;
            let revoked = issuer.revoke(&which)?;
            for certificate in &revoked {
                let (name, role, serial) = (&certificate.name, certificate.role, &certificate.serial);
                writeln!(note, "Revoked the certificate {serial} of {role} {name}.")?;
            }
            if revoked.is_empty() {
                writeln!(note, "It was revoked before.")?;
            }
            how_it_spreads(&dir, note)?;
        }
        Command::Rotate { dir, finish, force } => {
            let dir = dir.resolve()?;
            let issuer = Issuer::open(&dir)?;
            if finish {
                issuer.finish_rotation(force)?;
                writeln!(note, "The CA before is trusted no more.")?;
                how_it_spreads(&dir, note)?;
            } else {
                let ca = issuer.rotate()?.authority().fingerprint();
                writeln!(note, "A new CA issues from now on (fingerprint {ca}); the one before is trusted, too.")?;
                how_it_spreads(&dir, note)?;
                if !Identity::exists(&dir) {
                    writeln!(
                        note,
                        "Then issue the nodes' certificates anew (`identity issue --reissue`) and restart the agents with them."
                    )?;
                }
                writeln!(note, "Tokens made before are worth nothing. When all nodes have renewed (`identity show`):")?;
                writeln!(note, "rankmesh identity rotate --finish --dir {}", dir.display())?;
            }
        }
        Command::Show { dir, format } => show::show(&dir.resolve()?, format, out)?,
    }
    Ok(())
}

/// Prints how a new trust list reaches the mesh.
fn how_it_spreads(dir: &Path, note: &mut impl Write) -> std::io::Result<()> {
    if Identity::exists(dir) {
        return writeln!(note, "The agent of this host tells the mesh.");
    }
    let list = TrustList::path(dir);
    writeln!(note, "Copy {} into the identity directory of any agent: it tells the others.", list.display())
}

/// The role and validity of the wanted certificate.
struct Wanted {
    name: NodeName,
    role: Role,
    validity: Duration,
    renew_for: Option<Duration>,
    reissue: bool,
}

fn issue(dir: &Path, wanted: &Wanted, target: &Path, note: &mut impl Write) -> anyhow::Result<()> {
    let &Wanted { ref name, role, validity, renew_for, reissue } = wanted;
    if role == Role::Node && renew_for.is_some() {
        return Err(
            UsageError("--renew-for is for operators and readers: agents renew theirs by themselves".into()).into()
        );
    }
    if renew_for.is_some_and(|renew_for| renew_for <= validity) {
        return Err(UsageError(
            "--renew-for is the time for which a shorter --validity is renewed: give a longer one".into(),
        )
        .into());
    }
    let issuer = Issuer::open(dir)?;
    let may = if reissue { Reissue::Allow } else { Reissue::Refuse };
    if !reissue && Identity::exists(target) {
        bail!("{} holds an identity already; choose another --out, or replace it with --reissue", target.display());
    }
    let identity = match renew_for {
        Some(renew_for) => issuer.issue_renewable(name, role, validity, renew_for, may)?,
        None => issuer.issue_as(name, role, validity, may)?,
    };
    identity.save(target)?;
    let renewed_until = renew_for.map(|renew_for| SystemTime::now() + renew_for);
    super::person::note_renewal(target, renewed_until)?;
    let (mesh, until, target) = (identity.mesh(), utc(identity.not_after()), target.display());
    writeln!(note, "Made {role} {name} of mesh {mesh} in {target}, valid until {until}.")?;
    if identity.not_after() == issuer.authority().not_after() {
        writeln!(note, "It ends with the CA, sooner than asked.")?;
    }
    match role {
        Role::Node => writeln!(note, "Next: rankmesh up --name {name} --identity {target}")?,
        Role::Operator | Role::Reader => {
            writeln!(note, "Next: rankmesh query --via HOST --identity {target} SQL")?;
            match renewed_until {
                Some(until) => writeln!(note, "In use it renews by itself until {}.", utc(until))?,
                None => writeln!(note, "Nothing renews it (--renew-for DURATION would).")?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
