//! CPython's symbols in a file, and where its unwind tables are.

use object::elf::{self, FileHeader64};
use object::read::elf::{Sym, SymbolTable};
use object::{Endianness, Object as _, ObjectSection};

use super::sections::Object;
use crate::question::{Interpreter, Table};

const NAMES: [&[u8]; 3] = [b"_PyRuntime", b"Py_Version", b"PyCode_Type"];

/// Exported symbols are found by the hash table, without reading all names. The file's own symbols
/// are read where it has the interpreter's section, or `deep`.
pub(super) fn read(object: &Object<'_>, deep: bool) -> Interpreter {
    let mut found = exported(object);
    let section = object.file.section_by_name(".PyRuntime").map(|section| section.address());
    if found[0].is_none() && (deep || section.is_some()) {
        let own = all(object, object.file.elf_symbol_table());
        for (found, own) in found.iter_mut().zip(own) {
            *found = own.or(*found);
        }
    }
    let [runtime, version, code_type] = found;
    Interpreter {
        runtime: runtime.or(section),
        version,
        code_type,
        frames: table(object, ".eh_frame"),
        frame_index: table(object, ".eh_frame_hdr"),
        segments: object.segments.clone(),
    }
}

/// Where a section is in the file; none where it takes nothing there, as in files of debug
/// information.
fn table(object: &Object<'_>, name: &str) -> Option<Table> {
    let section = object.file.section_by_name(name)?;
    let (file_offset, bytes) = section.file_range().filter(|(_, bytes)| *bytes > 0)?;
    Some(Table { address: section.address(), file_offset, bytes })
}

fn exported(object: &Object<'_>) -> [Option<u64>; 3] {
    let file = &object.file;
    let symbols = file.elf_dynamic_symbol_table();
    let endian = file.endian();
    let sections = file.elf_section_table();
    // `object` divides by the counts of the table, and shifts by what it says, as they are.
    let is_sound = |header: &elf::GnuHashHeader<Endianness>| {
        header.bucket_count.get(endian) > 0 && header.bloom_count.get(endian) > 0 && header.bloom_shift.get(endian) < 32
    };
    let header = sections.gnu_hash_header(endian, file.data()).ok().flatten();
    let table = header.filter(|header| is_sound(header)).map(|_| sections.gnu_hash(endian, file.data()));
    let Some(Ok(Some((table, _)))) = table else {
        return all(object, symbols);
    };
    let versions = Default::default();
    NAMES.map(|name| {
        let (_, symbol) = table.find(endian, name, elf::gnu_hash(name), None, symbols, &versions)?;
        Some(symbol.st_value(endian)).filter(|address| *address != 0)
    })
}

type Symbols<'d> = SymbolTable<'d, FileHeader64<Endianness>, &'d [u8]>;

/// An extension module names the interpreter's symbols as undefined ones.
fn all(object: &Object<'_>, table: &Symbols<'_>) -> [Option<u64>; 3] {
    let endian = object.file.endian();
    let mut found = [None; 3];
    for symbol in table.iter().filter(|symbol| symbol.st_shndx(endian) != elf::SHN_UNDEF) {
        let name = symbol.name(endian, table.strings()).unwrap_or_default();
        if let Some(at) = NAMES.iter().position(|wanted| *wanted == name) {
            found[at] = Some(symbol.st_value(endian)).filter(|address| *address != 0);
        }
    }
    found
}
