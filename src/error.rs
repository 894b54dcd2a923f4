//! One error type for the binary, with a kind that says what the caller should do.
//!
//! The command line prints the message and exits with a non-zero status; the service answers in OpenAI's error shape
//! (`crate::http::error`).

use std::path::Path;

/// What the caller should do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
    /// No such path, collection, document, model or file.
    NotFound,
    /// The path is there, the method is not.
    MethodNotAllowed,
    /// The data folder belongs to another model, embedding, process or newer version.
    Incompatible,
    /// A bounded queue is full: try again a little later.
    Overloaded,
    /// The service is starting, stopping, or gone.
    Unavailable,
    /// The request's deadline passed.
    DeadlineExceeded,
    /// The caller went away or pressed Ctrl-C.
    Cancelled,
    /// A disk or a tier is full.
    Full,
    /// A broken promise inside ragstone or a dependency: report it.
    Internal,
}

/// An error of the binary. Its text says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    /// The request's field at fault, for API clients.
    param: Option<String>,
}

/// The result of the binary's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `message` says what was wrong and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None }
    }

    /// Input that the caller must change.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// A request whose field `param` must change.
    pub fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::param_of(ErrorKind::InvalidInput, param, message)
    }

    /// As [`param`](Self::param), of another kind.
    pub fn param_of(kind: ErrorKind, param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: Some(param.into()) }
    }

    /// A broken promise of a dependency.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// A failed operation on a file, with advice where there is one.
    pub fn io(doing: &str, path: &Path, source: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let (kind, advice) = match source.kind() {
            Io::StorageFull | Io::QuotaExceeded => (ErrorKind::Full, "; free space on that disk and try again"),
            Io::NotFound => (ErrorKind::NotFound, "; check the path"),
            Io::PermissionDenied => (ErrorKind::InvalidInput, "; check the permissions of that path"),
            _ => (ErrorKind::Unavailable, ""),
        };
        Self::new(kind, format!("{doing} {}: {source}{advice}", path.display()))
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The request's field at fault, where one is.
    pub fn at_param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// The process's exit status: 2 for wrong usage (as the argument parser does), 130 after Ctrl-C, else 1.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            ErrorKind::InvalidInput => 2,
            ErrorKind::Cancelled => 130,
            _ => 1,
        }
    }
}

impl From<ragstone_actors::Error> for Error {
    fn from(error: ragstone_actors::Error) -> Self {
        use ragstone_actors::ErrorKind as A;
        let kind = match error.kind() {
            A::InvalidInput => ErrorKind::InvalidInput,
            A::ContextLength => ErrorKind::ContextLength,
            A::NotFound => ErrorKind::NotFound,
            A::Overloaded => ErrorKind::Overloaded,
            A::DeadlineExceeded => ErrorKind::DeadlineExceeded,
            A::Cancelled => ErrorKind::Cancelled,
            A::Full => ErrorKind::Full,
            A::Incompatible => ErrorKind::Incompatible,
            _ => ErrorKind::Internal,
        };
        Self { param: error.at_field().map(str::to_owned), ..Self::new(kind, error.to_string()) }
    }
}

impl From<ragstone_storage::Error> for Error {
    fn from(error: ragstone_storage::Error) -> Self {
        ragstone_actors::Error::from(error).into()
    }
}

impl From<ragstone_kernels::Error> for Error {
    fn from(error: ragstone_kernels::Error) -> Self {
        ragstone_actors::Error::from(error).into()
    }
}
