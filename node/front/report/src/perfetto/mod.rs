//! Rows as a trace for Perfetto (<https://perfetto.dev>): TrackEvent packets, written as the rows
//! come.
//!
//! - `proto`: the messages; `write`: packets into a file.
//! - `tables`, `counters`: which rows are asked for, and how they become events; `verdict`: the
//!   verdict's spans.
//! - `layout`: which tracks there are; `clock`: times on one clock; `ids`: numbers that are the
//!   same in every file.

pub mod clock;
pub mod counters;
mod ids;
pub mod layout;
pub mod proto;
pub mod tables;
pub mod verdict;
pub mod write;

pub use ids::sequence;

#[cfg(test)]
mod tests;
