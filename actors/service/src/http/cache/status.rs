//! What every tier holds, what the start found, what is on its way.

use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::admission::api_keys::ApiKey;

use super::entries::blocking;
use crate::api::cache::{CacheStatus, KeyStatus, Plan, Plans, WholeStatus};
use crate::http::error::Answered;
use crate::http::identity::Visitor;
use crate::http::ingests;
use crate::http::state::State;
use crate::lanes::Work;

/// Tiers, device pool, workers, what the start found, unfinished warm-ups and ingests. A key below admin is told what model this is, and what the key
/// itself is: the rest is about what everybody stored.
pub async fn status(state: web::Data<State>, request: HttpRequest) -> Answered {
    let ragstone = state.opened()?.ragstone.clone();
    let visitor = Visitor::of(&request)?;
    if let Some(ApiKey { record, .. }) = visitor.bound() {
        let status = KeyStatus { model: ragstone.model().clone(), key: record.into() };
        return Ok(HttpResponse::Ok().json(CacheStatus::OfKey(status)));
    }
    let looked = state.run(&request, Work::Look, async move {
        let warm_jobs = ragstone.warmer().unfinished().await?;
        let listed = ragstone.ingests().listed().await?.into_iter();
        let ingests = listed.filter_map(|ingest| ingests::shown(ingest, &visitor)).collect();
        blocking(move || {
            let (status, recovery) = (ragstone.status(), *ragstone.store().recovery());
            Ok(WholeStatus { damage: ragstone.damages(), status, recovery, warm_jobs, ingests })
        })
        .await
    });
    Ok(HttpResponse::Ok().json(CacheStatus::Whole(Box::new(looked.await??))))
}

/// The last prompts' plans, the latest first: what was loaded, blended and computed, why, and what it took. A key below admin is shown
/// its tenant's, without the number that counts everybody's.
pub async fn plans(state: web::Data<State>, request: HttpRequest) -> Answered {
    let ragstone = &state.opened()?.ragstone;
    let visitor = Visitor::of(&request)?;
    let (tenant, is_numbered) = match visitor.bound() {
        None => (None, true),
        Some(key) => (Some(key.record.tenant.as_str()), false),
    };
    let plans = ragstone
        .plans(tenant)
        .into_iter()
        .map(|record| Plan::of(record, is_numbered, !matches!(visitor, Visitor::Anyone)))
        .collect();
    Ok(HttpResponse::Ok().json(Plans { plans }))
}
