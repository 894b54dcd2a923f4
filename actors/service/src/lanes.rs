//! Bounds on what runs beside answers, by kind, so that a flood of one kind costs the others nothing; fair between callers.
//!
//! A piece of work has its place from the moment it is asked for until it has really ended: a caller that leaves does not
//! make room for another while its work goes on.

use std::time::Duration;

use ragstone_actors::Caller;
use ragstone_actors::admission::turns::{Place, Places, Turn, Turns};
use ragstone_env::Env;

use crate::error::{Error, ErrorKind, Result};

/// Changes of the corpus that are worked on at once: each holds its documents in memory. They compute piece by piece, at turns of
/// their own ([`Library::upsert`](ragstone_actors::upkeep::library::Library::upsert)).
const CHANGES: usize = 16;
/// Of one caller.
const CHANGES_EACH: usize = 2;

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Searching a collection.
    Search,
    /// Looking: lists, documents, status.
    Look,
    /// Adding to the corpus: documents are read, cut and embedded, which may take hours.
    Change,
    /// Taking out of the corpus: it computes nothing, and waits for nothing that does.
    Remove,
    /// What an operator does to the store.
    Upkeep,
}

/// Runs some pieces of one kind at once and lets some more wait.
#[derive(Debug)]
struct Lane {
    name: &'static str,
    /// Waiting and running ones.
    places: Places,
    /// Its own turns; without, it takes those at the processors, with everything else that computes.
    turns: Option<Turns>,
}

/// A place in a lane; it is free again when this is dropped.
#[derive(Debug)]
pub struct InLane(#[expect(dead_code, reason = "held for its drop")] (Place, Turn));

impl Lane {
    fn new(name: &'static str, places: usize, turns: Option<Turns>) -> Self {
        Self { name, places: Places::new(name, places), turns }
    }

    async fn enter(&self, caller: Caller, processors: &Turns, patience: Duration) -> Result<InLane> {
        let place = self.places.take(caller)?;
        let turns = self.turns.as_ref().unwrap_or(processors);
        match tokio::time::timeout(patience, turns.take(caller)).await {
            Ok(turn) => Ok(InLane((place, turn))),
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
    remove: Lane,
    upkeep: Lane,
}

impl Lanes {
    /// Empty ones.
    pub fn new(env: &Env) -> Self {
        Self {
            search: Lane::new("search", 72, None),
            // These wait for disks, or take minutes: what computes for milliseconds must not wait for them.
            look: Lane::new("listing", 72, Some(Turns::for_long_work(8, 4, env.clone()))),
            change: Lane::new("corpus change", 64, Some(Turns::for_long_work(CHANGES, CHANGES_EACH, env.clone()))),
            // A bucket that does not answer is waited for.
            remove: Lane::new("removal", 72, Some(Turns::for_long_work(16, 4, env.clone()))),
            upkeep: Lane::new("upkeep", 20, Some(Turns::for_long_work(4, 2, env.clone()))),
        }
    }

    /// Waits for a place of that kind, and for a turn at the `processors`, for `patience` at most.
    ///
    /// # Errors
    /// `Overloaded` at once where too many wait, `DeadlineExceeded`.
    pub async fn enter(&self, work: Work, caller: Caller, processors: &Turns, patience: Duration) -> Result<InLane> {
        let lane = match work {
            Work::Search => &self.search,
            Work::Look => &self.look,
            Work::Change => &self.change,
            Work::Remove => &self.remove,
            Work::Upkeep => &self.upkeep,
        };
        lane.enter(caller, processors, patience).await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Two slow uploads of one tenant held both turns that there were, and others' deletions timed out for hours.
    #[tokio::test]
    async fn slow_changes_of_one_keep_nobody_from_changing_or_removing() {
        let env = Env::seeded(1, 0);
        let (lanes, processors) = (Lanes::new(&env), Turns::new(1, env.clone()));
        let patience = Duration::from_secs(3600);
        let caller = |number: u8| Caller::of([127, 0, 0, number].into());
        let enter = |work, who| lanes.enter(work, caller(who), &processors, patience);
        let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(enter(Work::Change, 1))).collect();
        let slow: Vec<_> = waiting.iter_mut().filter_map(|change| change.as_mut().now_or_never()).collect();
        assert_eq!(slow.len(), CHANGES_EACH);
        enter(Work::Change, 2).now_or_never().expect("another's change begins at once").unwrap();
        for who in [1, 2] {
            enter(Work::Remove, who).now_or_never().expect("and so does a removal").unwrap();
        }
    }

    #[tokio::test]
    async fn some_run_some_wait_and_the_rest_is_refused() {
        let turns = |at_once| Turns::new(at_once, Env::system());
        for (own, processors) in [(Some(turns(1)), turns(8)), (None, turns(1))] {
            let lane = Lane::new("test", 2, own);
            let enter = |patience| lane.enter(Caller::default(), &processors, patience);
            let long = Duration::from_secs(3600);
            let first = enter(long).await.unwrap();
            let mut second = Box::pin(enter(long));
            assert!(second.as_mut().now_or_never().is_none());
            assert_eq!(enter(long).await.unwrap_err().kind(), ErrorKind::Overloaded);
            drop(first);
            let second = second.await.unwrap();
            assert_eq!(enter(Duration::ZERO).await.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
            drop(second);
            enter(long).await.unwrap();
        }
    }
}
