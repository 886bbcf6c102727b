//! How an agent gets its identity: it has one, it founds a mesh, or it joins one with a token.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use certs::{Identity, Issuer, JoinToken, MeshName, Reissue};
use mesh::join;
use rand::RngExt;

use super::config::AgentConfig;

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
    let mut failures = Vec::new();
    for peer in &config.join {
        match join::join(*peer, &token, &config.name).await {
            Ok(identity) => {
                identity
                    .save(&config.identity)
                    .with_context(|| format!("saving the identity in {}", config.identity.display()))?;
                tracing::info!("joined the mesh {} through {peer}", identity.mesh());
                return Ok(identity);
            }
            Err(error) => failures.push(format!("{peer}: {error:#}")),
        }
    }
    bail!("joining failed: {}", failures.join("; "))
}
