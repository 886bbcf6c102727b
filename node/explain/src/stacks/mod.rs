//! Call stacks of other processes, read from outside: nothing is stopped, signalled or loaded into
//! them.
//!
//! - `types`: the results, bounded and serialisable; `answer`: those of many ranks; `reader`: one
//!   process, once; `sampler`: several processes, several times; `merge` and `render`: many ranks,
//!   in classes.
//! - `python`: CPython 3.8 to 3.15 by the interpreter's own structures, with current lines;
//!   `native`: other programs, by their unwind tables.
//! - `own`: the interface for threads that walk their own frames.
//! - `memory`, `process`, `modules`, `tables`: the memory of a process, its files in `/proc`, the
//!   files that it maps, their unwind tables.
//!
//! A sleeping thread does not change: the scheduler's counts prove it, and its stack is exact. A
//! running one walks its Python frames itself, or has its native stack copied in its own context,
//! if there is a helper that makes it do so (`own`). Otherwise a Python stack is read twice, and
//! frames on which two reads do not agree are marked as torn, because dropping such samples would
//! distort the shares.
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
mod tables;
mod types;

pub use answer::{StacksAnswer, Unread};
pub use merge::{Class, Member, MemberStacks, Members, Merged, Node, Step, merge};
pub use own::OwnWalks;
pub use process::{Identity, descendants};
pub use reader::StackReader;
pub use render::{escape, folded, text};
pub use sampler::{CountedStack, Plan, ProcessProfile, Sampler, ShortReason, ThreadProfile};
pub use types::{Frame, Limits, ProcessStacks, StacksError, ThreadStack, ThreadState, Trust};
