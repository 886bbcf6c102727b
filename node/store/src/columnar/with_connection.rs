//! Owns keeping a value with a connection for as long as that is open (SQLite's client data). Who
//! keeps something says by what it stays true.

use std::ffi::{CStr, c_void};

use rusqlite::{Connection, ffi};

/// The name of a value of type `T`. Each name is a constant of the module whose type it is, so that
/// no two types share one.
pub(super) struct Name<T> {
    name: &'static CStr,
    of: std::marker::PhantomData<fn() -> T>,
}

impl<T: Default> Name<T> {
    /// A name that nobody else uses.
    pub(super) const fn new(name: &'static CStr) -> Self {
        Self { name, of: std::marker::PhantomData }
    }

    /// What is kept under this name, at first the default. None where SQLite has no room for it.
    /// `with` must not ask for the same name.
    pub(super) fn with<R>(&self, conn: &Connection, with: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: the handle is the connection's, which is open. What is kept under the name is a
        // `T` that this function has put there; SQLite drops it with the connection. Nobody else
        // has a reference to it: a connection is used by one thread at a time, and `with` does not
        // come here by the same name.
        let kept = unsafe {
            let db = conn.handle();
            let mut kept: *mut T = ffi::sqlite3_get_clientdata(db, self.name.as_ptr()).cast();
            if kept.is_null() {
                kept = Box::into_raw(Box::default());
                // (Where it fails, it has dropped it.)
                let set = ffi::sqlite3_set_clientdata(db, self.name.as_ptr(), kept.cast(), Some(drop_kept::<T>));
                if set != ffi::SQLITE_OK {
                    return None;
                }
            }
            &mut *kept
        };
        Some(with(kept))
    }
}

/// # Safety
/// `kept` is a `T` from `Box::into_raw` and not used afterwards.
unsafe extern "C" fn drop_kept<T>(kept: *mut c_void) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(kept.cast::<T>()) });
}
