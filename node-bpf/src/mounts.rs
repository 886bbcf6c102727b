//! Which file system a file lies on, told without asking the file system.
//!
//! A probe has the kernel read a page of the file: when it is put, and in each process that maps the file
//! later, while that process's memory is locked. A file system in user space (FUSE) may never answer. So
//! files that a user names are not probed there. Network file systems (NFS, Lustre) are: what is probed is
//! code that processes run, which wait for a dead server with or without a probe.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use crate::procfs;

/// Bytes that are read of a process's mounts, which its user makes.
const MOST_BYTES: u64 = 1 << 20;

/// A mount, as a line of mountinfo shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    /// "major:minor".
    device: String,
    kind: String,
}

/// Why no probe may be put into a file that was found by way of a process; none where one may. Of the mount
/// that the descriptor (`O_PATH`, too) leads to: it stays as long as that is open.
pub(crate) fn refusal(pid: u32, file: &File) -> Option<String> {
    let of_process = || procfs::read_short(pid, "mountinfo", MOST_BYTES).unwrap_or_default();
    // No user mounts there: an agent in a container sees little in its own mounts, but those of the host's
    // first process where it shares the host's processes.
    let trusted = || {
        let own = procfs::read(std::process::id(), "mountinfo").unwrap_or_default();
        [procfs::read(1, "mountinfo").unwrap_or_default(), own].concat()
    };
    // What the process has unmounted since, or does not see, may be mounted there.
    let by_id = |id| mount(&of_process(), |of, _| of == id).or_else(|| mount(&trusted(), |of, _| of == id));
    let Some(Mount { device, kind }) = mount_id(file).and_then(by_id) else {
        return Some(
            "its file system is not among the mounts of its process, so it may be one in user space".to_owned(),
        );
    };
    if kind == "fuse" || kind.starts_with("fuse.") || kind.starts_with("fuseblk") {
        return Some(format!(
            "it lies on a file system in user space ({kind}), on which a probe may hang the programs"
        ));
    }
    if kind == "overlay" && mount_of_device(&trusted(), &device).is_none() {
        return Some(
            "it lies on an overlay that its process has mounted, maybe over a file system in user space".to_owned(),
        );
    }
    None
}

fn mount_of_device(text: &[u8], device: &str) -> Option<Mount> {
    mount(text, |_, of| of == device)
}

/// The number of the mount that a descriptor leads to.
fn mount_id(file: &File) -> Option<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

/// The first mount in the text of a mountinfo file whose number and device are meant.
fn mount(text: &[u8], is_it: impl Fn(u64, &str) -> bool) -> Option<Mount> {
    let text = String::from_utf8_lossy(text);
    text.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut words = mount.split(' ');
        let (id, device) = (words.next()?.parse().ok()?, words.nth(1)?);
        let kind = || source.split(' ').next().unwrap_or_default().to_owned();
        is_it(id, device).then(|| Mount { device: device.to_owned(), kind: kind() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_by_their_mounts() {
        let text = b"22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
            40 22 0:49 / /home/a/mnt rw,nosuid - fuse.sshfs host:/ rw,user_id=7\n\
            41 22 0:50 / /home rw - nfs4 server:/home rw,vers=4.2\nodd line\n";
        let kind = |id| mount(text, |of, _| of == id).map(|mount| mount.kind);
        assert_eq!(kind(22).as_deref(), Some("ext4"));
        assert_eq!(kind(40).as_deref(), Some("fuse.sshfs"));
        assert_eq!(kind(41).as_deref(), Some("nfs4"));
        assert_eq!((kind(42), mount_of_device(text, "0:50").is_some()), (None, true));
    }

    #[test]
    fn our_own_program_may_be_probed_and_what_is_on_no_mount_may_not() {
        let pid = std::process::id();
        let own = File::open("/proc/self/exe").unwrap();
        assert_eq!(refusal(pid, &own), None);
        let (pipe, _other) = std::io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
        assert!(refusal(pid, &pipe).unwrap().contains("not among the mounts"));
    }
}
