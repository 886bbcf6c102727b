//! The places of the probes in a library file: the functions of `functions` that it exports, by
//! file offset, one probe for names that share an address. `files` reads ELF, `attach` attaches.

use std::borrow::Cow;

use files::{Elf, NcclBuild, Question};
use record::Library;

use crate::functions::{self, Api, FUNCTIONS};

/// One probe to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The first of its names that the file exports.
    pub(crate) symbol: Cow<'static, str>,
    pub(crate) file_offset: u64,
    pub(crate) cookie: u64,
    /// File offset of a USDT point's semaphore; 0: none.
    pub(crate) semaphore: u64,
}

/// Only Open MPI has it: its handles are addresses, those of other libraries numbers.
const OPEN_MPI: &str = "ompi_mpi_comm_world";

/// What is asked of a file for its probes.
pub(crate) fn question(library: Library) -> Question {
    let of = |prefixes: &[&str]| Question::Exports {
        prefixes: prefixes.iter().map(|prefix| (*prefix).to_owned()).collect(),
    };
    if library == Library::Mpi { of(&["MPI_", "PMPI_", "MPIX_", "PMPIX_", OPEN_MPI]) } else { of(&["nccl", "pnccl"]) }
}

/// The probes for a file by what it exports, those that make communicators last: the kernel arms one
/// after the other, and of whoever was seen to make a communicator no call on it may be missed. Empty
/// when it has none of the functions.
pub(crate) fn targets(elf: &Elf, library: Library) -> Vec<Target> {
    let api = if library == Library::Mpi { Api::Mpi } else { Api::Nccl };
    let mut flags = 0;
    if api == Api::Mpi && elf.symbols.iter().all(|symbol| symbol.name != OPEN_MPI) {
        flags |= functions::COOKIE_INT_HANDLES;
    }
    let mut found: Vec<Target> = vec![];
    for (index, function) in FUNCTIONS.iter().enumerate().filter(|(_, f)| f.api == api) {
        for &name in function.symbols {
            let Some(symbol) = elf.symbols.iter().find(|s| s.name == name) else {
                continue;
            };
            let Some(file_offset) = elf.file_offset(symbol.probe) else {
                continue;
            };
            if found.iter().all(|target| target.file_offset != file_offset) {
                let large = if api == Api::Mpi && name.ends_with("_c") { functions::COOKIE_LARGE_COUNTS } else { 0 };
                let cookie = functions::cookie(index, 0) | u64::from(flags | large) << 32;
                found.push(Target { symbol: name.into(), file_offset, cookie, semaphore: 0 });
            }
        }
    }
    found.sort_by_key(|target| !functions::is_frequent(target.cookie));
    found
}

/// Notes in the probes of NCCL or RCCL how that build hashes.
pub(crate) fn note_build(targets: &mut [Target], library: Library, build: NcclBuild) {
    let mut flags = 0;
    if library == Library::Rccl {
        flags |= functions::COOKIE_RCCL;
    }
    if build.mixes {
        flags |= functions::COOKIE_HASH_MIX;
    }
    if build.splits_by_text {
        flags |= functions::COOKIE_SPLIT_TEXT;
    }
    for target in targets {
        target.cookie |= u64::from(flags) << 32;
    }
}

#[cfg(test)]
mod tests {
    use files::{Segment, Symbol};

    use super::*;

    #[test]
    fn what_makes_communicators_is_probed_last() {
        let names = ["MPI_Init", "MPI_Comm_split", "MPI_Allreduce", "MPI_Comm_free", "MPI_Barrier"];
        let symbols = names.iter().zip(1..).map(|(name, at)| {
            let address = 0x100 * at;
            Symbol { name: (*name).to_owned(), address, probe: address }
        });
        let segments = vec![Segment { address: 0, file_offset: 0, file_bytes: 0x1000 }];
        let targets = targets(&Elf { symbols: symbols.collect(), segments }, Library::Mpi);
        let order: Vec<&str> = targets.iter().map(|target| &*target.symbol).collect();
        let place = |name: &str| order.iter().position(|of| *of == name).unwrap();
        for call in ["MPI_Allreduce", "MPI_Barrier"] {
            for maker in ["MPI_Init", "MPI_Comm_split"] {
                assert!(place(call) < place(maker), "{order:?}");
            }
        }
    }
}
