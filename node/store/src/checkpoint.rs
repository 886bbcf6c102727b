//! Owns cutting the write-ahead log back: on a thread and a connection of its own, so that a commit
//! writes to the log and waits for no disk. Does not own when retention frees pages (`retention`),
//! nor the commits (`ingest`). The log starts over at the first commit that finds all of it in the
//! main file. At an ordinary pace a pass in the background ends between two commits, and that is
//! all. At full speed there is always a commit during a pass: when the log reaches its limit the
//! writer waits for one pass ([`Checkpointer::settle`]), which finds little left to do because
//! every pass before it has forced its pages to the disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rusqlite::{Connection, OpenFlags, ffi};

use super::error::StoreError;

/// Pause after a pass that could not finish because of a reader.
const PAUSE: Duration = Duration::from_millis(250);
/// Longest wait of the writer for a pass: beyond, the disk is so slow that a longer log is the
/// lesser evil.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
struct State {
    /// Passes asked for and ended, by number.
    wanted: u64,
    done: u64,
    /// Whether the last pass put all of the log into the main file.
    complete: bool,
    truncate: bool,
    /// The writer waits.
    urgent: bool,
    stop: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    ended: Condvar,
    /// Length of the log at the last commit; the rest of its file is of earlier rounds.
    log_bytes: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Checkpoints one store's log. Ends its thread when dropped.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// From this length of the log on a pass is worth while.
    start_bytes: u64,
    /// From this length on the writer waits.
    limit_bytes: u64,
    longest_wait: Duration,
    in_vain: Option<Instant>,
}

impl Checkpointer {
    /// Take checkpoints over from `writer`, whose log in front of the file at `path` may reach
    /// about `limit_bytes`.
    ///
    /// # Errors
    /// The file cannot be opened a second time, or no thread can be started.
    pub(crate) fn start(writer: &mut Connection, path: &Path, limit_bytes: u64) -> Result<Self, StoreError> {
        let sqlite = |e| StoreError::from_sqlite(path, e);
        let page_bytes: i64 = writer.pragma_query_value(None, "page_size", |r| r.get(0)).map_err(sqlite)?;
        // A frame of the log is a page and 24 bytes
        // (<https://sqlite.org/fileformat2.html#walformat>).
        let frame_bytes = page_bytes.unsigned_abs() + 24;
        let shared = Arc::new(Shared::default());
        let counted = Arc::clone(&shared);
        // In place of the hook that SQLite checkpoints from by itself.
        let hook = move |_: &mut rusqlite::hooks::Wal, pages: std::ffi::c_int| {
            counted.log_bytes.store(u64::try_from(pages).unwrap_or(0) * frame_bytes, Ordering::Relaxed);
            Ok(())
        };
        writer.wal_hook(Some(hook)).map_err(sqlite)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(path, flags).map_err(sqlite)?;
        conn.busy_timeout(Duration::from_millis(20)).map_err(sqlite)?;
        conn.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -64;")
            .map_err(sqlite)?;
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("store-log".to_owned())
            .spawn(move || run(&conn, &for_thread))
            .map_err(StoreError::Thread)?;
        Ok(Self {
            shared,
            thread: Some(thread),
            start_bytes: (limit_bytes / 8).min(4 << 20),
            limit_bytes,
            longest_wait: LONGEST_WAIT,
            in_vain: None,
        })
    }

    /// After a commit: begin a pass when there is something to do. Waits for nothing.
    pub(crate) fn nudge(&self) {
        if self.shared.log_bytes.load(Ordering::Relaxed) < self.start_bytes {
            return;
        }
        let mut state = self.shared.lock();
        if state.wanted == state.done {
            state.wanted += 1;
            self.shared.wake.notify_one();
        }
    }

    /// Between commits: wait for a pass if the log has reached its limit. Returns how long that
    /// took.
    pub(crate) fn settle(&mut self) -> Duration {
        let began = Instant::now();
        let recently = self.in_vain.is_some_and(|at| at.elapsed() < PAUSE);
        if recently || self.shared.log_bytes.load(Ordering::Relaxed) < self.limit_bytes {
            return Duration::ZERO;
        }
        let mut state = self.shared.lock();
        // A pass that has started already may not see the last commits: another one then.
        state.wanted += 1;
        state.urgent = true;
        let mine = state.wanted;
        self.shared.wake.notify_one();
        while state.done < mine && began.elapsed() < self.longest_wait {
            let left = self.longest_wait.saturating_sub(began.elapsed());
            self.shared.ended.wait_for(&mut state, left);
        }
        // A reader may keep the rest of the log for as long as its question takes: ingest goes on
        // meanwhile.
        let complete = state.done >= mine && state.complete;
        drop(state);
        self.in_vain = (!complete).then(Instant::now);
        began.elapsed()
    }

    /// Ask for the log's file to be cut back to nothing, in the background. Commits wait while that
    /// goes on, so only for a store that has nothing to commit.
    pub(crate) fn truncate(&self) {
        let mut state = self.shared.lock();
        state.truncate = true;
        if state.wanted == state.done {
            state.wanted += 1;
            self.shared.wake.notify_one();
        }
    }

    /// End the thread; its connection is closed afterwards.
    pub(crate) fn stop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that cuts the store's log back ended badly");
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(conn: &Connection, shared: &Shared) {
    let mut before = 0;
    let mut state = shared.lock();
    loop {
        while !state.stop && state.wanted == state.done {
            shared.wake.wait(&mut state);
        }
        if state.stop {
            return;
        }
        let truncate = std::mem::take(&mut state.truncate);
        state.urgent = false;
        // The pass sees every commit made up to now; later requests get the next one.
        let ended = state.wanted;
        drop(state);
        let (complete, copied) = pass(conn, truncate).unwrap_or_else(|error| {
            tracing::debug!(%error, "the write-ahead log could not be checkpointed now");
            (false, before)
        });
        state = shared.lock();
        state.done = ended;
        state.complete = complete;
        shared.ended.notify_all();
        // What blocks the log (a reader, a full disk) does so for a while. A writer that waits has
        // a limit of its own.
        let until = Instant::now() + PAUSE;
        while !complete && copied == before && !state.stop && !state.urgent {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            shared.wake.wait_for(&mut state, left);
        }
        before = copied;
    }
}

/// Copy what can be copied from the log to the main file. Whether that was all of it, and how many
/// frames of the log are there now.
fn pass(conn: &Connection, truncate: bool) -> rusqlite::Result<(bool, i64)> {
    let mode = if truncate { "TRUNCATE" } else { "PASSIVE" };
    let (busy, log, copied): (i64, i64, i64) =
        conn.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
    let complete = busy == 0 && log == copied;
    if !complete && copied > 0 {
        // SQLite forces the main file to the disk only when the whole log is in it. Not to leave
        // all of that to the pass that the writer waits for, do it now.
        sync_main_file(conn);
    }
    Ok((complete, copied))
}

/// Force the main file to the disk through SQLite's own handle: another descriptor would drop the
/// process's locks on the file when closed.
fn sync_main_file(conn: &Connection) {
    let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
    // SAFETY: the connection is open and used by this thread alone; SQLITE_FCNTL_FILE_POINTER
    // stores the pointer to its main file
    // (<https://sqlite.org/c3ref/c_fcntl_begin_atomic_write.html>), which lives as long as it does.
    unsafe {
        let to = std::ptr::from_mut(&mut file).cast();
        let got = ffi::sqlite3_file_control(conn.handle(), c"main".as_ptr(), ffi::SQLITE_FCNTL_FILE_POINTER, to);
        if got != ffi::SQLITE_OK || file.is_null() || (*file).pMethods.is_null() {
            return;
        }
        if let Some(sync) = (*(*file).pMethods).xSync {
            sync(file, ffi::SQLITE_SYNC_NORMAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wal_store(path: &Path) -> Connection {
        let conn = Connection::open(path).unwrap();
        conn.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE t (a BLOB)").unwrap();
        conn
    }

    #[test]
    fn the_log_stays_short_under_a_writer_that_never_rests() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let mut writer = wal_store(&path);
        let limit = 256 << 10;
        let mut checkpointer = Checkpointer::start(&mut writer, &path, limit).unwrap();
        checkpointer.longest_wait = Duration::from_secs(60);
        let mut longest = 0;
        for _ in 0..300 {
            writer.execute("INSERT INTO t VALUES (randomblob(20000))", []).unwrap();
            checkpointer.nudge();
            checkpointer.settle();
            longest = longest.max(std::fs::metadata(dir.path().join("s.db-wal")).unwrap().len());
        }
        assert!(longest < 2 * limit, "the log grew to {longest}");
        let rows: i64 = writer.query_row("SELECT count(*) FROM t", [], |r| r.get(0)).unwrap();
        assert_eq!(rows, 300);
    }

    #[test]
    fn a_reader_in_the_way_delays_and_never_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let mut writer = wal_store(&path);
        writer.execute("INSERT INTO t VALUES (zeroblob(10))", []).unwrap();
        let reader = Connection::open(&path).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM t").unwrap();
        let seen: i64 = reader.query_row("SELECT count(*) FROM t", [], |r| r.get(0)).unwrap();
        let mut checkpointer = Checkpointer::start(&mut writer, &path, 64 << 10).unwrap();
        for _ in 0..50 {
            writer.execute("INSERT INTO t VALUES (randomblob(20000))", []).unwrap();
            checkpointer.nudge();
            checkpointer.settle();
        }
        let wal = || std::fs::metadata(dir.path().join("s.db-wal")).unwrap().len();
        assert!(wal() > 500_000, "{}", wal());
        reader.execute_batch("COMMIT").unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while wal() > 0 {
            assert!(Instant::now() < deadline, "the log stays at {}", wal());
            checkpointer.truncate();
            std::thread::yield_now();
        }
        assert_eq!(seen, 1);
    }
}
