//! ELF files (<https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html>) that claim to be larger
//! than what lies on disk; also for the hostile tests of the crate `explain`.

use std::fs::File;
use std::io::Write;
use std::path::Path;

/// A section of a file; its address is its place there.
#[derive(Clone, Copy, Default)]
pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) kind: u32,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    /// The index of another one, from 1; the names of sections are behind all that are given.
    pub(crate) link: u32,
    /// Bytes of an entry.
    pub(crate) entry: u64,
}

const STRTAB: u32 = 3;

/// Headers are before this byte, and the names of sections behind it.
const NAMES_AT: u64 = 1_024;
const SECTIONS_AT: u64 = 256;

/// Writes a sparse library of x86-64 with these sections, all of it mapped with execution; what no
/// header is, is zero.
///
/// # Panics
/// It cannot be written.
pub(crate) fn sparse(path: &Path, bytes: u64, sections: &[Section]) {
    let count = u16::try_from(sections.len() + 2).unwrap();
    let mut file = vec![0u8; 64];
    file[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
    file[16..20].copy_from_slice(&[3, 0, 62, 0]); // ET_DYN, x86-64
    file[20] = 1;
    file[32..40].copy_from_slice(&64u64.to_le_bytes()); // the program header follows
    file[40..48].copy_from_slice(&SECTIONS_AT.to_le_bytes());
    for (at, word) in [(52, 64), (54, 56), (56, 1), (58, 64), (60, count), (62, count - 1)] {
        file[at..at + 2].copy_from_slice(&u16::to_le_bytes(word));
    }
    file.extend([1u32, 5].map(u32::to_le_bytes).concat()); // PT_LOAD, readable and executable
    file.extend([0, 0, 0, bytes, bytes, 4_096].map(u64::to_le_bytes).concat());
    file.resize(usize::try_from(SECTIONS_AT).unwrap() + 64, 0); // the first section is none
    let mut names = vec![0];
    let mut add = |section: Section, names: &mut Vec<u8>| {
        let name = u32::try_from(names.len()).unwrap();
        names.extend(section.name.bytes().chain([0]));
        let size = if section.kind == STRTAB { names.len() as u64 } else { section.size };
        file.extend([name, section.kind].map(u32::to_le_bytes).concat());
        file.extend([0, section.offset, section.offset, size].map(u64::to_le_bytes).concat());
        file.extend([section.link, 0].map(u32::to_le_bytes).concat());
        file.extend([8, section.entry].map(u64::to_le_bytes).concat());
    };
    sections.iter().for_each(|section| add(*section, &mut names));
    add(Section { name: ".shstrtab", kind: STRTAB, offset: NAMES_AT, ..Section::default() }, &mut names);
    file.resize(usize::try_from(NAMES_AT).unwrap(), 0);
    file.extend(names);
    let mut out = File::create(path).unwrap();
    out.write_all(&file).unwrap();
    out.set_len(bytes).unwrap();
}
