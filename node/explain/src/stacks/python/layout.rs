//! The layout of CPython's structures that a stack needs: offsets, by version.
//!
//! Up to 3.12 they are known from the headers; from 3.13 on each interpreter publishes its own in
//! `_Py_DebugOffsets` at the start of `_PyRuntime`, in an order that differs between versions. A
//! version that is not listed is refused.

pub(super) mod offsets;

/// A version of CPython.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    /// 3
    pub major: u8,
    /// 8 to 15
    pub minor: u8,
    /// The patch release; `None` where the version is known from the file's name only.
    pub patch: Option<u8>,
    /// Not a final release or a release candidate: structures still change.
    pub unstable: bool,
    /// Built without the global interpreter lock.
    pub free_threaded: bool,
}

impl Version {
    /// From `PY_VERSION_HEX`: major, minor, patch, release level (0xF is final, 0xC a candidate)
    /// and serial.
    pub(crate) fn from_hex(hex: u64) -> Option<Version> {
        let [major, minor, patch, level] = u32::try_from(hex).ok()?.to_be_bytes();
        (major == 3).then_some(Version {
            major,
            minor,
            patch: Some(patch),
            unstable: level >> 4 < 0xC,
            free_threaded: false,
        })
    }

    /// From the path of a mapped file: `/usr/bin/python3.9`, `libpython3.10.so.1.0`,
    /// `/usr/lib/python3.9/…`.
    pub(crate) fn from_path(path: &str) -> Option<Version> {
        path.match_indices("python3.").find_map(|(at, prefix)| {
            let digits = &path[at + prefix.len()..];
            let digits = &digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())];
            let minor = digits.parse().ok()?;
            Some(Version { major: 3, minor, patch: None, unstable: false, free_threaded: false })
        })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CPython {}.{}", self.major, self.minor)?;
        if let Some(patch) = self.patch {
            write!(f, ".{patch}")?;
        }
        f.write_str(if self.free_threaded { " (free-threaded)" } else { "" })
    }
}

/// Format of a code object's line table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineTable {
    /// Up to 3.9.
    Lnotab,
    /// 3.10.
    Pep626,
    /// From 3.11.
    Locations,
}

/// How a thread state leads to its innermost frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FramePointer {
    /// A pointer in the thread state.
    Direct(u64),
    /// 3.11 and 3.12: a pointer to a structure on the C stack that has the pointer at `inner`.
    CFrame {
        /// Offset in the thread state.
        outer: u64,
        /// Offset in the structure it points to.
        inner: u64,
    },
}

/// How a frame records its position in the bytecode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instruction {
    /// An `int` at this offset, in units of so many bytes.
    Index {
        /// Offset in the frame.
        offset: u64,
        /// 1 up to 3.9, 2 in 3.10.
        unit_bytes: i64,
    },
    /// A pointer into the bytecode at this offset.
    Pointer(u64),
}

/// Offsets of one CPython build. All are bytes from the start of the structure named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The version that these offsets belong to.
    pub version: Version,
    /// `_PyRuntime` → first interpreter.
    pub interpreters_head: u64,
    /// Interpreter → next interpreter.
    pub interpreter_next: u64,
    /// Interpreter → first thread state.
    pub threads_head: u64,
    /// Thread state → next thread state.
    pub thread_next: u64,
    /// Thread state → its interpreter.
    pub thread_interpreter: u64,
    /// Thread state → innermost frame.
    pub frame: FramePointer,
    /// Thread state → `pthread_t`.
    pub thread_id: u64,
    /// Thread state → kernel thread id, from 3.11.
    pub native_thread_id: Option<u64>,
    /// Thread state → current chunk of the data stack, from 3.11.
    pub data_stack_chunk: Option<u64>,
    /// Frame → code object.
    pub frame_code: u64,
    /// Frame → calling frame.
    pub frame_previous: u64,
    /// Frame → position in the bytecode.
    pub instruction: Instruction,
    /// Frame → owner, from 3.11.
    pub frame_owner: Option<u64>,
    /// Frame → index of the thread's own copy of the bytecode, free-threaded from 3.14.
    pub frame_tlbc_index: Option<u64>,
    /// Code → first line.
    pub code_first_line: u64,
    /// Code → file name.
    pub code_file: u64,
    /// Code → qualified name (plain name up to 3.10).
    pub code_name: u64,
    /// Code → line table.
    pub code_lines: u64,
    /// Code → first byte of bytecode, in the code object itself, from 3.11.
    pub code_bytecode: Option<u64>,
    /// Code → array of per-thread copies of the bytecode, free-threaded from 3.14.
    pub code_tlbc: Option<u64>,
    /// Object → its type.
    pub object_type: u64,
    /// Bytes object → its length.
    pub bytes_length: u64,
    /// Bytes object → its bytes.
    pub bytes_data: u64,
    /// String → state bits.
    pub string_state: u64,
    /// Lowest bit in those of the width of a character.
    pub string_kind_bit: u32,
    /// String → length in characters.
    pub string_length: u64,
    /// Size of the head of an ASCII string.
    pub ascii_head: u64,
    /// Size of the head of any other compact string.
    pub compact_head: u64,
    /// Format of the line tables.
    pub lines: LineTable,
}

/// Owners from this one on are not Python functions: entries from C into the interpreter (3.12 and
/// later).
pub(crate) const FIRST_FOREIGN_OWNER: u8 = 3;

/// Bytes of `_Py_DebugOffsets` that are read at most.
pub(crate) const DEBUG_OFFSETS_BYTES: usize = 1024;

impl Layout {
    /// The layout of a version up to 3.12; `None` for others.
    pub(crate) fn known(version: Version) -> Option<Layout> {
        let base = Layout {
            version,
            interpreters_head: 40,
            interpreter_next: 0,
            threads_head: 16,
            thread_next: 8,
            thread_interpreter: 16,
            frame: FramePointer::Direct(24),
            thread_id: 176,
            native_thread_id: None,
            data_stack_chunk: None,
            frame_code: 32,
            frame_previous: 24,
            instruction: Instruction::Index { offset: 104, unit_bytes: 1 },
            frame_owner: None,
            frame_tlbc_index: None,
            code_first_line: 40,
            code_file: 104,
            code_name: 112,
            code_lines: 120,
            code_bytecode: None,
            code_tlbc: None,
            object_type: 8,
            bytes_length: 16,
            bytes_data: 32,
            string_state: 32,
            string_kind_bit: 2,
            string_length: 16,
            ascii_head: 48,
            compact_head: 72,
            lines: LineTable::Lnotab,
        };
        Some(match version.minor {
            8 | 9 => Layout { interpreters_head: 32, threads_head: 8, ..base },
            10 => Layout {
                interpreters_head: 32,
                threads_head: 8,
                instruction: Instruction::Index { offset: 96, unit_bytes: 2 },
                lines: LineTable::Pep626,
                ..base
            },
            11 => Layout {
                frame: FramePointer::CFrame { outer: 56, inner: 8 },
                thread_id: 152,
                native_thread_id: Some(160),
                data_stack_chunk: Some(296),
                frame_previous: 48,
                instruction: Instruction::Pointer(56),
                frame_owner: Some(69),
                code_first_line: 72,
                code_file: 112,
                code_name: 128,
                code_lines: 136,
                code_bytecode: Some(184),
                lines: LineTable::Locations,
                ..base
            },
            12 => Layout {
                threads_head: 72,
                frame: FramePointer::CFrame { outer: 56, inner: 0 },
                thread_id: 136,
                native_thread_id: Some(144),
                data_stack_chunk: Some(232),
                frame_code: 0,
                frame_previous: 8,
                instruction: Instruction::Pointer(56),
                frame_owner: Some(70),
                code_first_line: 68,
                code_file: 112,
                code_name: 128,
                code_lines: 136,
                code_bytecode: Some(192),
                ascii_head: 40,
                compact_head: 56,
                lines: LineTable::Locations,
                ..base
            },
            _ => return None,
        })
    }

    /// The layout that an interpreter from 3.13 on publishes. `None` where there is none, or of a
    /// version not known here.
    pub(crate) fn published(bytes: &[u8]) -> Option<Layout> {
        if !bytes.starts_with(b"xdebugpy") {
            return None;
        }
        let word = |index: usize| {
            let bytes = bytes.get(index * 8..index * 8 + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let mut version = Version::from_hex(word(1)?)?;
        version.free_threaded = word(2)? != 0;
        let groups = offsets::of(version.minor)?;
        // An interpreter's structure has some hundred KiB. Of the others as much is read as the
        // offsets say, of each of hundreds: larger values are no offsets.
        let most = |name: &str| if name.starts_with("interpreter.") { 1 << 24 } else { 4_096 };
        let offset = |name: &str| word(3 + offsets::position(groups, name)?).filter(|offset| *offset < most(name));
        let ascii_head = offset("unicode.asciiobject_size")?;
        Some(Layout {
            version,
            interpreters_head: offset("runtime.interpreters_head")?,
            interpreter_next: offset("interpreter.next")?,
            threads_head: offset("interpreter.threads_head")?,
            thread_next: offset("thread.next")?,
            thread_interpreter: offset("thread.interp")?,
            frame: FramePointer::Direct(offset("thread.current_frame")?),
            thread_id: offset("thread.thread_id")?,
            native_thread_id: Some(offset("thread.native_thread_id")?),
            data_stack_chunk: Some(offset("thread.datastack_chunk")?),
            frame_code: offset("frame.executable")?,
            frame_previous: offset("frame.previous")?,
            instruction: Instruction::Pointer(offset("frame.instr_ptr")?),
            frame_owner: Some(offset("frame.owner")?),
            frame_tlbc_index: offset("frame.tlbc_index").filter(|_| version.free_threaded),
            code_first_line: offset("code.firstlineno")?,
            code_file: offset("code.filename")?,
            code_name: offset("code.qualname")?,
            code_lines: offset("code.linetable")?,
            code_bytecode: Some(offset("code.co_code_adaptive")?),
            code_tlbc: offset("code.co_tlbc").filter(|_| version.free_threaded),
            object_type: offset("object.ob_type")?,
            bytes_length: offset("bytes.ob_size")?,
            bytes_data: offset("bytes.ob_sval")?,
            string_state: offset("unicode.state")?,
            // Where there is no lock, the field before it is a byte that can be written by itself.
            string_kind_bit: if version.free_threaded && version.minor >= 14 { 8 } else { 2 },
            string_length: offset("unicode.length")?,
            ascii_head,
            compact_head: ascii_head + 16,
            lines: LineTable::Locations,
        })
    }
}
