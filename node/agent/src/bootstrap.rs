//! How an agent gets its identity: it has one, it founds a mesh, or it joins one with a token.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use certs::{Identity, Issuer, JoinToken, MeshName, Reissue};
use mesh::join::{self, JoinError};
use rand::RngExt;

use super::config::AgentConfig;

/// Pauses between attempts to join.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Attempts after which the same reason is printed again.
const SAID_EVERY: u32 = 12;
/// Validity of the token that a founding agent prints.
const FIRST_TOKEN_TTL: Duration = Duration::from_secs(24 * 3_600);

/// An identity and, on the node that holds the mesh's CA, the issuer that admits joiners.
#[derive(Debug)]
pub struct Bootstrapped {
    /// Who this node is.
    pub identity: Identity,
    /// Admits joiners.
    pub issuer: Option<Arc<Issuer>>,
}

/// Loads, founds or joins.
///
/// # Errors
/// The identity is damaged, has ended or bears another name; joining fails; neither identity, nor
/// token for the join is given.
pub async fn identity(config: &AgentConfig) -> anyhow::Result<Bootstrapped> {
    let dir = &config.identity;
    let in_dir = || format!("the identity in {}", dir.display());
    let identity = if Identity::exists(dir) {
        let identity = Identity::load(dir).with_context(|| format!("loading {}", in_dir()))?;
        if *identity.node() != config.name {
            bail!(
                "{} is that of node '{}', not '{}'; give --name {} or another --identity DIR",
                in_dir(),
                identity.node(),
                config.name,
                identity.node()
            );
        }
        match identity.check_valid(SystemTime::now()) {
            Ok(()) => identity,
            // The CA is here: no other node has to be asked.
            Err(ended) if Issuer::exists(dir) => {
                tracing::warn!("this node's certificate is not valid ({ended}); the CA here makes a new one");
                found(config)?
            }
            Err(ended) if !config.join.is_empty() && config.token.is_some() => {
                tracing::warn!("this node's certificate is not valid ({ended}); joining anew");
                join_mesh(config).await?
            }
            Err(ended) => {
                return Err(ended).with_context(in_dir).context(
                    "the node was away for longer than its certificate was valid; join anew with --join and a token from \
                     `rankmesh identity token`",
                );
            }
        }
    } else if config.join.is_empty() {
        found(config)?
    } else {
        join_mesh(config).await?
    };
    let issuer = if Issuer::exists(dir) {
        let issuer = Issuer::open(dir).with_context(|| format!("opening the CA in {}", dir.display()))?;
        Some(Arc::new(issuer.with_validity(config.cert_validity)))
    } else {
        None
    };
    Ok(Bootstrapped { identity, issuer })
}

/// Makes a CA and this node's certificate; where `identity init` made a CA before, uses that.
fn found(config: &AgentConfig) -> anyhow::Result<Identity> {
    let dir = &config.identity;
    let issuer = if Issuer::exists(dir) {
        Issuer::open(dir).with_context(|| format!("opening the CA in {}", dir.display()))?
    } else {
        let mesh: MeshName = format!("mesh-{:08x}", rand::rng().random::<u32>()).parse()?;
        let issuer = Issuer::init(dir, &mesh).with_context(|| format!("making the mesh's CA in {}", dir.display()))?;
        tracing::info!("founded the mesh {mesh}; its CA lies in {}", dir.display());
        issuer
    };
    let identity =
        issuer.issue(&config.name, config.cert_validity, Reissue::Refuse).context("issuing this node's certificate")?;
    identity.save(dir).with_context(|| format!("saving the identity in {}", dir.display()))?;
    Ok(identity)
}

/// A token for the next hosts, when this node holds the CA. It admits any number of hosts for a
/// day.
///
/// # Errors
/// The token store cannot be written.
pub fn first_token(config: &AgentConfig) -> anyhow::Result<Option<JoinToken>> {
    if !Issuer::exists(&config.identity) {
        return Ok(None);
    }
    let issuer = Issuer::open(&config.identity)?;
    Ok(Some(issuer.tokens().create(FIRST_TOKEN_TTL, None)?))
}

async fn join_mesh(config: &AgentConfig) -> anyhow::Result<Identity> {
    let Some(token) = &config.token else {
        bail!(
            "no identity in {} and no token: run `rankmesh identity token` on the host that holds the mesh's CA and give its \
             output with --token-file or in $RANKMESH_TOKEN",
            config.identity.display()
        );
    };
    let token: JoinToken = token.parse().context("reading the token")?;
    let mut waiting = Waiting::default();
    loop {
        let (peers, mut failures) = addresses(config).await;
        let mut may_come = !failures.is_empty();
        for peer in peers {
            match join::join(peer, &token, &config.name).await {
                Ok(identity) => {
                    identity
                        .save(&config.identity)
                        .with_context(|| format!("saving the identity in {}", config.identity.display()))?;
                    tracing::info!("joined the mesh {} through {peer}", identity.mesh());
                    return Ok(identity);
                }
                Err(error) => {
                    let is_final = !matches!(error, JoinError::Unreachable(_) | JoinError::NoCa);
                    may_come |= matches!(error, JoinError::Unreachable(_));
                    failures.push(format!("{peer}: {error:#}"));
                    if is_final {
                        bail!("joining failed: {}", failures.join("; "));
                    }
                }
            }
        }
        if !may_come {
            bail!("joining failed: {}", failures.join("; "));
        }
        waiting.until_next(&failures.join("; ")).await;
    }
}

/// The addresses of the nodes to join, as far as this one's socket reaches them; and why others
/// have none, as text.
async fn addresses(config: &AgentConfig) -> (Vec<SocketAddr>, Vec<String>) {
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for place in &config.join {
        match place.addresses().await {
            Ok(addresses) => {
                // (A socket of IPv6 reaches both.)
                let reached = |address: &SocketAddr| config.listen.is_ipv6() || address.is_ipv4();
                if !addresses.iter().any(reached) {
                    failures.push(format!(
                        "{place} is reached by IPv6 alone, and this node listens on {}: give --listen '[::]:{}'",
                        config.listen,
                        config.listen.port()
                    ));
                }
                found.extend(addresses.into_iter().filter(reached));
            }
            Err(error) => failures.push(format!("{place}: {error}")),
        }
    }
    (found, failures)
}

/// The addresses whom a member calls first. Where it knows nobody from before, it waits until one
/// of the names has an address.
pub(crate) async fn seeds(config: &AgentConfig, knows_others: bool) -> Vec<SocketAddr> {
    let mut waiting = Waiting::default();
    loop {
        let (found, failures) = addresses(config).await;
        let why = failures.join("; ");
        if !found.is_empty() || knows_others || config.join.is_empty() {
            if !why.is_empty() {
                tracing::warn!("{why}");
            }
            return found;
        }
        waiting.until_next(&why).await;
    }
}

/// Pauses between attempts, longer each time.
#[derive(Debug, Default)]
struct Waiting {
    attempts: u32,
    /// What was printed last.
    said: String,
}

impl Waiting {
    async fn until_next(&mut self, why: &str) {
        if self.said != why || self.attempts.is_multiple_of(SAID_EVERY) {
            tracing::warn!("no node to join answers yet, trying again (Ctrl-C ends it): {why}");
            why.clone_into(&mut self.said);
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.attempts.min(4)).min(LONGEST_PAUSE);
        self.attempts += 1;
        tokio::time::sleep(pause).await;
    }
}
