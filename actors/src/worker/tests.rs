use std::sync::atomic::AtomicUsize;

use super::*;

struct Fragile {
    made: usize,
}

impl Service for Fragile {
    const NAME: &'static str = "fragile";
    const ENDS_WITH_CALLER: bool = true;
    type Request = Option<tokio::sync::oneshot::Receiver<()>>;
    type Reply = usize;

    async fn handle(self: Arc<Self>, request: Self::Request) -> Result<usize> {
        match request {
            Some(gate) => gate.await.map_err(|_| Error::new(ErrorKind::Cancelled, "gate dropped"))?,
            None => panic!("on purpose"),
        }
        Ok(self.made)
    }
}

fn start(capacity: usize) -> Supervised<Fragile> {
    let made = AtomicUsize::new(0);
    Supervised::start(capacity, move || Fragile { made: made.fetch_add(1, Ordering::Relaxed) })
}

const LONG: Duration = Duration::from_secs(60);

/// A request that is answered at once.
fn open_gate() -> Option<tokio::sync::oneshot::Receiver<()>> {
    let (open, gate) = tokio::sync::oneshot::channel();
    open.send(()).expect("receiver lives");
    Some(gate)
}

#[test]
fn a_panic_costs_one_request_and_the_worker_comes_back() {
    runtime().block_on(async {
        let worker = start(4);
        let (open, gate) = tokio::sync::oneshot::channel();
        // Polled once, so that it is in the mailbox before the one that panics.
        let mut beside = Box::pin(worker.ask(Some(gate), LONG));
        assert!(futures::poll!(beside.as_mut()).is_pending());
        let error = worker.ask(None, LONG).await.expect_err("it panics");
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.to_string().contains("on purpose"), "{error}");
        assert_eq!(worker.ask(open_gate(), LONG).await.expect("it is back"), 1);
        open.send(()).expect("the request beside it lives");
        assert_eq!(beside.await.expect("unharmed"), 0);
        assert_eq!(worker.status().restarts, 1);
    });
}

#[test]
fn a_full_queue_refuses_at_once_and_recovers() {
    runtime().block_on(async {
        let worker = start(1);
        let (open, gate) = tokio::sync::oneshot::channel();
        let mut first = Box::pin(worker.ask(Some(gate), LONG));
        assert!(futures::poll!(first.as_mut()).is_pending());
        let error = worker.ask(open_gate(), LONG).await.expect_err("full");
        assert_eq!(error.kind(), ErrorKind::Overloaded);
        assert!(error.retry_after().is_some());
        open.send(()).expect("waiting");
        first.await.expect("served");
        worker.ask(open_gate(), LONG).await.expect("room again");
        assert_eq!(worker.status().in_flight, 0);
    });
}

#[test]
fn a_deadline_ends_the_wait() {
    runtime().block_on(async {
        let worker = start(1);
        let (_open, gate) = tokio::sync::oneshot::channel();
        let error = worker.ask(Some(gate), Duration::from_millis(1)).await.expect_err("too late");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    });
}

#[test]
fn a_deadline_ends_the_work_and_frees_its_place() {
    runtime().block_on(async {
        let worker = start(1);
        let (mut open, gate) = tokio::sync::oneshot::channel();
        let error = worker.ask(Some(gate), Duration::from_millis(1)).await.expect_err("too late");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        open.closed().await;
        until_idle(&worker).await;
        worker.ask(open_gate(), LONG).await.expect("room again");
    });
}

/// Works on a blocking thread, as those who wait for a disk do.
struct Stubborn;

impl Service for Stubborn {
    const NAME: &'static str = "stubborn";
    const ENDS_WITH_CALLER: bool = false;
    type Request = std::sync::mpsc::Receiver<()>;
    type Reply = ();

    async fn handle(self: Arc<Self>, gate: Self::Request) -> Result<()> {
        drop(tokio::task::spawn_blocking(move || gate.recv()).await);
        Ok(())
    }
}

#[test]
fn work_that_cannot_be_ended_keeps_its_place_until_it_is_done() {
    runtime().block_on(async {
        let worker = Supervised::start(1, || Stubborn);
        let (open, gate) = std::sync::mpsc::channel();
        let error = worker.ask(gate, Duration::from_millis(1)).await.expect_err("too late");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        let (_, next) = std::sync::mpsc::channel();
        let error = worker.ask(next, LONG).await.expect_err("it works still");
        assert_eq!((error.kind(), worker.status().in_flight), (ErrorKind::Overloaded, 1));
        drop(open);
        until_idle(&worker).await;
        let (_, next) = std::sync::mpsc::channel();
        worker.ask(next, LONG).await.expect("room again");
    });
}

async fn until_idle(worker: &Supervised<impl Service>) {
    while worker.status().in_flight > 0 {
        tokio::task::yield_now().await;
    }
}

/// Workers must also start where no actix system is: on tokio's own runtime.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}
