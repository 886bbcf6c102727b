//! The QUIC transport: real agents over loopback sockets, asked through the code behind the command
//! line.
//!
//! Agents serve the deal's files, so they see rows as soon as those are written. A changed schema
//! reaches the coordinators by gossip: before the next question the transport waits until every
//! agent knows every catalogue.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::ensure;
use query::ask::{AskError, QueryOutcome};
use query_planner::{Catalog, Strategy};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rusqlite::{Connection, OpenFlags};
use tokio::runtime::Runtime;

use super::deal::Dealer;
use super::transport::{Answered, Reply, Transport};
use crate::cluster::Cluster;

/// How long agents may take to find each other, and to learn a new schema.
const PATIENCE: Duration = Duration::from_secs(240);

/// A mesh of agents in this process, started at the first question.
pub struct QuicTransport {
    runtime: Runtime,
    mesh: Option<Mesh>,
    rng: StdRng,
}

struct Mesh {
    cluster: Cluster,
    schema_changes: u64,
}

impl QuicTransport {
    /// A transport without agents yet. `seed` chooses coordinators.
    ///
    /// # Errors
    /// The asynchronous runtime cannot start.
    pub fn new(seed: u64) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(QuicTransport { runtime, mesh: None, rng: StdRng::seed_from_u64(seed) })
    }

    /// Agents that know the present schema.
    fn mesh(&mut self, dealer: &Dealer) -> anyhow::Result<&Mesh> {
        let mut mesh = match self.mesh.take() {
            Some(mesh) => mesh,
            None => {
                let files: Vec<PathBuf> = dealer.nodes().iter().map(|node| node.path.clone()).collect();
                let cluster = self.runtime.block_on(Cluster::serve(&files, &[], PATIENCE))?;
                // Nothing is known of the agents' catalogues yet: wait below, whatever the count
                // says.
                Mesh { cluster, schema_changes: u64::MAX }
            }
        };
        if mesh.schema_changes != dealer.schema_changes() {
            self.runtime.block_on(schema_spread(&mesh.cluster, dealer))?;
            mesh.schema_changes = dealer.schema_changes();
        }
        Ok(self.mesh.insert(mesh))
    }
}

/// Waits until every agent has heard every node's present catalogue.
async fn schema_spread(cluster: &Cluster, dealer: &Dealer) -> anyhow::Result<()> {
    let mut hashes = Vec::new();
    for node in dealer.nodes() {
        let conn = Connection::open_with_flags(&node.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        hashes.push((node.name.clone(), Catalog::of(&conn, &[])?.hash()));
    }
    let until = Instant::now() + PATIENCE;
    for agent in &cluster.agents {
        loop {
            let members = agent.shared().coordinator.gossip.members();
            let known = |(name, hash): &(String, u64)| {
                members.iter().any(|member| member.name == *name && member.facts.schema_hash == *hash)
            };
            if hashes.iter().all(known) {
                break;
            }
            ensure!(Instant::now() < until, "a new schema has not spread within {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

impl Transport for QuicTransport {
    fn ask(&mut self, dealer: &Dealer, sql: &str) -> anyhow::Result<Reply> {
        let coordinator = self.rng.random_range(0..dealer.nodes().len());
        self.mesh(dealer)?;
        let Some(mesh) = &self.mesh else { anyhow::bail!("no mesh") };
        let asked = self.runtime.block_on(mesh.cluster.ask_analyze(coordinator, sql));
        Ok(match asked {
            Ok(QueryOutcome::Answer { coverage, .. }) if coverage.answered < coverage.asked => {
                Reply::Failed { message: format!("not all nodes answered: {:?}", coverage.missing), plan: None }
            }
            Ok(QueryOutcome::Answer { answer, explained, .. }) => match strategy(&explained) {
                Some(strategy) => Reply::Answered(Box::new(Answered {
                    rows: answer.rows,
                    strategy,
                    rows_shipped: answer.node_stats.iter().map(|(_, stats)| stats.rows).sum(),
                    bytes_shipped: answer.node_stats.iter().map(|(_, stats)| stats.bytes).sum(),
                    plan: None,
                })),
                None => Reply::Failed { message: "the explanation names no strategy".to_owned(), plan: None },
            },
            Ok(QueryOutcome::Plan(_)) => {
                Reply::Failed { message: "a plan instead of an answer".to_owned(), plan: None }
            }
            Err(AskError::Wrong(failure)) => Reply::Refused(failure.message),
            // What SQL errors and what the mesh fails at is one kind of error here; the union tells
            // them apart.
            Err(AskError::Failed { failure, .. }) => Reply::SqlError(failure.message),
        })
    }
}

impl Drop for QuicTransport {
    fn drop(&mut self) {
        if let Some(mesh) = self.mesh.take() {
            self.runtime.block_on(mesh.cluster.shutdown());
        }
    }
}

/// The strategy that an explanation names in its first line.
fn strategy(explained: &str) -> Option<Strategy> {
    let name = explained.lines().find_map(|line| line.strip_prefix("strategy: "))?.trim();
    [
        Strategy::PerNode,
        Strategy::Coordinator,
        Strategy::Push,
        Strategy::Rows,
        Strategy::Aggregate,
        Strategy::Parts,
        Strategy::Fetch,
    ]
    .into_iter()
    .find(|strategy| strategy.to_string() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strategy_stands_in_the_explanation() {
        assert_eq!(strategy("strategy: rows\nfragment 0 (…)"), Some(Strategy::Rows));
        assert_eq!(strategy("nothing"), None);
    }
}
