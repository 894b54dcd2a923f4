//! sled's flush, within a time: behind a write that failed sled waits for ever, and everybody who waits for it does.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

use super::{Catalog, sled_error};
use crate::env::Env;
use crate::lock::locked;
use crate::{Error, ErrorKind, Result};

/// A flush takes milliseconds, and seconds on a disk that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(10);

/// The flush that somebody waited for in vain, if there is one.
#[derive(Debug, Default)]
pub(super) struct Flushing(Mutex<Option<Receiver<Result<()>>>>);

impl Flushing {
    /// Does `work` on a thread of its own, and waits for it. While one that took longer goes on, none is begun.
    fn within(&self, patience: Duration, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        {
            let mut late = locked(&self.0);
            if late.as_ref().is_some_and(|late| matches!(late.try_recv(), Err(TryRecvError::Empty))) {
                return Err(no_answer());
            }
            *late = None;
        }
        let (done, waited) = channel();
        // Nobody may wait any more.
        Env::spawn("catalog-flush", move || drop(done.send(work())))?;
        match waited.recv_timeout(patience) {
            Ok(flushed) => flushed,
            Err(RecvTimeoutError::Timeout) => {
                *locked(&self.0) = Some(waited);
                Err(no_answer())
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::new(ErrorKind::Unavailable, "the catalog's flush broke off"))
            }
        }
    }
}

fn no_answer() -> Error {
    let seconds = PATIENCE.as_secs();
    let message = format!(
        "the catalog's disk has not answered for {seconds} s; look at the disk of the data folder, then start ragstone again: what was \
         acknowledged is kept"
    );
    Error::new(ErrorKind::Unavailable, message)
}

impl Catalog {
    /// Makes everything durable.
    ///
    /// # Errors
    /// As sled says; `Unavailable` where the disk does not answer.
    pub fn flush(&self) -> Result<()> {
        let db = self.db.clone();
        self.flushing.within(PATIENCE, move || {
            let flushed = db.flush();
            // Whoever waits may open the folder again.
            drop(db);
            flushed.map(drop).map_err(sled_error)
        })?;
        // sled waits for its pages and not for the file's length, nor for the disk's own cache.
        let synced = self.file.as_ref().map_or(Ok(()), std::fs::File::sync_data);
        synced.map_err(|error| sled_error(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_is_waited_for_once() {
        let (flushing, (go, waits)) = (Flushing::default(), channel::<()>());
        flushing.within(PATIENCE, || Ok(())).unwrap();
        let hangs = move || {
            let _ = waits.recv();
            Ok(())
        };
        let error = flushing.within(Duration::from_millis(1), hangs).unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("disk"), "{error}");
        assert_eq!(flushing.within(PATIENCE, || panic!("begun")).unwrap_err().kind(), ErrorKind::Unavailable);
        drop(go);
        // The other one ends, and then it goes on.
        let again = || flushing.within(PATIENCE, || Ok(()));
        assert!(std::iter::repeat_with(again).any(|flushed| flushed.is_ok()));
    }
}
