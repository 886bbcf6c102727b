//! SQL over many stores: plan a question, run its node part, merge the answers.
//!
//! The crate is a pure core. It knows SQLite and plans; it knows no network, no tokio, no files.
//! The coordinator implements [`Fanout`]; a leaf calls [`execute_task`] on a read-only connection
//! that [`harden`] prepared. `node` does both over QUIC, the tests do both over in-memory databases
//! with one SQLite database holding the union as the oracle.
//!
//! The way of a question: [`align`] writes out what only the mesh knows (clocks); [`plan`] checks
//! the SQL with SQLite itself (`check.rs`), then the rules (`rules/`) try in order to answer it
//! cheaply; [`run`] asks, merges and answers; [`explain`] prints a plan; [`Local`] answers from one
//! store.

mod align;
mod api;
mod ast;
mod batch;
mod catalog;
mod check;
mod clocks;
mod combine;
mod ctes;
mod error;
mod exec;
mod explain;
mod expressions;
mod functions;
mod harden;
mod hints;
mod limits;
mod local;
pub mod memory;
mod merge_pool;
mod names;
mod parameters;
mod partial;
mod plan;
mod plan_cache;
mod planner;
mod rewrite;
mod rules;
mod run;
pub mod scan;
mod scope;
mod shape;
mod spread;
mod stop;
mod time_range;

#[cfg(test)]
mod tests;

pub use align::{View, align, needs_clocks};
pub use api::{Answer, AskOptions, Budget, Fanout, NodeError, NodeStats, NodeTask, Out, Round, RunError, Sink};
pub use batch::{Batch, Value};
pub use catalog::{COLUMN_MODULE, Catalog, CatalogError, Column, Conflict, Kind, Table};
pub use clocks::{Clocks, NodeClock};
pub use error::{QueryError, Span};
pub use exec::{Answered, FragmentExecutor, OnlySqlite, RAN, execute_task, execute_task_with};
pub use explain::{explain, explain_analyze};
pub use functions::{function_names, states};
pub use harden::{bound_values, harden, harden_with};
pub use limits::MAX_SQL_BYTES;
pub use local::{Local, LocalError, NamedOut};
pub use merge_pool::MergePool;
pub use names::{literal, quoted};
pub use parameters::{parameters, with_values};
pub use partial::{Combine, CombinedColumn, How};
pub use plan::{
    ColumnMeta, DriverBound, Fragment, Merge, MergeColumn, MergeTable, Plan, ReducedByDriver, ReducedByRows, Reduction,
    ReductionBy, Strategy, Targets,
};
pub use plan_cache::PlanCache;
pub use planner::{plan, plan_for_one};
pub use run::{RoundAsk, first_ask, run, run_with};
pub use stop::{Stop, StopOnDrop, Watched};
pub use time_range::time_range;
