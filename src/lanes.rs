//! Bounds on what runs beside answers, by kind, so that a flood of one kind costs the others nothing.
//!
//! A piece of work has its place from the moment it is asked for until it has really ended: a caller that leaves does not
//! make room for another while its work goes on.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, ErrorKind, Result};

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Searching a collection.
    Search,
    /// Looking: lists, documents, status.
    Look,
    /// Changing the corpus: one change uses every processor.
    Change,
    /// What an operator does to the store.
    Upkeep,
}

/// Runs some pieces of one kind at once and lets some more wait.
#[derive(Debug)]
struct Lane {
    name: &'static str,
    running: Arc<Semaphore>,
    /// Waiting and running ones.
    places: Arc<Semaphore>,
    capacity: usize,
}

/// A place in a lane; it is free again when this is dropped.
#[derive(Debug)]
pub struct Place(#[expect(dead_code, reason = "held for its drop")] [OwnedSemaphorePermit; 2]);

impl Lane {
    fn new(name: &'static str, running: usize, waiting: usize) -> Self {
        let capacity = running + waiting;
        Self { name, running: Arc::new(Semaphore::new(running)), places: Arc::new(Semaphore::new(capacity)), capacity }
    }

    async fn enter(&self, patience: Duration) -> Result<Place> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            metrics::counter!("ragstone_shed_total", "worker" => self.name).increment(1);
            Error::new(ErrorKind::Overloaded, format!("the {} queue is full ({}); try again", self.name, self.capacity))
        })?;
        match tokio::time::timeout(patience, self.running.clone().acquire_owned()).await {
            Ok(Ok(running)) => Ok(Place([place, running])),
            Ok(Err(_)) => Err(Error::new(ErrorKind::Unavailable, "the service is stopping")),
            Err(_) => Err(Error::new(
                ErrorKind::DeadlineExceeded,
                format!("no turn in the {} queue within {} s; try again", self.name, patience.as_secs()),
            )),
        }
    }
}

/// One lane for each kind of work.
#[derive(Debug)]
pub struct Lanes {
    search: Lane,
    look: Lane,
    change: Lane,
    upkeep: Lane,
}

impl Default for Lanes {
    fn default() -> Self {
        Self {
            search: Lane::new("search", 8, 64),
            look: Lane::new("listing", 8, 64),
            change: Lane::new("corpus change", 2, 16),
            upkeep: Lane::new("upkeep", 4, 16),
        }
    }
}

impl Lanes {
    /// Waits for a place of that kind, for `patience` at most.
    ///
    /// # Errors
    /// `Overloaded` at once where too many wait, `DeadlineExceeded`.
    pub async fn enter(&self, work: Work, patience: Duration) -> Result<Place> {
        let lane = match work {
            Work::Search => &self.search,
            Work::Look => &self.look,
            Work::Change => &self.change,
            Work::Upkeep => &self.upkeep,
        };
        lane.enter(patience).await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn some_run_some_wait_and_the_rest_is_refused() {
        let lane = Lane::new("test", 1, 1);
        let long = Duration::from_secs(3600);
        let first = lane.enter(long).await.unwrap();
        let mut second = Box::pin(lane.enter(long));
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(lane.enter(long).await.unwrap_err().kind(), ErrorKind::Overloaded);
        drop(first);
        let second = second.await.unwrap();
        assert_eq!(lane.enter(Duration::ZERO).await.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
        drop(second);
        lane.enter(long).await.unwrap();
    }
}
