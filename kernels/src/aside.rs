//! A thread for what is short and waited for, such as the embedding of a question: milliseconds of one thread. On the threads that all else
//! computes on it would wait for what they have begun, which is many times longer; beside them the system gives it a processor at once.

use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();

/// Runs `work`, and what it would compute in parallel, on the thread aside, one after the other. Where the system has no more threads, on those
/// of all else.
pub fn run<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let build = || ThreadPoolBuilder::new().num_threads(1).thread_name(|_| "aside".to_owned()).build().ok();
    match POOL.get_or_init(build) {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use rayon::prelude::*;

    use super::*;

    #[test]
    fn it_computes_on_one_thread_whatever_the_others_do() {
        assert_eq!(run(rayon::current_num_threads), 1);
        let (free, is_free) = std::sync::mpsc::channel::<()>();
        let is_free = Arc::new(Mutex::new(is_free));
        // All other threads are taken until it has ended.
        for _ in 0..rayon::current_num_threads() {
            let is_free = is_free.clone();
            rayon::spawn(move || drop(is_free.lock().map(|is_free| is_free.recv())));
        }
        assert_eq!(run(|| (0..1000_u64).into_par_iter().sum::<u64>()), 499_500);
        drop(free);
    }
}
