//! Entries one by one: list, pin, unpin. For the data folder's owner.

use std::cmp::Reverse;

use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::Ragstone;
use ragstone_storage::store::EntryInfo;
use ragstone_storage::tier::Tier;
use serde::Deserialize;
use serde_json::json;

use super::filter::Filter;
use crate::error::{Error, Result};
use crate::http::fields::Fields;
use crate::service::State;

/// Entries that are named at once.
const MOST_LISTED: usize = 10_000;

/// Which entries to list. (No `flatten` of [`Filter`]: it takes numbers in a query for text.)
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Listing {
    collection: Option<String>,
    document: Option<String>,
    tenant: Option<String>,
    tier: Option<Tier>,
    older_than_s: Option<u64>,
    younger_than_s: Option<u64>,
    model: Option<String>,
    limit: Option<usize>,
}

/// What a filter lets pass.
#[derive(Debug, Default)]
struct Matching {
    /// Last used first; the bound holds.
    entries: Vec<EntryInfo>,
    count: u64,
    bytes: u64,
}

/// Entries and what they weigh, last used first.
pub async fn list(state: web::Data<State>, request: HttpRequest) -> Result<HttpResponse> {
    state.check_owner(&request)?;
    let query = web::Query::<Listing>::from_query(request.query_string())
        .map_err(|error| Error::invalid(format!("query: {error}; use collection, document, tenant, tier, …")))?;
    let Listing { collection, document, tenant, tier, older_than_s, younger_than_s, model, limit } = query.into_inner();
    let filter = Filter { collection, document, tenant, tier, older_than_s, younger_than_s, model };
    let limit = limit.unwrap_or(100).min(MOST_LISTED);
    let found = matching(&state, filter, limit).await?;
    Ok(HttpResponse::Ok().json(json!({
        "object": "list", "entries": found.count, "bytes": found.bytes,
        "has_more": found.count > found.entries.len() as u64, "data": found.entries,
    })))
}

/// Keeps entries from being evicted, also after a restart: `{…filter, "all"?, "dry_run"?}`.
pub async fn pin(state: web::Data<State>, request: HttpRequest, payload: web::Payload) -> Result<HttpResponse> {
    set_pinned(state, request, payload, true).await
}

/// Lets them go again.
pub async fn unpin(state: web::Data<State>, request: HttpRequest, payload: web::Payload) -> Result<HttpResponse> {
    set_pinned(state, request, payload, false).await
}

async fn set_pinned(
    state: web::Data<State>,
    request: HttpRequest,
    payload: web::Payload,
    pinned: bool,
) -> Result<HttpResponse> {
    let (ragstone, filter, dry_run) = wanted(&state, &request, payload).await?;
    let now = state.env.now_unix_ms();
    let answer = state.on_runtime(async move {
        let matcher = filter.look_up(&ragstone, now).await?;
        blocking(move || {
            let (mut found, mut changing) = (0_u64, Vec::new());
            let mut bytes = 0_u64;
            ragstone.store().entries(&matcher.listed(), &mut |entry| {
                if matcher.matches(&entry) {
                    found += 1;
                    if entry.pinned != pinned {
                        bytes += entry.summary.bytes;
                        changing.push(entry.summary.key);
                    }
                }
            })?;
            let mut changed = 0_u64;
            for key in &changing {
                changed += u64::from(dry_run || ragstone.store().set_pinned(key, pinned)?);
            }
            Ok(json!({ "entries": found, "changed": changed, "bytes": bytes, "dry_run": dry_run }))
        })
        .await
    });
    Ok(HttpResponse::Ok().json(answer.await??))
}

/// Who asks for what. A verb that changes things does not take a forgotten filter for "all".
pub(super) async fn wanted(
    state: &web::Data<State>,
    request: &HttpRequest,
    payload: web::Payload,
) -> Result<(Ragstone, Filter, bool)> {
    state.check_owner(request)?;
    let opened = state.opened()?;
    let mut fields = Fields::read(payload, state.body_bytes).await?;
    let filter = Filter::take(&mut fields)?;
    let all = fields.take("all")?.unwrap_or(false);
    let dry_run = fields.take("dry_run")?.unwrap_or(false);
    fields.finish()?;
    if filter.is_empty() && !all {
        return Err(Error::invalid(
            "say which entries: by collection, document, tenant, tier, age or model, or say all",
        ));
    }
    Ok((opened.ragstone.clone(), filter, dry_run))
}

async fn matching(state: &web::Data<State>, filter: Filter, limit: usize) -> Result<Matching> {
    let ragstone = state.opened()?.ragstone.clone();
    let now = state.env.now_unix_ms();
    let found = state.on_runtime(async move {
        let matcher = filter.look_up(&ragstone, now).await?;
        blocking(move || {
            let mut found = Matching::default();
            ragstone.store().entries(&matcher.listed(), &mut |entry| {
                if matcher.matches(&entry) {
                    found.count += 1;
                    found.bytes += entry.summary.bytes;
                    found.entries.push(entry);
                    // Sorted and cut now and then, so that memory does not grow with the store.
                    if found.entries.len() >= 2 * limit + 1024 {
                        found.cut(limit);
                    }
                }
            })?;
            found.cut(limit);
            Ok(found)
        })
        .await
    });
    found.await?
}

impl Matching {
    fn cut(&mut self, limit: usize) {
        self.entries.sort_by_key(|entry| (Reverse(entry.last_use_unix_ms), entry.summary.key));
        self.entries.truncate(limit);
    }
}

/// The store's calls wait for disks.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::internal(format!("work on the store broke off: {error}"))),
    }
}
