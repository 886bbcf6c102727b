//! The live hosts of a mesh together with an archive: each is the store of a node of the question
//! that this process plans, and its rows are asked of an agent. Rows that the archive has are not
//! asked for, so an hour in both counts once, and of a host that is not reached only the rows that
//! the archive lacks are missing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;
use archive::live::{Batches, LiveStore, RowsWanted};
use ask::values::millis;
use ask::{Piece, Reply, Target};
use model::cells::{integer, quoted as text_of, text};
use model::{Coverage, LocalRequest, Question, TableSeen};
use parking_lot::Mutex;
use query_planner::quoted;
use rusqlite::types::Value as Stored;
use serde_json::Value as Json;
use store::{Facts, StoreError, TableFacts};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Rows that ended this long before the question are in their store: they passed the ring buffer
/// and the queue. All scans of one question leave out newer ones, so that they see the same rows.
const SETTLED_NS: i64 = 2_000_000_000;
/// Pieces of an answer that may wait.
const WAITING: usize = 4;

/// A host of the mesh.
#[derive(Debug)]
pub(in crate::cli) struct Host {
    pub(super) name: String,
    /// Its store's number; none where it is not reached.
    pub(super) birth_ns: Option<i64>,
    span_ns: Option<(i64, i64)>,
    rows: u64,
    dropped: BTreeMap<String, i64>,
    /// Why it is not reached.
    pub(super) lost: Option<String>,
}

/// The hosts that an agent lists, and their tables.
#[derive(Debug)]
pub(in crate::cli) struct Hosts {
    pub(super) all: Vec<Host>,
    mesh: Target,
    timeout: Duration,
    columns: Arc<BTreeMap<String, BTreeSet<String>>>,
}

impl Hosts {
    /// Asks the agent.
    ///
    /// # Errors
    /// It does not answer.
    pub(in crate::cli) fn ask(mesh: &Target, timeout: Duration) -> anyhow::Result<Self> {
        let nodes: Vec<Json> =
            serde_json::from_str(&mesh.document(LocalRequest::Nodes)?).context("reading the agent's list of nodes")?;
        let named = |table: TableSeen| {
            let columns = table.columns.into_iter().map(|column| column.name.to_ascii_lowercase());
            (table.name.to_ascii_lowercase(), columns.collect())
        };
        let columns = Arc::new(mesh.tables()?.into_iter().map(named).collect());
        let asked = |sql: &str| rows(mesh, timeout, Vec::new(), true, sql.to_owned(), &CancellationToken::new());
        let (births, mut coverage) = asked("SELECT start_ns FROM sessions ORDER BY id LIMIT 1")?;
        let (cutoffs, also) = asked("SELECT table_name, max(cutoff_ns) FROM retention GROUP BY table_name")?;
        coverage.also(also);
        let missing: BTreeMap<String, String> =
            coverage.missing.into_iter().map(|missing| (missing.node, missing.reason)).collect();
        let host = |node: &Json| {
            let name = node["name"].as_str()?.to_owned();
            let of = |row: &&Vec<query_planner::Value>| text(row, 0) == name;
            let birth_ns = births.iter().find(of).and_then(|row| integer(row, 1));
            let lost = match (node["state"].as_str(), missing.get(&name), birth_ns) {
                (_, Some(why), _) => Some(why.clone()),
                (Some("live"), None, Some(_)) => None,
                (Some("live"), None, None) => Some("it records into no store".to_owned()),
                (state, None, _) => Some(format!("it is {}", state.unwrap_or("gone"))),
            };
            let span = &node["store_span_ns"];
            Some(Host {
                birth_ns: birth_ns.filter(|_| lost.is_none()),
                // Not known of those in other cells of a large mesh: then all that can be.
                span_ns: match node["store_rows"].is_null() {
                    true => birth_ns.map(|birth| (birth, record::unix_now_ns())),
                    false => span[0].as_i64().zip(span[1].as_i64()),
                },
                rows: node["store_rows"].as_u64().unwrap_or(0),
                dropped: cutoffs.iter().filter(of).filter_map(|row| Some((text(row, 1), integer(row, 2)?))).collect(),
                lost,
                name,
            })
        };
        let all = nodes.iter().filter_map(host).collect();
        Ok(Self { all, mesh: mesh.clone(), timeout, columns })
    }

    /// One of them as the store of a node whose archive ends at `archived_until_ns`.
    pub(in crate::cli) fn store(&self, host: Host, archived_until_ns: i64) -> HostStore {
        HostStore {
            host,
            archived_until_ns,
            mesh: self.mesh.clone(),
            timeout: self.timeout,
            columns: Arc::clone(&self.columns),
            notes: Arc::default(),
        }
    }
}

/// Asks for rows, a piece at a time.
fn ask_into(
    mesh: &Target,
    question: Question,
    stop: &CancellationToken,
    take: &mut dyn FnMut(Vec<Vec<query_planner::Value>>) -> anyhow::Result<()>,
) -> anyhow::Result<Coverage> {
    let mut mesh = mesh.clone();
    mesh.until(stop.clone());
    let reply = mesh.query(question, &mut |piece| match piece {
        Piece::Rows(rows) if !rows.is_empty() => take(rows),
        _ => Ok(()),
    })?;
    Ok(if let Reply::Result { coverage, .. } = reply { coverage } else { Coverage::default() })
}

fn rows(
    mesh: &Target,
    timeout: Duration,
    nodes: Vec<String>,
    per_node: bool,
    sql: String,
    stop: &CancellationToken,
) -> anyhow::Result<(Vec<Vec<query_planner::Value>>, Coverage)> {
    let question = Question { sql, timeout_ms: millis(timeout), nodes, per_node, ..Question::default() };
    let mut mesh = mesh.clone();
    mesh.until(stop.clone());
    let found = mesh.rows(question, usize::MAX, "")?;
    Ok((found.rows, found.coverage))
}

/// A host's store, asked over the mesh.
#[derive(Debug)]
pub(in crate::cli) struct HostStore {
    host: Host,
    archived_until_ns: i64,
    mesh: Target,
    timeout: Duration,
    columns: Arc<BTreeMap<String, BTreeSet<String>>>,
    /// Notes on what answers lack: the table, the time, the note.
    notes: Arc<Mutex<Vec<Note>>>,
}

type Note = (String, Range<i64>, String);

impl LiveStore for HostStore {
    fn birth_ns(&self) -> Option<i64> {
        self.host.birth_ns
    }

    fn dropped_until_ns(&self, table: &str) -> Option<i64> {
        self.host.dropped.get(table).copied()
    }

    fn facts(&self) -> Facts {
        let (first_ns, last_ns) = self.host.span_ns.unzip();
        let name = "collectives".to_owned();
        let table = TableFacts { name, rows: self.host.rows, first_ns, last_ns, ..TableFacts::default() };
        Facts { tables: vec![table], ..Facts::default() }
    }

    fn notes(&self, tables: &[&str], range: &Range<i64>) -> Vec<String> {
        let is_asked = |table: &str| tables.is_empty() || tables.iter().any(|asked| asked.eq_ignore_ascii_case(table));
        let notes = self.notes.lock();
        let meets =
            notes.iter().filter(|(table, of, _)| is_asked(table) && of.start < range.end && of.end > range.start);
        meets.map(|(.., note)| note.clone()).collect()
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self, wanted: RowsWanted<'_>) -> Result<Box<dyn Batches>, StoreError> {
        if let Some(why) = &self.host.lost {
            if wanted.range.end <= self.archived_until_ns {
                return Ok(Box::new(Nothing));
            }
            return Err(StoreError::External(format!("its newer rows are not reached: {why}")));
        }
        let Some(known) = self.columns.get(&wanted.table.to_ascii_lowercase()) else { return Ok(Box::new(Nothing)) };
        let has = |name: &str| known.contains(&name.to_ascii_lowercase());
        let names = wanted.columns.iter().flatten();
        let mut listed: Vec<String> = names.map(|name| if has(name) { quoted(name) } else { "NULL".into() }).collect();
        let width = listed.len();
        if listed.is_empty() {
            listed.push("1".to_owned());
        }
        let (time, until_ns) = (quoted(wanted.time), wanted.asked_ns.saturating_sub(SETTLED_NS));
        let ended = if has("duration_ns") { format!("{time} + ifnull(duration_ns, 0)") } else { time };
        let sql = format!(
            "SELECT {} FROM {} WHERE {} AND {ended} < {until_ns}",
            listed.join(", "),
            quoted(wanted.table),
            wanted.condition()
        );
        let (sender, batches) = sync_channel(WAITING);
        let stop = CancellationToken::new();
        let pull = Pull {
            mesh: self.mesh.clone(),
            timeout: self.timeout,
            node: self.host.name.clone(),
            table: wanted.table.to_owned(),
            range: wanted.range.clone(),
            cutoff_ns: self.dropped_until_ns(wanted.table),
            notes: Arc::clone(&self.notes),
        };
        let stopped = stop.clone();
        // A thread of its own: questions may run where blocking is not allowed.
        std::thread::Builder::new()
            .name("mesh rows".to_owned())
            .spawn(move || pull.run(sql, width, &sender, &stopped))
            .map_err(|error| StoreError::External(format!("no thread: {error}")))?;
        Ok(Box::new(Pulled { batches, _stop_on_drop: stop.drop_guard() }))
    }
}

/// The SQL for rows of a host.
struct Pull {
    mesh: Target,
    timeout: Duration,
    node: String,
    table: String,
    range: Range<i64>,
    cutoff_ns: Option<i64>,
    notes: Arc<Mutex<Vec<Note>>>,
}

type Batch = Result<Vec<Vec<Stored>>, String>;

impl Pull {
    fn run(self, sql: String, width: usize, sender: &SyncSender<Batch>, stop: &CancellationToken) {
        if let Err(error) = self.pull(sql, width, sender, stop) {
            let _ = sender.send(Err(format!("{error:#}")));
        }
    }

    fn pull(
        &self,
        sql: String,
        width: usize,
        sender: &SyncSender<Batch>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let (timeout_ms, nodes) = (millis(self.timeout), vec![self.node.clone()]);
        let question = Question { sql, timeout_ms, nodes, ..Question::default() };
        let coverage = ask_into(&self.mesh, question, stop, &mut |rows| {
            let rows = rows.into_iter().map(|row| row.into_iter().take(width).map(stored).collect()).collect();
            sender.send(Ok(rows)).context("nobody takes the rows")
        })?;
        if let Some(missing) = coverage.missing.first() {
            anyhow::bail!("{}", missing.reason);
        }
        // The cut-off at its first answer decided which of its hours are used.
        let cutoff = format!("SELECT max(cutoff_ns) FROM retention WHERE table_name = {}", text_of(&self.table));
        let (cutoffs, _) = rows(&self.mesh, self.timeout, vec![self.node.clone()], false, cutoff, stop)?;
        let now_ns = cutoffs.first().and_then(|row| integer(row, 0));
        anyhow::ensure!(now_ns == self.cutoff_ns, "retention has just taken rows of {}: ask again", self.table);
        let own = format!("{}: ", self.node);
        let mut notes = self.notes.lock();
        for note in coverage.notes {
            let note = note.strip_prefix(&own).unwrap_or(&note).to_owned();
            // The archive has the rows that retention dropped; if not, its manifests have a note on
            // it.
            let note = (self.table.clone(), self.range.clone(), note);
            if !note.2.ends_with(store::DROPPED) && !notes.contains(&note) {
                notes.push(note);
            }
        }
        Ok(())
    }
}

fn stored(value: query_planner::Value) -> Stored {
    match value {
        query_planner::Value::Null => Stored::Null,
        query_planner::Value::Integer(value) => Stored::Integer(value),
        query_planner::Value::Real(value) => Stored::Real(value),
        query_planner::Value::Text(text) => Stored::Text(String::from_utf8_lossy(&text).into_owned()),
        query_planner::Value::Blob(bytes) => Stored::Blob(bytes.to_vec()),
    }
}

/// Rows as they come; the question ends when this is dropped.
struct Pulled {
    batches: Receiver<Batch>,
    _stop_on_drop: DropGuard,
}

impl Batches for Pulled {
    fn next(&mut self) -> Result<Option<Vec<Vec<Stored>>>, StoreError> {
        match self.batches.recv() {
            Ok(Ok(rows)) => Ok(Some(rows)),
            Ok(Err(why)) => Err(StoreError::External(why)),
            Err(_) => Ok(None),
        }
    }
}

struct Nothing;

impl Batches for Nothing {
    fn next(&mut self) -> Result<Option<Vec<Vec<Stored>>>, StoreError> {
        Ok(None)
    }
}
