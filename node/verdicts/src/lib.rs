//! Which rank holds the others up: values in, verdict out.
//!
//! A pure core. It knows no network, no clock, no SQL engine: the caller asks the mesh [`sql`],
//! hands the rows and the clock offsets in as [`Input`], and prints the [`Report`] of [`analyse`].
//! Does not own whom to ask and when (the agent), nor how digests are gossiped. docs/verdicts.md
//! says what each figure means and where its formula is from.
//!
//! What goes in, and the thresholds, lie in `observed`; cells are made in `digest`, of rows and of
//! digests alike; `stats` has the statistics.
//!
//! `clocks` refines clocks by when calls ended, `number` numbers calls whose start was not seen, `positions` finds their places,
//! `matching` brings cells together into communicators (`comm`; with `classes`: who does the same
//! work), `halts` takes time in which ranks were stopped for their own, `windows` cuts time, `score` sums up (`tally`) and `rating` rates ranks, `suspects` looks
//! for episodes, `stages` for imbalances, `slower` whether the whole job became slower, `hang` for
//! who is waited for, `cycle` tells steps, `verdict` decides, `doubts` says why nobody can be named, `ending` that
//! a job makes no calls any more,
//! `report` is what comes out (with `summary`), `rank_windows` has the same figures window by
//! window, `text` says it to a person. `peer` is whom a named rank is compared with when `causes` looks for the cause of its lateness.
//! `point_to_point` judges ranks that meet in sends, receives and waits, by where their time goes.
//! Recorded jobs are read in `recorded`, simulated ones made in `scenarios`.

mod ahead;
mod classes;
mod clocks;
mod comm;
mod cycle;
mod doubts;
mod ending;
mod halts;
mod hang;
pub mod hostlist;
mod matching;
mod number;
mod peer;
pub mod point_to_point;
mod positions;
mod rank_windows;
mod rating;
mod report;
mod score;
mod show_sql;
#[cfg(test)]
mod shown;
mod slower;
mod stages;
mod summary;
mod suspects;
#[cfg(test)]
mod tables;
mod tally;
mod text;
mod verdict;
mod victims;
mod views;
mod windows;

pub use cycle::cycle_of;
pub use halts::{halts_sql, take_halts};
pub use hang::{Absence, Call, Difference, DifferentCall, Differing, Edge, Hang, Jam, Missing, NotHeard, Waiting};
pub use observed::{
    Activity, COLUMNS, ClockOffset, Coupling, Doing, Gone, InCall, Input, JobRank, Kind, Made, Names, NodeCoverage,
    Observation, Pair, Payload, Process, Progress, RankRef, Ranks, Row, RowError, Rules, Run, Sampled, Span, SyncCall,
    Totals, last_sql, losses_sql, progress_of, sql, syncs_sql, tail,
};
pub use peer::{peer, peer_of_hosts};
pub use rank_windows::{RankWindows, Spent, SpentWindow, WindowRank, rank_windows};
pub use report::{
    Basis, CommReport, Cost, Culprit, Evidence, PerStep, RankScore, Report, Role, Spread, Stage, StageRank, Verdict,
};
pub use show_sql::{Shown, show_sql};
pub use slower::is_slower;
pub use tally::Waits;
pub use text::{evidence, text, text_of_all};
pub use verdict::{analyse, analyse_owned};
pub use views::VIEWS;
pub use windows::WindowKind;
