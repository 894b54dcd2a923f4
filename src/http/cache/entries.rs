//! Pins, and what verbs over entries share. For the data folder's owner.

use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::Ragstone;
use serde_json::json;

use super::filter::Filter;
use crate::error::{Error, Result};
use crate::http::body::Incoming;
use crate::http::fields::Fields;
use crate::http::identity::Visitor;
use crate::lanes::Work;
use crate::service::State;

/// Keeps entries from being evicted, also after a restart: `{…filter, "all"?, "dry_run"?}`.
pub async fn pin(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Result<HttpResponse> {
    set_pinned(state, request, incoming, true).await
}

/// Lets them go again.
pub async fn unpin(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Result<HttpResponse> {
    set_pinned(state, request, incoming, false).await
}

async fn set_pinned(
    state: web::Data<State>,
    request: HttpRequest,
    incoming: Incoming,
    pinned: bool,
) -> Result<HttpResponse> {
    let (ragstone, filter, dry_run) = wanted(&state, &request, incoming).await?;
    let now = state.env.now_unix_ms();
    // Then pins of what is in no tier any more go, too.
    let every_pin = !pinned && filter.is_empty();
    let answer = state.run(&request, Work::Upkeep, async move {
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
            if every_pin {
                changing = ragstone.store().pinned();
            }
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
    incoming: Incoming,
) -> Result<(Ragstone, Filter, bool)> {
    let opened = state.opened()?;
    let mut fields = Fields::read(incoming).await?;
    let filter = Filter::take(&mut fields, &Visitor::of(request)?)?;
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

/// The store's calls wait for disks.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::internal(format!("work on the store broke off: {error}"))),
    }
}
