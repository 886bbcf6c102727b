//! The values of stacks for printing, keeping and sending to another host: small, bounded,
//! serialisable.

use serde::{Deserialize, Serialize};

/// Bounds on what is read and kept of one process. What exceeds a bound is marked, never dropped
/// silently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Frames of one stack.
    pub frames: usize,
    /// Threads of one process.
    pub threads: usize,
    /// Bytes of one function or file name.
    pub name_bytes: usize,
    /// Different stacks kept of one thread in a profile.
    pub stacks: usize,
    /// Of programs in Python, too, the functions of C, … and not those of Python.
    pub native: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { frames: 256, threads: 256, name_bytes: 256, stacks: 64, native: false }
    }
}

/// One function on a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Frame {
    /// A Python function.
    Python {
        /// Its qualified name; the plain name up to CPython 3.10.
        function: String,
        /// Its file as the code object has it.
        file: String,
        /// The line that it is at; `None` where the compiler gave none.
        line: Option<u32>,
    },
    /// A function of C, C++, Fortran, Rust, …
    Native {
        /// Its demangled name, or its offset in the file as `+0x…` where no symbol covers it.
        function: String,
        /// File name of the library or program.
        module: String,
    },
    /// The return address was replaced by a return probe, so the functions that called this one are
    /// not known.
    ReturnProbe,
}

/// The state of a thread by the scheduler when its stack was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ThreadState {
    /// On a CPU or waiting for one.
    Running,
    /// Asleep: waits for something.
    Blocked,
    /// Asleep and not to be woken by signals: mostly I/O.
    Uninterruptible,
    /// Stopped by a signal or a debugger.
    Stopped,
    /// The kernel's thread could not be identified.
    Unknown,
}

impl ThreadState {
    /// Whether the thread does not run, so that its memory does not change.
    pub fn is_still(self) -> bool {
        matches!(self, ThreadState::Blocked | ThreadState::Uninterruptible | ThreadState::Stopped)
    }
}

/// How reliable a stack is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Trust {
    /// The thread did not run from before the first read until after the last one.
    Proven,
    /// The thread ran, and walked its frames itself ([`super::OwnWalks`]).
    Own,
    /// The thread may have run; two reads in succession found the same functions.
    AgreedTwice,
    /// The thread ran: the frames are those on which two reads agree, from the outermost on. Inner
    /// ones are not known.
    Torn,
    /// Nothing was read; the thread's note has the reason.
    Unread,
}

/// The stack of one thread at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStack {
    /// Thread id in the reader's pid namespace; 0 where unknown.
    pub tid: u32,
    /// The kernel's name of the thread.
    pub name: String,
    /// Its state by the scheduler.
    pub state: ThreadState,
    /// Kernel function in which it sleeps, if it sleeps and the kernel reports it.
    pub wait_channel: Option<String>,
    /// How reliable `frames` is.
    pub trust: Trust,
    /// Outermost function first. Empty for a thread that runs no function now that could be read.
    pub frames: Vec<Frame>,
    /// Functions are missing before the first frame: too many, or the stack could not be followed
    /// to its start.
    pub outer_missing: bool,
    /// Why nothing was read, or what else a reader of this stack should know.
    pub note: Option<String>,
}

/// The stacks of one process at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStacks {
    /// Process id in the reader's pid namespace.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot: with the pid it identifies the process
    /// for good.
    pub start_ticks: u64,
    /// `CPython 3.11.2`, or `native`.
    pub runtime: String,
    /// By thread; of a Python process those threads that Python knows.
    pub threads: Vec<ThreadStack>,
    /// Threads beyond [`Limits::threads`].
    pub threads_left_out: u32,
}

/// Why the stacks of a process could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum StacksError {
    /// It has ended: no fault.
    #[error("process {pid} has ended")]
    Ended {
        /// The process.
        pid: u32,
    },
    /// The kernel refused.
    #[error("process {pid} may not be read: {missing}")]
    Denied {
        /// The process.
        pid: u32,
        /// The missing right, and what to do.
        missing: String,
    },
    /// Its interpreter is not one that this reader supports.
    #[error("the stacks of process {pid} are not readable: {reason}")]
    NotReadable {
        /// The process.
        pid: u32,
        /// What is not supported.
        reason: String,
    },
}

impl StacksError {
    /// The process that it is about.
    pub fn pid(&self) -> u32 {
        match self {
            StacksError::Ended { pid } | StacksError::Denied { pid, .. } | StacksError::NotReadable { pid, .. } => *pid,
        }
    }
}

/// The last `limit` bytes of a file's path, or the first of another name, with a mark where
/// something was cut.
pub(crate) fn shorten(name: &str, limit: usize, keep_end: bool) -> String {
    if name.len() <= limit {
        return name.to_owned();
    }
    let room = limit.saturating_sub('…'.len_utf8());
    if keep_end {
        let at = (name.len() - room..=name.len()).find(|at| name.is_char_boundary(*at)).unwrap_or(name.len());
        format!("…{}", &name[at..])
    } else {
        let at = (0..=room).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
        format!("{}…", &name[..at])
    }
}

#[cfg(test)]
mod tests {
    use super::shorten;

    #[test]
    fn names_are_cut_at_characters_and_say_so() {
        assert_eq!(shorten("train.py", 8, true), "train.py");
        assert_eq!(shorten("/long/path/train.py", 11, true), "…train.py");
        assert_eq!(shorten("/long/päth/é", 6, true), "…/é");
        assert_eq!(shorten("Größe.forward", 7, false), "Grö…");
    }
}
