//! Work that waits, off the threads that must not; and work beside work.

use crate::error::{Error, ErrorKind, Result};

/// Runs `work` on a thread that may wait. A panic goes on in the caller.
///
/// # Errors
/// Those of `work`; `Cancelled` when the program is shutting down.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let span = tracing::Span::current();
    match tokio::task::spawn_blocking(move || span.in_scope(work)).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::new(ErrorKind::Cancelled, "the service is shutting down")),
    }
}

/// Runs `aside` on a thread of the compute pool, and `here` on this one meanwhile. Both have ended when it returns.
pub(crate) fn beside<A: Send, B>(aside: impl FnOnce() -> A + Send, here: impl FnOnce() -> B) -> (A, B) {
    let mut done = None;
    let here = rayon::in_place_scope(|scope| {
        scope.spawn(|_| done = Some(aside()));
        here()
    });
    (done.expect("the scope ends once what was spawned in it has, and passes its panic on"), here)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn two_things_are_done_at_once() {
        let (to_here, from_aside) = channel();
        let (to_aside, from_here) = channel();
        let done = beside(
            move || {
                to_here.send(1).unwrap();
                from_here.recv().unwrap()
            },
            move || {
                let came: i32 = from_aside.recv().unwrap();
                to_aside.send(came + 1).unwrap();
                came
            },
        );
        assert_eq!(done, (2, 1));
    }
}
