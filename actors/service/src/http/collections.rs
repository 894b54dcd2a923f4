//! `/v1/collections…`: documents in and out, search, and ingest of files by the data folder's owner.

use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::http::header::ContentType;
use actix_web::{HttpRequest, HttpResponse, web};
use futures::StreamExt;
use ragstone_actors::upkeep::library::{Library, Removed};
use ragstone_actors::{InlineDocument, MAX_CANDIDATES, MAX_QUERY_BYTES, MinSimilarity, Rerank, Reuse};
use ragstone_corpus::{COLLECTION, DocumentInfo, Filter, Hit, Qualified, SearchOptions, qualified};
use ragstone_documents::{Document, check_given};
use ragstone_storage::catalog::IngestOptions;
use serde::Serialize;

use super::answer::{HEARTBEAT, beating, comment, event};
use super::body::Incoming;
use super::fields::Fields;
use super::identity::Visitor;
use super::{audit, quotas};
use crate::api::collections::{
    DeleteQuery, Deleted, DocumentsQuery, FoundPassages, Ingest, ReadAs, Search, Upsert, Upserted, WholeDocument,
};
use crate::api::{List, ListObject, Page};
use crate::error::{Error, ErrorKind, Result};
use crate::http::error::{Answered, Refusal};
use crate::http::state::{InFlight, Opened, State, caller};
use crate::ingest::told_apart;
use crate::lanes::Work;

/// Documents of one upsert. Their text is bounded by the body.
const MAX_DOCUMENTS: usize = 1000;
/// Passages that a search has, where nobody says how many.
const PASSAGES: usize = 5;

/// Of a page of documents: their titles, sources and metadata. What does not fit is on the next one.
const MOST_PAGE_BYTES: usize = 4 << 20;

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

/// Collections that are named where another is not there.
const MOST_NAMED: usize = 10;

/// Has the refusal of a request over a collection that is not there name those that are, as far as whoever asks may know of them.
/// `asked` is the collection's full name.
pub async fn naming<T>(opened: &Opened, visitor: &Visitor, asked: &str, answered: Answered<T>) -> Answered<T> {
    match answered {
        Err(Refusal(error)) if error.kind() == ErrorKind::NotFound && error.at_field() == Some(COLLECTION) => {
            let names = opened.ragstone.corpus().names().await;
            let known: Vec<String> = names.iter().filter_map(|name| visitor.shown(name)).collect();
            let asked = visitor.shown(asked).unwrap_or_default();
            Err(Refusal(Error::of_field(ErrorKind::NotFound, COLLECTION, no_collection(&asked, &known))))
        }
        answered => answered,
    }
}

fn no_collection(asked: &str, known: &[String]) -> String {
    let named: Vec<String> = known.iter().take(MOST_NAMED).map(|name| format!("`{name}`")).collect();
    let more = match known.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more (`ragstone collections list`)"),
    };
    if known.is_empty() {
        return format!("there is no collection `{asked}`, nor any other yet: `ragstone ingest PATH` begins one");
    }
    let named = named.join(", ");
    format!(
        "there is no collection `{asked}`: name one that is there (on the command line by --collection): {named}{more}"
    )
}

/// Removes a collection, and its KV. For the data folder's owner, and keys that may write into it.
pub async fn delete(state: web::Data<State>, request: HttpRequest, path: web::Path<String>) -> Answered {
    let name = path.into_inner();
    let now = wants_it_gone(&request)?;
    let Changed { collection, asks, library } = Changed::of(&state, &request, &name)?;
    let removing = async move {
        let removed = library.delete_collection(&collection, asks.as_deref()).await?;
        if now {
            library.vacuum_collection(&collection).await?;
        }
        Ok::<_, Error>(removed)
    };
    let removed = state.run(&request, Work::Remove, removing).await??;
    Ok(HttpResponse::Ok().json(deleted(&name, removed)))
}

/// Whether a deletion is to be waited for until no file has what it deletes: `?now=true`. That rewrites the files of everybody.
fn wants_it_gone(request: &HttpRequest) -> Result<bool> {
    let DeleteQuery { now } = web::Query::<DeleteQuery>::from_query(request.query_string())
        .map_err(|error| Error::invalid_input(format!("query: {error}; use ?now=true")))?
        .into_inner();
    if now && Visitor::of(request)?.bound().is_some() {
        let message = "`now` is for the data folder's owner and admins' keys: leave it out, and what is deleted leaves the files within \
                       the time of the setting vacuum_within_s";
        return Err(Error::of_field(ErrorKind::Forbidden, "now", message));
    }
    Ok(now)
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
    let opened = state.opened()?;
    let (corpus, visitor) = (opened.ragstone.corpus().clone(), Visitor::of(&request)?);
    let name = visitor.collection(&path.into_inner())?;
    let asked = name.clone();
    // One more than asked for shows whether there is more.
    let listing = async move { corpus.documents(&asked, page.offset, limit + 1).await };
    let listed = state.run(&request, Work::Look, listing).await?.map_err(Refusal);
    let mut data = naming(opened, &visitor, &name, listed).await?;
    let fitting = fitting(&data).min(limit);
    let has_more = data.len() > fitting;
    data.truncate(fitting);
    written(Page { object: ListObject::List, data, has_more }).await
}

/// How many documents fit into a page, one at least: what they say of themselves may be 64 KiB each.
fn fitting(documents: &[DocumentInfo]) -> usize {
    let mut bytes = 0;
    let fit = documents.iter().take_while(|DocumentInfo { id, title, source, metadata, .. }| {
        bytes += id.len() + title.len() + source.as_ref().map_or(0, String::len) + metadata.json().len();
        bytes <= MOST_PAGE_BYTES
    });
    fit.count().max(1)
}

/// An answer of megabytes, perhaps: not written on a thread that others wait for.
async fn written(answer: impl Serialize + Send + 'static) -> Answered {
    let written = tokio::task::spawn_blocking(move || serde_json::to_vec(&answer)).await;
    let written = written.map_err(|_| Error::internal("writing the answer broke off"))?;
    let body = written.map_err(|error| Error::internal(format!("the answer cannot be written: {error}")))?;
    Ok(HttpResponse::Ok().content_type(ContentType::json()).body(body))
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
    audit::say_all(&request, "documents", documents.iter().map(known_by));
    let caller = caller(&request);
    // Dropped with this request: the client left, and what is not committed yet is not wanted any more.
    let (_client, gone) = tokio::sync::watch::channel(());
    let wanted = move || gone.has_changed().is_ok();
    let upserting = async move { library.upsert(&collection, documents, (asks.as_deref(), caller), wanted).await };
    let done = state.run(&request, Work::Change, upserting);
    let (report, kv) = done.await??;
    Ok(HttpResponse::Ok().json(Upserted { report, kv, not_read: None, left_out: Vec::new() }))
}

/// What a document is known by in the audit log.
fn known_by(document: &Document) -> &str {
    document.id.as_ref().or(document.source.as_ref()).unwrap_or(&document.title)
}

/// One document with its passages.
pub async fn document(state: web::Data<State>, request: HttpRequest, path: web::Path<(String, String)>) -> Answered {
    let corpus = state.opened()?.ragstone.corpus().clone();
    let (given, id) = path.into_inner();
    let name = Visitor::of(&request)?.collection(&given)?;
    let mut document = state.run(&request, Work::Look, async move { corpus.document(&name, &id).await }).await??;
    document.passages.iter_mut().for_each(|passage| passage.collection.clone_from(&given));
    written(WholeDocument::from(document)).await
}

/// Removes a document, and its KV. For the data folder's owner, and keys that may write into the collection.
pub async fn delete_document(
    state: web::Data<State>,
    request: HttpRequest,
    path: web::Path<(String, String)>,
) -> Answered {
    let (name, id) = path.into_inner();
    let now = wants_it_gone(&request)?;
    let Changed { collection, asks, library } = Changed::of(&state, &request, &name)?;
    let document = id.clone();
    let removing = async move {
        let removed = library.delete_document(&collection, &document, asks.as_deref()).await?;
        if now {
            library.vacuum_collection(&collection).await?;
        }
        Ok::<_, Error>(removed)
    };
    let removed = state.run(&request, Work::Remove, removing).await??;
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
    let (given, visitor) = (path.into_inner(), Visitor::of(&request)?);
    let name = visitor.collection(&given)?;
    let Search { query, top_k, mode, rerank, filter, qualifiers, min_similarity } = Fields::whole(incoming).await?;
    let min_similarity = min_similarity.unwrap_or(state.settings.min_similarity);
    let (query, filter, read_as) = if qualifiers { read(&query, filter)? } else { (query, filter, None) };
    let asked_top_k = top_k;
    let top_k = top_k.or(state.settings.top_k).unwrap_or(PASSAGES);
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
    let rerank = candidates(rerank, state.settings.rerank, (asked_top_k, top_k))?;
    if rerank > 0
        && let Some(refused) = quotas::begin_asking(&opened.ragstone, &visitor, request.path())
    {
        return Ok(refused);
    }
    let corpus = opened.ragstone.corpus().clone();
    let options = SearchOptions {
        top_k: if rerank > 0 { rerank.max(top_k) } else { top_k },
        mode,
        filter,
        min_similarity: min_similarity.least(),
    };
    let (asked, within) = (query.clone(), name.clone());
    let searching = async move {
        let words_only = corpus.built_with(&within).await?.words_only;
        let found = corpus.search_in_stages(&within, &asked, &options, false, &mut |_| {}).await?;
        Ok::<_, Error>((found, words_only))
    };
    let found = state.run(&request, Work::Search, searching).await?.map_err(Refusal);
    let (found, words_only) = naming(opened, &visitor, &name, found).await?;
    let nothing_found = match min_similarity {
        MinSimilarity::Auto => found.is_relevant == Some(false),
        MinSimilarity::Off => false,
        MinSimilarity::Least(_) => found.hits.is_empty(),
    };
    let mut data = found.hits;
    if rerank > 0 && !data.is_empty() {
        data = in_order(&state, &request, query, data).await?;
        data.truncate(top_k);
    }
    data.iter_mut().for_each(|hit| hit.passage.collection.clone_from(&given));
    written(FoundPassages { object: ListObject::List, data, nothing_found, read_as, words_only }).await
}

/// How many passages the model puts in order, as in questions: neither the setting nor `rerank` counts where the setting `top_k` wants more than may be.
fn candidates(asked: Option<usize>, setting: usize, (asked_top_k, top_k): (Option<usize>, usize)) -> Result<usize> {
    match asked {
        Some(count) if count > MAX_CANDIDATES => {
            Err(Error::invalid_field("rerank", format!("`rerank` is {count}; use at most {MAX_CANDIDATES}")))
        }
        Some(count) if count > 0 && asked_top_k.is_some_and(|top_k| top_k > MAX_CANDIDATES) => {
            let message = format!(
                "`top_k` is {top_k}, and at most {MAX_CANDIDATES} passages are put in order by `rerank`; lower it, or leave `rerank` out"
            );
            Err(Error::invalid_field("top_k", message))
        }
        _ if top_k > MAX_CANDIDATES => Ok(0),
        asked => Ok(asked.unwrap_or(setting)),
    }
}

/// A query with qualifiers as it is searched for: without them, with the filter that they and the request come to.
fn read(query: &str, filter: Option<Filter>) -> Result<(String, Option<Filter>, Option<ReadAs>)> {
    let Qualified { query, filter: qualifiers } =
        qualified(query).map_err(|error| Error::invalid_field("query", error.to_string()))?;
    if qualifiers.is_none() {
        return Ok((query, filter, None));
    }
    let filter = Filter::all_of(filter.into_iter().chain(qualifiers).collect())
        .map_err(|error| Error::invalid_field("filter", error.to_string()))?;
    let read_as = filter.clone().map(|filter| ReadAs { query: query.clone(), filter });
    Ok((query, filter, read_as))
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
    let Ingest { paths, prune, only, metadata, fields, pages, depth } = Fields::whole(incoming).await?;
    check_given(&metadata).map_err(|error| Error::invalid_field("metadata", error.to_string()))?;
    fields.check().map_err(|error| Error::invalid_field("fields", error.to_string()))?;
    let (_, local) = told_apart(&paths).map_err(|error| Error::invalid_field("paths", error.to_string()))?;
    if local.iter().any(|path| !path.is_absolute()) {
        return Err(Error::invalid_field("paths", "`paths` must be absolute, or addresses").into());
    }
    if pages == Some(0) {
        return Err(Error::invalid_field("pages", "`pages` must be at least 1").into());
    }
    let name = Visitor::of(&request)?.collection(&path.into_inner())?;
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    audit::say_all(&request, "paths", shown.iter().map(String::as_str));
    let options = IngestOptions { prune, metadata, fields: fields.to_map(), pages, depth };
    let (begun, is_new) = opened.ingestor.begin(&name, paths, options).await?;
    // One that was begun before has more to do.
    let only = only.filter(|_| is_new);
    if !state.audience().resumes() {
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
    let events = beating(events, comment(), HEARTBEAT);
    Ok(HttpResponse::build(StatusCode::OK).content_type("text/event-stream; charset=utf-8").streaming(events))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_a_collection_that_is_not_there_hears_of_those_that_are() {
        let known = |count: usize| (0..count).map(|index| format!("c{index}")).collect::<Vec<_>>();
        let said = |count| no_collection("default", &known(count));
        assert!(said(0).ends_with("nor any other yet: `ragstone ingest PATH` begins one"), "{}", said(0));
        assert!(said(2).ends_with("--collection): `c0`, `c1`"), "{}", said(2));
        assert!(said(12).ends_with("`c8`, `c9` and 2 more (`ragstone collections list`)"), "{}", said(12));
    }

    #[test]
    fn no_more_passages_are_put_in_order_than_may_be_whoever_wants_it() {
        let most = MAX_CANDIDATES;
        for (asked, setting, top_k, expected) in [
            (None, 20, 5, 20),
            (None, 20, most, 20),
            (None, 20, most + 1, 0),
            (Some(0), 20, 1000, 0),
            (Some(3), 20, most, 3),
        ] {
            assert_eq!(candidates(asked, setting, (Some(top_k), top_k)).unwrap(), expected, "{asked:?} {top_k}");
        }
        // Who said no `top_k` is not told to lower it.
        assert_eq!(candidates(Some(5), 0, (None, most + 1)).unwrap(), 0);
        for (asked, top_k, field) in [(1, most + 1, "top_k"), (most + 1, 5, "rerank")] {
            assert_eq!(candidates(Some(asked), 0, (Some(top_k), top_k)).unwrap_err().at_field(), Some(field));
        }
    }
}
