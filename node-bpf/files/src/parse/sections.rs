//! An ELF file whose parts are of a size that such files have. A sparse file of a few kilobytes can
//! claim sections of gigabytes; what is larger than any library's is refused by name.

use object::elf::{self, FileHeader64};
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{Endianness, Object as _, ObjectSection, ObjectSegment};

use crate::question::Segment;

/// Most sections and segments. The largest libraries of frameworks have some hundred.
const MOST_SECTIONS: usize = 16_384;
const MOST_SEGMENTS: usize = 128;
/// Most bytes of tables that are read from one end to the other.
const MOST_SYMBOL_BYTES: u64 = 256 << 20;
const MOST_NAME_BYTES: u64 = 1 << 30;
const MOST_NOTE_BYTES: u64 = 16 << 20;
const MOST_DEBUG_BYTES: u64 = 1 << 30;
const MOST_FRAME_BYTES: u64 = 256 << 20;
const MOST_HASH_BYTES: u64 = 128 << 20;

pub(super) type Symbol<'f, 'd> = object::read::elf::ElfSymbol64<'d, 'f, Endianness, &'d [u8]>;
pub(super) type Section<'f, 'd> = object::read::elf::ElfSection64<'d, 'f, Endianness, &'d [u8]>;

/// A file that was looked over.
pub(super) struct Object<'d> {
    pub(super) file: ElfFile64<'d, Endianness, &'d [u8]>,
    pub(super) segments: Vec<Segment>,
}

impl<'d> Object<'d> {
    /// Looks over the headers before anything else is read.
    ///
    /// # Errors
    /// It is no ELF file, or has larger parts than such files have.
    pub(super) fn parse(bytes: &'d [u8]) -> Result<Self, String> {
        let not = |error: object::Error| format!("not a 64-bit ELF file: {error}");
        let header = FileHeader64::<Endianness>::parse(bytes).map_err(not)?;
        let endian = header.endian().map_err(not)?;
        let headers = header.section_headers(endian, bytes).map_err(not)?;
        if headers.len() > MOST_SECTIONS {
            return Err(format!("it claims {} sections: no library has as many", headers.len()));
        }
        let programs = header.program_headers(endian, bytes).map_err(not)?;
        if programs.len() > MOST_SEGMENTS {
            return Err(format!("it claims {} segments: no library has as many", programs.len()));
        }
        let names = header.sections(endian, bytes).map_err(not)?;
        for section in headers {
            let name = names.section_name(endian, section).unwrap_or_default();
            let most = most_bytes(section.sh_type(endian), name);
            let claimed = section.sh_size(endian);
            if section.sh_type(endian) != elf::SHT_NOBITS && claimed > most {
                return Err(format!(
                    "its section {} claims {} MiB: larger than such libraries have",
                    shown(name),
                    claimed >> 20
                ));
            }
        }
        let file = ElfFile64::parse(bytes).map_err(not)?;
        let segments = file
            .segments()
            .map(|segment| {
                let (file_offset, file_bytes) = segment.file_range();
                Segment { address: segment.address(), file_offset, file_bytes }
            })
            .collect();
        Ok(Self { file, segments })
    }

    /// The offset in the file of the byte at an address.
    pub(super) fn offset_of(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let into = address.checked_sub(segment.address)?;
            (into < segment.file_bytes).then(|| segment.file_offset.checked_add(into))?
        })
    }

    /// The section around an address.
    pub(super) fn section_at(&self, address: u64) -> Option<Section<'_, 'd>> {
        let around = |section: &Section<'_, 'd>| {
            let start = section.address();
            (start..start.saturating_add(section.size())).contains(&address)
        };
        self.file.sections().find(around)
    }
}

/// Most bytes of a section of this kind and name.
fn most_bytes(kind: u32, name: &[u8]) -> u64 {
    match kind {
        elf::SHT_SYMTAB | elf::SHT_DYNSYM => MOST_SYMBOL_BYTES,
        elf::SHT_GNU_VERSYM | elf::SHT_GNU_VERDEF | elf::SHT_GNU_VERNEED | elf::SHT_NOTE => MOST_NOTE_BYTES,
        elf::SHT_HASH | elf::SHT_GNU_HASH => MOST_HASH_BYTES,
        elf::SHT_STRTAB => MOST_NAME_BYTES,
        _ if name.starts_with(b".debug_") => MOST_DEBUG_BYTES,
        _ if name.starts_with(b".eh_frame") => MOST_FRAME_BYTES,
        _ if name.starts_with(b".note") => MOST_NOTE_BYTES,
        // Code and data, NCCL's for every GPU included: only pieces of it are looked at.
        _ => u64::MAX,
    }
}

fn shown(name: &[u8]) -> String {
    let name: String = String::from_utf8_lossy(name).chars().take(32).collect();
    if name.is_empty() { "without a name".to_owned() } else { name.escape_default().to_string() }
}
