//! One error type for all of ragstone, with a kind that says what the caller should do.
//!
//! It stands in the lowest crate, and every other one gives it on under its own name: `?` carries an error from a kernel or a tier to a
//! command's last line or a service's answer as it is. What a kind is in HTTP, or as an exit status, the binary says.

use std::path::Path;
use std::time::Duration;

/// What the caller should do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The caller's input is at fault.
    InvalidInput,
    /// The prompt and the requested answer do not fit the model's context.
    ContextLength,
    /// The request's body is larger than the service takes.
    TooLarge,
    /// The request's body did not come in time.
    TooSlow,
    /// Who asks is not known.
    Unauthenticated,
    /// Not for this caller.
    Forbidden,
    /// Nothing of that name is there. Of KV: a miss, which is always legal.
    NotFound,
    /// The path is there, the method is not; the field has those that are.
    MethodNotAllowed,
    /// The model folder is damaged or incomplete: fetch it again.
    InvalidModel,
    /// The model is of a kind that this version does not run: take another one.
    UnsupportedModel,
    /// The data folder belongs to another model, embedding, process or newer version.
    Incompatible,
    /// Bytes that do not match their checksum or key: a late miss; the entry is to be removed.
    Corrupt,
    /// A bounded queue is full: come back after [`Error::retry_after`].
    Overloaded,
    /// Try again later: a lock is held, a disk or bucket is busy, the service starts, stops, or is gone.
    Unavailable,
    /// The request's deadline passed.
    DeadlineExceeded,
    /// The caller went away or pressed Ctrl-C.
    Cancelled,
    /// The disk or a bounded tier is full: free space, or raise a capacity.
    Full,
    /// The device's memory is gone (a reset, a driver's fault): what was in it has to be computed or loaded again.
    DeviceLost,
    /// A broken promise inside ragstone or a dependency: report it. This request is lost, the service goes on.
    Internal,
}

/// What went wrong. Its text says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: Box<str>,
    field: Option<Box<str>>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of ragstone's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `message` names what was wrong (the key, path, tier or field), and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into().into_boxed_str(), field: None, source: None }
    }

    /// As [`new`](Self::new), of a request whose `field` must change.
    pub fn of_field(kind: ErrorKind, field: impl Into<Box<str>>, message: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(kind, message) }
    }

    /// Input that the caller must change.
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// A request whose `field` must change.
    pub fn invalid_field(field: impl Into<Box<str>>, message: impl Into<String>) -> Self {
        Self::of_field(ErrorKind::InvalidInput, field, message)
    }

    /// A damaged or incomplete model folder.
    pub fn invalid_model(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidModel, message)
    }

    /// A model that this version does not run.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::UnsupportedModel, message)
    }

    /// Bytes that are not what was written.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// Nothing there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// A broken promise.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// A failed file operation on `path`: a full disk is [`ErrorKind::Full`], a missing or forbidden file is the
    /// caller's input, anything else is [`ErrorKind::Unavailable`].
    pub fn io(doing: &str, path: &Path, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let (kind, advice) = match source.kind() {
            Io::StorageFull | Io::QuotaExceeded => (ErrorKind::Full, "; free space on that disk and try again"),
            Io::NotFound => (ErrorKind::InvalidInput, "; check the path"),
            Io::PermissionDenied => (ErrorKind::InvalidInput, "; check the permissions of that path"),
            _ => (ErrorKind::Unavailable, ""),
        };
        Self::new(kind, format!("{doing} {}: {source}{advice}", path.display())).with_source(source)
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same again, without its cause.
    #[must_use]
    pub fn again(&self) -> Self {
        Self { kind: self.kind, message: self.message.clone(), field: self.field.clone(), source: None }
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What of the request must change, where one thing must.
    pub fn at_field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// How long to wait before trying again, where trying again helps.
    pub fn retry_after(&self) -> Option<Duration> {
        matches!(self.kind, ErrorKind::Overloaded | ErrorKind::Unavailable).then_some(Duration::from_secs(1))
    }
}
