//! `/v1/collections…`: documents in and out, search, and ingest of files by the data folder's owner.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use futures::StreamExt;
use ragstone_actors::MAX_QUERY_BYTES;
use ragstone_actors::library::{Removed, Withdrawn};
use ragstone_storage::corpus::{Document, SearchMode, SearchOptions};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::event;
use super::body::Incoming;
use super::fields::Fields;
use crate::error::{Error, Result};
use crate::lanes::Work;
use crate::service::{Audience, State};

/// Documents of one upsert. Their text is bounded by the body.
const MAX_DOCUMENTS: usize = 1000;

/// All collections.
pub async fn list(state: web::Data<State>, request: HttpRequest) -> Result<HttpResponse> {
    let corpus = state.opened()?.ragstone.corpus().clone();
    let data = state.run(&request, Work::Look, async move { corpus.collections().await }).await??;
    Ok(HttpResponse::Ok().json(json!({ "object": "list", "data": data })))
}

/// Removes a collection, and its KV. For the data folder's owner.
pub async fn delete(state: web::Data<State>, request: HttpRequest, path: web::Path<String>) -> Result<HttpResponse> {
    state.check_owner(&request)?;
    let library = state.opened()?.ragstone.library().clone();
    let name = path.into_inner();
    let wanted = name.clone();
    let removed = state.run(&request, Work::Change, async move { library.delete_collection(&wanted).await }).await??;
    Ok(HttpResponse::Ok().json(deleted(&name, &removed)))
}

fn deleted(id: &str, removed: &Removed) -> Value {
    json!({
        "id": id, "deleted": true, "passages_removed": removed.passages_removed,
        "entries_removed": removed.kv.entries_removed, "copies_removed": removed.kv.copies_removed,
        "bytes_removed": removed.kv.bytes_removed,
    })
}

/// Which documents to list.
#[derive(Deserialize)]
#[serde(default)]
pub struct Page {
    offset: usize,
    limit: usize,
}

impl Default for Page {
    fn default() -> Self {
        Self { offset: 0, limit: 100 }
    }
}

/// A page of a collection's documents.
pub async fn documents(state: web::Data<State>, request: HttpRequest, path: web::Path<String>) -> Result<HttpResponse> {
    let page = web::Query::<Page>::from_query(request.query_string())
        .map_err(|error| Error::invalid(format!("query: {error}; use ?offset=0&limit=100")))?
        .into_inner();
    let limit = page.limit.min(1000);
    let corpus = state.opened()?.ragstone.corpus().clone();
    let name = path.into_inner();
    // One more than asked for shows whether there is more.
    let mut data =
        state.run(&request, Work::Look, async move { corpus.documents(&name, page.offset, limit + 1).await }).await??;
    let has_more = data.len() > limit;
    data.truncate(limit);
    Ok(HttpResponse::Ok().json(json!({ "object": "list", "data": data, "has_more": has_more })))
}

/// Adds or replaces documents, and removes the KV of what they do not say any more: `{"documents": [{id?, title?, text, source?, metadata?}, …]}`.
pub async fn upsert(
    state: web::Data<State>,
    request: HttpRequest,
    path: web::Path<String>,
    incoming: Incoming,
) -> Result<HttpResponse> {
    let opened = state.opened()?;
    let mut fields = Fields::read(incoming).await?;
    let documents: Vec<Document> = fields.need("documents")?;
    fields.finish()?;
    if documents.len() > MAX_DOCUMENTS {
        let message = format!("`documents` holds {}; send at most {MAX_DOCUMENTS} at once", documents.len());
        return Err(Error::param("documents", message));
    }
    let library = opened.ragstone.library().clone();
    let name = path.into_inner();
    // Dropped with this request: the client left, and what is not committed yet is not wanted any more.
    let (_client, gone) = tokio::sync::watch::channel(());
    let wanted = move || gone.has_changed().is_ok();
    let done = state.run(&request, Work::Change, async move { library.upsert(&name, documents, wanted).await });
    let (report, kv) = done.await??;
    Ok(HttpResponse::Ok().json(upserted(json!(report), &kv)))
}

/// What an upsert did to the corpus, and what of the KV of texts that are not said any more.
pub fn upserted(mut report: Value, kv: &Withdrawn) -> Value {
    (report["entries_removed"], report["copies_removed"]) = (kv.entries_removed.into(), kv.copies_removed.into());
    report["bytes_removed"] = kv.bytes_removed.into();
    report
}

/// One document with its passages.
pub async fn document(
    state: web::Data<State>,
    request: HttpRequest,
    path: web::Path<(String, String)>,
) -> Result<HttpResponse> {
    let corpus = state.opened()?.ragstone.corpus().clone();
    let (name, id) = path.into_inner();
    let document = state.run(&request, Work::Look, async move { corpus.document(&name, &id).await }).await??;
    Ok(HttpResponse::Ok().json(document))
}

/// Removes a document, and its KV. For the data folder's owner.
pub async fn delete_document(
    state: web::Data<State>,
    request: HttpRequest,
    path: web::Path<(String, String)>,
) -> Result<HttpResponse> {
    state.check_owner(&request)?;
    let library = state.opened()?.ragstone.library().clone();
    let (name, id) = path.into_inner();
    let document = id.clone();
    let removed =
        state.run(&request, Work::Change, async move { library.delete_document(&name, &document).await }).await??;
    Ok(HttpResponse::Ok().json(deleted(&id, &removed)))
}

/// The passages that answer a query best: `{"query", "top_k"?, "mode"?}`.
pub async fn search(
    state: web::Data<State>,
    request: HttpRequest,
    path: web::Path<String>,
    incoming: Incoming,
) -> Result<HttpResponse> {
    let opened = state.opened()?;
    let mut fields = Fields::read(incoming).await?;
    let query: String = fields.need("query")?;
    let top_k = fields.take("top_k")?.unwrap_or(state.settings.top_k);
    let mode: SearchMode = fields.take("mode")?.unwrap_or_default();
    fields.finish()?;
    if query.len() > MAX_QUERY_BYTES {
        let bytes = query.len();
        return Err(Error::param("query", format!("`query` has {bytes} bytes; use at most {MAX_QUERY_BYTES}")));
    }
    if !(1..=1000).contains(&top_k) {
        return Err(Error::param("top_k", format!("`top_k` is {top_k}; use 1 to 1000")));
    }
    let corpus = opened.ragstone.corpus().clone();
    let name = path.into_inner();
    let options = SearchOptions { top_k, mode };
    let data = state.run(&request, Work::Search, async move { corpus.search(&name, &query, &options).await }).await??;
    Ok(HttpResponse::Ok().json(json!({ "object": "list", "data": data })))
}

/// Ingests files of this machine, for whoever can read the data folder: `{"paths": […], "prune"?}`. The job is journaled first
/// and goes on if the caller leaves; the events tell how far it is.
pub async fn ingest(
    state: web::Data<State>,
    request: HttpRequest,
    path: web::Path<String>,
    incoming: Incoming,
) -> Result<HttpResponse> {
    state.check_owner(&request)?;
    let opened = state.opened()?;
    let mut fields = Fields::read(incoming).await?;
    let paths: Vec<std::path::PathBuf> = fields.need("paths")?;
    let prune = fields.take("prune")?.unwrap_or(false);
    fields.finish()?;
    if paths.iter().any(|path| !path.is_absolute()) {
        return Err(Error::param("paths", "`paths` must be absolute"));
    }
    let job = opened.ingestor.begin(&path.into_inner(), paths, prune).await?;
    if state.audience() == Audience::Private {
        // Nobody else will.
        opened.ingestor.resume(Some(job.id)).await?;
    }
    let events = opened.ingestor.run(job).map(|progress| {
        let data = progress.map_or_else(|error| super::error::body(&error), |event| json!(event));
        Ok::<_, std::convert::Infallible>(event(&data))
    });
    Ok(HttpResponse::build(StatusCode::OK).content_type("text/event-stream; charset=utf-8").streaming(events))
}
