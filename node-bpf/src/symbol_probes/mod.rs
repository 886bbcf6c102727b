//! Functions and USDT points that the user names (`rankmesh up --probe`, `--usdt`): `spec` parses
//! the argument and finds the files that it means, the crate `files` finds a function by its mangled
//! or demangled name and its ends, or points. `tally` counts the calls, `discovery` attaches.

mod spec;

use files::{Answer, Point, Question};

use crate::symbols::Target;
use crate::tally::registry::{Registry, SymbolInfo};

use spec::What;
pub(crate) use spec::named;
pub use spec::{ProbeSpec, SpecError};

/// Where to put probes in a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// A function that is left by returning (or by a jump): entry and return probes.
    Function(Target),
    /// One that an exception may leave: probes at its entry and at its ends.
    Unwinding { entry: Target, exits: Vec<Target> },
    /// Points without duration.
    Points(Vec<Target>),
}

impl Places {
    /// How many probes.
    pub(crate) fn count(&self) -> usize {
        match self {
            Places::Function(_) => 2,
            Places::Unwinding { exits, .. } => 1 + exits.len(),
            Places::Points(points) => points.len(),
        }
    }
}

/// What is asked of a file that `spec` means.
pub(crate) fn question(spec: &ProbeSpec) -> Question {
    match &spec.what {
        What::Function { name, .. } => Question::Function { name: name.clone() },
        What::Usdt { provider, name } => Question::Points { provider: provider.clone(), name: name.clone() },
    }
}

/// The probes for one file by its answer.
pub(crate) fn places(
    answer: &Answer,
    file_name: &str,
    spec: &ProbeSpec,
    registry: &Registry,
) -> Result<Places, String> {
    let cookie = |symbol: &str, with_ret: bool, point: bool| {
        let info = SymbolInfo { library: file_name.to_owned(), symbol: symbol.to_owned(), with_ret, point };
        let number = registry.number(info).ok_or("too many functions are probed already (1,536)");
        number.map(u64::from)
    };
    let target = |symbol: &str, file_offset, cookie, semaphore| Target {
        symbol: symbol.to_owned().into(),
        file_offset,
        cookie,
        semaphore,
    };
    match (&spec.what, answer) {
        (What::Function { with_ret, .. }, Answer::Function(found)) => {
            let cookie = cookie(&found.shown, *with_ret, false)?;
            let at = |file_offset| target(&found.shown, file_offset, cookie, 0);
            let entry = at(found.file_offset);
            Ok(match &found.exits {
                None => Places::Function(entry),
                Some(exits) => Places::Unwinding { entry, exits: exits.iter().copied().map(at).collect() },
            })
        }
        (What::Usdt { provider, name }, Answer::Points(points)) => {
            let shown = format!("{provider}:{name}");
            let cookie = cookie(&shown, false, true)?;
            let at = |point: &Point| target(&shown, point.file_offset, cookie, point.semaphore_offset);
            Ok(Places::Points(points.iter().map(at).collect()))
        }
        _ => Err("it was asked something else".to_owned()),
    }
}
