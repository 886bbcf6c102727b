//! The agent of this host, asked over its local socket.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use model::frame::{self, FrameReader};
use model::{LocalRequest, LocalResponse, OnBehalf};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, Reply, Take};
use crate::paths;
use crate::wait::{Deadline, IDLE, deliver, run_until_stopped};

/// Error: nobody listens on a socket.
#[derive(Debug, thiserror::Error)]
#[error("no agent answers on {}; start one with `rankmesh up`, or give --socket PATH", .0.display())]
pub struct NoAgent(PathBuf);

/// Error: the agent closed the connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the agent went away before it had answered")]
pub struct WentAway;

/// The agent that listens on a socket.
#[derive(Debug)]
pub struct SocketBackend {
    socket: Option<PathBuf>,
}

impl SocketBackend {
    /// The agent at `socket`; without one the user's own where it runs, else the system's.
    pub fn at(socket: Option<PathBuf>) -> Self {
        Self { socket }
    }
}

impl Backend for SocketBackend {
    fn ask_into(
        &self,
        behalf: Option<&OnBehalf>,
        request: LocalRequest,
        stop: &CancellationToken,
        take: Take<'_>,
    ) -> anyhow::Result<Reply> {
        run_until_stopped(stop, exchange(&self.socket.clone().unwrap_or_else(default_socket), behalf, &request, take))
    }

    fn is_gone(&self) -> bool {
        let socket = self.socket.clone().unwrap_or_else(default_socket);
        std::os::unix::net::UnixStream::connect(socket).is_err()
    }

    fn description(&self) -> String {
        "the agent of this host".to_owned()
    }
}

/// Without a flag: the user's own agent when it runs, else the system's.
fn default_socket() -> PathBuf {
    let own = paths::default_socket();
    let system = PathBuf::from("/run/rankmesh/agent.sock");
    if !own.exists() && system.exists() { system } else { own }
}

async fn exchange(
    path: &Path,
    behalf: Option<&OnBehalf>,
    request: &LocalRequest,
    take: Take<'_>,
) -> anyhow::Result<Reply> {
    let stream = UnixStream::connect(path).await.with_context(|| NoAgent(path.to_owned()))?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = FrameReader::new(reader);
    // An agent that refuses sends that at once and closes the connection, perhaps before the
    // request was sent: its answer is read all the same.
    let asked = async {
        if let Some(behalf) = behalf {
            frame::write(&mut writer, &LocalRequest::OnBehalf(behalf.clone())).await?;
        }
        frame::write(&mut writer, request).await
    };
    let asked = asked.await;
    let deadline = Deadline::of(request);
    let mut received = false;
    loop {
        let Some(read) = deadline.next(reader.read::<LocalResponse>(), take).await? else { continue };
        let closed = !received && !matches!(read, Ok(Some(_))) && !matches!(request, LocalRequest::Nodes);
        if closed && answers_others(path).await {
            let what = match behalf {
                Some(_) => "takes no questions of front ends",
                None => "does not know this question",
            };
            bail!(
                "the agent on {} is of an earlier release, which {what}: upgrade the agent and start it again (rankmesh up \
                 --replace), or ask with rankmesh query or rankmesh stragglers, which it knows",
                path.display()
            );
        }
        received = true;
        let response = match (read, &asked) {
            (Err(_) | Ok(None), Err(error)) => bail!("asking the agent: {error}"),
            (response, _) => response.context("reading the agent's answer")?,
        };
        let response = response.context(WentAway)?;
        if let Some(reply) = deliver(response, take)? {
            return Ok(reply);
        }
    }
}

/// Whether an agent that closed the connection without an answer answers a request that every
/// release knows: then it could not read the first one.
async fn answers_others(path: &Path) -> bool {
    let asked = async {
        let (reader, mut writer) = UnixStream::connect(path).await.ok()?.into_split();
        frame::write(&mut writer, &LocalRequest::Nodes).await.ok()?;
        let answer = FrameReader::new(reader).read::<LocalResponse>().await.ok()??;
        matches!(answer, LocalResponse::Text(_)).then_some(())
    };
    tokio::time::timeout(IDLE, asked).await.ok().flatten().is_some()
}
