//! Walks a path from the root, component by component, and looks at owner and mode of each.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::{Group, Uid, User};

use crate::Refused;

/// As many symbolic links as the kernel follows.
const MOST_LINKS: usize = 40;
const BY_GROUP: u32 = 0o020;
const BY_ALL: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The users whose word counts for a path: root, and whom the path is of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owners {
    pub(crate) user: u32,
}

impl Owners {
    /// Whether a component of this owner leads where root or the user wants it to.
    fn leads(self, uid: u32) -> bool {
        uid == 0 || uid == self.user || Some(uid) == hidden_root()
    }

    /// Whether the contents are root's or the user's.
    fn holds(self, uid: u32) -> bool {
        uid == 0 || uid == self.user
    }

    /// Who else may write by this mode; none: nobody.
    fn writer(self, found: &FileStat) -> Option<String> {
        if found.st_mode & BY_ALL != 0 {
            return Some("everybody".to_owned());
        }
        let by_group = found.st_mode & BY_GROUP != 0 && !is_own_group(found.st_gid, self.user);
        by_group.then(|| format!("group {}", found.st_gid))
    }
}

/// In a user namespace that does not have the host's root, root's files show as the overflow user's
/// (user_namespaces(7)); so do those of every other user who is not in it. None elsewhere.
fn hidden_root() -> Option<u32> {
    static HIDDEN: OnceLock<Option<u32>> = OnceLock::new();
    *HIDDEN.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
        let has_root = map.lines().any(|line| line.split_whitespace().nth(1) == Some("0"));
        let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
        if has_root { None } else { overflow.trim().parse().ok() }
    })
}

/// Whether a group has no other member than the user: its name is the user's and it is her first
/// one, as distributions make them.
fn is_own_group(gid: u32, uid: u32) -> bool {
    let (Ok(Some(user)), Ok(Some(group))) =
        (User::from_uid(Uid::from_raw(uid)), Group::from_gid(nix::unistd::Gid::from_raw(gid)))
    else {
        return false;
    };
    user.gid == group.gid && group.name == user.name && group.mem.iter().all(|name| *name == user.name)
}

pub(crate) fn kind(found: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT
}

/// The last component of a walk.
#[derive(Debug)]
pub(crate) struct Reached {
    /// Opened with `O_PATH`.
    pub(crate) fd: OwnedFd,
    pub(crate) found: FileStat,
    /// Without links.
    pub(crate) path: PathBuf,
}

/// Opens what a path leads to. Each directory on the way is root's or the user's, and nobody else
/// can put another entry in the place of the next one; a symbolic link is followed where it is
/// root's or the user's, too.
pub(crate) fn walk(path: &Path, owners: Owners) -> Result<Reached, Refused> {
    let absolute = std::path::absolute(path).map_err(Refused::io("finding", path))?;
    let mut rest: VecDeque<OsString> = names(&absolute).collect();
    let mut at = root()?;
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        let shown =
            if name == ".." { at.path.parent().unwrap_or(Path::new("/")).to_owned() } else { at.path.join(&name) };
        passable(&at, owners)?;
        let next = enter(&at, &name, &shown)?;
        if kind(&next.found) != SFlag::S_IFLNK {
            at = next;
            continue;
        }
        if !owners.leads(next.found.st_uid) {
            return Err(Refused::Owner { path: shown, owner: next.found.st_uid, is_asked_for: rest.is_empty() });
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(Refused::Links { path: path.to_owned() });
        }
        let target = PathBuf::from(readlinkat(&next.fd, "").map_err(Refused::io("reading the link", &shown))?);
        if target.is_absolute() {
            at = root()?;
        }
        names(&target).rev().for_each(|name| rest.push_front(name));
    }
    Ok(at)
}

/// The names that a path consists of, ".." included.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

fn root() -> Result<Reached, Refused> {
    let path = PathBuf::from("/");
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let fd = open("/", flags, Mode::empty()).map_err(Refused::io("opening", &path))?;
    let found = fstat(&fd).map_err(Refused::io("looking at", &path))?;
    Ok(Reached { fd, found, path })
}

/// Opens one entry of a directory without following it.
pub(crate) fn enter(directory: &Reached, name: &std::ffi::OsStr, shown: &Path) -> Result<Reached, Refused> {
    let look = |name: &std::ffi::OsStr, flags| -> Result<Reached, Errno> {
        let fd = openat(directory.fd.as_fd(), name, flags | OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        let found = fstat(&fd)?;
        Ok(Reached { fd, found, path: shown.to_owned() })
    };
    let found = look(name, OFlag::O_NOFOLLOW).map_err(Refused::io("opening", shown))?;
    if kind(&found.found) != SFlag::S_IFDIR {
        return Ok(found);
    }
    // Through the entry, so that what is mounted on demand is mounted (autofs): O_PATH alone does
    // not. Nobody who does not own it can have put a link there meanwhile.
    let mut within = name.to_owned();
    within.push("/.");
    look(&within, OFlag::O_DIRECTORY).map_err(Refused::io("opening", shown))
}

/// Whether nobody but the owners can exchange an entry of a directory. In one with the sticky bit
/// others can make entries, not exchange those of the owners, and the entry's owner is looked at
/// next.
pub(crate) fn passable(directory: &Reached, owners: Owners) -> Result<(), Refused> {
    let Reached { found, path, .. } = directory;
    if kind(found) != SFlag::S_IFDIR {
        return Err(Refused::Kind { path: path.clone(), wanted: "directory" });
    }
    if !owners.leads(found.st_uid) {
        return Err(Refused::Owner { path: path.clone(), owner: found.st_uid, is_asked_for: false });
    }
    match owners.writer(found) {
        Some(by) if found.st_mode & STICKY == 0 => {
            let change = if found.st_mode & BY_ALL != 0 { "o-w" } else { "g-w" };
            Err(Refused::Writable { path: path.clone(), by, change })
        }
        _ => Ok(()),
    }
}

/// Whether what was reached is the owners', and nobody else may write to it.
pub(crate) fn holds(reached: &Reached, owners: Owners) -> Result<(), Refused> {
    let Reached { found, path, .. } = reached;
    if !owners.holds(found.st_uid) {
        return Err(Refused::Owner { path: path.clone(), owner: found.st_uid, is_asked_for: true });
    }
    match owners.writer(found) {
        Some(by) => {
            let change = if found.st_mode & BY_ALL != 0 { "go-w" } else { "g-w" };
            Err(Refused::Writable { path: path.clone(), by, change })
        }
        None => Ok(()),
    }
}

/// Whether only its owner may do anything with it.
pub(crate) fn is_private(found: &FileStat) -> bool {
    found.st_mode & 0o077 == 0
}
