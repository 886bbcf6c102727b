//! Rows of the mesh that a verdict or an explanation needs: for whom they are asked, and until
//! when.

use std::time::{Duration, Instant};

use model::{Coverage, Failure, StragglersQuestion};
use query::Coordinator;
use query::access::Caller;
use query::ask::{self, QueryOutcome, Question};
use query_planner::Value;
use tokio_util::sync::CancellationToken;

/// Rows, and what is missing from them in words.
pub(super) type Rows = (Vec<Vec<Value>>, Vec<String>);

/// Asks nodes for rows, in the name of a caller and until a deadline.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) coordinator: &'a Coordinator,
    pub(super) caller: &'a Caller,
    pub(super) deadline: Instant,
    pub(super) cancelled: &'a CancellationToken,
}

impl Asking<'_> {
    /// The same, for this long at most from now on.
    pub(super) fn within(self, patience: Duration) -> Self {
        Self { deadline: self.deadline.min(Instant::now() + patience), ..self }
    }

    /// A query to these nodes, to all where there are none, with the time that is left.
    pub(super) fn query(&self, sql: String, nodes: &[String], labels: &[(String, String)]) -> Question {
        let left = self.deadline.saturating_duration_since(Instant::now());
        Question {
            sql,
            timeout_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            nodes: nodes.to_vec(),
            labels: labels.to_vec(),
            ..Question::default()
        }
    }

    /// The rows of these nodes, of all where there are none, with what is missing from them; or why
    /// there are none.
    pub(super) async fn rows(&self, sql: String, nodes: &[String]) -> Result<Rows, Failure> {
        self.answer(self.query(sql, nodes, &[])).await
    }

    /// The rows of these nodes; or why there are none, or not all.
    pub(super) async fn all_rows(&self, sql: String, nodes: &[String]) -> Result<Vec<Vec<Value>>, Failure> {
        let (rows, coverage) = self.covered(self.query(sql, nodes, &[])).await?;
        match coverage.missing.first() {
            None => Ok(rows),
            Some(gone) => Err(format!("{} did not answer: {}", gone.node, gone.reason).into()),
        }
    }

    /// The same of the nodes that a question chooses.
    pub(super) async fn rows_for(&self, question: &StragglersQuestion, sql: String) -> Result<Rows, Failure> {
        self.answer(self.query(sql, &question.nodes, &question.labels)).await
    }

    /// The rows of the nodes that a question chooses, and whether they are the rows of all of these.
    pub(super) async fn rows_of(&self, question: &StragglersQuestion, sql: String) -> (Vec<Vec<Value>>, bool) {
        match self.covered(self.query(sql, &question.nodes, &question.labels)).await {
            Ok((rows, coverage)) => (rows, coverage.missing.is_empty()),
            Err(_) => (Vec::new(), false),
        }
    }

    async fn answer(&self, question: Question) -> Result<Rows, Failure> {
        let (rows, coverage) = self.covered(question).await?;
        let missing = coverage.missing.iter().map(|gone| format!("{} did not answer: {}", gone.node, gone.reason));
        Ok((rows, missing.chain(coverage.notes.iter().cloned()).collect()))
    }

    /// The rows of an answer, with its coverage; or why there is none.
    async fn covered(&self, question: Question) -> Result<(Vec<Vec<Value>>, Coverage), Failure> {
        match ask::ask_as(self.coordinator, question, self.caller, self.cancelled.clone()).await {
            Ok(QueryOutcome::Answer { answer, coverage, .. }) => Ok((answer.rows, coverage)),
            Ok(QueryOutcome::Plan(_)) => Err("the planner gave no answer".into()),
            Err(error) => Err(error.into()),
        }
    }
}
