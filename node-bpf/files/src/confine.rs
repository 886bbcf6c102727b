//! What a process gives up before it reads a file of somebody else's. It keeps its user: that of
//! everybody's ("nobody") is shared with others, who could end it. It has no capability, can gain
//! none, opens nothing, reaches nobody and starts nothing: of system calls it has those that read
//! what it is given and answer.

use caps::CapSet;
use libc::c_long;

use super::seccomp::{Filter, Verdict};

/// Memory besides the mapped file.
const MOST_HEAP_BYTES: u64 = 512 << 20;
const MOST_DESCRIPTORS: u64 = 16;

/// Confines this process for good.
///
/// # Errors
/// What could not be given up: then no file must be read.
pub(crate) fn confine() -> Result<(), &'static str> {
    // SAFETY: these calls take no pointers but the path, which is a C string.
    unsafe {
        if libc::chdir(c"/".as_ptr()) != 0 {
            return Err("its directory");
        }
        if libc::prctl(libc::PR_SET_DUMPABLE, 0) != 0 {
            return Err("being looked into");
        }
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err("new privileges");
        }
        // from 5.9 on; before, the descriptors are all closed on exec anyway
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
    }
    for (resource, most) in [
        (libc::RLIMIT_DATA, MOST_HEAP_BYTES),
        (libc::RLIMIT_NOFILE, MOST_DESCRIPTORS),
        (libc::RLIMIT_FSIZE, 0),
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_NPROC, 0),
        (libc::RLIMIT_MEMLOCK, 0),
    ] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the pointer is to a value that lives through the call.
        if unsafe { libc::setrlimit(resource, &limit) } != 0 {
            return Err("a resource");
        }
    }
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set).map_err(|_| "capabilities")?;
    }
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"rankmesh-files".as_ptr()) };
    filter()
}

/// The system calls that reading takes, without those that map memory.
const CALLS: &[c_long] = &[
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_close,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_setitimer,
    libc::SYS_rt_sigprocmask,
    libc::SYS_exit_group,
];
/// Those that map memory: not to be executed.
const MAPPING_CALLS: &[c_long] = &[libc::SYS_mmap, libc::SYS_mprotect];

/// Any other system call ends the process.
fn filter() -> Result<(), &'static str> {
    let mut filter = Filter::new(Verdict::Kill);
    filter.on(CALLS, Verdict::Allow);
    for call in MAPPING_CALLS {
        filter.without_bits(*call, 2, libc::PROT_EXEC.cast_unsigned());
    }
    // Rust's library asks whether a descriptor is open, where its assertions are on.
    filter.only_value(libc::SYS_fcntl, 1, libc::F_GETFD.cast_unsigned());
    filter.install(Verdict::Kill).map_err(|_| "system calls")
}
