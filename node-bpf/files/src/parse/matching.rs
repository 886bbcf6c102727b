//! Finding all functions that a typed name means: of C++ its overloads, the instances of a template,
//! and the copies that compilers make of a function. Exported symbols and the file's own.

use super::{demangle, entry};
use object::Object as _;

use super::names::{COLD, Function, Marks, functions_of, near, shown, squeezed};
use super::sections::Object;
use crate::question::Found;

/// Most functions that one name may mean.
const MOST_MATCHING: usize = 64;
/// Characters of a function's name, as it is shown.
const LONGEST_NAME: usize = 128;
/// How compilers mark copies of a function that are called in its place.
const COPIES: [&str; 7] = [".part.", ".constprop.", ".isra.", ".lto_priv.", ".llvm.", ".clone.", ".localalias"];

/// The functions of this name, each with its ends.
pub(super) fn find(object: &Object<'_>, wanted: &str) -> Result<Vec<Found>, String> {
    let name = Name::of(wanted);
    let mut functions = functions_of(object.file.dynamic_symbols(), |symbol| name.means(symbol));
    functions.extend(functions_of(object.file.symbols(), |symbol| name.means(symbol)));
    // Aliases, and what is in both tables: one place.
    functions.sort_by_key(|function| function.address);
    functions.dedup_by_key(|function| function.address);
    if functions.is_empty() {
        return Err(nothing(object, wanted));
    }
    if functions.len() > MOST_MATCHING {
        return Err(format!(
            "{wanted} means {} functions, of which {MOST_MATCHING} can be followed; name one with its parameters: {}",
            functions.len(),
            shown(functions.iter().map(|function| demangle::readable(&function.name)), functions.len())
        ));
    }
    let marks = Marks::of(object);
    functions.iter().map(|function| found(object, &marks, function)).collect()
}

fn found(object: &Object<'_>, marks: &Marks<'_, '_>, function: &Function) -> Result<Found, String> {
    let readable = short(bare(&function.name));
    let probe = entry::probe_at(object, function.address, function.bytes);
    let file_offset = object.offset_of(probe).ok_or_else(|| format!("{readable} is not in the file's code"))?;
    let begins = object.offset_of(function.address).ok_or_else(|| format!("{readable} is not in the file's code"))?;
    let (ends, shares) = (marks.ends(function, probe), marks.shares(function));
    Ok(Found { shown: demangle::cut(readable, LONGEST_NAME), file_offset, begins, ends, shares })
}

fn nothing(object: &Object<'_>, wanted: &str) -> String {
    let all = |_: &str| true;
    let mut functions = functions_of(object.file.dynamic_symbols(), all);
    functions.extend(functions_of(object.file.symbols(), all));
    let near = near(&functions, &squeezed(wanted));
    if near.is_empty() {
        return format!(
            "it has no function {wanted}; `nm -C --defined-only FILE` (with -D where it is stripped) lists its"
        );
    }
    let count = near.len();
    format!("it has no function {wanted}; near to it: {}", shown(near.into_iter(), count))
}

/// A name as typed.
struct Name {
    squeezed: String,
    with_parameters: bool,
    /// What the mangled name has as it stands: saves demangling all others.
    literal: Option<String>,
}

impl Name {
    fn of(typed: &str) -> Name {
        // Their brackets hold no parameters.
        let rest = typed.replace("(anonymous namespace)", "").replace("operator()", "operator");
        let without = rest.split('(').next().unwrap_or_default().trim();
        let last = without_template(without).rsplit("::").next().unwrap_or_default().trim();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let is_literal = !last.is_empty() && last.chars().all(is_word) && !last.starts_with("operator");
        Name {
            squeezed: squeezed(typed),
            with_parameters: rest.contains('('),
            literal: is_literal.then(|| last.to_owned()),
        }
    }

    fn means(&self, symbol: &str) -> bool {
        if symbol.contains(COLD) || self.literal.as_deref().is_some_and(|part| !symbol.contains(part)) {
            return false;
        }
        let symbol = bare(symbol);
        if squeezed(symbol) == self.squeezed {
            return true;
        }
        if self.with_parameters {
            let readable = Some(demangle::readable(symbol));
            return [readable, demangle::without_result(symbol)].iter().flatten().any(|name| self.is(name));
        }
        let short = short(symbol);
        self.is(&short) || self.is(without_template(&short))
    }

    fn is(&self, name: &str) -> bool {
        squeezed(name) == self.squeezed
    }
}

/// A symbol without the mark of a copy.
fn bare(symbol: &str) -> &str {
    let mark = COPIES.iter().filter_map(|mark| symbol.find(mark)).min();
    mark.map_or(symbol, |at| &symbol[..at])
}

/// As people write it, without parameters and result.
fn short(symbol: &str) -> String {
    let of_rust = demangle::rust(symbol);
    of_rust.or_else(|| demangle::without_parameters(symbol)).unwrap_or_else(|| symbol.to_owned())
}

/// `ns::f` of `ns::f<int>`.
fn without_template(name: &str) -> &str {
    if !name.ends_with('>') || name.rsplit("::").next().is_some_and(|last| last.starts_with("operator")) {
        return name;
    }
    let mut depth = 0_usize;
    for (at, letter) in name.char_indices().rev() {
        match letter {
            '>' => depth += 1,
            '<' if depth == 1 => return &name[..at],
            '<' => depth -= 1,
            _ => {}
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn means(typed: &str, symbol: &str) -> bool {
        Name::of(typed).means(symbol)
    }

    #[test]
    fn a_name_without_parameters_means_all_overloads_instances_and_copies() {
        for symbol in [
            "_ZN1a1fEi",
            "_ZN1a1fEd",
            "_ZN1a1fEi.constprop.0",
            "_ZN1a1fEi.part.0.isra.1",
            "_ZN1a1fIiEEvT_", // void a::f<int>(int)
        ] {
            assert!(means("a::f", symbol), "{symbol}");
            assert!(means(" a :: f ", symbol), "{symbol}");
        }
        assert!(means("a::f<int>", "_ZN1a1fIiEEvT_") && !means("a::f<double>", "_ZN1a1fIiEEvT_"));
        for symbol in ["_ZN1a1fEi.cold", "_ZN1b1fEi", "_ZN1a2ffEi", "f"] {
            assert!(!means("a::f", symbol), "{symbol}");
        }
        assert!(means("step", "step") && means("step", "step.part.0") && !means("step", "_ZN1a4stepEv"));
        assert!(means("_ZN1a1fEi", "_ZN1a1fEi") && !means("_ZN1a1fEi", "_ZN1a1fEd"));
        assert!(means("files::parse::answer", "_ZN5files5parse6answer17h0123456789abcdefE"), "Rust");
    }

    #[test]
    fn a_name_with_parameters_means_one() {
        assert!(means("a::f(int)", "_ZN1a1fEi") && !means("a::f(int)", "_ZN1a1fEd"));
        assert!(means("a::f<int>(int)", "_ZN1a1fIiEEvT_"), "its result need not be said");
        assert!(means("void a::f<int>(int)", "_ZN1a1fIiEEvT_"));
        let hidden = "_ZN12_GLOBAL__N_14stepEi";
        assert!(means("(anonymous namespace)::step", hidden) && means("(anonymous namespace)::step(int)", hidden));
        assert!(means("a::F::operator()", "_ZN1a1FclEi") && means("a::F::operator()(int)", "_ZN1a1FclEi"));
    }

    #[test]
    fn template_arguments_end_a_name() {
        assert_eq!(without_template("a<b<int>>::f<c<d>>"), "a<b<int>>::f");
        assert_eq!((without_template("a::operator->"), without_template("a>")), ("a::operator->", "a>"));
    }

    #[test]
    fn our_own_functions_are_found_with_their_ends() {
        let own = super::super::tests::own();
        let object = Object::parse(&own).unwrap();
        let found = find(&object, "files::parse::matching::tests::marker").unwrap();
        let [one] = &found[..] else { panic!("{found:?}") };
        assert_eq!(one.shown, "files::parse::matching::tests::marker");
        assert!(
            one.ends.as_ref().is_ok_and(|ends| ends.returns.iter().all(|exit| *exit >= one.file_offset)),
            "{one:?}"
        );
        let error = find(&object, "files::parse::matching::tests::markers").unwrap_err();
        assert!(error.contains("near to it: files::parse::matching::tests::marker"), "{error}");
        assert!(find(&object, "zzzzzzzzzz").unwrap_err().contains("nm -C"));
        marker();
    }

    #[inline(never)]
    fn marker() {
        std::hint::black_box(());
    }

    proptest! {
        #[test]
        fn any_names_compare_without_harm(typed in "\\PC{0,40}", symbol in "(_Z)?[N0-9a-zA-Z_.<>:()]{0,60}") {
            let _ = means(&typed, &symbol);
            prop_assert!(without_template(&typed).len() <= typed.len());
        }
    }
}
