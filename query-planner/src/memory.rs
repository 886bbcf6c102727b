//! A hard cap on SQLite's memory, question by question.
//!
//! SQLite has one limit for the whole process, which would let a greedy question starve the trace store's writer. A question
//! runs on one thread from beginning to end, so it is enough to count what each thread allocates: [`install`] puts a
//! counter before SQLite's allocator, [`cap`] bounds this thread until it is dropped. Beyond the cap an allocation fails,
//! SQLite ends the statement with "out of memory" and frees what it had, and nobody else notices.
//!
//! What our own aggregates keep beside SQLite (lists for medians) is counted with it ([`Held`]).

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use rusqlite::ffi;

thread_local! {
    /// Bytes allocated less bytes freed by this thread since its cap was set.
    static USED: Cell<i64> = const { Cell::new(0) };
    /// Bytes that this thread may have.
    static LIMIT: Cell<i64> = const { Cell::new(i64::MAX) };
}

/// SQLite's own allocator.
struct Inner(ffi::sqlite3_mem_methods);

// SAFETY: functions, which SQLite itself calls from every thread, and SQLite's pointer that only they look at.
unsafe impl Send for Inner {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Inner {}

static INNER: OnceLock<Inner> = OnceLock::new();

fn inner() -> Option<&'static ffi::sqlite3_mem_methods> {
    INNER.get().map(|inner| &inner.0)
}

/// Puts the counter before SQLite's allocator. To be called before the process opens its first database; later it changes
/// nothing. Answers whether caps hold.
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
        // SAFETY: the option takes a pointer to a structure of this type and fills it; SQLite copies nothing of ours.
        let known = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_GETMALLOC, &raw mut inner) };
        if known != ffi::SQLITE_OK || inner.xMalloc.is_none() {
            return false;
        }
        let mut counting =
            ffi::sqlite3_mem_methods { xMalloc: Some(malloc), xFree: Some(free), xRealloc: Some(realloc), ..inner };
        if INNER.set(Inner(inner)).is_err() {
            return false;
        }
        // SAFETY: the option takes a pointer to such a structure and copies it. Its functions live as long as the
        // process, and each hands on to SQLite's own, which SQLite initialises through the copied `xInit`. Where SQLite
        // runs already it refuses (SQLITE_MISUSE) and nothing has changed.
        unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw mut counting) == ffi::SQLITE_OK }
    })
}

/// While it lives, SQLite gets at most so much memory more on this thread.
#[derive(Debug)]
#[must_use = "the cap ends when this is dropped"]
pub struct Cap {
    before: (i64, i64),
    /// A cap belongs to its thread.
    _here: std::marker::PhantomData<*const ()>,
}

/// Caps SQLite's memory on this thread at `bytes` beyond what it has now, where [`install`] was in time.
pub fn cap(bytes: u64) -> Cap {
    let limit = i64::try_from(bytes).unwrap_or(i64::MAX);
    Cap { before: (USED.replace(0), LIMIT.replace(limit)), _here: std::marker::PhantomData }
}

impl Drop for Cap {
    fn drop(&mut self) {
        USED.set(self.before.0.saturating_add(USED.get()));
        LIMIT.set(self.before.1);
    }
}

/// Memory beside SQLite's that counts like it, on the thread that made this. Dropped, it is given back.
#[derive(Debug, Default)]
pub struct Held(i64);

impl Held {
    /// It is so much now. False when that is more than the thread may have.
    #[must_use]
    pub fn is_within(&mut self, bytes: usize) -> bool {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let more = bytes - self.0;
        if more > 0 && !may_have(more) {
            return false;
        }
        if more != 0 {
            count(more);
            self.0 = bytes;
        }
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        count(-self.0);
    }
}

/// What is at least so large is refused to a question that is over: whoever makes long values one after the other within one
/// instruction, or a few, looks at nothing else.
const LARGE: i64 = 16 << 10;

fn may_have(bytes: i64) -> bool {
    USED.get().saturating_add(bytes) <= LIMIT.get() && !(bytes >= LARGE && crate::stop::is_over_here())
}

fn count(bytes: i64) {
    USED.set(USED.get().saturating_add(bytes));
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
    if !may_have(i64::from(bytes)) {
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
    if i64::from(bytes) > had && !may_have(i64::from(bytes) - had) {
        return std::ptr::null_mut();
    }
    // SAFETY: SQLite's own function with SQLite's own arguments. On failure it leaves the old piece as it was.
    let moved = unsafe { reallocate(at, bytes) };
    if !moved.is_null() {
        count(size(inner, moved) - had);
    }
    moved
}
