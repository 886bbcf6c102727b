//! One way to take a mutex: what it guards is whole after a panic elsewhere, so a poisoned one is taken as it is.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The mutex's guard.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
