//! Files of `/proc/PID`: reading them, and the fields of `stat`, `status` and `cgroup`. What they
//! make of a process is in `process`, its mapped files in `maps`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

/// Bytes of a file of `/proc/PID`. Lists of mappings are the longest: a process may have 65,530, each
/// with a path of up to 4 KiB that its user chooses.
const MOST_BYTES: u64 = 32 << 20;

/// A file of `/proc/PID`. Neither asks for the size, which the kernel does not know, nor grows a
/// small buffer: a short file takes four system calls where [`std::fs::read`] takes twelve.
///
/// # Errors
/// It cannot be read, or is longer than such files of honest processes are.
pub(crate) fn read(pid: u32, name: &str) -> io::Result<Vec<u8>> {
    let read = read_at_most(File::open(format!("/proc/{pid}/{name}"))?, MOST_BYTES);
    if let Err(error) = &read
        && error.kind() == io::ErrorKind::FileTooLarge
    {
        tracing::debug!(pid, name, "over {MOST_BYTES} bytes of /proc are not read: the process is not followed");
    }
    read
}

/// A file of `/proc/PID` of which not more is read.
///
/// # Errors
/// It cannot be read, or is longer.
pub(crate) fn read_short(pid: u32, name: &str, most: u64) -> io::Result<Vec<u8>> {
    read_at_most(File::open(format!("/proc/{pid}/{name}"))?, most)
}

fn read_at_most(file: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(4_096);
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

/// The rest of the line of `/proc/PID/status` that begins with `field`.
fn status_line<'a>(status: &'a [u8], field: &str) -> Option<&'a str> {
    let line = status.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(field.as_bytes()))?;
    std::str::from_utf8(line).ok()
}

/// The size of the libraries a process has mapped, in KiB: grows when one is loaded. None for
/// kernel threads.
pub(crate) fn code_kb(pid: u32) -> Option<u64> {
    let status = read(pid, "status").ok()?;
    status_line(&status, "VmLib:")?.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// Whether the real, effective and saved user of a process are this one. (The programs check more,
/// for every event.)
pub(crate) fn is_all_of_user(pid: u32, user: u32) -> bool {
    let status = read(pid, "status").unwrap_or_default();
    let Some(line) = status_line(&status, "Uid:") else { return false };
    line.split_whitespace().take(3).filter(|uid| uid.parse() == Ok(user)).count() == 3
}

/// The user that a process runs as (its real user id), whom its files are charged to. That of its
/// directory in /proc is root's where the process may not be looked into, which it can choose.
pub(crate) fn user_of(pid: u32) -> Option<u32> {
    let status = read(pid, "status").ok()?;
    status_line(&status, "Uid:")?.split_whitespace().next()?.parse().ok()
}

/// To whom what a process takes of everybody's is counted: its user, or who made the user namespace
/// that it is in, where she is as many users as the host lets her. None where it has ended. (As the
/// programs do, `user_of_this` in `bpf/rooms.bpf.h`.)
pub(crate) fn answers_for(pid: u32) -> Option<u32> {
    let user = user_of(pid)?;
    let namespace = PathBuf::from(format!("/proc/{pid}/ns/user"));
    let is_ours = || Some(fs::read_link(&namespace).ok()? == fs::read_link("/proc/self/ns/user").ok()?);
    if is_ours() != Some(false) {
        return Some(user);
    }
    let owner = File::open(&namespace).ok().and_then(|namespace| owner_of_outermost(namespace.into()));
    Some(owner.filter(|owner| *owner != 0).unwrap_or(user))
}

/// Who made the outermost user namespace within ours that this one is in, or is.
fn owner_of_outermost(mut namespace: OwnedFd) -> Option<u32> {
    const NS_GET_PARENT: libc::Ioctl = 0xb702;
    const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
    let mut owner = None;
    for _ in 0..MOST_NAMESPACES {
        let mut user: libc::uid_t = 0;
        // SAFETY: the descriptor is open, and the kernel writes a user's number to the address.
        if unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &mut user) } != 0 {
            break;
        }
        // SAFETY: the descriptor is open; the result is checked.
        let parent = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
        if parent < 0 {
            break; // it is ours or beyond
        }
        owner = Some(user);
        // SAFETY: the descriptor is new and nobody else's.
        namespace = unsafe { OwnedFd::from_raw_fd(parent) };
    }
    owner
}

/// The kernel has no more levels of them.
const MOST_NAMESPACES: usize = 33;

/// A field of `/proc/PID/stat` after the name, counted from 1 as proc(5) does. The name is in
/// parentheses and may contain any character.
fn stat_field(stat: &[u8], number: usize) -> Option<&str> {
    let after_name = stat.iter().rposition(|&b| b == b')')? + 2;
    let field = stat.get(after_name..)?.split(|&b| b == b' ').nth(number.checked_sub(3)?)?;
    Some(std::str::from_utf8(field).ok()?.trim_end())
}

/// When the process of a `stat` started.
pub(crate) fn start_since_boot_ns(stat: &[u8]) -> Option<i64> {
    let ticks: i64 = stat_field(stat, 22)?.parse().ok()?;
    ticks.checked_mul(1_000_000_000 / ticks_per_second())
}

fn ticks_per_second() -> i64 {
    // SAFETY: sysconf has no preconditions.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 { ticks } else { 100 }
}

/// Whether a thread of the process of a `stat` still runs. The main one may have ended before the
/// others: then the process looks as if it had.
pub(crate) fn has_threads(stat: &[u8]) -> bool {
    let ended = matches!(stat_field(stat, 3), None | Some("Z" | "X"));
    !ended || stat_field(stat, 20).and_then(|threads| threads.parse::<u32>().ok()).is_some_and(|threads| threads > 1)
}

/// The parent in the text of a stat file.
pub(crate) fn parent(stat: &[u8]) -> Option<u32> {
    stat_field(stat, 4)?.parse().ok().filter(|pid| *pid != 0)
}

/// Whether there is a process of this pid that has not ended.
#[must_use]
pub fn runs(pid: u32) -> bool {
    read(pid, "stat").is_ok_and(|stat| has_threads(&stat))
}

/// Whether it is a task of the kernel's own (`PF_KTHREAD` of linux/sched.h).
pub(crate) fn is_kernel_thread(pid: u32) -> bool {
    let stat = read(pid, "stat").unwrap_or_default();
    stat_field(&stat, 9).and_then(|flags| flags.parse::<u32>().ok()).is_some_and(|flags| flags & 0x0020_0000 != 0)
}

/// The path in cgroup v2 out of `/proc/PID/cgroup` ("0::/path").
pub(crate) fn cgroup_path(cgroups: &str) -> &str {
    cgroups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_is_not_read() {
        let error = read_at_most(io::repeat(b'x'), 100_000).expect_err("too long");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_at_most(&b"short"[..], 5).expect("as long as it may be"), b"short");
    }

    #[test]
    fn a_file_longer_than_the_buffer_is_read_to_its_end() {
        let maps = read(std::process::id(), "maps").unwrap();
        assert!(maps.len() > 4_096 && maps.ends_with(b"\n") && read(0, "maps").is_err());
    }

    #[test]
    fn the_path_in_cgroup_v2() {
        assert_eq!(cgroup_path("3:cpu:/x\n0::/user.slice\n"), "/user.slice");
    }

    #[test]
    fn start_time_behind_an_odd_name() {
        let stat = b"7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 250 1000 1 18446744073709551615";
        assert_eq!(start_since_boot_ns(stat), Some(250 * (1_000_000_000 / ticks_per_second())));
        assert_eq!(start_since_boot_ns(b"7 (x"), None);
    }

    #[test]
    fn a_main_thread_may_end_before_the_others() {
        let stat = |state: &str, threads: u32| {
            format!("7 (a) {state} 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 {threads} 0 250 0 0").into_bytes()
        };
        assert!(has_threads(&stat("S", 1)) && has_threads(&stat("R", 9)) && has_threads(&stat("Z", 2)));
        assert!(!has_threads(&stat("Z", 1)) && !has_threads(&stat("X", 1)) && !has_threads(b"7 (x"));
        assert!(runs(std::process::id()) && !runs(0));
        assert!(!is_kernel_thread(std::process::id()) && !is_kernel_thread(0));
    }

    #[test]
    fn we_have_code_and_the_kernel_has_none() {
        assert!(code_kb(std::process::id()).is_some_and(|kb| kb > 0));
        assert_eq!(code_kb(0), None);
    }
}
