//! sled's flush, within a time: behind a write that failed sled waits for ever, and everybody who waits for it does.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, TryRecvError, channel};
use std::time::Duration;

use super::{Catalog, sled_error};
use crate::{Error, ErrorKind, Result};
use ragstone_env::Env;
use ragstone_env::lock::locked;

/// A flush takes milliseconds, and seconds on a disk that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(10);

/// One flush, and the telling of it.
type Flush = Box<dyn FnOnce() + Send>;

/// The thread that flushes, one after the other; it is started by the first flush, and ends with this.
#[derive(Debug, Default)]
pub(super) struct Flushing(Mutex<Flusher>);

#[derive(Debug, Default)]
struct Flusher {
    thread: Option<Sender<Flush>>,
    /// The flush that somebody waited for in vain, if there is one.
    late: Option<Receiver<Result<()>>>,
}

impl Flushing {
    /// Does `work` on the thread, and waits for it. While one that took longer goes on, none is begun.
    fn within(&self, patience: Duration, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        let waited = locked(&self.0).begin(work)?;
        match waited.recv_timeout(patience) {
            Ok(flushed) => flushed,
            Err(RecvTimeoutError::Timeout) => {
                locked(&self.0).late = Some(waited);
                Err(no_answer())
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::new(ErrorKind::Unavailable, "the catalog's flush broke off"))
            }
        }
    }
}

impl Flusher {
    fn begin(&mut self, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<Receiver<Result<()>>> {
        if self.late.as_ref().is_some_and(|late| matches!(late.try_recv(), Err(TryRecvError::Empty))) {
            return Err(no_answer());
        }
        self.late = None;
        let (done, waited) = channel();
        // Nobody may wait any more.
        let flush: Flush = Box::new(move || drop(done.send(work())));
        let unsent = match &self.thread {
            Some(thread) => thread.send(flush).err(),
            None => Some(SendError(flush)),
        };
        // There is none yet, or a flush panicked.
        if let Some(SendError(flush)) = unsent {
            let (thread, flushes) = channel::<Flush>();
            // The receiver goes along, and outlives the sending.
            drop(thread.send(flush));
            Env::spawn("catalog-flush", move || flushes.into_iter().for_each(|flush| flush()))?;
            self.thread = Some(thread);
        }
        Ok(waited)
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
    /// Makes durable what is not when it is acknowledged: times of use, digests, costs, uploads.
    ///
    /// # Errors
    /// As sled says; `Unavailable` where the disk does not answer.
    pub fn flush(&self) -> Result<()> {
        // What the second copy has is on the disk already, and sled's part will not come any more.
        if self.is_behind() {
            return Ok(());
        }
        self.flush_sled().inspect_err(|error| self.fall_behind(error))
    }

    fn flush_sled(&self) -> Result<()> {
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
        let (told, threads) = channel();
        for _ in 0..2 {
            let told = told.clone();
            let tell = move || {
                told.send(std::thread::current().id()).unwrap();
                Ok(())
            };
            flushing.within(PATIENCE, tell).unwrap();
        }
        assert_eq!(threads.recv().unwrap(), threads.recv().unwrap(), "one thread for all");
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

    #[test]
    fn a_flush_that_panics_ends_alone() {
        let flushing = Flushing::default();
        let error = flushing.within(PATIENCE, || panic!("as a test wants")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        // The thread ends while the next one may be sent to it already.
        let again = || flushing.within(PATIENCE, || Ok(()));
        assert!(std::iter::repeat_with(again).any(|flushed| flushed.is_ok()));
    }
}
