//! Rows out of a store into other forms, and other programs' recorded traces into a store.
//!
//! Owns `rankmesh export` and `rankmesh import`. Does not own the store's own file (the rest of
//! this crate) nor how answers of questions are printed (the command line).
//!
//! | module | owns |
//! |---|---|
//! | `export` | what is exported, from which snapshot |
//! | `tables` | which tables a file has, their columns and times |
//! | `export::{plain, csv, parquet}` | one form each |
//! | `hours` | hours of a store for an archive: what there is of each, its rows as Parquet |
//! | `error` | why an export or import cannot be done |
//! | `import` | a recorded foreign trace made into a store; `ingero.sql`: one program's tables in a store's |

mod error;
mod export;
mod hours;
mod import;
mod tables;

pub use error::ExchangeError;
pub use export::{Export, Exported, export};
pub use hours::{Hours, HoursError, NotArchived, RowsOf, TableWritten};
pub use import::{Import, Imported, import};

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A new file that only the owner reads: rows name processes, users, jobs and addresses.
fn new_file(path: &Path) -> std::io::Result<File> {
    // A part left by a process that was killed belongs to none.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Has `fill` write a file that appears as `out` only when it is complete: it grows under another
/// name, and nothing of it is left after an error. `failed` makes the error where it could not be
/// given its name.
fn write_complete<T, E>(
    out: &Path,
    failed: impl FnOnce(std::io::Error) -> E,
    fill: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    let mut name = out.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    match fill(&part) {
        Ok(filled) => std::fs::rename(&part, out).map(|()| filled).map_err(failed),
        Err(error) => {
            // What cannot be removed is not worth hiding the error for.
            let _ = std::fs::remove_file(&part);
            Err(error)
        }
    }
}
