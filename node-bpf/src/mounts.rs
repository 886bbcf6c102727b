//! Which file system a mapped file lies on, told without asking the file system.
//!
//! A probe has the kernel read a page of the file: when it is put, and in each process that maps the file
//! later, while that process's memory is locked. A file system in user space (FUSE) may never answer. So
//! files that a user names are not probed there. Network file systems (NFS, Lustre) are: what is probed is
//! code that processes run, which wait for a dead server with or without a probe.

use crate::procfs;

/// Why no probe may be put into a file on this device ("major:minor" in hexadecimal, as maps show it), by
/// what the process has mounted; none where one may.
pub(crate) fn refusal(pid: u32, device: &[u8]) -> Option<String> {
    let of = |pid: u32| {
        let text = procfs::read(pid, "mountinfo").unwrap_or_default();
        file_system(&text, device)
    };
    // What it has unmounted since may be mounted here.
    match of(pid).or_else(|| of(std::process::id())) {
        Some(kind) if kind == "fuse" || kind.starts_with("fuse.") || kind == "fuseblk" => {
            Some(format!("it lies on a file system in user space ({kind}), on which a probe may hang the programs"))
        }
        Some(_) => None,
        None => Some("its file system is not mounted any more, so it may be one in user space".to_owned()),
    }
}

/// The kind of the file system that has this device, by the text of a mountinfo file.
fn file_system(text: &[u8], device: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let wanted = String::from_utf8_lossy(device);
    let (major, minor) = wanted.split_once(':')?;
    let number = |digits| u32::from_str_radix(digits, 16).ok();
    let wanted = format!("{}:{}", number(major)?, number(minor)?);
    text.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let found = mount.split(' ').nth(2)?;
        (found == wanted).then(|| source.split(' ').next().unwrap_or_default().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_by_their_devices() {
        let text = b"22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
            40 22 0:49 / /home/a/mnt rw,nosuid - fuse.sshfs host:/ rw,user_id=7\n\
            41 22 0:50 / /home rw - nfs4 server:/home rw,vers=4.2\nodd line\n";
        assert_eq!(file_system(text, b"fe:01").as_deref(), Some("ext4"));
        assert_eq!(file_system(text, b"00:31").as_deref(), Some("fuse.sshfs"));
        assert_eq!(file_system(text, b"00:32").as_deref(), Some("nfs4"));
        assert_eq!((file_system(text, b"00:33"), file_system(text, b"x")), (None, None));
    }

    #[test]
    fn our_own_program_may_be_probed() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        let own = crate::maps::mappings(&text).find(|mapping| mapping.executable).unwrap();
        assert_eq!(refusal(std::process::id(), own.device), None);
        assert!(refusal(std::process::id(), b"ff:ff").unwrap().contains("not mounted"));
    }
}
