//! Verbs over entries: list, evict, pin. For the data folder's owner.

use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::Ragstone;
use ragstone_actors::ragstone::entries::EntryFilter;

use crate::api::ListObject;
use crate::api::cache::{Entries, EntriesQuery, HowToChange};
use crate::error::{Error, Result};
use crate::http::audit;
use crate::http::body::Incoming;
use crate::http::error::Answered;
use crate::http::fields::Fields;
use crate::http::identity::Visitor;
use crate::http::state::State;
use crate::lanes::Work;

/// Entries, what they are of, and what they weigh, last used first.
pub async fn list(state: web::Data<State>, request: HttpRequest) -> Answered {
    let query = web::Query::<EntriesQuery>::from_query(request.query_string())
        .map_err(|error| Error::invalid_input(format!("query: {error}; use collection, document, tenant, tier, …")))?;
    let (mut filter, limit) = query.into_inner().parts();
    filter.collection = Visitor::of(&request)?.collection_if(filter.collection.take())?;
    let ragstone = state.opened()?.ragstone.clone();
    let listing = async move { ragstone.entries(&filter, limit.unwrap_or(100)).await };
    let page = state.run(&request, Work::Look, listing).await??;
    Ok(HttpResponse::Ok().json(Entries { object: ListObject::List, page }))
}

/// Takes entries out of the tiers: `{…filter, "all"?, "dry_run"?}`. They are computed again when they are needed. What was computed
/// after them leaves the same tier, too; what is pinned stays, with all before it.
pub async fn evict(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let (ragstone, filter, dry_run) = wanted(&state, &request, incoming).await?;
    let evicting = async move { ragstone.evict(&filter, dry_run).await };
    Ok(HttpResponse::Ok().json(state.run(&request, Work::Upkeep, evicting).await??))
}

/// Keeps entries from being evicted, also after a restart: `{…filter, "all"?, "dry_run"?}`.
pub async fn pin(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    set_pinned(state, request, incoming, true).await
}

/// Lets them go again.
pub async fn unpin(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    set_pinned(state, request, incoming, false).await
}

async fn set_pinned(state: web::Data<State>, request: HttpRequest, incoming: Incoming, pinned: bool) -> Answered {
    let (ragstone, filter, dry_run) = wanted(&state, &request, incoming).await?;
    let changing = async move { ragstone.set_pinned(&filter, pinned, dry_run).await };
    Ok(HttpResponse::Ok().json(state.run(&request, Work::Upkeep, changing).await??))
}

/// Who asks for what. A verb that changes things does not take a forgotten filter for "all".
async fn wanted(
    state: &web::Data<State>,
    request: &HttpRequest,
    incoming: Incoming,
) -> Result<(Ragstone, EntryFilter, bool)> {
    let opened = state.opened()?;
    let mut fields = Fields::read(incoming).await?;
    let filter = take_filter(&mut fields, &Visitor::of(request)?)?;
    let HowToChange { all, dry_run } = fields.take_all()?;
    fields.finish()?;
    if filter.is_empty() && !all {
        return Err(Error::invalid_input(
            "say which entries: by collection, document, tenant, tier, age or model, or say all (on the command line --collection NAME \
             and its like, or --all)",
        ));
    }
    audit::say(request, "filter", serde_json::to_value(&filter).unwrap_or_default());
    audit::say(request, "dry_run", dry_run);
    Ok((opened.ragstone.clone(), filter, dry_run))
}

/// Takes a filter's fields out of a request.
pub(super) fn take_filter(fields: &mut Fields, visitor: &Visitor) -> Result<EntryFilter> {
    let mut filter: EntryFilter = fields.take_all()?;
    filter.collection = visitor.collection_if(filter.collection.take())?;
    Ok(filter)
}

/// The store's calls wait for disks.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::internal(format!("work on the store broke off: {error}"))),
    }
}
