//! Owns the handling of a store that SQLite finds damaged: it is kept under another name, and a new
//! one is started whose notes mention it.

use std::path::{Path, PathBuf};

use super::error::StoreError;
use super::schema::{self, TIMED_TABLES};
use super::{lock_file, real_path, side_file};

/// Moves the damaged store at `path` (with its log) to another name in its directory, and begins a
/// new one there. The new store notes for every table that rows up to `now_ns` are not in it.
/// Returns the damaged file's new name; not a byte of it is changed, so that `sqlite3 FILE
/// .recover` may rescue rows.
///
/// # Errors
/// [`StoreError`]: another agent has the file open, or the directory cannot be written.
pub fn replace_damaged(path: &Path, mode: u32, now_ns: i64) -> Result<PathBuf, StoreError> {
    let path = &real_path(path)?;
    let _lock = lock_file(path, mode)?;
    let io = |error: std::io::Error| StoreError::from_io(path, &error);
    let damaged = schema::free_name(path, ".damaged");
    // The log goes with the file it belongs to; the shared memory is only an index of the log.
    for suffix in ["-wal", "-shm"] {
        match std::fs::rename(side_file(path, suffix), side_file(&damaged, suffix)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(error)),
            _ => {}
        }
    }
    std::fs::rename(path, &damaged).map_err(io)?;
    let conn = schema::open_writer(path, mode)?;
    for (table, _) in TIMED_TABLES {
        conn.execute(
            "INSERT INTO retention (table_name, cutoff_ns, rows_dropped) VALUES (?1, ?2, 0)",
            rusqlite::params![table, now_ns],
        )
        .map_err(|error| StoreError::from_sqlite(path, error))?;
    }
    drop(conn);
    Ok(damaged)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{PATIENCE, collective};
    use super::super::{Store, StoreConfig};
    use super::*;
    use record::Record;

    #[test]
    fn a_damaged_store_is_kept_and_the_new_one_notes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let store = Store::open(&path, StoreConfig::default()).unwrap();
        for i in 0..100 {
            store.ingest().record(Record::Collective(collective(i)));
        }
        drop(store);
        let mut bytes = std::fs::read(&path).unwrap();
        // The first page has the schema: behind the header everything is wrong.
        bytes[100..4096].fill(0x5a);
        std::fs::write(&path, &bytes).unwrap();
        let error = Store::open(&path, StoreConfig::default()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");

        for n in 1..=2 {
            let damaged = replace_damaged(&path, 0o600, 4_000_000_000_000_000_000).unwrap();
            assert_eq!(damaged, dir.path().join(format!("s.db.damaged-{n}")));
            assert_eq!(std::fs::read(&damaged).unwrap(), bytes, "not a byte is changed");
            let store = Store::open(&path, StoreConfig::default()).unwrap();
            let notes = store.notes(&["collectives"], i64::MIN..i64::MAX);
            assert!(notes[0].starts_with("collectives: rows up to 2096"), "{notes:?}");
            store.ingest().record(Record::Collective(collective(1)));
            store.flush(PATIENCE).unwrap();
            drop(store);
            std::fs::write(&path, &bytes).unwrap();
            for side in ["-wal", "-shm"] {
                let _ = std::fs::remove_file(side_file(&path, side));
            }
        }
    }

    #[test]
    fn a_store_in_use_is_not_moved() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let _store = Store::open(&path, StoreConfig::default()).unwrap();
        assert!(matches!(replace_damaged(&path, 0o600, 0), Err(StoreError::InUse { .. })));
        assert!(path.exists());
    }
}
