//! Functions and USDT points that the user names (`rankmesh up --probe`, `--usdt`): `spec` parses
//! the argument and finds the files that it means, the crate `files` finds a function by its mangled
//! or demangled name and its ends, or points. `tally` counts the calls, `discovery` attaches.

mod spec;

use files::{Answer, Ends, NoEnds, Point, Question};

use crate::symbols::Target;
use crate::tally::registry::{Registry, SymbolInfo};
use crate::tally::wire::HANDS_OVER;

use spec::What;
pub(crate) use spec::named;
pub use spec::{ProbeSpec, SpecError};

/// Where to put probes in a file. Return probes are not among them: an exception or a jump through a
/// function that has one ends the program, and nobody knows what passes through a function of the user's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// A function: probes at its entry and at its ends.
    Function { entry: Target, ends: Vec<Target> },
    /// A function whose ends are not known, and why: its calls are counted.
    Entries { entry: Target, reason: String },
    /// Points without duration.
    Points(Vec<Target>),
}

impl Places {
    /// How many probes.
    pub(crate) fn count(&self) -> usize {
        match self {
            Places::Function { ends, .. } => 1 + ends.len(),
            Places::Entries { .. } => 1,
            Places::Points(points) => points.len(),
        }
    }
}

/// What is added to the name of a function of which entries are counted alone.
const ENTRIES: &str = " (entries)";

/// What is asked of a file that `spec` means.
pub(crate) fn question(spec: &ProbeSpec) -> Question {
    match &spec.what {
        What::Function { name, .. } => Question::Function { name: name.clone() },
        What::Usdt { provider, name } => Question::Points { provider: provider.clone(), name: name.clone() },
    }
}

/// The probes for one file by its answer, as the attachment of this number.
pub(crate) fn places(
    answer: &Answer,
    file_name: &str,
    spec: &ProbeSpec,
    registry: &Registry,
    attachment: u32,
) -> Result<Places, String> {
    let cookie = |symbol: &str, with_ret: bool, point: bool| {
        let info = SymbolInfo { library: file_name.to_owned(), symbol: symbol.to_owned(), with_ret, point };
        let number = registry.number(info).ok_or("too many functions are probed already (1,536)");
        number.map(|number| u64::from(attachment) << 32 | u64::from(number))
    };
    let target = |symbol: &str, file_offset, cookie, semaphore| Target {
        symbol: symbol.to_owned().into(),
        file_offset,
        cookie,
        semaphore,
    };
    match (&spec.what, answer) {
        (What::Function { with_ret, .. }, Answer::Function(found)) => {
            let shown = &found.shown;
            match &found.ends {
                Ok(Ends { returns, .. }) if *with_ret && returns.is_empty() => Err(format!(
                    "{shown} goes on in another function at its end: what it returns is not seen (:retval)"
                )),
                Ok(Ends { returns, jumps, .. }) => {
                    let cookie = cookie(shown, *with_ret, false)?;
                    let at = |file_offset: &u64| target(shown, *file_offset, cookie, 0);
                    let over = |file_offset: &u64| target(shown, *file_offset, cookie | HANDS_OVER, 0);
                    let ends = returns.iter().map(at).chain(jumps.iter().map(over)).collect();
                    Ok(Places::Function { entry: at(&found.file_offset), ends })
                }
                Err(NoEnds { reason, entries_are_calls: true }) if !with_ret => {
                    let cookie = cookie(&format!("{shown}{ENTRIES}"), false, true)?;
                    let entry = target(shown, found.file_offset, cookie, 0);
                    Ok(Places::Entries { entry, reason: reason.clone() })
                }
                Err(NoEnds { reason, .. }) => Err(format!("{shown}: {reason}")),
            }
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
