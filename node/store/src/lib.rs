//! The trace store: one SQLite file per node with everything capture recorded, bounded in size and
//! age.
//!
//! Owns the file, its schema, the way in and the way out, and other forms of its rows (`exchange`).
//! Does not own questions (the query planner's executor runs on the connections given out here) nor
//! what a record means (`record`); it knows no network and no agent.
//!
//! The way in: [`Ingest::record`] puts a record into a bounded queue; the writer thread drains it,
//! makes rows and column segments and commits them as a group. The way out: [`Source`] gives
//! read-only connections, whose frequent tables are scanned from their columns ([`ColumnExecutor`])
//! or read through SQLite.
//!
//! | module | owns |
//! |---|---|
//! | `schema` | the file's form, migration, refusal of other files |
//! | `queue`, `ingest` | the bounded queue, the writer thread, group commits |
//! | `checkpoint` | cutting the write-ahead log back, on a thread of its own |
//! | `rows`, `rollups`, `losslog`, `sessions` | what is written |
//! | `columnar` | rows of the frequent tables as compressed columns |
//! | `retention`, `hold` | what is dropped, and what is kept for an archive until then |
//! | `facts` | spans, sizes, losses and notes, for gossip and coverage |
//! | `rescue` | a damaged file is kept and a new one started |
//! | `own_rows` | a connection that shows one user's rows |
//! | `reader`, `source` | connections for questions; any SQLite file served as it is |
//! | `file` | a question to one file, without a mesh |
//! | `exchange` | export of a store into other forms, import of recorded traces |

mod age;
mod checkpoint;
mod clock_offsets;
mod columnar;
mod error;
pub mod exchange;
mod facts;
pub mod file;
mod hold;
mod ingest;
mod integrity;
mod losslog;
mod own_rows;
mod queue;
mod reader;
mod rescue;
mod retention;
mod rollups;
mod rows;
mod schema;
mod sessions;
mod source;
#[cfg(any(test, debug_assertions))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::Connection;

use record::{steady_now_ns, unix_now_ns};

/// A map for keys of records: the standard one's hash was a twentieth of what storing a row costs.
/// Seeded at random all the same, since names come from outside.
pub(crate) type FastMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// A hash of a few numbers that costs less than looking at texts: for a place in which the last
/// such key is remembered.
pub(crate) fn cheap_hash(numbers: impl IntoIterator<Item = u64>) -> usize {
    let mix = |hash: u64, number: u64| (hash.rotate_left(5) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (numbers.into_iter().fold(0, mix) >> 32) as usize
}

pub use clock_offsets::clock_offsets;
pub use columnar::{
    ARCHIVED_MODULE, ColumnExecutor, ColumnsElsewhere, OWN_TABLES, Part, PartColumn, PartValues, let_go_of_segments,
    make_columnar, register_columns, understands,
};
pub use error::StoreError;
pub use facts::{DROPPED, Facts, TableFacts, UNFILLED, show_time};
pub use hold::ArchiveBacklog;
pub use ingest::{Health, Ingest, StoreState};
pub use integrity::integrity;
pub use losslog::LossFact;
pub(crate) use query_planner::quoted;
pub(crate) use reader::TIME_COLUMNS;
pub use reader::{ServedDb, Validity};
pub use rescue::replace_damaged;
pub use rows::{Annotation, Audit, ClockOffsetSeen, Finding, StackSeen};
pub use schema::REPLICATED_TABLES;
pub use schema::{APPLICATION_ID, SCHEMA_VERSION, declared, views};
pub use schema::{TIMED_TABLES, write_plain_schema};
pub use source::{Rows, Source};

use checkpoint::Checkpointer;
use facts::FactsState;
use ingest::Shared;
use retention::Limits;

/// How a store keeps its file.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Records that may wait for the writer; what comes beyond is dropped and counted.
    pub queue_records: usize,
    /// A group commit at least this often while records come.
    pub commit_every: Duration,
    /// Size of the file with its write-ahead log; the oldest rows give way.
    pub max_bytes: u64,
    /// Age of raw rows. Rollups are kept four times, processes and findings eight times as long.
    pub max_age: Duration,
    /// Size of the write-ahead log from which on it is cut back.
    pub wal_bytes: u64,
    /// Permissions of a new file. Rows name processes, users, jobs and addresses: only the owner
    /// reads it by default.
    pub mode: u32,
    /// Retention waits for an archive: rows that are not [archived](Store::archived) stay up to
    /// three hours longer than their age. The size is kept at all costs: where nothing else of a
    /// raw table can go, they go all the same, and are counted by hour in `archive_gaps`.
    pub hold_for_archive: bool,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            queue_records: 65_536,
            commit_every: Duration::from_millis(200),
            max_bytes: 4 << 30,
            max_age: Duration::from_secs(7 * 86_400),
            wal_bytes: 64 << 20,
            mode: 0o600,
            hold_for_archive: false,
        }
    }
}

impl StoreConfig {
    fn limits(&self) -> Limits {
        let wal_bytes = self.wal_bytes.min(self.max_bytes / 8);
        Limits { max_bytes: self.max_bytes, max_age: self.max_age, wal_bytes }
    }
}

/// An open store with its writer thread. Closed by [`Store::close`] or when dropped.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// Locked as long as the store is open: one agent per file.
    _lock: Lock,
    session_start_ns: i64,
}

impl Store {
    /// Open `path`, create it or bring it to this version's schema, begin a session and start the
    /// writer. Next to the file are SQLite's `-wal` and `-shm` and a `.lock` that keeps a second
    /// agent out.
    ///
    /// # Errors
    /// [`StoreError`] with what is wrong with the file or its directory, and what to do.
    pub fn open(path: impl AsRef<Path>, config: StoreConfig) -> Result<Self, StoreError> {
        let path = real_path(path.as_ref())?;
        let is_there = schema::is_there(&path)?;
        // Refuse other programs' files before any file is made next to them. Without a lock file no
        // connection of this process can be open on `path`, so looking at its header drops no lock.
        if is_there && !side_file(&path, ".lock").exists() {
            schema::check_header(&path)?;
        }
        let lock = lock_file(&path, config.mode)?;
        let conn = schema::open_writer(&path, config.mode)?;
        Self::start(path, lock, conn, config)
    }

    fn start(path: PathBuf, lock: Lock, mut conn: Connection, config: StoreConfig) -> Result<Self, StoreError> {
        let sqlite = |e| StoreError::from_sqlite(&path, e);
        let limits = config.limits();
        // When the log starts over, its file is cut back to half of its limit.
        let wal_bytes = i64::try_from(limits.wal_bytes).unwrap_or(i64::MAX);
        conn.pragma_update(None, "journal_size_limit", wal_bytes / 2).map_err(sqlite)?;
        let checkpointer = Checkpointer::start(&mut conn, &path, limits.wal_bytes)?;
        let now_ns = unix_now_ns();
        let last_ns = sessions::last_alive(&conn).map_err(sqlite)?;
        let mut age = age::AgeClock::begin(last_ns, now_ns, steady_now_ns());
        let mut facts = FactsState::load(&conn).map_err(sqlite)?;
        sessions::settle(&conn, facts.newest(now_ns)).map_err(sqlite)?;
        let session = sessions::begin(&conn, now_ns, age.now(now_ns, steady_now_ns())).map_err(sqlite)?;
        facts.gaps = sessions::gaps(&conn).map_err(sqlite)?;
        facts.file_bytes = retention::file_bytes(&conn).map_err(sqlite)?;
        let shared = Arc::new(Shared::new(config.queue_records, facts, session.start_ns));
        if config.hold_for_archive {
            shared.hold.begin();
        }
        let for_writer = Arc::clone(&shared);
        let wal = side_file(&path, "-wal");
        let writer = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || ingest::run(&conn, &for_writer, session, &config, wal, checkpointer, age))
            .map_err(StoreError::Thread)?;
        Ok(Self { path, shared, writer: Mutex::new(Some(writer)), _lock: lock, session_start_ns: session.start_ns })
    }

    /// The store's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A handle for recording.
    #[must_use]
    pub fn ingest(&self) -> Ingest {
        Ingest { shared: Arc::clone(&self.shared) }
    }

    /// A fresh read-only connection for questions. It sees what is committed; it never waits for
    /// the writer. A long read transaction keeps the write-ahead log from being cut back.
    ///
    /// # Errors
    /// [`StoreError`] when the file cannot be opened any more.
    pub fn reader(&self) -> Result<Connection, StoreError> {
        reader::open_own(&self.path)
    }

    /// Commit everything recorded so far and wait for it.
    ///
    /// # Errors
    /// [`StoreError::FlushTimeout`] when it took longer than `timeout` or when commits fail.
    pub fn flush(&self, timeout: Duration) -> Result<(), StoreError> {
        let done = self.shared.queue.flush(timeout);
        let state = self.shared.health().state.clone();
        if done && state == StoreState::Ok {
            return Ok(());
        }
        Err(StoreError::FlushTimeout { waited_ms: timeout.as_millis(), state: format!("{state:?}") })
    }

    /// The store's state, and its counters.
    #[must_use]
    pub fn health(&self) -> Health {
        self.ingest().health()
    }

    /// The store's facts. Cheap: touches no file.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.shared.facts().facts()
    }

    /// What this store knows to be missing from `tables` (tables or views; all when empty) in
    /// `range` (Unix nanoseconds; `i64::MIN..i64::MAX` when the question has no bounds). For an
    /// answer's coverage. Cheap: touches no file.
    #[must_use]
    pub fn notes(&self, tables: &[&str], range: Range<i64>) -> Vec<String> {
        let mut notes = self.shared.facts().notes(tables, &range);
        if let StoreState::Retrying(error) = &self.shared.health().state {
            notes.push(format!("the newest records are not stored: {error}"));
        }
        notes
    }

    /// Notes what this host does not record from now on, and why: the tables concerned and the note
    /// that questions which read them get.
    pub fn not_recorded(&self, gaps: Vec<(Vec<&'static str>, String)>) {
        self.shared.facts().not_recorded = gaps;
    }

    /// Capture records from now on: what happened since the last session ended was not.
    pub fn recording_began(&self, now_ns: i64) {
        self.shared.recording_since_ns.store(now_ns, Ordering::Relaxed);
        self.shared.facts().records_since(self.session_start_ns, now_ns);
    }

    /// Capture ends now: what happens until the next session records is not in the store.
    pub fn recording_ends(&self, now_ns: i64) {
        self.shared.recording_until_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Rows with a time before `until_ns` are in the archive, Unix nanoseconds. Has no effect on a
    /// store that keeps no rows for one.
    pub fn archived(&self, until_ns: i64) {
        self.shared.hold.archived(until_ns, unix_now_ns());
    }

    /// The state of the rows that are kept for an archive.
    #[must_use]
    pub fn archive_backlog(&self) -> ArchiveBacklog {
        self.shared.hold.archive_backlog()
    }

    /// Commit what was recorded, close the session and end the writer. Records handed in later are
    /// counted as dropped. Returns when the writer has ended; a store whose disk fails gives up
    /// after one more attempt.
    pub fn close(&self) {
        self.shared.queue.stop();
        let writer = self.writer.lock().take();
        if let Some(writer) = writer
            && writer.join().is_err()
        {
            tracing::error!("the trace store's writer ended badly");
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

/// A locked file. Unlocked when dropped, also where opening the store fails: closing it alone leaves
/// it locked as long as a process that is just being started has a copy of the descriptor (flock(2)).
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// The path that leads to the file without links: a store has one name, so that a second agent
/// finds its lock.
pub(crate) fn real_path(path: &Path) -> Result<PathBuf, StoreError> {
    use std::os::unix::fs::MetadataExt;
    let io = |e: std::io::Error| StoreError::from_io(path, &e);
    match std::fs::canonicalize(path) {
        Ok(real) => {
            let found = std::fs::metadata(&real).map_err(io)?;
            if found.is_file() && found.nlink() > 1 {
                return Err(StoreError::Linked { path: real });
            }
            Ok(real)
        }
        // (A link that leads nowhere is replaced by the new store.)
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let real = std::fs::canonicalize(above).ok().zip(path.file_name());
            Ok(real.map_or_else(|| path.to_path_buf(), |(above, name)| above.join(name)))
        }
        Err(error) => Err(io(error)),
    }
}

/// Takes the lock file of `path`.
fn lock_file(path: &Path, mode: u32) -> Result<Lock, StoreError> {
    let lock_path = side_file(path, ".lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(mode)
        .open(&lock_path)
        .map_err(|e| StoreError::from_io(path, &e))?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: path.to_path_buf() }),
        Err(TryLockError::Error(e)) => Err(StoreError::from_io(path, &e)),
    }
}

/// `path` with `suffix` appended to its name, as SQLite names its side files.
fn side_file(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}
