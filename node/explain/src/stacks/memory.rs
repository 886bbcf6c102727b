//! Reads the memory of another process without stopping it (`process_vm_readv`).

use std::io::IoSliceMut;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// Most pieces that one call of the kernel takes (`IOV_MAX`).
const MAX_PIECES: usize = 1024;

/// The memory of one process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pid: u32,
}

/// A piece of another process's memory that was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Piece {
    /// Its address in that process.
    pub address: u64,
    /// Its contents.
    pub bytes: Vec<u8>,
}

impl Memory {
    /// Of this process. Whether it may be read shows at the first read.
    pub(crate) fn of(pid: u32) -> Memory {
        Memory { pid }
    }

    /// Exactly `length` bytes; `EFAULT` where less is mapped.
    pub(crate) fn read(&self, address: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; length];
        self.read_into(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `bytes`; `EFAULT` where less is mapped.
    pub(crate) fn read_into(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let wanted = bytes.len();
        let remote = [RemoteIoVec { base: host_address(address)?, len: wanted }];
        let read = process_vm_readv(self.target()?, &mut [IoSliceMut::new(bytes)], &remote)?;
        if read == wanted { Ok(()) } else { Err(Errno::EFAULT) }
    }

    /// A 64-bit word.
    pub(crate) fn word(&self, address: u64) -> Result<u64, Errno> {
        let mut bytes = [0; 8];
        self.read_into(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// As much as is mapped of `length` bytes from `address` on.
    pub(crate) fn read_up_to(&self, address: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; length];
        let remote = [RemoteIoVec { base: host_address(address)?, len: length }];
        let read = process_vm_readv(self.target()?, &mut [IoSliceMut::new(&mut bytes)], &remote)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Many pieces in one call. The kernel stops at the first piece that is not mapped: that one
    /// and those after it are left out of the answer.
    pub(crate) fn read_pieces(&self, wanted: &[(u64, usize)]) -> Result<Vec<Piece>, Errno> {
        let wanted = &wanted[..wanted.len().min(MAX_PIECES)];
        let mut pieces: Vec<Piece> =
            wanted.iter().map(|(address, length)| Piece { address: *address, bytes: vec![0; *length] }).collect();
        let remote = wanted
            .iter()
            .map(|(address, length)| Ok(RemoteIoVec { base: host_address(*address)?, len: *length }))
            .collect::<Result<Vec<_>, Errno>>()?;
        let mut local: Vec<_> = pieces.iter_mut().map(|piece| IoSliceMut::new(&mut piece.bytes)).collect();
        let mut read = match process_vm_readv(self.target()?, &mut local, &remote) {
            Ok(read) => read,
            Err(Errno::EFAULT) => 0,
            Err(error) => return Err(error),
        };
        let complete = pieces
            .iter()
            .position(|piece| {
                let missing = piece.bytes.len() > read;
                read = read.saturating_sub(piece.bytes.len());
                missing
            })
            .unwrap_or(pieces.len());
        pieces.truncate(complete);
        Ok(pieces)
    }

    fn target(&self) -> Result<Pid, Errno> {
        i32::try_from(self.pid).map(Pid::from_raw).map_err(|_| Errno::ESRCH)
    }
}

impl Piece {
    /// `length` bytes at `address`, where this piece has them.
    pub(crate) fn at(&self, address: u64, length: usize) -> Option<&[u8]> {
        let from = usize::try_from(address.checked_sub(self.address)?).ok()?;
        self.bytes.get(from..from.checked_add(length)?)
    }
}

/// A 64-bit word out of bytes that were read; 0 past their end.
pub(crate) fn word_at(bytes: &[u8], offset: u64) -> u64 {
    let word = usize::try_from(offset).ok().and_then(|at| bytes.get(at..at.checked_add(8)?)?.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}

/// A 32-bit signed integer out of bytes that were read; 0 past their end.
pub(crate) fn int_at(bytes: &[u8], offset: u64) -> i32 {
    let int = usize::try_from(offset).ok().and_then(|at| bytes.get(at..at.checked_add(4)?)?.try_into().ok());
    int.map_or(0, i32::from_le_bytes)
}

fn host_address(address: u64) -> Result<usize, Errno> {
    usize::try_from(address).map_err(|_| Errno::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_that_is_not_mapped_leaves_out_it_and_those_after_it() {
        let memory = Memory::of(std::process::id());
        let known = [7_u64, 8, 9];
        let address = known.as_ptr() as u64;
        let pieces = memory.read_pieces(&[(address, 16), (address + 8, 16), (16, 8), (address, 8)]).unwrap();
        assert_eq!(pieces.len(), 2);
        assert_eq!(word_at(&pieces[1].bytes, 8), 9);
        assert_eq!(pieces[0].at(address + 8, 8), Some(&8_u64.to_le_bytes()[..]));
        assert_eq!(pieces[0].at(address + 9, 8), None);
        assert_eq!(memory.read(16, 8), Err(Errno::EFAULT));
        assert_eq!(memory.word(address), Ok(7));
        assert!(memory.read_pieces(&[(16, 8)]).unwrap().is_empty());
    }

    #[test]
    fn a_process_that_is_not_there_is_named_so() {
        assert_eq!(Memory::of(u32::MAX).word(8), Err(Errno::ESRCH));
    }
}
