//! Many agents in one process, over real loopback sockets, asked through the same code as the
//! command line's questions.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agent::{Agent, AgentConfig, SourceConfig};
use anyhow::{Context, bail, ensure};
use certs::Authority;
use gossip::MemberState;
use query::ask::{self, AskError, QueryOutcome, Question};
use store::{Finding, Source, StoreConfig};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// A question's deadline where none is given.
const PATIENCE: Duration = Duration::from_secs(240);

/// Agents of one mesh; dropping it forgets their files.
pub struct Cluster {
    /// The agents, in the order of their databases.
    pub agents: Vec<Agent>,
    _dir: TempDir,
}

impl Cluster {
    /// Starts one agent a database file (named n0, n1, …), each serving its file read-only, and
    /// waits until every agent lists all others as live.
    ///
    /// # Errors
    /// An agent cannot start, or they do not find each other within `wait`.
    pub async fn serve(databases: &[PathBuf], replicated: &[String], wait: Duration) -> anyhow::Result<Self> {
        Self::one_by_one(configs(databases, replicated)?, wait).await
    }

    /// Starts `n` agents that each write a trace store of their own, in which `findings` are, and
    /// waits as [`Cluster::serve`] does.
    ///
    /// # Errors
    /// As [`Cluster::serve`], or a store cannot be written.
    pub async fn with_stores(n: usize, findings: &[Finding], wait: Duration) -> anyhow::Result<Self> {
        let (dir, mut configs) = configs(&vec![PathBuf::new(); n], &[])?;
        for config in &mut configs {
            let path = dir.path().join(format!("{}.db", config.name));
            config.source = SourceConfig::Store { path, limits: StoreConfig::default() };
        }
        let cluster = Self::one_by_one((dir, configs), wait).await?;
        for agent in &cluster.agents {
            let Source::Store(store) = agent.shared().source.as_ref() else { bail!("no store") };
            let ingest = store.ingest();
            findings.iter().for_each(|finding| ingest.finding(finding.clone()));
            store.flush(wait)?;
        }
        Ok(cluster)
    }

    /// Starts one agent a source, and waits as [`Cluster::serve`] does.
    ///
    /// # Errors
    /// As [`Cluster::serve`].
    pub async fn of_sources(sources: Vec<SourceConfig>, wait: Duration) -> anyhow::Result<Self> {
        let (dir, mut configs) = configs(&vec![PathBuf::new(); sources.len()], &[])?;
        for (config, source) in configs.iter_mut().zip(sources) {
            config.source = source;
        }
        Self::one_by_one((dir, configs), wait).await
    }

    /// As [`Cluster::serve`], with a socket at the first agent, for the command line.
    ///
    /// # Errors
    /// As [`Cluster::serve`].
    pub async fn serve_with_socket(databases: &[PathBuf], socket: PathBuf, wait: Duration) -> anyhow::Result<Self> {
        let (dir, mut configs) = configs(databases, &[])?;
        configs.first_mut().context("no database")?.socket = Some(socket);
        Self::one_by_one((dir, configs), wait).await
    }

    async fn one_by_one((dir, configs): (TempDir, Vec<AgentConfig>), wait: Duration) -> anyhow::Result<Self> {
        let mut agents: Vec<Agent> = Vec::with_capacity(configs.len());
        for mut config in configs {
            config.join = agents.first().map(|first| first.shared().advertise.into()).into_iter().collect();
            agents.push(start(config).await?);
        }
        let cluster = Self { agents, _dir: dir };
        cluster.wait_for_members(wait).await?;
        Ok(cluster)
    }

    /// As [`Cluster::serve`], with all but the first, which the others know, started at the same
    /// time. Also how long that took from there until each listed all as live.
    ///
    /// # Errors
    /// As [`Cluster::serve`].
    pub async fn serve_at_once(databases: &[PathBuf], wait: Duration) -> anyhow::Result<(Self, Duration)> {
        let (dir, configs) = configs(databases, &[])?;
        let mut configs = configs.into_iter();
        let seed = start(configs.next().context("no database")?).await?;
        let join = vec![seed.shared().advertise.into()];
        let began = Instant::now();
        let others = configs.map(|config| tokio::spawn(start(AgentConfig { join: join.clone(), ..config })));
        // Spawned, all of them, before the first is waited for.
        let others: Vec<_> = others.collect();
        let mut agents = vec![seed];
        for other in others {
            agents.push(other.await??);
        }
        let cluster = Self { agents, _dir: dir };
        cluster.wait_for_members(wait).await?;
        Ok((cluster, began.elapsed()))
    }

    async fn wait_for_members(&self, wait: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + wait;
        for agent in &self.agents {
            loop {
                let members = agent.shared().coordinator.gossip.members();
                let live = members.iter().filter(|member| member.state == MemberState::Live).count();
                if live == self.agents.len() {
                    break;
                }
                ensure!(Instant::now() < until, "an agent knows {live} of {} agents after {wait:?}", self.agents.len());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// Asks agent `at` and waits for the merged answer.
    ///
    /// # Errors
    /// As [`ask::ask`].
    pub async fn ask(&self, at: usize, sql: &str) -> Result<QueryOutcome, AskError> {
        self.put(at, sql, false, PATIENCE).await
    }

    /// As [`Cluster::ask`], within `timeout`.
    ///
    /// # Errors
    /// As [`ask::ask`].
    pub async fn ask_within(&self, at: usize, sql: &str, timeout: Duration) -> Result<QueryOutcome, AskError> {
        self.put(at, sql, false, timeout).await
    }

    /// As [`Cluster::ask`], with the plan and what it cost beside the answer.
    ///
    /// # Errors
    /// As [`ask::ask`].
    pub async fn ask_analyze(&self, at: usize, sql: &str) -> Result<QueryOutcome, AskError> {
        self.put(at, sql, true, PATIENCE).await
    }

    async fn put(&self, at: usize, sql: &str, analyze: bool, timeout: Duration) -> Result<QueryOutcome, AskError> {
        let question = Question {
            sql: sql.to_owned(),
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            analyze,
            ..Question::default()
        };
        ask::ask(&self.agents[at].shared().coordinator, question, CancellationToken::new()).await
    }

    /// Stops every agent.
    pub async fn shutdown(self) {
        for agent in self.agents {
            agent.shutdown().await;
        }
    }
}

/// An agent a database, which knows nobody yet.
fn configs(databases: &[PathBuf], replicated: &[String]) -> anyhow::Result<(TempDir, Vec<AgentConfig>)> {
    let dir = tempfile::tempdir()?;
    let authority = Authority::create(&"lab".parse()?)?;
    let mut configs = Vec::with_capacity(databases.len());
    for (index, database) in databases.iter().enumerate() {
        let name = format!("n{index}");
        let identity = dir.path().join(&name);
        authority.issue(&name.parse()?, Duration::from_secs(86_400))?.save(&identity)?;
        configs.push(AgentConfig::new(
            name.parse()?,
            identity,
            SourceConfig::Served { path: database.clone(), replicated: replicated.to_vec() },
        ));
    }
    Ok((dir, configs))
}

async fn start(config: AgentConfig) -> anyhow::Result<Agent> {
    let name = config.name.to_string();
    Agent::start(config).await.with_context(|| format!("starting {name}"))
}

/// Makes a database file from SQL.
///
/// # Errors
/// The SQL is wrong or the file cannot be written.
pub fn make_database(path: &Path, sql: &str) -> anyhow::Result<()> {
    rusqlite::Connection::open(path)?.execute_batch(sql)?;
    Ok(())
}
