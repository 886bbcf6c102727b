//! What a stack is for those who print it, keep it or send it to another host: small, bounded,
//! serialisable values.

use serde::{Deserialize, Serialize};

/// Bounds on what is read and kept of one process. What lies beyond a bound is marked, never
/// dropped in silence.
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
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { frames: 256, threads: 256, name_bytes: 256, stacks: 64 }
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

/// What the scheduler said of a thread when its stack was read.
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
    /// The kernel's thread could not be told.
    Unknown,
}

impl ThreadState {
    /// Whether the thread does not run, so that its memory holds still.
    pub fn is_still(self) -> bool {
        matches!(self, ThreadState::Blocked | ThreadState::Uninterruptible | ThreadState::Stopped)
    }
}

/// How far a stack can be relied on.
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
    /// Nothing was read; the thread's note says why.
    Unread,
}

/// The stack of one thread at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStack {
    /// Thread id in the reader's pid namespace; 0 where unknown.
    pub tid: u32,
    /// The kernel's name of the thread.
    pub name: String,
    /// What the scheduler says of it.
    pub state: ThreadState,
    /// Kernel function that it sleeps in, where it sleeps and the kernel tells.
    pub wait_channel: Option<String>,
    /// How far `frames` can be relied on.
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
    /// Start time of the process, in clock ticks since boot: with the pid it names the process for
    /// good.
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
    /// It is not there any more: no fault.
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
        /// The right that is missing and what to do.
        missing: String,
    },
    /// Its interpreter is not one that this reader knows.
    #[error("the stacks of process {pid} are not readable: {reason}")]
    NotReadable {
        /// The process.
        pid: u32,
        /// What is not known.
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
