//! A question to one file: no mesh, the same planning, functions and executors.

use std::path::{Path, PathBuf};
use std::time::Instant;

use query_planner::{Answer, Budget, Catalog, LocalError};
use rusqlite::Connection;

use crate::now::unix_now_ns;
use crate::store::{ColumnExecutor, ServedDb, StoreError};

/// Why a file did not answer.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The question is wrong or failed.
    #[error(transparent)]
    Question(#[from] LocalError),
}

/// An SQLite file kept open for several questions, as an agent keeps its store.
#[derive(Debug)]
pub struct FileReader {
    conn: Connection,
    catalog: Catalog,
    path: PathBuf,
}

impl FileReader {
    /// Opens the file at `path`. Its tables and views are those of this moment; its rows are read anew for each question.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let mut conn = ServedDb::open(path, Vec::new())?.reader()?;
        let failed = |error| FileError::from(StoreError::from_sqlite_read(path, error));
        let catalog = Catalog::of(&conn, &[]).map_err(LocalError::from)?;
        query_planner::harden(&mut conn).map_err(failed)?;
        Ok(Self { conn, catalog, path: path.to_path_buf() })
    }

    /// Asks by `deadline`.
    ///
    /// # Errors
    /// The question cannot be planned or answered; when the deadline has passed, for that.
    pub fn ask(&mut self, sql: &str, deadline: Instant) -> Result<Answer, FileError> {
        let stop = move || Instant::now() >= deadline;
        let watched = self.conn.progress_handler(4_000, Some(stop));
        watched.map_err(|error| StoreError::from_sqlite_read(&self.path, error))?;
        let columns = ColumnExecutor::new(&stop, u64::MAX);
        let budget = Budget::default();
        let (conn, catalog) = (&self.conn, &self.catalog);
        Ok(query_planner::local_again(sql, conn, catalog, "local", &columns, &budget, unix_now_ns())?)
    }
}

/// Asks the SQLite file at `path` by `deadline`.
///
/// # Errors
/// The file cannot be read, the question cannot be planned or answered; when the deadline has passed, for that.
pub fn ask(path: &Path, sql: &str, deadline: Instant) -> Result<Answer, FileError> {
    FileReader::open(path)?.ask(sql, deadline)
}
