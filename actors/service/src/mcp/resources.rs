//! Documents as resources: `ragstone://COLLECTION/DOCUMENT`, the parts escaped as in a URL.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use ragstone_corpus::{CollectionInfo, DocumentInfo};
use rmcp::model::{
    CacheScope, ErrorData, ListResourcesResult, ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
};
use serde::de::DeserializeOwned;

use super::shown;
use crate::api::collections::WholeDocument;
use crate::api::{List, Page};
use crate::client::routes::{Request, Routes, escaped};
use crate::error::{Error, ErrorKind};

const SCHEME: &str = "ragstone";
/// Of a URI: a collection's name and a document's id, all of it escaped.
const MAX_URI_BYTES: usize = 4096;
/// Documents of one page.
const PAGE: usize = 100;

/// The URI of a document.
pub fn uri(collection: &str, document: &str) -> String {
    format!("{SCHEME}://{}/{}", escaped(collection), escaped(document))
}

/// Collection and document of a URI.
pub(super) fn parse(uri: &str) -> Option<(String, String)> {
    if uri.len() > MAX_URI_BYTES {
        return None;
    }
    let (collection, document) = uri.strip_prefix(SCHEME)?.strip_prefix("://")?.split_once('/')?;
    let (collection, document) = (unescape(collection)?, unescape(document)?);
    // Dots alone would lead to another path.
    let is_name = |name: &str| !matches!(name, "" | "." | "..");
    (is_name(&collection) && is_name(&document)).then_some((collection, document))
}

/// Takes `%41` for `A`; `None` where that makes no text.
fn unescape(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

/// How a document is read whose name is known.
pub fn template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{SCHEME}://{{collection}}/{{document}}"), "document")
        .with_title("A document")
        .with_description("The text of a document of a collection; search results and citations name both.")
        .with_mime_type("text/plain")
}

/// Where the next page begins: a collection, and how many of its documents were listed.
#[derive(Debug, PartialEq)]
struct Cursor {
    collection: String,
    offset: usize,
}

impl Cursor {
    fn parse(text: &str) -> Option<Self> {
        let (collection, offset) = text.rsplit_once('/')?;
        Some(Self { collection: collection.to_owned(), offset: offset.parse().ok()? })
    }

    fn text(&self) -> String {
        format!("{}/{}", self.collection, self.offset)
    }
}

/// A page of all documents, collection by collection.
pub async fn list(routes: &dyn Routes, cursor: Option<String>) -> Result<ListResourcesResult, ErrorData> {
    let begin = match cursor {
        None => Cursor { collection: String::new(), offset: 0 },
        Some(text) => Cursor::parse(&text)
            .ok_or_else(|| ErrorData::invalid_params(format!("`{}` is no cursor of this list", shown(&text)), None))?,
    };
    let collections: List<CollectionInfo> = get(routes, &["v1", "collections"], Vec::new()).await?;
    let names = collections.data.iter().map(|collection| collection.name.as_str());
    let mut names: Vec<&str> = names.filter(|name| *name >= begin.collection.as_str()).collect();
    names.sort_unstable();
    let Some((&name, more)) = names.split_first() else { return Ok(page(Vec::new(), None)) };
    let offset = if name == begin.collection { begin.offset } else { 0 };
    let query = vec![("offset", offset.to_string()), ("limit", PAGE.to_string())];
    let documents: Page<DocumentInfo> = get(routes, &["v1", "collections", name, "documents"], query).await?;
    let found = documents.data.iter().map(|document| resource(name, document));
    let next = if documents.has_more {
        // A page has fewer than were asked for where they have much metadata; one at least.
        Some(Cursor { collection: name.to_owned(), offset: offset + documents.data.len().max(1) })
    } else {
        more.first().map(|next| Cursor { collection: (*next).to_owned(), offset: 0 })
    };
    Ok(page(found.collect(), next))
}

fn page(resources: Vec<Resource>, next: Option<Cursor>) -> ListResourcesResult {
    let mut page = ListResourcesResult::with_all_items(resources).with_ttl_ms(0).with_cache_scope(CacheScope::Private);
    page.next_cursor = next.map(|next| next.text());
    page
}

fn resource(collection: &str, DocumentInfo { id, title, source, .. }: &DocumentInfo) -> Resource {
    let title = if title.is_empty() { id } else { title };
    let resource = Resource::new(uri(collection, id), id).with_title(title).with_mime_type("text/plain");
    match source {
        Some(source) => resource.with_description(format!("from {source}")),
        None => resource,
    }
}

/// A document's text: its passages, one behind another.
pub async fn read(routes: &dyn Routes, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let (collection, document) = parse(uri).ok_or_else(|| {
        let message = format!("`{}` is no document's URI; use {SCHEME}://COLLECTION/DOCUMENT", shown(uri));
        ErrorData::resource_not_found(message, None)
    })?;
    let found: WholeDocument =
        get(routes, &["v1", "collections", &collection, "documents", &document], Vec::new()).await?;
    let passages = found.passages.iter().map(|passage| passage.text.as_str());
    let text = passages.collect::<Vec<_>>().join("\n\n");
    Ok(ReadResourceResult::new(vec![ResourceContents::text(text, uri)])
        .with_ttl_ms(0)
        .with_cache_scope(CacheScope::Private))
}

async fn get<T: DeserializeOwned>(
    routes: &dyn Routes,
    path: &[&str],
    query: Vec<(&'static str, String)>,
) -> Result<T, ErrorData> {
    let asked = async { routes.send(Request { query, ..Request::get(path) }).await?.json().await };
    asked.await.map_err(|error: Error| match error.kind() {
        ErrorKind::NotFound => ErrorData::resource_not_found(error.to_string(), None),
        ErrorKind::InvalidInput => ErrorData::invalid_params(error.to_string(), None),
        ErrorKind::Forbidden | ErrorKind::Unauthenticated => ErrorData::invalid_request(error.to_string(), None),
        _ => ErrorData::internal_error(error.to_string(), None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_a_document_leads_back_to_it() {
        for id in ["roof", "a/b c.md", "/srv/x?y#z", "ä%41", "50%", "..x", "\u{1F600}"] {
            for collection in ["notes", "acme/notes", "/notes"] {
                let uri = uri(collection, id);
                assert!(uri.is_ascii() && !uri.contains(' '), "{uri}");
                assert_eq!(parse(&uri), Some((collection.to_owned(), id.to_owned())), "{uri}");
            }
        }
    }

    #[test]
    fn what_names_none_is_refused() {
        let long = format!("ragstone://notes/{}", "x".repeat(MAX_URI_BYTES));
        for uri in [
            "",
            "notes/roof",
            "file:///etc/passwd",
            "ragstone://notes",
            "ragstone:///x",
            "ragstone://n/",
            "ragstone://n/%ff",
            "ragstone://n/..",
            "ragstone://../x",
            &long,
        ] {
            assert_eq!(parse(uri), None, "{uri}");
        }
    }

    #[test]
    fn a_cursor_comes_back_as_it_went() {
        for collection in ["notes", "acme/notes"] {
            let cursor = Cursor { collection: collection.into(), offset: 200 };
            assert_eq!(Cursor::parse(&cursor.text()), Some(cursor));
        }
        for text in ["", "notes", "notes/", "notes/x", "notes/-1"] {
            assert_eq!(Cursor::parse(text), None, "{text}");
        }
    }
}
