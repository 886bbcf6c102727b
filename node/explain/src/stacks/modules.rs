//! The files that a process has mapped: the address of each, and what is known of the ELF file.
//!
//! Files are opened as the process sees them, so programs in containers, in a `chroot` or started
//! through the loader are found: by `/proc/PID/map_files` where the reader may, else by
//! `/proc/PID/root`. Only regular files are, and nothing of one is read in this process but the
//! bytes of its unwind tables (`tables`).

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::files::{Answer, FileId, MappedFile, Outcome, Question, Refusal, Regular, Segment, Table};
use nix::errno::Errno;
use procfs::FromBufRead as _;
use procfs::process::{MMPermissions, MMapPath, MemoryMaps};

use super::process::{refused, user_of};
use super::tables::UnwindTables;
use super::types::StacksError;

/// Longest list of mappings that is read: 65,530 mappings, as many as Linux lets a process have, of
/// files with paths of the usual length.
const MOST_MAPS_BYTES: u64 = 32 << 20;
/// Most files whose facts are kept.
const MAX_FILES: usize = 4096;

/// A file on this host, as mappings show it: device and inode. Not its content, which may change.
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
    let unread = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => refused(pid, Errno::EACCES),
        _ => StacksError::Ended { pid },
    };
    let mut text = Vec::new();
    let file = File::open(format!("/proc/{pid}/maps")).map_err(unread)?;
    file.take(MOST_MAPS_BYTES + 1).read_to_end(&mut text).map_err(unread)?;
    let not = |reason: String| StacksError::NotReadable { pid, reason };
    if text.len() as u64 > MOST_MAPS_BYTES {
        return Err(not(format!("its list of mappings has more than {} MiB: no program's has", MOST_MAPS_BYTES >> 20)));
    }
    let maps =
        MemoryMaps::from_buf_read(text.as_slice()).map_err(|error| not(format!("its list of mappings: {error}")))?;
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

/// The file of a mapping, which is not open yet.
fn found(pid: u32, mapping: &Mapping) -> io::Result<Regular> {
    let (major, minor, inode) = mapping.file.ok_or(io::ErrorKind::NotFound)?;
    let number = |number: i32| number.cast_unsigned();
    let device = (number(major), number(minor));
    let file = MappedFile { range: mapping.start..mapping.end, path: Path::new(&mapping.path), device, inode };
    Regular::mapped(pid, &file)
}

/// How long one file is waited for.
const MOST_OF_A_FILE: Duration = Duration::from_secs(20);

/// Asks about a mapping's file, which is read by a process without rights.
///
/// # Errors
/// Why there is no answer; [`Refusal::Unreadable`] where the process or its file cannot be looked at
/// now.
pub(crate) fn ask(files: &::files::Files, pid: u32, mapping: &Mapping, question: Question) -> Outcome {
    let file = found(pid, mapping).map_err(|error| Refusal::Unreadable(error.to_string()))?;
    ask_of(files, pid, &file, question)
}

fn ask_of(files: &::files::Files, pid: u32, file: &Regular, question: Question) -> Outcome {
    let file = file.open().map_err(|error| Refusal::Unreadable(error.to_string()))?;
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
    /// Where its unwind tables are: `.eh_frame`, and `.eh_frame_hdr` where there is one.
    tables: Option<(Table, Option<Table>)>,
    /// Which content of the file this is of.
    id: Option<FileId>,
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

/// Facts of ELF files, kept by file and content: many processes of a host map the same ones.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Whom files are asked through.
    pub(super) reading: ::files::Files,
    facts: HashMap<FileId, Arc<ElfFacts>>,
}

impl Files {
    /// The facts of a mapping's file. They are empty where it is no ELF file, and as long as it
    /// cannot be read.
    pub(crate) fn facts(&mut self, pid: u32, mapping: &Mapping) -> Arc<ElfFacts> {
        if mapping.file.is_none() {
            return Arc::default();
        }
        let without = |refusal| Arc::new(ElfFacts { refusal: Some(refusal), ..ElfFacts::default() });
        let file = match found(pid, mapping) {
            Ok(file) => file,
            Err(error) => return without(Refusal::Unreadable(error.to_string())),
        };
        if let Some(facts) = self.facts.get(&file.id()) {
            return facts.clone();
        }
        if self.facts.len() >= MAX_FILES {
            self.facts.clear();
        }
        let question = Question::Interpreter { deep: mapping.path.contains("python") };
        let outcome = ask_of(&self.reading, pid, &file, question);
        let facts = match outcome.as_deref() {
            Ok(Answer::Interpreter(found)) => Arc::new(ElfFacts {
                loads: found.segments.clone(),
                runtime: found.runtime,
                version: found.version,
                code_type: found.code_type,
                tables: found.frames.map(|frames| (frames, found.frame_index)),
                id: Some(file.id()),
                refusal: None,
            }),
            Ok(_) => Arc::default(),
            Err(refusal) => without(refusal.clone()),
        };
        // A disk that is slow now may answer the next time.
        if facts.refusal.as_ref().is_none_or(Refusal::is_final) {
            self.facts.insert(file.id(), facts.clone());
        }
        facts
    }
}

/// The unwind tables of a mapping's file with these facts; none where it has none. The error says
/// why they are not read.
pub(crate) fn unwind_tables(pid: u32, mapping: &Mapping, facts: &ElfFacts) -> Result<Option<UnwindTables>, String> {
    let Some(((frames, index), id)) = facts.tables.zip(facts.id) else { return Ok(None) };
    let file = found(pid, mapping).map_err(|error| format!("it cannot be read now: {error}"))?;
    if file.id() != id {
        return Err(Refusal::Changed.to_string());
    }
    UnwindTables::of(&file, frames, index, || user_of(pid)).map(Some)
}
