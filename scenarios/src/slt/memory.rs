//! The memory transport: the planner's own way from SQL to answer, with function calls where the
//! mesh has QUIC.
//!
//! Each node runs its parts on a hardened read-only connection of its own, as an agent does. Nodes
//! answer in an order that changes from question to question, as over a network.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use query_planner::{
    AskOptions, Batch, Budget, Catalog, Fanout, NodeError, NodeStats, NodeTask, RunError, Sink, Stop, Targets,
};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rusqlite::{Connection, OpenFlags};

use super::deal::Dealer;
use super::transport::{Answered, Reply, Transport};

/// Nodes as read-only connections in this process.
#[derive(Debug)]
pub struct MemoryTransport {
    nodes: Vec<(String, Connection)>,
    catalog: Option<(u64, Catalog)>,
    rng: StdRng,
}

impl MemoryTransport {
    /// Open the nodes of a deal. `seed` chooses coordinators and the order of answers.
    ///
    /// # Errors
    /// A node's file cannot be opened.
    pub fn new(dealer: &Dealer, seed: u64) -> anyhow::Result<Self> {
        let nodes = dealer
            .nodes()
            .iter()
            .map(|node| {
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                let mut conn = Connection::open_with_flags(&node.path, flags)?;
                query_planner::harden(&mut conn)?;
                Ok((node.name.clone(), conn))
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(MemoryTransport { nodes, catalog: None, rng: StdRng::seed_from_u64(seed) })
    }

    /// The union's catalogue, made anew when the schema has changed.
    fn catalog(&mut self, dealer: &Dealer) -> anyhow::Result<&Catalog> {
        let version = dealer.schema_changes();
        if self.catalog.as_ref().is_none_or(|(of, _)| *of != version) {
            self.catalog = Some((version, catalog_of(dealer)?));
        }
        let (_, catalog) = self.catalog.as_ref().ok_or_else(|| anyhow::anyhow!("no catalogue"))?;
        Ok(catalog)
    }
}

/// The catalogue of a deal's nodes.
///
/// # Errors
/// A node's schema cannot be read, or the nodes disagree.
pub fn catalog_of(dealer: &Dealer) -> anyhow::Result<Catalog> {
    let mut parts = Vec::new();
    for node in dealer.nodes() {
        let conn = Connection::open_with_flags(&node.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        parts.push((node.name.clone(), Catalog::of(&conn, &[])?));
    }
    Catalog::union(&parts).map_err(|conflicts| anyhow::anyhow!("the nodes disagree: {conflicts:?}"))
}

impl Transport for MemoryTransport {
    fn ask(&mut self, dealer: &Dealer, sql: &str) -> anyhow::Result<Reply> {
        let coordinator = self.rng.random_range(0..self.nodes.len());
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.shuffle(&mut self.rng);
        let options = AskOptions { single_node: self.nodes.len() == 1, ..AskOptions::default() };
        let plan = match query_planner::plan(sql, self.catalog(dealer)?, &options) {
            Ok(plan) => plan,
            Err(error) => return Ok(Reply::Refused(error.message)),
        };
        let mut fanout = MemoryFanout { nodes: &self.nodes, order: &order, coordinator };
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let now = i64::try_from(now)?;
        Ok(match query_planner::run(&plan, &mut fanout, &Budget::default(), now, &Stop::default()) {
            Ok(answer) => Reply::Answered(Box::new(Answered {
                rows: answer.rows,
                strategy: plan.strategy,
                rows_shipped: answer.node_stats.iter().map(|(_, stats)| stats.rows).sum(),
                bytes_shipped: answer.node_stats.iter().map(|(_, stats)| stats.bytes).sum(),
                plan: Some(plan),
            })),
            Err(RunError::Sql(message)) => Reply::SqlError(message),
            Err(error) => Reply::Failed { message: error.to_string(), plan: Some(Box::new(plan)) },
        })
    }
}

struct MemoryFanout<'a> {
    nodes: &'a [(String, Connection)],
    order: &'a [usize],
    coordinator: usize,
}

impl Fanout for MemoryFanout<'_> {
    fn ask(
        &mut self,
        task: &NodeTask,
        targets: &Targets,
        sink: Sink<'_>,
    ) -> Result<Vec<(String, NodeStats)>, RunError> {
        let mut answered = Vec::new();
        for index in self.order {
            let (name, conn) = &self.nodes[*index];
            let is_asked = match targets {
                Targets::All => true,
                Targets::Named(names) => names.contains(name),
                Targets::AnyOne => *index == self.coordinator,
            };
            if !is_asked {
                continue;
            }
            let mut batches: Vec<(usize, Batch)> = Vec::new();
            let stats = query_planner::execute_task(conn, name, task, &mut |part, batch| {
                batches.push((part, batch));
                Ok(())
            })
            .map_err(|error| match error {
                NodeError::Sql(message) => RunError::Sql(message),
                NodeError::OverBudget(message) => RunError::OverBudget(format!("{name}: {message}")),
                NodeError::Stopped(message) => RunError::Stopped(format!("{name}: {message}")),
                NodeError::Failed(message) => RunError::Internal(format!("{name}: {message}")),
            })?;
            for (part, batch) in batches {
                sink(name, part, Cow::Owned(batch))?;
            }
            answered.push((name.clone(), stats));
        }
        Ok(answered)
    }
}
