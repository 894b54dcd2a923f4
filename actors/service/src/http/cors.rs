//! What a browser asks before a page of another site may read an answer (cross-origin resource sharing, Fetch standard, section 3.2). Whose pages
//! may is [`super::visitor`]'s to say.

use actix_web::HttpResponse;
use actix_web::http::Method;
use actix_web::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};

/// Headers of answers that a page may read.
const EXPOSED: HeaderValue = HeaderValue::from_static("mcp-session-id, retry-after, x-ragstone-ignored");
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, DELETE");
/// Seconds for which a browser need not ask again.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The answer to a browser that asks whether a page may send what it wants to; `None` where the request is none of these.
pub fn preflight(method: &Method, headers: &HeaderMap) -> Option<HttpResponse> {
    if method != Method::OPTIONS
        || !headers.contains_key(ORIGIN)
        || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    {
        return None;
    }
    let mut response = HttpResponse::NoContent().finish();
    let told = response.headers_mut();
    told.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    told.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    // Keys come in headers of several names.
    if let Some(wanted) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        told.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    Some(response)
}

/// Lets the page that sent the request, if one did, read its answer. For one that was let through alone.
pub fn let_read(request: Option<HeaderValue>, response: &mut HeaderMap) {
    if let Some(origin) = request {
        response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        response.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
    // Also of an answer to nobody's page: a cache must not give it to one.
    response.append(VARY, HeaderValue::from_static("origin"));
}
