//! sqllogictest over a mesh: SQLite's own test corpus as an oracle for the union contract.
//!
//! A file's statements run on one SQLite database, the union; its rows are dealt to N nodes
//! (`deal`), as SQLite's tables or in column segments (`columns`). Each query goes through the
//! planner to the nodes (`transport`: `memory` or `quic`), and the answer is compared with the file
//! (`script`, `format`) and, where it differs, with the union (`same`): `runner`. `shape` and
//! `rung` judge the planner's choice of strategy, `report` counts, `refusals` lists what may be
//! refused. The command line is `bench slt`.

pub mod columns;
pub mod deal;
pub mod format;
pub mod memory;
pub mod quic;
pub mod refusals;
pub mod report;
pub mod rung;
pub mod runner;
mod same;
pub mod script;
pub mod shape;
pub mod transport;

pub use report::Tally;
pub use runner::{Options, TransportKind, expand, run_file, run_text};
