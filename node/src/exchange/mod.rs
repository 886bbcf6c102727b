//! Rows out of a store into other forms, and other programs' recorded traces into a store.
//!
//! Owns `rankmesh export` and `rankmesh import`. Does not own the store's own file (`crate::store`) nor how answers of
//! questions are printed (`crate::output`).
//!
//! | module | owns |
//! |---|---|
//! | `export` | what is exported, from which snapshot |
//! | `tables` | which tables a file has, their columns and times |
//! | `plain`, `csv`, `parquet` | one form each |

mod csv;
mod export;
mod parquet;
mod plain;
mod tables;

pub use export::{Export, ExportError, Exported, export};

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A new file that only the owner reads: rows name processes, users, jobs and addresses.
fn new_file(path: &Path) -> Result<File, ExportError> {
    // A part of an export that was killed is nobody's.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(ExportError::Write { path: path.to_owned(), source: error });
        }
        _ => {}
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| ExportError::Write { path: path.to_owned(), source })
}
