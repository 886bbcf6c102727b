//! Owns what a connection's schema says about columnar tables and views, and the scans that were
//! read by it. Both are kept with the connection as long as its schema stays as it is: to read a
//! fragment again would take longer than a small answer.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::Arc;

use query_planner::Fragment;
use query_planner::scan::{Column, PlainColumns, Scan};
use rusqlite::{Connection, OptionalExtension};

use super::super::Kind;
use super::super::form::is_columnar;
use super::super::with_connection::Name;
use crate::FastMap;

/// What is kept with a connection.
static KNOWN: Name<Known> = Name::new(c"rankmesh_schema");
/// Scans that are kept, and the longest SQL of one.
const MOST_SCANS: usize = 128;
const LONGEST_SQL_BYTES: usize = 16 << 10;

/// A table's columns, in order.
pub(super) type Columns = Arc<[(String, Kind)]>;

/// What was read by a schema of this version.
#[derive(Default)]
struct Known {
    version: i64,
    columns: FastMap<String, Columns>,
    scans: FastMap<String, Option<Arc<Scan>>>,
}

/// The scan that a part is, when it is over columnar tables of this file or views that show one.
pub(super) fn scan_of(conn: &Connection, fragment: &Fragment) -> Option<Arc<Scan>> {
    if let Some(known) = with_known(conn, |known| known.scans.get(&fragment.sql).cloned()).flatten() {
        return known;
    }
    // Who is stopped in between has not learned that it is no scan.
    let scan = read(conn, fragment).ok()?;
    if fragment.sql.len() <= LONGEST_SQL_BYTES {
        with_known(conn, |known| {
            if known.scans.len() >= MOST_SCANS {
                known.scans.clear();
            }
            known.scans.insert(fragment.sql.clone(), scan.clone());
        });
    }
    scan
}

/// The columns of a columnar table (by its lower-case name); none where this file has no such
/// table, or a plain one of its name.
///
/// # Errors
/// SQLite's.
pub(super) fn columns(conn: &Connection, table: &str) -> rusqlite::Result<Option<Columns>> {
    if let Some(known) = with_known(conn, |known| known.columns.get(table).cloned()).flatten() {
        return Ok(Some(known));
    }
    let columns = declared_columns(conn, table)?;
    if let Some(columns) = &columns {
        with_known(conn, |known| known.columns.insert(table.to_owned(), Arc::clone(columns)));
    }
    Ok(columns)
}

/// What is known by the schema as the connection sees it now. None where that cannot be told: then
/// nothing is kept.
fn with_known<T>(conn: &Connection, with: impl FnOnce(&mut Known) -> T) -> Option<T> {
    let version: i64 = conn.prepare_cached("PRAGMA main.schema_version").ok()?.query_row([], |row| row.get(0)).ok()?;
    KNOWN.with(conn, |known| {
        if known.version != version {
            *known = Known { version, ..Known::default() };
        }
        with(known)
    })
}

fn read(conn: &Connection, fragment: &Fragment) -> rusqlite::Result<Option<Arc<Scan>>> {
    // Most parts are told apart by their tables alone.
    let mut has_ours = false;
    for (read, _) in &fragment.reads {
        let read = read.to_ascii_lowercase();
        has_ours |= is_columnar(&read) || (!is_table(conn, &read) && view(conn, &read)?.is_some());
    }
    if !has_ours {
        return Ok(None);
    }
    let failed = Cell::new(None);
    fn or_failed<T>(failed: &Cell<Option<rusqlite::Error>>, found: rusqlite::Result<Option<T>>) -> Option<T> {
        found.unwrap_or_else(|error| {
            failed.set(Some(error));
            None
        })
    }
    let of_table = |table: &str| {
        let table = table.to_ascii_lowercase();
        let columns = is_columnar(&table).then(|| or_failed(&failed, columns(conn, &table)))?;
        let column = |(name, kind): &(String, Kind)| Column::of_text(name.clone(), *kind == Kind::Text);
        Some(columns?.iter().map(column).collect())
    };
    let of_plain = |name: &str| or_failed(&failed, plain_columns(conn, name));
    let of_view = |name: &str| or_failed(&failed, view(conn, &name.to_ascii_lowercase()));
    let scan = Scan::through_views(&fragment.sql, &of_table, &of_plain, &of_view);
    failed.take().map_or(Ok(scan.map(Arc::new)), Err)
}

/// Whether it is a table of this file, by what the connection knows of the schema: without a
/// statement. (A schema that has changed since only makes SQLite answer instead.)
fn is_table(conn: &Connection, name: &str) -> bool {
    conn.table_exists(Some("main"), name).unwrap_or(false)
}

/// The columns of a table of this file that is no virtual one.
fn plain_columns(conn: &Connection, table: &str) -> rusqlite::Result<Option<PlainColumns>> {
    let made: Option<String> = conn
        .prepare_cached("SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE")?
        .query_row([table], |row| row.get(0))
        .optional()?;
    if !made.is_some_and(|sql| is_stored(&sql)) {
        return Ok(None);
    }
    let quoted = table.replace('"', "\"\"");
    let statement = conn.prepare_cached(&format!("SELECT * FROM main.\"{quoted}\""))?;
    let mut columns = Vec::new();
    for column in statement.columns() {
        let (decl_type, collation, ..) = conn.column_metadata(Some("main"), table, column.name())?;
        let text = |text: Option<&CStr>| text.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
        columns.push((column.name().to_owned(), plain_column(column.name(), &text(decl_type), &text(collation))));
    }
    Ok(Some(columns))
}

/// Whether a table is made by such a statement as one that holds its rows itself.
pub(super) fn is_stored(sql: &str) -> bool {
    sql.split_whitespace().nth(1).is_some_and(|word| word.eq_ignore_ascii_case("TABLE"))
}

/// A column of a table that is no columns, where its declaration says what is in it.
pub(super) fn plain_column(name: &str, decl_type: &str, collation: &str) -> Option<Column> {
    if !collation.eq_ignore_ascii_case("BINARY") {
        return None;
    }
    // By SQLite's rules for affinity (datatype3.html, 3.1).
    let decl_type = decl_type.to_ascii_uppercase();
    let has = |words: &[&str]| words.iter().any(|word| decl_type.contains(word));
    match () {
        () if has(&["INT"]) => Some(Column::of_integers(name.to_owned())),
        () if has(&["CHAR", "CLOB", "TEXT"]) => Some(Column::of_text(name.to_owned(), true)),
        () if has(&["REAL", "FLOA", "DOUB"]) => Some(Column { is_real: true, ..Column::of_integers(name.to_owned()) }),
        () => None,
    }
}

/// The statement that made a view of this file.
fn view(conn: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    conn.prepare_cached("SELECT sql FROM main.sqlite_schema WHERE type = 'view' AND name = ?1 COLLATE NOCASE")?
        .query_row([name], |row| row.get(0))
        .optional()
}

fn declared_columns(conn: &Connection, table: &str) -> rusqlite::Result<Option<Columns>> {
    let sql: Option<String> = conn
        .prepare_cached("SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?1")?
        .query_row([table], |row| row.get(0))
        .optional()?;
    if !sql.is_some_and(|sql| super::has_columns(&sql)) {
        return Ok(None);
    }
    let statement = conn.prepare_cached(&format!("SELECT * FROM main.\"{table}\""))?;
    let kind = |decl_type: Option<&str>| Kind::declared(decl_type.unwrap_or_default());
    let column = |column: rusqlite::Column<'_>| (column.name().to_owned(), kind(column.decl_type()));
    Ok(Some(statement.columns().map(column).collect()))
}
