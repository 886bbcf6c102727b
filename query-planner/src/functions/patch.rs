//! `json_patch` and `jsonb_patch` of documents that are not both long. SQLite looks each member of
//! the one up among all members of the other, at no deadline: two of 16 MiB take hours. What is
//! below the bound SQLite itself does, on a database of the thread's own; above, the call fails and
//! says so.

use std::cell::RefCell;
use std::ffi::{CString, c_int, c_void};

use rusqlite::{Connection, Error, Result, ffi};

/// The product of the documents' lengths up to which they are patched: about half a second's work.
const MOST_WORK: i64 = 1 << 30;
/// The subtype of text that is JSON: SQLite's own functions take it as a document and not as a
/// string.
const JSON: u32 = 74;

const NAMES: [&str; 2] = ["json_patch", "jsonb_patch"];

pub(super) fn register(conn: &Connection) -> Result<()> {
    for (at, name) in NAMES.into_iter().enumerate() {
        let name = CString::new(name)?;
        // SAFETY: the handle is valid for the call; the user data is a number.
        let code = unsafe {
            ffi::sqlite3_create_function_v2(
                conn.handle(),
                name.as_ptr(),
                2,
                ffi::SQLITE_UTF8 | ffi::SQLITE_DETERMINISTIC | ffi::SQLITE_INNOCUOUS | ffi::SQLITE_RESULT_SUBTYPE,
                at as *mut c_void,
                Some(patch),
                None,
                None,
                None,
            )
        };
        if code != ffi::SQLITE_OK {
            return Err(Error::SqliteFailure(ffi::Error::new(code), None));
        }
    }
    Ok(())
}

thread_local! {
    static SQLITES_OWN: RefCell<Option<Connection>> = const { RefCell::new(None) };
}

unsafe extern "C" fn patch(context: *mut ffi::sqlite3_context, _: c_int, args: *mut *mut ffi::sqlite3_value) {
    // SAFETY: SQLite calls with a live context and two arguments; what is said in `register` is the
    // user data.
    unsafe {
        let length = |at: usize| i64::from(ffi::sqlite3_value_bytes(*args.add(at)));
        if length(0).saturating_mul(length(1)) > MOST_WORK {
            let message = "json_patch() of two documents as long as these takes too long; patch a smaller part";
            let len = c_int::try_from(message.len()).unwrap_or(0);
            ffi::sqlite3_result_error(context, message.as_ptr().cast(), len);
            return;
        }
        let at = ffi::sqlite3_user_data(context) as usize;
        SQLITES_OWN.with_borrow_mut(|own| {
            if own.is_none() {
                *own = Connection::open_in_memory().ok();
            }
            let Some(own) = own else { return ffi::sqlite3_result_error_nomem(context) };
            if let Err(code) = by_sqlite(own, NAMES[at.min(1)], args, context) {
                ffi::sqlite3_result_error_code(context, code);
                if code == ffi::SQLITE_ERROR {
                    ffi::sqlite3_result_error(context, ffi::sqlite3_errmsg(own.handle()), -1);
                }
            }
        });
    }
}

/// # Safety
/// `args` must be two values, `context` live.
unsafe fn by_sqlite(
    own: &Connection,
    name: &str,
    args: *mut *mut ffi::sqlite3_value,
    context: *mut ffi::sqlite3_context,
) -> std::result::Result<(), c_int> {
    let Ok(sql) = CString::new(format!("SELECT {name}(?1, ?2)")) else { return Err(ffi::SQLITE_ERROR) };
    let mut statement = std::ptr::null_mut();
    // SAFETY: as promised; the statement is finalised before it goes, and its value is copied
    // before that.
    unsafe {
        let prepared =
            ffi::sqlite3_prepare_v2(own.handle(), sql.as_ptr(), -1, &raw mut statement, std::ptr::null_mut());
        if prepared != ffi::SQLITE_OK {
            return Err(prepared);
        }
        ffi::sqlite3_bind_value(statement, 1, *args);
        ffi::sqlite3_bind_value(statement, 2, *args.add(1));
        let stepped = ffi::sqlite3_step(statement);
        if stepped == ffi::SQLITE_ROW {
            let value = ffi::sqlite3_column_value(statement, 0);
            ffi::sqlite3_result_value(context, value);
            if ffi::sqlite3_column_type(statement, 0) == ffi::SQLITE_TEXT {
                ffi::sqlite3_result_subtype(context, JSON);
            }
        }
        ffi::sqlite3_finalize(statement);
        if stepped == ffi::SQLITE_ROW { Ok(()) } else { Err(stepped) }
    }
}
