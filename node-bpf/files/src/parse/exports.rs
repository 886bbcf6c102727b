//! Dynamic symbols.

use object::{Object as _, ObjectSymbol};

use super::entry;
use super::sections::Object;
use crate::question::{Elf, Symbol};

/// Most symbols of an answer, and the longest name: the libraries that are probed export some
/// hundred functions.
const MOST_SYMBOLS: usize = 8_192;
const MOST_NAME_BYTES: usize = 256;

/// The defined dynamic symbols with one of these beginnings.
pub(super) fn read(object: &Object<'_>, prefixes: &[String]) -> Result<Elf, String> {
    let mut symbols = vec![];
    for symbol in object.file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.address() != 0) {
        let Ok(name) = symbol.name() else { continue };
        if name.len() > MOST_NAME_BYTES || !prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        if symbols.len() >= MOST_SYMBOLS {
            return Err(format!("it exports more than {MOST_SYMBOLS} such functions: no library does"));
        }
        let (address, bytes) = (symbol.address(), symbol.size());
        symbols.push(Symbol { name: name.to_owned(), address, probe: entry::probe_at(object, address, bytes) });
    }
    Ok(Elf { symbols, segments: object.segments.clone() })
}

/// The address of the symbol in its default version.
pub(super) fn default_version(object: &Object<'_>, wanted: &str) -> Result<Option<u64>, String> {
    let file = &object.file;
    let versions = file.elf_section_table().versions(file.endian(), file.data()).map_err(|error| error.to_string())?;
    let mut defined = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.name() == Ok(wanted));
    let hidden = |index| versions.as_ref().is_some_and(|v| v.version_index(file.endian(), index).is_hidden());
    let found = defined.find(|symbol| !hidden(symbol.index()));
    Ok(found.and_then(|symbol| object.offset_of(symbol.address())))
}
