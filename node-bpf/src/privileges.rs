//! The capabilities that capture needs, and dropping the rest. The table [`PRIVILEGES`] is the one
//! place that lists which capability is needed for what; it was found by leaving each out
//! (node/tests/privileges.rs keeps it true). `host` reads what the host offers.

use std::sync::OnceLock;

use caps::errors::CapsError;
use caps::{CapSet, CapsHashSet};

pub use caps::Capability;

/// A capability and what capture uses it for.
#[derive(Debug, Clone, Copy)]
pub struct Privilege {
    /// The capability.
    pub capability: Capability,
    /// What it is needed for.
    pub purpose: &'static str,
    /// When it is needed.
    pub needed: Needed,
}

/// When a capability is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    /// Nothing is recorded without it.
    Always,
    /// Without it, less is known: of other users' processes, or of reasons.
    ForDetail,
    /// Nothing is recorded without it on kernels without uprobe.multi (before Linux 6.6).
    WithoutMulti,
}

/// All that capture uses; an agent keeps these and drops every other.
pub static PRIVILEGES: &[Privilege] = &[
    Privilege { capability: Capability::CAP_BPF, purpose: "to load BPF programs and maps", needed: Needed::Always },
    Privilege {
        capability: Capability::CAP_PERFMON,
        purpose: "to attach tracing programs and to read kernel structures in them",
        needed: Needed::Always,
    },
    Privilege {
        capability: Capability::CAP_SYS_PTRACE,
        purpose: "to see which libraries other users' processes have mapped, and their ranks and jobs",
        needed: Needed::ForDetail,
    },
    Privilege {
        capability: Capability::CAP_DAC_READ_SEARCH,
        purpose: "to open the environment of other users' processes, and libraries in their directories",
        needed: Needed::ForDetail,
    },
    Privilege {
        capability: Capability::CAP_CHECKPOINT_RESTORE,
        purpose: "to reach a library file by its mapping: deleted, replaced, or in a container",
        needed: Needed::ForDetail,
    },
    Privilege {
        capability: Capability::CAP_SYSLOG,
        purpose: "to tell by the kernel's own functions (/proc/kallsyms) what a thread waits for",
        needed: Needed::ForDetail,
    },
    Privilege {
        capability: Capability::CAP_SYS_ADMIN,
        purpose: "to attach single uprobes, all that kernels before 6.6 have",
        needed: Needed::WithoutMulti,
    },
];

/// The only user whose processes may be recorded; none: everybody's.
///
/// Root sees everybody's processes, and so does a service with CAP_SYS_PTRACE, the right to look
/// into other users' processes, as an ambient capability given by an administrator (systemd's
/// AmbientCapabilities, setpriv). A process with capabilities from the program's file (setcap) may
/// be run by any user, and sees only that user's. The kernel clears ambient capabilities when such
/// a file is executed (capabilities(7)), which distinguishes the two. Decided once: [`keep_only`]
/// drops the capabilities by which it is decided.
pub fn only_user() -> Option<u32> {
    static DECIDED: OnceLock<Option<u32>> = OnceLock::new();
    *DECIDED.get_or_init(|| {
        // the real user, so that a set-user-ID program is its caller's, too
        // SAFETY: getuid has no preconditions and cannot fail.
        let user = unsafe { libc::getuid() };
        let of_a_service = caps::has_cap(None, CapSet::Ambient, Capability::CAP_SYS_PTRACE).unwrap_or(false);
        (user != 0 && !of_a_service).then_some(user)
    })
}

/// This thread's capabilities of [`PRIVILEGES`].
pub fn granted() -> Vec<Capability> {
    PRIVILEGES.iter().map(|privilege| privilege.capability).filter(|capability| has(*capability)).collect()
}

/// The capabilities that this thread has in effect.
pub fn effective() -> Vec<Capability> {
    let set = caps::read(None, CapSet::Effective).unwrap_or_default();
    let mut list: Vec<_> = set.into_iter().collect();
    list.sort_by_key(Capability::index);
    list
}

/// Whether this thread has it in effect.
pub fn has(capability: Capability) -> bool {
    // CAP_SYS_ADMIN included these before they were split off it, and still does
    let admin = [Capability::CAP_BPF, Capability::CAP_PERFMON, Capability::CAP_CHECKPOINT_RESTORE]
        .contains(&capability)
        && caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap_or(false);
    admin || caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false)
}

/// The capabilities that capture keeps on this host; `multi`: the kernel has uprobe.multi.
pub fn kept(multi: bool) -> Vec<Capability> {
    kept_for(multi, only_user())
}

/// The same for a recorder of everybody, or of one user only: that one does not need the right to
/// look into other users' processes, and does not get all the rights of CAP_SYS_ADMIN.
pub fn kept_for(multi: bool, only_user: Option<u32>) -> Vec<Capability> {
    let everybodys =
        [Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH, Capability::CAP_SYS_ADMIN].as_slice();
    let wanted = |privilege: &&Privilege| {
        (privilege.needed != Needed::WithoutMulti || !multi)
            && (only_user.is_none() || !everybodys.contains(&privilege.capability))
    };
    PRIVILEGES.iter().filter(wanted).map(|privilege| privilege.capability).collect()
}

/// Why privileges could not be dropped.
#[derive(Debug, thiserror::Error)]
pub enum DropError {
    /// Capabilities are each thread's own: others would keep theirs.
    #[error("privileges are to be given up before other threads start; {threads} run")]
    Threads {
        /// How many run.
        threads: usize,
    },
    /// The kernel refused.
    #[error("giving up {what}: {source}")]
    Refused {
        /// The capability or setting.
        what: &'static str,
        /// The kernel's answer.
        source: CapsError,
    },
}

/// Runs `look` with no capability in effect but `keep` (of those there are), in this thread, and
/// restores the others.
///
/// # Errors
/// The kernel refused.
pub fn with_only<T>(keep: &[Capability], look: impl FnOnce() -> T) -> Result<T, DropError> {
    let refused = |source: CapsError| DropError::Refused { what: "capabilities for a while", source };
    let before = caps::read(None, CapSet::Effective).map_err(refused)?;
    let only: CapsHashSet = keep.iter().copied().filter(|capability| before.contains(capability)).collect();
    caps::set(None, CapSet::Effective, &only).map_err(refused)?;
    let seen = look();
    caps::set(None, CapSet::Effective, &before).map_err(refused)?;
    Ok(seen)
}

/// Drops every capability but `keep`, for good: effective, permitted, inheritable, ambient and
/// (where allowed) bounding, and sets no_new_privs. Threads started later have no more. Returns the
/// remaining ones.
///
/// # Errors
/// Other threads run already, or the kernel refused.
pub fn keep_only(keep: &[Capability]) -> Result<Vec<Capability>, DropError> {
    only_user();
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(DropError::Threads { threads });
    }
    let refused = |what: &'static str| move |source: CapsError| DropError::Refused { what, source };
    let permitted = caps::read(None, CapSet::Permitted).map_err(refused("capabilities"))?;
    let left: CapsHashSet = keep.iter().copied().filter(|capability| permitted.contains(capability)).collect();
    caps::clear(None, CapSet::Ambient).map_err(refused("ambient capabilities"))?;
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap_or(false) {
        let bounding = caps::read(None, CapSet::Bounding).map_err(refused("bounding capabilities"))?;
        for capability in bounding.difference(&left) {
            caps::drop(None, CapSet::Bounding, *capability).map_err(refused("bounding capabilities"))?;
        }
    }
    caps::clear(None, CapSet::Inheritable).map_err(refused("inheritable capabilities"))?;
    caps::set(None, CapSet::Effective, &left).map_err(refused("effective capabilities"))?;
    caps::set(None, CapSet::Permitted, &left).map_err(refused("permitted capabilities"))?;
    // SAFETY: prctl with these constants takes no pointers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        let source = CapsError::from(std::io::Error::last_os_error().to_string());
        return Err(DropError::Refused { what: "new privileges", source });
    }
    let mut left: Vec<_> = left.into_iter().collect();
    left.sort_by_key(Capability::index);
    Ok(left)
}

/// A setcap command's argument that grants `capabilities` ("cap_bpf,cap_perfmon=ep").
pub fn setcap_argument(capabilities: &[Capability]) -> String {
    let names: Vec<String> = capabilities.iter().map(|c| c.to_string().to_lowercase()).collect();
    format!("{}=ep", names.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_depends_on_the_kernel() {
        assert!(!kept_for(true, None).contains(&Capability::CAP_SYS_ADMIN));
        assert!(kept_for(false, None).contains(&Capability::CAP_SYS_ADMIN));
        assert!(kept_for(true, None).contains(&Capability::CAP_BPF));
        let own = kept_for(false, Some(1000));
        assert!(own.contains(&Capability::CAP_PERFMON) && own.contains(&Capability::CAP_SYSLOG));
        assert!(!own.contains(&Capability::CAP_SYS_PTRACE) && !own.contains(&Capability::CAP_SYS_ADMIN));
    }

    #[test]
    fn root_sees_everybody() {
        // SAFETY: getuid has no preconditions and cannot fail.
        let user = unsafe { libc::getuid() };
        assert_eq!(
            only_user().is_none(),
            user == 0 || caps::has_cap(None, CapSet::Ambient, Capability::CAP_SYS_PTRACE).unwrap()
        );
    }

    #[test]
    fn the_grant_is_written_as_setcap_reads_it() {
        let line = setcap_argument(&[Capability::CAP_BPF, Capability::CAP_SYS_PTRACE]);
        assert_eq!(line, "cap_bpf,cap_sys_ptrace=ep");
    }

    #[test]
    fn for_a_while_only_some_are_in_effect() {
        let before = effective();
        let during = with_only(&[Capability::CAP_BPF], effective).unwrap();
        assert!(during.iter().all(|capability| *capability == Capability::CAP_BPF));
        assert_eq!(effective(), before);
    }

    #[test]
    fn with_other_threads_nothing_is_given_up() {
        // the test harness runs threads of its own
        let before = effective();
        std::thread::spawn(move || {
            assert!(matches!(keep_only(&[]), Err(DropError::Threads { .. })));
            assert_eq!(effective(), before);
        })
        .join()
        .unwrap();
    }
}
