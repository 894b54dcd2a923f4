//! Threads for what nobody waits for: computing that may take hours, such as the embeddings of a large upload, on processors that answer
//! questions meanwhile. They have the priority of background work, so that who is waited for computes first, and take what is left over.

use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// How much nicer than others these threads are, as `nice` counts: of a processor that both want they get about a tenth.
const NICENESS: i32 = 10;

static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
static ALONE: OnceLock<Option<ThreadPool>> = OnceLock::new();

/// Runs `work`, and what it computes in parallel, on the background's threads; there are as many as of the others. Where the system has no
/// more threads, on those.
pub fn run<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    match POOL.get_or_init(|| build(rayon::current_num_threads(), "background")) {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

/// Runs `work` on one thread of the background: what nobody asked for leaves the other processors alone. Where the system has no more threads, on
/// those of all else.
pub fn run_on_one<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    match ALONE.get_or_init(|| build(1, "unasked")) {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

fn build(threads: usize, name: &'static str) -> Option<ThreadPool> {
    let builder = ThreadPoolBuilder::new().num_threads(threads);
    let named = builder.thread_name(move |index| format!("{name}-{index}")).start_handler(|_| be_nice());
    named.build().ok()
}

#[cfg(target_os = "linux")]
fn be_nice() {
    // SAFETY: it takes numbers. 0 is the calling thread; a lower priority needs no right, and if it is refused nothing changes.
    unsafe { libc::setpriority(libc::PRIO_PROCESS as _, 0, NICENESS) };
}

/// Elsewhere a priority is the process's.
#[cfg(not(target_os = "linux"))]
fn be_nice() {}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use super::*;

    #[test]
    fn it_computes_in_parallel_on_nice_threads() {
        let threads = run(rayon::current_num_threads);
        assert_eq!(threads, rayon::current_num_threads());
        assert_eq!(run(|| (0..1000_u64).into_par_iter().sum::<u64>()), 499_500);
        assert_eq!(run_on_one(rayon::current_num_threads), 1);
        assert_eq!(run_on_one(|| (0..1000_u64).into_par_iter().sum::<u64>()), 499_500);
        #[cfg(target_os = "linux")]
        {
            // SAFETY: it takes numbers. 0 is the calling thread.
            let niceness = || unsafe { libc::getpriority(libc::PRIO_PROCESS as _, 0) };
            assert!(run(niceness) >= NICENESS.max(niceness()));
        }
    }
}
