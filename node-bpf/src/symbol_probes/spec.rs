//! `LIB:SYMBOL[:retval]` and `LIB:PROVIDER:NAME` as typed.

use std::fmt;
use std::path::{Path, PathBuf};

/// A function or a USDT point to be probed, in every file that the library's name means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSpec {
    library: Library,
    pub(crate) what: What,
}

/// What is probed in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    Function { name: String, with_ret: bool },
    Usdt { provider: String, name: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Library {
    /// One file: as typed, and with its links resolved, which is what maps show.
    Path { typed: PathBuf, resolved: PathBuf },
    /// Every file of this name that a process has mapped: "libgloo.so.0", "libgloo.so" or
    /// "libgloo".
    Name(String),
}

/// The argument is no probe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Not of the form `LIB:SYMBOL[:retval]`.
    #[error(
        "{typed}: not LIB:SYMBOL[:retval]; LIB is a library's path or its name as processes map it, for example \
         libgloo.so.0:gloo::allreduce or /usr/lib/libx.so:f:retval"
    )]
    Function {
        /// The text.
        typed: String,
    },
    /// Not of the form `LIB:PROVIDER:NAME`.
    #[error(
        "{typed}: not LIB:PROVIDER:NAME; `readelf -n LIB` lists a library's points (owner stapsdt), for example \
         libc.so.6:libc:setjmp"
    )]
    Usdt {
        /// The text.
        typed: String,
    },
    /// A path that is not absolute.
    #[error("{typed}: give the library's whole path (/…), or its file name alone")]
    RelativePath {
        /// The text.
        typed: String,
    },
    /// A path where there is no file.
    #[error("{typed}: {}: {reason}", path.display())]
    NoFile {
        /// The text.
        typed: String,
        /// The path in it.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
}

impl ProbeSpec {
    /// Reads `LIB:SYMBOL[:retval]`. The symbol may be mangled, demangled with or without its
    /// parameters, or the beginning of one name only; `::` in it is part of it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn function(typed: &str) -> Result<ProbeSpec, SpecError> {
        let malformed = || SpecError::Function { typed: typed.to_owned() };
        let (library, symbol) = typed.split_once(':').ok_or_else(malformed)?;
        let (name, with_ret) = match symbol.strip_suffix(":retval") {
            Some(name) if !name.ends_with(':') => (name, true),
            _ => (symbol, false),
        };
        // a single colon inside would begin a second field, which does not exist
        if name.is_empty() || name.replace("::", "").contains(':') || name.starts_with(':') && !name.starts_with("::") {
            return Err(malformed());
        }
        let library = Library::read(library, typed, malformed)?;
        Ok(ProbeSpec { library, what: What::Function { name: name.to_owned(), with_ret } })
    }

    /// Reads `LIB:PROVIDER:NAME`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn usdt(typed: &str) -> Result<ProbeSpec, SpecError> {
        let malformed = || SpecError::Usdt { typed: typed.to_owned() };
        let mut fields = typed.split(':');
        let (Some(library), Some(provider), Some(name), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(malformed());
        };
        if provider.is_empty() || name.is_empty() {
            return Err(malformed());
        }
        let library = Library::read(library, typed, malformed)?;
        Ok(ProbeSpec { library, what: What::Usdt { provider: provider.to_owned(), name: name.to_owned() } })
    }

    /// The one file, where a path was given.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.library {
            Library::Path { resolved, .. } => Some(resolved),
            Library::Name(_) => None,
        }
    }

    /// Whether it means a file that processes see under this path.
    pub(crate) fn means(&self, path: &Path, file_name: &[u8]) -> bool {
        match &self.library {
            Library::Path { typed, resolved } => path == typed || path == resolved,
            Library::Name(wanted) => named(wanted, file_name),
        }
    }
}

/// "libx" and "libx.so" mean "libx.so.1"; so does "libx.so.1", but not "libxy.so.1".
pub(crate) fn named(wanted: &str, file_name: &[u8]) -> bool {
    let Some(rest) = file_name.strip_prefix(wanted.as_bytes()) else { return false };
    rest.is_empty()
        || rest.starts_with(b".so") && !wanted.contains(".so")
        || wanted.contains(".so") && rest.starts_with(b".")
}

impl Library {
    fn read(library: &str, typed: &str, malformed: impl Fn() -> SpecError) -> Result<Library, SpecError> {
        if library.is_empty() {
            return Err(malformed());
        }
        if !library.contains('/') {
            return Ok(Library::Name(library.to_owned()));
        }
        let path = PathBuf::from(library);
        if !path.is_absolute() {
            return Err(SpecError::RelativePath { typed: typed.to_owned() });
        }
        match path.canonicalize() {
            Ok(resolved) => Ok(Library::Path { typed: path, resolved }),
            Err(error) => Err(SpecError::NoFile { typed: typed.to_owned(), path, reason: error.to_string() }),
        }
    }
}

impl fmt::Display for ProbeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.library {
            Library::Path { typed, .. } => write!(f, "{}", typed.display())?,
            Library::Name(name) => f.write_str(name)?,
        }
        match &self.what {
            What::Function { name, with_ret } => write!(f, ":{name}{}", if *with_ret { ":retval" } else { "" }),
            What::Usdt { provider, name } => write!(f, ":{provider}:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_as_typed() {
        for text in
            ["libx.so.1:f", "libgloo.so.0:gloo::allreduce(gloo::AllreduceOptions const&)", "x:a::b:retval", "x:::f"]
        {
            let spec = ProbeSpec::function(text).unwrap();
            assert_eq!(spec.to_string(), text);
            assert_eq!(matches!(spec.what, What::Function { with_ret: true, .. }), text.ends_with(":retval"));
        }
        let exe = std::env::current_exe().unwrap();
        let spec = ProbeSpec::function(&format!("{}:main", exe.display())).unwrap();
        assert!(spec.means(&exe, b"") && !spec.means(Path::new("/bin/true"), b"true"));
    }

    #[test]
    fn points_as_typed() {
        assert_eq!(ProbeSpec::usdt("libc.so.6:libc:setjmp").unwrap().to_string(), "libc.so.6:libc:setjmp");
        for text in ["libc.so.6", "libc.so.6:libc", "libc.so.6:libc:", "a:b:c:d", ":b:c"] {
            assert!(ProbeSpec::usdt(text).unwrap_err().to_string().contains("readelf -n"), "{text}");
        }
    }

    #[test]
    fn what_is_no_probe_is_refused_with_what_to_do() {
        for text in ["", "libx.so", ":f", "libx.so:", "libx.so:f:ret", "libx.so::retval", "libx.so:f:retval:"] {
            assert!(ProbeSpec::function(text).unwrap_err().to_string().contains("LIB:SYMBOL"), "{text}");
        }
        assert!(ProbeSpec::function("lib/libx.so:f").unwrap_err().to_string().contains("whole path"));
        assert!(ProbeSpec::function("/no/such/lib.so:f").unwrap_err().to_string().contains("No such file"));
    }

    #[test]
    fn libraries_by_name() {
        for (wanted, name, means) in [
            ("libgloo", "libgloo.so.0", true),
            ("libgloo.so", "libgloo.so.0", true),
            ("libgloo.so.0", "libgloo.so.0", true),
            ("libgloo.so.0", "libgloo.so.01", false),
            ("libgloo", "libgloo_cuda.so.0", false),
            ("libc", "libcap.so.2", false),
            ("vllm", "vllm", true),
        ] {
            assert_eq!(named(wanted, name.as_bytes()), means, "{wanted} {name}");
        }
    }
}
