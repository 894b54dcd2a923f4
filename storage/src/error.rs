//! One error type for the crate, with a kind that says what the caller should do.

/// What the caller should do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing there: a miss, which is always legal for KV.
    NotFound,
    /// Bytes that do not match their checksum or key: a late miss; the entry is to be removed.
    Corrupt,
    /// The disk or a bounded tier is full: free space, or raise a capacity.
    Full,
    /// The data folder belongs to another model, embedding or newer version.
    Incompatible,
    /// The caller's input is at fault.
    InvalidInput,
    /// Try again later (lock held, disk busy).
    Unavailable,
    /// The caller does not want it any more.
    Cancelled,
    /// A broken promise inside ragstone or a dependency: report it.
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
    /// An error of `kind`; `message` names the key, path or tier, and what to do.
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

    /// Bytes that are not what was written.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// Nothing there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// Input that the caller must change.
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// A failed file operation on `path`: a full disk is [`ErrorKind::Full`], a missing or forbidden file is the
    /// caller's input, anything else is [`ErrorKind::Unavailable`].
    pub fn io(doing: &str, path: &std::path::Path, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let (kind, advice) = match source.kind() {
            Io::StorageFull | Io::QuotaExceeded => (ErrorKind::Full, "; free space on that disk and try again"),
            Io::NotFound => (ErrorKind::InvalidInput, "; check the path"),
            Io::PermissionDenied => (ErrorKind::InvalidInput, "; check the permissions of that path"),
            _ => (ErrorKind::Unavailable, ""),
        };
        Self::new(kind, format!("{doing} {}: {source}{advice}", path.display())).with_source(source)
    }
}
