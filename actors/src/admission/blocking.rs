//! Work that waits, off the threads that must not.

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
