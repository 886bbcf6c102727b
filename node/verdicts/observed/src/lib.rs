//! What a verdict is made from.
//!
//! Owns the types that every crate around verdicts shares, and nothing that works on them:
//! [`Input`] with its calls ([`Observation`]), runs of calls ([`Sampled`]), clocks
//! ([`ClockOffset`]), how far each process got ([`Progress`]), what it does ([`Doing`]) and where
//! its time went ([`TimeUse`]); the SQL that fetches calls and the reading of its rows; and the
//! thresholds of all of it ([`Rules`]). Does not know how digests look (`digest`) nor what follows
//! from an input (`verdicts`).
//!
//! The way of the data: rows of a store are read here (`observation`, with `names`) and put into an
//! [`Input`]; digests become one in `digest`; `verdicts` analyses it. [`places`] and [`parallel`]
//! are what both of these build with, [`units`] how times are said to people.

pub mod activity;
mod input;
mod kind;
mod names;
mod observation;
pub mod parallel;
mod payload;
pub mod places;
mod progress;
mod ranks;
mod rules;
mod sampled;
pub mod tail;
mod time_use;
pub mod units;

pub use activity::{Activity, Doing};
pub use input::{Input, NodeCoverage};
pub use kind::Kind;
pub use names::Names;
pub use observation::{
    COLUMNS, ClockOffset, Coupling, Observation, Process, Row, RowError, Span, SyncCall, hex, last_sql, losses_sql,
    quoted, sql, syncs_sql,
};
pub use payload::Payload;
pub use progress::{Gone, InCall, JobRank, Made, Pair, Progress, RECENT_CALLS, is_counted, progress_of};
pub use ranks::{RankRef, Ranks};
pub use rules::Rules;
pub use sampled::{LaneTotal, Run, Sampled, Stepped, Totals, Unsure};
pub use time_use::{EVERY_WINDOWS, HELD, TimeUse};
