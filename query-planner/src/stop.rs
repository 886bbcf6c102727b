//! Stopping a question: by hand, at its deadline, and from whatever it is in the middle of.
//!
//! SQLite looks at its progress handler and at `sqlite3_interrupt` only where a statement loops.
//! What takes long within one instruction looks here: a thread that works for a question says so
//! ([`Stop::watch`]), and from then on functions that may loop over long values (`functions::text`)
//! and SQLite's allocator (`memory`), when something large is wanted, ask [`is_over_here`]. Who
//! sets the timer at a deadline is the caller's business; it calls [`Stop::stop`].

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, InterruptHandle};

/// Stops a running question from outside: by hand or at a deadline. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    shared: Arc<Shared>,
    deadline: Option<Instant>,
    /// Looks that are left, where they are counted.
    looks: Option<Arc<AtomicU32>>,
}

#[derive(Default)]
struct Shared {
    is_stopped: AtomicBool,
    next: AtomicU64,
    /// The connections that work for the question.
    working: Mutex<Vec<(u64, InterruptHandle)>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("is_stopped", &self.is_stopped).finish_non_exhaustive()
    }
}

impl Shared {
    fn working(&self) -> MutexGuard<'_, Vec<(u64, InterruptHandle)>> {
        self.working.lock()
    }
}

impl Stop {
    /// A stop that fires at `deadline`, or only by hand.
    pub fn at(deadline: Option<Instant>) -> Stop {
        Stop { deadline, ..Stop::default() }
    }

    /// This stop for work that is abandoned where it turns out to be long: it fires after that many
    /// looks, too. A look comes with every ask and every few thousand steps of the merge; and
    /// values longer than a few tens of thousands of bytes are not for such work.
    #[must_use]
    pub fn or_after(&self, looks: u32) -> Stop {
        Stop { looks: Some(Arc::new(AtomicU32::new(looks))), ..self.clone() }
    }

    /// Stop now, and interrupt the statements that run for the question.
    pub fn stop(&self) {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        for (_, handle) in self.shared.working().iter() {
            handle.interrupt();
        }
    }

    /// Whether to stop; counts as a look.
    pub fn is_stopped(&self) -> bool {
        let take =
            |left: &AtomicU32| left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        self.is_over() || self.looks.as_deref().is_some_and(|left| take(left).is_err())
    }

    /// Whether it was stopped or its deadline has passed.
    pub fn is_over(&self) -> bool {
        self.shared.is_stopped.load(Ordering::Relaxed)
            || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Whether it is for little work only.
    pub(crate) fn is_short(&self) -> bool {
        self.looks.is_some()
    }

    /// A guard that stops the question when it is dropped: nobody waits for it any more.
    pub fn stop_on_drop(&self) -> StopOnDrop {
        StopOnDrop(self.clone())
    }

    /// From now on until the guard is dropped this thread works for the question on `conn`:
    /// [`Stop::stop`] interrupts its statements, and what takes long within one of them gives up
    /// once the question is over.
    pub fn watch(&self, conn: &Connection) -> Watched {
        let watched = self.here();
        self.shared.working().push((watched.id, conn.get_interrupt_handle()));
        watched
    }

    /// As [`Stop::watch`], on connections that look at `is_over_here` themselves, as those of
    /// planning do.
    pub fn here(&self) -> Watched {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let stop = Box::new(self.clone());
        let before = HERE.replace(&raw const *stop);
        Watched { stop, before, id }
    }
}

/// See [`Stop::stop_on_drop`].
#[derive(Debug)]
#[must_use = "the question is stopped when this is dropped"]
pub struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

thread_local! {
    /// The stop of the question that this thread works for; it lives as long as its [`Watched`].
    static HERE: Cell<*const Stop> = const { Cell::new(std::ptr::null()) };
}

/// A thread at work for a question; see [`Stop::watch`].
#[derive(Debug)]
#[must_use = "the watch ends when this is dropped"]
pub struct Watched {
    stop: Box<Stop>,
    /// What the thread worked for before. A pointer also keeps the guard on its thread.
    before: *const Stop,
    id: u64,
}

impl Drop for Watched {
    fn drop(&mut self) {
        HERE.set(self.before);
        self.stop.shared.working().retain(|(id, _)| *id != self.id);
    }
}

/// Whether the question that this thread works for is over; false where it works for none.
pub(crate) fn is_over_here() -> bool {
    of_here(Stop::is_over)
}

/// Whether this thread works for a question only as long as that is little work
/// ([`Stop::or_after`]).
pub(crate) fn is_short_here() -> bool {
    of_here(Stop::is_short)
}

/// The stop of the question that this thread works for.
pub(crate) fn of_this_thread() -> Option<Stop> {
    let here = HERE.get();
    // SAFETY: as in `of_here`.
    unsafe { here.as_ref() }.cloned()
}

fn of_here(is: impl FnOnce(&Stop) -> bool) -> bool {
    let here = HERE.get();
    // SAFETY: set by `watch` to a boxed stop that its guard owns, and taken back by that guard, on
    // this thread.
    unsafe { here.as_ref() }.is_some_and(is)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stop_that_counts_its_looks_fires_after_the_last_and_by_hand() {
        let whole = Stop::default();
        let short = whole.or_after(2);
        assert_eq!([0; 4].map(|_| short.is_stopped()), [false, false, true, true]);
        assert!(!whole.is_stopped(), "only the short one counts");
        let short = whole.or_after(1_000);
        whole.stop();
        assert!(short.is_stopped(), "they are one question's");
    }

    #[test]
    fn a_stop_interrupts_what_runs_for_its_question_and_nothing_else() {
        let conn = Connection::open_in_memory().expect("a database");
        let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
        let stop = Stop::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while stop.shared.working().is_empty() {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(1));
                // Once may be between two statements.
                while !stop.shared.working().is_empty() {
                    stop.stop();
                    std::thread::yield_now();
                }
            });
            let watched = stop.watch(&conn);
            assert!(!is_over_here() || stop.is_over());
            let stopped = conn.query_row(endless, [], |row| row.get::<_, i64>(0)).expect_err("endless");
            assert_eq!(stopped.sqlite_error_code(), Some(rusqlite::ErrorCode::OperationInterrupted));
            assert!(is_over_here());
            drop(watched);
            assert!(!is_over_here(), "the thread works for nobody");
        });
        stop.stop();
        conn.query_row("SELECT 1", [], |_| Ok(())).expect("the connection is another's now");
    }
}
