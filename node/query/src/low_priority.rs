//! Threads for questions: the scheduler and the disk serve capture and the job first.
//!
//! Nice values and I/O priorities belong to threads on Linux (setpriority(2), ioprio_set(2)), and
//! an ordinary user may not take them back; so a question that is more than a few look-ups runs on
//! a thread of its own.

use nix::libc;
use query_planner::memory;

/// Nice value of questions.
const NICE: libc::c_int = 10;
/// Best effort, the lowest of its eight levels: IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 7) of
/// linux/ioprio.h.
const IO_PRIORITY: libc::c_long = (2 << 13) | 7;
/// A question that took so much memory, bytes, gives it back to the system at once.
const LARGE_BYTES: u64 = 8 << 20;
/// IOPRIO_WHO_PROCESS: one thread.
const IO_WHO_THREAD: libc::c_long = 1;

#[cfg(test)]
thread_local! {
    /// Threads that this thread has started.
    pub(super) static STARTED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Runs `work` on a thread of low priority; `None` where it panicked or no thread could be had.
pub(super) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    #[cfg(test)]
    STARTED.set(STARTED.get() + 1);
    let (done, received) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("question".into()).spawn(move || {
        lower();
        let result = work();
        // Before the next question can be asked.
        return_memory();
        let _ = done.send(result);
    });
    match thread {
        Ok(_) => received.await.ok(),
        Err(error) => {
            tracing::warn!("a question's thread: {error}");
            None
        }
    }
}

/// Gives memory back to the system that a question has freed, where it was much: glibc keeps it, in
/// as many arenas as threads have allocated from, and the next question's thread may get another
/// arena.
fn return_memory() {
    #[cfg(target_env = "gnu")]
    if memory::peak_here() >= LARGE_BYTES {
        // SAFETY: has no preconditions, and moves nothing that is in use.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

/// Lowers the calling thread. What the system does not allow leaves it as it was: the question runs
/// all the same.
fn lower() {
    // SAFETY: both take numbers only; 0 is the calling thread.
    unsafe {
        let now = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::setpriority(libc::PRIO_PROCESS, 0, now.max(NICE));
        libc::syscall(libc::SYS_ioprio_set, IO_WHO_THREAD, 0 as libc::c_long, IO_PRIORITY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_question_gives_way_and_its_panic_is_nobodys_end() {
        // SAFETY: numbers only; the calling thread.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let own = nice();
        assert_eq!(run(nice).await, Some(own.max(NICE)));
        assert_eq!(nice(), own);
        assert_eq!(run(|| -> u8 { panic!("for the test") }).await, None);
    }
}
