//! Deadlines of requests.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};

/// What a request gets whose time is up.
pub(crate) fn deadline_error() -> Error {
    Error::new(ErrorKind::DeadlineExceeded, "the request's deadline passed; ask for fewer tokens or raise `deadline_s`")
}

/// What is left until `deadline`.
pub(crate) fn remaining(deadline: Instant) -> Result<Duration> {
    deadline.checked_duration_since(now()).filter(|left| !left.is_zero()).ok_or_else(deadline_error)
}

/// When a request that has this long from now on must have ended.
pub(crate) fn deadline_after(limit: Duration) -> Instant {
    // One so far away that no clock counts to it never comes.
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    now() + limit.min(CENTURY)
}

#[expect(clippy::disallowed_methods, reason = "a deadline stands on the clock of the timers that end what misses it")]
fn now() -> Instant {
    Instant::now()
}
