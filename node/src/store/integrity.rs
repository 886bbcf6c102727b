//! Owns the check of a store's file: whether SQLite finds it sound.

use std::path::Path;

use super::{ServedDb, StoreError};

/// Runs SQLite's integrity check on `path`, read-only. Returns what it found, nothing when the file is sound.
///
/// # Errors
/// [`StoreError`] when the file cannot be opened as a database.
pub fn integrity(path: &Path) -> Result<Vec<String>, StoreError> {
    let conn = ServedDb::open(path, Vec::new())?.reader()?;
    let sqlite = |error| StoreError::from_sqlite(path, error);
    let mut statement = conn.prepare("PRAGMA integrity_check").map_err(sqlite)?;
    let found: Vec<String> = statement.query_map([], |row| row.get(0)).and_then(Iterator::collect).map_err(sqlite)?;
    Ok(found.into_iter().filter(|line| line != "ok").collect())
}

#[cfg(test)]
mod tests {
    use super::*;

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
