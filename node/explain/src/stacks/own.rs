//! The interface to a helper that makes threads walk their own Python frames, or copies their
//! stack while they run. How it does so is not known here, since it takes the kernel's help.

use record::{ThreadWalk, WalkRequest};

/// The threads of one process that ran at the last read and were asked, and why others were not.
#[derive(Debug, Default)]
pub(super) struct Asked<T> {
    pub(super) threads: Vec<T>,
    pub(super) refused: Option<String>,
}

impl<T> Asked<T> {
    /// Keeps `thread` where it was asked, else why it was not. Whether it was.
    pub(super) fn keep(&mut self, thread: T, asked: Result<(), String>) -> bool {
        match asked {
            Ok(()) => self.threads.push(thread),
            Err(why) => {
                self.refused = Some(why);
                return false;
            }
        }
        true
    }
}

/// Makes threads walk their frames while they run.
pub trait OwnWalks: std::fmt::Debug + Send {
    /// Makes a thread do so when it next runs.
    ///
    /// # Errors
    /// Why it cannot.
    fn ask(&mut self, thread: &WalkRequest) -> Result<(), String>;

    /// Copies the native stack of a thread when it next runs code of its own.
    ///
    /// # Errors
    /// Why it cannot.
    fn ask_stack(&mut self, tid: u32) -> Result<(), String>;

    /// The answers, as soon as all have come or this long has passed. Later ones are dropped.
    fn take(&mut self, patience: std::time::Duration) -> Vec<ThreadWalk>;

    /// Called when no thread is asked for some time.
    fn end(&mut self);
}
