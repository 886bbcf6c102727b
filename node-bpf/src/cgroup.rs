//! The cgroup v2 hierarchy: where it is mounted, and the id by which BPF programs know a cgroup.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::Error;

/// A cgroup whose tasks (and whose descendants' tasks) are captured.
#[derive(Debug)]
pub(crate) struct Cgroup {
    pub(crate) directory: fs::File,
    /// The inode number of its directory: what `bpf_get_current_cgroup_id` returns.
    pub(crate) id: u64,
    /// Its path as /proc/PID/cgroup shows it.
    pub(crate) path: String,
}

/// The mount point of cgroup v2, from /proc/self/mountinfo.
pub fn mount_point() -> Option<PathBuf> {
    parse_mountinfo(&fs::read("/proc/self/mountinfo").ok()?)
}

/// The id of a cgroup by its path in the hierarchy, as /proc/PID/cgroup shows it.
pub(crate) fn id_of(path: &str) -> Option<u64> {
    static MOUNT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let mount = MOUNT.get_or_init(mount_point).as_ref()?;
    Some(fs::metadata(mount.join(path.strip_prefix('/')?)).ok()?.ino())
}

/// Fields: id parent dev root MOUNT-POINT options… - TYPE source options
fn parse_mountinfo(text: &[u8]) -> Option<PathBuf> {
    text.split(|&b| b == b'\n').find_map(|line| {
        let mut words = line.split(|&b| b == b' ');
        let point = words.nth(4)?;
        words.by_ref().find(|word| *word == b"-")?;
        (words.next()? == b"cgroup2").then(|| PathBuf::from(std::ffi::OsStr::from_bytes(&unescape(point))))
    })
}

/// mountinfo writes space, tab, newline and backslash as `\ooo`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let code = (first == b'\\').then(|| tail.get(..3)).flatten();
        let byte = code.and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        if let Some(byte) = byte {
            out.push(byte);
            rest = &tail[3..];
        } else {
            out.push(first);
            rest = tail;
        }
    }
    out
}

impl Cgroup {
    /// Opens a cgroup by the path of its directory.
    pub(crate) fn open(directory: &Path) -> Result<Cgroup, Error> {
        let fail = |reason: String| Error::Cgroup { path: directory.to_owned(), reason };
        let mount = mount_point().ok_or_else(|| fail("no cgroup2 file system is mounted".to_owned()))?;
        let real = directory.canonicalize().map_err(|e| fail(e.to_string()))?;
        let inside = real
            .strip_prefix(&mount)
            .map_err(|_| fail(format!("it does not lie in the cgroup2 hierarchy at {}", mount.display())))?;
        let path = format!("/{}", inside.display());
        let file = fs::File::open(&real).map_err(|e| fail(e.to_string()))?;
        let id = file.metadata().map_err(|e| fail(e.to_string()))?.ino();
        Ok(Cgroup { directory: file, id, path })
    }

    /// Whether a task with this path in /proc/PID/cgroup belongs to it.
    pub(crate) fn contains(&self, path: &str) -> bool {
        self.path == "/" || path == self.path || path.strip_prefix(&self.path).is_some_and(|rest| rest.starts_with('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_point_with_a_space() {
        let text =
            b"25 1 0:22 / /sys rw - sysfs sysfs rw\n30 25 0:26 / /sys/fs/my\\040cg rw shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(parse_mountinfo(text), Some(PathBuf::from("/sys/fs/my cg")));
        assert_eq!(parse_mountinfo(b"30 25 0:26 / /cg rw - cgroup cgroup rw,cpu\n"), None);
    }

    #[test]
    fn a_cgroup_holds_its_descendants_only() {
        let Ok(directory) = fs::File::open("/") else {
            return;
        };
        let cgroup = Cgroup { directory, id: 1, path: "/a/b".to_owned() };
        assert!(cgroup.contains("/a/b") && cgroup.contains("/a/b/c"));
        assert!(!cgroup.contains("/a/bc") && !cgroup.contains("/a"));
    }
}
