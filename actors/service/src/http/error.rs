//! Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}` with the matching status.

use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use actix_web::{HttpResponse, ResponseError};

use crate::api::error::{ErrorBody, ErrorObject};
use crate::error::{Error, ErrorKind};

/// An error on its way out: the response that it is.
#[derive(Debug)]
pub struct Refusal(pub Error);

/// What a path answers.
pub type Answered<T = HttpResponse> = Result<T, Refusal>;

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Refusal {
    /// What a tenant hears of it. What failed here, a disk, a bucket, a defect, is the service's owner's business: its text may name files,
    /// objects and others' data, and goes into the log, under a number that the tenant can tell the owner.
    pub fn to_tenant(&self, number: u64) -> Self {
        let error = &self.0;
        let is_fault = match error.kind() {
            ErrorKind::Internal | ErrorKind::Corrupt | ErrorKind::DeviceLost => true,
            ErrorKind::Full | ErrorKind::Unavailable => std::error::Error::source(error).is_some(),
            _ => false,
        };
        if !is_fault {
            return Self(error.again());
        }
        let fault = format!("{number:016x}");
        tracing::error!(%error, fault, "a request of a tenant failed");
        let what = match error.kind() {
            ErrorKind::Full => "the service's disk is full: its owner has to free space",
            ErrorKind::Unavailable => "a disk or a bucket of the service does not answer; try again",
            _ => "this request met a fault of the service, which goes on",
        };
        let message = format!("{what}; tell the service's owner if it stays: the log says why, at fault {fault}");
        Self(Error::new(error.kind(), message))
    }
}

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
        ErrorKind::NotFound if error.at_field() == Some("model") => (404, INVALID, Some("model_not_found")),
        ErrorKind::NotFound => (404, INVALID, Some("not_found")),
        ErrorKind::MethodNotAllowed => (405, INVALID, Some("method_not_allowed")),
        ErrorKind::Incompatible | ErrorKind::InvalidModel | ErrorKind::UnsupportedModel => {
            (409, INVALID, Some("incompatible"))
        }
        ErrorKind::Overloaded => (429, "rate_limit_error", Some("rate_limit_exceeded")),
        ErrorKind::Unavailable | ErrorKind::Cancelled => (503, SERVER, Some("unavailable")),
        ErrorKind::DeadlineExceeded => (504, SERVER, Some("deadline_exceeded")),
        ErrorKind::Full => (507, SERVER, Some("storage_full")),
        ErrorKind::Corrupt | ErrorKind::DeviceLost | ErrorKind::Internal => (500, SERVER, Some("internal_error")),
    }
}

/// The body of an error's response; also the last event of a stream that fails on its way.
pub fn body(error: &Error) -> ErrorBody {
    let (_, kind, code) = shape(error);
    // The methods that there are stand in a header; no field is at fault.
    let param = error.at_field().filter(|_| error.kind() != ErrorKind::MethodNotAllowed);
    let (param, code) = (param.map(str::to_owned), code.map(str::to_owned));
    ErrorBody { error: ErrorObject { message: error.to_string(), kind: kind.to_owned(), param, code } }
}

impl ResponseError for Refusal {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(shape(&self.0).0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        let (status, error) = (self.status_code(), &self.0);
        let mut response = HttpResponse::build(status);
        if let Some(wait) = error.retry_after() {
            response.insert_header((RETRY_AFTER, wait.as_secs().to_string()));
        }
        if error.kind() == ErrorKind::Unauthenticated {
            response.insert_header((WWW_AUTHENTICATE, "Bearer realm=\"ragstone\""));
        }
        if let (ErrorKind::MethodNotAllowed, Some(methods)) = (error.kind(), error.at_field()) {
            response.insert_header((ALLOW, methods));
        }
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(%error, "a request failed");
        }
        response.json(body(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::error::kind_of;

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
            let body = body(&error);
            assert_eq!(Refusal(error).status_code().as_u16(), status);
            assert_eq!(body.error.message, "why");
            assert_eq!(kind_of(status, body.error.code.as_deref()), kind);
        }
    }

    /// Those that clients need not tell apart.
    #[test]
    fn other_kinds_have_the_status_of_one_that_comes_back() {
        for (kind, as_if) in [
            (ErrorKind::InvalidModel, ErrorKind::Incompatible),
            (ErrorKind::UnsupportedModel, ErrorKind::Incompatible),
            (ErrorKind::Corrupt, ErrorKind::Internal),
            (ErrorKind::DeviceLost, ErrorKind::Internal),
        ] {
            assert_eq!(shape(&Error::new(kind, "why")), shape(&Error::new(as_if, "why")), "{kind:?}");
        }
        // Without a header that asks to come back: nobody is there to do it.
        let response = Refusal(Error::new(ErrorKind::Cancelled, "gone")).error_response();
        assert_eq!((response.status().as_u16(), response.headers().get("retry-after")), (503, None));
    }

    #[test]
    fn an_error_that_ends_a_stream_is_known_by_its_code() {
        for kind in [ErrorKind::Overloaded, ErrorKind::Unavailable, ErrorKind::DeadlineExceeded, ErrorKind::Full] {
            assert_eq!(kind_of(500, body(&Error::new(kind, "why")).error.code.as_deref()), kind);
        }
    }

    #[test]
    fn a_tenant_hears_of_a_fault_and_not_of_files_and_objects() {
        let cause = || std::io::Error::other("denied");
        for kind in [ErrorKind::Internal, ErrorKind::Corrupt, ErrorKind::Unavailable, ErrorKind::Full] {
            let told = Refusal(Error::new(kind, "object kv/v1/other").with_source(cause())).to_tenant(255);
            assert_eq!(told.0.kind(), kind);
            let text = told.to_string();
            assert!(!text.contains("kv/v1") && text.contains("00000000000000ff"), "{text}");
        }
        for own in [
            Error::invalid_field("query", "too long").with_source(cause()),
            Error::new(ErrorKind::Unavailable, "the service is loading"),
            Error::of_field(ErrorKind::NotFound, "collection", "no such"),
        ] {
            let (text, field) = (own.to_string(), own.at_field().map(str::to_owned));
            let told = Refusal(own).to_tenant(1);
            assert_eq!((told.to_string(), told.0.at_field().map(str::to_owned)), (text, field));
        }
    }

    #[test]
    fn who_is_not_known_hears_how_to_say_it() {
        let response = Refusal(Error::new(ErrorKind::Unauthenticated, "no key")).error_response();
        assert_eq!(response.headers().get("www-authenticate").unwrap(), "Bearer realm=\"ragstone\"");
    }

    #[test]
    fn overload_says_when_to_come_back() {
        let response = Refusal(Error::new(ErrorKind::Overloaded, "full")).error_response();
        assert_eq!(response.headers().get("retry-after").unwrap(), "1");
    }
}
