//! Directories and files near which other users may write (`/tmp`, `/dev/shm`, where a job was
//! submitted): taken only where nobody but this user and root can have put them there, or can put
//! others in their place.
//!
//! A path is walked from the root, one component at a time, each opened without following it
//! (`walk`). Every directory on the way must be root's or the user's and closed to other writers,
//! or have the sticky bit; links are followed where they are root's or the user's. What is at the
//! end must be the user's. From then on work goes through the open directory, not its name.
//!
//! Not owned here: what the files mean, and which of them a command wants.

mod error;
mod walk;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

pub use error::Refused;
use walk::{Owners, Reached};

/// An open directory that only one user and root can change.
#[derive(Debug)]
pub struct Dir {
    reached: Reached,
    owners: Owners,
}

impl Dir {
    /// The directory at `path`, this user's or root's.
    ///
    /// # Errors
    /// There is none, or somebody else can change it or what leads there.
    pub fn open(path: &Path) -> Result<Self, Refused> {
        Self::open_of(path, geteuid().as_raw())
    }

    /// The directory at `path`, of user `uid` or root. For root, who looks for what is another
    /// user's.
    ///
    /// # Errors
    /// As [`Dir::open`].
    pub fn open_of(path: &Path, uid: u32) -> Result<Self, Refused> {
        let owners = Owners { user: uid };
        Self::taken(walk::walk(path, owners)?, owners)
    }

    /// The directory at `path` that somebody has asked for by name, to read or write data: for
    /// root it may be of any one user, in that user's directories. Not for what is executed.
    ///
    /// # Errors
    /// As [`Dir::open`].
    pub fn open_named(path: &Path) -> Result<Self, Refused> {
        Self::open_of(path, named_owner(path))
    }

    /// The directory at `path`, made with mode 0700 where it is missing. Nobody else may look into
    /// it.
    ///
    /// # Errors
    /// It cannot be made; or what is there is another's, or open to others.
    pub fn make(path: &Path) -> Result<Self, Refused> {
        let (above, name) = parent(path)?;
        let owners = Owners { user: geteuid().as_raw() };
        let above = walk::walk(&above, owners)?;
        make_in(&above, &name, owners)
    }

    /// As [`Dir::make`], with all that is missing above it.
    ///
    /// # Errors
    /// As [`Dir::make`].
    pub fn make_all(path: &Path) -> Result<Self, Refused> {
        let (above, _) = parent(path)?;
        let is_missing = walk::walk(&above, Owners { user: geteuid().as_raw() }).is_err_and(|why| why.is_missing());
        if is_missing {
            Self::make_all(&above)?;
        }
        Self::make(path)
    }

    fn taken(reached: Reached, owners: Owners) -> Result<Self, Refused> {
        if walk::kind(&reached.found) != SFlag::S_IFDIR {
            return Err(Refused::Kind { path: reached.path, wanted: "directory" });
        }
        walk::holds(&reached, owners)?;
        Ok(Self { reached, owners })
    }

    /// This directory, if nobody else may look into it.
    ///
    /// # Errors
    /// Others may.
    pub fn private(self) -> Result<Self, Refused> {
        match walk::is_private(&self.reached.found) {
            true => Ok(self),
            false => Err(Refused::Open { path: self.reached.path }),
        }
    }

    /// Its path, without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.reached.path
    }

    /// Its owner.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.reached.found.st_uid
    }

    /// A directory in it.
    ///
    /// # Errors
    /// As [`Dir::open`]; a link is none.
    pub fn dir(&self, name: impl AsRef<OsStr>) -> Result<Self, Refused> {
        let name = name.as_ref();
        Self::taken(walk::enter(&self.reached, name, &self.path().join(name))?, self.owners)
    }

    /// As [`Dir::make`], in it.
    ///
    /// # Errors
    /// As [`Dir::make`].
    pub fn make_dir(&self, name: impl AsRef<OsStr>) -> Result<Self, Refused> {
        make_in(&self.reached, name.as_ref(), self.owners)
    }

    /// Opens a regular file in it for reading.
    ///
    /// # Errors
    /// There is none; it is another's, or others may write to it.
    pub fn file(&self, name: impl AsRef<OsStr>) -> Result<File, Refused> {
        self.file_with(name.as_ref(), OFlag::O_RDONLY, 0)
    }

    /// Opens a regular file in it for writing at its end; made with `mode` where it is missing.
    ///
    /// # Errors
    /// As [`Dir::file`].
    pub fn append(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<File, Refused> {
        self.file_with(name.as_ref(), OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT, mode)
    }

    fn file_with(&self, name: &OsStr, flags: OFlag, mode: u32) -> Result<File, Refused> {
        let path = self.path().join(name);
        // Not blocking: a FIFO must not hold us up before it is seen to be one.
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let fd = openat(self.as_fd(), name, flags, Mode::from_bits_truncate(mode)).map_err(|error| match error {
            Errno::ELOOP => Refused::Kind { path: path.clone(), wanted: "file" },
            error => Refused::io("opening", &path)(error),
        })?;
        let found = nix::sys::stat::fstat(&fd).map_err(Refused::io("looking at", &path))?;
        if walk::kind(&found) != SFlag::S_IFREG {
            return Err(Refused::Kind { path, wanted: "file" });
        }
        let reached = Reached { fd, found, path };
        walk::holds(&reached, self.owners)?;
        Ok(File::from(reached.fd))
    }

    /// The contents of a file in it, at most `most` bytes.
    ///
    /// # Errors
    /// As [`Dir::file`]; it is larger.
    pub fn read(&self, name: impl AsRef<OsStr>, most: u64) -> Result<Vec<u8>, Refused> {
        let name = name.as_ref();
        let path = self.path().join(name);
        let mut contents = vec![];
        let read = self.file(name)?.take(most + 1).read_to_end(&mut contents);
        read.map_err(Refused::io("reading", &path))?;
        if contents.len() as u64 > most { Err(Refused::Size { path, most }) } else { Ok(contents) }
    }

    /// Writes a file in it, which appears complete or not at all, in the place of what had its
    /// name.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn replace(&self, name: impl AsRef<OsStr>, contents: &[u8], mode: u32) -> Result<(), Refused> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = name.as_ref();
        let path = self.path().join(name);
        let mut new = OsStr::new(".").to_owned();
        new.push(name);
        new.push(format!(".{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(self.as_fd(), new.as_os_str(), flags, Mode::from_bits_truncate(mode));
        let mut file = File::from(fd.map_err(Refused::io("writing", &path))?);
        let written = file.write_all(contents).map_err(Refused::io("writing", &path));
        let placed = written.and_then(|()| {
            renameat(self.as_fd(), new.as_os_str(), self.as_fd(), name).map_err(Refused::io("writing", &path))
        });
        if placed.is_err() {
            let _ = unlinkat(self.as_fd(), new.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
        placed
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reached.fd.as_fd()
    }
}

/// Opens a regular file for reading that somebody has asked for by name, as [`Dir::open_named`]: its
/// last link is followed, too, where it is root's or its user's (as in volumes of Kubernetes).
///
/// # Errors
/// There is none, or somebody else can change it or what leads there.
pub fn file_named(path: &Path) -> Result<File, Refused> {
    let owners = Owners { user: named_owner(path) };
    let reached = walk::walk(path, owners)?;
    if walk::kind(&reached.found) != SFlag::S_IFREG {
        return Err(Refused::Kind { path: reached.path, wanted: "file" });
    }
    walk::holds(&reached, owners)?;
    // What was looked at, whatever the name leads to by now.
    let same = format!("/proc/self/fd/{}", reached.fd.as_raw_fd());
    File::open(same).map_err(Refused::io("opening", &reached.path))
}

/// Looks at a program or library that is going to be executed: a regular file of this user or root
/// that nobody else can change.
///
/// # Errors
/// There is none, or somebody else can change it or what leads there.
pub fn program(path: &Path) -> Result<(), Refused> {
    let owners = Owners { user: geteuid().as_raw() };
    let reached = walk::walk(path, owners)?;
    if walk::kind(&reached.found) != SFlag::S_IFREG {
        return Err(Refused::Kind { path: reached.path, wanted: "file" });
    }
    walk::holds(&reached, owners)
}

/// Whether what this user makes in a directory stays hers: nobody else can put something in its
/// place.
///
/// # Errors
/// Somebody can, or there is no such directory.
pub fn place(path: &Path) -> Result<(), Refused> {
    let owners = Owners { user: geteuid().as_raw() };
    walk::passable(&walk::walk(path, owners)?, owners)
}

/// Whom a path is of that somebody has asked for by name: its owner where root asks, else this
/// user.
fn named_owner(path: &Path) -> u32 {
    let own = geteuid();
    let found = nix::sys::stat::fstatat(nix::fcntl::AT_FDCWD, path, AtFlags::empty());
    found.ok().filter(|_| own.is_root()).map_or(own.as_raw(), |found| found.st_uid)
}

/// Makes an entry of a directory, for its user alone, or takes the one that is there when it is
/// such a one.
fn make_in(above: &Reached, name: &OsStr, owners: Owners) -> Result<Dir, Refused> {
    let path = above.path.join(name);
    walk::passable(above, owners)?;
    match mkdirat(above.fd.as_fd(), name, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(error) => return Err(Refused::io("making", &path)(error)),
    }
    Dir::taken(walk::enter(above, name, &path)?, owners)?.private()
}

/// The directory above a path, and the last name.
fn parent(path: &Path) -> Result<(PathBuf, std::ffi::OsString), Refused> {
    let absolute = std::path::absolute(path).map_err(Refused::io("finding", path))?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(above), Some(name)) => Ok((above.to_owned(), name.to_owned())),
        _ => Err(Refused::Kind { path: path.to_owned(), wanted: "directory of its own" }),
    }
}

#[cfg(test)]
mod tests;
