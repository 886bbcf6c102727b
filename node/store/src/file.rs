//! A question to one file: no mesh, the same planning, functions and executors.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use query_planner::{
    Answer, Budget, Catalog, ColumnMeta, Local, LocalError, MergePool, PlanCache, RunError, Stop, Value,
};
use rusqlite::Connection;

use crate::{ColumnExecutor, ServedDb, StoreError};
use record::unix_now_ns;

/// Why a file did not answer.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The question is wrong or failed.
    #[error(transparent)]
    Question(#[from] LocalError),
    /// The receiver of the rows failed.
    #[error(transparent)]
    Out(#[from] io::Error),
}

/// Takes rows of an answer, with its columns, as they come; at the end once more, perhaps without
/// rows.
pub type RowsOut<'a> = &'a mut dyn FnMut(&[ColumnMeta], Vec<Vec<Value>>) -> io::Result<()>;

/// An SQLite file kept open for several questions, as an agent keeps its store.
#[derive(Debug)]
pub struct FileReader {
    conn: Connection,
    catalog: Arc<Catalog>,
    plans: PlanCache,
    merges: MergePool,
    path: PathBuf,
}

impl FileReader {
    /// Opens the file at `path`. Its tables and views are those of this moment; its rows are read
    /// for each question.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let mut conn = ServedDb::open(path, Vec::new())?.reader()?;
        let failed = |error| FileError::from(StoreError::from_sqlite_read(path, error));
        // Plain tables of a day are some megabytes.
        let cached = conn.execute_batch("PRAGMA cache_size = -16384");
        cached.map_err(|error| FileError::from(StoreError::from_sqlite_read(path, error)))?;
        let catalog = Arc::new(Catalog::of(&conn, &[]).map_err(LocalError::from)?);
        query_planner::harden(&mut conn).map_err(failed)?;
        let (plans, merges) = (PlanCache::default(), MergePool::default());
        Ok(Self { conn, catalog, plans, merges, path: path.to_path_buf() })
    }

    /// Asks by `deadline`.
    ///
    /// # Errors
    /// The question cannot be planned or answered; when the deadline has passed, for that.
    pub fn ask(&mut self, sql: &str, deadline: Instant) -> Result<Answer, FileError> {
        self.watched(deadline, Budget::default(), |local| Ok(local.answer(sql)?))
    }

    /// How a question is answered: its plan, or, when it has been run by `deadline` (`analyze`),
    /// what that took as well.
    ///
    /// # Errors
    /// As [`FileReader::ask`].
    pub fn explain(&mut self, sql: &str, analyze: bool, deadline: Instant) -> Result<String, FileError> {
        self.watched(deadline, Budget::default(), |local| Ok(local.explain(sql, analyze)?))
    }

    /// Asks by `deadline`, for rows as they come.
    ///
    /// # Errors
    /// As [`FileReader::ask`], and what `out` returned.
    pub fn ask_into(&mut self, sql: &str, deadline: Instant, out: RowsOut<'_>) -> Result<(), FileError> {
        // Only what must be gathered is kept in memory.
        let budget = Budget { node_rows: u64::MAX, node_bytes: u64::MAX, ..Budget::default() };
        self.watched(deadline, budget, |local| {
            let mut failed = None;
            let asked = local.answer_into(sql, &mut |columns, rows| {
                out(columns, rows).map_err(|error| {
                    failed = Some(error);
                    RunError::Stopped("the rows could not be handed on".into())
                })
            });
            match (asked, failed) {
                (_, Some(error)) => Err(error.into()),
                (Err(error), None) => Err(error.into()),
                (Ok(()), None) => Ok(()),
            }
        })
    }

    fn watched<T>(
        &mut self,
        deadline: Instant,
        budget: Budget,
        ask: impl FnOnce(&Local<'_>) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let stop = Stop::at(Some(deadline));
        let looks = stop.clone();
        let watched = self.conn.progress_handler(1_000, Some(move || looks.is_over()));
        watched.map_err(|error| StoreError::from_sqlite_read(&self.path, error))?;
        let _watched = stop.watch(&self.conn);
        ask(&Local {
            conn: &self.conn,
            catalog: &self.catalog,
            plans: &self.plans,
            merges: &self.merges,
            node: "local",
            executor: &ColumnExecutor::new(&|| stop.is_over(), u64::MAX),
            budget,
            now_unix_ns: unix_now_ns(),
            stop: stop.clone(),
        })
    }
}

/// How the SQLite file at `path` answers a question.
///
/// # Errors
/// As [`FileReader::explain`].
pub fn explain(path: &Path, sql: &str, analyze: bool, deadline: Instant) -> Result<String, FileError> {
    FileReader::open(path)?.explain(sql, analyze, deadline)
}

/// Asks the SQLite file at `path` by `deadline`, for rows as they come.
///
/// # Errors
/// As [`FileReader::ask_into`].
pub fn ask_into(path: &Path, sql: &str, deadline: Instant, out: RowsOut<'_>) -> Result<(), FileError> {
    FileReader::open(path)?.ask_into(sql, deadline, out)
}

/// Asks the SQLite file at `path` by `deadline`.
///
/// # Errors
/// The file cannot be read, the question cannot be planned or answered; when the deadline has
/// passed, for that.
pub fn ask(path: &Path, sql: &str, deadline: Instant) -> Result<Answer, FileError> {
    FileReader::open(path)?.ask(sql, deadline)
}
