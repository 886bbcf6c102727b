//! Scalar functions of SQLite written in Rust through its C interface, where an argument must be
//! seen as SQLite's own functions see it: as text, whatever it is. What the functions compute is in
//! `text` and `like`.

use std::ffi::{CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::{Connection, Error, Result, ffi};

use super::fold::Args;
use crate::memory::Reservation;
use crate::stop::is_over_here;

/// What a function gives.
pub(super) enum Given<'a> {
    Null,
    Integer(i64),
    Text(&'a [u8]),
    Made(Vec<u8>),
    Blob(Vec<u8>),
}

/// Why it gives nothing.
pub(super) enum Failure {
    Message(&'static str),
    /// Longer than a value may be.
    TooBig,
    NoMemory,
    /// The question is over.
    Interrupted,
}

pub(super) type Outcome<'a> = std::result::Result<Given<'a>, Failure>;

/// A function of SQLite: its arguments, and the greatest length of a value.
pub(super) type Scalar = for<'a> fn(&Args<'a>, Lengths) -> Outcome<'a>;

/// What the connection bounds, bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lengths {
    pub(super) value: usize,
    pub(super) pattern: usize,
}

/// Looks at the question's stop every so many units of work: a unit is a comparison or a byte.
pub(super) struct Poll {
    left: u32,
}

const UNITS_BETWEEN_LOOKS: u32 = 1 << 18;

impl Poll {
    pub(super) fn new() -> Self {
        Self { left: UNITS_BETWEEN_LOOKS }
    }

    #[inline]
    pub(super) fn work(&mut self, units: usize) -> std::result::Result<(), Failure> {
        match u32::try_from(units).ok().and_then(|units| self.left.checked_sub(units)) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => self.look(),
        }
    }

    #[cold]
    fn look(&mut self) -> std::result::Result<(), Failure> {
        self.left = UNITS_BETWEEN_LOOKS;
        if is_over_here() { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

/// Memory of a function other than SQLite's, which counts like it.
pub(super) fn reserve(reservation: &mut Reservation, bytes: usize) -> std::result::Result<(), Failure> {
    if reservation.try_resize(bytes) { Ok(()) } else { Err(Failure::NoMemory) }
}

/// Register `function` under a name, for so many arguments; it hides SQLite's own of that name.
///
/// # Errors
/// When SQLite has no memory for it.
pub(super) fn register(conn: &Connection, name: &str, arity: c_int, function: Scalar) -> Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the handle is valid for the call; what it points to is a function, which lives as
    // long as the process.
    let code = unsafe {
        ffi::sqlite3_create_function_v2(
            conn.handle(),
            name.as_ptr(),
            arity,
            ffi::SQLITE_UTF8 | ffi::SQLITE_DETERMINISTIC | ffi::SQLITE_INNOCUOUS,
            function as *mut c_void,
            Some(call),
            None,
            None,
            None,
        )
    };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(Error::SqliteFailure(ffi::Error::new(code), None)) }
}

unsafe extern "C" fn call(context: *mut ffi::sqlite3_context, count: c_int, args: *mut *mut ffi::sqlite3_value) {
    // SAFETY: SQLite calls with a live context and `count` arguments, and the user data is what
    // `register` gave it. Results are copied (SQLITE_TRANSIENT).
    unsafe {
        let function = std::mem::transmute::<*mut c_void, Scalar>(ffi::sqlite3_user_data(context));
        let args = match usize::try_from(count) {
            Ok(count) if count > 0 => std::slice::from_raw_parts(args, count),
            _ => &[],
        };
        let db = ffi::sqlite3_context_db_handle(context);
        let limit = |id| usize::try_from(ffi::sqlite3_limit(db, id, -1)).unwrap_or_default();
        let lengths =
            Lengths { value: limit(ffi::SQLITE_LIMIT_LENGTH), pattern: limit(ffi::SQLITE_LIMIT_LIKE_PATTERN_LENGTH) };
        // A panic must not cross into SQLite.
        let outcome = catch_unwind(AssertUnwindSafe(|| function(&Args::of(args), lengths)))
            .unwrap_or(Err(Failure::Message("a function failed; please report it")));
        let text = |text: &[u8]| {
            ffi::sqlite3_result_text64(
                context,
                text.as_ptr().cast(),
                text.len() as u64,
                ffi::SQLITE_TRANSIENT(),
                u8::try_from(ffi::SQLITE_UTF8).unwrap_or(1),
            );
        };
        match outcome {
            Ok(Given::Null) => ffi::sqlite3_result_null(context),
            Ok(Given::Integer(value)) => ffi::sqlite3_result_int64(context, value),
            Ok(Given::Text(given)) => text(given),
            Ok(Given::Made(given)) => text(&given),
            Ok(Given::Blob(blob)) => {
                ffi::sqlite3_result_blob64(context, blob.as_ptr().cast(), blob.len() as u64, ffi::SQLITE_TRANSIENT());
            }
            Err(Failure::Message(message)) => {
                let len = c_int::try_from(message.len()).unwrap_or(0);
                ffi::sqlite3_result_error(context, message.as_ptr().cast(), len);
            }
            Err(Failure::TooBig) => ffi::sqlite3_result_error_toobig(context),
            Err(Failure::NoMemory) => ffi::sqlite3_result_error_nomem(context),
            Err(Failure::Interrupted) => ffi::sqlite3_result_error_code(context, ffi::SQLITE_INTERRUPT),
        }
    }
}
