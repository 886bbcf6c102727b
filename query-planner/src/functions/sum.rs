//! SQL faces of the exact sum: `mesh_sum(x)` makes a state at a node, `mesh_sum_merge` and its kin
//! finish states at the merge. `mesh_sum` is registered through SQLite's C interface because it
//! must see a value as SQLite's own `sum` sees it (`sqlite3_value_numeric_type`: numeric-looking
//! text is a number, other text counts as its numeric prefix).

use std::ffi::{CStr, c_int, c_void};

use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::{Value as SqlValue, ValueRef};
use rusqlite::{Connection, Error, Result, ffi};

use super::exact::ExactSum;

/// Node: the state of `sum`, `total` and `avg` of its argument.
pub(crate) const SUM_STATE: &str = "mesh_sum";
/// Merge: `sum`.
pub(crate) const SUM_MERGE: &str = "mesh_sum_merge";
/// Merge: `total`.
pub(crate) const TOTAL_MERGE: &str = "mesh_total_merge";
/// Merge: `avg`.
pub(crate) const AVG_MERGE: &str = "mesh_avg_merge";
/// On the way: one state of many.
pub(crate) const SUM_COMBINE: &str = "mesh_sum_combine";
/// Merge: `count`, the sum of the nodes' counts, 0 of none.
pub(crate) const COUNT_MERGE: &str = "mesh_count_merge";

/// Merge: exact `sum`, `total` and `avg` of values themselves, for DISTINCT.
pub(crate) const EXACT_SUM: &str = "mesh_exact_sum";
/// See [`EXACT_SUM`].
pub(crate) const EXACT_TOTAL: &str = "mesh_exact_total";
/// See [`EXACT_SUM`].
pub(crate) const EXACT_AVG: &str = "mesh_exact_avg";

pub(super) fn register(conn: &Connection) -> Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS;
    conn.create_aggregate_function(SUM_MERGE, 1, flags, Merge(Finish::Sum))?;
    conn.create_aggregate_function(TOTAL_MERGE, 1, flags, Merge(Finish::Total))?;
    conn.create_aggregate_function(AVG_MERGE, 1, flags, Merge(Finish::Avg))?;
    conn.create_aggregate_function(SUM_COMBINE, 1, flags, Combine)?;
    conn.create_aggregate_function(COUNT_MERGE, 1, flags, Counts)?;
    create(conn, c"mesh_sum", state_final)?;
    create(conn, c"mesh_exact_sum", sum_final)?;
    create(conn, c"mesh_exact_total", total_final)?;
    create(conn, c"mesh_exact_avg", avg_final)
}

type Final = unsafe extern "C" fn(*mut ffi::sqlite3_context);

fn create(conn: &Connection, name: &CStr, finish: Final) -> Result<()> {
    // SAFETY: the handle is valid for the call; the callbacks keep no data but what SQLite gives
    // them.
    let code = unsafe {
        ffi::sqlite3_create_function_v2(
            conn.handle(),
            name.as_ptr(),
            1,
            ffi::SQLITE_UTF8 | ffi::SQLITE_INNOCUOUS,
            std::ptr::null_mut(),
            None,
            Some(state_step),
            Some(finish),
            None,
        )
    };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(Error::SqliteFailure(ffi::Error::new(code), None)) }
}

/// SQLite's per-group memory has a pointer to a boxed state, null before the first row.
///
/// # Safety
/// `context` must be the context of a running aggregate call of `mesh_sum`.
unsafe fn slot(context: *mut ffi::sqlite3_context, size: usize) -> Option<*mut *mut ExactSum> {
    let size = c_int::try_from(size).unwrap_or_default();
    // SAFETY: as promised by the caller; SQLite zeroes the memory when it makes it.
    let memory = unsafe { ffi::sqlite3_aggregate_context(context, size) };
    if memory.is_null() { None } else { Some(memory.cast()) }
}

unsafe extern "C" fn state_step(context: *mut ffi::sqlite3_context, _count: c_int, args: *mut *mut ffi::sqlite3_value) {
    // SAFETY: SQLite calls with one argument, as registered, and with a live context.
    unsafe {
        let Some(slot) = slot(context, size_of::<*mut ExactSum>()) else {
            ffi::sqlite3_result_error_nomem(context);
            return;
        };
        if (*slot).is_null() {
            *slot = Box::into_raw(Box::<ExactSum>::default());
        }
        let state = &mut **slot;
        let value = *args;
        match ffi::sqlite3_value_numeric_type(value) {
            ffi::SQLITE_NULL => {}
            ffi::SQLITE_INTEGER => state.add_integer(ffi::sqlite3_value_int64(value)),
            _ => state.add_real(ffi::sqlite3_value_double(value)),
        }
    }
}

/// Take the state of a group that is complete.
///
/// # Safety
/// As for [`slot`], in a final callback.
unsafe fn take(context: *mut ffi::sqlite3_context) -> ExactSum {
    // SAFETY: the pointer in the slot is null or came from `Box::into_raw`, and is taken back
    // exactly once.
    unsafe {
        match slot(context, 0) {
            Some(slot) if !(*slot).is_null() => {
                let state = Box::from_raw(*slot);
                *slot = std::ptr::null_mut();
                *state
            }
            _ => ExactSum::default(),
        }
    }
}

unsafe extern "C" fn state_final(context: *mut ffi::sqlite3_context) {
    // SAFETY: a final callback; the blob is copied by SQLite (SQLITE_TRANSIENT).
    unsafe {
        let bytes = take(context).to_bytes();
        let len = c_int::try_from(bytes.len()).unwrap_or_default();
        ffi::sqlite3_result_blob(context, bytes.as_ptr().cast::<c_void>(), len, ffi::SQLITE_TRANSIENT());
    }
}

/// # Safety
/// In a final callback.
unsafe fn finish(context: *mut ffi::sqlite3_context, how: Finish) {
    // SAFETY: as promised by the caller; the message is copied by SQLite.
    unsafe {
        match how.of(&take(context)) {
            Ok(SqlValue::Integer(value)) => ffi::sqlite3_result_int64(context, value),
            Ok(SqlValue::Real(value)) => ffi::sqlite3_result_double(context, value),
            Ok(_) => ffi::sqlite3_result_null(context),
            Err(Overflow) => ffi::sqlite3_result_error(context, OVERFLOW.as_ptr(), -1),
        }
    }
}

unsafe extern "C" fn sum_final(context: *mut ffi::sqlite3_context) {
    // SAFETY: a final callback.
    unsafe { finish(context, Finish::Sum) }
}

unsafe extern "C" fn total_final(context: *mut ffi::sqlite3_context) {
    // SAFETY: a final callback.
    unsafe { finish(context, Finish::Total) }
}

unsafe extern "C" fn avg_final(context: *mut ffi::sqlite3_context) {
    // SAFETY: a final callback.
    unsafe { finish(context, Finish::Avg) }
}

/// SQLite's own words.
pub(super) const OVERFLOW: &CStr = c"integer overflow";

#[derive(Debug)]
pub(super) struct Overflow;

#[derive(Clone, Copy)]
pub(super) enum Finish {
    Sum,
    Total,
    Avg,
}

impl Finish {
    pub(super) fn of(self, sum: &ExactSum) -> std::result::Result<SqlValue, Overflow> {
        let real = |value: Option<f64>| value.map_or(SqlValue::Null, SqlValue::Real);
        #[allow(clippy::cast_precision_loss)] // SQLite divides by (double)cnt too
        let count = sum.count as f64;
        match self {
            Finish::Total => Ok(real(sum.double())),
            Finish::Sum | Finish::Avg if sum.count == 0 => Ok(SqlValue::Null),
            Finish::Avg => Ok(real(sum.double().map(|total| total / count))),
            Finish::Sum if sum.real => Ok(real(sum.double())),
            Finish::Sum => sum.integer().map(SqlValue::Integer).ok_or(Overflow),
        }
    }
}

struct Merge(Finish);

impl Aggregate<ExactSum, SqlValue> for Merge {
    fn init(&self, _: &mut Context<'_>) -> Result<ExactSum> {
        Ok(ExactSum::default())
    }

    fn step(&self, ctx: &mut Context<'_>, sum: &mut ExactSum) -> Result<()> {
        take_state(ctx, sum)
    }

    fn finalize(&self, _: &mut Context<'_>, sum: Option<ExactSum>) -> Result<SqlValue> {
        let overflow = |Overflow| failure(&OVERFLOW.to_string_lossy());
        self.0.of(&sum.unwrap_or_default()).map_err(overflow)
    }
}

/// Many states to one.
struct Combine;

impl Aggregate<ExactSum, SqlValue> for Combine {
    fn init(&self, _: &mut Context<'_>) -> Result<ExactSum> {
        Ok(ExactSum::default())
    }

    fn step(&self, ctx: &mut Context<'_>, sum: &mut ExactSum) -> Result<()> {
        take_state(ctx, sum)
    }

    fn finalize(&self, _: &mut Context<'_>, sum: Option<ExactSum>) -> Result<SqlValue> {
        Ok(SqlValue::Blob(sum.unwrap_or_default().to_bytes()))
    }
}

fn take_state(ctx: &Context<'_>, sum: &mut ExactSum) -> Result<()> {
    match ctx.get_raw(0) {
        ValueRef::Null => Ok(()),
        ValueRef::Blob(bytes) => {
            let other = ExactSum::from_bytes(bytes).ok_or_else(|| failure("a damaged partial sum"))?;
            sum.merge(&other);
            Ok(())
        }
        _ => Err(failure("a partial sum that is no state")),
    }
}

struct Counts;

impl Aggregate<i64, i64> for Counts {
    fn init(&self, _: &mut Context<'_>) -> Result<i64> {
        Ok(0)
    }

    fn step(&self, ctx: &mut Context<'_>, count: &mut i64) -> Result<()> {
        *count += ctx.get::<Option<i64>>(0)?.unwrap_or(0);
        Ok(())
    }

    fn finalize(&self, _: &mut Context<'_>, count: Option<i64>) -> Result<i64> {
        Ok(count.unwrap_or(0))
    }
}

fn failure(message: &str) -> Error {
    Error::UserFunctionError(message.into())
}
