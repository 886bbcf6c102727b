//! Owns columns that lie elsewhere than in segments of a file of ours (in files of an archive):
//! whoever makes a connection whose frequent tables are virtual ones of its own gives it their
//! columns, and typed questions are answered from these as from segments.

use std::ffi::{CStr, c_void};
use std::fmt::Debug;
use std::sync::Arc;

use rusqlite::{Connection, ffi};

use super::encode::{Encoded, Entries};
use crate::StoreError;

/// The module of the virtual tables over an archive.
pub const ARCHIVED_MODULE: &CStr = c"rankmesh_history";
/// The name of the columns, among what others keep with a connection.
const NAME: &CStr = c"rankmesh_columns_elsewhere";

/// Columns of a connection's frequent tables.
pub trait ColumnsElsewhere: Send + Sync {
    /// The parts of a table that may hold rows from the first to the second time; none where not
    /// all of its rows can be had so: then SQLite reads the virtual table.
    ///
    /// # Errors
    /// [`StoreError::External`]: they cannot be read.
    fn parts(&self, table: &str, times: (i64, i64)) -> Result<Option<Vec<Arc<dyn Part>>>, StoreError>;
}

/// Some rows of a table.
pub trait Part: Debug + Send + Sync {
    /// How many; some ten thousand at most, since a column is in memory as a whole.
    fn rows(&self) -> usize;
    /// The columns it has. Those that the table has and a part has not are NULL.
    fn columns(&self) -> Vec<PartColumn>;
    /// A column's values, one for each row.
    ///
    /// # Errors
    /// [`StoreError::External`]: it cannot be read, or is not what the table says.
    fn read(&self, column: &str) -> Result<PartValues, StoreError>;
}

/// What is known of a part's column before it is read.
#[derive(Debug, Clone)]
pub struct PartColumn {
    /// Its name.
    pub name: String,
    /// The least and the greatest integer; none where all are NULL.
    pub range: Option<(i64, i64)>,
    /// Whether a value may be NULL.
    pub has_null: bool,
}

/// A column's values.
#[derive(Debug)]
pub enum PartValues {
    /// Integers, and for each whether it is NULL (empty where none is).
    Integers(Vec<i64>, Vec<bool>),
    /// Texts or bytes, all different, and for each row the place of its own; NULL beyond the last.
    Bytes(Vec<Vec<u8>>, Vec<i64>),
}

impl PartValues {
    pub(super) fn encoded(self) -> Encoded {
        match self {
            Self::Integers(values, nulls) => Encoded::integers(values, &nulls),
            Self::Bytes(entries, codes) => Encoded::codes(Arc::new(Entries::Texts(entries)), codes),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Integers(values, _) => values.len(),
            Self::Bytes(_, codes) => codes.len(),
        }
    }
}

type Kept = Arc<dyn ColumnsElsewhere>;

/// Gives a connection the columns of its frequent tables.
///
/// # Errors
/// SQLite has no memory for it.
pub fn register_columns(conn: &Connection, columns: Arc<dyn ColumnsElsewhere>) -> rusqlite::Result<()> {
    let kept: *mut Kept = Box::into_raw(Box::new(columns));
    // SAFETY: the handle is the connection's, which is open; SQLite drops what is kept with the
    // connection, and where it fails at once.
    let done = unsafe { ffi::sqlite3_set_clientdata(conn.handle(), NAME.as_ptr(), kept.cast(), Some(drop_kept)) };
    match done {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
    }
}

/// The columns that a connection was given.
pub(super) fn columns(conn: &Connection) -> Option<Arc<dyn ColumnsElsewhere>> {
    // SAFETY: the handle is the connection's, which is open. What is kept under the name is what
    // `register_columns` has put there, and lives as long as the connection.
    unsafe {
        let kept: *const Kept = ffi::sqlite3_get_clientdata(conn.handle(), NAME.as_ptr()).cast();
        kept.as_ref().map(Arc::clone)
    }
}

/// # Safety
/// `kept` is from `Box::into_raw` and not used afterwards.
unsafe extern "C" fn drop_kept(kept: *mut c_void) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(kept.cast::<Kept>()) });
}
