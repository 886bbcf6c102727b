//! The features and settings of this host's kernel and of this process, read and not tried:
//! features by the kernel's own type information, settings by their files in /proc and /sys.
//! `survey` tries them.

use std::fs;
use std::path::{Path, PathBuf};

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Enum;

use crate::cgroup;

/// A number in /proc/self/ns/pid of the host's own pid namespace (Linux: PROC_PID_INIT_INO).
const HOST_PID_NAMESPACE: u64 = 0xeffffffc;

/// The findings. Files that do not exist or may not be read give none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The kernel's release, "6.1.0-50-cloud-amd64".
    pub release: String,
    /// Machine, "x86_64".
    pub machine: String,
    /// Whether the kernel carries its type information.
    pub btf: bool,
    /// uprobe.multi links (Linux 6.6): all calls of a file in one link, without CAP_SYS_ADMIN.
    pub uprobe_multi: bool,
    /// uprobe.session links (Linux 6.13): entry and return in one program.
    pub uprobe_session: bool,
    /// Kernel lockdown: "none", "integrity", "confidentiality".
    pub lockdown: Option<String>,
    /// kernel.unprivileged_bpf_disabled.
    pub unprivileged_bpf_disabled: Option<i64>,
    /// kernel.perf_event_paranoid.
    pub perf_event_paranoid: Option<i64>,
    /// Where cgroup v2 is mounted.
    pub cgroup2: Option<PathBuf>,
    /// RLIMIT_MEMLOCK of this process; none: unlimited. Kernels before 5.11 count BPF maps against
    /// it.
    pub memlock_bytes: Option<u64>,
    /// This process sees the same process ids as the kernel.
    pub host_pid_namespace: bool,
    /// Its effective user.
    pub uid: u32,
}

impl Host {
    /// Reads it all.
    pub fn examine() -> Host {
        let btf = Btf::from_vmlinux().ok();
        let kernel = |name: &str| fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).ok();
        let number = |name: &str| kernel(name)?.trim().parse().ok();
        let attach_types = btf.as_ref().map(attach_types).unwrap_or_default();
        let has = |name: &str| attach_types.iter().any(|known| known == name);
        let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").ok();
        Host {
            release: kernel("osrelease").map(|text| text.trim().to_owned()).unwrap_or_default(),
            machine: std::env::consts::ARCH.to_owned(),
            btf: btf.is_some(),
            uprobe_multi: has("BPF_TRACE_UPROBE_MULTI"),
            uprobe_session: has("BPF_TRACE_UPROBE_SESSION"),
            lockdown: lockdown.as_deref().and_then(chosen).map(str::to_owned),
            unprivileged_bpf_disabled: number("unprivileged_bpf_disabled"),
            perf_event_paranoid: number("perf_event_paranoid"),
            cgroup2: cgroup::mount_point(),
            memlock_bytes: memlock_bytes(),
            host_pid_namespace: in_host_pid_namespace(),
            // SAFETY: geteuid has no preconditions and cannot fail.
            uid: unsafe { libc::geteuid() },
        }
    }
}

/// The kernel's enumerators of `enum bpf_attach_type`.
fn attach_types(btf: &Btf<'_>) -> Vec<String> {
    let Some(types) = btf.type_by_name::<Enum<'_>>("bpf_attach_type") else { return vec![] };
    types.iter().filter_map(|member| Some(member.name?.to_string_lossy().into_owned())).collect()
}

/// The word in brackets: "none [integrity] confidentiality".
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

fn memlock_bytes() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit to be filled in.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (rc == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Raises the limit on open files as far as allowed: a single probe takes two, and a library has a
/// hundred functions.
pub(crate) fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit, to be filled in and then read.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// How many files this process may have open, as far as [`raise_open_files`] could raise it.
pub(crate) fn most_open_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit to be filled in.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur
}

/// Removes the limit on locked memory, if this process may: kernels before 5.11 count BPF maps
/// against it.
pub(crate) fn raise_locked_memory() {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is a valid rlimit to be read. Refused, it stays as it is, and what is too
    // much is an error then.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
}

fn in_host_pid_namespace() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self/ns/pid").map_or(true, |namespace| namespace.ino() == HOST_PID_NAMESPACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word() {
        assert_eq!(chosen("none [integrity] confidentiality\n"), Some("integrity"));
        assert_eq!(chosen("[none] integrity"), Some("none"));
        assert_eq!(chosen("none"), None);
    }

    #[test]
    fn open_files_are_raised_to_what_is_allowed() {
        raise_open_files();
        let text = fs::read_to_string("/proc/self/limits").unwrap();
        let line = text.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[3], words[4], "{line}");
    }

    #[test]
    fn this_host_is_read() {
        let host = Host::examine();
        assert!(!host.release.is_empty() && !host.machine.is_empty());
        assert!(!host.uprobe_session || host.uprobe_multi, "sessions came after multi links: {host:?}");
    }
}
