//! Which rank holds the others up: values in, verdict out.
//!
//! A pure core. It knows no network, no clock, no SQL engine: the caller asks the mesh [`sql`], hands the rows and the
//! clock offsets in as [`Input`], and prints the [`Report`] of [`analyse`]. docs/verdicts.md says what each figure
//! means and where its formula is from.
//!
//! `observation` is what goes in, `matching` brings ranks together, `windows` cuts time, `score` rates ranks (with
//! `stats`), `verdict` decides by the thresholds in `rules`, `report` is what comes out, `text` says it
//! to a person. `simulate` makes jobs of known truth.

mod matching;
mod observation;
mod report;
mod rules;
mod score;
pub mod simulate;
#[cfg(test)]
mod simulated;
mod stats;
mod summary;
mod text;
mod verdict;
mod windows;

pub use observation::{COLUMNS, ClockOffset, Coupling, Heard, Input, Observation, Row, RowError, Span, sql};
pub use report::{CommReport, Cost, Culprit, Evidence, RankScore, Report, Role, Spread, Verdict};
pub use rules::Rules;
pub use score::Waits;
pub use text::text;
pub use verdict::analyse;
pub use windows::WindowKind;
