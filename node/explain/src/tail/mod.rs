//! What makes a server's slowest requests slow: from rows of `requests` and `request_stretches`.
//!
//! `rows` has the questions and reads their rows; `parts` where a request's time went; `causes` what
//! most delays each, with an `example`; `slowest` puts it together. `grown` says whether it is more
//! than the service's past, by `durations`. Who is asked, and how, is the callers' affair.

mod causes;
mod durations;
mod example;
pub mod grown;
mod parts;
mod rows;
mod slowest;

pub use causes::CauseGroup;
pub use durations::Durations;
pub use example::{Example, Link};
pub use parts::{Excess, Kind, More, Part, Request};
pub use rows::{NAMES, Paths, ROUTE, few_rows, ordinary_sql, path_times, paths_sql, request, slow_from_ns, slow_sql};
pub use slowest::{Shared, Slowest, slowest};
