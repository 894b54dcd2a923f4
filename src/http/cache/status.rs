//! What every tier holds, what the start found, what is on its way.

use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::PlanRecord;
use ragstone_actors::api_keys::ApiKey;
use serde_json::{Value, json};

use super::entries::blocking;
use crate::error::Result;
use crate::http::identity::Visitor;
use crate::lanes::Work;
use crate::service::State;

/// Tiers, device pool, workers, what the start found, unfinished warm-ups. A key below admin is told what model this is, and what the key
/// itself is: the rest is about what everybody stored.
pub async fn status(state: web::Data<State>, request: HttpRequest) -> Result<HttpResponse> {
    let ragstone = state.opened()?.ragstone.clone();
    if let Some(key) = Visitor::of(&request)?.bound() {
        let ApiKey { record, .. } = key;
        let key = json!({
            "name": record.name, "role": record.role, "tenant": record.tenant, "collections": record.collections,
        });
        return Ok(HttpResponse::Ok().json(json!({ "model": ragstone.model(), "key": key })));
    }
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

/// The last prompts' plans, the latest first: what was loaded, blended and computed, why, and what it took. A key below admin is shown
/// its tenant's, without the number that counts everybody's.
pub async fn plans(state: web::Data<State>, request: HttpRequest) -> Result<HttpResponse> {
    let ragstone = &state.opened()?.ragstone;
    let plans: Vec<Value> = match Visitor::of(&request)?.bound() {
        None => ragstone.plans(None).iter().map(|plan| json!(plan)).collect(),
        Some(key) => ragstone.plans(Some(&key.record.tenant)).iter().map(unnumbered).collect(),
    };
    Ok(HttpResponse::Ok().json(json!({ "plans": plans })))
}

fn unnumbered(plan: &PlanRecord) -> Value {
    let mut plan = json!(plan);
    if let Some(fields) = plan.as_object_mut() {
        fields.remove("number");
    }
    plan
}
