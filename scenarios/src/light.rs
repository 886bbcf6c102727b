//! Many light agents in one process, over real loopback sockets, with a list of members given to
//! them: for what a mesh of a thousand does. Whole agents that find each other by gossip are in
//! `cluster`.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use agent::light::{LightAgent, LightConfig};
use anyhow::Context;
use certs::{Authority, HostKey};
use gossip::cells::{CellId, place_of};
use gossip::{Member, NodeFacts, Seat};
use model::frame::FrameReader;
use model::wire::Request;
use query::ask::{self, AskError, QueryOutcome, Question};
use quinn::crypto::rustls::QuicServerConfig;
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
    /// Where all of them listen.
    ip: Ipv4Addr,
    runtime: Box<dyn Fn(usize) -> Arc<dyn quinn::Runtime> + Send + Sync>,
    _dir: TempDir,
}

impl LightCluster {
    /// Starts one agent (n0000, n0001, …) a database made from `rows(index)`, SQL that fills it.
    /// They know nobody yet.
    ///
    /// # Errors
    /// An agent cannot start.
    pub fn start(n: usize, rows: impl Fn(usize) -> String) -> anyhow::Result<Self> {
        Self::start_over(n, rows, Box::new(|_| Arc::new(quinn::TokioRuntime)), None)
    }

    /// As [`LightCluster::start`], with the first agent, the coordinator, on a runtime of its own,
    /// so that its cost can be told from that of the others.
    ///
    /// # Errors
    /// As [`LightCluster::start`].
    pub fn start_apart(n: usize, rows: impl Fn(usize) -> String, coordinator: &Handle) -> anyhow::Result<Self> {
        Self::start_over(n, rows, Box::new(|_| Arc::new(quinn::TokioRuntime)), Some(coordinator))
    }

    fn start_over(
        n: usize,
        rows: impl Fn(usize) -> String,
        runtime: Box<dyn Fn(usize) -> Arc<dyn quinn::Runtime> + Send + Sync>,
        coordinator: Option<&Handle>,
    ) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut cluster = Self {
            agents: Vec::with_capacity(n),
            members: Vec::with_capacity(n),
            databases: Vec::with_capacity(n),
            authority: Authority::create(&"lab".parse()?)?,
            host_keys: Vec::with_capacity(n),
            ip: own_address(),
            runtime,
            _dir: dir,
        };
        for index in 0..n {
            let path = cluster._dir.path().join(format!("{index}.db"));
            make_light_database(&path, &rows(index))?;
            cluster.databases.push(path);
            cluster.host_keys.push(HostKey::random()?);
            let _apart = coordinator.filter(|_| index == 0).map(Handle::enter);
            let agent = cluster.agent(index, (cluster.ip, 0).into())?;
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

    /// Tells agent `at` of all members. Of members of other cells it learns what gossip between
    /// cells tells: neither rows nor times of their stores.
    pub fn introduce(&self, at: usize) {
        let Some(agent) = &self.agents[at] else { return };
        let own = self.members[at].seat.cell;
        let mut known = self.members.clone();
        for member in known.iter_mut().filter(|member| member.seat.cell != own) {
            member.seat.elsewhere = true;
            let schema_hash = member.facts.schema_hash;
            member.facts = Arc::new(NodeFacts { schema_hash, ..NodeFacts::default() });
        }
        agent.set_members(&known);
    }

    /// Puts the members into cells of at most so many, each with three delegates, as gossip would:
    /// a cell that is too large falls into its halves.
    ///
    /// # Panics
    /// `most` is 0.
    pub fn split(&mut self, most: usize) {
        assert!(most > 0, "a cell has members");
        let places: Vec<u64> = self.members.iter().map(|member| place_of(&member.name, "")).collect();
        let (mut open, mut cells) = (vec![CellId::WHOLE], Vec::new());
        while let Some(cell) = open.pop() {
            let within: Vec<usize> = (0..places.len()).filter(|at| cell.contains(places[*at])).collect();
            if within.len() <= most {
                cells.push((cell, within));
                continue;
            }
            let depth = cell.depth() + 1;
            let halves: BTreeSet<CellId> = within.iter().map(|at| CellId::of(places[*at], depth)).collect();
            open.extend(halves);
        }
        for (cell, within) in cells {
            for (rank, at) in within.into_iter().enumerate() {
                self.members[at].seat = Seat { cell, speaks: rank < 3, elsewhere: false };
            }
        }
    }

    /// Lists one more member, "quiet", of the kind of the second: a node that takes every question
    /// and answers none while this lives, so that who asks it waits, however long that is. Its name
    /// comes after the agents': tables that they have, too, are asked of them.
    ///
    /// # Errors
    /// There is no port, or no identity.
    pub fn add_quiet(&mut self) -> anyhow::Result<Quiet> {
        let identity = self.authority.issue(&"quiet".parse()?, Duration::from_secs(86_400))?;
        let tls = QuicServerConfig::try_from(certs::tls::server_config(&identity, false)?)?;
        let endpoint = quinn::Endpoint::server(quinn::ServerConfig::with_crypto(Arc::new(tls)), (self.ip, 0).into())?;
        let mut member = self.members[1].clone();
        (member.name, member.address) = ("quiet".to_owned(), endpoint.local_addr()?);
        self.members.push(member);
        let calls = endpoint.clone();
        tokio::spawn(async move {
            let mut heard = Vec::new();
            while let Some(call) = calls.accept().await {
                heard.extend(call.await);
            }
        });
        Ok(Quiet(endpoint))
    }

    /// Lists one more member, of the kind of the second, that answers each request with what
    /// `script` makes of it, byte for byte: a node that is damaged, of another version, or lying.
    /// It lives as long as what this returns.
    ///
    /// # Errors
    /// There is no port, or no identity.
    pub fn add_scripted(
        &mut self,
        name: &str,
        script: impl Fn(Request) -> Vec<u8> + Send + Sync + 'static,
    ) -> anyhow::Result<Quiet> {
        let identity = self.authority.issue(&name.parse()?, Duration::from_secs(86_400))?;
        let tls = QuicServerConfig::try_from(certs::tls::server_config(&identity, false)?)?;
        let endpoint = quinn::Endpoint::server(quinn::ServerConfig::with_crypto(Arc::new(tls)), (self.ip, 0).into())?;
        let mut member = self.members[1].clone();
        (member.name, member.address) = (name.to_owned(), endpoint.local_addr()?);
        self.members.push(member);
        let (calls, script) = (endpoint.clone(), Arc::new(script));
        tokio::spawn(async move {
            while let Some(call) = calls.accept().await {
                let script = Arc::clone(&script);
                tokio::spawn(async move {
                    let Ok(connection) = call.await else { return };
                    while let Ok((mut answer, question)) = connection.accept_bi().await {
                        let script = Arc::clone(&script);
                        tokio::spawn(async move {
                            if let Ok(Some(request)) = FrameReader::new(question).read::<Request>().await {
                                let _ = answer.write_all(&script(request)).await;
                                let _ = answer.finish();
                                let _ = answer.stopped().await;
                            }
                        });
                    }
                });
            }
        });
        Ok(Quiet(endpoint))
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
    pub async fn ask(&self, at: usize, sql: &str, timeout: Duration) -> Result<QueryOutcome, AskError> {
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
    ) -> Result<QueryOutcome, AskError> {
        let agent = self.agents[at].as_ref().expect("the coordinator lives");
        ask::ask(&agent.shared().coordinator, question, cancelled).await
    }
}

/// See [`LightCluster::add_quiet`] and [`LightCluster::add_scripted`]. Dropped, it hangs up: its
/// callers hear that nobody answers them any more.
pub struct Quiet(quinn::Endpoint);

impl Drop for Quiet {
    fn drop(&mut self) {
        self.0.close(quinn::VarInt::from_u32(0), b"the node stops");
    }
}

/// An address of loopback for one cluster, so that a port that is free between two lives of an
/// agent is not given to somebody else: 127.224.0.1 to 127.254.255.254, by process and cluster.
fn own_address() -> Ipv4Addr {
    static CLUSTERS: AtomicU8 = AtomicU8::new(0);
    let process = std::process::id();
    let cluster = CLUSTERS.fetch_add(1, Ordering::Relaxed) % 254;
    Ipv4Addr::new(127, 224 + (process % 31) as u8, (process / 31 % 256) as u8, 1 + cluster)
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
        ..Question::default()
    }
}

/// A small file, quickly: a thousand of them are made, and none has to survive a crash.
fn make_light_database(path: &Path, sql: &str) -> anyhow::Result<()> {
    let connection = rusqlite::Connection::open(path)?;
    connection
        .execute_batch(&format!("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY; BEGIN; {sql} COMMIT;"))?;
    Ok(())
}
