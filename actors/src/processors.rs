//! The processors, for what computes beside the engine: searches, embeddings, rerankers, corpus changes.
//!
//! Callers take turns ([`Turns`]). Work that runs is not interrupted by us, and one search or batch of texts is tens of milliseconds of
//! every core; so what is of low priority, and what nobody waits for within milliseconds, runs on threads that the operating system
//! interrupts for all others. They have everything while nobody else wants it.

use std::cell::Cell;
use std::future::Future;
use std::sync::LazyLock;

use ragstone_storage::env::Env;
use rayon::ThreadPool;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use crate::caller::Caller;
use crate::error::{Error, ErrorKind, Result};
use crate::turns::{Priority, Turn, Turns};

/// How much the operating system prefers other threads, as `nice` has it: each ordinary thread has about ten times what one of these
/// gets. With 19 it would be seventy times, and a lock that one holds would be waited for too long.
const NICE: i32 = 10;

/// The process's threads of low priority that wait, and block; they last as long as it does.
static LOW: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let started = Builder::new_multi_thread()
        .worker_threads(cores())
        .thread_name("low")
        .on_thread_start(|| {
            lower_priority();
            IS_LOW.set(true);
        })
        .enable_all()
        .build();
    started
        .map_err(|error| tracing::warn!(%error, "there are no threads of low priority: all work has the usual one"))
        .ok()
});

/// Those that compute for them.
static LOW_POOL: LazyLock<Option<ThreadPool>> = LazyLock::new(|| {
    let started = rayon::ThreadPoolBuilder::new()
        .num_threads(rayon::current_num_threads())
        .thread_name(|index| format!("low-compute-{index}"))
        .start_handler(|_| lower_priority())
        .build();
    started.map_err(|error| tracing::warn!(%error, "work of low priority is computed with the usual one")).ok()
});

thread_local! {
    /// Whether this is one of [`LOW`]'s.
    static IS_LOW: Cell<bool> = const { Cell::new(false) };
}

/// Turns at the processors, and where their work runs.
#[derive(Debug, Clone)]
pub struct Processors {
    turns: Turns,
    usual: Handle,
}

impl Processors {
    /// One turn a processor: more at once would take the processors from each other, and only end later. What has the usual priority runs
    /// on `usual`.
    pub(crate) fn new(usual: Handle, env: Env) -> Self {
        Self { turns: Turns::new(cores(), env), usual }
    }

    /// Waits for a turn. Dropped before it comes, it leaves the line.
    pub async fn take(&self, caller: Caller) -> Turn {
        self.turns.take(caller).await
    }

    /// The turns themselves.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Runs a future, and all that it has computed, with a turn's priority. The turn ends with it.
    pub fn spawn<T: Send + 'static>(
        &self,
        turn: Turn,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime(turn.priority()).spawn(async move {
            let done = work.await;
            drop(turn);
            done
        })
    }

    /// Computes on a blocking thread with a turn's priority. The turn is held by the work and not by who waits for it: a caller that goes
    /// away frees no turn that is still in use.
    ///
    /// # Errors
    /// The work's; `Cancelled` while the service shuts down.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        turn: Turn,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let task = self.runtime(turn.priority()).spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        match task.await {
            Ok(done) => done,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Error::new(ErrorKind::Cancelled, "the service is shutting down")),
        }
    }

    /// Where work of such a priority runs.
    pub fn runtime(&self, priority: Priority) -> &Handle {
        match priority {
            Priority::Usual => &self.usual,
            Priority::Low => low().unwrap_or(&self.usual),
        }
    }
}

/// Threads for what nobody waits for within milliseconds; `None` where the system had none left.
pub fn low() -> Option<&'static Handle> {
    LOW.as_ref().map(Runtime::handle)
}

/// Runs `work`, which uses rayon, in the pool of this thread's priority: the usual one is rayon's global pool, and the engine's, too.
pub(crate) fn in_own_pool<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if IS_LOW.get()
        && let Some(pool) = &*LOW_POOL
    {
        return pool.install(work);
    }
    work()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).max(2)
}

/// Has the operating system prefer other threads to this one, for good: only the superuser may take that back. Where threads have no
/// priority of their own (macOS), nothing changes.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: a system call on numbers. On Linux 0 names the calling thread.
        let failed = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } != 0;
        if failed {
            tracing::debug!(error = %std::io::Error::last_os_error(), "a thread keeps its priority");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Caller;

    #[cfg(target_os = "linux")]
    fn niceness() -> i32 {
        // SAFETY: a system call on numbers.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn work_of_low_priority_computes_and_waits_on_threads_that_others_interrupt() {
        let env = Env::seeded(1, 0);
        let processors = Processors::new(Handle::current(), env.clone());
        let own = niceness();
        let places = || async {
            (niceness(), tokio::task::spawn_blocking(|| (niceness(), in_own_pool(niceness))).await.unwrap())
        };
        let turn = processors.take(Caller::of([127, 0, 0, 1].into())).await;
        assert_eq!(turn.priority(), Priority::Usual);
        assert_eq!(processors.spawn(turn, places()).await.unwrap(), (own, (own, own)));
        for (caller, ms) in [(1, 500), (2, 5)] {
            let turn = processors.take(Caller::of([127, 0, 0, caller].into())).await;
            env.advance(std::time::Duration::from_millis(ms));
            drop(turn);
        }
        let turn = processors.take(Caller::of([127, 0, 0, 1].into())).await;
        assert_eq!(turn.priority(), Priority::Low);
        let low = own.max(NICE);
        assert_eq!(processors.spawn(turn, places()).await.unwrap(), (low, (low, low)));
        let turn = processors.take(Caller::of([127, 0, 0, 1].into())).await;
        assert_eq!(processors.compute(turn, || Ok(niceness())).await.unwrap(), low);
    }
}
