//! Which rank holds the others up: values in, verdict out.
//!
//! A pure core. It knows no network, no clock, no SQL engine: the caller asks the mesh [`sql`], hands the rows and the
//! clock offsets in as [`Input`], and prints the [`Report`] of [`analyse`]. Does not own whom to ask and when (the agent), nor how
//! digests are gossiped. docs/verdicts.md says what each figure means and where its formula is from.
//!
//! `observation` is what goes in (with `sampled`: cells out of digests), `clocks` refines clocks by when calls ended, `number` numbers calls whose start was not seen, `meet` tells when ranks met and `own` what they did on their own, `matching` brings ranks together (with `classes`: who does the same work), `windows`
//! cuts time, `score` sums up and `rating` rates ranks (with `stats`), `suspects` looks for episodes, `stages` for
//! imbalances, `hang` for who is waited for (with `activity`: what processes do that do not get on), `cycle` tells steps, `verdict` decides by the thresholds in `rules`, `doubts` says why nobody can be named, `report` is what comes out (with `summary`), `text` says it
//! to a person. `digest` is how windows travel: summaries made where the data lies, turned into an input here, of which `standing` keeps the current verdict; `why` looks for the cause of a named rank's lateness. `simulate` makes jobs of known truth, `import` reads recorded ones.

mod activity;
mod classes;
mod clocks;
mod common;
mod cycle;
mod device;
pub mod digest;
mod doubts;
#[cfg(test)]
mod enqueued;
mod hang;
pub mod import;
mod matching;
mod meet;
mod number;
mod observation;
mod own;
#[cfg(test)]
mod properties;
mod ranks;
mod rating;
mod relative;
mod report;
mod rules;
mod sampled;
mod score;
mod show_sql;
#[cfg(test)]
mod shown;
pub mod simulate;
#[cfg(test)]
mod simulated;
mod stages;
pub mod standing;
mod stats;
mod summary;
mod suspects;
#[cfg(test)]
mod tables;
mod text;
mod verdict;
mod views;
pub mod why;
mod windows;

pub use activity::{Activity, Doing};
pub use device::{captured_sql, launch_sql, launches, replay_note};
pub use hang::{Absence, Gone, Hang, Jam, Missing, NotHeard, Progress, Waiting, progress, progress_of};
pub use observation::{
    COLUMNS, ClockOffset, Coupling, Heard, Input, Observation, Row, RowError, Span, SyncCall, Work, sql, syncs_sql,
};
pub use ranks::Ranks;
pub use relative::{individual_scores, relative_scores};
pub use report::{
    Basis, CommReport, Cost, Culprit, Evidence, PerStep, RankRef, RankScore, Report, Role, Spread, Stage, StageRank,
    Verdict,
};
pub use rules::Rules;
pub use sampled::{LaneTotal, Sampled, Totals, Unsure};
pub use score::Waits;
pub use show_sql::{Shown, show_sql};
pub use text::text;
pub use verdict::analyse;
pub use views::VIEWS;
pub use windows::WindowKind;
