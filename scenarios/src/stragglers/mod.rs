//! Verdicts against truth: jobs drawn from every shape and fault that the simulator knows, and how
//! a verdict on one is judged.
//!
//! `draw` draws jobs, `hard` those that are hard to judge (by `class`), `clocks` measures their
//! hosts' clocks as agents do, `replay` makes digests and standing verdicts of their rows, `judge`
//! compares verdicts with their truth and counts, `oracle` says whose lateness shows in what was
//! recorded, `cpu_waits` which ranks of a live job were kept from a CPU, `scale` runs a job of many
//! hosts in memory, `loopback` one on many agents. The simulator itself is `simulate`; the
//! benchmarks are `bench verdicts` and `bench standing`.

pub mod class;
pub mod clocks;
pub mod cpu_waits;
pub mod draw;
pub mod hard;
pub mod judge;
pub mod loopback;
pub mod oracle;
pub mod replay;
pub mod scale;

pub use class::Class;
pub use clocks::AgentClocks;
pub use draw::{Case, Drawn, Mode, draw};
pub use hard::draw_hard;
pub use judge::{Outcome, Tally, judge, judge_hard, judge_standing};
pub use oracle::in_the_data;
pub use replay::{reference_of, replay, replay_by, standing_of};
