//! The questions that people ask once, of no table's kept sums: joins, windows, expressions.
//!
//! | module | owns |
//! |---|---|
//! | `suite` | reading the questions of `scenarios/adhoc/*.sql` and their headers |
//! | `data` | the stores that they are asked of, and the same rows in plain SQLite |
//! | `joins` | generated joins, which nobody wrote with an engine in mind |
//! | `compare` | whether two answers are the same |
//!
//! `bin/bench/adhoc.rs` asks them of every engine and prints the table; `tests/adhoc.rs` asks them
//! of small stores and a mesh; `tests/adhoc_cost.rs` compares their cost with SQLite's.

pub mod compare;
pub mod data;
pub mod joins;
pub mod suite;
