//! Rows for commands that are made of questions: asked of whom they were told to ask.

use std::time::{Duration, Instant};

use model::{Coverage, Question};
use query_planner::Value;

use super::local::{Piece, Reply};
use super::target::{Target, TargetArgs};
use super::values::millis;

/// Most rows that one question of a command may give.
const MOST_ROWS: usize = 4_000_000;

/// An answer, whole.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) rows: Vec<Vec<Value>>,
    pub(super) coverage: Coverage,
}

/// Whom a command asks, and until when.
pub(super) struct Asker<'a> {
    target: &'a Target,
    nodes: &'a [String],
    labels: &'a [(String, String)],
    deadline: Instant,
}

impl<'a> Asker<'a> {
    /// The nodes that the flags leave, within their time from now on.
    pub(super) fn of(target: &'a Target, args: &'a TargetArgs) -> Self {
        Self::until(target, args, Instant::now() + args.ask.timeout)
    }

    /// The nodes that the flags leave, until a deadline.
    pub(super) fn until(target: &'a Target, args: &'a TargetArgs, deadline: Instant) -> Self {
        Self { target, nodes: &args.ask.nodes, labels: &args.ask.label, deadline }
    }

    /// All nodes.
    pub(super) fn of_all(target: &'a Target, patience: Duration) -> Self {
        Self { target, nodes: &[], labels: &[], deadline: Instant::now() + patience }
    }

    /// Time left.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The mesh's answer.
    pub(super) fn ask(&self, sql: String) -> anyhow::Result<Rows> {
        self.asked(sql, false)
    }

    /// Each node's own answer, one after the other, its name first.
    pub(super) fn ask_each(&self, sql: String) -> anyhow::Result<Rows> {
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
        let mut all = Rows::default();
        let reply = self.target.query(question, &mut |piece| {
            if let Piece::Rows(rows) = piece {
                all.rows.extend(rows);
                anyhow::ensure!(all.rows.len() <= MOST_ROWS, "more than {MOST_ROWS} rows: ask for a shorter time");
            }
            Ok(())
        })?;
        if let Reply::Result { coverage, .. } = reply {
            all.coverage = coverage;
        }
        Ok(all)
    }
}
