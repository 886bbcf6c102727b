//! One pool of memory for all questions of a process.
//!
//! Each question has an [`Account`] with a bound of its own. What is counted to it is also taken
//! from the pool, which [`bound_all`] bounds. A fifth of the pool is kept for small questions: a
//! question that wants more than [`SMALL_BYTES`] is refused when the rest is in use, so that a
//! large question does not keep small ones from being answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// What a question may take of the part of the pool that is kept for small ones.
pub const SMALL_BYTES: u64 = 8 << 20;
/// One in so many bytes of the pool is kept for small questions.
const RESERVED_SHARE: i64 = 5;

/// Bytes of the pool; without a bound until [`bound_all`] sets one.
static ALL: AtomicI64 = AtomicI64::new(i64::MAX);
/// Bytes in use of it.
static TAKEN: AtomicI64 = AtomicI64::new(0);

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Bounds what all questions of this process may have together, bytes.
pub fn bound_all(bytes: u64) {
    ALL.store(signed(bytes), Ordering::Relaxed);
}

/// What all questions of this process may have together, bytes; `i64::MAX` by default.
#[must_use]
pub fn bound_of_all() -> u64 {
    ALL.load(Ordering::Relaxed).unsigned_abs()
}

/// Bytes that questions have now, all together.
#[must_use]
pub fn taken_by_all() -> u64 {
    TAKEN.load(Ordering::Relaxed).unsigned_abs()
}

/// The largest account that one question can use up: the pool less what is kept for small
/// questions, bytes.
#[must_use]
pub fn most_of_one() -> u64 {
    let all = ALL.load(Ordering::Relaxed);
    (all - all / RESERVED_SHARE).unsigned_abs()
}

/// Why a question got no more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is more than one question may have.
    #[error("the question needs more memory than one may have here; narrow it")]
    TooMuch,
    /// Other questions have the memory that it would need.
    #[error(
        "more memory than this node has free for questions: {} MiB of {} MiB are in use by others; ask again, or narrow it",
        others_bytes >> 20, all_bytes >> 20
    )]
    InUse {
        /// Bytes that other questions have.
        others_bytes: u64,
        /// Bytes of the pool.
        all_bytes: u64,
    },
}

/// The memory of one question, wherever in the process it is: SQLite's on the threads that work for
/// it, decoded columns, rows between nodes and merge.
#[derive(Debug)]
pub struct Account {
    most: i64,
    taken: AtomicI64,
}

impl Account {
    /// An account of at most `bytes`.
    #[must_use]
    pub fn new(bytes: u64) -> Arc<Account> {
        Arc::new(Account { most: signed(bytes), taken: AtomicI64::new(0) })
    }

    /// Counts so many bytes more.
    pub(super) fn try_grow(&self, bytes: i64) -> Result<(), Refused> {
        let before = self.taken.fetch_add(bytes, Ordering::Relaxed);
        let refuse = |why| {
            self.taken.fetch_sub(bytes, Ordering::Relaxed);
            Err(why)
        };
        let wanted = before.saturating_add(bytes);
        if wanted > self.most {
            return refuse(Refused::TooMuch);
        }
        let all = ALL.load(Ordering::Relaxed);
        let limit = if wanted <= signed(SMALL_BYTES) { all } else { all - all / RESERVED_SHARE };
        let within = |taken: i64| taken.checked_add(bytes).filter(|taken| *taken <= limit);
        match TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within) {
            Ok(_) => Ok(()),
            Err(_) if wanted > limit => refuse(Refused::TooMuch),
            Err(taken) => refuse(Refused::InUse {
                others_bytes: (taken - before).max(0).unsigned_abs(),
                all_bytes: all.unsigned_abs(),
            }),
        }
    }

    /// Counts so many bytes less.
    pub(super) fn shrink(&self, bytes: i64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        TAKEN.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Memory of a question that belongs to no thread: rows on their way from nodes to the merge, an
/// answer. Dropped, it counts no more.
#[derive(Debug)]
pub struct SharedReservation {
    account: Arc<Account>,
    bytes: AtomicI64,
}

impl SharedReservation {
    /// Nothing yet, of this account.
    #[must_use]
    pub fn of(account: &Arc<Account>) -> SharedReservation {
        SharedReservation { account: Arc::clone(account), bytes: AtomicI64::new(0) }
    }

    /// Counts so many bytes more.
    ///
    /// # Errors
    /// The question may not have them.
    pub fn try_grow(&self, bytes: u64) -> Result<(), Refused> {
        self.account.try_grow(signed(bytes))?;
        self.bytes.fetch_add(signed(bytes), Ordering::Relaxed);
        Ok(())
    }

    /// Counts so many bytes less, but no less than nothing.
    pub fn shrink(&self, bytes: u64) {
        let rest = |had: i64| Some(had.saturating_sub(signed(bytes)).max(0));
        let (Ok(had) | Err(had)) = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        self.account.shrink(had.min(signed(bytes)));
    }
}

impl Drop for SharedReservation {
    fn drop(&mut self) {
        self.account.shrink(*self.bytes.get_mut());
    }
}
