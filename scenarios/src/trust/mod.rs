//! What trust costs and how fast it acts, measured on whole agents: `revoke` how long a revoked
//! node is still served, `renew` whether certificates that renew cost a question, `seal` what the
//! owner's signature on gossip facts costs. `bench trust` prints the figures; the same
//! things are tried, not timed, in `tests/trust.rs`. [`TrustMesh`] also serves tests of what whole
//! agents show whom (`tests/own_rows.rs`).

pub mod renew;
pub mod revoke;
pub mod seal;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agent::{Agent, AgentConfig, SourceConfig};
use anyhow::{Context, ensure};
use certs::{Issuer, Reissue};
use tempfile::TempDir;

use crate::cluster::make_database;

/// How long the agents may take to know each other, and then to do what is expected of them.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// Between two looks at whether it is done: the grain of what is timed.
const LOOK: Duration = Duration::from_millis(5);

/// Where an agent's rows come from, by its number and the directory of the mesh.
type SourceOf = Box<dyn Fn(usize, &Path) -> SourceConfig + Send + Sync>;

/// Whole agents of one mesh in this process; the first one holds the CA.
pub struct TrustMesh {
    /// The agents: n0, n1, …
    pub agents: Vec<Agent>,
    dir: TempDir,
    validity: Duration,
    source: SourceOf,
    started: usize,
}

impl TrustMesh {
    /// Starts `size` agents whose certificates last `validity`, each serving the same small file,
    /// and waits until all know all.
    ///
    /// # Errors
    /// An agent cannot start, or they do not meet.
    pub async fn start(size: usize, validity: Duration) -> anyhow::Result<Self> {
        let source = |_: usize, dir: &Path| SourceConfig::Served { path: dir.join("t.db"), replicated: Vec::new() };
        Self::start_over(size, validity, Box::new(source)).await
    }

    /// The same over sources of their own.
    ///
    /// # Errors
    /// As [`TrustMesh::start`].
    pub async fn start_over(size: usize, validity: Duration, source: SourceOf) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        make_database(&dir.path().join("t.db"), "CREATE TABLE t(x INTEGER); INSERT INTO t VALUES (1), (2);")?;
        Issuer::init(&dir.path().join("n0"), &"bench".parse()?)?;
        let mut mesh = Self { agents: Vec::new(), dir, validity, source, started: 0 };
        for _ in 0..size {
            mesh.add().await?;
        }
        mesh.all_met().await?;
        Ok(mesh)
    }

    /// Starts one more agent.
    ///
    /// # Errors
    /// It cannot start.
    pub async fn add(&mut self) -> anyhow::Result<()> {
        let name: certs::NodeName = format!("n{}", self.started).parse()?;
        let source = (self.source)(self.started, self.dir.path());
        self.started += 1;
        let identity = self.identity(name.as_str());
        self.issuer()?.issue(&name, self.validity, Reissue::Refuse)?.save(&identity)?;
        let join = self.agents.first().map(|first| first.shared().advertise).into_iter().collect();
        let agent = Agent::start(config(&name, &identity, source, join, self.validity)).await;
        self.agents.push(agent.with_context(|| format!("starting {name}"))?);
        Ok(())
    }

    /// Waits until every agent lists all as live, and nobody else.
    ///
    /// # Errors
    /// They do not meet in time.
    pub async fn all_met(&self) -> anyhow::Result<()> {
        let size = self.agents.len();
        let live =
            |agent: &Agent| agent.shared().coordinator.gossip.list().iter().filter(|member| member.is_live()).count();
        until("all know all", || self.agents.iter().all(|agent| live(agent) == size)).await?;
        Ok(())
    }

    /// The identity directory of an agent.
    #[must_use]
    pub fn identity(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The CA, as the command line opens it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn issuer(&self) -> anyhow::Result<Issuer> {
        Ok(Issuer::open(&self.identity("n0"))?)
    }
}

fn config(
    name: &certs::NodeName,
    identity: &Path,
    source: SourceConfig,
    join: Vec<SocketAddr>,
    cert_validity: Duration,
) -> AgentConfig {
    let join = join.into_iter().map(Into::into).collect();
    AgentConfig { join, cert_validity, ..AgentConfig::new(name.clone(), identity.to_owned(), source) }
}

/// Waits until `seen`; answers how long that took.
///
/// # Errors
/// It does not come within [`PATIENCE`].
pub async fn until(what: &str, seen: impl Fn() -> bool) -> anyhow::Result<Duration> {
    let began = Instant::now();
    while !seen() {
        ensure!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(LOOK).await;
    }
    Ok(began.elapsed())
}
