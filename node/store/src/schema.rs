//! Owns the file's form: creating it, the migration ladder, and the refusal of other programs'
//! files. Does not own rows (`rows`), nor the form of served files (`reader`). The tables are in
//! schema.sql, and docs/schema.md describes them.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, Transaction};

use super::error::StoreError;
use super::{columnar, side_file};

/// Marks trace stores in the SQLite header ("RMSH" in ASCII), so that no foreign database is ever
/// written to.
pub const APPLICATION_ID: i32 = 0x524D_5348;

/// The schema version this build writes (`PRAGMA user_version`).
pub const SCHEMA_VERSION: i64 = LADDER.len() as i64;

/// The first bytes of every SQLite file
/// (<https://sqlite.org/fileformat2.html#the_database_header>).
pub(crate) const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Tables whose rows are raw observations, with the column that carries their time. Retention drops
/// from these, oldest first.
pub const TIMED_TABLES: &[(&str, &str)] = &[
    ("collectives", "ts_ns"),
    ("offcpu", "ts_ns"),
    ("net_events", "ts_ns"),
    ("cuda_calls", "ts_ns"),
    ("symbol_calls", "ts_ns"),
    ("block_io", "ts_ns"),
    ("memory_events", "ts_ns"),
    ("process_events", "ts_ns"),
    ("fabric_counters", "ts_ns"),
    ("gpu_samples", "ts_ns"),
    ("host_samples", "ts_ns"),
    ("self_stats", "ts_ns"),
    ("processes", "seen_ns"),
    ("call_rollups", "bucket_ns"),
    ("requests", "ts_ns"),
    ("request_stretches", "ts_ns"),
    ("request_rollups", "bucket_ns"),
    ("capture_loss", "ts_ns"),
    ("findings", "ts_ns"),
    ("audit", "ts_ns"),
    ("annotations", "ts_ns"),
    ("stacks", "ts_ns"),
    ("clock_offsets", "ts_ns"),
];

/// Tables that exist but that nothing fills yet: an empty answer from them proves nothing.
pub(crate) const UNFILLED_TABLES: &[&str] = &[];

/// Tables whose rows are chosen from what happened, and how: an answer from them has a note.
pub(crate) const CHOSEN_TABLES: &[(&str, &str)] = &[
    (
        "cuda_calls",
        "slow calls and synchronisations after a collective only; call_rollups counts every call (source cuda, \
         cuda_driver, hip)",
    ),
    ("symbol_calls", "where calls were too many, the slowest only; call_rollups counts every call (source symbol)"),
    (
        "requests",
        "of more than 20 a second in a service the slow and the failed ones and a sample (kept, stands_for); \
         request_rollups counts every request",
    ),
    ("request_stretches", "of those requests only that have a row in requests"),
];

/// Tables that are equal on every node.
pub const REPLICATED_TABLES: &[&str] = &["sources", "ops"];

/// The tables a view reads, or the name itself when it is no view of the schema.
pub(crate) fn base_tables(name: &str) -> Vec<&str> {
    match name.to_ascii_lowercase().as_str() {
        "nccl_events" => vec!["collectives"],
        "cuda_events" => vec!["cuda_calls"],
        "cuda_time" => vec!["call_rollups"],
        "tcp_events" => vec!["net_events"],
        "events" => vec!["collectives", "offcpu", "net_events", "block_io", "memory_events", "process_events"],
        _ => vec![name],
    }
}

/// One step of the ladder: brings a file from the version of its index to the next.
type Step = fn(&Transaction<'_>) -> rusqlite::Result<()>;

/// `LADDER[n]` brings version n to n + 1. Steps are never edited after a release: a change is a new
/// step, and a file of its own where it is long.
const LADDER: &[Step] = &[|tx| {
    tx.execute_batch(include_str!("schema.sql"))?;
    columnar::make_all_columnar(tx)
}];

/// Open `path` for writing; create or migrate it as needed. New files get `mode` (SQLite gives its
/// side files the same).
///
/// # Errors
/// [`StoreError`] with what is wrong with the file or its directory.
pub(crate) fn open_writer(path: &Path, mode: u32) -> Result<Connection, StoreError> {
    // It has the mark: if SQLite takes it for no database, its header is damaged.
    let sqlite = |e| StoreError::from_sqlite(path, e).or_bad_header();
    create_if_missing(path, mode)?;
    check_header(path)?;
    keep_unreadable_log(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    conn.busy_timeout(std::time::Duration::from_millis(500)).map_err(sqlite)?;
    conn.set_prepared_statement_cache_capacity(64);
    columnar::register(&conn).map_err(sqlite)?;
    migrate(&mut conn, path, LADDER)?;
    columnar::make_columnar_again(&mut conn).map_err(sqlite)?;
    // Write-ahead log: readers never wait for the writer. NORMAL: a commit survives a killed
    // process; after a power cut the last commits may be gone, the file stays sound.
    let journal: String = conn.pragma_update_and_check(None, "journal_mode", "WAL", |r| r.get(0)).map_err(sqlite)?;
    if !journal.eq_ignore_ascii_case("wal") {
        return Err(StoreError::NotWritable {
            path: path.to_path_buf(),
            reason: format!("the file system does not support write-ahead logging (journal mode stays {journal})"),
        });
    }
    conn.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -8192;")
        .map_err(sqlite)?;
    Ok(conn)
}

/// Make the empty database behind `conn` a store of this version, all of whose tables any SQLite
/// can read.
///
/// # Errors
/// SQLite refuses.
pub fn write_plain_schema(conn: &Connection) -> rusqlite::Result<()> {
    columnar::register(conn)?;
    let tx = conn.unchecked_transaction()?;
    for step in LADDER {
        step(&tx)?;
    }
    columnar::make_plain(&tx)?;
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    tx.commit()
}

/// The tables and views of this version, each with its columns and their declared types (empty
/// where a view computes them).
///
/// # Errors
/// SQLite cannot make them in memory.
pub fn declared() -> rusqlite::Result<BTreeMap<String, Vec<(String, String)>>> {
    let conn = in_memory()?;
    // (SQLite says BLOB of a view's column whose values may be of several types.)
    let sql = "SELECT s.name, c.name, iif(s.type = 'view' AND c.type = 'BLOB', '', c.type) \
               FROM sqlite_schema s, pragma_table_info(s.name) c \
               WHERE s.type IN ('table', 'view') AND s.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY s.name, c.cid";
    let mut tables: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut statement = conn.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        tables.entry(row.get(0)?).or_default().push((row.get(1)?, row.get(2)?));
    }
    Ok(tables)
}

/// The views of this version: each name with its CREATE VIEW.
///
/// # Errors
/// SQLite cannot make them in memory.
pub fn views() -> rusqlite::Result<Vec<(String, String)>> {
    let conn = in_memory()?;
    let mut statement = conn.prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'view'")?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// A store of this version in memory, without rows.
fn in_memory() -> rusqlite::Result<Connection> {
    let conn = Connection::open_in_memory()?;
    columnar::register(&conn)?;
    let tx = conn.unchecked_transaction()?;
    LADDER.iter().try_for_each(|step| step(&tx))?;
    tx.commit()?;
    Ok(conn)
}

/// Whether there is a file at `path`.
///
/// # Errors
/// There is something else, or it cannot be found out.
pub(crate) fn is_there(path: &Path) -> Result<bool, StoreError> {
    match std::fs::metadata(path) {
        Ok(meta) => StoreError::unless_regular(path, &meta).map(|()| true),
        // The new file would take the link's place, not that of the file which the link means.
        Err(e) if e.kind() == ErrorKind::NotFound && path.is_symlink() => {
            let reason = "it is a link to a file that does not exist".to_owned();
            Err(StoreError::NotWritable { path: path.to_path_buf(), reason })
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(StoreError::from_io(path, &e)),
    }
}

/// Begins of a write-ahead log, by byte order of its checksums
/// (<https://sqlite.org/fileformat2.html#walformat>).
const LOG_MAGIC: [[u8; 4]; 2] = [[0x37, 0x7f, 0x06, 0x82], [0x37, 0x7f, 0x06, 0x83]];

/// SQLite overwrites a log that it cannot read: keep that file under another name.
fn keep_unreadable_log(path: &Path) -> Result<(), StoreError> {
    let io = |e| StoreError::from_io(path, &e);
    let log = side_file(path, "-wal");
    let mut magic = [0_u8; 4];
    let read = match File::open(&log) {
        Ok(mut file) => read_up_to(&mut file, &mut magic).map_err(io)?,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io(e)),
    };
    if read == 0 || LOG_MAGIC.contains(&magic) {
        return Ok(());
    }
    let kept = free_name(&log, ".unreadable");
    std::fs::rename(&log, &kept).map_err(io)?;
    tracing::error!("{} was no write-ahead log; it lies in {} now", log.display(), kept.display());
    Ok(())
}

/// `path` with `suffix` and the first number that gives the name of no file.
pub(super) fn free_name(path: &Path, suffix: &str) -> PathBuf {
    (1_u32..)
        .map(|n| side_file(path, &format!("{suffix}-{n}")))
        .find(|name| !name.exists())
        .unwrap_or_else(|| side_file(path, suffix))
}

/// Makes a new file under another name and moves it into place: a process killed in between leaves
/// no file that is neither empty nor a store.
fn create_if_missing(path: &Path, mode: u32) -> Result<(), StoreError> {
    let io = |e| StoreError::from_io(path, &e);
    match std::fs::metadata(path) {
        Ok(meta) if meta.len() > 0 => return Ok(()),
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(io(e)),
    }
    let new = side_file(path, ".new");
    for leftover in [new.clone(), side_file(&new, "-journal")] {
        match std::fs::remove_file(&leftover) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(io(e)),
            _ => {}
        }
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new).map_err(io)?;
    let sqlite = |e| StoreError::from_sqlite(path, e);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(&new, flags).map_err(sqlite)?;
    // Nothing is lost with this file before it has its name.
    conn.pragma_update(None, "synchronous", "OFF").map_err(sqlite)?;
    // Only settable while the file is empty: pages can be given back later.
    conn.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(sqlite)?;
    conn.pragma_update(None, "application_id", APPLICATION_ID).map_err(sqlite)?;
    columnar::register(&conn).map_err(sqlite)?;
    migrate(&mut conn, path, LADDER)?;
    conn.close().map_err(|(_, e)| sqlite(e))?;
    file.sync_all().map_err(io)?;
    // A log or journal of a file that is gone would be replayed into the new one: move it out of
    // the way.
    for suffix in ["-wal", "-shm", "-journal"] {
        let orphan = side_file(path, suffix);
        match std::fs::rename(&orphan, side_file(&orphan, ".orphan")) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(io(e)),
            _ => {}
        }
    }
    std::fs::rename(&new, path).map_err(io)
}

/// Refuse by the header alone what must not even be opened for writing. (The caller holds the
/// store's lock file, so no connection of this process is open on `path`: closing a descriptor here
/// would drop its POSIX locks.)
pub(crate) fn check_header(path: &Path) -> Result<(), StoreError> {
    let mut header = [0_u8; 100];
    let mut file = File::open(path).map_err(|e| StoreError::from_io(path, &e))?;
    let len = read_up_to(&mut file, &mut header).map_err(|e| StoreError::from_io(path, &e))?;
    if len == 0 {
        return Ok(());
    }
    if len < header.len() || &header[..16] != MAGIC {
        return Err(StoreError::NotADatabase { path: path.to_path_buf() });
    }
    // Offset 68: the application id, big-endian. A trace store has it from its first moment under
    // this name, so any other value (zero included) is another program's file.
    if header[68..72] != APPLICATION_ID.to_be_bytes() {
        return Err(StoreError::Foreign { path: path.to_path_buf() });
    }
    Ok(())
}

/// Read until `buf` is full or the file ends.
pub(crate) fn read_up_to(file: &mut File, buf: &mut [u8]) -> std::io::Result<usize> {
    let mut len = 0;
    while len < buf.len() {
        match file.read(&mut buf[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(len)
}

fn migrate(conn: &mut Connection, path: &Path, ladder: &[Step]) -> Result<(), StoreError> {
    let sqlite = |e| StoreError::from_sqlite(path, e).or_bad_header();
    let known = ladder.len() as i64;
    loop {
        let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(sqlite)?;
        let found: i64 = tx.pragma_query_value(None, "user_version", |r| r.get(0)).map_err(sqlite)?;
        if found == known {
            return Ok(());
        }
        let step = usize::try_from(found).ok().and_then(|n| ladder.get(n));
        let Some(step) = step else {
            return Err(StoreError::Newer { path: path.to_path_buf(), found, known });
        };
        step(&tx).map_err(sqlite)?;
        tx.pragma_update(None, "user_version", found + 1).map_err(sqlite)?;
        tx.commit().map_err(sqlite)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty store of this version.
    fn newest() -> Connection {
        let mut conn = Connection::open_in_memory().unwrap();
        columnar::register(&conn).unwrap();
        migrate(&mut conn, Path::new(":memory:"), LADDER).unwrap();
        conn
    }

    fn names(conn: &Connection) -> Vec<(String, Vec<String>)> {
        let mut tables: Vec<String> = conn
            .prepare("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name")
            .unwrap()
            .query_map([], |r| r.get(0))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        tables.retain(|t| !t.starts_with("sqlite_"));
        tables
            .into_iter()
            .map(|t| {
                let cols = conn
                    .prepare(&format!("SELECT name FROM pragma_table_info('{t}') ORDER BY cid"))
                    .unwrap()
                    .query_map([], |r| r.get(0))
                    .unwrap()
                    .collect::<Result<_, _>>()
                    .unwrap();
                (t, cols)
            })
            .collect()
    }

    /// docs/schema.md has one `## name` per table or view and one `| `column` | … |` line per
    /// column, before the views that agents add.
    #[test]
    fn the_documentation_names_every_table_and_column() {
        let conn = newest();
        let doc = include_str!("../../../docs/schema.md");
        let doc = doc.split("\n# Views of the mesh\n").next().expect("some text");
        let mut documented: Vec<(String, Vec<String>)> = Vec::new();
        for line in doc.lines() {
            if let Some(name) = line.strip_prefix("## `") {
                documented.push((name.split('`').next().unwrap().to_owned(), Vec::new()));
            } else if let Some(rest) = line.strip_prefix("| `") {
                let column = rest.split('`').next().unwrap().to_owned();
                documented.last_mut().expect("a column before any table").1.push(column);
            }
        }
        documented.sort();
        assert_eq!(names(&conn), documented);
    }

    #[test]
    fn every_timed_table_has_its_time_column_indexed() {
        let conn = newest();
        for (table, column) in TIMED_TABLES.iter().filter(|(table, _)| !columnar::is_columnar(table)) {
            let plan: String = conn
                .query_row(&format!("EXPLAIN QUERY PLAN SELECT min({column}) FROM {table}"), [], |r| r.get(3))
                .unwrap();
            assert!(plan.contains("INDEX"), "{table}: {plan}");
        }
    }

    #[test]
    fn an_older_file_climbs_the_ladder_and_keeps_its_rows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let one: &[Step] = &[|tx| tx.execute_batch("CREATE TABLE t (a INTEGER)")];
        let two: &[Step] = &[one[0], |tx| tx.execute_batch("ALTER TABLE t ADD COLUMN b INTEGER DEFAULT 7")];
        let mut conn = Connection::open(&path).unwrap();
        migrate(&mut conn, &path, one).unwrap();
        conn.execute("INSERT INTO t VALUES (1)", []).unwrap();
        migrate(&mut conn, &path, two).unwrap();
        migrate(&mut conn, &path, two).unwrap();
        let row: (i64, i64) = conn.query_row("SELECT a, b FROM t", [], |r| Ok((r.get(0)?, r.get(1)?))).unwrap();
        assert_eq!(row, (1, 7));
        let refused = migrate(&mut conn, &path, one).unwrap_err();
        assert!(matches!(refused, StoreError::Newer { found: 2, known: 1, .. }), "{refused}");
    }

    #[test]
    fn rows_of_a_plain_store_move_into_segments() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let conn = Connection::open(&path).unwrap();
        write_plain_schema(&conn).unwrap();
        conn.execute_batch(
            "WITH RECURSIVE r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r WHERE i < 69999)
             INSERT INTO collectives SELECT i * 10, i % 77, 1, 1, nullif(i % 9, 8), NULL, 8, i % 3, 'f' || (i % 5), i,
             NULL, CASE i % 2 WHEN 0 THEN 'float32' END, i * i, NULL, NULL, NULL, 'nccl', 0, 0, 5, 'j', NULL, NULL, NULL FROM r;
             CREATE TABLE before AS SELECT rowid AS id, * FROM collectives;",
        )
        .unwrap();
        drop(conn);
        let conn = open_writer(&path, 0o600).unwrap();
        for (a, b) in
            [("before", "(SELECT rowid, * FROM collectives)"), ("(SELECT rowid, * FROM collectives)", "before")]
        {
            let sql = format!("SELECT count(*) FROM (SELECT * FROM {a} EXCEPT SELECT * FROM {b})");
            assert_eq!(conn.query_row(&sql, [], |r| r.get::<_, i64>(0)).unwrap(), 0, "{sql}");
        }
        let count = |sql: &str| conn.query_row(sql, [], |r| r.get::<_, i64>(0)).unwrap();
        assert_eq!(count("SELECT count(*) FROM segments"), 2);
        assert_eq!(
            count("SELECT count(*) FROM nccl_events WHERE rank = 3"),
            count("SELECT count(*) FROM before WHERE rank = 3")
        );
    }

    #[test]
    fn a_failed_step_leaves_the_old_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let broken: &[Step] = &[|tx| tx.execute_batch("CREATE TABLE t (a); CREATE TABLE t (a);")];
        let mut conn = Connection::open(&path).unwrap();
        migrate(&mut conn, &path, broken).unwrap_err();
        let (version, tables): (i64, i64) = conn
            .query_row("SELECT user_version, (SELECT count(*) FROM sqlite_schema) FROM pragma_user_version", [], |r| {
                Ok((r.get(0)?, r.get(1)?))
            })
            .unwrap();
        assert_eq!((version, tables), (0, 0));
    }

    #[test]
    fn files_that_are_not_ours_are_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let garbage = dir.path().join("garbage");
        std::fs::write(&garbage, [7_u8; 4096]).unwrap();
        assert!(matches!(open_writer(&garbage, 0o600), Err(StoreError::NotADatabase { .. })));
        assert_eq!(std::fs::read(&garbage).unwrap(), [7_u8; 4096]);

        let foreign = dir.path().join("foreign.db");
        Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE events (a)").unwrap();
        let before = std::fs::read(&foreign).unwrap();
        let error = open_writer(&foreign, 0o600).unwrap_err();
        assert!(error.to_string().contains("--serve-db"), "{error}");
        assert_eq!(std::fs::read(&foreign).unwrap(), before);

        let newer = dir.path().join("newer.db");
        open_writer(&newer, 0o600).unwrap().pragma_update(None, "user_version", 99).unwrap();
        let error = open_writer(&newer, 0o600).unwrap_err();
        assert!(matches!(error, StoreError::Newer { found: 99, .. }), "{error}");

        let nowhere = dir.path().join("no/such/dir.db");
        assert!(matches!(open_writer(&nowhere, 0o600), Err(StoreError::NotWritable { .. })));
    }

    #[test]
    fn the_log_of_a_file_that_is_gone_is_not_replayed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let conn = open_writer(&path, 0o600).unwrap();
        conn.execute("INSERT INTO retention VALUES ('x', 0, 0)", []).unwrap();
        let log = std::fs::read(side_file(&path, "-wal")).unwrap();
        drop(conn);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(side_file(&path, "-wal"), &log).unwrap();
        let conn = open_writer(&path, 0o600).unwrap();
        assert_eq!(conn.query_row("SELECT count(*) FROM retention", [], |r| r.get::<_, i64>(0)).unwrap(), 0);
        assert_eq!(std::fs::read(side_file(&path, "-wal.orphan")).unwrap(), log);
        assert!(!side_file(&path, ".new").exists());
    }

    #[test]
    fn a_start_killed_while_creating_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        std::fs::write(&path, b"").unwrap();
        std::fs::write(side_file(&path, ".new"), MAGIC).unwrap();
        std::fs::write(side_file(&path, ".new-journal"), b"x").unwrap();
        open_writer(&path, 0o600).unwrap();
        check_header(&path).unwrap();
    }

    #[test]
    fn the_file_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let conn = open_writer(&path, 0o600).unwrap();
        conn.execute("INSERT INTO retention VALUES ('x', 0, 0)", []).unwrap();
        for file in [path.clone(), path.with_extension("db-wal"), path.with_extension("db-shm")] {
            let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{}", file.display());
        }
    }
}
