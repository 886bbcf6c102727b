//! Findings as they come: rows of the table `findings`, each returned once.
//!
//! Times are what hosts say, and members may say anything. So a time decides only up to now: what
//! lies further ahead is returned when its time comes, and moves nothing.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher as _;
use std::time::Duration;

use ask::Target;
use ask::output::value_to_json;
use ask::rows::Rows;
use ask::values::millis;
use model::cells::{integer, quoted, text};
use model::{Coverage, Question};
use query_planner::{ColumnMeta, Value};
use serde_json::{Map, Value as Json};

/// The time limit of each request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most findings of one request.
const MOST: usize = 1_000;
/// Most requests of one look; the next look continues.
const PAGES: usize = 8;
/// Most bytes of one look, but for one request's; the next look continues.
const LOOK_BYTES: usize = 8 << 20;
/// Clocks of hosts may differ by this much, and rows take a moment: each look goes this far back
/// again, and this far ahead of now.
const APART_NS: i64 = 60_000_000_000;
/// Most findings of one node in a look: what it has beyond is left out, so that it hides nobody's.
const MOST_OF_NODE: usize = 4_000;
/// Most findings that are remembered as returned, 16 bytes each.
const MOST_SEEN: usize = 100_000;

/// The result of one request.
pub(super) struct Found {
    pub(super) columns: Vec<ColumnMeta>,
    pub(super) rows: Vec<Vec<Value>>,
    /// There are others.
    pub(super) more: bool,
    pub(super) coverage: Coverage,
}

impl Found {
    fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}

/// Which findings, by time and then node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Page {
    /// After this time, or of it and after this node.
    after: (i64, Option<String>),
    /// Up to this time.
    until: i64,
    /// Not of these nodes.
    without: Vec<String>,
}

impl Page {
    fn condition(&self) -> String {
        let (until, (after, node)) = (self.until, &self.after);
        let mut condition = match node {
            None => format!("ts_ns > {after} AND ts_ns <= {until}"),
            Some(node) => {
                format!("ts_ns >= {after} AND ts_ns <= {until} AND (ts_ns > {after} OR node > {})", quoted(node))
            }
        };
        for node in &self.without {
            condition.push_str(&format!(" AND node <> {}", quoted(node)));
        }
        condition
    }
}

/// Findings of all nodes, oldest first: the first ones after a time, none that are further ahead of
/// now than clocks are apart (whoever asks for those after the last would see no others again); without
/// a time the newest ones.
///
/// # Errors
/// There is no answer.
pub(super) fn after_ns(target: &Target, after: Option<i64>) -> anyhow::Result<Found> {
    let Some(after) = after else {
        let mut found = rows(target, "ORDER BY ts_ns DESC, node DESC", &[])?;
        found.rows.reverse();
        return Ok(found);
    };
    asked(target, &Page { after: (after, None), until: horizon_ns(now_ns(target)), without: Vec::new() }, &[])
}

/// Now, as far as times of rows count. Stores at rest are over: what they have counts.
fn now_ns(target: &Target) -> i64 {
    if target.is_stores() { i64::MAX } else { target.now_ns() }
}

/// Times up to this are of now.
fn horizon_ns(now_ns: i64) -> i64 {
    now_ns.saturating_add(APART_NS)
}

fn asked(target: &Target, page: &Page, nodes: &[String]) -> anyhow::Result<Found> {
    rows(target, &format!("WHERE {} ORDER BY ts_ns, node", page.condition()), nodes)
}

/// The first of those that these clauses choose.
fn rows(target: &Target, which: &str, nodes: &[String]) -> anyhow::Result<Found> {
    let sql = format!("SELECT node, * FROM findings {which} LIMIT {}", MOST + 1);
    let question = Question { sql, timeout_ms: millis(PATIENCE), nodes: nodes.to_vec(), ..Question::default() };
    let Rows { columns, mut rows, coverage } = target.rows(question, MOST + 1, "")?;
    let more = rows.len() > MOST;
    rows.truncate(MOST);
    Ok(Found { columns, rows, more, coverage })
}

/// A finding, with the time to go on from when it was returned.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Finding {
    /// Its own time, Unix nanoseconds.
    pub(super) ts_ns: i64,
    /// The same, but not after now.
    pub(super) reached_ns: i64,
    /// Its values by column.
    pub(super) object: Map<String, Json>,
}

/// The findings from a time on.
#[derive(Debug)]
pub(super) struct Following {
    /// Rows up to here are not returned.
    start_ns: i64,
    /// The newest time that was returned, not after now.
    newest_ns: i64,
    /// Where a look stopped that did not get to its end.
    at: Option<(i64, Option<String>)>,
    /// The findings of each node in this look.
    of_node: BTreeMap<String, usize>,
    /// What was returned of the times that are asked for again.
    seen: BTreeSet<(i64, u64)>,
    hash: RandomState,
}

impl Following {
    /// From here, Unix nanoseconds.
    pub(super) fn from(start_ns: i64) -> Self {
        let (seen, of_node) = (BTreeSet::new(), BTreeMap::new());
        Self { start_ns, newest_ns: start_ns, at: None, of_node, seen, hash: RandomState::new() }
    }

    /// From where a client says that it was, else from now on.
    pub(super) fn after(target: &Target, last_ns: Option<i64>) -> Self {
        Self::from(last_ns.map_or_else(|| target.now_ns(), |last_ns| last_ns.min(now_ns(target))))
    }

    /// Those that were not seen yet.
    ///
    /// # Errors
    /// There is no answer; what was not returned for it comes with the next look.
    pub(super) fn next(&mut self, target: &Target, nodes: &[String]) -> anyhow::Result<Vec<Finding>> {
        self.look(now_ns(target), &mut |page| asked(target, page, nodes))
    }

    fn look(
        &mut self,
        now_ns: i64,
        ask: &mut dyn FnMut(&Page) -> anyhow::Result<Found>,
    ) -> anyhow::Result<Vec<Finding>> {
        let (mut new, mut bytes) = (Vec::new(), 0);
        for _ in 0..PAGES {
            // Before the start only late rows are of interest.
            let again = || (self.newest_ns.min(now_ns).saturating_sub(APART_NS).max(self.start_ns), None);
            let (after, without) = (self.at.clone().unwrap_or_else(again), self.too_many());
            let page = Page { after, until: horizon_ns(now_ns), without };
            let mut found = match ask(&page) {
                Ok(found) => found,
                // What the pages before had is remembered as returned.
                Err(_) if !new.is_empty() => break,
                Err(error) => return Err(error),
            };
            self.at = found.more.then(|| continued(&mut found));
            bytes += self.unseen(&found, now_ns, &mut new);
            if self.at.is_none() {
                self.of_node.clear();
            }
            if self.at.is_none() || bytes > LOOK_BYTES {
                break;
            }
        }
        self.forget(now_ns);
        Ok(new)
    }

    /// The nodes that have had more of this look than one may.
    fn too_many(&self) -> Vec<String> {
        let of = |(node, rows): (&String, &usize)| (*rows >= MOST_OF_NODE).then(|| node.clone());
        self.of_node.iter().filter_map(of).collect()
    }

    /// Counts a finding of a node; says when it has had its share.
    fn count(&mut self, node: String) {
        let shown = record::printable(&node);
        let rows = self.of_node.entry(node).or_insert(0);
        *rows += 1;
        if *rows == MOST_OF_NODE {
            tracing::warn!(
                "{shown} has {MOST_OF_NODE} findings of a minute or two: its others of this time are not sent on, so that \
                 it hides nobody's (SELECT * FROM findings has them)"
            );
        }
    }

    /// Adds those of an answer that were not seen yet; returns their bytes.
    fn unseen(&mut self, found: &Found, now_ns: i64, new: &mut Vec<Finding>) -> usize {
        let (time, node) = (found.column("ts_ns").unwrap_or(1), found.column("node").unwrap_or(0));
        let mut bytes = 0;
        for row in &found.rows {
            self.count(text(row, node));
            let ts_ns = integer(row, time).unwrap_or(0);
            // What is ahead of now comes again: it waits where there is little room to remember it.
            if ts_ns > now_ns && self.seen.len() >= MOST_SEEN / 2 {
                continue;
            }
            let names = found.columns.iter().map(|column| column.name.clone());
            let object: Map<_, _> = names.zip(row.iter().map(value_to_json)).collect();
            let json = Json::Object(object.clone()).to_string();
            if self.seen.insert((ts_ns, self.hash.hash_one(&json))) {
                bytes += json.len();
                let reached_ns = ts_ns.min(now_ns);
                self.newest_ns = self.newest_ns.max(reached_ns);
                new.push(Finding { ts_ns, reached_ns, object });
            }
        }
        bytes
    }

    /// Forgets what no look returns again, and keeps the rest within its bounds.
    fn forget(&mut self, now_ns: i64) {
        if self.at.is_none() {
            self.seen = self.seen.split_off(&(self.newest_ns.min(now_ns).saturating_sub(APART_NS), 0));
        }
        let mut forgotten = None;
        while self.seen.len() > MOST_SEEN {
            forgotten = self.seen.pop_first();
        }
        if let Some((ts_ns, _)) = forgotten {
            self.start_ns = self.start_ns.max(ts_ns.min(now_ns));
            self.seen = self.seen.split_off(&(self.start_ns.saturating_add(1), 0));
            tracing::warn!(
                "more than {MOST_SEEN} findings within {} s: those that come late, with times before {}, are not sent \
                 on (SELECT * FROM findings has them)",
                2 * APART_NS / 1_000_000_000,
                self.start_ns,
            );
        }
    }
}

/// Where the page after this one begins. The last node's rows of the last time may not be complete:
/// they are left to that page, unless they are all that this one has.
fn continued(found: &mut Found) -> (i64, Option<String>) {
    let (time, node) = (found.column("ts_ns").unwrap_or(1), found.column("node").unwrap_or(0));
    let key = |row: &Vec<Value>| (integer(row, time).unwrap_or(0), Some(text(row, node)));
    let last = found.rows.last().map_or((i64::MAX, None), key);
    let complete = found.rows.iter().rposition(|row| key(row) != last);
    match complete {
        Some(before) => {
            found.rows.truncate(before + 1);
            key(&found.rows[before])
        }
        None => {
            let (ts_ns, node) = &last;
            let node = record::printable(node.as_deref().unwrap_or_default());
            tracing::warn!("more than {MOST} findings of {node} at {ts_ns}: the others of this moment are not sent on");
            last
        }
    }
}

#[cfg(test)]
mod tests;
