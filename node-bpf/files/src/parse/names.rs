//! Finding one function of a file by a typed name: exactly, demangled, demangled without its
//! parameters, or by a beginning that only one function has. Exported symbols come first, then the
//! file's own symbol table (programs export little).

use std::fs::File;
use std::path::Path;

use cpp_demangle::DemangleOptions;
use gimli::UnwindSection;
use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use super::exits;

/// Where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Demangled.
    pub(super) shown: String,
    pub(super) file_offset: u64,
    /// Of functions of languages with exceptions: the ends, as file offsets.
    pub(super) exits: Option<Vec<u64>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Function {
    name: String,
    address: u64,
    bytes: u64,
}

/// Most similar names in an error message.
const MOST_SHOWN: usize = 6;

/// The function of this name.
pub(super) fn find(path: &Path, wanted: &str) -> Result<Found, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let cache = ReadCache::new(file);
    let object = object::File::parse(&cache).map_err(|error| format!("not an ELF file: {error}"))?;
    let exported = functions_of(object.dynamic_symbols());
    let function = match pick(&exported, wanted) {
        Ok(function) => function.clone(),
        Err(not_exported) => {
            let all = functions_of(object.symbols());
            if all.is_empty() {
                return Err(not_exported);
            }
            pick(&all, wanted)?.clone()
        }
    };
    let shown = demangled(&function.name);
    let offset_of = |address: u64| {
        object.segments().find_map(|segment| {
            let (offset, bytes) = segment.file_range();
            let into = address.checked_sub(segment.address())?;
            (into < bytes).then_some(offset + into)
        })
    };
    let file_offset = offset_of(function.address).ok_or_else(|| format!("{shown} is not in the file"))?;
    if shown == function.name {
        return Ok(Found { shown, file_offset, exits: None });
    }
    let exits: Vec<u64> = ends(&object, &function).into_iter().filter_map(offset_of).collect();
    if exits.is_empty() {
        return Err(format!("{shown}: no return is found in its code, so its calls cannot be timed"));
    }
    Ok(Found { shown, file_offset, exits: Some(exits) })
}

/// Addresses of the function's ends.
fn ends<'d>(object: &impl Object<'d>, function: &Function) -> Vec<u64> {
    let section = object.sections().find(|s| (s.address()..s.address() + s.size()).contains(&function.address));
    let code = section.and_then(|section| section.data_range(function.address, function.bytes).ok()?);
    let mut starts: Vec<u64> = object.dynamic_symbols().chain(object.symbols()).map(|s| s.address()).collect();
    starts.sort_unstable();
    let mut stubs = vec![];
    for section in object.sections().filter(|section| section.name().is_ok_and(|name| name.starts_with(".plt"))) {
        stubs.push(section.address()..section.address() + section.size());
    }
    // a function's cold part has a symbol of its own, but is no other function
    let cold: Vec<u64> = object
        .symbols()
        .filter(|symbol| symbol.name().is_ok_and(|name| name.contains(".cold")))
        .map(|symbol| symbol.address())
        .collect();
    let is_function = |target: u64| {
        let begins = starts.binary_search(&target).is_ok() && !cold.contains(&target);
        begins || stubs.iter().any(|stub| stub.contains(&target))
    };
    let piece = |target: u64| {
        if stubs.iter().any(|stub| stub.contains(&target)) {
            return None; // leads out of the file
        }
        let (address, bytes) = frame_of(object, target)?;
        let section = object.sections().find(|s| (s.address()..s.address() + s.size()).contains(&address))?;
        Some((address, section.data_range(address, bytes).ok()??))
    };
    exits::follow(object.architecture(), (function.address, code.unwrap_or_default()), piece, is_function)
}

/// Beginning and size of the function, or the part of one, around an address, by the unwind tables
/// (`.eh_frame`): stripped files have those, too.
fn frame_of<'d>(object: &impl Object<'d>, address: u64) -> Option<(u64, u64)> {
    let section = object.section_by_name(".eh_frame")?;
    let text = object.section_by_name(".text")?;
    let endian = if object.is_little_endian() { gimli::RunTimeEndian::Little } else { gimli::RunTimeEndian::Big };
    let frames = gimli::EhFrame::new(section.data().ok()?, endian);
    let bases = gimli::BaseAddresses::default().set_eh_frame(section.address()).set_text(text.address());
    let frame = frames.fde_for_address(&bases, address, gimli::UnwindSection::cie_from_offset).ok()?;
    Some((frame.initial_address(), frame.len()))
}

fn functions_of<'d>(symbols: impl Iterator<Item = impl ObjectSymbol<'d>>) -> Vec<Function> {
    symbols
        .filter(|symbol| symbol.is_definition() && symbol.address() != 0 && symbol.kind() == SymbolKind::Text)
        .filter_map(|symbol| {
            Some(Function { name: symbol.name().ok()?.to_owned(), address: symbol.address(), bytes: symbol.size() })
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
        |name, wanted| squeezed(&demangled(name)) == wanted,
        |name, wanted| without_parameters(name).is_some_and(|name| squeezed(&name) == wanted),
        |name, wanted| squeezed(&demangled(name)).starts_with(wanted),
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
                let names = shown(found.iter().map(|function| demangled(&function.name)), found.len());
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

fn shown(names: impl Iterator<Item = String>, count: usize) -> String {
    let mut text = names.take(MOST_SHOWN).collect::<Vec<_>>().join(", ");
    if count > MOST_SHOWN {
        text.push_str(&format!(" and {} more", count - MOST_SHOWN));
    }
    text
}

/// For people: C++ and Rust names as written in the source, all others as they are.
fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    cpp(name, DemangleOptions::new()).unwrap_or_else(|| name.to_owned())
}

fn without_parameters(name: &str) -> Option<String> {
    cpp(name, DemangleOptions::new().no_params().no_return_type())
}

fn cpp(name: &str, options: DemangleOptions) -> Option<String> {
    let symbol = cpp_demangle::Symbol::new(name).ok()?;
    name.starts_with("_Z").then(|| symbol.demangle_with_options(&options).ok())?
}

/// Names that differ in spaces only are equal.
fn squeezed(name: &str) -> String {
    name.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Names that hold what was typed or the other way round, or differ by a few letters.
fn near(functions: &[Function], wanted: &str) -> Vec<String> {
    let wanted = wanted.split('(').next().unwrap_or(wanted).to_ascii_lowercase();
    let last = wanted.rsplit("::").next().unwrap_or(&wanted).to_owned();
    let mut near: Vec<(usize, String)> = functions
        .iter()
        .filter_map(|function| {
            let name = demangled(&function.name);
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
        let own = std::env::current_exe().unwrap();
        let found = find(&own, "node_bpf::symbol_probes::names::tests::marker").unwrap();
        assert!(found.shown.ends_with("marker") && found.file_offset > 0, "{found:?}");
        assert!(found.exits.is_some_and(|exits| exits.iter().all(|exit| *exit > found.file_offset)), "a Rust function");
        marker();
    }

    #[inline(never)]
    fn marker() {
        std::hint::black_box(());
    }
}
