//! Owns archived and live rows as tables of an SQLite connection: a virtual table for each table
//! that has a time. Hours and row groups that a condition on the time (or on another integer in a
//! row group's statistics) rules out are not read, nor are columns that the statement does not use.
//! SQLite checks every condition again itself.
//!
//! A scan that SQLite starts repeatedly, as the inner side of a join, keeps its rows and finds them
//! by the columns that are compared for equality, within the memory of the question.

mod cursor;
mod plan;

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::sync::{Arc, OnceLock};

use query_planner::memory::{DECLARED_BYTES, has_room};
use rusqlite::ffi;
use rusqlite::vtab::{CreateVTab, IndexInfo, Module, VTab, VTabConfig, VTabConnection, VTabKind, sqlite3_vtab};
use rusqlite::{Connection, Error, Result};
use store::ARCHIVED_MODULE;

use crate::columns::Columns;
use crate::parts::Node;
use cursor::Cursor;
use plan::{Term, operator};

/// A connection whose tables are those of a store of this version, with a node's rows.
pub(crate) fn connection(node: &Arc<Node>) -> Result<Connection> {
    /// The schema as SQLite keeps it: made once, since a question asks many nodes.
    static SCHEMA: OnceLock<Vec<u8>> = OnceLock::new();
    let schema = match SCHEMA.get() {
        Some(schema) => schema,
        None => {
            let made = schema(node)?;
            SCHEMA.get_or_init(|| made)
        }
    };
    let mut conn = Connection::open_in_memory()?;
    conn.deserialize_read_exact(rusqlite::MAIN_DB, schema.as_slice(), schema.len(), true)?;
    register(&conn, node)?;
    store::register_columns(&conn, Arc::new(Columns(Arc::clone(node))))?;
    conn.set_prepared_statement_cache_capacity(64);
    conn.execute_batch("PRAGMA query_only = ON; PRAGMA temp_store = MEMORY;")?;
    Ok(conn)
}

fn register(conn: &Connection, node: &Arc<Node>) -> Result<()> {
    const OF: Module<'_, HistoryTable> = Module::read_only_module();
    conn.create_module(ARCHIVED_MODULE, &OF, Some(Arc::clone(node)))
}

fn schema(node: &Arc<Node>) -> Result<Vec<u8>> {
    let mut conn = Connection::open_in_memory()?;
    store::write_plain_schema(&conn)?;
    register(&conn, node)?;
    for (table, columns) in store::declared()? {
        let Some((_, time)) = store::TIMED_TABLES.iter().find(|(name, _)| *name == table) else { continue };
        let columns: Vec<String> = columns.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
        conn.execute_batch(&format!(
            "DROP TABLE {table}; CREATE VIRTUAL TABLE {table} USING {} ({time}, {})",
            ARCHIVED_MODULE.to_string_lossy(),
            columns.join(", ")
        ))?;
    }
    conn.serialize(rusqlite::MAIN_DB).map(|bytes| bytes.to_vec())
}

#[repr(C)]
struct HistoryTable {
    /// SQLite's part; must come first.
    base: sqlite3_vtab,
    node: Arc<Node>,
    table: String,
    columns: Vec<String>,
    is_integer: Vec<bool>,
    /// The index of the column with the rows' time.
    time: usize,
}

// SAFETY: `HistoryTable` is repr(C) and starts with `sqlite3_vtab`, as the trait asks.
unsafe impl<'vtab> VTab<'vtab> for HistoryTable {
    type Aux = Arc<Node>;
    type Cursor = Cursor<'vtab>;

    fn connect(
        db: &mut VTabConnection,
        node: Option<&Arc<Node>>,
        _: &[u8],
        _: &[u8],
        table: &[u8],
        args: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, Self)> {
        if !has_room(DECLARED_BYTES) {
            return Err(no_memory());
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let wrong = |what: &str| Error::ModuleError(what.to_owned());
        let node = Arc::clone(node.ok_or_else(|| wrong("no archive"))?);
        let (time, declared) = args.split_first().ok_or_else(|| wrong("no columns"))?;
        let declared: Vec<String> = declared.iter().map(|arg| text(arg)).collect();
        let word = |column: &String, at: usize| column.split_whitespace().nth(at).unwrap_or_default().to_owned();
        let columns: Vec<String> = declared.iter().map(|column| word(column, 0)).collect();
        let is_integer = declared.iter().map(|column| word(column, 1).eq_ignore_ascii_case("INTEGER")).collect();
        let time = text(time);
        let time = columns.iter().position(|name| *name == time).ok_or_else(|| wrong("no time"))?;
        db.config(VTabConfig::Innocuous)?;
        let sql = CString::new(format!("CREATE TABLE x ({})", declared.join(", ")))?;
        let base = sqlite3_vtab::default();
        Ok((Cow::Owned(sql), Self { base, node, table: text(table), columns, is_integer, time }))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        let (mut terms, mut places, mut share, mut is_lookup) = (Vec::new(), Vec::new(), 1.0_f64, false);
        for (at, constraint) in info.constraints().enumerate() {
            let Some(operator) = operator(constraint.operator()).filter(|_| constraint.is_usable()) else { continue };
            let column = usize::try_from(constraint.column()).ok();
            let Some(column) = column.filter(|column| *column < self.columns.len()) else { continue };
            // Texts are compared as bytes only, and for equality.
            let is_text = operator == '=' && info.collation(at).is_ok_and(|name| name == "BINARY");
            if !self.is_integer[column] && !is_text {
                continue;
            }
            let is_known = matches!(info.rhs_value(at), Ok(Some(_)));
            is_lookup |= operator == '=' && !is_known && column != self.time;
            share /= if column == self.time { 1_000.0 } else { 4.0 };
            terms.push(Term { operator, column });
            places.push(at);
        }
        for (i, at) in places.iter().enumerate() {
            info.constraint_usage(*at).set_argv_index(i as c_int + 1);
        }
        let listed: Vec<String> = terms.iter().map(|term| format!("{}{}", term.operator, term.column)).collect();
        let plan = format!("{}|{}", info.col_used(), listed.join(";"));
        // rusqlite aborts the process where it gets no memory for the copy.
        if !has_room(plan.len() + 1) {
            return Err(no_memory());
        }
        info.set_idx_str(&plan);
        let rows = (1e9 * share).max(10.0);
        info.set_estimated_rows(if is_lookup { 20 } else { rows as i64 });
        info.set_estimated_cost(if is_lookup { 100.0 } else { 10_000.0 + rows });
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<Cursor<'vtab>> {
        Ok(Cursor::new(self))
    }
}

impl CreateVTab<'_> for HistoryTable {
    const KIND: VTabKind = VTabKind::Default;
}

fn failed(why: impl std::fmt::Display) -> Error {
    // A code by which the executor distinguishes it from an error of the question's own SQL.
    Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_READ), Some(why.to_string()))
}

fn no_memory() -> Error {
    Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_NOMEM), None)
}
