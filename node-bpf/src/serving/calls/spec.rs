//! `LIBRARY:FUNCTION` or `LIBRARY:PROVIDER:BEGIN:END`, as typed after `--request`: which calls are
//! requests.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::serving::spec::matches;
use crate::symbol_probes::named;

/// Most of them.
const MOST: usize = 16;
/// Characters of one.
const LONGEST: usize = 1_024;

/// A function whose calls are requests, or a pair of USDT points that one thread passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestSpec {
    /// A file's name, its beginning before ".so", or a pattern; with a slash that of its path.
    library: String,
    pub(super) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    Function { name: String },
    Pair { provider: String, begin: String, end: String },
}

/// The argument is no such function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Not of the form.
    #[error(
        "{typed}: not LIBRARY:FUNCTION, for example libserver.so:ns::Engine::step (`nm -C --defined-only FILE` lists \
         functions), and not LIBRARY:PROVIDER:BEGIN:END, two USDT points (`readelf -n FILE` lists them)"
    )]
    Form {
        /// The text.
        typed: String,
    },
    /// A path that is not absolute.
    #[error("{typed}: give the library's whole path (/…), or its file name alone")]
    RelativePath {
        /// The text.
        typed: String,
    },
    /// Too many, or too long.
    #[error("give at most {MOST} of {LONGEST} characters: each function is probed in every process that has it")]
    TooMuch,
}

impl RequestSpec {
    /// Reads what was typed, each once.
    ///
    /// # Errors
    /// What is wrong with one of them.
    pub fn parse_all(typed: &[String]) -> Result<Vec<RequestSpec>, RequestError> {
        if typed.len() > MOST || typed.iter().any(|typed| typed.chars().count() > LONGEST) {
            return Err(RequestError::TooMuch);
        }
        let mut all = vec![];
        for typed in typed {
            let spec = RequestSpec::parse(typed)?;
            if !all.contains(&spec) {
                all.push(spec);
            }
        }
        Ok(all)
    }

    fn parse(typed: &str) -> Result<RequestSpec, RequestError> {
        let form = || RequestError::Form { typed: typed.to_owned() };
        let (library, what) = typed.split_once(':').ok_or_else(form)?;
        if library.contains('/') && !library.starts_with(['/', '*']) {
            return Err(RequestError::RelativePath { typed: typed.to_owned() });
        }
        // Two colons are part of a name.
        let joined = what.replace("::", "\0");
        let fields: Vec<String> = joined.split(':').map(|field| field.trim().replace('\0', "::")).collect();
        if library.is_empty() || fields.iter().any(String::is_empty) {
            return Err(form());
        }
        let what = match &fields[..] {
            [name] => {
                let name = name.strip_prefix("::").unwrap_or(name);
                if name.is_empty() || name.ends_with("::") || name.starts_with('(') && !name.contains("::") {
                    return Err(form());
                }
                What::Function { name: name.to_owned() }
            }
            [provider, begin, end] if !joined.contains('\0') && begin != end => {
                What::Pair { provider: provider.clone(), begin: begin.clone(), end: end.clone() }
            }
            _ => return Err(form()),
        };
        Ok(RequestSpec { library: library.to_owned(), what })
    }

    /// Whether it may mean a file of this name: a look that costs little, as paths may be long.
    pub(in crate::serving) fn may_mean(&self, file_name: &[u8]) -> bool {
        match self.library.rsplit_once('/') {
            Some((_, last)) => matches(last, &String::from_utf8_lossy(file_name)),
            None => self.means(b"", file_name),
        }
    }

    /// Whether it means a file that processes see under this path.
    pub(in crate::serving) fn means(&self, path: &[u8], file_name: &[u8]) -> bool {
        let of = |bytes: &[u8]| matches(&self.library, &Path::new(OsStr::from_bytes(bytes)).to_string_lossy());
        if self.library.contains('/') { of(path) } else { named(&self.library, file_name) || of(file_name) }
    }
}

impl fmt::Display for RequestSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Function { name } => write!(f, "{}:{name}", self.library),
            What::Pair { provider, begin, end } => write!(f, "{}:{provider}:{begin}:{end}", self.library),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(typed: &str) -> Result<RequestSpec, RequestError> {
        RequestSpec::parse_all(&[typed.to_owned()]).map(|mut all| all.remove(0))
    }

    #[test]
    fn functions_as_typed() {
        for typed in [
            "libserver.so:serve",
            "libserver:ns::Engine::step",
            "/opt/*/libserver.so*:ns::f(std::vector<int, std::allocator<int> > const&)",
            "server:(anonymous namespace)::step",
            "server:ns::F::operator()",
        ] {
            let spec = parse(typed).unwrap();
            assert_eq!(spec.to_string(), typed);
            assert!(matches!(spec.what, What::Function { .. }), "{typed}");
        }
        assert_eq!(parse("server:::step").unwrap().to_string(), "server:step", "of no namespace");
    }

    #[test]
    fn pairs_of_points_as_typed() {
        let spec = parse("libserver.so:engine:step__begin:step__end").unwrap();
        assert_eq!(
            spec.what,
            What::Pair { provider: "engine".into(), begin: "step__begin".into(), end: "step__end".into() }
        );
        assert_eq!(spec.to_string(), "libserver.so:engine:step__begin:step__end");
    }

    #[test]
    fn what_is_neither_is_refused_with_what_to_do() {
        for typed in [
            "",
            "libx.so",
            ":f",
            "libx.so:",
            "libx.so: ",
            "libx.so:::",
            "libx.so:a:b",
            "libx.so:a:b:c:d",
            "libx.so:a:b:b",
            "libx.so:a::b:c:d",
            "libx.so:a::",
            "libx.so:a::b:",
            "libx.so:(int)",
        ] {
            let error = parse(typed).unwrap_err().to_string();
            assert!(error.contains("LIBRARY:FUNCTION") && error.contains("nm -C"), "{typed}: {error}");
        }
        assert!(parse("lib/libx.so:f").unwrap_err().to_string().contains("whole path"));
        let many: Vec<String> = (0..=MOST).map(|n| format!("libx.so:f{n}")).collect();
        assert_eq!(RequestSpec::parse_all(&many), Err(RequestError::TooMuch));
        assert_eq!(parse(&format!("libx.so:{}", "f".repeat(LONGEST))), Err(RequestError::TooMuch));
        let twice = ["libx.so:f".to_owned(), "libx.so:f".to_owned()];
        assert_eq!(RequestSpec::parse_all(&twice).unwrap().len(), 1);
    }

    #[test]
    fn a_library_is_meant_by_its_name_a_pattern_or_its_path() {
        let means = |library: &str, path: &str| {
            let name = path.rsplit('/').next().unwrap();
            let spec = parse(&format!("{library}:f")).unwrap();
            let means = spec.means(path.as_bytes(), name.as_bytes());
            assert!(!means || spec.may_mean(name.as_bytes()), "{library}");
            means
        };
        for library in ["libx", "libx.so", "libx.so.1", "libx.so*", "*x.so.1", "/opt/lib/libx.so.1", "/opt/*/libx.so*"]
        {
            assert!(means(library, "/opt/lib/libx.so.1"), "{library}");
        }
        for library in ["lib", "libx.so.2", "x", "/opt/libx.so.1", "libxy"] {
            assert!(!means(library, "/opt/lib/libx.so.1"), "{library}");
        }
        assert!(means("server", "/usr/bin/server") && !means("serve", "/usr/bin/server"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm_and_what_is_taken_means_itself(typed in "\\PC{0,60}") {
            if let Ok(spec) = parse(&typed) {
                prop_assert_eq!(parse(&spec.to_string()), Ok(spec));
            }
        }
    }
}
