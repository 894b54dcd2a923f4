//! Where a crew's caller posts the loop that it is in: helpers take tasks from it one by one, and the caller waits for those that they
//! took, never for a helper that has none.
//!
//! Compiled twice: with the standard library's atomics, and in tests with loom's ([`super::sync`]).

use super::sync::{AtomicBool, AtomicPtr, AtomicUsize, Condvar, Mutex, Ordering, fence};

/// What a task of a loop does.
pub(super) type Run<'a> = &'a (dyn Fn(usize) + Sync);

/// What a helper finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It did so many tasks.
    Tasks(usize),
    /// There is nothing to do now.
    Nothing,
    /// There will be nothing any more.
    Closed,
}

/// One caller, any number of helpers.
pub(super) struct Board {
    /// Tasks of the posted loop that nobody has taken.
    open: Line<AtomicUsize>,
    /// Tasks of it that are not done.
    undone: Line<AtomicUsize>,
    /// The loop: how many tasks it has, and what they do. Written while nothing is open, read by whoever holds a task.
    tasks: AtomicUsize,
    run: AtomicPtr<Run<'static>>,
    is_closed: AtomicBool,
    /// Whether the caller sleeps, or is about to.
    waits: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
}

/// On a cache line of its own (two, as processors fetch them in pairs).
#[repr(align(128))]
struct Line<T>(T);

impl Board {
    pub(super) fn new() -> Self {
        Self {
            open: Line(AtomicUsize::new(0)),
            undone: Line(AtomicUsize::new(0)),
            tasks: AtomicUsize::new(0),
            run: AtomicPtr::new(std::ptr::null_mut()),
            is_closed: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Runs a loop of `tasks` tasks to its end, for the caller. `spin` is called while helpers are not done with theirs, until it says that it
    /// has been long enough; from then on the caller sleeps. `run` does not panic.
    pub(super) fn run(&self, tasks: usize, run: Run<'_>, spin: impl FnMut() -> bool) {
        // SAFETY: only whoever has taken a task calls it, and this does not return before every task is done.
        let run: Run<'static> = unsafe { std::mem::transmute::<Run<'_>, Run<'static>>(run) };
        // Nothing is open, so that nobody reads these now.
        self.tasks.store(tasks, Ordering::Relaxed);
        self.run.store((&raw const run).cast_mut(), Ordering::Relaxed);
        self.undone.0.store(tasks, Ordering::Relaxed);
        // Whoever takes a task sees the three.
        self.open.0.store(tasks, Ordering::Release);
        let mut done = 0;
        while let Some(task) = self.take() {
            run(task);
            done += 1;
        }
        if self.undone.0.fetch_sub(done, Ordering::AcqRel) != done {
            self.wait(spin);
        }
    }

    /// Does tasks of the posted loop, for a helper.
    pub(super) fn help(&self) -> Found {
        let Some(first) = self.take() else {
            return if self.is_closed.load(Ordering::Relaxed) { Found::Closed } else { Found::Nothing };
        };
        // SAFETY: a task is taken, so its loop is still posted, and its caller waits for it.
        let run = unsafe { *self.run.load(Ordering::Relaxed) };
        let (mut next, mut done) = (Some(first), 0);
        while let Some(task) = next {
            run(task);
            done += 1;
            next = self.take();
        }
        // From here on the caller may be gone.
        if self.undone.0.fetch_sub(done, Ordering::AcqRel) == done {
            fence(Ordering::SeqCst);
            if self.waits.load(Ordering::Relaxed) {
                drop(self.sleep.lock());
                self.wake.notify_one();
            }
        }
        Found::Tasks(done)
    }

    /// No loop will be posted any more.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Takes a task. While there is one, its loop cannot end, so what is read of the loop afterwards is that loop's.
    fn take(&self) -> Option<usize> {
        let mut open = self.open.0.load(Ordering::Relaxed);
        while open > 0 {
            match self.open.0.compare_exchange_weak(open, open - 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(self.tasks.load(Ordering::Relaxed) - open),
                Err(now) => open = now,
            }
        }
        None
    }

    /// Waits for the tasks that helpers have taken.
    fn wait(&self, mut spin: impl FnMut() -> bool) {
        while self.undone.0.load(Ordering::Acquire) > 0 {
            if !spin() {
                return self.sleep();
            }
        }
    }

    /// The last helper either sees that the caller waits, or the caller that it is done.
    #[cold]
    fn sleep(&self) {
        let mut lock = self.sleep.lock();
        self.waits.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.undone.0.load(Ordering::Acquire) > 0 {
            lock = match lock {
                Ok(guard) => self.wake.wait(guard),
                // Nothing is in the lock that a panic could have left half done.
                Err(poisoned) => self.wake.wait(poisoned.into_inner()),
            };
        }
        self.waits.store(false, Ordering::Relaxed);
        drop(lock);
    }
}
