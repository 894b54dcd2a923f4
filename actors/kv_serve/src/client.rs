//! A client for commands and tests: one request at a time.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use ragstone_env::{Env, Error, ErrorKind, Result};

use crate::message::{Fault, Reply, Request};
use crate::wire;

/// A connection to a daemon.
pub struct Client {
    stream: UnixStream,
    env: Env,
    /// How long an answer may take.
    limit: Duration,
}

impl Client {
    /// Connects to the daemon at `socket`, whose answers may take `limit`.
    ///
    /// # Errors
    /// `Unavailable` if nobody listens there.
    pub fn connect(socket: &Path, limit: Duration, env: Env) -> Result<Self> {
        let stream = UnixStream::connect(socket).map_err(|error| {
            let message =
                format!("no daemon answers at {}: {error}; start it with `ragstone kv-serve`", socket.display());
            Error::new(ErrorKind::Unavailable, message)
        })?;
        stream
            .set_read_timeout(Some(Duration::from_millis(100)))
            .map_err(|error| Error::internal(format!("a connection: {error}")))?;
        Ok(Self { stream, env, limit })
    }

    #[cfg(test)]
    pub fn stream(&mut self) -> &mut UnixStream {
        &mut self.stream
    }

    /// Sends a request and waits for an answer. BLOCKS.
    ///
    /// # Errors
    /// What the daemon says: `InvalidInput`, `Overloaded`, `NotFound` or `Unavailable`; `DeadlineExceeded` if it says nothing; `Unavailable` if it is gone.
    pub fn call(&mut self, request: &Request) -> Result<Reply> {
        wire::write(&mut self.stream, request)?;
        self.receive()
    }

    /// Waits for an answer. BLOCKS.
    ///
    /// # Errors
    /// As [`call`](Self::call)'s.
    pub fn receive(&mut self) -> Result<Reply> {
        let waited = self.env.stopwatch();
        let mut is_late = false;
        let mut stream = Patient { stream: &self.stream, waited: &waited, limit: self.limit, is_late: &mut is_late };
        let message = wire::read(&mut stream, &self.env, &mut || ());
        if is_late {
            let message = format!("the daemon did not answer within {} s; it may be stuck", self.limit.as_secs());
            return Err(Error::new(ErrorKind::DeadlineExceeded, message));
        }
        let gone = || Error::new(ErrorKind::Unavailable, "the daemon ended the connection; connect again");
        let reply: Reply = serde_json::from_slice(&message?.ok_or_else(gone)?).map_err(|error| {
            Error::new(ErrorKind::Incompatible, format!("the daemon speaks another language: {error}"))
        })?;
        match reply {
            Reply::Error { kind, message, .. } => Err(Error::new(kind_of(kind), message)),
            reply => Ok(reply),
        }
    }
}

/// A stream that ends when the time is over.
struct Patient<'a> {
    stream: &'a UnixStream,
    waited: &'a ragstone_env::Stopwatch,
    limit: Duration,
    is_late: &'a mut bool,
}

impl std::io::Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.waited.elapsed() > self.limit {
            *self.is_late = true;
            return Ok(0);
        }
        std::io::Read::read(&mut self.stream, buffer)
    }
}

fn kind_of(fault: Fault) -> ErrorKind {
    match fault {
        Fault::Protocol => ErrorKind::InvalidInput,
        Fault::Busy => ErrorKind::Overloaded,
        Fault::NotFound => ErrorKind::NotFound,
        Fault::Failed => ErrorKind::Unavailable,
    }
}
