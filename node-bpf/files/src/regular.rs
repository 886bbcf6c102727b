//! Files in places where their users can put anything: looked at before they are opened.
//!
//! To open a FIFO is to wait for its other end, and a device may do something when it is opened. So
//! a file is found first (`O_PATH`: nobody notices, nothing waits), then the kernel says what it is,
//! and only a regular file is opened, by what was found and not by its name: nothing can be put in
//! its place between.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use crate::question::FileId;

/// A regular file that was found and looked at, and is not open.
#[derive(Debug)]
pub struct Regular {
    found: File,
    id: FileId,
    owner: u32,
}

/// A file as the kernel's list of a process's mappings names it.
#[derive(Debug, Clone)]
pub struct MappedFile<'a> {
    /// The addresses of the mapping.
    pub range: Range<u64>,
    /// The file's path in the process's own root.
    pub path: &'a Path,
    /// Device: major and minor number.
    pub device: (u32, u32),
    /// Inode on that device.
    pub inode: u64,
}

impl Regular {
    /// The file that is at a path now.
    ///
    /// # Errors
    /// The system's, and `InvalidInput` for what is no regular file.
    pub fn at(path: &Path) -> io::Result<Regular> {
        Self::of(find(path)?)
    }

    /// The file that a process has mapped.
    ///
    /// The mapping itself leads to it, whatever mount namespace or unlinked directory the file is
    /// in. Where that is not allowed (no CAP_SYS_ADMIN), the path as the process sees it does, in
    /// the process's own root: a link there leads nowhere else.
    ///
    /// # Errors
    /// The system's; `InvalidInput` for what is no regular file, `NotFound` where another file is in
    /// its place now.
    pub fn mapped(pid: u32, file: &MappedFile<'_>) -> io::Result<Regular> {
        Self::mapped_where(pid, file, |_| true)
    }

    /// The same, where `may` says so of what was found (`O_PATH`): only then its file system is asked for it.
    ///
    /// # Errors
    /// The same, and `Unsupported` where it says no.
    pub fn mapped_where(pid: u32, file: &MappedFile<'_>, may: impl FnOnce(&File) -> bool) -> io::Result<Regular> {
        let may = |found: File| if may(&found) { Self::of(found) } else { Err(io::ErrorKind::Unsupported.into()) };
        let Range { start, end } = file.range;
        match find(Path::new(&format!("/proc/{pid}/map_files/{start:x}-{end:x}"))) {
            Ok(found) => may(found)?.is(file, false),
            Err(_) => may(find_below(pid, file.path)?)?.is(file, true),
        }
    }

    fn of(found: File) -> io::Result<Regular> {
        let id = FileId::of(&found)?;
        let owner = found.metadata()?.uid();
        Ok(Regular { found, id, owner })
    }

    /// Itself, if it is the file of that mapping.
    fn is(self, file: &MappedFile<'_>, by_path: bool) -> io::Result<Regular> {
        let device = (libc::major(self.id.device), libc::minor(self.id.device));
        // btrfs and overlayfs show mappings by another device than files, one without a driver (0).
        let same_device = !by_path || device.0 == 0 || device == file.device;
        if self.id.inode == file.inode && same_device {
            return Ok(self);
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "another file is in its place now"))
    }

    /// Which file, and which content of it.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.id
    }

    /// The user whose it is.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Opens it for reading.
    ///
    /// # Errors
    /// The system's.
    pub fn open(&self) -> io::Result<File> {
        self.open_as(File::options().read(true))
    }

    /// Opens it for reading and writing.
    ///
    /// # Errors
    /// The system's.
    pub fn open_to_write(&self) -> io::Result<File> {
        self.open_as(File::options().read(true).write(true))
    }

    /// What was found, under the name that this process has for it: nobody can put another there.
    fn open_as(&self, options: &mut std::fs::OpenOptions) -> io::Result<File> {
        let name = format!("/proc/self/fd/{}", self.found.as_raw_fd());
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(name)
    }
}

fn find(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_PATH).open(path)
}

/// What is at a path of a process's own root.
fn find_below(pid: u32, path: &Path) -> io::Result<File> {
    let root = Path::new("/proc").join(pid.to_string()).join("root");
    let below = path.strip_prefix("/").map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
    let opened = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(&root)?;
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve);
    match openat2(&opened, below, how) {
        Ok(found) => Ok(File::from(found)),
        // A kernel before 5.6, or a filter that does not know the call: a link may lead elsewhere,
        // but only to what is the mapping's file is looked at further.
        Err(Errno::ENOSYS | Errno::EPERM) => find(&root.join(below)),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn mapped(path: &Path, of: &FileId) -> io::Result<Regular> {
        // no mapping is there: the path is what leads to the file
        let device = (libc::major(of.device), libc::minor(of.device));
        Regular::mapped(std::process::id(), &MappedFile { range: 1..2, path, device, inode: of.inode })
    }

    #[test]
    fn only_regular_files_are_opened_and_a_fifo_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (fifo, file) = (dir.path().join("fifo"), dir.path().join("file"));
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        std::fs::write(&file, "content").unwrap();
        for other in [&fifo, dir.path(), Path::new("/dev/null")] {
            assert_eq!(Regular::at(other).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{other:?}");
        }
        let regular = Regular::at(&file).unwrap();
        assert_eq!(regular.owner(), std::fs::metadata(&file).unwrap().uid());
        // what is put in its place afterwards is not what is opened
        std::fs::remove_file(&file).unwrap();
        mkfifo(&file, Mode::S_IRWXU).unwrap();
        assert_eq!(io::read_to_string(regular.open().unwrap()).unwrap(), "content");
        regular.open_to_write().unwrap().set_len(0).unwrap();
    }

    #[test]
    fn a_mapped_file_is_found_by_its_path_only_where_it_is_that_file() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("file"), dir.path().join("other"));
        std::fs::write(&file, "content").unwrap();
        std::fs::write(&other, "other").unwrap();
        let id = Regular::at(&file).unwrap().id();
        assert_eq!(mapped(&file, &id).unwrap().id(), id);
        assert_eq!(mapped(&other, &id).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::remove_file(&other).unwrap();
        symlink(&file, &other).unwrap();
        assert_eq!(mapped(&other, &id).unwrap().id(), id, "a link of the process's own root leads to it");
        let elsewhere = FileId { device: libc::makedev(1, 99), ..id };
        let is_numbered = libc::major(id.device) != 0;
        assert_eq!(mapped(&file, &elsewhere).is_err(), is_numbered, "another device's inode of that number");
    }
}
