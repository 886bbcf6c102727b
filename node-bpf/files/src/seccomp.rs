//! Filters of system calls (seccomp(2), `SECCOMP_SET_MODE_FILTER`): what a process, and what it
//! starts, may ask of the kernel from then on.

use libc::{c_long, sock_filter, sock_fprog};

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is made.
    Allow,
    /// It fails with EPERM.
    Refuse,
    /// The process ends.
    Kill,
}

impl Verdict {
    const fn instruction(self) -> sock_filter {
        let value = match self {
            Self::Allow => libc::SECCOMP_RET_ALLOW,
            Self::Refuse => libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            Self::Kill => libc::SECCOMP_RET_KILL_PROCESS,
        };
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value)
    }
}

const fn instruction(code: u32, jump_true: u8, jump_false: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: jump_true, jf: jump_false, k }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const HAS: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;

/// `AUDIT_ARCH_X86_64` and `AUDIT_ARCH_AARCH64` of linux/audit.h.
const ARCHITECTURE: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
/// `__X32_SYSCALL_BIT` of asm/unistd.h: calls of the x32 ABI have the architecture of x86-64, and
/// numbers of their own beside its.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;
/// Offsets in `struct seccomp_data`: the call, the architecture, the lower halves of the arguments
/// (both architectures are little-endian).
const CALL_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

/// A filter that is being made: the first rule that names a call decides.
#[derive(Debug)]
pub struct Filter(Vec<sock_filter>);

impl Filter {
    /// With the verdict on calls of another ABI than the program's, whose numbers mean something else:
    /// of another architecture (32-bit x86, 32-bit ARM), and on x86-64 those of x32.
    #[must_use]
    pub fn new(foreign: Verdict) -> Self {
        let filter = vec![
            instruction(LOAD, 0, 0, ARCHITECTURE_AT),
            instruction(IS, 1, 0, ARCHITECTURE),
            foreign.instruction(),
            instruction(LOAD, 0, 0, CALL_AT),
            #[cfg(target_arch = "x86_64")]
            instruction(HAS, 0, 1, X32),
            #[cfg(target_arch = "x86_64")]
            foreign.instruction(),
        ];
        Self(filter)
    }

    /// The verdict on these calls.
    pub fn on(&mut self, calls: &[c_long], verdict: Verdict) {
        for call in calls {
            self.0.extend([instruction(IS, 0, 1, number(*call)), verdict.instruction()]);
        }
    }

    /// Allows a call whose argument, from 0, has none of these bits; else it ends the process.
    pub fn without_bits(&mut self, call: c_long, argument: u32, bits: u32) {
        self.on_argument(call, argument, instruction(HAS, 0, 1, bits));
    }

    /// Allows a call whose argument, from 0, is this; else it ends the process.
    pub fn only_value(&mut self, call: c_long, argument: u32, value: u32) {
        self.on_argument(call, argument, instruction(IS, 1, 0, value));
    }

    /// `test` jumps over the end of the process where the call is allowed.
    fn on_argument(&mut self, call: c_long, argument: u32, test: sock_filter) {
        self.0.extend([
            instruction(IS, 0, 4, number(call)),
            instruction(LOAD, 0, 0, ARGUMENTS_AT + 8 * argument),
            test,
            Verdict::Kill.instruction(),
            Verdict::Allow.instruction(),
        ]);
    }

    /// Puts it in force for this thread and those that it starts, for good, with the verdict on all
    /// other calls. Needs `PR_SET_NO_NEW_PRIVS`.
    ///
    /// # Errors
    /// The kernel refused, or has no seccomp.
    pub fn install(mut self, others: Verdict) -> std::io::Result<()> {
        self.0.push(others.instruction());
        let len = u16::try_from(self.0.len()).map_err(std::io::Error::other)?;
        let filter = sock_fprog { len, filter: self.0.as_mut_ptr() };
        // SAFETY: the program lives through the call, its length is the vector's.
        let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
        if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

fn number(call: c_long) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}
