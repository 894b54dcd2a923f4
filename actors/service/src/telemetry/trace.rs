//! A request's span, and what OpenTelemetry's conventions want to know of it.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

use actix_web::http::header::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Status, TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use ragstone_actors::{Finish, ReuseReport};
use tracing::Span;
use tracing::field::{Empty, display};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::conversations::told_id;

/// The length of a header that W3C Trace Context asks everybody to take.
const MOST_BYTES: usize = 512;

/// Whether spans go to a collector. One subscriber serves the process, and so does this.
static IS_EXPORTED: AtomicBool = AtomicBool::new(false);

/// From now on requests' spans have what a collector wants of them.
pub fn export() {
    IS_EXPORTED.store(true, Ordering::Relaxed);
}

/// Of a request for `path`, which the router knows as `route`. It goes on with the trace of whoever sent it (W3C Trace Context), and its
/// trace stands in its log lines.
pub fn request_span(method: &'static str, route: Option<&str>, path: &str, headers: &HeaderMap) -> Span {
    if !IS_EXPORTED.load(Ordering::Relaxed) {
        let path = told_path(route, path);
        return tracing::info_span!("request", method, path = &*path);
    }
    // Neither the path nor the query: names of files and documents stand there, as long as a client likes.
    let name = route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
    let span = tracing::info_span!(
        "request",
        otel.name = name,
        otel.kind = "server",
        http.request.method = method,
        http.route = route,
        trace_id = Empty
    );
    let sender = TraceContextPropagator::new().extract(&Headers(headers));
    // A request within another one has no header, and is a step of that.
    if sender.has_active_span() {
        // It fails where there is no span to be exported.
        let _ = span.set_parent(sender);
    }
    let context = span.context().span().span_context().clone();
    if context.is_valid() {
        span.record("trace_id", display(context.trace_id()));
    }
    span
}

/// Paths behind which ids stand that whoever knows them may use.
const WITH_IDS: [&str; 2] = ["/v1/responses/", "/v1/conversations/"];

/// A path as log lines have it, with the beginnings of such ids.
fn told_path<'a>(route: Option<&str>, path: &'a str) -> Cow<'a, str> {
    let has_ids = |path: &str| WITH_IDS.iter().any(|start| path.contains(start));
    // Also one that the router does not know, as a client's mistake has an id in it, too; and one that is written in another way.
    if has_ids(path) || route.is_some_and(has_ids) {
        return path.split('/').map(told_id).collect::<Vec<_>>().join("/").into();
    }
    path.into()
}

/// A request was answered.
pub fn end_request(span: &Span, status: u16) {
    span.set_attribute("http.response.status_code", i64::from(status));
    if status >= 500 {
        span.set_attribute("error.type", status.to_string());
        span.set_status(Status::error(""));
    }
}

/// What a question asks for, by OpenTelemetry's conventions for generative AI. Neither its words nor the answer's.
pub fn describe_question(operation: &'static str, model: &str, max_tokens: usize, temperature: f32) {
    if !IS_EXPORTED.load(Ordering::Relaxed) {
        return;
    }
    let span = Span::current();
    span.set_attribute("gen_ai.operation.name", operation);
    span.set_attribute("gen_ai.provider.name", "ragstone");
    span.set_attribute("gen_ai.request.model", model.to_owned());
    span.set_attribute("gen_ai.request.max_tokens", max_tokens as i64);
    span.set_attribute("gen_ai.request.temperature", f64::from(temperature));
}

/// Where the KV of a question's prompt came from, and where the time to its first token went.
pub fn describe_prompt(report: &ReuseReport) {
    if !IS_EXPORTED.load(Ordering::Relaxed) {
        return;
    }
    let span = Span::current();
    span.set_attribute("ragstone.ttft_ms", report.ttft.total_ms);
    span.set_attribute("ragstone.retrieve_ms", report.ttft.retrieve_ms);
    let tokens = &report.tokens;
    for (key, count) in [
        ("ragstone.tokens.exact", tokens.exact),
        ("ragstone.tokens.blended", tokens.blended),
        ("ragstone.tokens.recomputed", tokens.recomputed),
        ("ragstone.tokens.computed", tokens.computed),
    ] {
        span.set_attribute(key, i64::from(count));
    }
}

/// How the answers to a question ended.
pub fn describe_answers<'a>(finished: impl IntoIterator<Item = &'a Finish>) {
    if !IS_EXPORTED.load(Ordering::Relaxed) {
        return;
    }
    let (mut prompt, mut completion, mut reasons) = (0, 0, Vec::new());
    for finish in finished {
        prompt = finish.usage.prompt_tokens;
        completion += finish.usage.completion_tokens;
        reasons.push(opentelemetry::StringValue::from(finish.reason.name()));
    }
    let span = Span::current();
    span.set_attribute("gen_ai.usage.input_tokens", i64::from(prompt));
    span.set_attribute("gen_ai.usage.output_tokens", i64::from(completion));
    span.set_attribute("gen_ai.response.finish_reasons", opentelemetry::Value::Array(reasons.into()));
}

/// The names and values of a request's head.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key)?.to_str().ok()?;
        (value.len() <= MOST_BYTES).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_have_the_beginnings_of_ids_that_open_something() {
        let id = "0123456789abcdef0123456789abcdef";
        for (route, path, told) in [
            (Some("/v1/responses/{response}"), format!("/v1/responses/resp_{id}"), "/v1/responses/resp_01234567…"),
            (
                Some("/v1/conversations/{conversation}/items/{item}"),
                format!("/v1/conversations/conv_{id}/items/msg_{id}_0"),
                "/v1/conversations/conv_01234567…/items/msg_012345678…",
            ),
            (Some("/v1/responses/{response}"), format!("/v1/%72esponses/resp_{id}"), "/v1/%72esponses/resp_01234567…"),
            (None, format!("/v1/conversations/conv_{id}/"), "/v1/conversations/conv_01234567…/"),
            (Some("/v1/responses"), "/v1/responses".to_owned(), "/v1/responses"),
            (None, "/v1/collections/a-long-name-of-one/search".to_owned(), "/v1/collections/a-long-name-of-one/search"),
        ] {
            assert_eq!(told_path(route, &path), told);
        }
    }
}
