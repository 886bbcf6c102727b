//! What a process gives up before it reads a file of somebody else's. It keeps its user: that of
//! everybody's ("nobody") is shared with others, who could end it. It has no capability, can gain
//! none, opens nothing, reaches nobody and starts nothing: of system calls it has those that read
//! what it is given and answer.

use caps::CapSet;
use libc::{c_long, sock_filter, sock_fprog};

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

const fn instruction(code: u32, jump_true: u8, jump_false: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: jump_true, jf: jump_false, k }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const HAS: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// `AUDIT_ARCH_X86_64` and `AUDIT_ARCH_AARCH64` of linux/audit.h.
const ARCHITECTURE: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
/// Offsets in `struct seccomp_data`: the call, the architecture, the lower halves of the second and
/// third argument (both architectures are little-endian).
const CALL_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const SECOND_ARGUMENT_AT: u32 = 16 + 8;
const THIRD_ARGUMENT_AT: u32 = 16 + 2 * 8;

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
    const KILL: sock_filter = instruction(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS);
    const ALLOW: sock_filter = instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
    let number = |call: &c_long| u32::try_from(*call).unwrap_or(u32::MAX);
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCHITECTURE_AT),
        instruction(IS, 1, 0, ARCHITECTURE),
        KILL,
        instruction(LOAD, 0, 0, CALL_AT),
    ];
    for call in CALLS {
        program.extend([instruction(IS, 0, 1, number(call)), ALLOW]);
    }
    for call in MAPPING_CALLS {
        program.extend([
            instruction(IS, 0, 4, number(call)),
            instruction(LOAD, 0, 0, THIRD_ARGUMENT_AT),
            instruction(HAS, 0, 1, libc::PROT_EXEC.cast_unsigned()),
            KILL,
            ALLOW,
        ]);
    }
    // Rust's library asks whether a descriptor is open, where its assertions are on.
    program.extend([
        instruction(IS, 0, 4, number(&libc::SYS_fcntl)),
        instruction(LOAD, 0, 0, SECOND_ARGUMENT_AT),
        instruction(IS, 1, 0, libc::F_GETFD.cast_unsigned()),
        KILL,
        ALLOW,
    ]);
    program.push(KILL);
    let filter = sock_fprog { len: u16::try_from(program.len()).unwrap_or(0), filter: program.as_mut_ptr() };
    // SAFETY: the program lives through the call, its length is the vector's.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    if set == 0 { Ok(()) } else { Err("system calls") }
}
