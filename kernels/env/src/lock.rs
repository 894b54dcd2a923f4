//! The lock of data that stays whole, and locks by name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// Locks data that is whole whoever panics: every step under the lock is complete in itself.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lock for each name that somebody is at, to be held while one waits for disks: who means another name does not wait.
#[derive(Debug, Default)]
pub struct NamedLocks(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl NamedLocks {
    /// Waits for the lock of a name.
    pub async fn lock(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut all = locked(&self.0);
            all.retain(|_, lock| lock.strong_count() > 0);
            let known = all.get(name).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let lock = Arc::default();
                all.insert(name.to_owned(), Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn names_are_locked_one_at_a_time_and_others_do_not_wait() {
        let locks = NamedLocks::default();
        let first = locks.lock("a").await;
        assert!(locks.lock("a").now_or_never().is_none());
        assert!(locks.lock("b").now_or_never().is_some());
        drop(first);
        assert!(locks.lock("a").now_or_never().is_some());
        assert!(locked(&locks.0).len() <= 2, "names are forgotten");
    }
}
