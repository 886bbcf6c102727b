//! The node's side: run the fragments of a task inside one read transaction and hand their rows out
//! in batches.

use std::borrow::Cow;
use std::time::Instant;

use rusqlite::{CachedStatement, Connection, Statement, ffi};

use crate::api::{NodeError, NodeStats, NodeTask};
use crate::batch::{Batch, Value};
use crate::names::quoted;
use crate::plan::Fragment;
use crate::{memory, stop};

/// Rows and bytes at which a batch is handed on.
const BATCH_ROWS: u32 = 4096;
const BATCH_BYTES: u64 = 256 << 10;

/// Prefix of the notes of [`NodeStats`] on what a fragment was answered from. They are for
/// `--explain`, not for coverage.
pub const RAN: &str = "ran on ";
/// Prefix of the note on how many rows the conditions of a fragment admitted.
pub(crate) const ADMITTED: &str = "ran on rows: ";

/// An executor of a node's own for the fragments that it understands; SQLite runs the others.
pub trait FragmentExecutor {
    /// Answers `fragment`, or leaves it to SQLite (`None`; then nothing may have been emitted).
    /// `conn` is inside the task's read transaction: what it shows is the state to answer from.
    ///
    /// # Errors
    /// As for [`execute_task`].
    fn execute(
        &self,
        conn: &Connection,
        fragment: &Fragment,
        node: &str,
        now_unix_ns: i64,
        emit: &mut dyn FnMut(Batch) -> Result<(), NodeError>,
    ) -> Result<Option<Answered>, NodeError>;

    /// Whether [`FragmentExecutor::execute`] would answer such a fragment.
    fn understands(&self, conn: &Connection, fragment: &Fragment) -> bool;
}

/// What a fragment was answered from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// In words: "columns of collectives, 3 of 150 segments".
    pub from: String,
    /// Rows that its conditions admitted, of a join those of its sides: what would be shipped if
    /// nothing were made of them at the node. None where they were not all counted.
    pub admitted: Option<u64>,
}

/// No executor but SQLite.
#[derive(Debug, Clone, Copy)]
pub struct OnlySqlite;

impl FragmentExecutor for OnlySqlite {
    fn execute(
        &self,
        _: &Connection,
        _: &Fragment,
        _: &str,
        _: i64,
        _: &mut dyn FnMut(Batch) -> Result<(), NodeError>,
    ) -> Result<Option<Answered>, NodeError> {
        Ok(None)
    }

    fn understands(&self, _: &Connection, _: &Fragment) -> bool {
        false
    }
}

/// Run a task on a connection that [`crate::harden`] prepared. `emit` gets the index of the
/// fragment and each batch; every fragment is emitted in full before the next begins. Deadlines:
/// the caller sets a progress handler or interrupts.
///
/// # Errors
/// The budget, an interrupt, an error of the SQL, or what `emit` returned. What was emitted before
/// it is then void.
pub fn execute_task(
    conn: &Connection,
    node: &str,
    task: &NodeTask,
    emit: &mut dyn FnMut(usize, Batch) -> Result<(), NodeError>,
) -> Result<NodeStats, NodeError> {
    execute_task_with(conn, node, task, &OnlySqlite, emit)
}

/// As [`execute_task`], with fragments answered by `executor` where it can.
///
/// # Errors
/// As [`execute_task`].
pub fn execute_task_with(
    conn: &Connection,
    node: &str,
    task: &NodeTask,
    executor: &dyn FragmentExecutor,
    emit: &mut dyn FnMut(usize, Batch) -> Result<(), NodeError>,
) -> Result<NodeStats, NodeError> {
    let started = Instant::now();
    task.within_limits()?;
    let mut stats = NodeStats::default();
    let own_transaction = conn.is_autocommit();
    if own_transaction {
        run_cached(conn, "BEGIN").map_err(|error| {
            // It may have started though it was interrupted: a connection that is used again must
            // not read an old state.
            if !conn.is_autocommit() {
                let _ = run_cached(conn, "ROLLBACK");
            }
            NodeError::of_sqlite(&error)
        })?;
    }
    let mut result = Ok(());
    for (index, fragment) in task.fragments.iter().enumerate() {
        let keys = task.keys.get(index).map_or(&[][..], Vec::as_slice);
        let mut emit = |batch| emit(index, batch);
        let answered = if keys.is_empty() {
            let (rows, bytes) = (&mut stats.rows, &mut stats.bytes);
            executor.execute(conn, fragment, node, task.now_unix_ns, &mut |batch| {
                *rows += u64::from(batch.rows);
                *bytes += batch.data_bytes();
                within(task, fragment, *rows, *bytes)?;
                emit(batch)
            })
        } else {
            Ok(None)
        };
        result = match answered {
            Ok(Some(Answered { from, admitted })) => {
                stats.notes.push(format!("{RAN}{from}"));
                stats.notes.extend(admitted.map(|rows| format!("{ADMITTED}{rows}")));
                Ok(())
            }
            Ok(None) => execute_fragment(conn, node, task, fragment, keys, &mut stats, &mut emit),
            Err(error) => Err(error),
        };
        if result.is_err() {
            break;
        }
    }
    // SQLite ends the transaction by itself where memory ran out.
    if own_transaction && !conn.is_autocommit() {
        // Nothing was written: what ends the transaction is only a matter of form.
        let ended = run_cached(conn, "COMMIT").or_else(|_| run_cached(conn, "ROLLBACK"));
        // The task's error is reported rather than that of ending its transaction; and one that has
        // ended has ended, also where SQLite was interrupted in it.
        if !conn.is_autocommit() {
            result = result.and_then(|()| ended.map_err(|error| NodeError::of_sqlite(&error)));
        }
    }
    result?;
    stats.elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(stats)
}

fn execute_fragment(
    conn: &Connection,
    node: &str,
    task: &NodeTask,
    fragment: &Fragment,
    keys: &[Value],
    stats: &mut NodeStats,
    emit: &mut dyn FnMut(Batch) -> Result<(), NodeError>,
) -> Result<(), NodeError> {
    let (mut statement, sql) = prepare(conn, fragment, &mut stats.notes)?;
    let width = statement.column_count();
    if width != fragment.columns as usize {
        return Err(NodeError::Failed(format!("the fragment has {width} columns, {} were expected", fragment.columns)));
    }
    bind(&mut statement, node, task.now_unix_ns).map_err(|error| NodeError::of_sqlite(&error))?;
    bind_keys(&mut statement, keys).map_err(|error| NodeError::of_sqlite(&error))?;
    let mut rows = statement.raw_query();
    let mut batch = Batch { rows: 0, columns: vec![Vec::new(); width] };
    let mut batch_bytes = 0;
    while let Some(row) = rows.next().map_err(|error| raised(conn, &sql, &error))? {
        for (i, column) in batch.columns.iter_mut().enumerate() {
            let value = Value::from_sqlite(row.get_ref(i).map_err(|error| NodeError::of_sqlite(&error))?);
            batch_bytes += value.data_bytes();
            column.push(value);
        }
        batch.rows += 1;
        stats.rows += 1;
        within(task, fragment, stats.rows, stats.bytes + batch_bytes)?;
        if batch.rows >= BATCH_ROWS || batch_bytes >= BATCH_BYTES {
            stats.bytes += std::mem::take(&mut batch_bytes);
            emit(std::mem::replace(&mut batch, Batch { rows: 0, columns: vec![Vec::new(); width] }))?;
        }
    }
    if batch.rows > 0 {
        stats.bytes += batch_bytes;
        emit(batch)?;
    }
    drop(rows);
    // A list of keys comes once: thousands of parameters are not worth keeping.
    if !keys.is_empty() {
        statement.discard();
    }
    Ok(())
}

/// Whether a task is within its budget.
fn within(task: &NodeTask, fragment: &Fragment, rows: u64, bytes: u64) -> Result<(), NodeError> {
    let more =
        |limit: u64, what: &str| NodeError::OverBudget(format!("more than {limit} {what}, of {}", fragment.table));
    if rows > task.budget.node_rows {
        return Err(more(task.budget.node_rows, "rows"));
    }
    if bytes > task.budget.node_bytes {
        return Err(more(task.budget.node_bytes, "bytes"));
    }
    Ok(())
}

/// Bind the parameters without names, in order.
fn bind_keys(statement: &mut Statement<'_>, keys: &[Value]) -> rusqlite::Result<()> {
    let mut keys = keys.iter();
    for index in 1..=statement.parameter_count() {
        if statement.parameter_name(index).is_none()
            && let Some(key) = keys.next()
        {
            statement.raw_bind_parameter(index, key)?;
        }
    }
    Ok(())
}

/// Prepare a fragment. Where this store lacks a table or a column of it (an older agent, another
/// file), the table counts as empty and the column as NULL: this is done by a common table
/// expression of the table's name, and a note reports it.
fn prepare<'c, 'p>(
    conn: &'c Connection,
    fragment: &'p Fragment,
    notes: &mut Vec<String>,
) -> Result<(CachedStatement<'c>, Cow<'p, str>), NodeError> {
    // Kept by the connection: a question that comes again is not compiled again.
    let failed = match conn.prepare_cached(&fragment.sql) {
        Ok(statement) => return Ok((statement, Cow::Borrowed(&fragment.sql))),
        Err(error) => NodeError::of_sqlite(&error),
    };
    // An interrupted look at the schema would report tables as missing.
    if matches!(failed, NodeError::Stopped(_) | NodeError::OverBudget(_)) {
        return Err(failed);
    }
    let reads = |sql: String| conn.prepare(&sql).is_ok();
    let mut stand_ins = Vec::new();
    for (table, columns) in &fragment.reads {
        let name = quoted(table);
        let exists = reads(format!("SELECT 1 FROM {name}"));
        let mut lacking = Vec::new();
        let mut outputs = Vec::new();
        for column in columns {
            let column_name = quoted(column);
            if exists && reads(format!("SELECT {name}.{column_name} FROM {name}")) {
                outputs.push(column_name);
            } else {
                outputs.push(format!("NULL AS {column_name}"));
                lacking.push(column.as_str());
            }
        }
        if outputs.is_empty() {
            outputs.push("NULL".to_owned());
        }
        if !exists {
            notes.push(format!("has no table {table}"));
            stand_ins.push(format!("{name} AS (SELECT {} WHERE 0)", outputs.join(", ")));
        } else if !lacking.is_empty() {
            notes.push(format!("has no column {} in {table}", lacking.join(", ")));
            // `main.` or the expression would mean itself.
            stand_ins.push(format!("{name} AS (SELECT {} FROM main.{name})", outputs.join(", ")));
        }
    }
    if stand_ins.is_empty() {
        return Err(failed);
    }
    let stand_ins = stand_ins.join(", ");
    let sql = fragment.sql.trim_start();
    let sql = match sql.split_once(char::is_whitespace) {
        Some((with, rest)) if with.eq_ignore_ascii_case("WITH") => {
            match rest.trim_start().split_once(char::is_whitespace) {
                Some((word, rest)) if word.eq_ignore_ascii_case("RECURSIVE") => {
                    format!("WITH RECURSIVE {stand_ins}, {rest}")
                }
                _ => format!("WITH {stand_ins}, {rest}"),
            }
        }
        _ => format!("WITH {stand_ins} {sql}"),
    };
    let statement = conn.prepare_cached(&sql).map_err(|error| NodeError::of_sqlite(&error))?;
    Ok((statement, Cow::Owned(sql)))
}

fn run_cached(conn: &Connection, sql: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(sql)?.execute([]).map(|_| ())
}

/// Bind the two parameters that plans use, where the statement has them.
pub(crate) fn bind(statement: &mut Statement<'_>, node: &str, now_unix_ns: i64) -> rusqlite::Result<()> {
    if let Some(index) = statement.parameter_index(crate::names::NODE_PARAMETER)? {
        statement.raw_bind_parameter(index, node)?;
    }
    if let Some(index) = statement.parameter_index(crate::names::NOW_PARAMETER)? {
        statement.raw_bind_parameter(index, julian_day(now_unix_ns))?;
    }
    Ok(())
}

/// Julian day number, rounded to milliseconds as SQLite keeps time.
#[allow(clippy::cast_precision_loss)]
fn julian_day(now_unix_ns: i64) -> f64 {
    let ms = now_unix_ns.div_euclid(1_000_000);
    (ms + 210_866_760_000_000) as f64 / 86_400_000.0
}

impl NodeError {
    /// What is refused for want of memory, by SQLite's allocator or by a
    /// [`Reservation`](memory::Reservation): because the question is over, because it is only
    /// tried, or because it needs more than a question may have.
    #[must_use]
    pub fn out_of_memory() -> Self {
        if stop::is_over_here() {
            Self::Stopped("interrupted".to_owned())
        } else if stop::is_short_here() {
            Self::Stopped("not small".to_owned())
        } else {
            Self::OverBudget(memory::refused_here().unwrap_or(memory::Refused::TooMuch).to_string())
        }
    }

    /// Why a node cannot do its task, where that has nothing to do with the rows: the statement
    /// does not compile here (a function, table or column that only other versions have), the file
    /// is damaged, time or memory is over. The other nodes' answers count. All code that reads the
    /// store for a task passes SQLite's errors through here as they are: once made into text,
    /// "interrupted" looks like any other failure.
    #[must_use]
    pub fn of_sqlite(error: &rusqlite::Error) -> Self {
        match primary_code(error) {
            Some(ffi::SQLITE_INTERRUPT) => Self::Stopped("interrupted".to_owned()),
            Some(ffi::SQLITE_TOOBIG) if stop::is_short_here() => Self::out_of_memory(),
            Some(ffi::SQLITE_NOMEM) => Self::out_of_memory(),
            _ => Self::Failed(message(error)),
        }
    }
}

/// As [`NodeError::of_sqlite`], for an error in the midst of the rows, which may be the question's
/// own: SQLite raises one by these codes when a value is wrong under the SQL's own rules (an
/// integer overflow, malformed JSON, a text too long), and would over the union, too. A statement
/// that does not compile any more (the schema has changed since) is no such error; neither is what
/// a virtual table finds in its bytes, which has a code of its own.
fn raised(conn: &Connection, sql: &str, error: &rusqlite::Error) -> NodeError {
    match primary_code(error) {
        Some(ffi::SQLITE_TOOBIG) if stop::is_short_here() => NodeError::of_sqlite(error),
        Some(ffi::SQLITE_ERROR | ffi::SQLITE_TOOBIG | ffi::SQLITE_MISMATCH) if conn.prepare(sql).is_ok() => {
            NodeError::Sql(message(error))
        }
        _ => NodeError::of_sqlite(error),
    }
}

/// SQLite's result code without its extension.
fn primary_code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code & 0xff)
}

/// SQLite's message without the code.
pub(crate) fn message(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        other => other.to_string(),
    }
}
