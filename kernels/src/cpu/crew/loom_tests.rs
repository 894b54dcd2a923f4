//! Every interleaving of a caller and a helper or two over the board, with loom's atomics in the place of the standard library's.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use self::board::{Board, Found};

mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
    pub(super) use loom::sync::{Condvar, Mutex};
}

// The file is part of the crate once more, with other atomics.
#[allow(clippy::duplicate_mod, dead_code)]
#[path = "board.rs"]
mod board;

/// What tasks write, each its own; loom sees it if two threads are at one at once.
struct Cells(Vec<UnsafeCell<usize>>);

// SAFETY: loom checks every access.
unsafe impl Sync for Cells {}

impl Cells {
    fn new(len: usize) -> Self {
        Self((0..len).map(|_| UnsafeCell::new(0)).collect())
    }

    fn add(&self, index: usize, number: usize) {
        // SAFETY: loom reports whoever is there at the same time.
        self.0[index].with_mut(|cell| unsafe { *cell += number });
    }

    fn read(&self) -> Vec<usize> {
        // SAFETY: as above.
        self.0.iter().map(|cell| cell.with(|cell| unsafe { *cell })).collect()
    }
}

/// `helpers` look at the board once or twice each, while the caller runs loops of so many tasks.
fn check(helpers: usize, loops: &'static [usize]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let board = Arc::new(Board::new());
        let threads: Vec<_> = (0..helpers)
            .map(|_| {
                let board = Arc::clone(&board);
                thread::spawn(move || while matches!(board.help(), Found::Tasks(_)) {})
            })
            .collect();
        for (number, tasks) in loops.iter().enumerate() {
            let cells = Cells::new(*tasks);
            board.run(*tasks, &|task| cells.add(task, number + 1), || false);
            assert_eq!(cells.read(), vec![number + 1; *tasks], "every task ran once, and is seen");
        }
        board.close();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(board.help(), Found::Closed);
    });
}

#[test]
fn a_loop_ends_once_every_task_has_run_once() {
    check(1, &[3]);
}

#[test]
fn a_helper_that_is_late_gets_a_task_of_the_next_loop_or_none() {
    check(1, &[1, 2]);
}

#[test]
fn two_helpers_wake_a_caller_that_sleeps_once() {
    check(2, &[3]);
}
