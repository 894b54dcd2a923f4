//! `/v1/collections…`: documents in and out, search, and ingest of files by the data folder's owner.

use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use futures::StreamExt;
use ragstone_actors::library::{Library, Removed};
use ragstone_actors::{InlineDocument, MAX_CANDIDATES, MAX_QUERY_BYTES, Rerank, Reuse};
use ragstone_storage::corpus::{Hit, SearchOptions};

use super::answer::event;
use super::body::Incoming;
use super::fields::Fields;
use super::identity::Visitor;
use crate::api::collections::{
    Deleted, DocumentsQuery, FoundPassages, Ingest, Search, Upsert, Upserted, WholeDocument,
};
use crate::api::{List, ListObject, Page};
use crate::error::{Error, Result};
use crate::http::error::Answered;
use crate::http::state::{Audience, InFlight, State, caller};
use crate::lanes::Work;

/// Documents of one upsert. Their text is bounded by the body.
const MAX_DOCUMENTS: usize = 1000;

/// All collections that whoever asks may use.
pub async fn list(state: web::Data<State>, request: HttpRequest) -> Answered {
    let corpus = state.opened()?.ragstone.corpus().clone();
    let mut data = state.run(&request, Work::Look, async move { corpus.collections().await }).await??;
    let visitor = Visitor::of(&request)?;
    data.retain_mut(|collection| match visitor.shown(&collection.name) {
        Some(name) => {
            collection.name = name;
            true
        }
        None => false,
    });
    Ok(HttpResponse::Ok().json(List::from(data)))
}

/// Removes a collection, and its KV. For the data folder's owner, and keys that may write into it.
pub async fn delete(state: web::Data<State>, request: HttpRequest, path: web::Path<String>) -> Answered {
    let name = path.into_inner();
    let Changed { collection, asks, library } = Changed::of(&state, &request, &name)?;
    let removed = state
        .run(&request, Work::Change, async move { library.delete_collection(&collection, asks.as_deref()).await })
        .await??;
    Ok(HttpResponse::Ok().json(deleted(&name, removed)))
}

fn deleted(id: &str, removed: Removed) -> Deleted {
    Deleted { id: id.to_owned(), deleted: true, removed }
}

/// A collection that a request changes.
pub struct Changed {
    /// Its full name.
    pub collection: String,
    /// The tenant that hears of its own KV alone.
    pub asks: Option<String>,
    pub library: Library,
}

impl Changed {
    /// That of the name `given` in `request`.
    ///
    /// # Errors
    /// `Forbidden`, and `Unavailable` while the service is loading.
    pub fn of(state: &State, request: &HttpRequest, given: &str) -> Result<Self> {
        let ragstone = &state.opened()?.ragstone;
        let visitor = Visitor::of(request)?;
        let collection = visitor.own_collection(given)?;
        let asks = visitor.bound().map(|key| key.record.tenant.clone());
        Ok(Self { collection, asks, library: ragstone.library().clone() })
    }
}

/// A page of a collection's documents.
pub async fn documents(state: web::Data<State>, request: HttpRequest, path: web::Path<String>) -> Answered {
    let page = web::Query::<DocumentsQuery>::from_query(request.query_string())
        .map_err(|error| Error::invalid_input(format!("query: {error}; use ?offset=0&limit=100")))?
        .into_inner();
    let limit = page.limit.min(1000);
    let corpus = state.opened()?.ragstone.corpus().clone();
    let name = Visitor::of(&request)?.collection(&path.into_inner())?;
    // One more than asked for shows whether there is more.
    let mut data =
        state.run(&request, Work::Look, async move { corpus.documents(&name, page.offset, limit + 1).await }).await??;
    let has_more = data.len() > limit;
    data.truncate(limit);
    Ok(HttpResponse::Ok().json(Page { object: ListObject::List, data, has_more }))
}

/// Adds or replaces documents, and removes the KV of what they do not say any more: `{"documents": [{id?, title?, text, source?, metadata?}, …]}`.
pub async fn upsert(
    state: web::Data<State>,
    request: HttpRequest,
    path: web::Path<String>,
    incoming: Incoming,
) -> Answered {
    let Changed { collection, asks, library } = Changed::of(&state, &request, &path.into_inner())?;
    let Upsert { documents } = Fields::whole(incoming).await?;
    if documents.len() > MAX_DOCUMENTS {
        let message = format!("`documents` holds {}; send at most {MAX_DOCUMENTS} at once", documents.len());
        return Err(Error::invalid_field("documents", message).into());
    }
    // Dropped with this request: the client left, and what is not committed yet is not wanted any more.
    let (_client, gone) = tokio::sync::watch::channel(());
    let wanted = move || gone.has_changed().is_ok();
    let upserting = async move { library.upsert(&collection, documents, asks.as_deref(), wanted).await };
    let done = state.run(&request, Work::Change, upserting);
    let (report, kv) = done.await??;
    Ok(HttpResponse::Ok().json(Upserted { report, kv, not_read: None }))
}

/// One document with its passages.
pub async fn document(state: web::Data<State>, request: HttpRequest, path: web::Path<(String, String)>) -> Answered {
    let corpus = state.opened()?.ragstone.corpus().clone();
    let (given, id) = path.into_inner();
    let name = Visitor::of(&request)?.collection(&given)?;
    let mut document = state.run(&request, Work::Look, async move { corpus.document(&name, &id).await }).await??;
    document.passages.iter_mut().for_each(|passage| passage.collection.clone_from(&given));
    Ok(HttpResponse::Ok().json(WholeDocument::from(document)))
}

/// Removes a document, and its KV. For the data folder's owner, and keys that may write into the collection.
pub async fn delete_document(
    state: web::Data<State>,
    request: HttpRequest,
    path: web::Path<(String, String)>,
) -> Answered {
    let (name, id) = path.into_inner();
    let Changed { collection, asks, library } = Changed::of(&state, &request, &name)?;
    let document = id.clone();
    let removing = async move { library.delete_document(&collection, &document, asks.as_deref()).await };
    let removed = state.run(&request, Work::Change, removing).await??;
    Ok(HttpResponse::Ok().json(deleted(&id, removed)))
}

/// The passages that answer a query best: `{"query", "top_k"?, "mode"?, "rerank"?, "filter"?}`.
pub async fn search(
    state: web::Data<State>,
    request: HttpRequest,
    path: web::Path<String>,
    incoming: Incoming,
) -> Answered {
    let opened = state.opened()?;
    let given = path.into_inner();
    let name = Visitor::of(&request)?.collection(&given)?;
    let Search { query, top_k, mode, rerank, filter } = Fields::whole(incoming).await?;
    let (top_k, rerank) = (top_k.unwrap_or(state.settings.top_k), rerank.unwrap_or(state.settings.rerank));
    let mode = mode.unwrap_or_default();
    if query.len() > MAX_QUERY_BYTES {
        let bytes = query.len();
        return Err(
            Error::invalid_field("query", format!("`query` has {bytes} bytes; use at most {MAX_QUERY_BYTES}")).into()
        );
    }
    if !(1..=1000).contains(&top_k) {
        return Err(Error::invalid_field("top_k", format!("`top_k` is {top_k}; use 1 to 1000")).into());
    }
    if rerank > MAX_CANDIDATES {
        return Err(
            Error::invalid_field("rerank", format!("`rerank` is {rerank}; use at most {MAX_CANDIDATES}")).into()
        );
    }
    let corpus = opened.ragstone.corpus().clone();
    let options = SearchOptions { top_k: if rerank > 0 { rerank.max(top_k) } else { top_k }, mode, filter };
    let asked = query.clone();
    let searching = async move {
        let words_only = corpus.built_with(&name).await?.words_only;
        Ok::<_, Error>((corpus.search(&name, &asked, &options).await?, words_only))
    };
    let (mut data, words_only) = state.run(&request, Work::Search, searching).await??;
    if rerank > 0 && !data.is_empty() {
        data = in_order(&state, &request, query, data).await?;
        data.truncate(top_k);
    }
    data.iter_mut().for_each(|hit| hit.passage.collection.clone_from(&given));
    Ok(HttpResponse::Ok().json(FoundPassages { object: ListObject::List, data, words_only }))
}

/// What a search found in the reranker's order, with its scores.
async fn in_order(state: &State, request: &HttpRequest, query: String, mut hits: Vec<Hit>) -> Result<Vec<Hit>> {
    let document = |hit: &Hit| InlineDocument { title: hit.passage.title.clone(), text: hit.passage.text.clone() };
    let asked = Rerank {
        query,
        documents: hits.iter().map(document).collect(),
        by: None,
        reuse: Reuse::Auto,
        tenant: Visitor::of(request)?.tenant(None, "tenant")?,
        caller: caller(request),
        deadline: Duration::from_secs(state.settings.deadline_s),
    };
    let ragstone = state.opened()?.ragstone.clone();
    let reranked = state.on_runtime(async move { ragstone.rerank(asked).await }).await??;
    hits.iter_mut().enumerate().for_each(|(index, hit)| hit.score = reranked.relevance(index));
    let mut left: Vec<Option<Hit>> = hits.into_iter().map(Some).collect();
    Ok(reranked.order().into_iter().filter_map(|index| left[index].take()).collect())
}

/// Ingests files of this machine, for whoever can read the data folder: `{"paths": […], "prune"?, "only"?}`. The job is journaled first
/// and goes on if the caller leaves; the events tell how far it is.
pub async fn ingest(
    state: web::Data<State>,
    request: HttpRequest,
    path: web::Path<String>,
    incoming: Incoming,
) -> Answered {
    let opened = state.opened()?;
    let Ingest { paths, prune, only } = Fields::whole(incoming).await?;
    if paths.iter().any(|path| !path.is_absolute()) {
        return Err(Error::invalid_field("paths", "`paths` must be absolute").into());
    }
    let name = Visitor::of(&request)?.collection(&path.into_inner())?;
    let (begun, is_new) = opened.ingestor.begin(&name, paths, prune).await?;
    // One that was begun before has more to do.
    let only = only.filter(|_| is_new);
    if state.audience() == Audience::Private {
        // Nobody else will.
        opened.ingestor.resume(Some(begun.job.id)).await?;
    }
    // A stop waits until what became of the job is sent.
    let in_flight = InFlight::of(&request);
    let events = opened.ingestor.run(begun, only).map(move |progress| {
        let _held = &in_flight;
        let data = progress.map_or_else(|error| event(&super::error::body(&error)), |progress| event(&progress));
        Ok::<_, std::convert::Infallible>(data)
    });
    Ok(HttpResponse::build(StatusCode::OK).content_type("text/event-stream; charset=utf-8").streaming(events))
}
