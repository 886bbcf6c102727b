//! Names as their authors wrote them. A few hundred bytes of a mangled name can stand for
//! gigabytes: what grows beyond a bound stays as it is.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, Symbol};

/// Longer names are not demangled, and no readable form is longer.
const MOST_BYTES: usize = 16 << 10;

/// A text that refuses to grow beyond its bound.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MOST_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// For people: C++ and Rust names as written in the source, all others as they are.
pub(super) fn readable(name: &str) -> String {
    rust(name).or_else(|| cpp(name, DemangleOptions::new())).unwrap_or_else(|| name.to_owned())
}

/// The same without the types of arguments.
pub(super) fn short(name: &str) -> String {
    rust(name).or_else(|| cpp(name, DemangleOptions::new().no_params())).unwrap_or_else(|| name.to_owned())
}

/// A C++ name without types of arguments and of the result.
pub(super) fn without_parameters(name: &str) -> Option<String> {
    cpp(name, DemangleOptions::new().no_params().no_return_type())
}

/// A C++ name without the type of the result.
pub(super) fn without_result(name: &str) -> Option<String> {
    cpp(name, DemangleOptions::new().no_return_type())
}

pub(super) fn rust(name: &str) -> Option<String> {
    if name.len() > MOST_BYTES {
        return None;
    }
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    let mut text = Bounded(String::new());
    write!(text, "{demangled:#}").ok()?;
    Some(text.0)
}

fn cpp(name: &str, options: DemangleOptions) -> Option<String> {
    if !name.starts_with("_Z") || name.len() > MOST_BYTES {
        return None;
    }
    let symbol = Symbol::new(name).ok()?;
    let mut text = Bounded(String::new());
    symbol.structured_demangle(&mut text, &options).ok()?;
    Some(text.0)
}

/// At most so many characters; what is cut is marked.
pub(super) fn cut(mut text: String, most: usize) -> String {
    if let Some((at, _)) = text.char_indices().nth(most) {
        text.truncate(at);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_several_languages_are_readable() {
        assert_eq!(readable("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"), "core::fmt::Write::write_fmt");
        let gloo = "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE";
        assert_eq!(readable(gloo), "gloo::allreduce(gloo::AllreduceOptions const&)");
        assert_eq!(short(gloo), "gloo::allreduce");
        assert_eq!((readable("PMPI_Allreduce"), short("step_")), ("PMPI_Allreduce".to_owned(), "step_".to_owned()));
        assert_eq!(readable("_Znonsense"), "_Znonsense");
        assert_eq!(cut("x".repeat(99), 9).chars().count(), 10);
    }

    #[test]
    fn a_name_that_would_grow_without_end_stays_as_it_is() {
        // each argument is a pair of the one before, by a substitution: 2^60 names
        let mut name = "_Z1fI1aE1pIS_S_E".to_owned();
        for n in 0..60u32 {
            let digit = char::from_digit(n % 36, 36).unwrap().to_ascii_uppercase();
            name.push_str(&format!("1pIS{digit}_S{digit}_E"));
        }
        let shown = readable(&name);
        assert!(shown.len() <= MOST_BYTES, "{} bytes", shown.len());
    }
}
