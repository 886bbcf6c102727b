//! Names of native functions from the symbol tables of ELF files.

use std::ops::Range;

use object::elf::{FileHeader64, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE};
use object::read::elf::{FileHeader, SectionHeader, Sym};
use object::{LittleEndian, ReadCache};

use super::super::modules::{MAX_SECTION_BYTES, Mapping, open};

const LE: LittleEndian = LittleEndian;

/// A function of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its addresses, as in the file.
    pub(crate) range: Range<u64>,
    /// Demangled.
    pub(crate) name: String,
}

/// The functions that contain these addresses (as in the file, ascending), in their order. Nothing
/// else of the table is kept: a library of a framework has a million symbols, and a stack needs ten.
pub(crate) fn functions(pid: u32, mapping: &Mapping, addresses: &[u64]) -> Vec<Option<Function>> {
    let mut functions = vec![None; addresses.len()];
    let Some(file) = open(pid, mapping) else { return functions };
    let data = ReadCache::new(file);
    let Ok(header) = FileHeader64::<LittleEndian>::parse(&data) else { return functions };
    let Ok(sections) = header.sections(LE, &data) else { return functions };
    for kind in [SHT_SYMTAB, SHT_DYNSYM] {
        let small = sections.iter().all(|s| s.sh_type(LE) != kind || s.sh_size(LE) <= MAX_SECTION_BYTES);
        let Some(symbols) = sections.symbols(LE, &data, kind).ok().filter(|_| small) else { continue };
        for symbol in symbols.iter() {
            if !matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC | STT_NOTYPE) || symbol.st_size(LE) == 0 {
                continue;
            }
            let start = symbol.st_value(LE);
            let end = start.saturating_add(symbol.st_size(LE));
            let first = addresses.partition_point(|address| *address < start);
            for (address, function) in addresses.iter().zip(&mut functions).skip(first) {
                if *address >= end {
                    break;
                }
                if function.is_none() {
                    let name = symbol.name(LE, symbols.strings()).ok().filter(|name| !name.is_empty());
                    *function = name.map(|name| Function { range: start..end, name: demangle(name) });
                }
            }
        }
    }
    functions
}

fn demangle(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    if let Ok(rust) = rustc_demangle::try_demangle(&name) {
        return format!("{rust:#}");
    }
    if name.starts_with("_Z")
        && let Ok(symbol) = cpp_demangle::Symbol::new(name.as_bytes())
        && let Ok(readable) = symbol.demangle()
    {
        return readable;
    }
    name.into_owned()
}

#[cfg(test)]
mod tests {
    use super::demangle;

    #[test]
    fn names_of_several_languages_are_readable() {
        assert_eq!(demangle(b"_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"), "core::fmt::Write::write_fmt");
        assert_eq!(
            demangle(b"_ZN4gloo9allreduceERKNS_16AllreduceOptionsE"),
            "gloo::allreduce(gloo::AllreduceOptions const&)"
        );
        assert_eq!(demangle(b"PMPI_Allreduce"), "PMPI_Allreduce");
        assert_eq!(demangle(b"_Znonsense"), "_Znonsense");
    }
}
