//! Finding one function of a file by a typed name: exactly, demangled, demangled without its
//! parameters, or by a beginning that only one function has. Exported symbols come first, then the
//! file's own symbol table (programs export little).

use std::collections::HashMap;
use std::ops::Range;

use gimli::UnwindSection;
use object::{Object as _, ObjectSection, ObjectSymbol, SymbolKind};

use super::sections::Object;
use super::{demangle, exits};
use crate::question::{EntryAndEnds, Found};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) address: u64,
    pub(super) bytes: u64,
}

/// Most similar names in an error message.
const MOST_SHOWN: usize = 6;

/// Most bytes of code that are read of one function.
const MOST_CODE_BYTES: u64 = 4 << 20;

/// The function of this name.
pub(super) fn find(object: &Object<'_>, wanted: &str) -> Result<Found, String> {
    let exported = functions_of(object.file.dynamic_symbols(), |_| true);
    let function = match pick(&exported, wanted) {
        Ok(function) => function.clone(),
        Err(not_exported) => {
            let all = functions_of(object.file.symbols(), |_| true);
            if all.is_empty() {
                return Err(not_exported);
            }
            pick(&all, wanted)?.clone()
        }
    };
    let shown = demangle::readable(&function.name);
    let file_offset = object.offset_of(function.address).ok_or_else(|| format!("{shown} is not in the file"))?;
    if shown == function.name {
        return Ok(Found { shown, file_offset, exits: None });
    }
    let exits = Marks::of(object).ends(object, &function);
    if exits.is_empty() {
        return Err(format!("{shown}: no return is found in its code, so its calls cannot be timed"));
    }
    Ok(Found { shown, file_offset, exits: Some(exits) })
}

/// The exported functions of these mangled names: of each row the first that is there, with its
/// entry and its ends.
pub(super) fn ends_of(object: &Object<'_>, wanted: &[Vec<String>]) -> Vec<Option<EntryAndEnds>> {
    let is_wanted = |name: &str| wanted.iter().any(|names| names.iter().any(|wanted| wanted == name));
    let mut functions: HashMap<String, Function> = HashMap::new();
    for function in functions_of(object.file.dynamic_symbols(), is_wanted) {
        functions.entry(function.name.clone()).or_insert(function);
    }
    if functions.is_empty() {
        return vec![None; wanted.len()];
    }
    let marks = Marks::of(object);
    let of = |names: &Vec<String>| {
        let function = names.iter().find_map(|name| functions.get(name))?;
        let entry = object.offset_of(function.address)?;
        Some(EntryAndEnds { entry, ends: marks.ends(object, function) })
    };
    wanted.iter().map(of).collect()
}

/// What tells a jump to another function from one within a function.
pub(super) struct Marks {
    /// Where functions begin, ascending.
    starts: Vec<u64>,
    /// Where the cold parts of functions begin, ascending: they have symbols of their own, and are
    /// no other functions.
    cold: Vec<u64>,
    /// The stubs through which functions of other files are called.
    stubs: Vec<Range<u64>>,
}

impl Marks {
    pub(super) fn of(object: &Object<'_>) -> Self {
        let file = &object.file;
        let mut starts: Vec<u64> = file.dynamic_symbols().chain(file.symbols()).map(|s| s.address()).collect();
        starts.sort_unstable();
        let is_cold = |name: &[u8]| name.windows(5).any(|part| part == b".cold");
        let of_cold = file.symbols().filter(|symbol| symbol.name_bytes().is_ok_and(is_cold));
        let mut cold: Vec<u64> = of_cold.map(|symbol| symbol.address()).collect();
        cold.sort_unstable();
        let is_stub = |section: &_| ObjectSection::name(section).is_ok_and(|name| name.starts_with(".plt"));
        let stubs = file.sections().filter(is_stub);
        let stubs = stubs.map(|stub| stub.address()..stub.address().saturating_add(stub.size())).collect();
        Self { starts, cold, stubs }
    }

    /// File offsets of a function's ends.
    pub(super) fn ends(&self, object: &Object<'_>, function: &Function) -> Vec<u64> {
        let code = object.section_at(function.address);
        let code =
            code.and_then(|section| section.data_range(function.address, function.bytes.min(MOST_CODE_BYTES)).ok()?);
        let is_stub = |target: u64| self.stubs.iter().any(|stub| stub.contains(&target));
        let is_function = |target: u64| {
            let begins = self.starts.binary_search(&target).is_ok() && self.cold.binary_search(&target).is_err();
            begins || is_stub(target)
        };
        let piece = |target: u64| {
            if is_stub(target) {
                return None; // leads out of the file
            }
            let (address, bytes) = frame_of(object, target)?;
            Some((address, object.section_at(address)?.data_range(address, bytes.min(MOST_CODE_BYTES)).ok()??))
        };
        let first = (function.address, code.unwrap_or_default());
        let ends = exits::follow(object.file.architecture(), first, piece, is_function);
        ends.into_iter().filter_map(|at| object.offset_of(at)).collect()
    }
}

/// Beginning and size of the function, or the part of one, around an address, by the unwind tables
/// (`.eh_frame`): stripped files have those, too.
fn frame_of(object: &Object<'_>, address: u64) -> Option<(u64, u64)> {
    let section = object.file.section_by_name(".eh_frame")?;
    let text = object.file.section_by_name(".text")?;
    let little = object.file.is_little_endian();
    let endian = if little { gimli::RunTimeEndian::Little } else { gimli::RunTimeEndian::Big };
    let frames = gimli::EhFrame::new(section.data().ok()?, endian);
    let bases = gimli::BaseAddresses::default().set_eh_frame(section.address()).set_text(text.address());
    let to_cie = gimli::UnwindSection::cie_from_offset;
    // the index to search in, which linkers make: a large file has a million entries
    if let Some(index) = object.file.section_by_name(".eh_frame_hdr") {
        let bases = bases.clone().set_eh_frame_hdr(index.address());
        let header = gimli::EhFrameHdr::new(index.data().ok()?, endian).parse(&bases, 8).ok()?;
        let frame = header.table()?.fde_for_address(&frames, &bases, address, to_cie).ok()?;
        return Some((frame.initial_address(), frame.len()));
    }
    let frame = frames.fde_for_address(&bases, address, to_cie).ok()?;
    Some((frame.initial_address(), frame.len()))
}

pub(super) fn functions_of<'d>(
    symbols: impl Iterator<Item = impl ObjectSymbol<'d>>,
    wanted: impl Fn(&str) -> bool,
) -> Vec<Function> {
    symbols
        .filter(|symbol| symbol.is_definition() && symbol.address() != 0 && symbol.kind() == SymbolKind::Text)
        .filter_map(|symbol| {
            let name = symbol.name().ok().filter(|name| wanted(name))?;
            Some(Function { name: name.to_owned(), address: symbol.address(), bytes: symbol.size() })
        })
        .collect()
}

/// The one function that `wanted` means.
fn pick<'f>(functions: &'f [Function], wanted: &str) -> Result<&'f Function, String> {
    if let Some(function) = functions.iter().find(|function| function.name == wanted) {
        return Ok(function);
    }
    let plain = squeezed(wanted);
    let ways: [fn(&str, &str) -> bool; 3] = [
        |name, wanted| squeezed(&demangle::readable(name)) == wanted,
        |name, wanted| demangle::without_parameters(name).is_some_and(|name| squeezed(&name) == wanted),
        |name, wanted| squeezed(&demangle::readable(name)).starts_with(wanted),
    ];
    for way in ways {
        let mut found: Vec<&Function> = functions.iter().filter(|function| way(&function.name, &plain)).collect();
        // C1 and C2 constructors, aliases: one place
        found.sort_by_key(|function| function.address);
        found.dedup_by_key(|function| function.address);
        match found[..] {
            [] => {}
            [one] => return Ok(one),
            _ => {
                let names = shown(found.iter().map(|function| demangle::readable(&function.name)), found.len());
                return Err(format!("{wanted} means more than one function; name one of them in full: {names}"));
            }
        }
    }
    let near = near(functions, &plain);
    if near.is_empty() {
        return Err(format!("it exports no function {wanted}; `nm -DC --defined-only FILE` lists those it does"));
    }
    let count = near.len();
    Err(format!("it exports no function {wanted}; near to it: {}", shown(near.into_iter(), count)))
}

pub(super) fn shown(names: impl Iterator<Item = String>, count: usize) -> String {
    let mut text = names.take(MOST_SHOWN).collect::<Vec<_>>().join(", ");
    if count > MOST_SHOWN {
        text.push_str(&format!(" and {} more", count - MOST_SHOWN));
    }
    text
}

/// Names that differ in spaces only are equal.
pub(super) fn squeezed(name: &str) -> String {
    name.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Names that hold what was typed or the other way round, or differ by a few letters.
pub(super) fn near(functions: &[Function], wanted: &str) -> Vec<String> {
    let wanted = wanted.split('(').next().unwrap_or(wanted).to_ascii_lowercase();
    let last = wanted.rsplit("::").next().unwrap_or(&wanted).to_owned();
    let mut near: Vec<(usize, String)> = functions
        .iter()
        .filter_map(|function| {
            let name = demangle::readable(&function.name);
            let bare = squeezed(name.split('(').next().unwrap_or(&name)).to_ascii_lowercase();
            let distance = if last.len() >= 3 && bare.contains(&last) { 0 } else { distance(&bare, &wanted)? };
            Some((distance, name))
        })
        .collect();
    near.sort();
    near.dedup();
    near.into_iter().map(|(_, name)| name).collect()
}

/// Letters to insert, drop or change (Levenshtein 1966); none when more than a third of the name.
fn distance(a: &str, b: &str) -> Option<usize> {
    let most = b.len() / 3;
    if a.len().abs_diff(b.len()) > most {
        return None;
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in b.iter().enumerate() {
            let change = corner + usize::from(letter != *other);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row.last().copied().filter(|distance| *distance <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions() -> Vec<Function> {
        let names = [
            "plain",
            "plainer",
            "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE",
            "_ZN4gloo9broadcastERNS_16BroadcastOptionsE",
            "_ZN1a1fEi",
            "_ZN1a1fEd",
        ];
        (1..).zip(names).map(|(address, name)| Function { name: name.to_owned(), address, bytes: 0 }).collect()
    }

    #[test]
    fn a_name_is_found_however_it_is_written() {
        let functions = functions();
        let address = |wanted: &str| pick(&functions, wanted).map(|function| function.address);
        assert_eq!(address("plain"), Ok(1));
        for gloo in [
            "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE",
            "gloo::allreduce(gloo::AllreduceOptions const&)",
            "gloo::allreduce( gloo::AllreduceOptions const & )",
            "gloo::allreduce",
            "gloo::allr",
        ] {
            assert_eq!(address(gloo), Ok(3), "{gloo}");
        }
        assert_eq!(address("a::f(int)"), Ok(5));
    }

    #[test]
    fn what_means_more_than_one_is_refused_with_their_names() {
        let refused = pick(&functions(), "a::f").unwrap_err();
        assert!(refused.contains("a::f(int)") && refused.contains("a::f(double)"), "{refused}");
        let refused = pick(&functions(), "gloo::").unwrap_err();
        assert!(refused.contains("gloo::broadcast(gloo::BroadcastOptions&)"), "{refused}");
    }

    #[test]
    fn near_names_are_offered() {
        let refused = pick(&functions(), "gloo::allreduces").unwrap_err();
        assert!(refused.contains("gloo::allreduce(gloo::AllreduceOptions const&)"), "{refused}");
        let refused = pick(&functions(), "Broadcast").unwrap_err();
        assert!(refused.contains("gloo::broadcast") && !refused.contains("plain"), "{refused}");
        assert!(pick(&functions(), "zzzzzzzzzzzz").unwrap_err().contains("nm -DC"));
    }

    #[test]
    fn letters_apart() {
        assert_eq!(distance("kitten", "sitting"), None);
        assert_eq!(distance("plane", "plain"), None);
        assert_eq!(distance("ncclallreduce", "ncclallreduze"), Some(1));
    }

    #[test]
    fn our_own_functions_are_found() {
        let own = super::super::tests::own();
        let found = find(&Object::parse(&own).unwrap(), "files::parse::names::tests::marker").unwrap();
        assert!(found.shown.ends_with("marker") && found.file_offset > 0, "{found:?}");
        assert!(found.exits.is_some_and(|exits| exits.iter().all(|exit| *exit > found.file_offset)), "a Rust function");
        marker();
    }

    #[inline(never)]
    fn marker() {
        std::hint::black_box(());
    }
}
