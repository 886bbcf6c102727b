//! Jobs that hang, simulated: programs of ranks on communicators of their own, with one fault; what
//! comes of them by what MPI says of blocking, matching and order; what hosts record of that; and
//! what of a verdict on it is true.
//!
//! Shares the types of an input with the analysis, and no rule: whom a rank waits for is found by
//! running its program (`machine`), and what is true by looking at all of them (`oracle`).

mod draw;
mod judge;
mod machine;
mod observe;
mod oracle;
mod program;

pub use draw::{Drawn, Kind, Seen, draw};
pub use judge::{Worth, judge};
pub use machine::{Made, Run, run};
pub use observe::{observe, pid};
pub use oracle::{Groups, Truth, truth};
pub use program::{Collective, Comm, Func, Op, Program, Stay};
