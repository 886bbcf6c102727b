//! One host of a lab: its agent on a runtime of its own, behind the relay.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use agent::{Agent, AgentConfig, Shared, SourceConfig};
use anyhow::{Context, ensure};
use certs::{Issuer, Reissue, TrustList};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::runtime::{Handle, Runtime};

use super::questions::{REPLICATED, SCHEMA, dictionary, name_of, rows_of};
use super::relay::{HostId, Relay};

/// How long a killed agent's threads may take to end.
const KILL_PATIENCE: Duration = Duration::from_secs(60);
/// How long it may take to block an agent's worker.
const BLOCK_PATIENCE: Duration = Duration::from_secs(60);

/// Ports are counted from here, below those that systems hand out, so that no other process takes
/// one between two runs of a host.
const FIRST_PORT: u16 = 21_000;

/// A host, running or not.
pub struct Host {
    id: HostId,
    identity: PathBuf,
    dir: PathBuf,
    /// Where its own socket is bound, and where the relay's port that stands for it is.
    own_ip: Ipv4Addr,
    port_ip: Ipv4Addr,
    /// The address that other hosts use.
    pub address: Option<SocketAddr>,
    /// Version of the rows that it serves.
    pub version: usize,
    clock_ahead: bool,
    starts: u16,
    seed: u64,
    most_in_cell: Option<usize>,
    running: Option<Running>,
}

struct Running {
    runtime: Runtime,
    agent: Agent,
    /// The agent's worker is blocked while this exists.
    blocked: Option<mpsc::Sender<()>>,
}

/// The address and rows with which a host starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Start {
    /// At an address that it never had.
    pub new_address: bool,
    /// With other rows.
    pub new_rows: bool,
    /// With the clock an hour ahead. At the start after that it is right again, and the generation
    /// counted from it lower than the last.
    pub clock_ahead: bool,
}

impl Host {
    /// A host that does not run yet.
    ///
    /// # Errors
    /// Its identity cannot be written.
    pub fn new(id: HostId, dir: &TempDir, issuer: &Issuer, net: (u8, u8), seed: u64) -> anyhow::Result<Self> {
        let name = name_of(id);
        let identity = dir.path().join(&name);
        issuer.issue(&name.parse()?, Duration::from_secs(86_400), Reissue::Refuse)?.save(&identity)?;
        let last = u8::try_from(id + 1).context("at most 254 hosts")?;
        Ok(Self {
            id,
            identity,
            dir: dir.path().to_owned(),
            own_ip: Ipv4Addr::new(127, net.0, net.1, last),
            port_ip: Ipv4Addr::new(127, net.0, net.1 | 1, last),
            address: None,
            version: 0,
            clock_ahead: false,
            starts: 0,
            seed,
            most_in_cell: None,
            running: None,
        })
    }

    /// In a mesh of cells of at most so many hosts.
    #[must_use]
    pub fn in_cells(self, most_in_cell: Option<usize>) -> Self {
        Self { most_in_cell, ..self }
    }

    /// Gives the agent the trust list of the CA in this directory, as an administrator copies it.
    ///
    /// # Errors
    /// The list cannot be copied.
    pub fn give_trust_list(&self, ca: &Path) -> anyhow::Result<()> {
        std::fs::copy(TrustList::path(ca), TrustList::path(&self.identity))?;
        Ok(())
    }

    /// Starts the agent; `join` are the addresses of others.
    ///
    /// # Errors
    /// It cannot start.
    pub fn start(&mut self, relay: &Relay, how: Start, join: Vec<SocketAddr>) -> anyhow::Result<()> {
        ensure!(self.running.is_none(), "{} runs already", name_of(self.id));
        self.version += usize::from(how.new_rows);
        let database = self.database()?;
        self.set_clock(how.clock_ahead)?;
        self.starts += 1;
        let own = SocketAddr::from((self.own_ip, FIRST_PORT + self.starts));
        // A host that was cut off from power may still have its port open.
        relay.close(self.id);
        let known = self.address.filter(|_| !how.new_address);
        let at = known.unwrap_or_else(|| (self.port_ip, FIRST_PORT + self.starts).into());
        let address = relay.open(self.id, own, at).with_context(|| format!("opening the relay's port at {at}"))?;
        self.address = Some(address);
        let config = AgentConfig {
            listen: own,
            advertise: Some(address),
            join: join.into_iter().map(Into::into).collect(),
            most_in_cell: self.most_in_cell,
            ..AgentConfig::new(
                name_of(self.id).parse()?,
                self.identity.clone(),
                SourceConfig::Served { path: database, replicated: vec![REPLICATED.to_owned()] },
            )
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(name_of(self.id))
            .enable_all()
            .build()?;
        // Within a task: so the agent's own worker does the work, not this thread.
        let agent = runtime.block_on(runtime.spawn(Agent::start(config)))?;
        let agent = agent.with_context(|| format!("starting {}", name_of(self.id)))?;
        self.running = Some(Running { runtime, agent, blocked: None });
        Ok(())
    }

    /// The file with the rows of the present version.
    fn database(&self) -> anyhow::Result<PathBuf> {
        let path = self.dir.join(format!("{}.v{}.db", name_of(self.id), self.version));
        if !path.exists() {
            let conn = Connection::open(&path)?;
            conn.execute_batch(&format!(
                "{SCHEMA} BEGIN; {} {} COMMIT;",
                rows_of(self.id, self.version, self.seed),
                dictionary()
            ))?;
        }
        Ok(path)
    }

    /// Sets the clock from which the next generation is counted: the file with the last generation
    /// is removed as if it were lost.
    fn set_clock(&mut self, ahead: bool) -> anyhow::Result<()> {
        let file = self.identity.join("generation");
        if std::mem::replace(&mut self.clock_ahead, ahead) {
            std::fs::remove_file(&file)?;
        }
        if ahead {
            let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis();
            std::fs::write(&file, format!("{}\n", now_ms + 3_600_000))?;
        }
        Ok(())
    }

    /// Ends the agent as SIGKILL would. Unless `silent` (the host lost power), the host reports to
    /// others that nothing listens.
    pub fn kill(&mut self, relay: &Relay, silent: bool) {
        let Some(Running { runtime, agent, blocked }) = self.running.take() else { return };
        drop(blocked);
        if !silent {
            relay.close(self.id);
        }
        runtime.shutdown_timeout(KILL_PATIENCE);
        drop(agent);
    }

    /// Stops the agent as SIGSTOP would; returns when nothing in it runs any more.
    ///
    /// # Errors
    /// It does not run, or its worker could not be blocked.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        let running = self.running.as_mut().context("it does not run")?;
        let (blocked, unblocked) = mpsc::channel::<()>();
        let (started, waiting) = mpsc::channel();
        running.runtime.spawn(async move {
            let _ = started.send(());
            let _ = unblocked.recv();
        });
        waiting.recv_timeout(BLOCK_PATIENCE).context("the agent's worker could not be blocked")?;
        running.blocked = Some(blocked);
        Ok(())
    }

    /// Unblocks a stopped agent.
    pub fn go_on(&mut self) {
        if let Some(running) = self.running.as_mut() {
            running.blocked = None;
        }
    }

    /// The agent and the runtime for its questions, while it runs and is not stopped.
    #[must_use]
    pub fn asked(&self) -> Option<(Arc<Shared>, Handle)> {
        let running = self.running.as_ref().filter(|running| running.blocked.is_none())?;
        Some((Arc::clone(running.agent.shared()), running.runtime.handle().clone()))
    }

    /// Tasks alive in the agent.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.runtime.metrics().num_alive_tasks())
    }

    /// Leaves in good order.
    pub fn shutdown(&mut self) {
        if let Some(Running { runtime, agent, blocked }) = self.running.take() {
            drop(blocked);
            runtime.block_on(agent.shutdown());
            runtime.shutdown_timeout(KILL_PATIENCE);
        }
    }
}
