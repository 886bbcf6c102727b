//! The floor for measurements: probes at a function's entry and return that do nothing.

use std::path::Path;

use libbpf_rs::{Link, Object, ObjectBuilder};

use crate::attach::{self, AttachMode};
use crate::elf::Elf;
use crate::error::Error;
use crate::loader::Aligned;
use crate::symbols::Target;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/empty.bpf.o")));

/// An entry and a return probe of every process at one function; gone when dropped.
#[derive(Debug)]
pub struct EmptyProbes {
    _links: Vec<Link>,
    _object: Object,
}

impl EmptyProbes {
    /// Attaches to an exported function of a file.
    ///
    /// # Errors
    /// The file has no such function, or the kernel refuses this mode.
    pub fn attach(path: &Path, symbol: &str, mode: AttachMode) -> Result<Self, Error> {
        let fail = |reason: String| Error::Library { path: path.to_owned(), reason };
        let elf = Elf::read(path, |name| name == symbol).map_err(fail)?;
        let found = elf.symbols.first().and_then(|found| elf.file_offset(found.address));
        let file_offset = found.ok_or_else(|| fail(format!("it exports no {symbol}")))?;
        let refused = |error: libbpf_rs::Error| Error::Load { reason: error.to_string() };
        let mut open = ObjectBuilder::default().open_memory(&OBJECT.0).map_err(refused)?;
        for mut program in open.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            program.set_autoload(mode.suits(&name));
        }
        let object = open.load().map_err(refused)?;
        let target = Target { symbol: symbol.to_owned().into(), file_offset, cookie: 0, semaphore: 0 };
        let attached = attach::attach(&object, "empty", mode, path, &[target]).map_err(refused)?;
        if let Some((_, reason)) = attached.refused.into_iter().next() {
            return Err(fail(reason));
        }
        Ok(EmptyProbes { _links: attached.links, _object: object })
    }
}
