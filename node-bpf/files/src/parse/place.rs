//! Functions around addresses, by the symbol tables.

use object::elf::{STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE};
use object::read::elf::{Sym, SymbolTable};
use object::{Endianness, Object as _, ObjectSymbol, SymbolKind};

use super::demangle;
use super::sections::Object;
use crate::question::{Function, Place};

/// Names are cut at so many characters.
const MOST_OF_A_NAME: usize = 160;
const MOST_OF_A_LONG_NAME: usize = 512;
/// Most addresses of one question.
const MOST_ADDRESSES: usize = 2_048;

/// The place of the byte at `file_offset`, to which a call returned: the call is before it, and may
/// be the last instruction of its function.
pub(super) fn of(object: &Object<'_>, file_offset: u64) -> Place {
    let address = object.segments.iter().find_map(|segment| {
        let into = file_offset.checked_sub(segment.file_offset)?;
        (into < segment.file_bytes).then(|| segment.address.checked_add(into))?
    });
    let Some(address) = address else { return Place::default() };
    let call = address.saturating_sub(1);
    let holds = |start: u64, size: u64| (start..start.saturating_add(size)).contains(&call);
    let found = object.file.symbols().chain(object.file.dynamic_symbols()).find_map(|symbol| {
        let is_it = symbol.is_definition() && matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Unknown);
        let name = (is_it && holds(symbol.address(), symbol.size())).then(|| symbol.name_bytes().ok())??;
        let name = String::from_utf8_lossy(name);
        let shown = || demangle::cut(demangle::short(&name), MOST_OF_A_NAME);
        (!name.is_empty()).then(|| (shown(), address - symbol.address()))
    });
    Place { function: found, address: Some(address) }
}

/// The functions that contain these addresses (ascending), in their order. Nothing else of the
/// table is kept: a library of a framework has a million symbols, and a stack needs ten.
pub(super) fn functions(object: &Object<'_>, addresses: &[u64]) -> Vec<Option<Function>> {
    let addresses = &addresses[..addresses.len().min(MOST_ADDRESSES)];
    let mut functions = vec![None; addresses.len()];
    if addresses.is_sorted() {
        for table in [object.file.elf_symbol_table(), object.file.elf_dynamic_symbol_table()] {
            add(object.file.endian(), table, addresses, &mut functions);
        }
    }
    functions
}

type Table<'d> = SymbolTable<'d, object::elf::FileHeader64<Endianness>, &'d [u8]>;

fn add(endian: Endianness, table: &Table<'_>, addresses: &[u64], functions: &mut [Option<Function>]) {
    for symbol in table.iter() {
        if !matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC | STT_NOTYPE) || symbol.st_size(endian) == 0 {
            continue;
        }
        let start = symbol.st_value(endian);
        let end = start.saturating_add(symbol.st_size(endian));
        let first = addresses.partition_point(|address| *address < start);
        for (address, function) in addresses.iter().zip(functions.iter_mut()).skip(first) {
            if *address >= end {
                break;
            }
            if function.is_none() {
                let name = symbol.name(endian, table.strings()).ok().filter(|name| !name.is_empty());
                *function = name.map(|name| {
                    let name = demangle::readable(&String::from_utf8_lossy(name));
                    Function { start, end, name: demangle::cut(name, MOST_OF_A_LONG_NAME) }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    extern "C" fn marker() -> u64 {
        std::hint::black_box(7)
    }

    #[test]
    fn a_function_of_our_own_is_found_by_its_addresses() {
        let own = super::super::tests::own();
        let object = Object::parse(&own).unwrap();
        assert_eq!(marker(), 7);
        let symbol = object.file.symbols().find(|s| s.name().is_ok_and(|name| name.contains("place5tests6marker")));
        let at = symbol.unwrap().address();
        let found = functions(&object, &[1, at, at + 1, u64::MAX]);
        assert!(found[0].is_none() && found[3].is_none());
        let function = found[1].as_ref().unwrap();
        assert!(function.name.ends_with("marker") && function.start == at && found[2] == found[1], "{function:?}");
        let place = of(&object, object.offset_of(at + 4).unwrap());
        assert!(place.text("own").contains("marker+0x4 (own)"), "{place:?}");
        assert_eq!(functions(&object, &[at, 1]), [None, None], "not ascending");
        assert_eq!(of(&object, u64::MAX), Place::default());
    }
}
