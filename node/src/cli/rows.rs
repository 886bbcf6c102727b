//! Rows for commands that are made of questions: asked of the mesh through the agent.

use std::time::{Duration, Instant};

use model::{Coverage, LocalRequest, Question};
use query_planner::Value;

use super::args::SocketArg;
use super::local::{self, Piece, Reply};

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
    pub(super) socket: &'a SocketArg,
    pub(super) nodes: &'a [String],
    pub(super) labels: &'a [(String, String)],
    pub(super) deadline: Instant,
}

impl Asker<'_> {
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
            timeout_ms: u64::try_from(self.left().as_millis()).unwrap_or(u64::MAX),
            nodes: self.nodes.to_vec(),
            labels: self.labels.to_vec(),
            per_node,
            plan_only: false,
            analyze: false,
        };
        let mut all = Rows::default();
        let reply = local::ask_into(self.socket, &LocalRequest::Query(question), &mut |piece| {
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

/// A text as SQL has it.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
