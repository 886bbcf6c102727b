//! The local socket's file: how a server takes its place.
//!
//! [`LocalRequest`](crate::LocalRequest)s travel on it; who may connect is the server's to decide.

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::net::UnixListener;

/// The socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Its directory cannot be made.
    #[error("creating {}", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A server listens there.
    #[error("another agent listens there; stop it, take its place with --replace, or give --socket PATH")]
    InUse,
    /// Another file is there.
    #[error("the path exists and is not a socket")]
    NotASocket,
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Opens the socket, for its owner alone. A socket file that nobody listens on (a killed agent's)
/// is replaced.
///
/// # Errors
/// Another server listens there, or the directory cannot be made or written.
pub fn bind(path: &Path) -> Result<UnixListener, BindError> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|source| BindError::Directory { directory: directory.to_owned(), source })?;
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(BindError::InUse);
    }
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => return Err(BindError::NotASocket),
        Err(_) => {}
    }
    // Under another name until somebody listens: one that refuses calls is taken for a dead agent's.
    static OPENED: AtomicU32 = AtomicU32::new(0);
    let number = OPENED.fetch_add(1, Ordering::Relaxed);
    let unseen = path.with_file_name(format!(".{}-{number}", std::process::id()));
    let bound = UnixListener::bind(&unseen).and_then(|listener| {
        std::fs::set_permissions(&unseen, std::fs::Permissions::from_mode(0o600))?;
        std::fs::hard_link(&unseen, path)?;
        Ok(listener)
    });
    let _ = std::fs::remove_file(&unseen);
    bound.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => BindError::InUse,
        _ => BindError::Io(error),
    })
}
