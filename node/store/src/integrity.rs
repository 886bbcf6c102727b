//! Owns the check of a store's file: whether SQLite finds it sound, and whether every segment can
//! be read.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::{ServedDb, StoreError, let_go_of_segments};
use crate::quoted;

/// Runs SQLite's integrity check on `path`, read-only. Returns what it found, nothing when the file
/// is sound.
///
/// # Errors
/// [`StoreError`] when the file cannot be opened as a database.
pub fn integrity(path: &Path) -> Result<Vec<String>, StoreError> {
    // What this process has read before need not be what the file has now.
    let_go_of_segments(Duration::ZERO);
    let conn = ServedDb::open(path, Vec::new())?.reader()?;
    let sqlite = |error| StoreError::from_sqlite(path, error);
    let mut statement = conn.prepare("PRAGMA integrity_check").map_err(sqlite)?;
    let found: Vec<String> = statement.query_map([], |row| row.get(0)).and_then(Iterator::collect).map_err(sqlite)?;
    let mut found: Vec<String> = found.into_iter().filter(|line| line != "ok").collect();
    drop(statement);
    found.extend(columns(&conn).map_err(sqlite)?);
    Ok(found)
}

/// Reads every cell of the columnar tables: a segment that does not match its checksums is an error
/// that names it.
fn columns(conn: &Connection) -> rusqlite::Result<Option<String>> {
    let tables: Vec<String> = conn
        .prepare("SELECT name FROM sqlite_schema WHERE sql LIKE 'CREATE VIRTUAL TABLE % USING rankmesh_columns%'")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for table in tables {
        let mut statement = conn.prepare(&format!("SELECT * FROM {}", quoted(&table)))?;
        let mut rows = statement.query([])?;
        loop {
            match rows.next() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return Ok(Some(format!("{table}: {error}"))),
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_segment_is_found() {
        use super::super::testing::{PATIENCE, collective};
        use super::super::{Store, StoreConfig};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let store =
            Store::open(&path, StoreConfig { max_age: std::time::Duration::MAX, ..Default::default() }).unwrap();
        for i in 0..100 {
            store.ingest().record(record::Record::Collective(collective(i)));
        }
        store.flush(PATIENCE).unwrap();
        drop(store);
        assert_eq!(integrity(&path).unwrap(), Vec::<String>::new());
        let conn = Connection::open(&path).unwrap();
        let mut data: Vec<u8> =
            conn.query_row("SELECT data FROM segment_columns ORDER BY id LIMIT 1", [], |row| row.get(0)).unwrap();
        *data.last_mut().unwrap() ^= 1;
        let first = "UPDATE segment_columns SET data = ?1 WHERE id = (SELECT min(id) FROM segment_columns)";
        assert_eq!(conn.execute(first, [data]).unwrap(), 1);
        drop(conn);
        let found = integrity(&path).unwrap();
        assert!(found.len() == 1 && found[0].starts_with("collectives: "), "{found:?}");
    }

    #[test]
    fn a_sound_file_has_no_findings_and_a_torn_one_has() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        let conn = rusqlite::Connection::open(&path).unwrap();
        conn.execute_batch(
            "CREATE TABLE t(a INTEGER, b TEXT); CREATE INDEX i ON t(b);
             WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 2000)
             INSERT INTO t SELECT n, 'text ' || n FROM r;",
        )
        .unwrap();
        drop(conn);
        assert!(integrity(&path).unwrap().is_empty());
        // Overwrite a page in the middle.
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2 / 4096 * 4096;
        bytes[middle..middle + 4096].fill(0x5a);
        std::fs::write(&path, bytes).unwrap();
        assert!(integrity(&path).map_or(true, |found| !found.is_empty()));
    }
}
