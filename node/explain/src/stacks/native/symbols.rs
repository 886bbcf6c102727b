//! Names of native functions from the symbol tables of ELF files.

use std::collections::BTreeMap;
use std::ops::Range;

use object::elf::{FileHeader64, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE};
use object::read::elf::{FileHeader, SectionHeader, Sym};
use object::{LittleEndian, ReadCache};

use super::super::modules::{MAX_SECTION_BYTES, Mapping, open};
use super::super::types::shorten;

const LE: LittleEndian = LittleEndian;

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its addresses: in its file, or in memory.
    pub(crate) range: Range<u64>,
    /// Demangled.
    pub(crate) name: String,
}

/// The functions of a process that were found, by their start in memory: a program that computes is
/// at another address of the same few in each sample.
#[derive(Debug, Default)]
pub(crate) struct KnownFunctions(BTreeMap<u64, Function>);

impl KnownFunctions {
    /// The name of the function at an address in memory.
    pub(crate) fn name(&self, address: u64) -> Option<&str> {
        let (_, function) = self.0.range(..=address).next_back()?;
        function.range.contains(&address).then_some(&function.name)
    }

    /// Keeps what was found for `address`, which is `in_file` in its file: a function of the file,
    /// or none, of which the address itself is kept.
    pub(crate) fn keep(&mut self, address: u64, in_file: u64, found: Option<Function>, name_bytes: usize) {
        let bias = address.wrapping_sub(in_file);
        let function = match found {
            Some(Function { range, name }) => Function {
                range: range.start.wrapping_add(bias)..range.end.wrapping_add(bias),
                name: shorten(&name, name_bytes, false),
            },
            None => Function { range: address..address.saturating_add(1), name: format!("+{in_file:#x}") },
        };
        self.0.insert(function.range.start, function.clone());
        // Another function may begin within this one.
        if self.name(address).is_none() {
            self.0.insert(address, function);
        }
    }

    /// Forgets all where they are too many.
    pub(crate) fn keep_small(&mut self) {
        const MOST: usize = 65_536;
        if self.0.len() > MOST {
            self.0.clear();
        }
    }
}

/// The functions that contain these addresses (as in the file, ascending), in their order. Nothing
/// else of the table is kept: a library of a framework has a million symbols, and a stack needs
/// ten.
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
    use super::*;

    #[test]
    fn an_address_has_the_name_of_a_function_of_its_own_file() {
        let mut known = KnownFunctions::default();
        let function = |range, name: &str| Some(Function { range, name: name.to_owned() });
        known.keep(0x7000_1100, 0x1100, function(0x1000..0x2000, "outer"), 80);
        // Another file, where 0x1500 is no address of that function.
        assert_eq!(known.name(0x7100_1500), None);
        known.keep(0x7100_1500, 0x1500, None, 80);
        assert_eq!(known.name(0x7100_1500), Some("+0x1500"));
        // A function within another one: the address behind it has the outer one's name.
        known.keep(0x7000_1410, 0x1410, function(0x1400..0x1420, "inner"), 80);
        known.keep(0x7000_1500, 0x1500, function(0x1000..0x2000, "outer"), 80);
        let names = [0x7000_1200, 0x7000_1410, 0x7000_1500].map(|address| known.name(address));
        assert_eq!(names, [Some("outer"), Some("inner"), Some("outer")]);
    }

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
