//! A question to one file: no mesh, the same planning, functions and executors.

use std::path::Path;
use std::time::Instant;

use query_planner::{Answer, Budget, LocalError};

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

/// Asks the SQLite file at `path` by `deadline`.
///
/// # Errors
/// The file cannot be read, the question cannot be planned or answered; when the deadline has passed, for that.
pub fn ask(path: &Path, sql: &str, deadline: Instant) -> Result<Answer, FileError> {
    let mut reader = ServedDb::open(path, Vec::new())?.reader()?;
    let stop = move || Instant::now() >= deadline;
    reader.progress_handler(4_000, Some(stop)).map_err(|error| StoreError::from_sqlite_read(path, error))?;
    let columns = ColumnExecutor::new(&stop, u64::MAX);
    let budget = Budget::default();
    Ok(query_planner::local_with(sql, &mut reader, "local", &columns, &budget, unix_now_ns())?)
}
