//! Code objects of another process: name, file, bytecode and line table, cached as long as they
//! stay the same.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;

use super::super::memory::{Memory, int_at, word_at};
use super::super::types::shorten;
use super::find::Interpreter;
use super::layout::Layout;
use super::lines::line_at;

/// Code objects kept of one process.
const MAX_CODES: usize = 16_384;
/// A longer line table is not read: CPython's own largest modules have some 100 KB.
const MAX_LINES_BYTES: u64 = 1 << 20;
/// Bytes of code objects kept of one process, and read for one stack: a program can make code
/// objects that lie one in another, each with a line table of its own.
const MOST_BYTES: usize = 8 << 20;
/// Bytes of code objects kept of all processes.
const MOST_BYTES_OF_ALL: usize = 128 << 20;
/// What a map takes for a code object beside its parts.
const ENTRY_BYTES: usize = 256;
/// Strings are read up to here, then cut; a longer one is taken for torn memory.
const MAX_STRING_CHARACTERS: u64 = 64 << 10;
/// Per-thread copies of bytecode that a free-threaded interpreter may have.
const MAX_TLBC: u64 = 65_536;

/// One function's code.
#[derive(Debug)]
pub(crate) struct Code {
    /// Qualified name.
    pub function: String,
    /// File name.
    pub file: String,
    first_line: i32,
    /// Several code objects may have the same.
    lines: Arc<[u8]>,
}

impl Code {
    /// The line at byte `offset` of the bytecode.
    pub(crate) fn line(&self, layout: &Layout, offset: i64) -> Option<u32> {
        line_at(layout.lines, &self.lines, self.first_line, offset)
    }
}

/// Distinguishes a code object from another one that is at the same address later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Signature {
    first_line: i32,
    file: u64,
    name: u64,
    lines: u64,
}

/// The code objects of one process.
#[derive(Debug, Default)]
pub(crate) struct Codes {
    known: HashMap<u64, (Signature, Arc<Code>)>,
    /// Their line tables, by address.
    tables: HashMap<u64, Arc<[u8]>>,
    /// Bytes of both.
    kept: Kept,
    /// Bytes of line tables that were read for the stack that is looked up.
    read: usize,
}

/// Bytes that are kept of one process, counted among those of all.
#[derive(Debug, Default)]
struct Kept(usize);

impl Kept {
    /// Counts more bytes; false where they are too many.
    fn add(&mut self, bytes: usize) -> bool {
        if self.0 + bytes > MOST_BYTES || OF_ALL.fetch_add(bytes, Ordering::Relaxed) + bytes > MOST_BYTES_OF_ALL {
            if self.0 + bytes <= MOST_BYTES {
                OF_ALL.fetch_sub(bytes, Ordering::Relaxed);
            }
            return false;
        }
        self.0 += bytes;
        true
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        OF_ALL.fetch_sub(self.0, Ordering::Relaxed);
    }
}

static OF_ALL: AtomicUsize = AtomicUsize::new(0);

/// A code object as it was found in a sample.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Its parts.
    pub code: Arc<Code>,
    /// Address of its array of per-thread bytecode; 0 where it has none.
    pub tlbc: u64,
}

impl Codes {
    /// Bytes of a code object that are read of each one in each sample.
    fn head_bytes(layout: &Layout) -> usize {
        let last = [layout.code_file, layout.code_name, layout.code_lines, layout.code_tlbc.unwrap_or(0)];
        let last = last.into_iter().max().unwrap_or(0) + 8;
        usize::try_from(last).unwrap_or(usize::MAX)
    }

    /// The code objects at these addresses, each checked against memory in one read of all. Those
    /// that cannot be read, or are no code objects, are left out.
    pub(crate) fn look_up(
        &mut self,
        memory: &Memory,
        interpreter: &Interpreter,
        addresses: &[u64],
        name_bytes: usize,
    ) -> Result<HashMap<u64, Found>, Errno> {
        let layout = &interpreter.layout;
        let head_bytes = Self::head_bytes(layout);
        self.read = 0;
        let mut found = HashMap::new();
        let mut rest = addresses;
        while !rest.is_empty() {
            let (batch, _) = rest.split_at(rest.len().min(512));
            let wanted: Vec<(u64, usize)> = batch.iter().map(|address| (*address, head_bytes)).collect();
            let pieces = memory.read_pieces(&wanted)?;
            for piece in &pieces {
                if let Some(code) = self.check(memory, interpreter, piece.address, &piece.bytes, name_bytes)? {
                    found.insert(piece.address, code);
                }
            }
            // The one that stopped the read is no code object.
            rest = rest.get((pieces.len() + usize::from(pieces.len() < batch.len()))..).unwrap_or_default();
        }
        Ok(found)
    }

    fn check(
        &mut self,
        memory: &Memory,
        interpreter: &Interpreter,
        address: u64,
        head: &[u8],
        name_bytes: usize,
    ) -> Result<Option<Found>, Errno> {
        let layout = &interpreter.layout;
        if interpreter.code_type.is_some_and(|code_type| word_at(head, layout.object_type) != code_type) {
            return Ok(None);
        }
        let signature = Signature {
            first_line: int_at(head, layout.code_first_line),
            file: word_at(head, layout.code_file),
            name: word_at(head, layout.code_name),
            lines: word_at(head, layout.code_lines),
        };
        let tlbc = layout.code_tlbc.map_or(0, |offset| word_at(head, offset));
        if let Some((known, code)) = self.known.get(&address)
            && *known == signature
        {
            return Ok(Some(Found { code: code.clone(), tlbc }));
        }
        let Some(code) = self.load(memory, layout, signature, name_bytes)? else { return Ok(None) };
        let code = Arc::new(code);
        self.keep(address, signature, code.clone());
        Ok(Some(Found { code, tlbc }))
    }

    /// Keeps a code object; where there are too many, or they are too large, without those before.
    fn keep(&mut self, address: u64, signature: Signature, code: Arc<Code>) {
        let own = ENTRY_BYTES + code.function.len() + code.file.len();
        let is_kept = self.tables.get(&signature.lines).is_some_and(|kept| Arc::ptr_eq(kept, &code.lines));
        let bytes = own + if is_kept { 0 } else { code.lines.len() };
        if self.known.len() >= MAX_CODES || !self.kept.add(bytes) {
            self.known.clear();
            self.tables.clear();
            self.kept = Kept::default();
            if !self.kept.add(own + code.lines.len()) {
                return; // those of other processes take all
            }
        }
        self.tables.insert(signature.lines, code.lines.clone());
        self.known.insert(address, (signature, code));
    }

    /// Bytes that are kept.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> usize {
        let tables: usize = self.tables.values().map(|table| table.len()).sum();
        assert!(tables <= self.kept.0, "{tables} of {}", self.kept.0);
        self.kept.0
    }

    fn load(
        &mut self,
        memory: &Memory,
        layout: &Layout,
        signature: Signature,
        name_bytes: usize,
    ) -> Result<Option<Code>, Errno> {
        let Some(function) = text(memory, layout, signature.name)? else { return Ok(None) };
        let Some(file) = text(memory, layout, signature.file)? else { return Ok(None) };
        let Some(lines) = self.line_table(memory, layout, signature.lines)? else { return Ok(None) };
        Ok(Some(Code {
            function: shorten(&function, name_bytes, false),
            file: shorten(&file, name_bytes, true),
            first_line: signature.first_line,
            lines,
        }))
    }

    /// A line table; one that is kept where it is the same. Beyond what is read for one stack it is
    /// empty: its functions are shown without a line.
    fn line_table(&mut self, memory: &Memory, layout: &Layout, address: u64) -> Result<Option<Arc<[u8]>>, Errno> {
        let Some(length) = some_mapped(memory.word(address.wrapping_add(layout.bytes_length)))? else {
            return Ok(None);
        };
        if length > MAX_LINES_BYTES {
            return Ok(None);
        }
        let length = usize::try_from(length).unwrap_or(0);
        if self.read + length > MOST_BYTES {
            return Ok(Some(Arc::default()));
        }
        let Some(table) = some_mapped(memory.read(address.wrapping_add(layout.bytes_data), length))? else {
            return Ok(None);
        };
        if let Some(known) = self.tables.get(&address)
            && **known == *table
        {
            return Ok(Some(known.clone()));
        }
        self.read += length;
        Ok(Some(table.into()))
    }
}

/// `None` where the address has no such object: the read was torn.
fn some_mapped<T>(read: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(Errno::EFAULT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A string object. CPython keeps one, two or four bytes a character behind a head of one of two
/// sizes.
fn text(memory: &Memory, layout: &Layout, address: u64) -> Result<Option<String>, Errno> {
    let head_bytes = usize::try_from(layout.string_state.max(layout.string_length) + 8).unwrap_or(0);
    let Some(head) = some_mapped(memory.read(address, head_bytes))? else { return Ok(None) };
    let length = word_at(&head, layout.string_length);
    let state = int_at(&head, layout.string_state).cast_unsigned();
    let Some(shape) = StringShape::of(layout, state) else { return Ok(None) };
    if length > MAX_STRING_CHARACTERS {
        return Ok(None);
    }
    let bytes = usize::try_from(length).unwrap_or(0) * shape.character_bytes;
    let Some(data) = some_mapped(memory.read(address.wrapping_add(shape.data), bytes))? else { return Ok(None) };
    Ok(decode(&data, shape.character_bytes))
}

struct StringShape {
    character_bytes: usize,
    data: u64,
}

impl StringShape {
    /// The state has, from the lowest bit: whether the string is interned, three bits for the bytes
    /// a character, whether it is compact, whether it is ASCII. The first field has two bits up to
    /// 3.13, and a byte or two after.
    fn of(layout: &Layout, state: u32) -> Option<StringShape> {
        let state = state >> layout.string_kind_bit;
        let character_bytes = match state & 7 {
            kind @ (1 | 2 | 4) => usize::try_from(kind).ok()?,
            _ => return None,
        };
        let (compact, ascii) = (state & 8 != 0, state & 16 != 0);
        // Names in code objects are made by the compiler, always compact.
        compact.then_some(StringShape {
            character_bytes,
            data: if ascii { layout.ascii_head } else { layout.compact_head },
        })
    }
}

fn decode(data: &[u8], character_bytes: usize) -> Option<String> {
    data.chunks_exact(character_bytes)
        .map(|character| {
            let mut code = [0; 4];
            code[..character_bytes].copy_from_slice(character);
            let code = u32::from_le_bytes(code);
            // A lone surrogate is how Python keeps a byte of a path that is not UTF-8.
            char::from_u32(code).or((0xD800..0xE000).contains(&code).then_some(char::REPLACEMENT_CHARACTER))
        })
        .collect()
}

/// Address of the bytecode that a thread runs: its own copy where the interpreter keeps one a
/// thread.
pub(crate) fn bytecode(
    memory: &Memory,
    layout: &Layout,
    code: u64,
    tlbc: u64,
    index: i32,
) -> Result<Option<u64>, Errno> {
    let Some(offset) = layout.code_bytecode else { return Ok(None) };
    if layout.code_tlbc.is_none() || tlbc == 0 {
        return Ok(Some(code.wrapping_add(offset)));
    }
    // An array: its length, then pointers.
    let Ok(index) = u64::try_from(index) else { return Ok(None) };
    if index >= MAX_TLBC || some_mapped(memory.word(tlbc))?.is_none_or(|size| index >= size) {
        return Ok(None);
    }
    some_mapped(memory.word(tlbc.wrapping_add(8 + index * 8)))
}
