//! What can go wrong with a store file, each with what to do about it. Query errors are SQLite's
//! own and not here.

use std::fs::Metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// A store or a served file cannot be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file is not an SQLite database (or it is encrypted, which looks the same).
    #[error(
        "{path} is not an SQLite database (or it is encrypted): choose another file, or move it away to start a new store"
    )]
    NotADatabase {
        /// The file.
        path: PathBuf,
    },
    /// Rows that are not in a store's file cannot be read.
    #[error("{0}")]
    External(String),
    /// The file has no content, so there is nothing to read.
    #[error("{path} is empty: it holds no database; choose another file")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The path leads to something that is no regular file.
    #[error("{path} is {what}, not a file: give the path of a store's file")]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// "a directory", "a pipe", …
        what: &'static str,
    },
    /// The file is another program's database.
    #[error(
        "{path} is a database, but not a rankmesh store: to serve it as it is, give it to --serve-db, not to --store"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a newer version.
    #[error(
        "{path} has schema version {found}, this rankmesh knows versions up to {known}: \
         use a newer rankmesh, or another file"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Version in the file.
        found: i64,
        /// Highest version this build knows.
        known: i64,
    },
    /// Another process records into the file.
    #[error(
        "{path} is in use by another agent: stop that one or take its place (up --replace), or give --store another file"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file has several names.
    #[error("{path} has another name, too (a hard link), by which a second agent could write it: remove that")]
    Linked {
        /// The file.
        path: PathBuf,
    },
    /// The file does not exist.
    #[error("{path} does not exist: check the path")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file or its directory cannot be read or written.
    #[error("{path}: {reason}: check that the directory exists and that this user may write there")]
    NotWritable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The file cannot be read.
    #[error("{path}: {reason}: check that it is a file and that this user may read it")]
    NotReadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The disk is full.
    #[error("{path}: the disk is full: make room, or give --store a file on another disk")]
    DiskFull {
        /// The file.
        path: PathBuf,
    },
    /// SQLite found the file damaged.
    #[error(
        "{path} is damaged ({reason}): `sqlite3 {path} .recover` may rescue rows; move it away to start a new store"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        reason: String,
    },
    /// The file has changes that only its writer can merge, and serving it must not write.
    #[error(
        "{path} was not closed cleanly ({reason}): open it once with the program that wrote it (or `sqlite3 {path} .tables`), or serve a copy made with `sqlite3 {path} '.backup COPY'`"
    )]
    Unclean {
        /// The file.
        path: PathBuf,
        /// Which leftover file was found.
        reason: String,
    },
    /// A flush did not finish in time.
    #[error("the store did not commit within {waited_ms} ms ({state})")]
    FlushTimeout {
        /// How long was waited.
        waited_ms: u128,
        /// The store's state then.
        state: String,
    },
    /// The writer thread could not be started.
    #[error("cannot start the store's thread: {0}")]
    Thread(std::io::Error),
    /// Any other error of SQLite.
    #[error("{path}: {source}")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
}

impl StoreError {
    /// A file that begins as an SQLite database, and whose header SQLite refuses all the same.
    pub(crate) fn or_bad_header(self) -> Self {
        match self {
            Self::NotADatabase { path } => {
                Self::Damaged { path, reason: "its header makes no sense, or it is encrypted".to_owned() }
            }
            other => other,
        }
    }

    /// Turn SQLite's answer for `path` into advice.
    pub(crate) fn from_sqlite(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_path_buf();
        let reason = source.to_string();
        // The index of the log, a mapped file, could not be given its size.
        if source.sqlite_error().is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE) {
            return Self::DiskFull { path };
        }
        match source.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::NotADatabase { path },
            Some(ErrorCode::DatabaseCorrupt) => Self::Damaged { path, reason },
            Some(ErrorCode::DiskFull) => Self::DiskFull { path },
            Some(
                ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::SystemIoFailure,
            ) => Self::NotWritable { path, reason },
            _ => Self::Sqlite { path, source },
        }
    }

    /// The same for a file that is only read.
    pub(crate) fn from_sqlite_read(path: &Path, source: rusqlite::Error) -> Self {
        match Self::from_sqlite(path, source) {
            Self::NotWritable { path, reason } => Self::NotReadable { path, reason },
            other => other,
        }
    }

    /// Refuse what is no regular file before it is opened: opening a pipe would wait for its other
    /// end.
    pub(crate) fn unless_regular(path: &Path, meta: &Metadata) -> Result<(), Self> {
        let kind = meta.file_type();
        let what = match () {
            () if kind.is_file() => return Ok(()),
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a pipe",
            () if kind.is_socket() => "a socket",
            () => "a device",
        };
        Err(Self::NotAFile { path: path.to_path_buf(), what })
    }

    /// A system error on a file that is to be written.
    pub(crate) fn from_io(path: &Path, error: &std::io::Error) -> Self {
        let path = path.to_path_buf();
        match error.kind() {
            std::io::ErrorKind::StorageFull => Self::DiskFull { path },
            _ => Self::NotWritable { path, reason: error.to_string() },
        }
    }
}
