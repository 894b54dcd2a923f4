//! Errors, in OpenAI's shape.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::ErrorKind;

/// What every path answers where it fails, with the matching status. In a stream of events it is the last one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    pub error: ErrorObject,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorObject {
    /// What was wrong and what to do.
    pub message: String,
    /// `invalid_request_error`, `permission_error`, `rate_limit_error` or `server_error`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// The request's field at fault, where one is.
    #[serde(default)]
    pub param: Option<String>,
    /// Such as `not_found` or `rate_limit_exceeded`; null where the type says it all.
    #[serde(default)]
    pub code: Option<String>,
}

/// The kind that a response of ours with this status and code came from. An error that ends a stream has a code alone.
pub fn kind_of(status: u16, code: Option<&str>) -> ErrorKind {
    match (status, code) {
        (_, Some("rate_limit_exceeded")) => ErrorKind::Overloaded,
        (_, Some("unavailable")) => ErrorKind::Unavailable,
        (_, Some("deadline_exceeded")) => ErrorKind::DeadlineExceeded,
        (_, Some("storage_full")) => ErrorKind::Full,
        (400, Some("context_length_exceeded")) => ErrorKind::ContextLength,
        (400, _) => ErrorKind::InvalidInput,
        (401, _) => ErrorKind::Unauthenticated,
        (403, _) => ErrorKind::Forbidden,
        (404, _) => ErrorKind::NotFound,
        (405, _) => ErrorKind::MethodNotAllowed,
        (408, _) => ErrorKind::TooSlow,
        (409, _) => ErrorKind::Incompatible,
        (413, _) => ErrorKind::TooLarge,
        (429, _) => ErrorKind::Overloaded,
        (503, _) => ErrorKind::Unavailable,
        (504, _) => ErrorKind::DeadlineExceeded,
        (507, _) => ErrorKind::Full,
        _ => ErrorKind::Internal,
    }
}
