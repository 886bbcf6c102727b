//! Verdicts on simulated and recorded jobs, from rows and from digests, at once and window after
//! window.
//!
//! The analysis is a crate of its own and knows nothing of the simulator; here both meet.

mod ahead;
mod clocks;
mod digests;
mod enqueued;
mod hangs;
mod hard;
mod jobs;
mod late;
mod properties;
mod recorded;
mod standing;
mod steps;
mod words;
