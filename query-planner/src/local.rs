//! A question to one store: the same checks, functions and executors, and no fan-out.

use std::borrow::Cow;
use std::sync::Arc;

use rusqlite::Connection;

use crate::api::{Answer, AskOptions, Budget, Fanout, NodeError, NodeStats, NodeTask, RunError, Sink};
use crate::batch::{Batch, Value};
use crate::catalog::Catalog;
use crate::error::QueryError;
use crate::exec::{FragmentExecutor, execute_task_with};
use crate::merge_pool::MergePool;
use crate::plan::{ColumnMeta, Plan, Targets};
use crate::plan_cache::PlanCache;
use crate::run::run_with;
use crate::stop::Stop;

/// A question to one store failed.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The store's schema cannot be read.
    #[error(transparent)]
    Catalog(#[from] crate::catalog::CatalogError),
    /// The question cannot be planned.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The question cannot be answered.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// As [`crate::Out`], with the answer's columns next to its rows.
pub type NamedOut<'a> = &'a mut dyn FnMut(&[ColumnMeta], Vec<Vec<Value>>) -> Result<(), RunError>;

/// One store, and how it is asked. Fragments are answered by `executor` where it can, also those of
/// questions of which it cannot answer all (HAVING, expressions around aggregates).
pub struct Local<'a> {
    /// A connection that [`crate::harden`] has seen.
    pub conn: &'a Connection,
    /// Its catalogue, read before that.
    pub catalog: &'a Arc<Catalog>,
    /// What was planned for it before.
    pub plans: &'a PlanCache,
    /// Merge databases of questions before.
    pub merges: &'a MergePool,
    /// The node's name.
    pub node: &'a str,
    /// Answers fragments that it understands; SQLite answers the others.
    pub executor: &'a dyn FragmentExecutor,
    /// What a question may take.
    pub budget: Budget,
    /// The instant that 'now' means everywhere in the question.
    pub now_unix_ns: i64,
    /// Ends it.
    pub stop: Stop,
}

impl Local<'_> {
    /// The answer.
    ///
    /// # Errors
    /// As for [`crate::plan()`] and [`crate::run()`].
    pub fn answer(&self, sql: &str) -> Result<Answer, LocalError> {
        let plan = self.plan(sql)?;
        Ok(self.run(&plan)?)
    }

    /// The answer's rows, with its columns, handed to `out` as they come; once more at the end.
    ///
    /// # Errors
    /// As [`Local::answer`], and what `out` returned.
    pub fn answer_into(&self, sql: &str, out: NamedOut<'_>) -> Result<(), LocalError> {
        let plan = self.plan(sql)?;
        let mut hand_on = |rows| out(&plan.columns, rows);
        let (budget, merges) = (&self.budget, self.merges);
        let answer = run_with(&plan, &mut &*self, budget, self.now_unix_ns, &self.stop, merges, Some(&mut hand_on))?;
        Ok(out(&plan.columns, answer.rows)?)
    }

    /// How a question is answered: the plan, or after having run it (`analyze`) what it took and
    /// from what it was answered.
    ///
    /// # Errors
    /// As [`Local::answer`].
    pub fn explain(&self, sql: &str, analyze: bool) -> Result<String, LocalError> {
        let plan = self.plan(sql)?;
        Ok(if analyze { crate::explain_analyze(&plan, &self.run(&plan)?) } else { crate::explain(&plan) })
    }

    fn plan(&self, sql: &str) -> Result<Arc<Plan>, QueryError> {
        let one = AskOptions { single_node: true, ..AskOptions::default() };
        self.plans.plan(sql, self.catalog, &one, |fragment| self.executor.understands(self.conn, fragment))
    }

    fn run(&self, plan: &Plan) -> Result<Answer, RunError> {
        run_with(plan, &mut &*self, &self.budget, self.now_unix_ns, &self.stop, self.merges, None)
    }
}

impl Fanout for &Local<'_> {
    fn ask(&mut self, task: &NodeTask, _: &Targets, sink: Sink<'_>) -> Result<Vec<(String, NodeStats)>, RunError> {
        let mut stopped = None;
        let mut emit = |fragment: usize, batch: Batch| {
            sink(self.node, fragment, Cow::Owned(batch)).map_err(|error| {
                let reason = error.to_string();
                stopped = Some(error);
                NodeError::Stopped(reason)
            })
        };
        let stats = execute_task_with(self.conn, self.node, task, self.executor, &mut emit);
        match (stats, stopped) {
            (_, Some(error)) => Err(error),
            (Ok(stats), None) => Ok(vec![(self.node.to_owned(), stats)]),
            (Err(NodeError::Sql(message)), None) => Err(RunError::Sql(message)),
            (Err(NodeError::OverBudget(message)), None) => Err(RunError::OverBudget(message)),
            (Err(NodeError::Stopped(message) | NodeError::Timeout(message)), None) => Err(RunError::Stopped(message)),
            (Err(NodeError::Failed(message) | NodeError::Busy(message)), None) => Err(RunError::Internal(message)),
        }
    }
}
