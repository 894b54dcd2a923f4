//! The HTTP surface: OpenAI's endpoints, collections, what operators look at, and the page.

mod answer;
mod anthropic;
mod asking;
pub mod audit;
pub mod body;
mod cache;
mod chat;
mod collections;
mod completions;
mod cors;
mod embeddings;
pub mod error;
mod events;
pub mod exposition;
mod fields;
mod files;
mod format;
mod generation;
pub mod identity;
mod ingests;
mod keys;
mod known_fields;
mod logprobs;
pub mod mcp;
mod ollama;
mod operations;
mod page;
mod pml;
pub mod quotas;
mod reader;
mod renewal;
mod reply;
mod rerank;
mod responses;
mod schemas;
mod score;
mod shape;
pub mod state;
mod tokenize;
mod told;
mod tools;
mod unread;
mod unsaid;
pub mod visitor;
mod within;

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{HttpServiceFactory, ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::http::header::ORIGIN;
use actix_web::middleware::{Next, from_fn};
use actix_web::web::ServiceConfig;
use actix_web::{App, HttpMessage, HttpRequest, HttpResponse, ResponseError, Route, web};
use ragstone_env::Stopwatch;
use tracing::Instrument;

use self::error::Refusal;
use self::identity::Visitor;
use self::state::State;
use crate::error::{Error, ErrorKind, Result};
use crate::telemetry::trace;

/// All paths of the service.
pub fn app(
    state: web::Data<State>,
) -> App<
    impl ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse<impl MessageBody>,
        Error = actix_web::Error,
        InitError = (),
    >,
> {
    App::new()
        .app_data(state)
        .app_data(within::Paths::default())
        .wrap(from_fn(account))
        .service(resource("/v1/chat/completions", "POST", vec![web::post().to(chat::complete)]))
        .service(resource("/v1/completions", "POST", vec![web::post().to(completions::complete)]))
        // As vLLM and llama.cpp name them.
        .service(resource("/tokenize", "POST", vec![web::post().to(tokenize::tokenize)]))
        .service(resource("/detokenize", "POST", vec![web::post().to(tokenize::detokenize)]))
        .service(resource("/tokenizer_info", "GET", vec![web::get().to(tokenize::info)]))
        .service(resource("/v1/responses", "POST", vec![web::post().to(responses::create)]))
        .configure(responses::paths)
        .service(resource("/v1/messages", "POST", vec![web::post().to(anthropic::create)]))
        .service(resource("/v1/messages/count_tokens", "POST", vec![web::post().to(anthropic::count_tokens)]))
        .configure(ollama::paths)
        .service(resource("/v1/embeddings", "POST", vec![web::post().to(embeddings::embed)]))
        .service(resource("/v1/rerank", "POST", vec![web::post().to(rerank::rerank)]))
        .service(resource("/v2/rerank", "POST", vec![web::post().to(rerank::rerank)]))
        .service(resource("/v1/score", "POST", vec![web::post().to(score::score)]))
        .service(resource("/score", "POST", vec![web::post().to(score::score)]))
        // As llama.cpp names them.
        .service(resource("/props", "GET", vec![web::get().to(operations::props)]))
        .service(resource("/slots", "GET", vec![web::get().to(operations::slots)]))
        .service(resource("/v1/models", "GET", vec![web::get().to(operations::models)]))
        .service(resource("/v1/models/{model:.+}", "GET", vec![web::get().to(operations::model)]))
        .service(resource("/v1/collections", "GET", vec![web::get().to(collections::list)]))
        .service(resource("/v1/collections/{collection}", "DELETE", vec![web::delete().to(collections::delete)]))
        .service(resource(
            "/v1/collections/{collection}/documents",
            "GET, POST",
            vec![web::get().to(collections::documents), web::post().to(collections::upsert)],
        ))
        .service(resource(
            "/v1/collections/{collection}/documents/{document:.+}",
            "GET, DELETE",
            vec![web::get().to(collections::document), web::delete().to(collections::delete_document)],
        ))
        .service(resource("/v1/collections/{collection}/files/{file}", "PUT", vec![web::put().to(files::put)]))
        .service(resource("/openapi.json", "GET", vec![web::get().to(operations::openapi)]))
        .service(resource("/v1/events", "GET", vec![web::get().to(events::watch)]))
        .service(resource("/v1/settings", "GET", vec![web::get().to(operations::settings)]))
        .service(resource("/v1/collections/{collection}/search", "POST", vec![web::post().to(collections::search)]))
        .service(resource("/v1/collections/{collection}/ingest", "POST", vec![web::post().to(collections::ingest)]))
        .service(resource(
            "/v1/collections/{collection}/renewal",
            "GET, POST, DELETE",
            vec![web::get().to(renewal::status), web::post().to(renewal::begin), web::delete().to(renewal::cancel)],
        ))
        .configure(ingests::paths)
        .configure(keys::paths)
        .configure(quotas::paths)
        .service(resource("/mcp", "POST", vec![web::post().to(mcp::post)]))
        .configure(cache::paths)
        .configure(schemas::paths)
        .configure(page::paths)
        .configure(health_paths)
        .default_service(web::to(not_found))
}

/// Health and metrics alone.
pub fn health_app(
    state: web::Data<State>,
) -> App<
    impl ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse<impl MessageBody>,
        Error = actix_web::Error,
        InitError = (),
    >,
> {
    App::new().app_data(state).wrap(from_fn(guard)).configure(health_paths).default_service(web::to(not_found))
}

fn health_paths(config: &mut ServiceConfig) {
    config
        .service(resource("/healthz", "GET", vec![web::get().to(operations::healthz)]))
        // As vLLM and llama.cpp name it.
        .service(resource("/health", "GET", vec![web::get().to(operations::healthz)]))
        .service(resource("/readyz", "GET", vec![web::get().to(operations::readyz)]))
        .service(resource("/metrics", "GET", vec![web::get().to(operations::metrics)]));
}

/// A path with its methods, for those who may use them; others get a 405 in the words of its protocol.
fn resource(path: &'static str, methods: &'static str, routes: Vec<Route>) -> impl HttpServiceFactory + 'static {
    let made = routes.into_iter().fold(web::resource(path), actix_web::Resource::route);
    made.wrap(from_fn(move |request: ServiceRequest, next: Next<BoxBody>| async move {
        let has_method = methods.split(", ").any(|method| method == request.method().as_str());
        // Which methods there are is no secret.
        let admitted = if has_method { admitted(&request, path) } else { Err(no_such_method(&request, methods)) };
        audit::note(&request, admitted.as_ref().ok());
        match admitted {
            Ok(visitor) => {
                let state = request.app_data::<web::Data<State>>();
                if let Some(refused) = state.and_then(|state| quotas::begin(state, &visitor, path)) {
                    return Ok(request.into_response(refused));
                }
                let is_tenant = visitor.bound().is_some();
                request.extensions_mut().insert(visitor);
                let response = next.call(request).await?;
                Ok(if is_tenant { told_to_tenant(response) } else { response })
            }
            Err(error) => Ok(request.into_response(refused_in_words(path, error))),
        }
    }))
}

/// What whoever is not let in is told, in the words of the path's protocol: official clients read nothing else.
fn refused_in_words(path: &str, error: Error) -> HttpResponse {
    let body = match path {
        _ if path.starts_with("/v1/messages") => anthropic::error_body(&error),
        _ if path.starts_with("/api/") => ollama::lines::error_body(&error),
        _ => return Refusal(error).error_response(),
    };
    Refusal(error).error_response().into_parts().0.set_body(BoxBody::new(body.to_string()))
}

/// What failed here is told to a tenant without what is the owner's and others' alone.
fn told_to_tenant(response: ServiceResponse<BoxBody>) -> ServiceResponse<BoxBody> {
    let refusal = response.response().error().and_then(|error| error.as_error::<Refusal>());
    let number = response.request().app_data::<web::Data<State>>().map_or(0, |state| state.env.random_u64());
    match refusal.map(|refusal| refusal.to_tenant(number)) {
        Some(told) => response.into_response(told.error_response()),
        None => response,
    }
}

fn no_such_method(request: &ServiceRequest, methods: &'static str) -> Error {
    let message = format!("{} {} is not allowed; use {methods}", request.method(), request.path());
    Error::of_field(ErrorKind::MethodNotAllowed, methods, message)
}

fn admitted(request: &ServiceRequest, path: &str) -> Result<Visitor> {
    let state = request.app_data::<web::Data<State>>().ok_or_else(|| Error::internal("the service has no state"))?;
    identity::admit(state, request.request(), path)
}

async fn not_found(request: HttpRequest) -> HttpResponse {
    let error = Error::new(ErrorKind::NotFound, format!("no such path: {} {}", request.method(), request.path()));
    refused_in_words(request.path(), error)
}

/// Checks where requests come from, counts, measures, and gives every one its span.
async fn account(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    let begun = Stopwatch::start();
    let Some(state) = request.app_data::<web::Data<State>>().cloned() else {
        return Err(Refusal(Error::internal("the service has no state")).into());
    };
    let in_flight = state.clone().into_inner().enter();
    request.extensions_mut().insert(in_flight);
    let method = method_label(request.method());
    let route = request.match_pattern();
    let span = trace::request_span(method, route.as_deref(), request.path(), request.headers());
    let path = route.unwrap_or_else(|| "other".to_owned());
    let watched = audit::Watched::begin(&state, &request, &path);
    let origin = request.headers().get(ORIGIN).cloned();
    let response = match state.allowed.check(request.method(), request.headers()) {
        Ok(()) => {
            let mut response = match cors::preflight(request.method(), request.headers()) {
                Some(response) => request.into_response(response).map_into_boxed_body(),
                None => next.call(request).instrument(span.clone()).await?.map_into_boxed_body(),
            };
            cors::let_read(origin, response.headers_mut());
            unread::paced(&state, response)
        }
        Err(error) => {
            let refused = refused_in_words(request.path(), error);
            let response = request.into_response(refused);
            unread::paced(&state, response.map_into_boxed_body())
        }
    };
    let (status, elapsed) = (response.status().as_u16(), begun.elapsed());
    if let Some(watched) = watched {
        watched.answered(status);
    }
    trace::end_request(&span, status);
    span.in_scope(|| tracing::debug!(status, ms = elapsed.as_secs_f64() * 1e3, "answered"));
    let labels = [("path", path.clone()), ("method", method.to_owned()), ("status", status.to_string())];
    metrics::counter!("ragstone_requests_total", &labels).increment(1);
    metrics::histogram!("ragstone_request_seconds", "path" => path).record(elapsed.as_secs_f64());
    Ok(response)
}

/// Lets through what comes from where it may.
async fn guard(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    let Some(state) = request.app_data::<web::Data<State>>().cloned() else {
        return Err(Refusal(Error::internal("the service has no state")).into());
    };
    match state.allowed.check(request.method(), request.headers()) {
        Ok(()) => Ok(next.call(request).await?.map_into_left_body()),
        Err(error) => Ok(request.into_response(Refusal(error).error_response()).map_into_right_body()),
    }
}

/// A client makes up methods as it likes; every label value is kept for ever.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::PUT => "PUT",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
