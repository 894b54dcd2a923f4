//! Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}` with the matching status.

use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use actix_web::{HttpResponse, ResponseError};

use crate::api::error::{ErrorBody, ErrorObject};
use crate::error::{Error, ErrorKind};

/// Status, `type` and `code` of each kind.
fn shape(error: &Error) -> (u16, &'static str, Option<&'static str>) {
    const INVALID: &str = "invalid_request_error";
    const SERVER: &str = "server_error";
    match error.kind() {
        ErrorKind::InvalidInput => (400, INVALID, None),
        ErrorKind::ContextLength => (400, INVALID, Some("context_length_exceeded")),
        ErrorKind::TooLarge => (413, INVALID, Some("body_too_large")),
        ErrorKind::TooSlow => (408, INVALID, Some("request_timeout")),
        ErrorKind::Unauthenticated => (401, INVALID, Some("invalid_api_key")),
        ErrorKind::Forbidden => (403, "permission_error", Some("forbidden")),
        ErrorKind::NotFound if error.at_param() == Some("model") => (404, INVALID, Some("model_not_found")),
        ErrorKind::NotFound => (404, INVALID, Some("not_found")),
        ErrorKind::MethodNotAllowed => (405, INVALID, Some("method_not_allowed")),
        ErrorKind::Incompatible => (409, INVALID, Some("incompatible")),
        ErrorKind::Overloaded => (429, "rate_limit_error", Some("rate_limit_exceeded")),
        ErrorKind::Unavailable | ErrorKind::Cancelled => (503, SERVER, Some("unavailable")),
        ErrorKind::DeadlineExceeded => (504, SERVER, Some("deadline_exceeded")),
        ErrorKind::Full => (507, SERVER, Some("storage_full")),
        ErrorKind::Internal => (500, SERVER, Some("internal_error")),
    }
}

/// The body of an error's response; also the last event of a stream that fails on its way.
pub fn body(error: &Error) -> ErrorBody {
    let (_, kind, code) = shape(error);
    // The methods that there are stand in a header; no field is at fault.
    let param = error.at_param().filter(|_| error.kind() != ErrorKind::MethodNotAllowed);
    let (param, code) = (param.map(str::to_owned), code.map(str::to_owned));
    ErrorBody { error: ErrorObject { message: error.to_string(), kind: kind.to_owned(), param, code } }
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

impl ResponseError for Error {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(shape(self).0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        if matches!(self.kind(), ErrorKind::Overloaded | ErrorKind::Unavailable) {
            response.insert_header((RETRY_AFTER, "1"));
        }
        if self.kind() == ErrorKind::Unauthenticated {
            response.insert_header((WWW_AUTHENTICATE, "Bearer realm=\"ragstone\""));
        }
        if let (ErrorKind::MethodNotAllowed, Some(methods)) = (self.kind(), self.at_param()) {
            response.insert_header((ALLOW, methods));
        }
        if self.kind() == ErrorKind::Internal {
            tracing::error!(error = %self, "a request failed");
        }
        response.json(body(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_status_and_comes_back_from_it() {
        for (kind, status) in [
            (ErrorKind::InvalidInput, 400),
            (ErrorKind::ContextLength, 400),
            (ErrorKind::TooLarge, 413),
            (ErrorKind::TooSlow, 408),
            (ErrorKind::Unauthenticated, 401),
            (ErrorKind::Forbidden, 403),
            (ErrorKind::NotFound, 404),
            (ErrorKind::MethodNotAllowed, 405),
            (ErrorKind::Incompatible, 409),
            (ErrorKind::Overloaded, 429),
            (ErrorKind::Unavailable, 503),
            (ErrorKind::DeadlineExceeded, 504),
            (ErrorKind::Full, 507),
            (ErrorKind::Internal, 500),
        ] {
            let error = Error::new(kind, "why");
            assert_eq!(error.status_code().as_u16(), status);
            let body = body(&error);
            assert_eq!(body.error.message, "why");
            assert_eq!(kind_of(status, body.error.code.as_deref()), kind);
        }
    }

    #[test]
    fn an_error_that_ends_a_stream_is_known_by_its_code() {
        for kind in [ErrorKind::Overloaded, ErrorKind::Unavailable, ErrorKind::DeadlineExceeded, ErrorKind::Full] {
            assert_eq!(kind_of(500, body(&Error::new(kind, "why")).error.code.as_deref()), kind);
        }
    }

    #[test]
    fn who_is_not_known_hears_how_to_say_it() {
        let response = Error::new(ErrorKind::Unauthenticated, "no key").error_response();
        assert_eq!(response.headers().get("www-authenticate").unwrap(), "Bearer realm=\"ragstone\"");
    }

    #[test]
    fn overload_says_when_to_come_back() {
        let response = Error::new(ErrorKind::Overloaded, "full").error_response();
        assert_eq!(response.headers().get("retry-after").unwrap(), "1");
    }
}
