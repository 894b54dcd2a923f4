//! Errors, in OpenAI's shape.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
