//! Questions whose complete answer a command works on.

use std::time::{Duration, Instant};

use model::{Coverage, Question};
use query_planner::{ColumnMeta, Value};

use crate::args::TargetArgs;
use crate::backend::{Piece, Reply};
use crate::target::Target;
use crate::values::millis;

/// Most rows that one question of a command may give.
const MOST_ROWS: usize = 4_000_000;

/// A complete answer.
#[derive(Debug, Default)]
pub struct Rows {
    /// Its columns.
    pub columns: Vec<ColumnMeta>,
    /// Its rows.
    pub rows: Vec<Vec<Value>>,
    /// Coverage of it.
    pub coverage: Coverage,
}

impl Target {
    /// Asks a SQL question and waits for the complete answer. Of more than `most` rows it is
    /// stopped, with an error that ends with `hint`.
    ///
    /// # Errors
    /// As [`Target::query`]; there are more rows, or there is a plan in their place.
    pub fn rows(&self, question: Question, most: usize, hint: &str) -> anyhow::Result<Rows> {
        let mut all = Rows::default();
        let reply = self.query(question, &mut |piece| {
            match piece {
                Piece::Columns(columns) => all.columns = columns,
                Piece::Rows(rows) => all.rows.extend(rows),
                Piece::Idle | Piece::Watched(_) => {}
            }
            anyhow::ensure!(all.rows.len() <= most, "more than {most} rows{hint}");
            Ok(())
        })?;
        let Reply::Result { coverage, .. } = reply else { anyhow::bail!("something else came in place of rows") };
        Ok(Rows { coverage, ..all })
    }
}

/// Sends a command's questions to a target, until a deadline.
pub struct Client<'a> {
    target: &'a Target,
    nodes: &'a [String],
    labels: &'a [(String, String)],
    deadline: Instant,
}

impl<'a> Client<'a> {
    /// To the nodes that the flags choose, with their time limit from now on.
    pub fn of(target: &'a Target, args: &'a TargetArgs) -> Self {
        Self::until(target, args, Instant::now() + args.ask.timeout)
    }

    /// To the nodes that the flags choose, until a deadline.
    pub fn until(target: &'a Target, args: &'a TargetArgs, deadline: Instant) -> Self {
        Self { target, nodes: &args.ask.nodes, labels: &args.ask.label, deadline }
    }

    /// To all nodes.
    pub fn of_all(target: &'a Target, patience: Duration) -> Self {
        Self::of_nodes(target, &[], &[], patience)
    }

    /// To these nodes, of those with these labels; to all where none are given.
    pub fn of_nodes(
        target: &'a Target,
        nodes: &'a [String],
        labels: &'a [(String, String)],
        patience: Duration,
    ) -> Self {
        Self { target, nodes, labels, deadline: Instant::now() + patience }
    }

    /// Time left.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The mesh's answer.
    pub fn ask(&self, sql: String) -> anyhow::Result<Rows> {
        self.asked(sql, false)
    }

    /// Each node's own answer, one after the other, its name first.
    pub fn ask_each(&self, sql: String) -> anyhow::Result<Rows> {
        self.asked(sql, true)
    }

    fn asked(&self, sql: String, per_node: bool) -> anyhow::Result<Rows> {
        let question = Question {
            sql,
            timeout_ms: millis(self.left()),
            nodes: self.nodes.to_vec(),
            labels: self.labels.to_vec(),
            per_node,
            plan_only: false,
            analyze: false,
        };
        self.target.rows(question, MOST_ROWS, ": ask for a shorter time")
    }
}
