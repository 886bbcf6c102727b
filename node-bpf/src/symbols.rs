//! The places of the probes in a library file: the functions of `functions` that it exports, by
//! file offset, one probe for names that share an address. `elf` reads ELF, `attach` attaches.

use std::borrow::Cow;
use std::path::Path;

use crate::elf::{self, Elf};
use crate::functions::{self, Api, FUNCTIONS};
use crate::nccl_hash::HashStyle;
use record::Library;

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

/// The probes for a file; empty when it exports none of the functions.
pub(crate) fn targets(path: &Path, library: Library) -> Result<Vec<Target>, String> {
    let api = if library == Library::Mpi { Api::Mpi } else { Api::Nccl };
    let elf = Elf::read(path, |name| {
        let name = name.strip_prefix(['p', 'P']).unwrap_or(name);
        name.starts_with("nccl") || name.starts_with("MPI_") || name == "ompi_mpi_comm_world"
    })?;
    let mut flags = 0;
    if library == Library::Rccl {
        flags |= functions::COOKIE_RCCL;
    }
    if api == Api::Mpi && elf.symbols.iter().all(|symbol| symbol.name != "ompi_mpi_comm_world") {
        flags |= functions::COOKIE_INT_HANDLES;
    }
    let mut found: Vec<Target> = vec![];
    for (index, function) in FUNCTIONS.iter().enumerate().filter(|(_, f)| f.api == api) {
        for &name in function.symbols {
            let Some(symbol) = elf.symbols.iter().find(|s| s.name == name) else {
                continue;
            };
            let Some(file_offset) = elf.file_offset(symbol.address) else {
                continue;
            };
            if found.iter().all(|target| target.file_offset != file_offset) {
                let cookie = functions::cookie(index, 0);
                found.push(Target { symbol: name.into(), file_offset, cookie, semaphore: 0 });
            }
        }
    }
    if api == Api::Nccl && !found.is_empty() {
        let build = elf::nccl_build(path);
        if build.style == HashStyle::Mix {
            flags |= functions::COOKIE_HASH_MIX;
        }
        if build.splits_by_text {
            flags |= functions::COOKIE_SPLIT_TEXT;
        }
    }
    for target in &mut found {
        target.cookie |= u64::from(flags) << 32;
    }
    Ok(found)
}
