//! /proc/PID/maps: which files a process has mapped, and where. Paths are bytes: they may contain
//! anything but a zero byte, and the kernel writes a newline in one as `\012`. `discovery` decides
//! which files matter.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use files::{MappedFile, Regular};

/// A mapped file, as one line of maps shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping<'a> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) executable: bool,
    pub(crate) writable: bool,
    /// "major:minor" as text, and the inode: together the file's identity.
    pub(crate) device: &'a [u8],
    pub(crate) inode: u64,
    pub(crate) path: &'a [u8],
}

/// A file as maps show it: device and inode.
pub(crate) type FileKey = (Vec<u8>, u64);

impl Mapping<'_> {
    pub(crate) fn key(&self) -> FileKey {
        (self.device.to_vec(), self.inode)
    }

    /// The path's last component, without " (deleted)".
    pub(crate) fn file_name(&self) -> &[u8] {
        let path = self.path.strip_suffix(b" (deleted)").unwrap_or(self.path);
        path.rsplit(|&b| b == b'/').next().unwrap_or(path)
    }
}

/// The file mappings in the text of a maps file; lines that are not of that form, and anonymous
/// memory, are passed over.
pub(crate) fn mappings(text: &[u8]) -> impl Iterator<Item = Mapping<'_>> {
    text.split(|&b| b == b'\n').filter_map(parse_line)
}

/// Where the writable data of a mapped file lies, with the memory directly behind it that no file
/// fills (its zeros): the first and the address after the last byte.
pub(crate) fn data_of(text: &[u8], file: &Mapping<'_>) -> Option<(u64, u64)> {
    let mut data: Option<(u64, u64)> = None;
    for line in text.split(|&b| b == b'\n') {
        let Some(of_file) = parse_line(line) else {
            // anonymous
            let next = word(line).and_then(|(range, rest)| Some((bounds(range)?, word(rest)?.0)));
            if let (Some((_, end)), Some(((start, after), permissions))) = (&mut data, next)
                && start == *end
                && permissions.get(1) == Some(&b'w')
            {
                *end = after;
            }
            continue;
        };
        if (of_file.device, of_file.inode) == (file.device, file.inode) && of_file.writable {
            data = Some((data.map_or(of_file.start, |(start, _)| start), of_file.end));
        }
    }
    data
}

fn bounds(range: &[u8]) -> Option<(u64, u64)> {
    let dash = range.iter().position(|&b| b == b'-')?;
    Some((hex(&range[..dash])?, hex(range.get(dash + 1..)?)?))
}

/// `start-end perms offset dev inode   path`
fn parse_line(line: &[u8]) -> Option<Mapping<'_>> {
    let (range, rest) = word(line)?;
    let (permissions, rest) = word(rest)?;
    let (offset, rest) = word(rest)?;
    let (device, rest) = word(rest)?;
    let (inode, rest) = word(rest)?;
    let path = rest.trim_ascii_start();
    if path.first() != Some(&b'/') {
        return None;
    }
    let (start, end) = bounds(range)?;
    Some(Mapping {
        start,
        end,
        offset: hex(offset)?,
        executable: permissions.get(2) == Some(&b'x'),
        writable: permissions.get(1) == Some(&b'w'),
        device,
        inode: std::str::from_utf8(inode).ok()?.parse().ok()?,
        path,
    })
}

fn word(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = line.iter().position(|&b| b == b' ')?;
    (space > 0).then(|| (&line[..space], &line[space + 1..]))
}

fn hex(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// A device as maps show it.
pub(crate) fn device_of(device: u64) -> Vec<u8> {
    format!("{:02x}:{:02x}", libc::major(device), libc::minor(device)).into_bytes()
}

/// Opens a mapped file from here; none when the process is gone, or where another file, or what is
/// no regular file, is in its place: that is not opened, and never waited for.
pub(crate) fn open(pid: u32, mapping: &Mapping<'_>) -> Option<File> {
    open_where(pid, mapping, |_| true)
}

/// The same, where `may` says so of what was found: it is asked before the file's file system is.
pub(crate) fn open_where(pid: u32, mapping: &Mapping<'_>, may: impl FnOnce(&File) -> bool) -> Option<File> {
    let path = Path::new(std::ffi::OsStr::from_bytes(mapping.path));
    let colon = mapping.device.iter().position(|&b| b == b':')?;
    let number = |digits| hex(digits).and_then(|number| u32::try_from(number).ok());
    let device = (number(&mapping.device[..colon])?, number(mapping.device.get(colon + 1..)?)?);
    let file = MappedFile { range: mapping.start..mapping.end, path, device, inode: mapping.inode };
    Regular::mapped_where(pid, &file, may).ok()?.open().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_library_with_an_odd_path() {
        let text = b"7f00-7fff r-xp 00001000 fe:01 1234                       /a b/\xff\xfe/libnccl.so.2 (deleted)\n\
            7000-7100 rw-p 00000000 00:00 0 \n7200-7300 r--p 00000000 00:00 0          [vdso]\n";
        let found: Vec<_> = mappings(text).collect();
        assert_eq!(found.len(), 1);
        let m = &found[0];
        assert_eq!((m.start, m.end, m.offset, m.inode, m.executable), (0x7f00, 0x7fff, 0x1000, 1234, true));
        assert_eq!((m.device, m.file_name()), (&b"fe:01"[..], &b"libnccl.so.2"[..]));
    }

    #[test]
    fn a_librarys_data_with_its_zeros() {
        let text = b"1000-2000 r-xp 00000000 fe:01 7 /lib/libmpich.so.12\n2000-3000 rw-p 00001000 fe:01 7 /lib/libmpich.so.12\n\
            3000-5000 rw-p 00000000 00:00 0 \n5000-6000 rw-p 00000000 fe:01 8 /lib/other.so\n6000-7000 rw-p 0 00:00 0 \n";
        let library = mappings(text).next().unwrap();
        assert_eq!(data_of(text, &library), Some((0x2000, 0x5000)));
        assert_eq!(data_of(b"", &library), None);
    }

    #[test]
    fn our_own_maps_show_our_own_file() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        let exe = std::fs::read_link("/proc/self/exe").unwrap();
        let own = mappings(&text).find(|m| m.executable && m.path == exe.as_os_str().as_encoded_bytes()).unwrap();
        assert!(open(std::process::id(), &own).is_some());
        let range_of_another = Mapping { start: 1, end: 2, ..own };
        assert!(open(std::process::id(), &range_of_another).is_some(), "by its path");
        let path_of_another = Mapping { path: b"/dev/null", ..range_of_another };
        assert!(open(std::process::id(), &path_of_another).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_harm(text in prop::collection::vec(any::<u8>(), 0..400)) {
            for m in mappings(&text) {
                prop_assert!(!m.path.contains(&b'\n'));
            }
        }

        #[test]
        fn any_path_comes_back_unchanged(name in prop::collection::vec(any::<u8>().prop_filter("no newline", |b| *b != b'\n'), 0..60)) {
            let mut line = b"10-20 r--p 0 00:1f 9 /".to_vec();
            line.extend(&name);
            let mut want = b"/".to_vec();
            want.extend(&name);
            prop_assert_eq!(mappings(&line).next().map(|m| m.path.to_vec()), Some(want));
        }
    }
}
