//! A person's certificate on the command line: whether it is valid, what to do if it is not, and
//! its renewal at an agent that has the CA. The CA decides who may renew for how long
//! (`certs::Issuer::renew`); `local` asks with it.
//!
//! `rankmesh identity issue --renew-for` writes the file `renews` next to the certificate: the time
//! until which it is renewed, Unix seconds. Then each `--via` renews it when a third of its time
//! has passed.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use certs::{Identity, Role, TrustList};
use mesh::via::Via;
use model::wire::{Request, Response};
use model::{LocalRequest, LocalResponse};
use serde_json::Value;

/// The file with the time until which the certificate next to it is renewed.
const RENEWS: &str = "renews";

/// Longest time for a renewal that nobody asked for.
const BY_THE_WAY: Duration = Duration::from_secs(5);

/// Records in `dir` that the certificate there is renewed until `until`, or not at all.
pub(super) fn note_renewal(dir: &Path, until: Option<SystemTime>) -> anyhow::Result<()> {
    let path = dir.join(RENEWS);
    match until {
        Some(until) => {
            let seconds = until.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            std::fs::write(&path, seconds.to_string()).with_context(|| format!("writing {}", path.display()))
        }
        None => match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", path.display()))
            }
            _ => Ok(()),
        },
    }
}

fn renews_until(dir: &Path) -> Option<SystemTime> {
    let seconds: u64 = std::fs::read_to_string(dir.join(RENEWS)).ok()?.trim().parse().ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// The identity in `dir`, if it can be used now.
///
/// # Errors
/// It cannot be read, has ended or is revoked: with the command that makes another.
pub(super) fn load(dir: &Path) -> anyhow::Result<Identity> {
    let identity = Identity::load(dir).context("--identity")?;
    let (role, name, now) = (identity.role(), identity.node(), SystemTime::now());
    let anew = || {
        let dir = dir.display();
        format!(
            "the owner of the mesh's CA makes another: rankmesh identity issue --role {role} --name {name} --reissue --out {dir}"
        )
    };
    if identity.is_revoked() {
        bail!("the certificate of {role} {name} in {} is revoked; {}", dir.display(), anew());
    }
    if identity.not_after() < now {
        let end = ask::utc::utc(identity.not_after());
        bail!("the certificate of {role} {name} in {} ended at {end}; {}", dir.display(), anew());
    }
    if now < identity.not_before() {
        let begin = ask::utc::utc(identity.not_before());
        bail!("the certificate of {role} {name} begins at {begin}: is this machine's clock right?");
    }
    identity.check_valid(now)?;
    Ok(identity)
}

/// Renews the certificate if it is due; reports only a failure, and only when its end is near.
pub(super) async fn renew_if_due(dir: &Path, identity: &Identity, at: SocketAddr, connection: &Via) {
    let now = SystemTime::now();
    let due = now >= identity.renew_at() && renews_until(dir).is_some_and(|until| until > identity.not_after());
    if !due {
        return;
    }
    let renewed = tokio::time::timeout(BY_THE_WAY, renew_over(dir, identity, at, connection)).await;
    let failure = match renewed {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => "it took too long".to_owned(),
    };
    let left = identity.not_after().duration_since(now).unwrap_or_default();
    if left < identity.not_after().duration_since(identity.renew_at()).unwrap_or_default() / 2 {
        let end = ask::utc::utc(identity.not_after());
        eprintln!("note: this certificate ends at {end} and could not be renewed: {failure}");
    } else {
        tracing::debug!("not renewed yet: {failure}");
    }
}

/// Renews the certificate in `dir` now, at the agent at one of `addresses` or at the one with the
/// CA, whose address that one knows; returns the new identity.
///
/// # Errors
/// No agent renews it, with the reason of each that was asked.
pub(super) async fn renew(dir: &Path, addresses: &[SocketAddr]) -> anyhow::Result<Identity> {
    let identity = load(dir)?;
    if identity.role() == Role::Node {
        bail!("{} holds a node's certificate: its agent renews it by itself", dir.display());
    }
    let mut tried = Err(anyhow!("no address to ask"));
    for address in addresses {
        match Via::connect(&identity, *address).await {
            Ok(connection) => {
                let renewed = renew_over(dir, &identity, *address, &connection).await;
                connection.close().await;
                return renewed;
            }
            Err(error) => tried = Err(anyhow!("asking {address} as {} {}: {error}", identity.role(), identity.node())),
        }
    }
    tried
}

async fn renew_over(dir: &Path, identity: &Identity, at: SocketAddr, connection: &Via) -> anyhow::Result<Identity> {
    let identity = with_newest_trust(identity, connection).await?;
    identity.save_trust(dir)?;
    let (csr, pending) = certs::renew::request()?;
    let request = Request::Renew { csr };
    let mut chain = signed(connection, &request).await;
    if matches!(chain, Ok(None)) {
        for other in issuers(connection, at).await? {
            let elsewhere = Via::connect(&identity, other).await?;
            chain = signed(&elsewhere, &request).await;
            elsewhere.close().await;
            if matches!(chain, Ok(Some(_))) {
                break;
            }
        }
    }
    let chain = chain?.context(
        "no agent that is up holds the mesh's CA; where that is kept off the network its owner issues another: \
         rankmesh identity issue --reissue",
    )?;
    let renewed = pending.complete(chain, &identity)?;
    renewed.save(dir)?;
    Ok(renewed)
}

/// The chain; nothing where the agent does not have the CA.
async fn signed(connection: &Via, request: &Request) -> anyhow::Result<Option<Vec<Vec<u8>>>> {
    match connection.request(request.clone()).await? {
        Response::Renewed(chain) => Ok(Some(chain)),
        Response::Unsupported(_) => Ok(None),
        Response::Failed(error) => bail!("{error}"),
        other => bail!("an unexpected answer: {other:?}"),
    }
}

/// With the CAs that the mesh trusts now, so that a certificate of a new one is recognised.
async fn with_newest_trust(identity: &Identity, connection: &Via) -> anyhow::Result<Identity> {
    let Response::Trust(bytes) = connection.request(Request::Trust).await? else { return Ok(identity.clone()) };
    if bytes.is_empty() {
        return Ok(identity.clone());
    }
    let list = TrustList::verify(&bytes, identity.mesh(), identity.authorities())?;
    if list.number() <= identity.trust_number() {
        Ok(identity.clone())
    } else {
        Ok(identity.with_trust(Arc::new(list))?)
    }
}

/// The addresses of other agents with the CA, as the agent at `at` knows them.
async fn issuers(connection: &Via, at: SocketAddr) -> anyhow::Result<Vec<SocketAddr>> {
    let answer = connection.request(Request::Ask(LocalRequest::Nodes)).await?;
    let Response::Local(LocalResponse::Text(text)) = answer else { bail!("an unexpected answer: {answer:?}") };
    let nodes: Vec<Value> = serde_json::from_str(&text).context("its list of nodes")?;
    let addresses = nodes
        .iter()
        .filter(|node| node["issuer"] == true && node["state"] == "live")
        .filter_map(|node| node["address"].as_str()?.parse().ok());
    Ok(addresses.filter(|address| *address != at).collect())
}
