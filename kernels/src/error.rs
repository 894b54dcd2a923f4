//! One error type for the crate, with a kind that says what the caller should do.

/// What the caller should do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The model folder is damaged or incomplete: fetch it again.
    InvalidModel,
    /// The model is of a kind that this version does not run: take another one.
    UnsupportedModel,
    /// The caller's input is at fault (a token id outside the vocabulary, a malformed message).
    InvalidInput,
    /// The device's memory is gone (a reset, a driver's fault): what was in it has to be computed or loaded again.
    DeviceLost,
    /// The file system refused.
    Io,
    /// A broken promise inside ragstone: report it.
    Internal,
}

/// An error of this crate. Its text says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `message` names what was wrong and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// A damaged or incomplete model folder.
    pub fn invalid_model(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidModel, message)
    }

    /// A model that this version does not run.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::UnsupportedModel, message)
    }

    /// Input that the caller must change.
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }
}
