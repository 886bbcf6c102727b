//! Why a path is not taken.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a path is not taken. The messages name the component at fault and say what to do.
#[derive(Debug, Error)]
pub enum Refused {
    /// Somebody else owns a component.
    #[error("{} belongs to user {owner}, who may put anything there: {}", path.display(), what_to_do(*is_asked_for))]
    Owner {
        /// The component.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// It is the path that was asked for, not a directory above it.
        is_asked_for: bool,
    },
    /// Others may write to a component.
    #[error("{} may be changed by {by}: `chmod {change}` it, or use another directory", path.display())]
    Writable {
        /// The component.
        path: PathBuf,
        /// Who may: "everybody" or "group N".
        by: String,
        /// The change of mode that mends it.
        change: &'static str,
    },
    /// Others may look into what is for one user alone.
    #[error("{} is there and others may use it: remove it, or `chmod 700` it if it is yours", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
    },
    /// What is there is of another kind.
    #[error("{} is there and is no {wanted}", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
        /// "directory" or "file".
        wanted: &'static str,
    },
    /// Links lead on and on.
    #[error("{} leads through more than 40 symbolic links", path.display())]
    Links {
        /// The path.
        path: PathBuf,
    },
    /// A file has more bytes than it can have.
    #[error("{} is larger than {most} bytes", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// The most that are read.
        most: u64,
    },
    /// The system says no.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// "opening", "making" …
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl Refused {
    /// Whether nothing is there.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source: source.into() }
    }
}

fn what_to_do(is_asked_for: bool) -> &'static str {
    if is_asked_for { "remove it, or use another" } else { "use a directory elsewhere" }
}
