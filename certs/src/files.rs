//! Files of an identity: private directories, atomic replacement, modes set at creation, a lock
//! between processes. What is in the files is the business of `identity`, `authority`, `token` and
//! `issued`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::Error;

/// Mode of a file with a secret in it.
pub(crate) const SECRET: u32 = 0o600;
/// Mode of a file that anybody may read.
pub(crate) const PUBLIC: u32 = 0o644;
/// No file of ours is larger, in bytes; what is larger is not read into memory.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Whether writing may replace a file that is there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replace {
    Yes,
    No,
}

/// Makes `dir` and what is missing above it, all readable by the owner only. An existing directory
/// stays as it is; another user's, or one that others can change, is refused.
pub(crate) fn create_dir(dir: &Path) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(Error::io("create", dir))?;
    Ok(trusted::Dir::open_named(dir).map(drop)?)
}

/// Writes a file so that a reader, and a host that crashes meanwhile, has the old contents or the
/// new ones.
///
/// The bytes go to a temporary file of the same directory, created with `mode`, which is synced and
/// then renamed (or linked, where nothing may be replaced), and the directory is synced.
pub(crate) fn write(path: &Path, contents: &[u8], mode: u32, replace: Replace) -> Result<(), Error> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (temporary, mut file) = create_temporary(dir, path, mode)?;
    let written = file.write_all(contents).and_then(|()| file.sync_all()).map_err(Error::io("write", &temporary));
    let placed = written.and_then(|()| match replace {
        Replace::Yes => fs::rename(&temporary, path).map_err(Error::io("write", path)),
        Replace::No => place_new(&temporary, path),
    });
    if placed.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    placed?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(Error::io("sync", dir))
}

/// Replaces a file that only its owner may read, or makes it: a reader, and a host that crashes
/// meanwhile, has the old contents or the new ones.
///
/// # Errors
/// It cannot be written.
pub fn replace_private_file(path: &Path, contents: &[u8]) -> Result<(), Error> {
    write(path, contents, SECRET, Replace::Yes)
}

/// Gives `temporary` the name `path` unless that is taken.
fn place_new(temporary: &Path, path: &Path) -> Result<(), Error> {
    let exists = || Error::Exists { path: path.to_owned() };
    match fs::hard_link(temporary, path) {
        Ok(()) => {
            // The file has its own name now.
            let _ = fs::remove_file(temporary);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists()),
        // A file system without hard links; between processes the directory's lock stands in.
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) => {
            if path.exists() {
                return Err(exists());
            }
            fs::rename(temporary, path).map_err(Error::io("write", path))
        }
        Err(source) => Err(Error::Io { action: "write", path: path.to_owned(), source }),
    }
}

fn create_temporary(dir: &Path, path: &Path, mode: u32) -> Result<(PathBuf, File), Error> {
    let mut random = [0; 8];
    fill_random(&mut random)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = dir.join(format!(".{name}.{:016x}.tmp", u64::from_ne_bytes(random)));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .map_err(Error::io("create", &temporary))?;
    Ok((temporary, file))
}

/// Fills `bytes` from the system's random generator.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), Error> {
    aws_lc_rs::rand::fill(bytes)
        .map_err(|_| Error::Sign { what: "random number", reason: "the system has no randomness".into() })
}

/// Reads a file of an identity directory; `None` where there is none.
///
/// # Errors
/// It cannot be read, others can change it, or it is larger than any file of ours.
pub fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    open_if_there(path)?.map(|file| read(path, file)).transpose()
}

/// Like [`read_if_there`], for a file with a private key: refuses one that the group or others may
/// read or write.
pub(crate) fn read_secret_if_there(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let Some(file) = open_if_there(path)? else { return Ok(None) };
    let mode = file.metadata().map_err(Error::io("read", path))?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(Error::KeyExposed { path: path.to_owned(), mode });
    }
    read(path, file).map(Some)
}

fn open_if_there(path: &Path) -> Result<Option<File>, Error> {
    match trusted::file_named(path) {
        Ok(file) => Ok(Some(file)),
        Err(refused) if refused.is_missing() => Ok(None),
        Err(refused) => Err(refused.into()),
    }
}

fn read(path: &Path, file: File) -> Result<Vec<u8>, Error> {
    let mut contents = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut contents).map_err(Error::io("read", path))?;
    if contents.len() as u64 > MAX_FILE_BYTES {
        return Err(Error::malformed(path, format!("it is larger than {MAX_FILE_BYTES} bytes")));
    }
    Ok(contents)
}

/// Holds the lock of a directory until dropped: one process at a time reads, changes and writes
/// what is in it.
pub(crate) struct DirLock(#[expect(dead_code, reason = "the open file is the lock")] File);

impl DirLock {
    /// Waits for the lock of `dir`. The kernel frees it when its holder ends, however it ends.
    pub(crate) fn take(dir: &Path) -> Result<Self, Error> {
        let path = dir.join("lock");
        let file = trusted::Dir::open_named(dir)?.append("lock", SECRET)?;
        match file.lock() {
            // A cluster file system mounted without locks: one process at a time is then up to
            // whoever types.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                tracing::warn!(path = %path.display(), "this file system has no locks; change the CA from one place at a time");
            }
            locked => locked.map_err(Error::io("lock", &path))?,
        }
        Ok(Self(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn writes_with_the_mode_asked_for_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/key");
        create_dir(path.parent().unwrap()).unwrap();
        write(&path, b"one", SECRET, Replace::Yes).unwrap();
        write(&path, b"two", SECRET, Replace::Yes).unwrap();
        assert_eq!(read_secret_if_there(&path).unwrap().unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(names(path.parent().unwrap()), ["key"]);
    }

    #[test]
    fn never_replaces_what_must_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write(&path, b"one", SECRET, Replace::No).unwrap();
        assert!(matches!(write(&path, b"two", SECRET, Replace::No), Err(Error::Exists { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(names(dir.path()), ["key"]);
    }

    #[test]
    fn refuses_a_key_that_others_can_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write(&path, b"one", 0o644, Replace::Yes).unwrap();
        assert!(matches!(read_secret_if_there(&path), Err(Error::KeyExposed { mode: 0o644, .. })));
        assert!(read_if_there(&path).unwrap().is_some());
        assert!(read_secret_if_there(&dir.path().join("none")).unwrap().is_none());
    }

    #[test]
    fn refuses_what_another_user_can_have_put_there() {
        let site = tempfile::tempdir().unwrap();
        let dir = site.path().join("identity");
        create_dir(&dir).unwrap();
        let path = dir.join("node.pem");
        write(&path, b"one", SECRET, Replace::Yes).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(read_if_there(&path), Err(Error::Changeable(_))));
        assert!(matches!(read_secret_if_there(&path), Err(Error::Changeable(_))));
        assert!(matches!(create_dir(&dir), Err(Error::Changeable(_))) && DirLock::take(&dir).is_err());
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(read_secret_if_there(&path).unwrap().is_some());
        let planted = site.path().join("planted");
        fs::write(&planted, "x").unwrap();
        // (The lock of a link that another user put there would be made where it leads.)
        std::os::unix::fs::symlink(&planted, dir.join("lock")).unwrap();
        assert!(DirLock::take(&dir).is_err());
    }

    #[test]
    fn one_holder_of_the_lock_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::take(dir.path()).unwrap();
        let other = File::open(dir.path().join("lock")).unwrap();
        assert!(other.try_lock().is_err());
        drop(lock);
        assert!(other.try_lock().is_ok());
    }
}
