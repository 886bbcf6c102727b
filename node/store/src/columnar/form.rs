//! Owns the tables of the file that segments need, and the change of a plain table into a columnar
//! one.

use rusqlite::{Connection, Transaction, types::ValueRef};

use super::append::table_columns;
use super::encode::{Column, Scalar};
use super::segment::{self, MOST_ROWS};

/// Columnar tables, with the column that carries their time.
pub(crate) const COLUMNAR: &[(&str, &str)] = &[
    ("collectives", "ts_ns"),
    ("offcpu", "ts_ns"),
    ("net_events", "ts_ns"),
    ("cuda_calls", "ts_ns"),
    ("symbol_calls", "ts_ns"),
    ("block_io", "ts_ns"),
    ("call_rollups", "bucket_ns"),
    ("requests", "ts_ns"),
    ("request_stretches", "ts_ns"),
    ("request_rollups", "bucket_ns"),
];

/// The tables of the file that hold segments: no tables to ask for.
pub const OWN_TABLES: &[&str] = &["segments", "segment_columns"];

/// Whether a table's rows are in segments.
pub(crate) fn is_columnar(table: &str) -> bool {
    COLUMNAR.iter().any(|(name, _)| *name == table)
}

/// The column that carries a columnar table's time.
pub(crate) fn time_of(table: &str) -> &'static str {
    COLUMNAR.iter().find(|(name, _)| *name == table).map_or("ts_ns", |(_, time)| time)
}

/// Makes the columnar tables of a store of plain form, and its rows move. Views over them stay as
/// they are.
pub(crate) fn make_all_columnar(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    tx.execute_batch(include_str!("segments.sql"))?;
    COLUMNAR.iter().try_for_each(|(table, time)| move_rows(tx, table, time, MOST_ROWS))
}

pub(super) fn is_plain(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("SELECT count(*) = 0 FROM sqlite_schema WHERE name = ?1", [OWN_TABLES[0]], |row| row.get(0))
}

/// Give an empty store's columnar tables the form of SQLite's own, for an export that any SQLite
/// can read.
pub(crate) fn make_plain(tx: &Connection) -> rusqlite::Result<()> {
    for (table, time) in COLUMNAR {
        let columns = declared(tx, table)?.join(", ");
        tx.execute_batch(&format!(
            "DROP TABLE {table}; CREATE TABLE {table} ({columns}) STRICT; CREATE INDEX {table}_ts ON {table} ({time});"
        ))?;
    }
    OWN_TABLES.iter().try_for_each(|table| tx.execute_batch(&format!("DROP TABLE {table}")))
}

/// Bring a store of plain form (an export, an import) back to columns. Does nothing to any other.
pub(crate) fn make_columnar_again(conn: &mut Connection) -> rusqlite::Result<()> {
    let tx = conn.transaction()?;
    if is_plain(&tx)? {
        make_all_columnar(&tx)?;
    }
    tx.commit()
}

/// A table's columns as they are declared.
fn declared(conn: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    conn.prepare("SELECT name, type, \"notnull\" FROM pragma_table_info(?1) ORDER BY cid")?
        .query_map([table], |row| {
            let (name, decl_type, not_null): (String, String, bool) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(format!("{name} {decl_type}{}", if not_null { " NOT NULL" } else { "" }))
        })?
        .collect()
}

pub(super) fn move_rows(tx: &Connection, table: &str, time: &str, most_rows: usize) -> rusqlite::Result<()> {
    let declared = declared(tx, table)?;
    let kinds = table_columns(tx, table)?;
    let fresh =
        || -> Vec<(String, Column)> { kinds.iter().map(|(name, kind)| (name.clone(), Column::new(*kind))).collect() };
    let mut columns = fresh();
    let mut next_rowid = 1;
    {
        let mut statement = tx.prepare(&format!("SELECT * FROM {table} ORDER BY rowid"))?;
        let mut rows = statement.query([])?;
        let mut waiting = 0;
        loop {
            let row = rows.next()?;
            if (row.is_none() && waiting > 0) || waiting == most_rows {
                segment::write(tx, table, time, next_rowid, &columns)?;
                next_rowid += waiting as i64;
                waiting = 0;
                columns = fresh();
            }
            let Some(row) = row else { break };
            for (at, (_, column)) in columns.iter_mut().enumerate() {
                column.push(&match row.get_ref(at)? {
                    ValueRef::Integer(value) => Scalar::Integer(value),
                    ValueRef::Text(text) => Scalar::Text(text.to_vec()),
                    ValueRef::Blob(bytes) => Scalar::Text(bytes.to_vec()),
                    _ => Scalar::Null,
                });
            }
            waiting += 1;
        }
    }
    declare(tx, table, &declared)
}

/// Declare a columnar table anew, or first.
fn declare(tx: &Connection, table: &str, columns: &[String]) -> rusqlite::Result<()> {
    let module = super::MODULE.to_string_lossy();
    tx.execute_batch(&format!(
        "DROP TABLE {table}; CREATE VIRTUAL TABLE {table} USING {module}({});",
        columns.join(", ")
    ))
}
