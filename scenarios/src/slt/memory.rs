//! The memory transport: the planner's own way from SQL to answer, with function calls where the
//! mesh has QUIC.
//!
//! Each node runs its parts on a hardened read-only connection of its own, as an agent does. Nodes
//! answer in an order that changes from question to question, as over a network.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use query_planner::{
    AskOptions, Batch, Budget, Catalog, Fanout, FragmentExecutor, NodeError, NodeStats, NodeTask, OnlySqlite, RunError,
    Sink, Stop, Targets,
};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rusqlite::Connection;

use super::columns;
use super::deal::{Dealer, NodeStore};
use super::transport::{Answered, Reply, Transport};

/// Nodes as read-only connections in this process.
#[derive(Debug)]
pub struct MemoryTransport {
    nodes: Vec<(String, Connection)>,
    columns: Option<Columns>,
    catalog: Option<(u64, Catalog)>,
    rng: StdRng,
}

/// Nodes that have their tables in column segments.
#[derive(Debug)]
struct Columns {
    segment_rows: usize,
    /// The state of the deal that they are of.
    statements: Option<u64>,
    tables: u64,
}

impl MemoryTransport {
    /// Open the nodes of a deal. `seed` chooses coordinators and the order of answers.
    ///
    /// # Errors
    /// A node's file cannot be opened.
    pub fn new(dealer: &Dealer, seed: u64) -> anyhow::Result<Self> {
        let open = |node: &NodeStore| Ok((node.name.clone(), hardened(columns::open_plain(&node.path)?)?));
        let nodes = dealer.nodes().iter().map(open).collect::<anyhow::Result<_>>()?;
        Ok(MemoryTransport { nodes, columns: None, catalog: None, rng: StdRng::seed_from_u64(seed) })
    }

    /// From now on the nodes' tables lie in segments of so many rows, where they can.
    #[must_use]
    pub fn in_columns(mut self, segment_rows: usize) -> Self {
        self.columns = Some(Columns { segment_rows, statements: None, tables: 0 });
        self
    }

    /// Bring nodes that have columns to the deal's present rows.
    fn follow(&mut self, dealer: &Dealer) -> anyhow::Result<()> {
        let Some(columns) = &mut self.columns else { return Ok(()) };
        if columns.statements == Some(dealer.statements()) {
            return Ok(());
        }
        self.nodes.clear();
        let (files, tables) = columns::copies(dealer, columns.segment_rows)?;
        let open = |(node, file): (&NodeStore, &std::path::PathBuf)| Ok((node.name.clone(), columns::open(file)?));
        let opened: Vec<(String, Connection)> =
            dealer.nodes().iter().zip(&files).map(open).collect::<anyhow::Result<_>>()?;
        // A hardened connection does not show its schema.
        let catalog = united(opened.iter().map(|(name, conn)| (name, conn)))?;
        self.catalog = Some((dealer.schema_changes(), catalog));
        for (name, conn) in opened {
            self.nodes.push((name, hardened(conn)?));
        }
        (columns.statements, columns.tables) = (Some(dealer.statements()), tables);
        Ok(())
    }

    /// The union's catalogue, made anew when the schema has changed.
    fn catalog(&mut self, dealer: &Dealer) -> anyhow::Result<&Catalog> {
        let version = dealer.schema_changes();
        // (Of nodes that have columns it was made when they were opened.)
        if self.columns.is_none() && self.catalog.as_ref().is_none_or(|(of, _)| *of != version) {
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
    let open = |node: &NodeStore| columns::open_plain(&node.path).map(|conn| (node.name.clone(), conn));
    let nodes: Vec<(String, Connection)> = dealer.nodes().iter().map(open).collect::<Result<_, _>>()?;
    united(nodes.iter().map(|(name, conn)| (name, conn)))
}

fn united<'n>(nodes: impl Iterator<Item = (&'n String, &'n Connection)>) -> anyhow::Result<Catalog> {
    let parts = nodes.map(|(name, conn)| Ok((name.clone(), Catalog::of(conn, &[])?)));
    let parts: Vec<(String, Catalog)> = parts.collect::<anyhow::Result<_>>()?;
    Catalog::union(&parts).map_err(|conflicts| anyhow::anyhow!("the nodes disagree: {conflicts:?}"))
}

fn hardened(mut conn: Connection) -> anyhow::Result<Connection> {
    query_planner::harden(&mut conn)?;
    Ok(conn)
}

impl Transport for MemoryTransport {
    fn columnar_tables(&self) -> u64 {
        self.columns.as_ref().map_or(0, |columns| columns.tables)
    }

    fn ask(&mut self, dealer: &Dealer, sql: &str) -> anyhow::Result<Reply> {
        self.follow(dealer)?;
        let coordinator = self.rng.random_range(0..self.nodes.len());
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.shuffle(&mut self.rng);
        let options = AskOptions { single_node: self.nodes.len() == 1, ..AskOptions::default() };
        let plan = match query_planner::plan(sql, self.catalog(dealer)?, &options) {
            Ok(plan) => plan,
            Err(error) => return Ok(Reply::Refused(error.message)),
        };
        let by_columns = store::ColumnExecutor::new(&|| false, u64::MAX);
        let executor: &dyn FragmentExecutor = if self.columns.is_some() { &by_columns } else { &OnlySqlite };
        let mut fanout = MemoryFanout { nodes: &self.nodes, executor, order: &order, coordinator };
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
    executor: &'a dyn FragmentExecutor,
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
            let stats = query_planner::execute_task_with(conn, name, task, self.executor, &mut |part, batch| {
                batches.push((part, batch));
                Ok(())
            })
            .map_err(|error| match error {
                NodeError::Sql(message) => RunError::Sql(message),
                NodeError::OverBudget(message) => RunError::OverBudget(format!("{name}: {message}")),
                NodeError::Stopped(message) | NodeError::Timeout(message) => {
                    RunError::Stopped(format!("{name}: {message}"))
                }
                NodeError::Failed(message) | NodeError::Busy(message) => {
                    RunError::Internal(format!("{name}: {message}"))
                }
            })?;
            for (part, batch) in batches {
                sink(name, part, Cow::Owned(batch))?;
            }
            answered.push((name.clone(), stats));
        }
        Ok(answered)
    }
}
