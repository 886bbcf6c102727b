//! System calls that a recorder never needs, whatever it was made to do: they are refused to it, and
//! to what it starts, from its start on. What capabilities forbid anyhow is among them: a capability
//! that capture needs (CAP_SYS_ADMIN before Linux 6.6) allows most of these, too.

use files::seccomp::{Filter, Verdict};
use libc::c_long;

/// Refused with EPERM. Not `ptrace`: a hook may print stacks with a debugger.
const UNNEEDED: &[c_long] = &[
    // other views of files, and file systems
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // the kernel and the host
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    // other processes' memory and descriptors, keys
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_io_uring_setup,
    libc::SYS_personality,
];

/// Refuses them to this thread and to all that it starts, for good. Privileges have to be given up
/// before ([`super::privileges::keep_only`]).
///
/// # Errors
/// The kernel has no seccomp, or something else does not allow it.
pub fn refuse_unneeded() -> std::io::Result<()> {
    let mut filter = Filter::new(Verdict::Refuse);
    filter.on(UNNEEDED, Verdict::Refuse);
    filter.install(Verdict::Allow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_recorder_never_needs_is_refused_and_the_rest_is_not() {
        // SAFETY: the child makes system calls only, and ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: calls without pointers, or with such as the kernel refuses before it reads them.
            let failed = unsafe {
                let refused = |call: c_long, a: c_long, b: c_long| {
                    libc::syscall(call, a, b, 0, 0, 0) == -1 && *libc::__errno_location() == libc::EPERM
                };
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                    || refuse_unneeded().is_err()
                    || !refused(libc::SYS_unshare, 0, 0)
                    || !refused(libc::SYS_setns, -1, 0)
                    || !refused(libc::SYS_sethostname, 0, 0)
                    || !refused(libc::SYS_io_uring_setup, 0, 0)
                    // The same calls by their numbers in x32, and all others of it.
                    || (cfg!(target_arch = "x86_64")
                        && [libc::SYS_unshare, libc::SYS_getpid, 0xfff].iter().any(|call| !refused(call | 0x4000_0000, 0, 0)))
                    || libc::syscall(libc::SYS_getpid) <= 0
                    || libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) < 0
            };
            // SAFETY: ends this process without running anything of its parent's.
            unsafe { libc::_exit(i32::from(failed)) };
        }
        let mut status = -1;
        // SAFETY: the child is ours, the pointer lives through the call.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((ended, status), (child, 0));
    }
}
