//! `PUT /v1/collections/NAME/files/FILE`: a file as somebody has it, into a collection.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_documents::{RecordFields, Unread, check_given, timestamp, with_given};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::body::Incoming;
use super::collections::Changed;
use crate::api::collections::{FileQuery, Upserted};
use crate::error::{Error, Result};
use crate::http::error::Answered;
use crate::http::state::{State, caller};
use crate::lanes::Work;

/// Notes on what of a file was left out.
const MOST_LEFT_OUT: usize = 8;
/// Of a file's name.
const MAX_NAME_BYTES: usize = 255;

/// What is told of a file beside its bytes.
#[derive(Debug, Default)]
struct Given {
    metadata: Map<String, Value>,
    fields: RecordFields,
    /// When it was changed last.
    changed: Option<String>,
}

impl Given {
    /// Of a request's query: `metadata` and `fields`, JSON objects, and `changed_unix_ms`.
    fn of(query: &str) -> Result<Self> {
        let FileQuery { metadata, fields, changed_unix_ms } = web::Query::<FileQuery>::from_query(query)
            .map_err(|error| {
                Error::invalid_input(format!("query: {error}; use ?metadata={{…}}&fields={{…}}&changed_unix_ms=…"))
            })?
            .into_inner();
        let metadata: Map<String, Value> = match metadata {
            Some(json) => serde_json::from_str(&json).map_err(|error| {
                Error::invalid_field("metadata", format!("`metadata` must be a JSON object: {error}"))
            })?,
            None => Map::new(),
        };
        check_given(&metadata).map_err(|error| Error::invalid_field("metadata", error.to_string()))?;
        let fields: RecordFields = match fields {
            Some(json) => serde_json::from_str(&json).map_err(|error| {
                let message = format!("`fields` must be a JSON object of `text`, `title` and `id`: {error}");
                Error::invalid_field("fields", message)
            })?,
            None => RecordFields::default(),
        };
        fields.check().map_err(|error| Error::invalid_field("fields", error.to_string()))?;
        let changed = changed_unix_ms.map(|ms| {
            let time = UNIX_EPOCH.checked_add(Duration::from_millis(ms)).and_then(timestamp);
            time.ok_or_else(|| {
                let message = format!("`changed_unix_ms` is {ms}; send milliseconds since 1970, before the year 10000");
                Error::invalid_field("changed_unix_ms", message)
            })
        });
        Ok(Self { metadata, fields, changed: changed.transpose()? })
    }
}

/// Reads the body as a file of that name would be read from disk, and adds or replaces its documents.
pub async fn put(
    state: web::Data<State>,
    request: HttpRequest,
    path: web::Path<(String, String)>,
    incoming: Incoming,
) -> Answered {
    let (collection, name) = path.into_inner();
    let Changed { collection, asks, library } = Changed::of(&state, &request, &collection)?;
    if name.len() > MAX_NAME_BYTES || name.contains(['/', '\\']) || name.chars().any(char::is_control) {
        return Err(Error::invalid_input(format!(
            "a file's name has at most {MAX_NAME_BYTES} bytes, and no folder or control characters in it"
        ))
        .into());
    }
    let Given { metadata, fields, changed } = Given::of(request.query_string())?;
    let bytes = incoming.bytes().await?;
    let (seconds, caller) = (state.file_seconds, caller(&request));
    // Dropped with this request: the client left, and what is not committed yet is not wanted any more.
    let gone = CancellationToken::new();
    let _client = gone.clone().drop_guard();
    let added = state.run(&request, Work::Change, async move {
        let stopping = gone.clone();
        let name = PathBuf::from(name);
        let read = tokio::task::spawn_blocking(move || {
            #[cfg(unix)]
            let parser = ragstone_documents::Process::new(seconds, stopping);
            #[cfg(not(unix))]
            let parser = ragstone_documents::Here;
            let mut documents = Vec::new();
            let mut reader = ragstone_documents::Reader::new(parser).with_fields(fields);
            let read = reader.read_bytes(&name, (bytes, changed), &mut |document| {
                documents.push(with_given(document, &metadata));
                true
            });
            (documents, read)
        });
        let (documents, read) = read.await.map_err(|_| Error::internal("the reading of the file broke off"))?;
        let left_out = documents.iter().flat_map(|document| &document.left_out).take(MOST_LEFT_OUT).cloned().collect();
        let has_text = documents.iter().any(|document| !document.text.trim().is_empty());
        let not_read = match read {
            Ok(()) => (!has_text).then(|| "it has no text, and nothing of it is stored".to_owned()),
            // As `ingest` does it: bad records do not lose the others.
            Err(Unread::Skipped(why)) if !documents.is_empty() => Some(why),
            Err(Unread::Skipped(why)) => return Err(Error::invalid_field("file", why)),
            Err(Unread::Stopped) => return Err(Error::invalid_field("file", "the client left")),
            Err(Unread::Failed(error)) => return Err(error),
        };
        let (report, kv) =
            library.upsert(&collection, documents, (asks.as_deref(), caller), move || !gone.is_cancelled()).await?;
        Ok::<_, Error>((report, kv, not_read, left_out))
    });
    let (report, kv, not_read, left_out) = added.await??;
    Ok(HttpResponse::Ok().json(Upserted { report, kv, not_read, left_out }))
}
