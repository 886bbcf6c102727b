//! Many light agents in one process, over real loopback sockets, with a list of members given to them: for what a mesh of
//! a thousand does. Whole agents that find each other by gossip are in `cluster`.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use certs::{Authority, HostKey};
use gossip::Member;
use rankmesh::agent::light::{LightAgent, LightConfig};
use rankmesh::query::ask::{self, AskError, Asked, Question};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Light agents of one mesh.
pub struct LightCluster {
    /// The agents, in the order of their databases; `None` where one was killed.
    pub agents: Vec<Option<LightAgent>>,
    /// How each is listed.
    pub members: Vec<Member>,
    databases: Vec<PathBuf>,
    authority: Authority,
    host_keys: Vec<HostKey>,
    runtime: Box<dyn Fn(usize) -> Arc<dyn quinn::Runtime> + Send + Sync>,
    _dir: TempDir,
}

impl LightCluster {
    /// Starts one agent (n0000, n0001, …) a database made from `rows(index)`, SQL that fills it. They know nobody yet.
    ///
    /// # Errors
    /// An agent cannot start.
    pub fn start(n: usize, rows: impl Fn(usize) -> String) -> anyhow::Result<Self> {
        Self::start_over(n, rows, Box::new(|_| Arc::new(quinn::TokioRuntime)), None)
    }

    /// As [`LightCluster::start`], with the first agent, the asker, on a runtime of its own, so that its cost can be told
    /// from that of the others.
    ///
    /// # Errors
    /// As [`LightCluster::start`].
    pub fn start_apart(n: usize, rows: impl Fn(usize) -> String, asker: &Handle) -> anyhow::Result<Self> {
        Self::start_over(n, rows, Box::new(|_| Arc::new(quinn::TokioRuntime)), Some(asker))
    }

    fn start_over(
        n: usize,
        rows: impl Fn(usize) -> String,
        runtime: Box<dyn Fn(usize) -> Arc<dyn quinn::Runtime> + Send + Sync>,
        asker: Option<&Handle>,
    ) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut cluster = Self {
            agents: Vec::with_capacity(n),
            members: Vec::with_capacity(n),
            databases: Vec::with_capacity(n),
            authority: Authority::create(&"lab".parse()?)?,
            host_keys: Vec::with_capacity(n),
            runtime,
            _dir: dir,
        };
        for index in 0..n {
            let path = cluster._dir.path().join(format!("{index}.db"));
            make_light_database(&path, &rows(index))?;
            cluster.databases.push(path);
            cluster.host_keys.push(HostKey::random()?);
            let _apart = asker.filter(|_| index == 0).map(Handle::enter);
            let agent = cluster.agent(index, ([127, 0, 0, 1], 0).into())?;
            cluster.members.push(agent.member()?);
            cluster.agents.push(Some(agent));
        }
        Ok(cluster)
    }

    fn agent(&self, index: usize, listen: SocketAddr) -> anyhow::Result<LightAgent> {
        let name = format!("n{index:04}");
        let identity = self.authority.issue(&name.parse()?, Duration::from_secs(86_400))?;
        LightAgent::start(LightConfig {
            identity,
            host_key: self.host_keys[index].clone(),
            listen,
            database: self.databases[index].clone(),
            runtime: (self.runtime)(index),
        })
        .with_context(|| format!("starting {name}"))
    }

    /// Tells agent `at` of all members.
    pub fn introduce(&self, at: usize) {
        if let Some(agent) = &self.agents[at] {
            agent.set_members(&self.members);
        }
    }

    /// Lists one more member, "silent", of the kind of the second: nobody answers at its address while the socket lives.
    ///
    /// # Errors
    /// There is no port.
    pub fn add_silent(&mut self) -> anyhow::Result<UdpSocket> {
        let silent = UdpSocket::bind("127.0.0.1:0")?;
        let mut member = self.members[1].clone();
        member.name = "silent".to_owned();
        member.address = silent.local_addr()?;
        self.members.push(member);
        Ok(silent)
    }

    /// Kills agent `at` without a word.
    ///
    /// # Errors
    /// The process has no more sockets.
    pub fn kill(&mut self, at: usize) -> anyhow::Result<()> {
        if let Some(agent) = self.agents[at].take() {
            agent.kill()?;
        }
        Ok(())
    }

    /// Starts agent `at` again on its port, when that is free again.
    ///
    /// # Errors
    /// The port does not come free within `wait`.
    pub async fn restart(&mut self, at: usize, wait: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + wait;
        loop {
            match self.agent(at, self.members[at].address) {
                Ok(agent) => {
                    self.agents[at] = Some(agent);
                    self.introduce(at);
                    return Ok(());
                }
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Kills agent `at` and starts it again on its port, with the rows of `sql` instead of its own.
    ///
    /// # Errors
    /// As [`LightCluster::restart`], or the file cannot be made.
    pub async fn restart_with(&mut self, at: usize, sql: &str, wait: Duration) -> anyhow::Result<()> {
        self.kill(at)?;
        let path = self._dir.path().join(format!("{at}.next.db"));
        make_light_database(&path, sql)?;
        self.databases[at] = path;
        self.restart(at, wait).await
    }

    /// Asks agent `at` everything within `timeout`.
    ///
    /// # Errors
    /// As [`ask::ask`].
    ///
    /// # Panics
    /// That agent was killed.
    pub async fn ask(&self, at: usize, sql: &str, timeout: Duration) -> Result<Asked, AskError> {
        self.ask_until(at, question(sql, timeout), CancellationToken::new()).await
    }

    /// Asks agent `at`, to be cancelled from outside.
    ///
    /// # Errors
    /// As [`ask::ask`].
    ///
    /// # Panics
    /// That agent was killed.
    pub async fn ask_until(
        &self,
        at: usize,
        question: Question,
        cancelled: CancellationToken,
    ) -> Result<Asked, AskError> {
        let agent = self.agents[at].as_ref().expect("the asker lives");
        ask::ask(agent.shared(), question, cancelled).await
    }
}

/// Waits until `seen` says so.
///
/// # Panics
/// That did not happen within `patience`.
pub async fn eventually(patience: Duration, what: &str, seen: impl Fn() -> bool) {
    let until = Instant::now() + patience;
    while !seen() {
        assert!(Instant::now() < until, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A question to everyone.
#[must_use]
pub fn question(sql: &str, timeout: Duration) -> Question {
    Question {
        sql: sql.to_owned(),
        timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        nodes: Vec::new(),
        labels: Vec::new(),
        per_node: false,
        plan_only: false,
        analyze: false,
    }
}

/// A small file, quickly: a thousand of them are made, and none has to survive a crash.
fn make_light_database(path: &Path, sql: &str) -> anyhow::Result<()> {
    let connection = rusqlite::Connection::open(path)?;
    connection
        .execute_batch(&format!("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY; BEGIN; {sql} COMMIT;"))?;
    Ok(())
}
