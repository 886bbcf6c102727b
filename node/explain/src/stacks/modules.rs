//! The files that a process has mapped: the address of each, and the parts of an ELF file that
//! stacks need.
//!
//! Files are opened as the process sees them, so programs in containers, in a `chroot` or started
//! through the loader are found: by `/proc/PID/map_files` where the reader may, else by
//! `/proc/PID/root`.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::files::{Answer, Outcome, Question, Refusal, Segment};
use nix::errno::Errno;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, SectionHeader, SectionTable};
use object::{LittleEndian, ReadCache, ReadRef};
use procfs::process::{MMPermissions, MMapPath};

use super::process::{refused, user_of};
use super::types::StacksError;

/// Larger sections are not read: nothing that is needed here is as large.
const MAX_SECTION_BYTES: u64 = 128 << 20;
/// Bytes of unwind tables that are kept for the next time.
const MOST_KEPT_BYTES: u64 = 256 << 20;
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
pub(crate) fn open(pid: u32, mapping: &Mapping) -> io::Result<File> {
    let by_range = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    match File::open(by_range) {
        Err(_) if !mapping.path.ends_with(" (deleted)") => File::open(format!("/proc/{pid}/root{}", mapping.path)),
        opened => opened,
    }
}

/// How long one file is waited for.
const MOST_OF_A_FILE: Duration = Duration::from_secs(20);

/// Asks about a mapping's file, which is read by a process without rights.
///
/// # Errors
/// Why there is no answer; [`Refusal::Unreadable`] where the process or its file cannot be looked at
/// now.
pub(crate) fn ask(files: &::files::Files, pid: u32, mapping: &Mapping, question: Question) -> Outcome {
    let file = open(pid, mapping).map_err(|error| Refusal::Unreadable(error.to_string()))?;
    let user = user_of(pid).ok_or_else(|| Refusal::Unreadable("its process ends".to_owned()))?;
    files.answer(user, &file, question, Instant::now() + MOST_OF_A_FILE)
}

/// The addresses for which an ELF file was linked, and the interpreter's symbols in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ElfFacts {
    loads: Vec<Segment>,
    /// Address in the file's own terms of CPython's `_PyRuntime`.
    pub runtime: Option<u64>,
    /// Of `Py_Version` (from 3.11).
    pub version: Option<u64>,
    /// Of `PyCode_Type`.
    pub code_type: Option<u64>,
    /// Why all of this is empty.
    pub refusal: Option<Refusal>,
}

impl ElfFacts {
    /// What to add to addresses of the file to get those in the process. `None` where the mapping
    /// is not of a segment.
    pub(crate) fn bias(&self, mapping: &Mapping) -> Option<u64> {
        const PAGE: u64 = 4096;
        let load = self.loads.iter().find(|load| {
            let start = load.file_offset & !(PAGE - 1);
            (start..load.file_offset.saturating_add(load.file_bytes)).contains(&mapping.offset)
        })?;
        Some(mapping.start.wrapping_sub(mapping.offset).wrapping_add(load.file_offset).wrapping_sub(load.address))
    }
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
    /// Of a file; `None` where it has none, or larger ones. An error where the file cannot be read.
    fn of(file: File, room: u64) -> object::Result<Option<UnwindSections>> {
        let data = ReadCache::new(file);
        let header = FileHeader64::<LittleEndian>::parse(&data)?;
        let sections = header.sections(LE, &data)?;
        let Some((frames_at, frames)) = section(&sections, &data, b".eh_frame", room)? else { return Ok(None) };
        let index = section(&sections, &data, b".eh_frame_hdr", room)?;
        let (index_at, index) = index.map_or((0, None), |(at, bytes)| (at, Some(bytes)));
        Ok(Some(UnwindSections { frames, frames_at, index, index_at }))
    }

    fn bytes(&self) -> u64 {
        (self.frames.len() + self.index.as_ref().map_or(0, |index| index.len())) as u64
    }
}

fn section<'a, R: ReadRef<'a>>(
    sections: &SectionTable<'a, FileHeader64<LittleEndian>, R>,
    data: R,
    name: &[u8],
    room: u64,
) -> object::Result<Option<(u64, Arc<[u8]>)>> {
    let found = sections.section_by_name(LE, name).map(|(_, section)| section);
    let Some(section) = found.filter(|section| section.sh_size(LE) <= MAX_SECTION_BYTES.min(room)) else {
        return Ok(None);
    };
    Ok(Some((section.sh_addr(LE), section.data(LE, data)?.into())))
}

/// Facts of ELF files, kept by file: many processes of a host map the same ones.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Whom files are asked through.
    pub(super) reading: ::files::Files,
    facts: HashMap<FileKey, Arc<ElfFacts>>,
    unwind: HashMap<FileKey, Option<Arc<UnwindSections>>>,
}

impl Files {
    /// The facts of a mapping's file. They are empty where it is no ELF file, and as long as it
    /// cannot be read.
    pub(crate) fn facts(&mut self, pid: u32, mapping: &Mapping) -> Arc<ElfFacts> {
        let Some(key) = mapping.file else { return Arc::default() };
        if let Some(facts) = self.facts.get(&key) {
            return facts.clone();
        }
        if self.facts.len() >= MAX_FILES {
            self.facts.clear();
        }
        let question = Question::Interpreter { deep: mapping.path.contains("python") };
        let outcome = ask(&self.reading, pid, mapping, question);
        let facts = Arc::new(match outcome.as_deref() {
            Ok(Answer::Interpreter(found)) => ElfFacts {
                loads: found.segments.clone(),
                runtime: found.runtime,
                version: found.version,
                code_type: found.code_type,
                refusal: None,
            },
            Ok(_) => ElfFacts::default(),
            Err(refusal) => ElfFacts { refusal: Some(refusal.clone()), ..ElfFacts::default() },
        });
        // A disk that is slow now may answer the next time.
        if facts.refusal.as_ref().is_none_or(Refusal::is_final) {
            self.facts.insert(key, facts.clone());
        }
        facts
    }

    /// The unwind tables of a mapping's file.
    /// They are taken from the `room` that there is; none where it is too small.
    pub(crate) fn unwind_sections(
        &mut self,
        pid: u32,
        mapping: &Mapping,
        room: &mut u64,
    ) -> Option<Arc<UnwindSections>> {
        let key = mapping.file?;
        if let Some(known) = self.unwind.get(&key) {
            let bytes = known.as_ref().map_or(0, |known| known.bytes());
            *room = room.checked_sub(bytes)?;
            return known.clone();
        }
        let kept: u64 = self.unwind.values().flatten().map(|known| known.bytes()).sum();
        if self.unwind.len() >= MAX_FILES || kept > MOST_KEPT_BYTES {
            self.unwind.clear();
        }
        let sections = UnwindSections::of(open(pid, mapping).ok()?, *room).ok()?.map(Arc::new);
        *room = room.saturating_sub(sections.as_ref().map_or(0, |sections| sections.bytes()));
        self.unwind.insert(key, sections.clone());
        sections
    }
}
