//! What every tier holds, what the start found, what is on its way.

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::json;

use super::entries::blocking;
use crate::error::Result;
use crate::lanes::Work;
use crate::service::State;

/// Tiers, device pool, workers, what the start found, unfinished warm-ups.
pub async fn status(state: web::Data<State>, request: HttpRequest) -> Result<HttpResponse> {
    let ragstone = state.opened()?.ragstone.clone();
    let looked = state.run(&request, Work::Look, async move {
        let warm_jobs = ragstone.warmer().unfinished().await?;
        blocking(move || {
            let mut status = json!(ragstone.status());
            status["recovery"] = json!(ragstone.store().recovery());
            status["warm_jobs"] = json!(warm_jobs);
            Ok(status)
        })
        .await
    });
    Ok(HttpResponse::Ok().json(looked.await??))
}

/// The last prompts' plans, the latest first: what was loaded, blended and computed, why, and what it took.
pub async fn plans(state: web::Data<State>, request: HttpRequest) -> Result<HttpResponse> {
    // They name tenants.
    state.check_owner(&request)?;
    Ok(HttpResponse::Ok().json(json!({ "plans": state.opened()?.ragstone.plans() })))
}
