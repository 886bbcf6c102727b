//! What can be asked of a file, and the answers. Both are small and bounded: whoever has an answer
//! need not trust whoever gave it, but must expect any value within the types.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// A question about one ELF file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Question {
    /// The defined dynamic symbols whose names have one of these beginnings, and the load segments.
    Exports {
        /// Beginnings of names.
        prefixes: Vec<String>,
    },
    /// The address of a symbol in the version that programs are linked with (`@@`, not hidden).
    DefaultVersion {
        /// The symbol.
        symbol: String,
    },
    /// How this build of NCCL or RCCL hashes.
    NcclBuild,
    /// The version that an NCCL or RCCL file names itself by.
    NcclVersion,
    /// Where fields lie in NCCL's communicator structure, by the file's debug information.
    CommLayout,
    /// The one function that a typed name means, and where it ends.
    Function {
        /// As typed.
        name: String,
    },
    /// All functions that a typed name means, each with its ends.
    Matching {
        /// As typed: with parameters one overload, without them all.
        name: String,
    },
    /// The exported functions of these mangled names, with their ends: of each row the first that
    /// is there.
    Ends {
        /// Names of one function each.
        names: Vec<Vec<String>>,
    },
    /// All places of a USDT point.
    Points {
        /// Its provider.
        provider: String,
        /// Its name.
        name: String,
    },
    /// The function around the byte at an offset, to which a call returned.
    Place {
        /// Offset in the file.
        file_offset: u64,
    },
    /// CPython's symbols in this file, and where its unwind tables are.
    Interpreter {
        /// Look into the file's own symbol table, too: it is named like an interpreter.
        deep: bool,
    },
    /// The functions around addresses, ascending.
    Functions {
        /// Addresses in the file's own address space.
        addresses: Vec<u64>,
    },
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Question::Exports`].
    Exports(Elf),
    /// To [`Question::DefaultVersion`]: file offset and address.
    DefaultVersion(Option<u64>),
    /// To [`Question::NcclBuild`].
    NcclBuild(NcclBuild),
    /// To [`Question::NcclVersion`].
    NcclVersion(Option<String>),
    /// To [`Question::CommLayout`].
    CommLayout(CommLayout),
    /// To [`Question::Function`].
    Function(Found),
    /// To [`Question::Matching`], by address: at least one; their names have no parameters.
    Matching(Vec<Found>),
    /// To [`Question::Ends`], one a row.
    Ends(Vec<Option<EntryAndEnds>>),
    /// To [`Question::Points`].
    Points(Vec<Point>),
    /// To [`Question::Place`].
    Place(Place),
    /// To [`Question::Interpreter`].
    Interpreter(Interpreter),
    /// To [`Question::Functions`], one an address.
    Functions(Vec<Option<Function>>),
}

/// Where a function begins and where it ends, as file offsets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryAndEnds {
    /// Its first instruction.
    pub entry: u64,
    /// Its returns, and jumps to other functions in place of one; empty where none were found.
    pub ends: Vec<u64>,
}

/// A defined dynamic symbol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbol {
    /// Its name.
    pub name: String,
    /// Address in the file's own address space.
    pub address: u64,
    /// The address of the instruction at which a probe sees the function's entry at the least cost:
    /// arguments and stack are as at `address`.
    pub probe: u64,
}

/// A load segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Address in the file's own address space.
    pub address: u64,
    /// Where it begins in the file.
    pub file_offset: u64,
    /// Bytes of it in the file.
    pub file_bytes: u64,
}

/// Symbols and load segments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elf {
    /// The symbols that were asked for.
    pub symbols: Vec<Symbol>,
    /// All load segments.
    pub segments: Vec<Segment>,
}

impl Elf {
    /// The file offset of the byte at `address`: where a uprobe is attached.
    #[must_use]
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|s| address >= s.address && address - s.address < s.file_bytes)?;
        segment.file_offset.checked_add(address - segment.address)
    }

    /// What is to be added to the file's addresses in a process that maps the file's page at
    /// `map_offset` to `map_start`.
    #[must_use]
    pub fn load_bias(&self, map_start: u64, map_offset: u64) -> Option<u64> {
        let page = |n: u64| n & !0xfff;
        let segment = self.segments.iter().find(|s| page(s.file_offset) == map_offset)?;
        Some(map_start.wrapping_sub(page(segment.address)))
    }
}

/// How a build of NCCL (or RCCL) hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NcclBuild {
    /// The mixing hash of 2.26 and later, not DJB2a.
    pub mixes: bool,
    /// A split's hash is that of a text: in 2.18 to 2.22; not known for 2.23 to 2.25.
    pub splits_by_text: bool,
}

/// Byte offsets in `struct ncclComm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommLayout {
    /// `int rank`.
    pub rank: u64,
    /// `int nRanks`.
    pub nranks: u64,
    /// `uint64_t commHash`.
    pub hash: Option<u64>,
    /// `uint64_t startMagic`.
    pub magic: Option<u64>,
}

/// A function that was found by a typed name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Demangled.
    pub shown: String,
    /// Where it begins; of [`Answer::Matching`] the instruction at which a probe sees that at the least
    /// cost.
    pub file_offset: u64,
    /// Its first instruction.
    pub begins: u64,
    /// Where it ends; or why it is not certain where, for people.
    pub ends: Result<Ends, NoEnds>,
    /// Other functions that are the same code, a few: their calls are not told from its own.
    pub shares: Vec<String>,
}

/// Why the ends of a function's calls cannot be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoEnds {
    /// For people.
    pub reason: String,
    /// Each time that its beginning is passed is a call of it.
    pub entries_are_calls: bool,
}

impl From<String> for NoEnds {
    fn from(reason: String) -> NoEnds {
        NoEnds { reason, entries_are_calls: true }
    }
}

/// Where a function ends, as file offsets: at least one place. No exception passes these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// Instructions that return.
    pub returns: Vec<u64>,
    /// Jumps to another function in place of a return: what is returned is not known there.
    pub jumps: Vec<u64>,
    /// Of these, such as say where they go to, with the place.
    pub over: Vec<(u64, u64)>,
}

/// One place of a USDT point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Where it is.
    pub file_offset: u64,
    /// Where the counter is by which the program sees that somebody listens; 0: there is none.
    pub semaphore_offset: u64,
}

/// A place in a file's code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The function around it, and the offset in that.
    pub function: Option<(String, u64)>,
    /// Address in the file's own address space; none when no segment has it.
    pub address: Option<u64>,
}

impl Place {
    /// `function+0x1c (file)`, without a function `file+0x11d4`, as addr2line takes it.
    #[must_use]
    pub fn text(&self, file: &str) -> String {
        match (&self.function, self.address) {
            (Some((function, offset)), _) => format!("{function}+{offset:#x} ({file})"),
            (None, Some(address)) => format!("{file}+{address:#x}"),
            (None, None) => file.to_owned(),
        }
    }
}

/// The addresses of CPython's symbols in a file's own address space.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// `_PyRuntime`.
    pub runtime: Option<u64>,
    /// `Py_Version` (from 3.11).
    pub version: Option<u64>,
    /// `PyCode_Type`.
    pub code_type: Option<u64>,
    /// `.eh_frame`.
    pub frames: Option<Table>,
    /// `.eh_frame_hdr`.
    pub frame_index: Option<Table>,
    /// All load segments.
    pub segments: Vec<Segment>,
}

/// A section of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Address in the file's own address space.
    pub address: u64,
    /// Where it begins in the file.
    pub file_offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// A function around an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its first address.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
    /// Demangled, cut.
    pub name: String,
}

/// Which file, and which content of it: a build id or a name is what the file claims, this is what
/// the kernel says. Whoever changes the content changes the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// When it was last changed, by the kernel's count: seconds and nanoseconds.
    pub changed: (i64, i64),
    /// Its length.
    pub bytes: u64,
}

impl FileId {
    /// Of an open file.
    ///
    /// # Errors
    /// The system's, and `InvalidInput` for what is no regular file.
    pub fn of(file: &File) -> io::Result<FileId> {
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let changed = (found.ctime(), found.ctime_nsec());
        Ok(FileId { device: found.dev(), inode: found.ino(), changed, bytes: found.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_and_bias() {
        let segment = |address, file_offset| Segment { address, file_offset, file_bytes: 0x1000 };
        let elf = Elf { symbols: vec![], segments: vec![segment(0, 0), segment(0x3e10, 0x2e10)] };
        assert_eq!(elf.file_offset(0x3e20), Some(0x2e20));
        assert_eq!(elf.file_offset(0x9000), None);
        assert_eq!(elf.load_bias(0x7f00_0000_3000, 0x2000), Some(0x7f00_0000_0000));
        let odd = Elf { symbols: vec![], segments: vec![Segment { address: 0, file_offset: u64::MAX, file_bytes: 9 }] };
        assert_eq!(odd.file_offset(1), None);
    }

    #[test]
    fn places_as_text() {
        let place = |function: Option<(&str, u64)>, address| {
            Place { function: function.map(|(name, at)| (name.to_owned(), at)), address }.text("halo")
        };
        assert_eq!(place(Some(("exchange", 0x1c)), Some(0x11d4)), "exchange+0x1c (halo)");
        assert_eq!((place(None, Some(0x11d4)), place(None, None)), ("halo+0x11d4".to_owned(), "halo".to_owned()));
    }

    #[test]
    fn a_file_that_is_written_again_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lib");
        std::fs::write(&path, "one").unwrap();
        let before = FileId::of(&File::open(&path).unwrap()).unwrap();
        assert_eq!(FileId::of(&File::open(&path).unwrap()).unwrap(), before);
        let set = |file: &File| file.set_modified(std::time::SystemTime::UNIX_EPOCH);
        // the kernel's clock of changes has ticks
        while FileId::of(&File::open(&path).unwrap()).unwrap().changed == before.changed {
            std::fs::write(&path, "two").unwrap();
            set(&File::options().write(true).open(&path).unwrap()).unwrap();
        }
        let after = FileId::of(&File::open(&path).unwrap()).unwrap();
        assert!(after != before && after.inode == before.inode && after.bytes == before.bytes);
        assert!(FileId::of(&File::open(dir.path()).unwrap()).is_err());
    }
}
