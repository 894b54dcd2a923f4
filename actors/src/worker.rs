//! A supervised actix worker: bounded, with a deadline, and back after a panic.
//!
//! actix alone gives none of the three where it matters: `do_send` ignores the mailbox bound, nothing catches a panic,
//! and `Supervisor` does not re-create an actor. Here the bound is a semaphore taken before sending (so that it counts
//! waiting and running requests), the panic is caught around the request, and the service behind the actor is made anew.
//! Nor does an actor hear that its caller left: a request carries its place and a line to the caller, so that a deadline ends
//! the work where work can be ended, and the place is taken for as long as there is work.

use std::borrow::Cow;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use actix::prelude::*;
use futures::FutureExt;
use ragstone_env::Env;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::{Instrument, Span};

use crate::error::{Error, ErrorKind, Result};

/// What a worker does with one request.
pub trait Service: Send + Sync + 'static {
    /// Shown in errors, logs and `cache status`.
    const NAME: &'static str;
    /// What it is asked.
    type Request: Send + 'static;
    /// What it answers.
    type Reply: Send + 'static;
    /// Whether the work ends with the caller's patience: its future is dropped. What runs on a blocking thread cannot be
    /// ended, and goes on in its place until it is done.
    const ENDS_WITH_CALLER: bool;

    /// Handles one request. May run beside others; a panic costs this request only.
    fn handle(self: Arc<Self>, request: Self::Request) -> impl Future<Output = Result<Self::Reply>> + Send + 'static;
}

/// The address of a supervised worker. Clones share it.
pub struct Supervised<S: Service> {
    inner: Arc<Inner<S>>,
}

impl<S: Service> Clone for Supervised<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<S: Service> {
    address: Mutex<Addr<Worker<S>>>,
    arbiter: Arbiter,
    slot: Slot<S>,
    permits: Arc<Semaphore>,
    capacity: usize,
}

/// Counters of one worker.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct WorkerStatus {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Requests it takes at once, waiting ones included.
    pub capacity: usize,
    /// Requests it has now, with those whose caller left before their work was done.
    pub in_flight: usize,
    /// How often it was made anew after a panic.
    pub restarts: u64,
}

/// The living service and how to make another.
struct Slot<S> {
    service: Arc<Mutex<Arc<S>>>,
    factory: Arc<dyn Fn() -> S + Send + Sync>,
    restarts: Arc<AtomicU64>,
}

impl<S> Clone for Slot<S> {
    fn clone(&self) -> Self {
        Self { service: self.service.clone(), factory: self.factory.clone(), restarts: self.restarts.clone() }
    }
}

impl<S> Slot<S> {
    fn current(&self) -> Arc<S> {
        self.service.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self) {
        let fresh = Arc::new((self.factory)());
        *self.service.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }
}

impl<S: Service> Supervised<S> {
    /// Starts the worker on an arbiter (thread) of its own; `factory` makes the service, now and after every panic.
    pub fn start(capacity: usize, factory: impl Fn() -> S + Send + Sync + 'static) -> Self {
        let slot = Slot {
            service: Arc::new(Mutex::new(Arc::new(factory()))),
            factory: Arc::new(factory),
            restarts: Arc::new(AtomicU64::new(0)),
        };
        enter_system();
        let arbiter = Arbiter::new();
        let address = Mutex::new(spawn(&arbiter, &slot, capacity));
        let permits = Arc::new(Semaphore::new(capacity));
        Self { inner: Arc::new(Inner { address, arbiter, slot, permits, capacity }) }
    }

    /// Asks the worker, which must answer within `deadline`.
    ///
    /// # Errors
    /// `Overloaded` at once where its queue is full, `DeadlineExceeded`, `Internal` after a panic, or the service's own.
    pub async fn ask(&self, request: S::Request, deadline: Duration) -> Result<S::Reply> {
        let inner = &self.inner;
        let place = inner.permits.clone().try_acquire_owned().map_err(|_| {
            metrics::counter!("ragstone_shed_total", "worker" => S::NAME).increment(1);
            Error::new(ErrorKind::Overloaded, format!("the {} queue is full ({}); try again", S::NAME, inner.capacity))
        })?;
        let (_here, caller) = oneshot::channel();
        match self.address().send(Ask { request, caller, place, span: Span::current() }).timeout(deadline).await {
            Ok(reply) => reply,
            Err(MailboxError::Timeout) => Err(Error::new(
                ErrorKind::DeadlineExceeded,
                format!("{} did not finish within {:.1} s", S::NAME, deadline.as_secs_f64()),
            )),
            Err(MailboxError::Closed) => {
                Err(Error::new(ErrorKind::Internal, format!("the {} worker stopped; try again", S::NAME)))
            }
        }
    }

    /// The worker's address; a worker whose context ended is started again.
    fn address(&self) -> Addr<Worker<S>> {
        let inner = &self.inner;
        let mut address = inner.address.lock().unwrap_or_else(PoisonError::into_inner);
        if !address.connected() {
            inner.slot.replace();
            *address = spawn(&inner.arbiter, &inner.slot, inner.capacity);
        }
        address.clone()
    }

    /// Counters.
    pub fn status(&self) -> WorkerStatus {
        WorkerStatus {
            name: S::NAME.into(),
            capacity: self.inner.capacity,
            in_flight: self.inner.capacity.saturating_sub(self.inner.permits.available_permits()),
            restarts: self.inner.slot.restarts.load(Ordering::Relaxed),
        }
    }
}

/// Arbiters belong to an actix system, which wants a thread of its own. One serves the process, for as long as it lives.
fn enter_system() {
    static SYSTEM: OnceLock<System> = OnceLock::new();
    if System::is_registered() {
        return;
    }
    let system = SYSTEM.get_or_init(|| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = Env::spawn("actix", move || {
            let runner = System::new();
            // The receiver waits right below.
            drop(sender.send(System::current()));
            if let Err(error) = runner.run() {
                tracing::error!(%error, "the actix system stopped");
            }
        });
        thread.expect("a process that starts has a thread left");
        receiver.recv().expect("the thread sends before anything in it can fail")
    });
    System::set_current(system.clone());
}

impl<S: Service> Drop for Inner<S> {
    fn drop(&mut self) {
        self.arbiter.stop();
    }
}

fn spawn<S: Service>(arbiter: &Arbiter, slot: &Slot<S>, capacity: usize) -> Addr<Worker<S>> {
    let slot = slot.clone();
    Worker::start_in_arbiter(&arbiter.handle(), move |context| {
        context.set_mailbox_capacity(capacity);
        Worker { slot }
    })
}

struct Worker<S: Service> {
    slot: Slot<S>,
}

impl<S: Service> Actor for Worker<S> {
    type Context = Context<Self>;
}

struct Ask<S: Service> {
    request: S::Request,
    /// Ends when nobody waits for the answer any more.
    caller: oneshot::Receiver<()>,
    /// Among the requests that the worker takes at once.
    place: OwnedSemaphorePermit,
    /// What the caller does: steps of the work are steps of that.
    span: Span,
}

impl<S: Service> Message for Ask<S> {
    type Result = Result<S::Reply>;
}

impl<S: Service> Handler<Ask<S>> for Worker<S> {
    type Result = ResponseFuture<Result<S::Reply>>;

    fn handle(&mut self, ask: Ask<S>, _: &mut Self::Context) -> Self::Result {
        let slot = self.slot.clone();
        let service = slot.current();
        Box::pin(async move {
            let Ask { request, caller, place: _place, span } = ask;
            // The call itself may panic too, so it is made inside the guarded future.
            let guarded =
                AssertUnwindSafe(async move { service.handle(request).await }.instrument(span)).catch_unwind();
            let done = tokio::select! {
                biased;
                done = guarded => done,
                _ = caller, if S::ENDS_WITH_CALLER => {
                    return Err(Error::new(ErrorKind::Cancelled, "nobody waits for the answer any more"));
                }
            };
            done.unwrap_or_else(|panic| {
                let what = panic_text(panic.as_ref());
                tracing::error!(worker = S::NAME, panic = what, "request panicked; worker made anew");
                metrics::counter!("ragstone_panics_total", "worker" => S::NAME).increment(1);
                slot.replace();
                Err(Error::new(
                    ErrorKind::Internal,
                    format!("{} failed on this request ({what}); the service goes on", S::NAME),
                ))
            })
        })
    }
}

/// The message of a caught panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests;
