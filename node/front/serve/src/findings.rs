//! Findings as they come: rows of the table `findings`, each returned once.

use std::collections::BTreeSet;
use std::time::Duration;

use ask::Target;
use ask::output::value_to_json;
use ask::rows::Rows;
use ask::values::millis;
use model::cells::integer;
use model::{Coverage, Question};
use query_planner::{ColumnMeta, Value};
use serde_json::{Map, Value as Json};

/// The time limit of each request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most findings of one request.
const MOST: usize = 1_000;
/// Clocks of hosts may differ by this much, and rows take a moment: each request goes this far back
/// again.
const BEHIND_NS: i64 = 60_000_000_000;

/// The result of one request.
pub(super) struct Found {
    pub(super) columns: Vec<ColumnMeta>,
    pub(super) rows: Vec<Vec<Value>>,
    /// There are others.
    pub(super) more: bool,
    pub(super) coverage: Coverage,
}

/// Findings after a time, oldest first, of these nodes or of all.
///
/// # Errors
/// There is no answer.
pub(super) fn after_ns(target: &Target, after: i64, nodes: &[String]) -> anyhow::Result<Found> {
    let sql = format!("SELECT node, * FROM findings WHERE ts_ns > {after} ORDER BY ts_ns, node LIMIT {}", MOST + 1);
    let question = Question { sql, timeout_ms: millis(PATIENCE), nodes: nodes.to_vec(), ..Question::default() };
    let Rows { columns, mut rows, coverage } = target.rows(question, MOST + 1, "")?;
    let more = rows.len() > MOST;
    rows.truncate(MOST);
    Ok(Found { columns, rows, more, coverage })
}

/// The findings from a time on.
#[derive(Debug)]
pub(super) struct Following {
    start_ns: i64,
    newest: i64,
    seen: BTreeSet<(i64, String)>,
}

impl Following {
    /// From here, Unix nanoseconds.
    pub(super) fn from(start_ns: i64) -> Self {
        Self { start_ns, newest: start_ns, seen: BTreeSet::new() }
    }

    /// Those that were not seen yet: time and object by column.
    ///
    /// # Errors
    /// As [`after_ns`].
    pub(super) fn next(&mut self, target: &Target, nodes: &[String]) -> anyhow::Result<Vec<(i64, Map<String, Json>)>> {
        // Before the start only late rows are of interest.
        let found = after_ns(target, self.newest.saturating_sub(BEHIND_NS).max(self.start_ns), nodes)?;
        let names: Vec<&str> = found.columns.iter().map(|column| column.name.as_str()).collect();
        let time = names.iter().position(|name| *name == "ts_ns").unwrap_or(1);
        let mut new = Vec::new();
        for row in &found.rows {
            let object: Map<_, _> =
                names.iter().map(|name| (*name).to_owned()).zip(row.iter().map(value_to_json)).collect();
            let ts_ns = integer(row, time).unwrap_or(0);
            if self.seen.insert((ts_ns, Json::Object(object.clone()).to_string())) {
                self.newest = self.newest.max(ts_ns);
                new.push((ts_ns, object));
            }
        }
        // Rows that no request returns again need not be remembered.
        self.seen = self.seen.split_off(&(self.newest.saturating_sub(BEHIND_NS), String::new()));
        Ok(new)
    }
}
