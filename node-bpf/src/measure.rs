//! Floors for measurements: probes at a function's entry and return that do nothing, and those that
//! do the minimum for a record of a call.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use files::{Answer, Files, Question};
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, OpenObject};

use crate::attach;
use crate::config::AttachMode;
use crate::error::Error;
use crate::lookup::Aligned;
use crate::symbols::Target;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/empty.bpf.o")));

/// The beginning of the names of the programs that do nothing.
pub(crate) const EMPTY: &str = "empty";

/// The programs that do nothing, loaded.
pub(crate) fn empty_programs(mode: AttachMode) -> libbpf_rs::Result<Object> {
    load(ObjectBuilder::default().open_memory(&OBJECT.0)?, EMPTY, mode)
}

fn load(mut open: OpenObject, family: &str, mode: AttachMode) -> libbpf_rs::Result<Object> {
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        program.set_autoload(name.starts_with(family) && mode.suits(&name));
    }
    open.load()
}

/// How long reading the file is waited for.
const MOST_OF_A_FILE: Duration = Duration::from_secs(60);

/// An entry and a return probe of every process at one function, which do (nearly) nothing; removed
/// on drop.
#[derive(Debug)]
pub struct EmptyProbes {
    _links: Vec<Link>,
    object: Object,
}

/// The work of a floor's probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// Nothing.
    Nothing,
    /// Both times, an argument on the stack, and a record of the usual size in a ring buffer of 4
    /// MiB that nothing reads: it has room for some 30,000 calls.
    Record,
}

impl EmptyProbes {
    /// Attaches to an exported function of a file.
    ///
    /// # Errors
    /// The file has no such function, or the kernel refuses this mode.
    pub fn attach(path: &Path, symbol: &str, mode: AttachMode, floor: Floor) -> Result<Self, Error> {
        let fail = |reason: String| Error::Library { path: path.to_owned(), reason };
        let file = File::open(path).map_err(|error| fail(error.to_string()))?;
        let question = Question::Exports { prefixes: vec![symbol.to_owned()] };
        let answer = Files::new(|| {}).answer(0, &file, question, Instant::now() + MOST_OF_A_FILE);
        let answer = answer.map_err(|refusal| fail(refusal.to_string()))?;
        let Answer::Exports(elf) = &*answer else { return Err(fail("it was asked something else".to_owned())) };
        let found = elf.symbols.iter().find(|found| found.name == symbol);
        let found = found.and_then(|found| elf.file_offset(found.probe));
        let file_offset = found.ok_or_else(|| fail(format!("it exports no {symbol}")))?;
        let refused = |error: libbpf_rs::Error| Error::Load { reason: error.to_string() };
        let open = ObjectBuilder::default().open_memory(&OBJECT.0).map_err(refused)?;
        let object = load(open, floor.family(), mode).map_err(refused)?;
        let target = Target { symbol: symbol.to_owned().into(), file_offset, cookie: 0, semaphore: 0 };
        let attached = attach::attach(&object, floor.family(), mode, path, &[target]).map_err(refused)?;
        if let Some((_, reason)) = attached.refused.into_iter().next() {
            return Err(fail(reason));
        }
        Ok(EmptyProbes { _links: attached.links, object })
    }

    /// Calls of [`Floor::Record`] that found no room: they took less time than with a record. None
    /// when that is not known.
    pub fn without_room(&self) -> Option<u64> {
        let map = self.object.maps().find(|map| map.name() == "no_room")?;
        let count = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        Some(u64::from_ne_bytes(*count.first_chunk()?))
    }
}

impl Floor {
    /// The beginning of the programs' names.
    fn family(self) -> &'static str {
        match self {
            Floor::Nothing => EMPTY,
            Floor::Record => "least",
        }
    }
}
