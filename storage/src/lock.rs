//! The lock of data that stays whole.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks data that is whole whoever panics: every step under the lock is complete in itself.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
