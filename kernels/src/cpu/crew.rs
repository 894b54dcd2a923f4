//! The threads that compute a pass together: the one that leads it, and helpers that stay with it from its first loop to its last.
//!
//! A decoded token has some two hundred short loops. Handed to rayon one by one, each costs looking for work, giving up the processor and
//! waking up, and beside another process maybe a time slice of that one. So the pool's threads are asked in once a pass. Between two
//! loops a helper spins, for a bounded time, then leaves, and is asked in again by the next loop. The leader waits for tasks that
//! a helper has taken, and for nothing else: a helper that is not running holds nobody up. It spins for them, and sleeps if that
//! takes long, so that who holds them can have its processor.
//!
//! Which thread runs a task does not show in any bit.

mod board;
#[cfg(test)]
mod loom_tests;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ragstone_env::Stopwatch;
use rayon::prelude::*;

use board::{Board, Found};

/// The atomics that `board` is made with; `loom_tests` has others under the same name.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
    pub(super) use std::sync::{Condvar, Mutex};
}

/// How long a helper waits for the next loop. What a pass does alone between two loops is shorter; a leader that is longer away has
/// lost its processor.
const HELPER_SPINS: Duration = Duration::from_micros(200);
/// How long the leader spins for the last tasks before it sleeps.
const LEADER_SPINS: Duration = Duration::from_micros(100);
/// After this long a helper lets the pool's other work go first, if there is any: a pass may take seconds.
const STINT: Duration = Duration::from_millis(1);
/// Turns of a spin between two looks at the clock.
const TURNS: usize = 32;
/// What these take at most on a processor of their own, about.
const MOST_TURNS: Duration = Duration::from_micros(5);

/// What helpers need to know.
struct Crew {
    board: Board,
    /// Helpers that were asked in and have not left.
    helpers: AtomicUsize,
    most_helpers: usize,
}

thread_local! {
    /// That of the pass which this thread leads. Not there while it runs a task: loops within tasks are rayon's.
    static LEADS: RefCell<Option<Arc<Crew>>> = const { RefCell::new(None) };
    /// Whether this thread leads a pass or runs a task of one: then it is nobody's helper, lest two passes wait for each other.
    static IS_BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Sets [`IS_BUSY`], and puts it back as it was.
struct Busy(bool);

impl Busy {
    fn now() -> Self {
        Self(IS_BUSY.replace(true))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        IS_BUSY.set(self.0);
    }
}

/// Runs `work` on a thread of the pool, whose loops of [`for_each`] the pool's other threads help with.
pub(crate) fn pass<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| {
        if IS_BUSY.get() || rayon::current_num_threads() == 1 {
            return work();
        }
        let _led = Led::new(rayon::current_num_threads() - 1);
        work()
    })
}

/// A pass that this thread leads, until it is dropped.
struct Led {
    crew: Arc<Crew>,
    _busy: Busy,
}

impl Led {
    fn new(most_helpers: usize) -> Self {
        let crew = Arc::new(Crew { board: Board::new(), helpers: AtomicUsize::new(0), most_helpers });
        LEADS.set(Some(Arc::clone(&crew)));
        Self { crew, _busy: Busy::now() }
    }
}

impl Drop for Led {
    fn drop(&mut self) {
        self.crew.board.close();
        LEADS.set(None);
    }
}

/// Runs `run` for each of `tasks` tasks: with the helpers of the pass that this thread leads, else as a loop of rayon's.
pub(crate) fn for_each(tasks: usize, run: impl Fn(usize) + Sync) {
    if tasks < 2 {
        return (0..tasks).for_each(run);
    }
    let Some(crew) = LEADS.take() else {
        return (0..tasks).into_par_iter().with_max_len(1).for_each(&run);
    };
    let panicked = crew.run(tasks, &run);
    LEADS.set(Some(crew));
    if let Some(panicked) = panicked {
        resume_unwind(panicked);
    }
}

/// [`for_each`] of parts that are apart, such as chunks of a slice; `run` is given a part's index too.
pub(crate) fn for_each_part<P: Send>(parts: impl ExactSizeIterator<Item = P>, run: impl Fn(usize, P) + Sync) {
    if parts.len() < 2 {
        return parts.enumerate().for_each(|(index, part)| run(index, part));
    }
    // Nobody contends for these: each is locked once.
    let parts: Vec<Mutex<Option<P>>> = parts.map(|part| Mutex::new(Some(part))).collect();
    for_each(parts.len(), |index| {
        let part = parts[index].lock().unwrap_or_else(PoisonError::into_inner).take();
        part.into_iter().for_each(|part| run(index, part));
    });
}

impl Crew {
    /// The first panic of a task, if there was one; the others ran all the same.
    fn run(self: &Arc<Self>, tasks: usize, run: &(dyn Fn(usize) + Sync)) -> Option<Box<dyn Any + Send>> {
        self.ask_in(tasks - 1);
        let panicked = Mutex::new(None);
        let run = |task: usize| {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(task))) {
                panicked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
        };
        let mut spin = Spin::new(LEADER_SPINS);
        self.board.run(tasks, &run, || spin.turn());
        panicked.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks as many helpers in as there are to be and `wanted` are of use.
    fn ask_in(self: &Arc<Self>, wanted: usize) {
        let most = self.most_helpers.min(wanted);
        while self.helpers.load(Ordering::Relaxed) < most {
            self.helpers.fetch_add(1, Ordering::Relaxed);
            self.spawn_helper();
        }
    }

    fn spawn_helper(self: &Arc<Self>) {
        let crew = Arc::clone(self);
        rayon::spawn(move || crew.help());
    }

    /// A helper's stint.
    fn help(self: Arc<Self>) {
        let stint = Stopwatch::start();
        let mut spin = Spin::new(HELPER_SPINS);
        while !IS_BUSY.get() {
            let busy = Busy::now();
            let found = self.board.help();
            drop(busy);
            match found {
                Found::Closed => break,
                Found::Tasks(_) => {
                    if stint.elapsed() > STINT {
                        // What the pool has else to do is looked for before this goes on, here and beneath.
                        rayon::yield_now();
                        return self.spawn_helper();
                    }
                    spin = Spin::new(HELPER_SPINS);
                }
                Found::Nothing => {
                    if !spin.turn() {
                        break;
                    }
                    // A loop of rayon's within the pass, or somebody else's work.
                    if spin.looked {
                        rayon::yield_now();
                    }
                }
            }
        }
        self.helpers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A wait on the processor, for a bounded time of its own: what another process had of the processor meanwhile does not count.
struct Spin {
    left: Duration,
    since: Option<Stopwatch>,
    turns: usize,
    /// Whether the last turn looked at the clock.
    looked: bool,
}

impl Spin {
    fn new(most: Duration) -> Self {
        Self { left: most, since: None, turns: 0, looked: false }
    }

    /// One turn; whether there may be more.
    fn turn(&mut self) -> bool {
        std::hint::spin_loop();
        self.turns += 1;
        self.looked = self.turns.is_multiple_of(TURNS);
        if self.looked {
            let took = self.since.replace(Stopwatch::start()).map_or(Duration::ZERO, |since| since.elapsed());
            self.left = after(self.left, took);
        }
        self.left > Duration::ZERO
    }
}

/// What is left of a spin after some turns that took so long.
fn after(left: Duration, took: Duration) -> Duration {
    left.saturating_sub(took.min(MOST_TURNS))
}
