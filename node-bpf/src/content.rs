//! What of a file changes when it is written to. Probes lie at places in its code, so those at functions that
//! a user named are taken off then. Does not know when it is asked: `discovery` and `serving` do.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// A file and its content, as far as the kernel knows without asking a server or a file system in user space:
/// so it is told at once, also where these do not answer. Who may read the file, its names and their number
/// are no part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content {
    device: (u32, u32),
    inode: u64,
    bytes: u64,
    /// When it was last written to: seconds and nanoseconds.
    written: (i64, u32),
}

impl Content {
    /// Of an open file.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn of(file: &File) -> io::Result<Content> {
        let mut found = MaybeUninit::<libc::statx>::zeroed();
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        let mask = libc::STATX_INO | libc::STATX_SIZE | libc::STATX_MTIME;
        // SAFETY: the descriptor is open, the path is a string that ends, and the kernel fills the last argument.
        if unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, found.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: of numbers alone, of which zero is one, and filled.
        let found = unsafe { found.assume_init() };
        Ok(Content {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            bytes: found.stx_size,
            written: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
        })
    }

    /// Whether the file is known to have been written to since this was its content.
    pub(crate) fn has_changed(&self, file: &File) -> bool {
        Content::of(file).is_ok_and(|now| now != *self)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn names_and_permissions_are_no_part_of_it_and_what_is_written_is() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["lib", "other"].map(|name| dir.path().join(name));
        fs::write(&path, "one").unwrap();
        let file = File::open(&path).unwrap();
        let before = Content::of(&file).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        fs::hard_link(&path, &other).unwrap();
        fs::remove_file(&other).unwrap();
        fs::write(&other, "two").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(Content::of(&file).unwrap(), before);
        let new = File::open(&path).unwrap();
        let before = Content::of(&new).unwrap();
        fs::write(&path, "longer").unwrap();
        assert_ne!(Content::of(&new).unwrap(), before);
        let before = Content::of(&new).unwrap();
        // the kernel's clock of changes has ticks
        while Content::of(&new).unwrap() == before {
            fs::write(&path, "nolong").unwrap();
        }
    }
}
