//! Aggregate functions of SQLite written as folds: a state, a step for each row, a result at the
//! end. They are registered through SQLite's C interface, because an argument must be seen as
//! SQLite's own aggregates see it (`sqlite3_value_numeric_type`), which rusqlite's values do not
//! tell. What the folds compute is in their own files.

use std::ffi::{CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, Result, ffi};

use crate::batch::Value;
use crate::memory::Reservation;

/// An aggregate function. Errors are the messages that the question fails with.
pub(super) trait Fold: 'static {
    type State: Default;

    fn step(&self, state: &mut Self::State, args: &Args<'_>) -> std::result::Result<(), String>;

    fn finish(&self, state: Self::State) -> std::result::Result<Value, String>;

    /// What a state has outside SQLite's memory: counted against the question's cap after each row.
    fn heap_bytes(&self, state: &Self::State) -> usize;

    /// Whether the function can be used with OVER.
    const WINDOW: bool = false;

    /// The result so far; more rows may come and go.
    fn value(&self, _: &Self::State) -> std::result::Result<Value, String> {
        Err("no window function".to_owned())
    }

    /// A row leaves the frame.
    fn undo(&self, _: &mut Self::State, _: &Args<'_>) -> std::result::Result<(), String> {
        Err("no window function".to_owned())
    }
}

/// The arguments of one row.
pub(super) struct Args<'a>(&'a [*mut ffi::sqlite3_value]);

/// A value as `sum` and `avg` see it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    Null,
    Integer(i64),
    Real(f64),
}

impl<'a> Args<'a> {
    pub(super) fn of(values: &'a [*mut ffi::sqlite3_value]) -> Self {
        Self(values)
    }

    /// The argument as text, whatever it is; None when it is NULL, or memory ran out.
    pub(super) fn text(&self, at: usize) -> Option<&'a [u8]> {
        let value = self.0.get(at).copied()?;
        // SAFETY: as in `value`.
        unsafe {
            let text = ffi::sqlite3_value_text(value);
            if text.is_null() { None } else { Some(bytes(text.cast(), value)) }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The argument as it is; NULL when there is none.
    pub(super) fn value(&self, at: usize) -> ValueRef<'_> {
        let Some(value) = self.0.get(at).copied() else { return ValueRef::Null };
        // SAFETY: SQLite's values live as long as the step that lends them, and text and blobs are
        // read in the order (pointer, then length) that keeps both valid.
        unsafe {
            match ffi::sqlite3_value_type(value) {
                ffi::SQLITE_INTEGER => ValueRef::Integer(ffi::sqlite3_value_int64(value)),
                ffi::SQLITE_FLOAT => ValueRef::Real(ffi::sqlite3_value_double(value)),
                ffi::SQLITE_TEXT => ValueRef::Text(bytes(ffi::sqlite3_value_text(value).cast(), value)),
                ffi::SQLITE_BLOB => ValueRef::Blob(bytes(ffi::sqlite3_value_blob(value).cast(), value)),
                _ => ValueRef::Null,
            }
        }
    }

    /// The argument as a number: text that looks like one is one, other text and blobs count as
    /// their numeric prefix.
    pub(super) fn number(&self, at: usize) -> Number {
        let Some(value) = self.0.get(at).copied() else { return Number::Null };
        // SAFETY: as in `value`.
        unsafe {
            match ffi::sqlite3_value_numeric_type(value) {
                ffi::SQLITE_NULL => Number::Null,
                ffi::SQLITE_INTEGER => Number::Integer(ffi::sqlite3_value_int64(value)),
                _ => Number::Real(ffi::sqlite3_value_double(value)),
            }
        }
    }

    /// The argument when it is a number or text that looks like one.
    pub(super) fn looks_numeric(&self, at: usize) -> Option<f64> {
        let value = self.0.get(at).copied()?;
        // SAFETY: as in `value`.
        unsafe {
            match ffi::sqlite3_value_numeric_type(value) {
                ffi::SQLITE_INTEGER | ffi::SQLITE_FLOAT => Some(ffi::sqlite3_value_double(value)),
                _ => None,
            }
        }
    }
}

/// # Safety
/// `start` must have come from `sqlite3_value_text` or `_blob` of `value` just now.
unsafe fn bytes<'a>(start: *const u8, value: *mut ffi::sqlite3_value) -> &'a [u8] {
    // SAFETY: as promised by the caller; SQLite gives null for empty blobs.
    unsafe {
        let len = usize::try_from(ffi::sqlite3_value_bytes(value)).unwrap_or_default();
        if start.is_null() { &[] } else { std::slice::from_raw_parts(start, len) }
    }
}

/// Register `fold` as an aggregate of `arity` arguments.
///
/// # Errors
/// When SQLite has no memory for it.
pub(super) fn register<F: Fold>(conn: &Connection, name: &str, arity: c_int, fold: F) -> Result<()> {
    let name = CString::new(name)?;
    let fold = Box::into_raw(Box::new(fold));
    // SAFETY: the handle is valid for the call; SQLite calls `destroy` once, also when it fails.
    let code = unsafe {
        // Without the last two it is an aggregate only.
        ffi::sqlite3_create_window_function(
            conn.handle(),
            name.as_ptr(),
            arity,
            ffi::SQLITE_UTF8 | ffi::SQLITE_INNOCUOUS,
            fold.cast::<c_void>(),
            Some(step::<F>),
            Some(finish::<F>),
            F::WINDOW.then_some(value::<F> as unsafe extern "C" fn(_)),
            F::WINDOW.then_some(inverse::<F> as unsafe extern "C" fn(_, _, _)),
            Some(destroy::<F>),
        )
    };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(Error::SqliteFailure(ffi::Error::new(code), None)) }
}

unsafe extern "C" fn destroy<F: Fold>(fold: *mut c_void) {
    // SAFETY: the pointer came from `Box::into_raw` in `register`, and SQLite hands it back once.
    drop(unsafe { Box::from_raw(fold.cast::<F>()) });
}

/// What stands behind the pointer in SQLite's memory.
struct Counted<F: Fold> {
    state: F::State,
    reservation: Reservation,
}

impl<F: Fold> Default for Counted<F> {
    fn default() -> Self {
        Self { state: F::State::default(), reservation: Reservation::default() }
    }
}

/// SQLite's memory for one group has a pointer to a boxed state, null before the first row.
///
/// # Safety
/// `context` must be the context of a running call of `F`.
unsafe fn slot<F: Fold>(context: *mut ffi::sqlite3_context, size: usize) -> Option<*mut *mut Counted<F>> {
    let size = c_int::try_from(size).unwrap_or_default();
    // SAFETY: as promised by the caller; SQLite zeroes the memory when it makes it.
    let memory = unsafe { ffi::sqlite3_aggregate_context(context, size) };
    if memory.is_null() { None } else { Some(memory.cast()) }
}

unsafe extern "C" fn step<F: Fold>(
    context: *mut ffi::sqlite3_context,
    count: c_int,
    args: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: SQLite calls with a live context and `count` arguments.
    unsafe { on_row::<F>(context, count, args, |fold, state, args| fold.step(state, args)) }
}

unsafe extern "C" fn inverse<F: Fold>(
    context: *mut ffi::sqlite3_context,
    count: c_int,
    args: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: as in `step`.
    unsafe { on_row::<F>(context, count, args, |fold, state, args| fold.undo(state, args)) }
}

/// # Safety
/// `context` must be the context of a running call of `F`, and `args` must point to `count` values.
unsafe fn on_row<F: Fold>(
    context: *mut ffi::sqlite3_context,
    count: c_int,
    args: *mut *mut ffi::sqlite3_value,
    work: impl FnOnce(&F, &mut F::State, &Args<'_>) -> std::result::Result<(), String>,
) {
    // SAFETY: as promised by the caller; the user data is the fold that was registered.
    unsafe {
        let Some(slot) = slot::<F>(context, size_of::<*mut Counted<F>>()) else {
            ffi::sqlite3_result_error_nomem(context);
            return;
        };
        if (*slot).is_null() {
            *slot = Box::into_raw(Box::<Counted<F>>::default());
        }
        let fold = &*ffi::sqlite3_user_data(context).cast::<F>();
        let args = match usize::try_from(count) {
            Ok(count) if count > 0 => std::slice::from_raw_parts(args, count),
            _ => &[],
        };
        let Counted { state, reservation } = &mut **slot;
        if let Err(message) = caught(|| work(fold, state, &Args(args))) {
            fail(context, &message);
        } else if !reservation.try_resize(fold.heap_bytes(state)) {
            ffi::sqlite3_result_error_nomem(context);
        }
    }
}

/// A panic must not cross into SQLite.
fn caught<T>(work: impl FnOnce() -> std::result::Result<T, String>) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err("an aggregate function failed; please report it".to_owned()))
}

unsafe extern "C" fn value<F: Fold>(context: *mut ffi::sqlite3_context) {
    // SAFETY: the pointer in the slot is null or came from `Box::into_raw`; it stays where it is.
    unsafe {
        let fold = &*ffi::sqlite3_user_data(context).cast::<F>();
        let result = match slot::<F>(context, 0) {
            Some(slot) if !(*slot).is_null() => {
                let counted = &**slot;
                caught(|| fold.value(&counted.state))
            }
            _ => caught(|| fold.finish(F::State::default())),
        };
        set_result(context, result);
    }
}

unsafe extern "C" fn finish<F: Fold>(context: *mut ffi::sqlite3_context) {
    // SAFETY: the pointer in the slot is null or came from `Box::into_raw`, and is taken back
    // exactly once.
    unsafe {
        let state = match slot::<F>(context, 0) {
            Some(slot) if !(*slot).is_null() => {
                let counted = Box::from_raw(*slot);
                *slot = std::ptr::null_mut();
                counted.state
            }
            _ => F::State::default(),
        };
        let fold = &*ffi::sqlite3_user_data(context).cast::<F>();
        set_result(context, caught(|| fold.finish(state)));
    }
}

/// # Safety
/// `context` must be live.
unsafe fn set_result(context: *mut ffi::sqlite3_context, result: std::result::Result<Value, String>) {
    // SAFETY: results are copied by SQLite (SQLITE_TRANSIENT).
    unsafe {
        match result {
            Ok(Value::Null) => ffi::sqlite3_result_null(context),
            Ok(Value::Integer(value)) => ffi::sqlite3_result_int64(context, value),
            Ok(Value::Real(value)) => ffi::sqlite3_result_double(context, value),
            Ok(Value::Text(text)) => ffi::sqlite3_result_text64(
                context,
                text.as_ptr().cast(),
                text.len() as u64,
                ffi::SQLITE_TRANSIENT(),
                u8::try_from(ffi::SQLITE_UTF8).unwrap_or(1),
            ),
            Ok(Value::Blob(blob)) => {
                ffi::sqlite3_result_blob64(context, blob.as_ptr().cast(), blob.len() as u64, ffi::SQLITE_TRANSIENT())
            }
            Err(message) => fail(context, &message),
        }
    }
}

/// # Safety
/// `context` must be live.
unsafe fn fail(context: *mut ffi::sqlite3_context, message: &str) {
    // SAFETY: SQLite copies the message.
    unsafe {
        ffi::sqlite3_result_error(context, message.as_ptr().cast(), c_int::try_from(message.len()).unwrap_or(0));
    }
}
