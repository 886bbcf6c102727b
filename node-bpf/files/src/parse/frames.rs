//! Unwind tables (`.eh_frame`), which stripped files have, too: which code is a function, or a part of one,
//! and how much of the stack it has taken.

use std::ops::Range;

use gimli::{AArch64, ParsedEhFrameHdr, Register, UnwindContext, X86_64};
use gimli::{BaseAddresses, CfaRule, EhFrame, EndianSlice, FrameDescriptionEntry, RunTimeEndian, UnwindSection};
use object::{Architecture, Object as _, ObjectSection};

use super::sections::Object;

type Bytes<'d> = EndianSlice<'d, RunTimeEndian>;

/// The unwind tables of a file.
pub(super) struct Frames<'d> {
    frames: EhFrame<Bytes<'d>>,
    bases: BaseAddresses,
    /// The index to search in, which linkers make: a large file has a million entries.
    index: Option<ParsedEhFrameHdr<Bytes<'d>>>,
    /// The stack pointer, and how far below the caller's it is at a function's entry.
    at_entry: (Register, i64),
}

impl<'d> Frames<'d> {
    /// None where it has none.
    pub(super) fn of(object: &Object<'d>) -> Option<Self> {
        let file = &object.file;
        let section = file.section_by_name(".eh_frame")?;
        let text = file.section_by_name(".text")?;
        let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let frames = EhFrame::new(section.data().ok()?, endian);
        let mut bases = BaseAddresses::default().set_eh_frame(section.address()).set_text(text.address());
        let mut index = None;
        if let Some(header) = file.section_by_name(".eh_frame_hdr") {
            bases = bases.set_eh_frame_hdr(header.address());
            index = Some(gimli::EhFrameHdr::new(header.data().ok()?, endian).parse(&bases, 8).ok()?);
        }
        let at_entry = match file.architecture() {
            Architecture::Aarch64 => (AArch64::SP, 0),
            _ => (X86_64::RSP, 8), // the return address
        };
        Some(Self { frames, bases, index, at_entry })
    }

    fn entry(&self, address: u64) -> Option<FrameDescriptionEntry<Bytes<'d>>> {
        let to_cie = UnwindSection::cie_from_offset;
        match &self.index {
            Some(index) => index.table()?.fde_for_address(&self.frames, &self.bases, address, to_cie).ok(),
            None => self.frames.fde_for_address(&self.bases, address, to_cie).ok(),
        }
    }

    /// The function, or the part of one, around an address.
    pub(super) fn around(&self, address: u64) -> Option<Range<u64>> {
        let entry = self.entry(address)?;
        Some(entry.initial_address()..entry.initial_address().saturating_add(entry.len()))
    }

    /// Whether the stack pointer at an instruction is as at its function's entry.
    pub(super) fn stack_is_as_at_entry(&self, address: u64) -> Option<bool> {
        let entry = self.entry(address)?;
        let mut context = UnwindContext::new();
        let row = entry.unwind_info_for_address(&self.frames, &self.bases, &mut context, address).ok()?;
        let (register, offset) = self.at_entry;
        Some(
            matches!(row.cfa(), CfaRule::RegisterAndOffset { register: of, offset: by } if *of == register && *by == offset),
        )
    }
}
