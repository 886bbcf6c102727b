//! The tables of a deal's nodes as a trace store keeps its frequent ones: in column segments, of so
//! few rows that every answer crosses segments.
//!
//! A node's file is copied, and the copy's tables become columnar: those whose columns are integers
//! or text by their declared types and by all their values. The others stay as they are.

use std::path::{Path, PathBuf};

use query_planner::quoted;
use rusqlite::{Connection, OpenFlags};

use super::deal::Dealer;

/// A table that can be columnar: its name, and its columns with INTEGER or TEXT.
type Columnar = (String, Vec<(String, &'static str)>);

/// Copies of all nodes' files with columnar tables, and how many tables those are.
///
/// # Errors
/// A file cannot be copied or changed.
pub fn copies(dealer: &Dealer, segment_rows: usize) -> anyhow::Result<(Vec<PathBuf>, u64)> {
    let tables = columnar(dealer.union())?;
    let mut files = Vec::new();
    for node in dealer.nodes() {
        let copy = node.path.with_extension("columns.db");
        copy_of(&node.path, &copy, &tables, segment_rows)?;
        files.push(copy);
    }
    Ok((files, tables.len() as u64))
}

fn copy_of(file: &Path, copy: &Path, tables: &[Columnar], segment_rows: usize) -> anyhow::Result<()> {
    if copy.exists() {
        std::fs::remove_file(copy)?;
    }
    std::fs::copy(file, copy)?;
    let mut conn = Connection::open(copy)?;
    conn.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")?;
    for (table, columns) in tables {
        let is_there = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        if conn.query_row(is_there, [table], |row| row.get::<_, i64>(0))? == 0 {
            continue;
        }
        let name = quoted(table);
        let declared: Vec<String> = columns.iter().map(|(column, kind)| format!("{column} {kind}")).collect();
        conn.execute_batch(&format!(
            "CREATE TABLE moving AS SELECT * FROM {name}; DROP TABLE {name}; CREATE TABLE {name} ({}) STRICT; \
             INSERT INTO {name} SELECT * FROM moving; DROP TABLE moving;",
            declared.join(", ")
        ))?;
        store::make_columnar(&mut conn, table, segment_rows)?;
    }
    Ok(())
}

/// The tables of the union that can be columnar.
fn columnar(union: &Connection) -> anyhow::Result<Vec<Columnar>> {
    let mut tables = Vec::new();
    let mut names = union.prepare_cached(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name",
    )?;
    let names: Vec<(String, String)> =
        names.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    for (table, sql) in names {
        // A module's columns are declared in plain words, and compare as bytes.
        let is_plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_plain(&table) || sql.to_ascii_uppercase().contains("COLLATE") {
            continue;
        }
        let mut columns = union.prepare_cached("SELECT name, type FROM pragma_table_info(?1) ORDER BY cid")?;
        let columns: Vec<(String, String)> =
            columns.query_map([&table], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
        let kinds: Option<Vec<(String, &'static str)>> = columns
            .into_iter()
            .map(|(column, declared)| Some((is_plain(&column).then_some(column)?, kind(&declared)?)))
            .collect();
        let Some(kinds) = kinds else { continue };
        let fits: Vec<String> = kinds
            .iter()
            .map(|(column, kind)| format!("typeof({}) IN ('null', '{}')", quoted(column), kind.to_ascii_lowercase()))
            .collect();
        let others = format!("SELECT count(*) FROM {} WHERE NOT ({})", quoted(&table), fits.join(" AND "));
        if union.query_row(&others, [], |row| row.get::<_, i64>(0))? == 0 {
            tables.push((table, kinds));
        }
    }
    Ok(tables)
}

/// The affinity of a declared type, where columns of a segment can have it
/// (<https://sqlite.org/datatype3.html>, section 3.1).
fn kind(declared: &str) -> Option<&'static str> {
    let declared = declared.to_ascii_uppercase();
    let has = |parts: &[&str]| parts.iter().any(|part| declared.contains(part));
    match () {
        () if has(&["INT"]) => Some("INTEGER"),
        () if has(&["CHAR", "CLOB", "TEXT"]) => Some("TEXT"),
        () => None,
    }
}

/// A read-only connection to a file with columnar tables, as an agent has it.
///
/// # Errors
/// The file cannot be opened.
pub fn open(file: &Path) -> anyhow::Result<Connection> {
    Ok(store::ServedDb::open(file, Vec::new())?.reader()?)
}

/// A read-only connection to a file of SQLite's own tables.
///
/// # Errors
/// The file cannot be opened.
pub fn open_plain(file: &Path) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_integers_and_text_become_segments_and_others_stay() {
        let mut dealer = Dealer::new(1, 7).unwrap();
        for sql in [
            "CREATE TABLE t(a INTEGER PRIMARY KEY, b VARCHAR(30))",
            "CREATE TABLE r(a INTEGER, x REAL)",
            "CREATE TABLE m(a INT)",
            "CREATE VIEW v AS SELECT b FROM t",
            "INSERT INTO t VALUES (1, 'x'), (2, NULL), (3, 'y')",
            "INSERT INTO m VALUES ('no number')",
        ] {
            dealer.apply(sql).unwrap().unwrap();
        }
        let (files, tables) = copies(&dealer, 2).unwrap();
        assert_eq!(tables, 1);
        let conn = open(&files[0]).unwrap();
        let rows = crate::plain::rows(&conn, "SELECT a, b FROM t ORDER BY a").unwrap();
        assert_eq!(rows, crate::plain::rows(dealer.union(), "SELECT a, b FROM t ORDER BY a").unwrap());
        let counts = crate::plain::rows(&conn, "SELECT row_count FROM segments ORDER BY id").unwrap();
        assert_eq!(counts, [[query_planner::Value::Integer(2)], [query_planner::Value::Integer(1)]]);
        assert_eq!(crate::plain::rows(&conn, "SELECT count(b) FROM v").unwrap(), [[query_planner::Value::Integer(2)]]);
    }
}
