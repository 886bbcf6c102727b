//! SQL over many stores: plan a question, run its node part, merge the answers.
//!
//! The crate is a pure core. It knows SQLite and plans; it knows no network, no tokio, no files. Whoever asks nodes
//! implements [`Fanout`]; whoever is asked calls [`execute_task`] on a read-only connection. `node` does both over
//! QUIC, the tests do both over in-memory databases with one SQLite database holding the union as the oracle.

mod api;
mod batch;

pub use api::{
    Answer, AskOptions, Budget, ColumnMeta, Fanout, NodeError, NodeStats, NodeTask, QueryError, RunError, Span,
};
pub use batch::{Batch, Value};
