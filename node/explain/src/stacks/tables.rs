//! The unwind tables of files (`.eh_frame`, `.eh_frame_hdr`): where they are is what the crate
//! `files` says; their bytes are kept here, for all readers of this program together, within one
//! bound.
//!
//! What they say is another user's: it is looked over before it is worked on ([`UnwindTables::ends`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::files::{FileId, Regular, Table};
use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, CieOrFde, EhFrame, EhFrameHdr, EndianSlice,
    FrameDescriptionEntry, LittleEndian, Operation, UnwindSection as _,
};

/// A larger table is not read: nothing that is needed here is as large.
const MAX_TABLE_BYTES: u64 = 128 << 20;
/// A larger table without an index is not read: it is gone through from one end to the other.
const MAX_PLAIN_BYTES: u64 = 16 << 20;
/// All unwind tables of this program, whatever they are kept for: those of a framework's libraries
/// have some 100 MiB.
const MOST_BYTES: u64 = 256 << 20;
/// Of which one user's processes may have.
const MOST_OF_USER: u64 = 192 << 20;
/// Files whose tables are kept.
const MAX_FILES: usize = 4096;
/// What is known of how to leave one function, at most: those of compilers have some hundred bytes.
const MOST_ENTRY_BYTES: usize = 256 << 10;

/// Bytes that are taken, by user.
static TAKEN: Mutex<BTreeMap<u32, u64>> = Mutex::new(BTreeMap::new());
/// The tables that were read, by the file and its content, each with the user for whom.
static KEPT: Mutex<BTreeMap<FileId, UnwindTables>> = Mutex::new(BTreeMap::new());

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Room for bytes of tables. It is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    user: u32,
    bytes: u64,
}

impl Room {
    /// Room for a user's file. What nobody uses any more makes room. The error says why there is
    /// none.
    pub(crate) fn take(user: u32, bytes: u64) -> Result<Room, String> {
        Self::taken(user, bytes).or_else(|_| {
            let unused: Vec<UnwindTables> = {
                let mut kept = lock(&KEPT);
                let unused: Vec<FileId> =
                    kept.iter().filter(|(_, tables)| !tables.frames.is_used()).map(|(id, _)| *id).collect();
                unused.iter().filter_map(|id| kept.remove(id)).collect()
            };
            drop(unused);
            Self::taken(user, bytes)
        })
    }

    fn taken(user: u32, bytes: u64) -> Result<Room, String> {
        let mut taken = lock(&TAKEN);
        let of_user = taken.get(&user).copied().unwrap_or(0);
        let of_all: u64 = taken.values().sum();
        let no_room = |whose: &str, most: u64| {
            let most = most >> 20;
            Err(format!(
                "no room for its unwind tables: those of {whose} have {most} MiB; ask for fewer ranks at a time"
            ))
        };
        if of_user.saturating_add(bytes) > MOST_OF_USER {
            return no_room("its user's processes", MOST_OF_USER);
        }
        if of_all.saturating_add(bytes) > MOST_BYTES {
            return no_room("all processes", MOST_BYTES);
        }
        taken.insert(user, of_user + bytes);
        Ok(Room { user, bytes })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut taken = lock(&TAKEN);
        if let Some(of_user) = taken.get_mut(&self.user) {
            *of_user = of_user.saturating_sub(self.bytes);
            if *of_user == 0 {
                taken.remove(&self.user);
            }
        }
    }
}

/// The bytes of a table. They count until the last clone is gone.
#[derive(Debug, Clone)]
pub(crate) struct TableBytes(Arc<(Box<[u8]>, Room)>);

impl TableBytes {
    fn read(file: &File, table: Table, user: u32) -> Result<TableBytes, String> {
        let room = Room::take(user, table.bytes)?;
        let length = usize::try_from(table.bytes).map_err(|_| "its unwind tables are too large".to_owned())?;
        let mut bytes = vec![0; length].into_boxed_slice();
        let read = file.read_exact_at(&mut bytes, table.file_offset);
        read.map_err(|error| format!("its unwind tables cannot be read: {error}"))?;
        Ok(TableBytes(Arc::new((bytes, room))))
    }

    /// Whether anybody but who keeps them has them.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl Default for TableBytes {
    fn default() -> TableBytes {
        TableBytes(Arc::new((Box::default(), Room { user: 0, bytes: 0 })))
    }
}

impl Deref for TableBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.0
    }
}

/// The unwind tables of one file.
#[derive(Debug, Clone)]
pub(crate) struct UnwindTables {
    /// `.eh_frame`.
    pub frames: TableBytes,
    /// Its addresses in the file's own terms.
    pub frames_at: Range<u64>,
    /// `.eh_frame_hdr`, where there is one, and its addresses.
    pub index: Option<(TableBytes, Range<u64>)>,
}

type Slice<'a> = EndianSlice<'a, LittleEndian>;

impl UnwindTables {
    /// Of a file of which this content was looked at, for a process of a user. The error says why
    /// they are not read.
    pub(crate) fn of(
        file: &Regular,
        frames: Table,
        index: Option<Table>,
        user: impl FnOnce() -> Option<u32>,
    ) -> Result<UnwindTables, String> {
        if let Some(known) = lock(&KEPT).get(&file.id()) {
            return Ok(known.clone());
        }
        let most = if index.is_some() { MAX_TABLE_BYTES } else { MAX_PLAIN_BYTES };
        if let Some(table) = [Some(frames), index].into_iter().flatten().find(|table| table.bytes > most) {
            return Err(format!("its unwind tables have {} MiB: more than are read", table.bytes >> 20));
        }
        let user = user().ok_or("its process ends")?;
        let opened = file.open().map_err(|error| format!("it cannot be read now: {error}"))?;
        let range = |table: Table| table.address..table.address.saturating_add(table.bytes);
        let index = index.map(|index| Ok((TableBytes::read(&opened, index, user)?, range(index))));
        let tables = UnwindTables {
            frames: TableBytes::read(&opened, frames, user)?,
            frames_at: range(frames),
            index: index.transpose().map_err(|error: String| error)?,
        };
        if tables.index.is_none() && !tables.all_end() {
            return Err("its unwind tables are none that a compiler makes".to_owned());
        }
        let mut kept = lock(&KEPT);
        if kept.len() >= MAX_FILES {
            let all = std::mem::take(&mut *kept);
            drop(kept);
            drop(all);
            kept = lock(&KEPT);
        }
        kept.insert(file.id(), tables.clone());
        Ok(tables)
    }

    /// Bytes that an index made of tables without one takes.
    pub(crate) fn made_index_bytes(&self) -> u64 {
        if self.index.is_some() { 0 } else { self.frames.len() as u64 }
    }

    fn bases(&self) -> BaseAddresses {
        let index_at = self.index.as_ref().map_or(0, |(_, at)| at.start);
        BaseAddresses::default().set_eh_frame(self.frames_at.start).set_eh_frame_hdr(index_at).set_text(0).set_got(0)
    }

    fn section(&self) -> EhFrame<Slice<'_>> {
        let mut section = EhFrame::new(&self.frames, LittleEndian);
        section.set_address_size(8);
        section
    }

    /// Whether following the table at an address comes to an end soon. An expression in it is a
    /// program, which may jump back and never end; compilers make none with jumps. (What cannot be
    /// read ends at once.)
    pub(crate) fn ends(&self, address: u64) -> bool {
        let Some((index, _)) = &self.index else { return true }; // looked over when it was read
        let (bases, section) = (self.bases(), self.section());
        let Ok(index) = EhFrameHdr::new(index, LittleEndian).parse(&bases, 8) else { return true };
        let Some(table) = index.table() else { return true };
        let entry = table.lookup(address, &bases).and_then(|pointer| table.pointer_to_offset(pointer));
        let Ok(offset) = entry else { return true };
        match section.fde_from_offset(&bases, offset, EhFrame::cie_from_offset) {
            Ok(entry) => entry_ends(&section, &bases, &entry),
            Err(_) => true,
        }
    }

    /// Whether that is so at all addresses.
    fn all_end(&self) -> bool {
        let (bases, section) = (self.bases(), self.section());
        let mut entries = section.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            if let CieOrFde::Fde(entry) = entry
                && let Ok(entry) = entry.parse(EhFrame::cie_from_offset)
                && !entry_ends(&section, &bases, &entry)
            {
                return false;
            }
        }
        true
    }
}

fn entry_ends<'a>(
    section: &EhFrame<Slice<'a>>,
    bases: &BaseAddresses,
    entry: &FrameDescriptionEntry<Slice<'a>>,
) -> bool {
    entry.entry_len() <= MOST_ENTRY_BYTES
        && entry.cie().entry_len() <= MOST_ENTRY_BYTES
        && instructions_end(section, entry, entry.cie().instructions(section, bases))
        && instructions_end(section, entry, entry.instructions(section, bases))
}

fn instructions_end<'a>(
    section: &EhFrame<Slice<'a>>,
    entry: &FrameDescriptionEntry<Slice<'a>>,
    mut instructions: CallFrameInstructionIter<'_, Slice<'a>>,
) -> bool {
    while let Ok(Some(instruction)) = instructions.next() {
        let (CallFrameInstruction::DefCfaExpression { expression }
        | CallFrameInstruction::Expression { expression, .. }
        | CallFrameInstruction::ValExpression { expression, .. }) = instruction
        else {
            continue;
        };
        let Ok(expression) = expression.get(section) else { continue };
        let mut operations = expression.operations(entry.cie().encoding());
        while let Ok(Some(operation)) = operations.next() {
            if matches!(operation, Operation::Bra { .. } | Operation::Skip { .. }) {
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables without an index: a CIE, and an FDE with this expression for the frame's address.
    fn tables(expression: &[u8]) -> UnwindTables {
        let padded = |mut entry: Vec<u8>| {
            entry.resize(entry.len().next_multiple_of(8) + 4, 0); // DW_CFA_nop
            [&u32::try_from(entry.len()).unwrap().to_le_bytes()[..], &entry].concat()
        };
        // id 0, version 1, no augmentation, alignments 1 and -8, return address in 16
        let cie = padded([&[0; 4][..], &[1, 0, 1, 0x78, 16]].concat());
        let back = u32::try_from(cie.len() + 4).unwrap().to_le_bytes();
        let length = u8::try_from(expression.len()).unwrap();
        // DW_CFA_def_cfa_expression
        let fde = [&back[..], &0x1000u64.to_le_bytes(), &0x1000u64.to_le_bytes(), &[0x0f, length], expression].concat();
        let bytes = [cie, padded(fde), vec![0; 4]].concat();
        let room = Room { user: u32::MAX, bytes: 0 };
        let end = 0x8000 + bytes.len() as u64;
        UnwindTables { frames: TableBytes(Arc::new((bytes.into(), room))), frames_at: 0x8000..end, index: None }
    }

    #[test]
    fn tables_whose_expressions_jump_are_not_followed() {
        // as in a linker's table of procedures: breg7 8, breg16 0, lit15, and, lit11, ge, lit3, shl, plus
        assert!(tables(&[0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22]).all_end());
        assert!(!tables(&[0x2f, 0xfd, 0xff]).all_end(), "DW_OP_skip to itself: without end");
        assert!(!tables(&[0x30, 0x31, 0x28, 0xfb, 0xff]).all_end(), "DW_OP_bra back");
    }

    #[test]
    fn room_is_a_users_and_all_users_and_comes_back() {
        let users = [4_000_001, 4_000_002, 4_000_003];
        let first = Room::take(users[0], MOST_OF_USER - 10).unwrap();
        assert!(Room::take(users[0], 11).unwrap_err().contains("its user's processes"));
        let second = Room::take(users[1], MOST_BYTES - MOST_OF_USER).unwrap();
        assert!(Room::take(users[2], MOST_OF_USER).unwrap_err().contains("all processes"));
        drop((first, second));
        assert!(Room::take(users[2], MOST_OF_USER).is_ok());
    }
}
