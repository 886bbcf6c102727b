//! Finding one function of a file by a typed name: exactly, demangled, demangled without its
//! parameters, or by a beginning that only one function has. Exported symbols come first, then the
//! file's own symbol table (programs export little).

use std::collections::HashMap;
use std::ops::Range;

use object::elf::{SHF_EXECINSTR, STT_GNU_IFUNC};
use object::{Object as _, ObjectSection, ObjectSymbol, SectionFlags, SymbolFlags, SymbolKind};

use super::exits::Target;
use super::frames::Frames;
use super::sections::{Object, Symbol};
use super::{demangle, exits};
use crate::question::{Ends, EntryAndEnds, Found, NoEnds};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// Its code chooses the function (IFUNC), and is not it.
    pub(super) is_resolver: bool,
}

/// A part of a function that is jumped to, not called.
pub(super) const COLD: &str = ".cold";

/// Most similar names in an error message.
const MOST_SHOWN: usize = 6;
/// Characters of a name that is shown beside another.
const LONGEST_SHOWN: usize = 128;

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
    let marks = Marks::of(object);
    let ends = marks.ends(&function, function.address);
    let shares = marks.shares(&function);
    Ok(Found { shown, file_offset, begins: file_offset, ends, shares })
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
        // Of libraries that are known, what they hand over to is a part of them that nobody else calls.
        let ends = marks.ends_of(function, function.address, true);
        let ends = ends.or_else(|_| marks.ends(function, function.address));
        let all = ends.map(|Ends { returns, jumps, .. }| [returns, jumps].concat()).unwrap_or_default();
        Some(EntryAndEnds { entry, ends: all })
    };
    wanted.iter().map(of).collect()
}

/// What a file says of its functions' code: what tells a jump to another function from one within a
/// function.
pub(super) struct Marks<'o, 'd> {
    object: &'o Object<'d>,
    frames: Option<Frames<'d>>,
    /// Where functions begin, ascending.
    starts: Vec<u64>,
    /// Where data begin in the code, ascending, as far as symbols say it (aarch64).
    data: Vec<u64>,
    /// The cold parts of functions, by address: they have symbols of their own, and are no other functions.
    cold: Vec<Cold<'d>>,
    /// The stubs through which functions of other files are called.
    stubs: Vec<Range<u64>>,
    /// It is made by Go's compiler.
    is_go: bool,
}

/// `f.cold`, of `f`.
struct Cold<'d> {
    address: u64,
    bytes: u64,
    of: &'d str,
}

impl<'o, 'd> Marks<'o, 'd> {
    pub(super) fn of(object: &'o Object<'d>) -> Self {
        let file = &object.file;
        let (mut starts, mut data, mut cold) = (vec![], vec![], vec![]);
        for symbol in file.dynamic_symbols().chain(file.symbols()).filter(|symbol| symbol.is_definition()) {
            let name = symbol.name().unwrap_or_default();
            match name.find(COLD) {
                _ if is_mapping_symbol(name, "$d") => data.push(symbol.address()),
                _ if is_mapping_symbol(name, "$x") => {}
                Some(at) => cold.push(Cold { address: symbol.address(), bytes: symbol.size(), of: &name[..at] }),
                None if matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Unknown) => {
                    starts.push(symbol.address());
                }
                None => {}
            }
        }
        starts.sort_unstable();
        starts.dedup();
        data.sort_unstable();
        cold.sort_unstable_by_key(|part| part.address);
        let is_stub = |section: &_| ObjectSection::name(section).is_ok_and(|name| name.starts_with(".plt"));
        let stubs = file.sections().filter(is_stub);
        let stubs = stubs.map(|stub| stub.address()..stub.address().saturating_add(stub.size())).collect();
        let is_of_go = |name: &str| name.contains(".gopclntab") || name == ".go.buildinfo";
        let is_go = file.sections().any(|section| section.name().is_ok_and(is_of_go));
        Self { object, frames: Frames::of(object), starts, data, cold, stubs, is_go }
    }

    /// A function's ends, as file offsets, where its entry is probed at this address.
    ///
    /// # Errors
    /// Why it is not certain which they are, for people.
    pub(super) fn ends(&self, function: &Function, probed: u64) -> Result<Ends, NoEnds> {
        self.ends_of(function, probed, false)
    }

    /// The same; `follows`: functions of this file that it goes on in are parts of it.
    fn ends_of(&self, function: &Function, probed: u64, follows: bool) -> Result<Ends, NoEnds> {
        if function.is_resolver {
            let reason = "its code is chosen when it is loaded (IFUNC): name the function that is chosen".to_owned();
            return Err(NoEnds { reason, entries_are_calls: false });
        }
        if self.is_go {
            let reason = "it is of a Go program, whose stacks are moved and whose calls change threads".to_owned();
            return Err(NoEnds { reason, entries_are_calls: false });
        }
        if function.bytes > MOST_CODE_BYTES {
            return Err(format!("it has {} MiB of code", function.bytes >> 20).into());
        }
        if self.place(function.address).is_none() {
            let reason = "its symbol does not lead to code in the file".to_owned();
            return Err(NoEnds { reason, entries_are_calls: false });
        }
        let code = self.code(function.address, function.bytes).unwrap_or_default();
        let around = AroundOne { marks: self, function, follows };
        let architecture = self.object.file.architecture();
        let Ends { returns, jumps, over } = exits::of(architecture, (function.address, code), probed, &around)?;
        let offsets = |ends: Vec<u64>| {
            let offset = |at: u64| self.place(at).ok_or_else(|| "its code is not in the file".to_owned());
            ends.into_iter().map(offset).collect::<Result<Vec<u64>, String>>()
        };
        let over = over.into_iter().filter_map(|(from, to)| self.place(from).zip(self.place(to))).collect();
        Ok(Ends { returns: offsets(returns)?, jumps: offsets(jumps)?, over })
    }

    /// Other functions that are the same code (linkers fold what is equal).
    pub(super) fn shares(&self, function: &Function) -> Vec<String> {
        let own = demangle::short(&function.name);
        let file = &self.object.file;
        let there = file.symbols().chain(file.dynamic_symbols()).filter(|symbol| {
            symbol.is_definition() && symbol.kind() == SymbolKind::Text && symbol.address() == function.address
        });
        let mut names: Vec<String> = there.filter_map(|symbol| Some(demangle::short(symbol.name().ok()?))).collect();
        names.retain(|name| *name != own);
        names.sort();
        names.dedup();
        names.truncate(MOST_SHOWN);
        names.into_iter().map(|name| demangle::cut(name, LONGEST_SHOWN)).collect()
    }

    /// Bytes of code: where its section and what is mapped say that they lie at the same place of the file.
    fn code(&self, address: u64, bytes: u64) -> Option<&'d [u8]> {
        let section = self.object.section_at(address)?;
        let SectionFlags::Elf { sh_flags, .. } = section.flags() else { return None };
        let offset = section.file_range()?.0.checked_add(address.checked_sub(section.address())?)?;
        let is_code = sh_flags & u64::from(SHF_EXECINSTR) != 0 && self.object.offset_of(address) == Some(offset);
        section.data_range(address, bytes).ok()?.filter(|_| is_code)
    }

    /// The offset in the file of an instruction.
    fn place(&self, address: u64) -> Option<u64> {
        self.code(address, 1).and_then(|_| self.object.offset_of(address))
    }

    /// The cold part around an address.
    fn cold_at(&self, address: u64) -> Option<&Cold<'d>> {
        let at = self.cold.partition_point(|part| part.address <= address).checked_sub(1)?;
        self.cold.get(at).filter(|part| address - part.address < part.bytes)
    }
}

/// What a file says of the code around one function.
struct AroundOne<'m, 'o, 'd> {
    marks: &'m Marks<'o, 'd>,
    function: &'m Function,
    follows: bool,
}

impl<'d> exits::Around<'d> for AroundOne<'_, '_, 'd> {
    fn target(&self, address: u64) -> Target<'d> {
        let Marks { object, frames, starts, stubs, .. } = self.marks;
        if stubs.iter().any(|stub| stub.contains(&address)) {
            return Target::Function;
        }
        let part = |from: u64, bytes: u64, is_certain: bool| {
            let code = self.marks.code(from, bytes).filter(|_| bytes <= MOST_CODE_BYTES);
            code.map_or(Target::Unknown, |code| Target::Part { address: from, code, is_certain })
        };
        if let Some(cold) = self.marks.cold_at(address) {
            let is_its =
                |symbol: &Symbol<'_, '_>| symbol.address() == self.function.address && symbol.name() == Ok(cold.of);
            let is_its = cold.of == self.function.name || object.file.symbols().any(|symbol| is_its(&symbol));
            return if is_its { part(cold.address, cold.bytes, true) } else { Target::Unknown };
        }
        let is_start = starts.binary_search(&address).is_ok();
        if is_start && !self.follows {
            return Target::Function;
        }
        let Some(frame) = frames.as_ref().and_then(|frames| frames.around(address)) else {
            return if is_start { Target::Function } else { Target::Unknown };
        };
        let bytes = frame.end.saturating_sub(frame.start);
        if self.follows {
            return part(frame.start, bytes, true);
        }
        if frame.contains(&self.function.address) {
            return part(frame.start, bytes, true);
        }
        let is_named = starts.binary_search(&frame.start).is_ok();
        match self.stack_is_as_at_entry(frame.start) {
            _ if is_named => Target::Unknown, // into the middle of another function
            Some(false) => part(frame.start, bytes, true),
            _ => part(frame.start, bytes, false),
        }
    }

    fn starts(&self, within: &Range<u64>) -> &[u64] {
        let starts = &self.marks.starts;
        let (from, to) = (|at: &u64| *at < within.start, |at: &u64| *at < within.end);
        starts.get(starts.partition_point(from)..starts.partition_point(to)).unwrap_or_default()
    }

    fn data(&self, within: &Range<u64>) -> Option<u64> {
        let data = &self.marks.data;
        data.get(data.partition_point(|at| *at < within.start)).copied().filter(|at| *at < within.end)
    }

    fn stack_is_as_at_entry(&self, address: u64) -> Option<bool> {
        self.marks.frames.as_ref()?.stack_is_as_at_entry(address)
    }

    fn word(&self, address: u64) -> Option<u64> {
        let bytes = self.marks.object.section_at(address)?.data_range(address, 8).ok()??;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

/// `$d`, `$d.7`: what begins at an address, code or data.
fn is_mapping_symbol(name: &str, mark: &str) -> bool {
    name.strip_prefix(mark).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

pub(super) fn functions_of<'d>(
    symbols: impl Iterator<Item = impl ObjectSymbol<'d>>,
    wanted: impl Fn(&str) -> bool,
) -> Vec<Function> {
    symbols
        .filter(|symbol| symbol.address() != 0)
        .filter_map(|symbol| {
            let SymbolFlags::Elf { st_info, .. } = symbol.flags() else { return None };
            let is_resolver = st_info & 15 == STT_GNU_IFUNC;
            let is_function = symbol.is_definition() && symbol.kind() == SymbolKind::Text;
            if !is_function && (!is_resolver || symbol.is_undefined()) {
                return None;
            }
            let name = symbol.name().ok().filter(|name| wanted(name))?;
            Some(Function { name: name.to_owned(), address: symbol.address(), bytes: symbol.size(), is_resolver })
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
        (1..)
            .zip(names)
            .map(|(address, name)| Function { name: name.to_owned(), address, bytes: 0, is_resolver: false })
            .collect()
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
        assert!(
            found.ends.is_ok_and(|ends| ends.returns.iter().all(|exit| *exit > found.file_offset)),
            "a Rust function"
        );
        marker();
    }

    #[inline(never)]
    fn marker() {
        std::hint::black_box(());
    }
}
