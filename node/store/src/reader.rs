//! Owns the read-only connections: to our own store, and to any SQLite file served as it is
//! (`--serve-db`). Does not own what runs on them, nor its limits: the executor sets those per
//! question.
//!
//! A served file must stay byte for byte as it is, and no file may appear next to it. How it is
//! opened follows from its header (<https://sqlite.org/fileformat2.html>, offset 19) and its side
//! files:
//!
//! | file | side files | opened |
//! |---|---|---|
//! | rollback journal | any | `mode=ro`: SQLite locks, writes nothing; a hot journal is refused |
//! | write-ahead log | no `-wal`, or an empty one | `immutable=1`: a plain read-only open would create `-shm` |
//! | write-ahead log | `-wal` and `-shm` | `mode=ro`: joins the writer's protocol through its `-shm`, without a checkpoint |
//! | write-ahead log | `-wal` without `-shm` | refused: reading it right would create `-shm` |
//!
//! `immutable` turns locking off, so it is decided for each connection: once a writer has
//! come, its log is there. A writer that starts while such a connection reads is the one case not
//! covered; a question is short.

use std::fmt::Write as _;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::clock_offsets::clock_offsets;
use super::error::StoreError;
use super::facts::{Facts, FactsState, TableFacts};
use super::rows::ClockOffsetSeen;
use super::schema::{APPLICATION_ID, MAGIC, REPLICATED_TABLES, SCHEMA_VERSION, read_up_to};
use super::{columnar, side_file};

/// Up to this size rows of a served file are counted; beyond, estimated by the highest row id.
const COUNT_BELOW_BYTES: u64 = 256 << 20;

/// Columns taken for a table's time, in this order.
pub(crate) const TIME_COLUMNS: [&str; 3] = ["ts_ns", "timestamp_ns", "timestamp"];

/// A file that was last changed so long ago changes its times when it is changed again.
const SETTLED: Duration = Duration::from_secs(2);

/// For how long a connection shows the newest rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// It sees whatever is written.
    Always,
    /// While the file has this state.
    Unchanged {
        /// Device and inode.
        file: (u64, u64),
        /// Length.
        bytes: u64,
        /// Modified and changed, seconds and nanoseconds of each.
        times: [i64; 4],
    },
}

/// A read-only connection to our own store.
pub(crate) fn open_own(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(|e| StoreError::from_sqlite_read(path, e))?;
    settle(&conn).map_err(|e| StoreError::from_sqlite_read(path, e))?;
    Ok(conn)
}

/// Our own store attached to a connection with an empty database, under a name of the caller's, who
/// decides what is shown of it.
pub(super) fn attach_own(path: &Path, name: &str) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    let conn = Connection::open_in_memory_with_flags(flags)?;
    conn.execute(&format!("ATTACH ?1 AS {}", crate::quoted(name)), [uri(path, false)])?;
    Ok(conn)
}

pub(super) fn settle(conn: &Connection) -> rusqlite::Result<()> {
    columnar::register(conn)?;
    // Those of a task and of the segments of several tables.
    conn.set_prepared_statement_cache_capacity(64);
    conn.busy_timeout(Duration::from_secs(1))?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    conn.execute_batch("PRAGMA query_only = ON; PRAGMA temp_store = MEMORY;")
}

/// An SQLite file served as it is.
#[derive(Debug)]
pub struct ServedDb {
    path: PathBuf,
    write_ahead: bool,
    replicated: Vec<String>,
    facts: Facts,
    note: Option<String>,
    /// Of a trace store: the records of what is missing from it.
    recorded: Option<FactsState>,
}

impl ServedDb {
    /// Look at `path` and check that it can be served. `replicated` names its tables that are equal
    /// on every node.
    ///
    /// # Errors
    /// [`StoreError`]: missing, unreadable, not a database or encrypted, damaged, not closed
    /// cleanly.
    pub fn open(path: impl AsRef<Path>, replicated: Vec<String>) -> Result<Self, StoreError> {
        Self::open_with(path.as_ref(), replicated).map(|(served, _)| served)
    }

    /// With the connection that this took.
    fn open_with(given: &Path, replicated: Vec<String>) -> Result<(Self, Connection), StoreError> {
        let path = given.canonicalize().map_err(|e| unreadable(given, &e))?;
        let write_ahead = read_header(&path)?;
        let mut served = Self { path, write_ahead, replicated, facts: Facts::default(), note: None, recorded: None };
        let conn = served.reader()?;
        served.refuse_newer(&conn)?;
        served.facts = read_facts(&conn, &served.path).map_err(|e| StoreError::from_sqlite_read(&served.path, e))?;
        Ok((served, conn))
    }

    /// As [`ServedDb::open`]; of a trace store with what its agent would report: which tables are
    /// equal on every node, and what is known to be missing.
    ///
    /// # Errors
    /// As [`ServedDb::open`].
    pub fn open_recorded(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let (mut served, conn) = Self::open_with(path.as_ref(), Vec::new())?;
        let failed = |e| StoreError::from_sqlite_read(&served.path, e);
        let application: i64 = conn.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(failed)?;
        if application == i64::from(APPLICATION_ID) {
            // (One of an early schema has no such tables, and nothing to report.)
            served.recorded = FactsState::load(&conn).ok();
            served.replicated = REPLICATED_TABLES.iter().map(|table| (*table).to_owned()).collect();
        }
        Ok(served)
    }

    /// What the agent of this trace store measured of other nodes' clocks, within `range` of its
    /// own (for each peer the best of some hundred equal parts of it), or of each peer the newest.
    /// Nothing of a file that is no trace store.
    ///
    /// # Errors
    /// [`StoreError`] when the file cannot be read.
    pub fn clock_offsets(&self, range: Option<&Range<i64>>) -> Result<Vec<ClockOffsetSeen>, StoreError> {
        if self.recorded.is_none() {
            return Ok(Vec::new());
        }
        let conn = self.reader()?;
        clock_offsets(&conn, range).map_err(|e| StoreError::from_sqlite_read(&self.path, e))
    }

    /// What is known to be missing from `tables` (all when empty) in `range` of Unix nanoseconds.
    #[must_use]
    pub fn notes(&self, tables: &[&str], range: &Range<i64>) -> Vec<String> {
        let recorded = self.recorded.iter().flat_map(|recorded| recorded.notes(tables, range));
        self.note.iter().cloned().chain(recorded).collect()
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tables that are equal on every node.
    #[must_use]
    pub fn replicated(&self) -> &[String] {
        &self.replicated
    }

    /// Tables, rows and spans as they were when the file was opened.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.facts.clone()
    }

    /// Let every answer from the file carry this note.
    #[must_use]
    pub fn with_note(self, note: String) -> Self {
        Self { note: Some(note), ..self }
    }

    /// The note that every answer from the file is to carry.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// For how long a connection that is opened now stays true; none where it should not be kept.
    /// In write-ahead mode one that is opened while nobody writes takes no locks and never sees a
    /// writer that comes later: it is true of the file as it is. (With a writer it is true, but
    /// would keep the writer from cleaning up at its end.)
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        if !self.write_ahead {
            return Some(Validity::Always);
        }
        let log = std::fs::metadata(side_file(&self.path, "-wal")).is_ok_and(|m| m.len() > 0);
        let found = std::fs::metadata(&self.path).ok().filter(|_| !log)?;
        // A file that changes again within the tick of its times would look the same.
        let settled = found.modified().ok()?.elapsed().is_ok_and(|age| age >= SETTLED);
        let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
        settled.then(|| Validity::Unchanged { file: (found.dev(), found.ino()), bytes: found.len(), times })
    }

    /// A fresh read-only connection.
    ///
    /// # Errors
    /// As [`ServedDb::open`]: the file may have changed.
    pub fn reader(&self) -> Result<Connection, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
        let failed = |e: rusqlite::Error| self.advice(e);
        let conn = Connection::open_with_flags(self.uri()?, flags).map_err(failed)?;
        settle(&conn).map_err(failed)?;
        // The first read finds what the header did not show: encryption, damage, a hot journal.
        conn.query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get::<_, i64>(0)).map_err(failed)?;
        Ok(conn)
    }

    /// The URI under which the file can be opened or attached right now without a byte being
    /// written to it or to a file next to it.
    ///
    /// # Errors
    /// [`StoreError::Unclean`] when that cannot be.
    pub(crate) fn uri(&self) -> Result<String, StoreError> {
        let immutable = self.write_ahead && {
            let pending = std::fs::metadata(side_file(&self.path, "-wal")).is_ok_and(|m| m.len() > 0);
            if pending && !side_file(&self.path, "-shm").exists() {
                let reason = "a -wal file without its -shm lies beside it".to_owned();
                return Err(StoreError::Unclean { path: self.path.clone(), reason });
            }
            !pending
        };
        Ok(uri(&self.path, immutable))
    }

    /// A trace store of a later version may mean something else by the same names.
    fn refuse_newer(&self, conn: &Connection) -> Result<(), StoreError> {
        let pragma = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let failed = |e| self.advice(e);
        let found = pragma("user_version").map_err(failed)?;
        if pragma("application_id").map_err(failed)? == i64::from(APPLICATION_ID) && found > SCHEMA_VERSION {
            return Err(StoreError::Newer { path: self.path.clone(), found, known: SCHEMA_VERSION });
        }
        Ok(())
    }

    fn advice(&self, error: rusqlite::Error) -> StoreError {
        let journal = std::fs::metadata(side_file(&self.path, "-journal")).is_ok_and(|m| m.len() > 0);
        let refused = matches!(error.sqlite_error_code(), Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen));
        if journal && refused {
            let reason = "an unfinished transaction's -journal lies beside it".to_owned();
            return StoreError::Unclean { path: self.path.clone(), reason };
        }
        // Its first bytes are those of a database.
        StoreError::from_sqlite_read(&self.path, error).or_bad_header()
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> StoreError {
    let path = path.to_path_buf();
    match error.kind() {
        std::io::ErrorKind::NotFound => StoreError::Missing { path },
        _ => StoreError::NotReadable { path, reason: error.to_string() },
    }
}

/// Check the magic; true when the file is in write-ahead mode. Read once, before any connection:
/// closing a descriptor later would drop the POSIX locks of this process's connections to the file.
fn read_header(path: &Path) -> Result<bool, StoreError> {
    let mut header = [0_u8; 100];
    let meta = std::fs::metadata(path).map_err(|e| unreadable(path, &e))?;
    StoreError::unless_regular(path, &meta)?;
    if meta.len() == 0 {
        return Err(StoreError::Empty { path: path.to_path_buf() });
    }
    let mut file = File::open(path).map_err(|e| unreadable(path, &e))?;
    let len = read_up_to(&mut file, &mut header).map_err(|e| unreadable(path, &e))?;
    if len < header.len() || &header[..16] != MAGIC {
        return Err(StoreError::NotADatabase { path: path.to_path_buf() });
    }
    Ok(header[19] == 2)
}

/// `path` as an SQLite URI; everything but the plainest characters is escaped.
fn uri(path: &Path, immutable: bool) -> String {
    let mut uri = String::from("file:");
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'-' | b'_') {
            uri.push(char::from(byte));
        } else {
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri.push_str(if immutable { "?mode=ro&immutable=1" } else { "?mode=ro" });
    uri
}

fn read_facts(conn: &Connection, path: &Path) -> rusqlite::Result<Facts> {
    let file_bytes = std::fs::metadata(path).map_or(0, |m| m.len());
    let wal_bytes = std::fs::metadata(side_file(path, "-wal")).map_or(0, |m| m.len());
    let count = file_bytes <= COUNT_BELOW_BYTES;
    let names: Vec<String> = conn
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'")?
        .query_map([], |r| r.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let tables = names.into_iter().map(|name| table_facts(conn, name, count)).collect();
    Ok(Facts { tables, file_bytes, wal_bytes, losses: Vec::new() })
}

/// What cannot be read (a virtual table whose module is missing, say) counts as unknown: no rows,
/// no span.
fn table_facts(conn: &Connection, name: String, count: bool) -> TableFacts {
    // Segments know; counting would unpack them all. (A plain table of that name has none.)
    if columnar::is_columnar(&name)
        && let Ok((rows, first_ns, last_ns)) = columnar::span(conn, &name)
    {
        return TableFacts { rows, first_ns, last_ns, name, ..TableFacts::default() };
    }
    let quoted = crate::quoted(&name);
    let one = |sql: &str| conn.query_row(sql, [], |r| r.get::<_, Option<i64>>(0)).ok().flatten();
    let rows = if count { "count(*)" } else { "max(rowid)" };
    let rows = one(&format!("SELECT {rows} FROM {quoted}")).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    let time = TIME_COLUMNS.iter().find(|column| {
        conn.query_row("SELECT count(*) FROM pragma_table_info(?1) WHERE name = ?2", [name.as_str(), column], |r| {
            r.get::<_, i64>(0)
        })
        .is_ok_and(|n| n == 1)
    });
    let bound = |f: &str| time.filter(|_| count).and_then(|c| one(&format!("SELECT {f}({c}) FROM {quoted}")));
    TableFacts { rows, first_ns: bound("min"), last_ns: bound("max"), name, ..TableFacts::default() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Every file of the directory with its bytes.
    fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().path())
            .map(|p| (p.clone(), std::fs::read(p).unwrap()))
            .collect()
    }

    fn sample(path: &Path, journal: &str) -> Connection {
        let conn = Connection::open(path).unwrap();
        conn.query_row(&format!("PRAGMA journal_mode = {journal}"), [], |_| Ok(())).unwrap();
        conn.execute_batch(
            "CREATE TABLE events (timestamp INTEGER, source INTEGER); INSERT INTO events VALUES (10, 3), (20, 4);",
        )
        .unwrap();
        conn
    }

    fn count(conn: &Connection) -> i64 {
        conn.query_row("SELECT count(*) FROM events", [], |r| r.get(0)).unwrap()
    }

    #[test]
    fn serving_changes_nothing_in_either_journal_mode() {
        for journal in ["DELETE", "WAL"] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("odd name?#%.db");
            drop(sample(&path, journal));
            let before = contents(dir.path());
            assert_eq!(before.len(), 1);
            let served = ServedDb::open(&path, vec!["ops".to_owned()]).unwrap();
            let conn = served.reader().unwrap();
            assert_eq!(count(&conn), 2);
            conn.execute("INSERT INTO events VALUES (1, 1)", []).unwrap_err();
            assert_eq!(contents(dir.path()), before, "{journal}");
            drop(conn);
            assert_eq!(contents(dir.path()), before, "{journal}");
            let facts = served.facts();
            let events = facts.table("events").unwrap();
            assert_eq!((events.rows, events.first_ns, events.last_ns), (2, Some(10), Some(20)));
        }
    }

    #[test]
    fn a_live_writers_log_is_read_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("live.db");
        let writer = sample(&path, "WAL");
        let main_file = std::fs::read(&path).unwrap();
        let served = ServedDb::open(&path, Vec::new()).unwrap();
        writer.execute("INSERT INTO events VALUES (30, 5)", []).unwrap();
        assert_eq!(count(&served.reader().unwrap()), 3);
        assert_eq!(served.validity(), None, "it was written just now");
        // Nothing was merged into the main file by us.
        assert_eq!(std::fs::read(&path).unwrap(), main_file);
    }

    #[test]
    fn a_log_whose_writer_is_gone_is_refused_with_advice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("live.db");
        let writer = sample(&path, "WAL");
        let copy = dir.path().join("copy.db");
        std::fs::copy(&path, &copy).unwrap();
        std::fs::copy(side_file(&path, "-wal"), side_file(&copy, "-wal")).unwrap();
        drop(writer);
        let before = contents(dir.path());
        let error = ServedDb::open(&copy, Vec::new()).unwrap_err();
        assert!(matches!(error, StoreError::Unclean { .. }), "{error}");
        assert_eq!(contents(dir.path()), before);
    }

    #[test]
    fn what_a_killed_writer_left_is_served_completely() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("live.db");
        let writer = sample(&path, "WAL");
        let copy = dir.path().join("copy.db");
        for suffix in ["", "-wal", "-shm"] {
            std::fs::copy(side_file(&path, suffix), side_file(&copy, suffix)).unwrap();
        }
        drop(writer);
        let bytes = |suffix| std::fs::read(side_file(&copy, suffix)).unwrap();
        let before = (bytes(""), bytes("-wal"));
        let served = ServedDb::open(&copy, Vec::new()).unwrap();
        assert_eq!(count(&served.reader().unwrap()), 2);
        assert_eq!((bytes(""), bytes("-wal")), before);
    }

    #[test]
    fn a_hot_journal_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("busy.db");
        let writer = sample(&path, "DELETE");
        // Spill a large transaction to disk, then copy file and journal: what a killed writer
        // leaves.
        writer.execute_batch("PRAGMA cache_size = 2; BEGIN;").unwrap();
        writer
            .execute_batch(
                "WITH n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) \
                 INSERT INTO events SELECT i, i FROM n; UPDATE events SET source = 9;",
            )
            .unwrap();
        let copy = dir.path().join("copy.db");
        std::fs::copy(&path, &copy).unwrap();
        std::fs::copy(side_file(&path, "-journal"), side_file(&copy, "-journal")).unwrap();
        let before = std::fs::read(&copy).unwrap();
        let error = ServedDb::open(&copy, Vec::new()).unwrap_err();
        assert!(matches!(error, StoreError::Unclean { .. }), "{error}");
        assert_eq!(std::fs::read(&copy).unwrap(), before);
        assert!(side_file(&copy, "-journal").exists());
    }

    #[test]
    fn what_is_no_database_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            ServedDb::open(&path, Vec::new()).unwrap_err()
        };
        assert!(matches!(refused("empty", b""), StoreError::Empty { .. }));
        assert!(matches!(refused("text", &[b'x'; 8192]), StoreError::NotADatabase { .. }));
        let mut torn = MAGIC.to_vec();
        torn.resize(4096, 0x5A);
        assert!(matches!(refused("torn", &torn), StoreError::NotADatabase { .. } | StoreError::Damaged { .. }));
        assert!(matches!(ServedDb::open(dir.path().join("missing"), Vec::new()), Err(StoreError::Missing { .. })));
        assert!(matches!(ServedDb::open(dir.path(), Vec::new()), Err(StoreError::NotAFile { .. })));
    }
}
