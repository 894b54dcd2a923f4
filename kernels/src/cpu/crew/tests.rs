use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::thread::ThreadId;

use rayon::ThreadPoolBuilder;

use super::*;

fn pool(threads: usize) -> rayon::ThreadPool {
    ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

/// How often each of `len` tasks ran.
fn counts(len: usize) -> Vec<AtomicUsize> {
    (0..len).map(|_| AtomicUsize::new(0)).collect()
}

fn all(counts: &[AtomicUsize], times: usize) -> bool {
    counts.iter().all(|count| count.load(Ordering::SeqCst) == times)
}

fn once(tasks: usize) {
    let ran = counts(tasks);
    for_each(tasks, |task| {
        ran[task].fetch_add(1, Ordering::SeqCst);
    });
    assert!(all(&ran, 1), "{tasks} tasks");
}

const LOOPS: usize = if cfg!(miri) { 20 } else { 500 };

#[test]
fn every_task_of_every_loop_runs_once() {
    for threads in 1..5 {
        pool(threads).install(|| {
            pass(|| (0..LOOPS).for_each(|index| once(index % 12)));
            // Outside of a pass.
            once(50);
        });
    }
}

#[test]
fn parts_are_given_out_with_their_indices() {
    let mut values: Vec<usize> = vec![0; 1000];
    pool(3).install(|| {
        pass(|| {
            for len in [1, 7, 1000, 2000] {
                for_each_part(values.chunks_mut(len), |index, chunk| {
                    chunk.iter_mut().enumerate().for_each(|(at, value)| *value += index * len + at + 1);
                });
            }
        });
    });
    assert!(values.iter().enumerate().all(|(index, value)| *value == 4 * (index + 1)));
}

/// Loops until every thread has had a task. None is waited for within a loop: one that leaves is asked in again by a later one.
#[test]
fn every_thread_of_the_pool_helps() {
    const THREADS: usize = 3;
    let seen = Mutex::new(HashSet::<ThreadId>::new());
    pool(THREADS).install(|| {
        pass(|| {
            while seen.lock().unwrap().len() < THREADS {
                for_each(THREADS, |_| {
                    seen.lock().unwrap().insert(std::thread::current().id());
                    std::thread::yield_now();
                });
            }
        });
    });
}

/// A pool whose other threads are all busy: the leader does everything.
#[test]
fn helpers_that_do_not_come_are_not_waited_for() {
    let (began, done) = (Barrier::new(2), Barrier::new(2));
    pool(2).install(|| {
        rayon::join(
            || {
                began.wait();
                pass(|| (0..20).for_each(once));
                done.wait();
            },
            || {
                began.wait();
                done.wait();
            },
        );
    });
}

/// A helper that stops in the middle of a task is waited for, by a leader that sleeps.
#[test]
fn a_task_that_was_taken_is_waited_for() {
    let (taken, finished) = (AtomicBool::new(false), AtomicBool::new(false));
    pool(2).install(|| {
        pass(|| {
            let leader = std::thread::current().id();
            for_each(2, |_| {
                if std::thread::current().id() == leader {
                    // The leader's own task lasts until the other one has been taken.
                    while !taken.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                } else if !taken.swap(true, Ordering::SeqCst) {
                    let long = Stopwatch::start();
                    while long.elapsed() < 20 * LEADER_SPINS {
                        std::thread::yield_now();
                    }
                    finished.store(true, Ordering::SeqCst);
                }
            });
            assert!(finished.load(Ordering::SeqCst));
        });
    });
}

#[test]
fn loops_within_tasks_and_passes_within_passes_end() {
    let ran = counts(4 * 5 * 6);
    pool(3).install(|| {
        pass(|| {
            for_each(4, |outer| {
                pass(|| {
                    for_each(5, |inner| {
                        (0..6_usize).into_par_iter().with_max_len(1).for_each(|most_inner| {
                            ran[(outer * 5 + inner) * 6 + most_inner].fetch_add(1, Ordering::SeqCst);
                        });
                    });
                });
            });
            pass(|| once(9));
            once(9);
            // A loop of rayon's beside those of the crew.
            let sum: usize = (0..1000_usize).into_par_iter().sum();
            assert_eq!(sum, 499_500);
            once(9);
        });
    });
    assert!(all(&ran, 1));
}

/// Many passes share a pool: each is led by whichever thread takes it up, and may be taken up by a thread that waits.
#[test]
fn passes_beside_each_other_end() {
    let (pool, calls) = (pool(3), AtomicUsize::new(0));
    let others = self::pool(4);
    others.broadcast(|_| {
        for _ in 0..if cfg!(miri) { 2 } else { 50 } {
            pool.install(|| {
                pass(|| {
                    for tasks in [2, 5, 30] {
                        for_each(tasks, |_| {
                            rayon::join(
                                || calls.fetch_add(1, Ordering::SeqCst),
                                || calls.fetch_add(1, Ordering::SeqCst),
                            );
                        });
                    }
                });
            });
        }
    });
    let times = if cfg!(miri) { 2 } else { 50 };
    assert_eq!(calls.into_inner(), 4 * times * 37 * 2);
}

#[test]
fn a_panic_reaches_the_leader_once_the_loop_has_ended_and_the_crew_goes_on() {
    pool(2).install(|| {
        pass(|| {
            for at in 0..8 {
                let ran = counts(8);
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    for_each(8, |task| {
                        ran[task].fetch_add(1, Ordering::SeqCst);
                        assert!(task != at, "task {task}");
                    });
                }));
                let message = panicked.unwrap_err().downcast::<String>().unwrap();
                assert_eq!(*message, format!("task {at}"));
                assert!(all(&ran, 1), "the others ran");
                once(5);
            }
        });
    });
}

/// Work of others is not kept waiting by a pass that has loop after loop.
#[test]
fn other_work_of_the_pool_runs_during_a_pass() {
    let (pool, outside, is_done) = (Arc::new(pool(2)), self::pool(1), Arc::new(AtomicBool::new(false)));
    pool.install(|| {
        pass(|| {
            // It comes from a thread that is none of the pool's.
            let (pool, is_done_there) = (Arc::clone(&pool), Arc::clone(&is_done));
            outside.spawn(move || pool.install(|| is_done_there.store(true, Ordering::SeqCst)));
            while !is_done.load(Ordering::SeqCst) {
                once(4);
            }
        });
    });
}

#[test]
fn a_spin_counts_its_own_time_alone() {
    let spin = Duration::from_micros(100);
    assert_eq!(after(spin, Duration::from_micros(2)), Duration::from_micros(98));
    assert_eq!(after(spin, Duration::from_millis(3)), spin - MOST_TURNS, "the processor was somebody else's");
    assert_eq!(after(Duration::from_micros(1), Duration::from_micros(2)), Duration::ZERO);
}
