//! What every tier holds, what the start found, what is on its way.

use actix_web::{HttpResponse, web};
use serde_json::json;

use crate::error::Result;
use crate::service::State;

/// Tiers, device pool, workers, what the start found, unfinished warm-ups.
pub async fn status(state: web::Data<State>) -> Result<HttpResponse> {
    let ragstone = &state.opened()?.ragstone;
    let mut status = json!(ragstone.status());
    status["recovery"] = json!(ragstone.store().recovery());
    status["warm_jobs"] = json!(ragstone.warmer().unfinished().await?);
    Ok(HttpResponse::Ok().json(status))
}
