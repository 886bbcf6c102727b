//! Call stacks of other processes, read from outside: nothing is stopped, signalled or loaded into
//! them.
//!
//! - `types`: the values that come out, bounded and serialisable; `answer`: those of many ranks;
//!   `reader`: one process, once; `sampler`: several processes, several times; `merge` and `render`:
//!   many ranks, in classes.
//! - `python`: CPython 3.8 to 3.15 by the interpreter's own structures, with current lines; `native`: other programs, by
//!   their unwind tables, threads that sleep only.
//! - `own`: what is asked of threads that walk their own frames.
//! - `memory`, `process`, `modules`: the memory of a process, what `/proc` says of it, the files that it maps.
//!
//! A thread that sleeps holds still: the scheduler's counts prove it, and its stack is exact. One
//! that runs walks its Python frames itself where there is somebody who has it do so (`own`). Else
//! it is read twice, and what two reads do not agree on is marked as torn, because dropping such
//! samples would distort the shares.
//!
//! Reading needs `CAP_SYS_PTRACE`, or the same user where the kernel allows that.

mod answer;
mod memory;
mod merge;
#[cfg(test)]
mod merge_tests;
mod modules;
mod native;
mod own;
mod process;
pub mod python;
mod reader;
mod render;
mod sampler;
mod types;

pub use answer::{StacksAnswer, Unread};
pub use merge::{Class, Member, MemberStacks, Members, Merged, Node, Step, merge};
pub use own::{OwnFrame, OwnThread, OwnWalk, OwnWalks};
pub use process::{Identity, descendants};
pub use reader::StackReader;
pub use render::{escape, folded, text};
pub use sampler::{CountedStack, Plan, ProcessProfile, Sampler, ShortReason, ThreadProfile};
pub use types::{Frame, Limits, ProcessStacks, StacksError, ThreadStack, ThreadState, Trust};
