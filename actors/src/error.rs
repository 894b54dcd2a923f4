//! One error type for the crate, with a kind that says what the caller should do.

use std::time::Duration;

/// What the caller should do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's input is at fault.
    InvalidInput,
    /// The prompt and the requested answer do not fit the model's context.
    ContextLength,
    /// No such collection, document or model.
    NotFound,
    /// A bounded queue is full: come back after [`Error::retry_after`].
    Overloaded,
    /// The request's deadline passed.
    DeadlineExceeded,
    /// The caller went away.
    Cancelled,
    /// The disk or a tier is full.
    Full,
    /// The data folder belongs to another model, embedding or newer version.
    Incompatible,
    /// The device's memory is gone; the engine goes on without what was in it.
    DeviceLost,
    /// A panic or a broken promise inside ragstone: this request is lost, the service goes on.
    Internal,
}

/// An error of this crate. Its text says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    /// What of the request is at fault, where one thing is.
    field: Option<&'static str>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `message` says what was wrong and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), field: None, source: None }
    }

    /// As [`new`](Self::new), of a request whose `field` must change.
    pub fn of_field(kind: ErrorKind, field: &'static str, message: impl Into<String>) -> Self {
        Self { field: Some(field), ..Self::new(kind, message) }
    }

    /// What of the request must change, where one thing must.
    pub fn at_field(&self) -> Option<&'static str> {
        self.field
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// How long to wait before trying again, where trying again helps.
    pub fn retry_after(&self) -> Option<Duration> {
        (self.kind == ErrorKind::Overloaded).then_some(Duration::from_secs(1))
    }
}

impl From<ragstone_kernels::Error> for Error {
    fn from(error: ragstone_kernels::Error) -> Self {
        use ragstone_kernels::ErrorKind as K;
        let kind = match error.kind() {
            K::InvalidInput => ErrorKind::InvalidInput,
            K::InvalidModel | K::UnsupportedModel => ErrorKind::Incompatible,
            K::DeviceLost => ErrorKind::DeviceLost,
            _ => ErrorKind::Internal,
        };
        Self { kind, message: error.to_string(), field: None, source: Some(Box::new(error)) }
    }
}

impl From<ragstone_storage::Error> for Error {
    fn from(error: ragstone_storage::Error) -> Self {
        use ragstone_storage::ErrorKind as K;
        let kind = match error.kind() {
            K::NotFound => ErrorKind::NotFound,
            K::InvalidInput => ErrorKind::InvalidInput,
            K::Incompatible => ErrorKind::Incompatible,
            K::Full => ErrorKind::Full,
            K::Unavailable => ErrorKind::Overloaded,
            K::Cancelled => ErrorKind::Cancelled,
            _ => ErrorKind::Internal,
        };
        Self { kind, message: error.to_string(), field: None, source: Some(Box::new(error)) }
    }
}
