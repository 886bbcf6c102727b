//! The files that a process has mapped: the address of each, and the parts of an ELF file that
//! stacks need.
//!
//! Files are opened as the process sees them, so programs in containers, in a `chroot` or started
//! through the loader are found: by `/proc/PID/map_files` where the reader may, else by
//! `/proc/PID/root`.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use nix::errno::Errno;
use object::elf::{self, FileHeader64, PT_LOAD, SHT_DYNSYM, SHT_SYMTAB};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};
use object::{LittleEndian, ReadCache, ReadRef};
use procfs::process::{MMPermissions, MMapPath};

use super::process::refused;
use super::types::StacksError;

/// Larger sections are not read: nothing that is needed here is as large.
pub(crate) const MAX_SECTION_BYTES: u64 = 128 << 20;
/// Most files whose facts are kept.
const MAX_FILES: usize = 4096;

const LE: LittleEndian = LittleEndian;

/// A file on this host: device and inode.
pub(crate) type FileKey = (i32, i32, u64);

/// One range of a process's address space.
#[derive(Debug, Clone)]
pub(crate) struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in its file.
    pub offset: u64,
    /// May be executed.
    pub executable: bool,
    /// The file, where one is mapped.
    pub file: Option<FileKey>,
    /// Path of the file in the process's own root, or the kernel's name, such as `[uprobes]`.
    pub path: String,
}

/// The mappings of a process, ascending.
pub(crate) fn mappings(pid: u32) -> Result<Vec<Mapping>, StacksError> {
    let refusal = |error: procfs::ProcError| match error {
        procfs::ProcError::PermissionDenied(_) => refused(pid, Errno::EACCES),
        _ => StacksError::Ended { pid },
    };
    let process = procfs::process::Process::new(i32::try_from(pid).map_err(|_| StacksError::Ended { pid })?);
    let maps = process.and_then(|process| process.maps()).map_err(refusal)?;
    Ok(maps
        .into_iter()
        .map(|map| {
            let path = match map.pathname {
                MMapPath::Path(path) => path.to_string_lossy().into_owned(),
                MMapPath::Vdso => "[vdso]".to_owned(),
                MMapPath::Other(name) => format!("[{name}]"),
                _ => String::new(),
            };
            Mapping {
                start: map.address.0,
                end: map.address.1,
                offset: map.offset,
                executable: map.perms.contains(MMPermissions::EXECUTE),
                file: (map.inode != 0).then_some((map.dev.0, map.dev.1, map.inode)),
                path,
            }
        })
        .collect())
}

/// Opens the file of a mapping.
pub(crate) fn open(pid: u32, mapping: &Mapping) -> Option<File> {
    let by_range = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    if let Ok(file) = File::open(by_range) {
        return Some(file);
    }
    if mapping.path.ends_with(" (deleted)") {
        return None;
    }
    File::open(format!("/proc/{pid}/root{}", mapping.path)).ok()
}

/// The addresses for which an ELF file was linked, and the interpreter's symbols in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ElfFacts {
    loads: Vec<Load>,
    /// Address in the file's own terms of CPython's `_PyRuntime`.
    pub runtime: Option<u64>,
    /// Of `Py_Version` (from 3.11).
    pub version: Option<u64>,
    /// Of `PyCode_Type`.
    pub code_type: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Load {
    address: u64,
    offset: u64,
    file_bytes: u64,
}

impl ElfFacts {
    /// What to add to addresses of the file to get those in the process. `None` where the mapping
    /// is not of a segment.
    pub(crate) fn bias(&self, mapping: &Mapping) -> Option<u64> {
        const PAGE: u64 = 4096;
        let load = self.loads.iter().find(|load| {
            let start = load.offset & !(PAGE - 1);
            (start..load.offset.saturating_add(load.file_bytes)).contains(&mapping.offset)
        })?;
        Some(mapping.start.wrapping_sub(mapping.offset).wrapping_add(load.offset).wrapping_sub(load.address))
    }

    fn of<'a, R: ReadRef<'a>>(data: R, deep: bool) -> object::Result<ElfFacts> {
        let header = FileHeader64::<LittleEndian>::parse(data)?;
        let loads = header
            .program_headers(LE, data)?
            .iter()
            .filter(|segment| segment.p_type(LE) == PT_LOAD)
            .map(|segment| Load {
                address: segment.p_vaddr(LE),
                offset: segment.p_offset(LE),
                file_bytes: segment.p_filesz(LE),
            })
            .collect();
        let sections = header.sections(LE, data)?;
        let mut facts = ElfFacts { loads, ..ElfFacts::default() };
        let names: [&[u8]; 3] = [b"_PyRuntime", b"Py_Version", b"PyCode_Type"];
        let [mut runtime, mut version, mut code_type] = dynamic_symbols(&sections, data, names)?;
        let section = sections.section_by_name(LE, b".PyRuntime").map(|(_, section)| section.sh_addr(LE));
        if runtime.is_none() && (deep || section.is_some()) {
            let symbols = sections.symbols(LE, data, SHT_SYMTAB)?;
            // An extension module names the interpreter's symbols as undefined ones.
            for symbol in symbols.iter().filter(|symbol| symbol.st_shndx(LE) != elf::SHN_UNDEF) {
                let name = symbol.name(LE, symbols.strings()).unwrap_or_default();
                let slot = match name {
                    b"_PyRuntime" => &mut runtime,
                    b"Py_Version" => &mut version,
                    b"PyCode_Type" => &mut code_type,
                    _ => continue,
                };
                *slot = Some(symbol.st_value(LE));
            }
        }
        facts.runtime = runtime.or(section);
        (facts.version, facts.code_type) = (version, code_type);
        Ok(facts)
    }
}

/// Finds exported symbols by the hash table, without reading all names; by all names where there is
/// no such table.
fn dynamic_symbols<'a, R: ReadRef<'a>, const N: usize>(
    sections: &SectionTable<'a, FileHeader64<LittleEndian>, R>,
    data: R,
    names: [&[u8]; N],
) -> object::Result<[Option<u64>; N]> {
    let small =
        |kind| sections.iter().filter(|section| section.sh_type(LE) == kind).all(|s| s.sh_size(LE) < MAX_SECTION_BYTES);
    if !small(SHT_DYNSYM) || !small(elf::SHT_GNU_HASH) {
        return Ok([None; N]);
    }
    let symbols = sections.symbols(LE, data, SHT_DYNSYM)?;
    let Some((table, _)) = sections.gnu_hash(LE, data)? else {
        let find = |name| symbols.iter().find(|symbol| symbol.name(LE, symbols.strings()) == Ok(name));
        return Ok(names.map(|name| find(name).filter(|symbol| symbol.st_value(LE) != 0).map(|s| s.st_value(LE))));
    };
    let versions = Default::default();
    Ok(names.map(|name| {
        let (_, symbol) = table.find(LE, name, elf::gnu_hash(name), None, &symbols, &versions)?;
        Some(symbol.st_value(LE)).filter(|address| *address != 0)
    }))
}

/// The unwind tables of one file.
#[derive(Debug)]
pub(crate) struct UnwindSections {
    /// `.eh_frame`.
    pub frames: Arc<[u8]>,
    /// Its address in the file's own terms.
    pub frames_at: u64,
    /// `.eh_frame_hdr`, where there is one.
    pub index: Option<Arc<[u8]>>,
    /// Its address in the file's own terms.
    pub index_at: u64,
}

impl UnwindSections {
    /// Of the file of a mapping. `None` where it has none or is not readable.
    pub(crate) fn of(pid: u32, mapping: &Mapping) -> Option<UnwindSections> {
        let data = ReadCache::new(open(pid, mapping)?);
        let header = FileHeader64::<LittleEndian>::parse(&data).ok()?;
        let sections = header.sections(LE, &data).ok()?;
        let (frames_at, frames) = section(&sections, &data, b".eh_frame")?;
        let index = section(&sections, &data, b".eh_frame_hdr");
        let (index_at, index) = index.map_or((0, None), |(at, bytes)| (at, Some(bytes)));
        Some(UnwindSections { frames, frames_at, index, index_at })
    }
}

fn section<'a, R: ReadRef<'a>>(
    sections: &SectionTable<'a, FileHeader64<LittleEndian>, R>,
    data: R,
    name: &[u8],
) -> Option<(u64, Arc<[u8]>)> {
    let (_, section) = sections.section_by_name(LE, name)?;
    if section.sh_size(LE) > MAX_SECTION_BYTES {
        return None;
    }
    Some((section.sh_addr(LE), section.data(LE, data).ok()?.into()))
}

/// Facts of ELF files, kept by file: many processes of a host map the same ones.
#[derive(Debug, Default)]
pub(crate) struct Files {
    facts: HashMap<FileKey, Arc<ElfFacts>>,
    unwind: HashMap<FileKey, Option<Arc<UnwindSections>>>,
}

impl Files {
    /// The facts of a mapping's file; those of a file that is no ELF file or cannot be opened are
    /// empty.
    pub(crate) fn facts(&mut self, pid: u32, mapping: &Mapping) -> Arc<ElfFacts> {
        let Some(key) = mapping.file else { return Arc::default() };
        if let Some(facts) = self.facts.get(&key) {
            return facts.clone();
        }
        if self.facts.len() >= MAX_FILES {
            self.facts.clear();
        }
        let Some(file) = open(pid, mapping) else { return Arc::default() };
        let facts = Arc::new(ElfFacts::of(&ReadCache::new(file), mapping.path.contains("python")).unwrap_or_default());
        self.facts.insert(key, facts.clone());
        facts
    }

    /// The unwind tables of a mapping's file.
    pub(crate) fn unwind_sections(&mut self, pid: u32, mapping: &Mapping) -> Option<Arc<UnwindSections>> {
        let key = mapping.file?;
        if let Some(known) = self.unwind.get(&key) {
            return known.clone();
        }
        if self.unwind.len() >= MAX_FILES {
            self.unwind.clear();
        }
        let sections = UnwindSections::of(pid, mapping).map(Arc::new);
        self.unwind.insert(key, sections.clone());
        sections
    }
}
