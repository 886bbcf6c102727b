//! Where the time of processes goes: inside communication calls, where they wait for others, and
//! outside, where they compute or are held.
//!
//! `meter` adds up calls (`call`; `enqueued`: of jobs on devices) and time off the CPU, the same for
//! digests and for rows, `codec` writes what digests carry. What follows from it is decided in
//! `verdicts::point_to_point`.

mod call;
mod codec;
mod enqueued;
mod meter;

pub use call::{Call, names_no_communicator, starts_or_ends};
pub use codec::{decode, encode};
pub use enqueued::Enqueued;
pub use meter::{Meter, job_key};
pub use observed::{EVERY_WINDOWS, HELD, TimeUse};
