//! What questions may have of this process's memory: each for itself, and all together.
//!
//! SQLite has one limit for the whole process, which would let a greedy question starve the trace
//! store's writer. So [`install`] puts a counter before SQLite's allocator, and a thread that works
//! for a question registers for which one ([`cap`], [`cap_of`]): from then on what SQLite allocates
//! on this thread counts to the question's [`Account`], and beyond the account's bound, or the
//! pool's, an allocation fails. SQLite then ends the statement with "out of memory" and frees what
//! it had, and nobody else notices.
//!
//! What our own code keeps on such a thread (lists for medians, decoded columns) is counted with it
//! by a [`Reservation`]; what belongs to no thread by a [`SharedReservation`]. A thread takes from
//! its account in pieces of `PIECE`, so that few allocations touch the atomics.

mod pool;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

use rusqlite::ffi;

pub use pool::{Account, Refused, SMALL_BYTES, SharedReservation, bound_all, bound_of_all, most_of_one, taken_by_all};

/// What a thread takes from its account at a time, if there is so much.
const PIECE: i64 = 1 << 20;
/// A thread that has so much more than it uses gives back all but one piece of it.
const MOST_UNUSED: i64 = 4 * PIECE;

/// The memory of a thread that works for a question.
struct ThreadMemory {
    /// Bytes allocated less bytes freed since the cap was set.
    used: Cell<i64>,
    /// Bytes taken from the account; without an account there is no bound.
    granted: Cell<i64>,
    /// The most that was granted at a time, as long as the thread lives.
    peak: Cell<i64>,
    /// The account of the question that the thread works for, or null. It lives as long as the
    /// [`Cap`] that set it.
    account: Cell<*const Account>,
    /// Why memory was last refused.
    refused: Cell<Option<Refused>>,
}

thread_local! {
    static THREAD: ThreadMemory = const {
        ThreadMemory {
            used: Cell::new(0),
            granted: Cell::new(i64::MAX),
            peak: Cell::new(0),
            account: Cell::new(std::ptr::null()),
            refused: Cell::new(None),
        }
    };
}

impl ThreadMemory {
    fn account(&self) -> Option<&Account> {
        // SAFETY: set by `cap_of` to an account that its guard owns, and taken back by that guard,
        // on this thread.
        unsafe { self.account.get().as_ref() }
    }

    /// Takes `wanted` more bytes from the account, a piece at a time where there is so much.
    fn try_grow(&self, wanted: i64) -> bool {
        let Some(account) = self.account() else { return true };
        if crate::stop::is_over_here() {
            return false;
        }
        let piece = wanted.max(PIECE);
        match account.try_grow(piece).map(|()| piece).or_else(|_| account.try_grow(wanted).map(|()| wanted)) {
            Ok(taken) => {
                self.granted.set(self.granted.get() + taken);
                self.peak.set(self.peak.get().max(self.granted.get()));
                true
            }
            Err(why) => {
                self.refused.set(Some(why));
                false
            }
        }
    }

    /// Returns to the account what is far more than is used.
    fn shrink(&self) {
        let keep = self.used.get().max(0) + PIECE;
        let granted = self.granted.get();
        if let Some(account) = self.account().filter(|_| granted >= keep + MOST_UNUSED) {
            account.shrink(granted - keep);
            self.granted.set(keep);
        }
    }
}

/// SQLite's own allocator.
struct Inner(ffi::sqlite3_mem_methods);

// SAFETY: functions, which SQLite itself calls from every thread, and SQLite's pointer that only
// they look at.
unsafe impl Send for Inner {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Inner {}

static INNER: OnceLock<Inner> = OnceLock::new();

fn inner() -> Option<&'static ffi::sqlite3_mem_methods> {
    INNER.get().map(|inner| &inner.0)
}

/// Puts the counter before SQLite's allocator. To be called before the process opens its first
/// database; later it changes nothing. Answers whether caps hold.
pub fn install() -> bool {
    static DONE: OnceLock<bool> = OnceLock::new();
    *DONE.get_or_init(|| {
        let mut inner = ffi::sqlite3_mem_methods {
            xMalloc: None,
            xFree: None,
            xRealloc: None,
            xSize: None,
            xRoundup: None,
            xInit: None,
            xShutdown: None,
            pAppData: std::ptr::null_mut(),
        };
        // SAFETY: the option takes a pointer to a structure of this type and fills it; SQLite
        // copies none of this program's pointers.
        let known = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_GETMALLOC, &raw mut inner) };
        if known != ffi::SQLITE_OK || inner.xMalloc.is_none() {
            return false;
        }
        // SQLite's own statistics, which nothing here reads, take one lock for each allocation of
        // any thread. Where it is refused they stay. SAFETY: the option takes an int.
        unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, 0) };
        let mut counting =
            ffi::sqlite3_mem_methods { xMalloc: Some(malloc), xFree: Some(free), xRealloc: Some(realloc), ..inner };
        if INNER.set(Inner(inner)).is_err() {
            return false;
        }
        // SAFETY: the option takes a pointer to such a structure and copies it. Its functions live
        // as long as the process, and each hands on to SQLite's own, which SQLite initialises
        // through the copied `xInit`. Where SQLite runs already it refuses (SQLITE_MISUSE) and
        // nothing has changed.
        unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw mut counting) == ffi::SQLITE_OK }
    })
}

/// While it lives, this thread works for one question: see [`cap_of`].
#[derive(Debug)]
#[must_use = "the cap ends when this is dropped"]
pub struct Cap {
    account: Arc<Account>,
    /// What the thread had before: used, granted. The pointer also keeps the cap on its thread.
    before: (i64, i64, *const Account),
}

/// Lets SQLite have at most `bytes` more on this thread, where [`install`] was in time: a question
/// of this thread alone.
pub fn cap(bytes: u64) -> Cap {
    cap_of(&Account::new(bytes))
}

/// Counts what SQLite and each [`Reservation`] take on this thread to a question that may be at
/// work on other threads, too.
pub fn cap_of(account: &Arc<Account>) -> Cap {
    let account = Arc::clone(account);
    let before = THREAD.with(|thread| {
        thread.refused.set(None);
        (thread.used.replace(0), thread.granted.replace(0), thread.account.replace(Arc::as_ptr(&account)))
    });
    Cap { account, before }
}

impl Drop for Cap {
    fn drop(&mut self) {
        let (used, granted, account) = self.before;
        THREAD.with(|thread| {
            // What stays (a kept connection's pages) counts to nobody: who keeps it bounds it.
            self.account.shrink(thread.granted.replace(granted));
            thread.used.set(used.saturating_add(thread.used.get()));
            thread.account.set(account);
        });
    }
}

/// The most bytes that this thread has had of a question's memory at a time.
#[must_use]
pub fn peak_here() -> u64 {
    THREAD.with(|thread| thread.peak.get().unsigned_abs())
}

/// Why this thread's question was last refused memory, if it was.
#[must_use]
pub fn refused_here() -> Option<Refused> {
    THREAD.with(|thread| thread.refused.get())
}

/// What SQLite may need to declare a virtual table: without it rusqlite aborts the process for the
/// message's sake.
pub const DECLARED_BYTES: usize = 128 << 10;

/// Whether SQLite gets so many bytes on this thread now.
#[must_use]
pub fn has_room(bytes: usize) -> bool {
    // SAFETY: a piece of memory that nobody has used is given back, or NULL, which is none.
    unsafe {
        let at = ffi::sqlite3_malloc64(bytes as u64);
        ffi::sqlite3_free(at);
        !at.is_null()
    }
}

/// A virtual table's error as rusqlite may hand it on: it copies the message into SQLite's memory
/// and aborts the process where there is none (its `SqliteMallocString`). Where the question has no
/// memory for the message, that is the error.
#[must_use]
pub fn error_that_fits(error: rusqlite::Error) -> rusqlite::Error {
    use rusqlite::Error::SqliteFailure;
    let no_memory = || SqliteFailure(ffi::Error::new(ffi::SQLITE_NOMEM), None);
    match error {
        SqliteFailure(_, None) => error,
        SqliteFailure(code, Some(_)) if code.code == rusqlite::ErrorCode::OutOfMemory => no_memory(),
        other if has_room(other.to_string().len() + 1) => other,
        _ => no_memory(),
    }
}

/// The account of this thread's question, where it works for one: for what works for it elsewhere
/// or outlives its work on this thread.
#[must_use]
pub fn account_here() -> Option<Arc<Account>> {
    let account = THREAD.with(|thread| thread.account.get());
    if account.is_null() {
        return None;
    }
    // SAFETY: made by `Arc::as_ptr` from an account that the cap on this thread owns.
    unsafe {
        Arc::increment_strong_count(account);
        Some(Arc::from_raw(account))
    }
}

/// Memory other than SQLite's that counts like it, on the thread that made this, until it is
/// dropped.
#[derive(Debug, Default)]
pub struct Reservation(i64);

impl Reservation {
    /// Makes it so many bytes. False, and unchanged, when that is more than the question may have.
    #[must_use]
    pub fn try_resize(&mut self, bytes: usize) -> bool {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let more = bytes - self.0;
        if more > 0 && !may_grow(more) {
            return false;
        }
        if more != 0 {
            count(more);
            self.0 = bytes;
        }
        true
    }

    /// As [`Reservation::try_resize`], by so many bytes more.
    #[must_use]
    pub fn try_grow(&mut self, more: usize) -> bool {
        let held = usize::try_from(self.0).unwrap_or_default();
        self.try_resize(held.saturating_add(more))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        count(-self.0);
    }
}

/// Allocations of at least this size are refused to a question that is over: a function that makes
/// long values within few instructions checks nothing else.
const LARGE: i64 = 16 << 10;

/// Whether this thread may have so many bytes more; takes them from the account.
fn may_grow(bytes: i64) -> bool {
    if bytes >= LARGE && crate::stop::is_over_here() {
        return false;
    }
    THREAD.with(|thread| {
        let wanted = thread.used.get().saturating_add(bytes).saturating_sub(thread.granted.get());
        wanted <= 0 || thread.try_grow(wanted)
    })
}

fn count(bytes: i64) {
    THREAD.with(|thread| {
        thread.used.set(thread.used.get().saturating_add(bytes));
        if bytes < 0 {
            thread.shrink();
        }
    });
}

fn size(inner: &ffi::sqlite3_mem_methods, at: *mut c_void) -> i64 {
    match inner.xSize {
        // SAFETY: `at` came from this allocator, as its callers see to.
        Some(size) if !at.is_null() => i64::from(unsafe { size(at) }),
        _ => 0,
    }
}

/// SQLite's `xMalloc`.
unsafe extern "C" fn malloc(bytes: c_int) -> *mut c_void {
    let Some((inner, allocate)) = inner().and_then(|inner| Some((inner, inner.xMalloc?))) else {
        return std::ptr::null_mut();
    };
    if !may_grow(i64::from(bytes)) {
        return std::ptr::null_mut();
    }
    // SAFETY: SQLite's own function with SQLite's own argument.
    let at = unsafe { allocate(bytes) };
    count(size(inner, at));
    at
}

/// SQLite's `xFree`.
unsafe extern "C" fn free(at: *mut c_void) {
    if let Some((inner, release)) = inner().and_then(|inner| Some((inner, inner.xFree?))) {
        count(-size(inner, at));
        // SAFETY: SQLite's own function with SQLite's own argument.
        unsafe { release(at) };
    }
}

/// SQLite's `xRealloc`.
unsafe extern "C" fn realloc(at: *mut c_void, bytes: c_int) -> *mut c_void {
    let Some((inner, reallocate)) = inner().and_then(|inner| Some((inner, inner.xRealloc?))) else {
        return std::ptr::null_mut();
    };
    let had = size(inner, at);
    if i64::from(bytes) > had && !may_grow(i64::from(bytes) - had) {
        return std::ptr::null_mut();
    }
    // SAFETY: SQLite's own function with SQLite's own arguments. On failure it leaves the old piece
    // as it was.
    let moved = unsafe { reallocate(at, bytes) };
    if !moved.is_null() {
        count(size(inner, moved) - had);
    }
    moved
}
