//! The agent of another host, asked over the mesh with a person's certificate (`--via`).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ask::{Backend, Deadline, Reply, Take, UsageError, deliver, run_until_stopped};
use mesh::{Place, via};
use model::{LocalRequest, OnBehalf};
use tokio_util::sync::CancellationToken;

use super::person;

/// The agent of a host.
pub(super) struct Via {
    host: String,
    /// Directory with the identity to ask with.
    identity: PathBuf,
}

impl Via {
    /// The agent of `host`, asked with the identity in a directory.
    pub(super) fn new(host: &str, identity: &Path) -> Self {
        Self { host: host.to_owned(), identity: identity.to_owned() }
    }

    async fn ask(&self, request: &LocalRequest, take: Take<'_>) -> anyhow::Result<Reply> {
        let identity = person::load(&self.identity)?;
        let (role, name) = (identity.role(), identity.node());
        let mut tried = Err(anyhow!("{} has no address", self.host));
        for address in addresses(&self.host).await? {
            let asked = match via::Via::connect(&identity, address).await {
                Ok(connection) => connection.ask(request.clone()).await,
                Err(error) => Err(error),
            };
            match asked {
                Ok(answer) => {
                    tried = Ok((address, answer));
                    break;
                }
                Err(error) => tried = Err(anyhow!("asking {address} as {role} {name}: {error}")),
            }
        }
        let (address, mut answer) = tried?;
        let deadline = Deadline::of(request);
        let reply = loop {
            let Some(read) = deadline.next(answer.next(), take).await? else { continue };
            let response = read.with_context(|| format!("asking {} as {name}", self.host))?;
            if let Some(reply) = deliver(response, take)? {
                break reply;
            }
        };
        let connection = answer.end();
        person::renew_if_due(&self.identity, &identity, address, &connection).await;
        connection.close().await;
        Ok(reply)
    }
}

impl Backend for Via {
    /// The client for which this process asks does not matter: the certificate identifies the
    /// requester.
    fn ask_into(
        &self,
        _behalf: Option<&OnBehalf>,
        request: LocalRequest,
        stop: &CancellationToken,
        take: Take<'_>,
    ) -> anyhow::Result<Reply> {
        run_until_stopped(stop, self.ask(&request, take))
    }

    fn description(&self) -> String {
        format!("the agent of {}", self.host)
    }
}

/// The addresses of a host, with or without a port.
pub(super) async fn addresses(host: &str) -> anyhow::Result<Vec<SocketAddr>> {
    let place: Place = host.parse().map_err(|error| UsageError(format!("--via {host}: {error}")))?;
    place.addresses().await.with_context(|| format!("--via {host}"))
}
