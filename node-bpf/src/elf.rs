//! Reading parts of ELF files (NCCL's has 400 MB): dynamic symbols, load segments, and which hash
//! an NCCL build uses. `symbols` and `mpi` use the symbols.

use std::fs::File;
use std::path::Path;

use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use crate::nccl_hash::HashStyle;

/// Rodata beyond this is not searched for a version text.
const MOST_RODATA_BYTES: u64 = 256 << 20;
const WINDOW_BYTES: u64 = 1 << 20;

/// A defined dynamic symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) name: String,
    /// Address in the file's own address space.
    pub(crate) address: u64,
}

/// A load segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) file_offset: u64,
    pub(crate) file_bytes: u64,
}

/// The facts about an ELF file that capture needs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Elf {
    pub(crate) symbols: Vec<Symbol>,
    pub(crate) segments: Vec<Segment>,
}

impl Elf {
    /// The defined dynamic symbols that `wanted` picks, and the load segments.
    pub(crate) fn read(path: &Path, wanted: impl Fn(&str) -> bool) -> Result<Elf, String> {
        let file = File::open(path).map_err(|e| e.to_string())?;
        let cache = ReadCache::new(file);
        let object = object::File::parse(&cache).map_err(|e| format!("not an ELF file: {e}"))?;
        let symbols = object
            .dynamic_symbols()
            .filter(|symbol| symbol.is_definition() && symbol.address() != 0)
            .filter_map(|symbol| {
                let name = symbol.name().ok()?;
                wanted(name).then(|| Symbol { name: name.to_owned(), address: symbol.address() })
            })
            .collect();
        let segments = object
            .segments()
            .map(|segment| {
                let (file_offset, file_bytes) = segment.file_range();
                Segment { address: segment.address(), file_offset, file_bytes }
            })
            .collect();
        Ok(Elf { symbols, segments })
    }

    /// The file offset of the byte at `address`: where a uprobe is attached.
    pub(crate) fn file_offset(&self, address: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|s| address >= s.address && address - s.address < s.file_bytes)?;
        Some(address - segment.address + segment.file_offset)
    }

    /// What is to be added to the file's addresses in a process that maps the file's page at
    /// `map_offset` to `map_start`.
    pub(crate) fn load_bias(&self, map_start: u64, map_offset: u64) -> Option<u64> {
        let page = |n: u64| n & !0xfff;
        let segment = self.segments.iter().find(|s| page(s.file_offset) == map_offset)?;
        Some(map_start.wrapping_sub(page(segment.address)))
    }
}

/// A place in a file's code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The function around it, and the offset in that.
    pub(crate) function: Option<(String, u64)>,
    /// Address in the file's own address space; none when the file is no ELF file.
    pub(crate) address: Option<u64>,
}

impl Place {
    /// `function+0x1c (file)`, without a function `file+0x11d4`, as addr2line takes it.
    pub(crate) fn text(&self, file: &str) -> String {
        match (&self.function, self.address) {
            (Some((function, offset)), _) => format!("{function}+{offset:#x} ({file})"),
            (None, Some(address)) => format!("{file}+{address:#x}"),
            (None, None) => file.to_owned(),
        }
    }
}

/// Names of functions are cut at so many characters.
const MOST_OF_A_NAME: usize = 160;

/// The place of the byte at `file_offset`, to which a call returned: the call is before it, and may
/// be the last instruction of its function.
pub(crate) fn place(file: File, file_offset: u64) -> Place {
    let cache = ReadCache::new(file);
    let Ok(object) = object::File::parse(&cache) else { return Place::default() };
    let address = object.segments().find_map(|segment| {
        let (start, bytes) = segment.file_range();
        (start..start.saturating_add(bytes)).contains(&file_offset).then(|| file_offset - start + segment.address())
    });
    let Some(address) = address else { return Place::default() };
    let call = address.saturating_sub(1);
    let holds = |start: u64, size: u64| (start..start.saturating_add(size)).contains(&call);
    let found = object.symbols().chain(object.dynamic_symbols()).find_map(|symbol| {
        let is_it = symbol.is_definition() && matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Unknown);
        let name = (is_it && holds(symbol.address(), symbol.size())).then(|| symbol.name_bytes().ok())??;
        (!name.is_empty()).then(|| (readable(name), address - symbol.address()))
    });
    Place { function: found, address: Some(address) }
}

/// A function's name as its author wrote it, without types of arguments.
fn readable(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let text = match rustc_demangle::try_demangle(&name) {
        Ok(rust) => format!("{rust:#}"),
        Err(_) => {
            let options = cpp_demangle::DemangleOptions::new().no_params();
            let symbol = cpp_demangle::Symbol::new(name.as_bytes()).ok().filter(|_| name.starts_with("_Z"));
            symbol.and_then(|symbol| symbol.demangle_with_options(&options).ok()).unwrap_or_else(|| name.into_owned())
        }
    };
    match text.char_indices().nth(MOST_OF_A_NAME) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// How a build of NCCL (or RCCL) hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NcclBuild {
    pub(crate) style: HashStyle,
    /// A split's hash is that of a text: in 2.18 to 2.22; not known for 2.23 to 2.25.
    pub(crate) splits_by_text: bool,
}

/// Identified by the `getHash` symbol where that was not stripped, else by the version text ("NCCL
/// version 2.27.5+cuda12.9"); the older style where neither is there.
pub(crate) fn nccl_build(path: &Path) -> NcclBuild {
    let unknown = NcclBuild { style: HashStyle::Djb, splits_by_text: false };
    let Ok(file) = File::open(path) else { return unknown };
    let cache = ReadCache::new(file);
    let Ok(object) = object::File::parse(&cache) else { return unknown };
    for symbol in object.symbols() {
        match symbol.name() {
            Ok("_Z7getHashPKci") => return NcclBuild { style: HashStyle::Djb, splits_by_text: true },
            Ok("_ZL7getHashPKvm") => return NcclBuild { style: HashStyle::Mix, splits_by_text: false },
            _ => {}
        }
    }
    let version = version_text(&object).as_deref().and_then(major_minor);
    match version {
        Some(version) if version >= (2, 26) => NcclBuild { style: HashStyle::Mix, splits_by_text: false },
        Some(version) => NcclBuild { style: HashStyle::Djb, splits_by_text: ((2, 18)..=(2, 22)).contains(&version) },
        None => unknown,
    }
}

/// The version that an NCCL or RCCL file names itself by ("2.27.5").
pub(crate) fn nccl_version(path: &Path) -> Option<String> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let text = version_text(&object::File::parse(&cache).ok()?)?;
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    Some(text[..end].trim_end_matches('.').to_owned())
}

fn version_text<'data>(object: &object::File<'data, &'data ReadCache<File>>) -> Option<String> {
    let rodata = object.section_by_name(".rodata")?;
    let size = rodata.size().min(MOST_RODATA_BYTES);
    let windows = (0..size).step_by(WINDOW_BYTES as usize);
    // windows overlap, so that a text across their border is found
    windows.into_iter().find_map(|at| {
        let bytes = rodata.data_range(rodata.address() + at, (WINDOW_BYTES + 64).min(size - at)).ok()??;
        version_in(bytes)
    })
}

/// "2.27.5+cuda12.9" out of "…CCL version 2.27.5+cuda12.9…".
fn version_in(bytes: &[u8]) -> Option<String> {
    const MARK: &[u8] = b"CCL version ";
    let mut rest = bytes;
    while let Some(at) = rest.windows(MARK.len()).position(|window| window == MARK) {
        rest = &rest[at + MARK.len()..];
        let text: String = rest.iter().take(16).map(|&b| char::from(b)).take_while(|c| c.is_ascii_graphic()).collect();
        if major_minor(&text).is_some() {
            return Some(text);
        }
    }
    None
}

fn major_minor(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_text_among_others() {
        let text = version_in(b"CCL version %s\0NCCL version mismatch\0NCCL version 2.27.5+cuda12.9\0").unwrap();
        assert_eq!((text.as_str(), major_minor(&text)), ("2.27.5+cuda12.9", Some((2, 27))));
        assert_eq!(version_in(b"RCCL version 2.22.3").as_deref(), Some("2.22.3"));
        assert_eq!(version_in(b"NCCL version"), None);
    }

    #[test]
    fn places_as_text() {
        let place = |function: Option<(&str, u64)>, address| {
            Place { function: function.map(|(name, at)| (name.to_owned(), at)), address }.text("halo")
        };
        assert_eq!(place(Some(("exchange", 0x1c)), Some(0x11d4)), "exchange+0x1c (halo)");
        assert_eq!((place(None, Some(0x11d4)), place(None, None)), ("halo+0x11d4".to_owned(), "halo".to_owned()));
        assert_eq!(readable(b"_ZN4gloo9allreduceERKNS_16AllreduceOptionsE"), "gloo::allreduce");
        assert_eq!((readable(b"_Znonsense"), readable(b"step_").as_str()), ("_Znonsense".to_owned(), "step_"));
        assert_eq!(readable(&[b'x'; 999]).chars().count(), MOST_OF_A_NAME + 1);
    }

    #[test]
    fn offsets_and_bias() {
        let segment = |address, file_offset| Segment { address, file_offset, file_bytes: 0x1000 };
        let elf = Elf { symbols: vec![], segments: vec![segment(0, 0), segment(0x3e10, 0x2e10)] };
        assert_eq!(elf.file_offset(0x3e20), Some(0x2e20));
        assert_eq!(elf.file_offset(0x9000), None);
        assert_eq!(elf.load_bias(0x7f00_0000_3000, 0x2000), Some(0x7f00_0000_0000));
    }
}
