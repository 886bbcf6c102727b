//! Reading another process's memory, a copy at a time (process_vm_readv). It takes CAP_SYS_PTRACE or
//! the same user; nothing stops while it is read.

/// A process whose memory is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pid: libc::pid_t,
}

impl Memory {
    pub(crate) fn of(pid: u32) -> Memory {
        Memory { pid: libc::pid_t::try_from(pid).unwrap_or(-1) }
    }

    /// So many bytes at an address; none unless all of them are there.
    pub(crate) fn array<const N: usize>(self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0u8; N];
        self.read(address, &mut bytes)?;
        Some(bytes)
    }

    pub(crate) fn bytes(self, address: u64, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.read(address, &mut bytes)?;
        Some(bytes)
    }

    pub(crate) fn word(self, address: u64) -> Option<u64> {
        self.array(address).map(u64::from_ne_bytes)
    }

    fn read(self, address: u64, into: &mut [u8]) -> Option<()> {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: usize::try_from(address).ok()? as *mut libc::c_void, iov_len: into.len() };
        // SAFETY: `local` covers `into`, which lives through the call; the kernel checks the other
        // process's addresses.
        let copied = unsafe { libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0) };
        (usize::try_from(copied) == Ok(into.len())).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_and_what_is_none() {
        let memory = Memory::of(std::process::id());
        let bytes = [1u8, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(memory.word(bytes.as_ptr() as u64), Some(u64::from_ne_bytes(bytes)));
        assert_eq!(memory.bytes(bytes.as_ptr() as u64, 3), Some(vec![1, 2, 3]));
        assert_eq!((memory.word(8), memory.word(u64::MAX - 3)), (None, None));
        assert_eq!(Memory::of(u32::MAX).word(bytes.as_ptr() as u64), None);
    }
}
